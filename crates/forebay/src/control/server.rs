//! The control socket's threads: one that accepts, one for each connection. They hold no state of
//! the engine; a request goes to the shard as a message, and its answer comes back by a channel, so
//! that a long one holds up only its own connection.
//!
//! Fault model: clients may send anything, or nothing for as long as they like. Connections and the
//! length of lines are bounded; connections that do nothing are closed after a while, or once there
//! are too many: that which has done nothing for longest first. Only where all have requests that
//! are carried out, one more is refused.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Weak};
use std::time::Duration;

use model::{Failure, FailureKind, Request};

use crate::control::{MAX_LINE, Outcome, decode_request, encode_answer};
use crate::serve::mailbox::Sender;

const MAX_CONNECTIONS: usize = 32;
const IDLE_LIMIT: Duration = Duration::from_secs(60);
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// Takes an answer. The reply is dropped where the shard has ended.
pub type ReplySender = Box<dyn FnOnce(Outcome) + Send>;

/// A message of another thread to the shard.
pub enum Message {
    /// A request, and what takes its answer, which does not wait.
    Request(Request, ReplySender),
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
    let mut connections = Connections::default();
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
        if !connections.make_room() {
            if !std::mem::replace(&mut refuses, true) {
                let limit = MAX_CONNECTIONS;
                tracing::warn!(limit, "a control connection was refused: too many; others may be");
            }
            refuse(stream);
            continue;
        }
        refuses = false;
        let connection = connections.add(stream);
        let (shard, busy) = (shard.clone(), busy.clone());
        let spawned = std::thread::Builder::new().name("control-conn".into()).spawn(move || {
            if let Err(e) = converse(&connection, &shard, &busy) {
                tracing::debug!("a control connection ended: {e}");
            }
        });
        if let Err(e) = spawned {
            tracing::warn!("no thread for a control connection: {e}");
        }
    }
}

/// Says that there is no room for one more.
fn refuse(mut stream: UnixStream) {
    // A line is far smaller than what a socket takes without a reader.
    if let Err(e) = write_answer(&mut stream, Err(too_many())) {
        tracing::debug!("a refused control connection: {e}");
    }
}

fn write_answer(to: &mut impl Write, answer: Outcome) -> std::io::Result<()> {
    to.write_all(&encode_answer(answer.as_ref())?)
}

fn too_many() -> Failure {
    let text = format!(
        "the control socket has as many connections as it takes, {MAX_CONNECTIONS}: try again when \
         some have their answers"
    );
    Failure::new(FailureKind::Busy, text)
}

/// The connections that are open, for the thread that accepts.
#[derive(Default)]
struct Connections {
    open: Vec<Weak<Connection>>,
    turns: Arc<AtomicU64>,
}

impl Connections {
    /// True if there is room for one more, for which one that does nothing may have to end.
    fn make_room(&mut self) -> bool {
        self.open.retain(|one| one.strong_count() > 0);
        if self.open.len() < MAX_CONNECTIONS {
            return true;
        }
        let mut idle: Vec<(u64, usize)> = self
            .open
            .iter()
            .enumerate()
            .filter_map(|(i, one)| Some((one.upgrade()?.state.load(Ordering::Acquire), i)))
            .filter(|&(state, _)| state != BUSY)
            .collect();
        idle.sort_unstable();
        let ended = idle.into_iter().map(|(_, i)| i).find(|&i| {
            // One that has ended meanwhile makes room too.
            self.open[i].upgrade().is_none_or(|one| one.end_if_idle())
        });
        ended.inspect(|&i| drop(self.open.swap_remove(i))).is_some()
    }

    fn add(&mut self, stream: UnixStream) -> Arc<Connection> {
        let turns = self.turns.clone();
        let connection = Arc::new(Connection { stream, state: AtomicU64::new(BUSY), turns });
        connection.rest();
        self.open.push(Arc::downgrade(&connection));
        connection
    }
}

/// A request of the connection is being carried out or answered.
const BUSY: u64 = u64::MAX;
/// The connection makes room for another one.
const ENDED: u64 = u64::MAX - 1;

struct Connection {
    stream: UnixStream,
    /// [`BUSY`], [`ENDED`], or the turn since which it has done nothing.
    state: AtomicU64,
    turns: Arc<AtomicU64>,
}

