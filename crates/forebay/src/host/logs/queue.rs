//! The lines of a server's log on their way out.
//!
//! Fault model: the reader of the log may be slow, or may never read: a pipe that is not emptied, a
//! terminal that was stopped, a journal that stands still. A thread of its own writes there. Other
//! threads leave a line and go on. Where lines pile up they are dropped, counted, and told in their
//! place when the reader takes lines again. The end of the process waits for the last ones, though
//! for two seconds at most.

use std::fmt::Debug;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use base::counted;
use tracing::field::{Field, Value, Visit, display};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::Context;

/// The number of bytes that may wait for the reader.
const MOST_WAITING: usize = 1 << 20;
/// The part of these bytes that is left to errors.
const FOR_ERRORS: usize = MOST_WAITING / 4;
/// The bytes that a line costs beside its text.
const LINE_BYTES: usize = 64;
/// The time that an end waits for the reader to take the last lines.
const LAST_LINES: Duration = Duration::from_secs(2);

/// An entry that waits for the thread that writes.
enum LogEntry {
    /// A text for standard error, as it is.
    Error(Vec<u8>),
    /// A text for standard output, as it is.
    Output(Vec<u8>),
    /// An event for the journal.
    Event(OwnedEvent),
    /// The number of lines that were lost here.
    Lost(u64),
    /// The end of the process, which waits until this comes out.
    End(Sender<()>),
}

/// An event without what it borrows: a text for each of its fields, or none.
struct OwnedEvent {
    metadata: &'static Metadata<'static>,
    values: Vec<Option<String>>,
}

/// The queue of lines for the thread that writes.
#[derive(Clone)]
pub struct Queue(Arc<Shared>);

struct Shared {
    lines: Sender<(LogEntry, usize)>,
    /// The number of bytes of lines that the reader has not taken.
    waiting: AtomicUsize,
    /// The number of lines that were dropped, and not told yet.
    lost: AtomicU64,
    /// True once no line is taken any more.
    ended: AtomicBool,
}

impl Queue {
    /// A queue, and its other end, which belongs to the thread that writes.
    pub fn new() -> (Queue, Reader) {
        let (lines, receiver) = channel();
        let shared = Shared {
            lines,
            waiting: AtomicUsize::new(0),
            lost: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        };
        let queue = Queue(Arc::new(shared));
        (queue.clone(), Reader { lines: receiver, queue })
    }

    /// Leaves a text for standard output, in its place among the lines of the log.
    pub fn print(&self, text: &str) {
        self.leave(LogEntry::Output(text.into()), text.len(), true);
    }

    /// Leaves a text for standard error that is no event.
    pub fn tell(&self, text: &str) {
        self.leave(LogEntry::Error(text.into()), text.len(), true);
    }

    /// Waits until all that was left is written, for two seconds at most. What is left afterwards
    /// is lost.
    pub fn end(&self) {
        if self.0.ended.swap(true, Ordering::AcqRel) {
            return;
        }
        let (tells, told) = channel();
        self.push_lost();
        let _ = self.0.lines.send((LogEntry::End(tells), 0));
        // Nothing is ever sent: the line comes out, or it takes too long.
        let _ = told.recv_timeout(LAST_LINES);
    }

    /// Leaves a line with a text of `len` bytes, or drops it. Errors find room for longer.
    fn leave(&self, line: LogEntry, len: usize, error: bool) {
        let bytes = len + LINE_BYTES;
        let most = if error { MOST_WAITING } else { MOST_WAITING - FOR_ERRORS };
        if self.0.waiting.fetch_add(bytes, Ordering::AcqRel) + bytes > most {
            self.0.waiting.fetch_sub(bytes, Ordering::AcqRel);
            self.0.lost.fetch_add(1, Ordering::AcqRel);
            return;
        }
        self.push_lost();
        // Without a thread that writes the line goes nowhere.
        let _ = self.0.lines.send((line, bytes));
    }

