//! The one seam between the engine and the world: operations that own their buffers, and
//! completions that return them.
//!
//! Fault model: an operation may transfer fewer bytes than were asked for, fail, or complete late.
//! On a device that hangs it may never complete. Operations complete in any order. The submitter
//! handles short transfers. After an error, the content of the file in the range is unspecified. A
//! write is durable when a flush that was submitted after its completion has completed, or, with
//! `fua`, when it completes.
//!
//! Code outside of the engine opens files and listeners, with methods of the backend. The engine
//! refers to them by number.

use base::{BufList, Duration, Instant, IoError, SliceList};

/// A file or block device that the backend has opened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FileId(pub u32);

pub use model::device::DeviceKind;

/// A connected or listening socket that the backend has opened or accepted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SocketId(pub u32);

/// The number of an operation. It is unique among the operations in flight.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct OpId(pub u64);

/// An operation.
#[derive(Debug)]
pub enum Op {
    /// Reads from `offset` into `bufs`, in order. The result is the number of bytes read; it is 0
    /// at the end of the file.
    Read {
        /// The file.
        file: FileId,
        /// Bytes from the start of the file. With direct I/O it must be a multiple of the
        /// alignment.
        offset: u64,
        /// The buffers to fill.
        bufs: BufList,
    },
    /// Writes `data` at `offset`, in order. The result is the number of bytes written.
    Write {
        /// The file.
        file: FileId,
        /// Bytes from the start of the file. With direct I/O it must be a multiple of the
        /// alignment.
        offset: u64,
        /// The bytes to write.
        data: SliceList,
        /// Whether the write must be durable when it completes.
        fua: bool,
    },
    /// Makes all writes to `file` durable that completed before the flush was submitted.
    Flush {
        /// The file.
        file: FileId,
    },
    /// Discards the content of `[offset, offset + len)` (hole punching, TRIM). Later reads of the
    /// range return unspecified bytes.
    Discard {
        /// The file.
        file: FileId,
        /// Bytes from the start of the file.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Receives into `buf[start..]`. The result is the number of bytes received; it is 0 at the end
    /// of the stream. With `fill` the operation completes when the rest of `buf` is full, or when
    /// the stream ends or fails. Even then the transfer may be short.
    Recv {
        /// A connected socket.
        socket: SocketId,
        /// One buffer.
        buf: BufList,
        /// The offset in the buffer at which to begin.
        start: usize,
        /// Whether to wait until the rest of the buffer is full.
        fill: bool,
    },
    /// Sends `data`, in order. The result is the number of bytes sent, which may be less.
    Send {
        /// A connected socket.
        socket: SocketId,
        /// The bytes to send.
        data: SliceList,
    },
    /// Waits for a connection. Completes with [`Payload::Socket`].
    Accept {
        /// A listening socket.
        listener: SocketId,
    },
    /// Shuts a socket down in both directions and closes it. Operations in flight on the socket
    /// complete soon, with any result. The number of the socket is not reused before they have
    /// completed.
    Close {
        /// Any socket.
        socket: SocketId,
    },
}

/// The payload of an operation: what the operation owned, and returns when it completes.
#[derive(Debug)]
pub enum Payload {
    /// Nothing. The operation owned no buffer.
    None,
    /// The buffers of a read or a receive.
    Bufs(BufList),
    /// The data of a write or a send.
    Data(SliceList),
    /// The new socket of an accept.
    Socket(SocketId),
}

/// The completion of an operation.
#[derive(Debug)]
pub struct Completion {
    /// The operation that completed.
    pub id: OpId,
    /// The number of bytes transferred, or the error.
    pub result: Result<u64, IoError>,
    /// The payload: what the operation owned.
    pub payload: Payload,
}

impl Completion {
    /// The buffers of a read or a receive. Panics on the completion of another operation, which is
    /// a bug in the backend.
    pub fn into_bufs(self) -> BufList {
        match self.payload {
            Payload::Bufs(b) => b,
            other => panic!("a read completed with {other:?}"),
        }
    }
}

/// The time that a thread has had of the processors since it began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadTime {
    /// The time in which it ran.
    pub used: Duration,
    /// The time in which it could have run, while others did; `None` if the system does not tell.
    pub queued: Option<Duration>,
}

impl ThreadTime {
    /// The time that the thread has had since `before`.
    pub fn since(self, before: ThreadTime) -> ThreadTime {
        let queued = self.queued.zip(before.queued);
        ThreadTime {
            used: self.used.saturating_sub(before.used),
            queued: queued.map(|(now, before)| now.saturating_sub(before)),
        }
    }
}

/// The world: io_uring, epoll and threads, or a simulation.
///
/// A submitted operation completes exactly once, unless the device hangs or the world ends first.
/// `submit` never blocks and never fails. An operation that cannot be started completes with an
/// error.
pub trait Backend {
    /// Starts `op`. The backend may defer it to the next `wait`, to hand many operations to the
    /// kernel at once.
    fn submit(&mut self, id: OpId, op: Op);
    /// Appends completions to `done`. Returns when there is at least one, or at the time `until`.
    /// With `None` it waits without a limit; with a time in the past it does not wait. Returns the
    /// current time.
    fn wait(&mut self, until: Option<Instant>, done: &mut Vec<Completion>) -> Instant;
    /// The kind of the file, or of the device below it.
    fn kind(&self, _file: FileId) -> DeviceKind {
        DeviceKind::Unknown
    }
    /// The time that the calling thread has had of the processors; `None` if that is not known.
    fn ran(&self) -> Option<ThreadTime> {
        None
    }
    /// The precise time, for measurements. In simulation it is the time of the last `wait`.
    fn now(&self) -> Instant;
}
