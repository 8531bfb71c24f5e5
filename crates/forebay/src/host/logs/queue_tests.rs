use tracing_subscriber::layer::SubscriberExt;

use super::*;

/// Takes what a subscriber is given: level, and each field with its text.
struct Heard(Sender<String>);

impl<S: Subscriber> Layer<S> for Heard {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        struct Fields(String);
        impl Visit for Fields {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                self.0 += &format!(" {field}={value:?}");
            }
        }
        let mut fields = Fields(event.metadata().level().to_string());
        event.record(&mut fields);
        self.0.send(fields.0).unwrap();
    }
}

/// Does something with a log whose events go through the queue; they are not read meanwhile.
fn unread(logs: impl FnOnce()) -> (Queue, Reader) {
    let (queue, reader) = Queue::new();
    let subscriber = tracing_subscriber::registry().with(Events(queue.clone()));
    tracing::subscriber::with_default(subscriber, logs);
    (queue, reader)
}

/// What comes out now.
fn read((queue, reader): (Queue, Reader)) -> Vec<String> {
    let (hears, heard) = channel();
    let direct = Dispatch::new(tracing_subscriber::registry().with(Heard(hears)));
    let writer = std::thread::Builder::new().spawn(move || reader.run(&direct)).unwrap();
    queue.end();
    writer.join().unwrap();
    heard.try_iter().collect()
}

#[test]
fn events_come_out_with_their_fields() {
    let log = unread(|| {
        tracing::info!(io = "posix", files = 3_u64, none = None::<&str>, "serving {}", "all");
        tracing::warn!(at = %"here", "slow");
    });
    assert_eq!(
        read(log),
        ["INFO message=serving all io=posix files=3", "WARN message=slow at=here"]
    );
}

#[test]
fn lines_that_nobody_takes_are_counted_and_told_in_their_place() {
    const LINES: usize = 100_000;
    let log = unread(|| {
        for _ in 0..LINES {
            tracing::info!("a line");
        }
        tracing::error!("bad");
    });
    assert!(log.0.0.waiting.load(Ordering::Acquire) <= MOST_WAITING, "it is bounded");
    let heard = read(log);
    let lines = heard.iter().filter(|one| *one == "INFO message=a line").count();
    let lost = LINES - lines;
    assert!(lines > 1000 && lost > 1000, "{lines} of {LINES}");
    let told =
        format!("WARN message={lost} lines of the log were lost here, as they were not taken");
    assert_eq!(heard[lines..].len(), 2, "{:?}", &heard[lines..]);
    assert!(heard[lines].starts_with(&told), "{}", heard[lines]);
    assert_eq!(heard[lines + 1], "ERROR message=bad");
}

#[test]
fn an_end_does_not_wait_for_ever() {
    let (queue, reader) = unread(|| tracing::error!("bad"));
    queue.end();
    // It was left in the queue.
    assert_eq!(reader.lines.iter().take(2).count(), 2);
}