    fn draft(&self, error: bool) -> Draft<'_> {
        Draft { queue: self, text: Vec::new(), error }
    }

    /// Has the lines that were lost before the next one told in their place.
    fn push_lost(&self) {
        match self.0.lost.swap(0, Ordering::AcqRel) {
            0 => {}
            lost => drop(self.0.lines.send((LogEntry::Lost(lost), 0))),
        }
    }
}

/// A line of the log that is being made.
pub struct Draft<'a> {
    queue: &'a Queue,
    text: Vec<u8>,
    error: bool,
}

impl Write for Draft<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        let text = std::mem::take(&mut self.text);
        let len = text.len();
        self.queue.leave(LogEntry::Error(text), len, self.error);
    }
}

impl<'a> MakeWriter<'a> for Queue {
    type Writer = Draft<'a>;

    fn make_writer(&'a self) -> Draft<'a> {
        self.draft(false)
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Draft<'a> {
        self.draft(*metadata.level() == Level::ERROR)
    }
}

/// Leaves events whole, for a journal that has their fields.
pub struct Events(pub Queue);

impl<S: Subscriber> Layer<S> for Events {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut values = Values(vec![None; metadata.fields().len()]);
        event.record(&mut values);
        let Values(values) = values;
        let len = values.iter().flatten().map(|text| text.len() + LINE_BYTES).sum();
        let record = OwnedEvent { metadata, values };
        self.0.leave(LogEntry::Event(record), len, *metadata.level() == Level::ERROR);
    }
}

struct Values(Vec<Option<String>>);

impl Values {
    fn put(&mut self, field: &Field, text: String) {
        if let Some(place) = self.0.get_mut(field.index()) {
            *place = Some(text);
        }
    }
}

impl Visit for Values {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put(field, format!("{value:?}"));
    }
}

/// The end of the queue that writes.
pub struct Reader {
    lines: Receiver<(LogEntry, usize)>,
    queue: Queue,
}

impl Reader {
    /// Writes what comes, until the end. `direct` writes events itself, at once.
    pub fn run(self, direct: &Dispatch) {
        while let Some((line, bytes)) = self.next(direct) {
            match line {
                // A line that cannot be written is lost; a complaint would go the same way.
                LogEntry::Error(text) => drop(io::stderr().write_all(&text)),
                LogEntry::Output(text) => {
                    let mut out = io::stdout().lock();
                    let _ = out.write_all(&text).and_then(|()| out.flush());
                }
                LogEntry::Event(record) => dispatch(&record, direct),
                LogEntry::Lost(lost) => tell_lost(lost, direct),
                LogEntry::End(tells) => return drop(tells),
            }
            self.queue.0.waiting.fetch_sub(bytes, Ordering::AcqRel);
        }
    }

    /// The next line. Where none is left, those that were lost meanwhile are told first.
    fn next(&self, direct: &Dispatch) -> Option<(LogEntry, usize)> {
        match self.lines.try_recv() {
            Ok(next) => return Some(next),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => {}
        }
        match self.queue.0.lost.swap(0, Ordering::AcqRel) {
            0 => {}
            lost => tell_lost(lost, direct),
        }
        self.lines.recv().ok()
    }
}

fn dispatch(record: &OwnedEvent, direct: &Dispatch) {
    let texts: Vec<_> = record.values.iter().map(|text| text.as_ref().map(display)).collect();
    let values: Vec<_> = texts.iter().map(|text| text.as_ref().map(|t| t as &dyn Value)).collect();
    direct.event(&Event::new(record.metadata, &record.metadata.fields().value_set_all(&values)));
}

fn tell_lost(lost: u64, direct: &Dispatch) {
    let lines = counted(lost, "line of the log was", "lines of the log were");
    tracing::dispatcher::with_default(direct, || {
        tracing::warn!(lost, "{lines} lost here, as they were not taken");
    });
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
