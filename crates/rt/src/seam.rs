//! The one seam between the engine and the world: operations that own their buffers, and completions that give them back.
//!
//! Fault model: an operation may complete with fewer bytes than were asked for, with an error, late, or never; in any
//! order. Whoever submits handles short transfers. After an error a file's content in the range is unspecified.
//! A write is durable only once a flush that was submitted after its completion has completed (or with `fua`).
//!
//! Files and listeners are opened outside the engine, by the backend's own methods, and are named here by number.

use base::{BufList, Instant, IoError, SliceList};

/// A file or block device that the backend has opened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FileId(pub u32);

/// A connected or listening socket that the backend has opened or accepted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SocketId(pub u32);

/// Names an operation in flight; unique among them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct OpId(pub u64);

/// What can be asked of the world.
#[derive(Debug)]
pub enum Op {
    /// Reads from `offset` into `bufs`, in order. Completes with the bytes read; 0 at the end of the file.
    Read {
        /// The file.
        file: FileId,
        /// Bytes from its start; with direct I/O a multiple of its alignment.
        offset: u64,
        /// Filled in order.
        bufs: BufList,
    },
    /// Writes `data`, in order, from `offset` on. Completes with the bytes written.
    Write {
        /// The file.
        file: FileId,
        /// Bytes from its start; with direct I/O a multiple of its alignment.
        offset: u64,
        /// What to write.
        data: SliceList,
        /// Durable when it completes.
        fua: bool,
    },
    /// Makes all writes to `file` that completed before this was submitted durable.
    Flush {
        /// The file.
        file: FileId,
    },
    /// Gives up the content of `[offset, offset + len)` (hole punching, TRIM). Reads of it afterwards are unspecified.
    Discard {
        /// The file.
        file: FileId,
        /// Bytes from its start.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Receives into `buf[start..]`. Completes with the bytes received, 0 at the end of the stream; with `fill` only when
    /// the rest of `buf` is full, or at an end or error of the stream, and even then it may be short.
    Recv {
        /// A connected socket.
        socket: SocketId,
        /// One buffer.
        buf: BufList,
        /// Where in it to begin.
        start: usize,
        /// Wait for all of it.
        fill: bool,
    },
    /// Sends `data`, in order. Completes with the bytes sent, which may be fewer.
    Send {
        /// A connected socket.
        socket: SocketId,
        /// What to send.
        data: SliceList,
    },
    /// Waits for a connection. Completes with [`Payload::Socket`].
    Accept {
        /// A listening socket.
        listener: SocketId,
    },
    /// Shuts a socket down in both directions and closes it; operations on it that are in flight complete soon, with
    /// whatever result. The number is not used again before they have.
    Close {
        /// Any socket.
        socket: SocketId,
    },
}

/// What an operation gives back.
#[derive(Debug)]
pub enum Payload {
    /// Nothing was lent.
    None,
    /// The buffers of a read or a receive.
    Bufs(BufList),
    /// The data of a write or a send.
    Data(SliceList),
    /// The socket of an accept.
    Socket(SocketId),
}

/// The end of an operation.
#[derive(Debug)]
pub struct Completion {
    /// Which one.
    pub id: OpId,
    /// Bytes transferred, or why not.
    pub result: Result<u64, IoError>,
    /// What it owned.
    pub payload: Payload,
}

impl Completion {
    /// The buffers of a read or a receive. Panics on another operation's completion: that is a bug of the backend.
    pub fn into_bufs(self) -> BufList {
        match self.payload {
            Payload::Bufs(b) => b,
            other => panic!("a read completed with {other:?}"),
        }
    }
}

/// The world: io_uring, epoll and threads, or a simulation.
///
/// Every submitted operation completes exactly once, unless the world ends first. `submit` never blocks and never
/// fails; an operation that cannot even be started completes with an error.
pub trait Backend {
    /// Starts `op`. May be deferred to the next `wait`, so that many are handed to the kernel at once.
    fn submit(&mut self, id: OpId, op: Op);
    /// Appends completions to `done`. Returns as soon as there is at least one, or at `until` (`None`: no limit; a time that
    /// has passed: only looks). Returns the time.
    fn wait(&mut self, until: Option<Instant>, done: &mut Vec<Completion>) -> Instant;
    /// True if transfers of a file only copy memory.
    fn in_memory(&self, _file: FileId) -> bool {
        false
    }
    /// The precise time, for measuring; in simulation it is the time of the last `wait`.
    fn now(&self) -> Instant;
}