impl Connection {
    /// Notes that the connection has nothing to do from now on.
    fn rest(&self) {
        self.state.store(self.turns.fetch_add(1, Ordering::AcqRel), Ordering::Release);
    }

    /// Notes that the connection has a request. False if the connection had to make room.
    fn take_up(&self) -> bool {
        self.leave_rest(BUSY)
    }

    /// Ends the connection, unless it has a request.
    fn end_if_idle(&self) -> bool {
        let ends = self.leave_rest(ENDED);
        // A request that the client has sent a moment ago is answered still.
        if ends && let Err(e) = self.stream.shutdown(Shutdown::Read) {
            tracing::debug!("a control connection that makes room: {e}");
        }
        ends
    }

    fn leave_rest(&self, to: u64) -> bool {
        let leave = |state| (state < ENDED).then_some(to);
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, leave).is_ok()
    }
}

/// Counts for as long as it lives.
struct ConnectionGuard(Arc<AtomicUsize>);

impl ConnectionGuard {
    fn new(of: &Arc<AtomicUsize>) -> ConnectionGuard {
        of.fetch_add(1, Ordering::AcqRel);
        ConnectionGuard(of.clone())
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn converse(
    connection: &Connection,
    shard: &Sender<Message>,
    busy: &Arc<AtomicUsize>,
) -> std::io::Result<()> {
    let stream = &connection.stream;
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
        if !connection.take_up() {
            return write_answer(&mut &*stream, Err(too_many()));
        }
        let whole = line.ends_with(b"\n");
        let _busy = ConnectionGuard::new(busy);
        let answer = match whole {
            true => decode_request(&line).and_then(|request| ask(shard, request)),
            false => {
                Err(Failure::invalid(format!("a request is one line of at most {MAX_LINE} bytes")))
            }
        };
        let mut writer = stream;
        write_answer(&mut writer, answer)?;
        if !whole {
            return Ok(());
        }
        connection.rest();
    }
}

fn ask(shard: &Sender<Message>, request: Request) -> Outcome {
    let (sender, receiver) = sync_channel(1);
    // The client may have gone.
    let reply = Box::new(move |answer| drop(sender.try_send(answer)));
    shard.send(Message::Request(request, reply)).map_err(|_| Failure::stopping())?;
    // Without an answer the shard has ended.
    receiver.recv().unwrap_or_else(|_| Err(Failure::stopping()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::world::{IoChoice, World};
    use crate::serve::mailbox::mailbox;

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

    #[test]
    fn silent_connections_make_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        let world = World::new(IoChoice::Posix, &[]).unwrap();
        let (sender, shard) = mailbox(&world.rt, &world.handles).unwrap();
        let _server = ControlServer::start(UnixListener::bind(&path).unwrap(), sender).unwrap();
        drop(shard);
        let silent: Vec<UnixStream> =
            (0..MAX_CONNECTIONS * 2).map(|_| UnixStream::connect(&path).unwrap()).collect();
        // What has come last has its turn, however many there are.
        let mut last = silent.last().unwrap();
        last.write_all(b"nonsense\n").unwrap();
        let mut reply = String::new();
        BufReader::new(last).read_line(&mut reply).unwrap();
        assert!(reply.contains("\"invalid\""), "{reply}");
        // The first has made room.
        reply.clear();
        assert!(matches!(BufReader::new(&silent[0]).read_line(&mut reply), Ok(0) | Err(_)));
    }

    #[test]
    fn one_more_than_can_be_carried_out_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        let world = World::new(IoChoice::Posix, &[]).unwrap();
        // No request is answered.
        let (sender, _shard) = mailbox::<Message>(&world.rt, &world.handles).unwrap();
        let server = ControlServer::start(UnixListener::bind(&path).unwrap(), sender).unwrap();
        let _busy: Vec<UnixStream> = (0..MAX_CONNECTIONS)
            .map(|_| {
                let mut stream = UnixStream::connect(&path).unwrap();
                stream.write_all(b"{\"version\":1,\"request\":\"status\"}\n").unwrap();
                stream
            })
            .collect();
        while server.busy.load(Ordering::Acquire) < MAX_CONNECTIONS {
            std::thread::yield_now();
        }
        let one_more = UnixStream::connect(&path).unwrap();
        let mut reply = String::new();
        BufReader::new(&one_more).read_line(&mut reply).unwrap();
        assert!(reply.contains("\"busy\""), "{reply}");
    }
}
