//! The control socket's threads: one that accepts, one for each connection. They hold no state of
//! the engine; a request goes to the shard as a message, and its answer comes back by a channel, so
//! that a long one holds up only its own connection.
//!
//! Fault model: clients may send anything, or nothing for as long as they like. Connections and the
//! length of lines are bounded; connections that do nothing are closed after a while.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use crate::control::{Answer, MAX_LINE, Request, RequestError, decode_request, encode_answer};
use crate::mailbox::Sender;

const MAX_CONNECTIONS: usize = 32;
const IDLE_LIMIT: Duration = Duration::from_secs(60);
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// Takes an answer. It is dropped where the shard has ended.
pub type Reply = Box<dyn FnOnce(Answer) + Send>;

/// What other threads tell the shard.
pub enum Message {
    /// A request, and what takes its answer. That does not wait.
    Request(Request, Reply),
    /// Read the configuration file again.
    Reload,
    /// End cleanly.
    Stop,
}

/// The control server.
pub struct ControlServer {
    /// Requests that are being carried out or answered.
    busy: Arc<AtomicUsize>,
}

impl ControlServer {
    /// Serves who connects to `listener`, in threads of its own, until the process ends.
    pub fn start(listener: UnixListener, shard: Sender<Message>) -> std::io::Result<ControlServer> {
        let busy = Arc::new(AtomicUsize::new(0));
        let counter = busy.clone();
        std::thread::Builder::new()
            .name("control".into())
            .spawn(move || accept(&listener, &shard, &counter))?;
        Ok(ControlServer { busy })
    }

    /// Waits, at most for `limit`, until all requests are answered. To be called when the shard
    /// takes no more.
    pub fn drain(&self, limit: Duration) {
        const STEP: Duration = Duration::from_millis(5);
        let mut left = limit;
        while self.busy.load(Ordering::Acquire) > 0 && !left.is_zero() {
            #[allow(clippy::disallowed_methods, reason = "the engine has ended")]
            std::thread::sleep(STEP);
            left = left.saturating_sub(STEP);
        }
    }
}

fn accept(listener: &UnixListener, shard: &Sender<Message>, busy: &Arc<AtomicUsize>) {
    let open = Arc::new(AtomicUsize::new(0));
    // Of a row of failures, and of one of refusals, the first is logged.
    let (mut fails, mut refuses) = (false, false);
    for stream in listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            Err(e) => {
                if !std::mem::replace(&mut fails, true) {
                    tracing::warn!("accepting on the control socket: {e}; tried again");
                }
                #[allow(clippy::disallowed_methods, reason = "no thread of the engine")]
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        fails = false;
        let place = Counted::new(&open);
        if open.load(Ordering::Acquire) > MAX_CONNECTIONS {
            if !std::mem::replace(&mut refuses, true) {
                let limit = MAX_CONNECTIONS;
                tracing::warn!(limit, "a control connection was refused: too many; others may be");
            }
            continue;
        }
        refuses = false;
        let (shard, busy) = (shard.clone(), busy.clone());
        let spawned = std::thread::Builder::new().name("control-conn".into()).spawn(move || {
            let _place = place;
            if let Err(e) = converse(&stream, &shard, &busy) {
                tracing::debug!("a control connection ended: {e}");
            }
        });
        if let Err(e) = spawned {
            tracing::warn!("no thread for a control connection: {e}");
        }
    }
}

/// Counts for as long as it lives.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(of: &Arc<AtomicUsize>) -> Counted {
        of.fetch_add(1, Ordering::AcqRel);
        Counted(of.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn converse(
    stream: &UnixStream,
    shard: &Sender<Message>,
    busy: &Arc<AtomicUsize>,
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(IDLE_LIMIT))?;
    stream.set_write_timeout(Some(WRITE_LIMIT))?;
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        let whole = line.ends_with(b"\n");
        let _busy = Counted::new(busy);
        let answer = match whole {
            true => decode_request(&line).and_then(|request| ask(shard, request)),
            false => Err(RequestError::invalid(format!(
                "a request is one line of at most {MAX_LINE} bytes"
            ))),
        };
        let mut writer = stream;
        writer.write_all(&encode_answer(&answer))?;
        if !whole {
            return Ok(());
        }
    }
}

fn ask(shard: &Sender<Message>, request: Request) -> Answer {
    let (sender, receiver) = sync_channel(1);
    // The client may have gone.
    let reply = Box::new(move |answer| drop(sender.try_send(answer)));
    shard.send(Message::Request(request, reply)).map_err(|_| RequestError::stopping())?;
    // Without an answer the shard has ended.
    receiver.recv().unwrap_or_else(|_| Err(RequestError::stopping()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mailbox::mailbox;
    use crate::world::{IoChoice, World};

    #[test]
    fn nonsense_is_answered_and_a_long_line_ends_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        let world = World::new(IoChoice::Posix, &[]).unwrap();
        let (sender, shard) = mailbox(&world.rt, &world.handles).unwrap();
        let server = ControlServer::start(UnixListener::bind(&path).unwrap(), sender).unwrap();
        drop(shard);
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"nonsense\n{\"version\":1,\"request\":\"status\"}\n").unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut reply = String::new();
        reader.read_line(&mut reply).unwrap();
        assert!(reply.contains("\"invalid\""), "{reply}");
        reply.clear();
        reader.read_line(&mut reply).unwrap();
        assert!(reply.contains("\"stopping\""), "{reply}");
        // It may be closed before all of it was sent.
        let _ = stream.write_all(&vec![b'x'; MAX_LINE as usize + 1]);
        reply.clear();
        reader.read_line(&mut reply).unwrap();
        assert!(reply.contains("at most"), "{reply}");
        reply.clear();
        assert!(matches!(reader.read_line(&mut reply), Ok(0) | Err(_)));
        server.drain(Duration::from_secs(1));
        assert_eq!(server.busy.load(Ordering::Acquire), 0);
    }
}
