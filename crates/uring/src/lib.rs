//! The seam on io_uring: files, block devices and sockets of one shard, with one system call per turn.
//!
//! Fault model: an operation's buffers belong to the kernel from submission to completion, whatever becomes of the future that
//! waits for it, and even of the backend: when it is dropped, it cancels what is in flight and waits for the end of it, and what
//! does not end is leaked, never freed. Entries that find the submission queue full wait in order in a list of our own.
//!
//! Many reads often end at the same moment, because a device reports them together. They are handed over a few at a time: what was
//! submitted because of the first ones (replies, and what their clients ask next) is under way while the others are dealt with.
//! All at once, they would go round together for ever, with the device idle while they are dealt with, and we while it works.
//!
//! Files in memory (tmpfs) are read and written at once when they are submitted: the kernel would hand each such operation to a
//! thread, which costs many times the copying.
//!
//! * `ring`: set-up and the system call
//! * `slot`: an operation in flight, and its entry
#![allow(unsafe_code)]

mod ring;
mod slot;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use base::{Duration, Instant, IoError};
use posix::handles::Closing;
use posix::{Handles, call, sys};
use rt::{Backend, Completion, Op, OpId, Payload};

use crate::ring::{Patience, Ring};
use crate::slot::{Slot, socket_of};

/// More operations than this at once are a bug of the caller, whose numbers are to be small.
const MAX_SLOTS: usize = 1 << 20;
/// Of the reads in flight, this part at most is handed over at a time. Random 4 KiB reads, 32 at a time on one connection: 1.3 to 1.7
/// times as many a second as with all at once, and a third more CPU time for each (docs/benchmarks.md).
const READS_AT_A_TIME: usize = 8;
/// The number of a cancellation, which nobody waits for.
const CANCEL: u64 = u64::MAX;
/// For how long to wait, at most, while the kernel takes no entries (it is out of memory, or wants its completions taken first).
const RELUCTANCE: Duration = Duration::from_millis(1);
/// For how long a backend that is dropped waits for what is in flight.
const FAREWELL: Duration = Duration::from_secs(10);

/// The backend.
pub struct Uring {
    ring: Ring,
    handles: Handles,
    /// By the number of the operation.
    slots: Vec<Slot>,
    /// Slots whose entries did not fit into the queue.
    waiting: VecDeque<u32>,
    /// Entries that are in the kernel or in its queue.
    in_flight: usize,
    /// Reads of files among them.
    reads: usize,
    /// Those that the kernel has completed and that wait to be handed over, with their results.
    ended: VecDeque<(u32, i32)>,
    /// What is to be handed over now.
    ready: Vec<Completion>,
    pieces: Vec<libc::iovec>,
}

impl Uring {
    /// A backend whose submission queue has room for `entries`. It must be used by the thread that made it. Fails where there is
    /// no io_uring, where it is not permitted, or where it is too old (before Linux 5.11).
    pub fn new(entries: u32) -> io::Result<Uring> {
        Ok(Uring {
            ring: Ring::new(entries)?,
            handles: Handles::new(true),
            slots: Vec::new(),
            waiting: VecDeque::new(),
            in_flight: 0,
            reads: 0,
            ended: VecDeque::new(),
            ready: Vec::new(),
            pieces: Vec::new(),
        })
    }

    /// The files and sockets of this backend, to open some: now, or while it belongs to a runtime.
    pub fn handles(&self) -> Handles {
        self.handles.clone()
    }

    /// Does an operation on a file in memory, or says where the file is.
    fn start_on_file(&mut self, id: OpId, file: rt::FileId, mut op: Op) {
        match self.handles.file(file) {
            Ok(f) if f.in_memory => {
                let call = call::FileCall::new(f.fd, &mut op, std::mem::take(&mut self.pieces));
                // SAFETY: `op` stays here, untouched, until the call is over.
                let result = unsafe { call.run() };
                self.pieces = call.into_pieces();
                self.ready.push(Completion { id, result, payload: call::lent(op) });
            }
            Ok(f) => self.start(id, f.fd, op),
            Err(e) => self.ready.push(Completion { id, result: Err(e), payload: call::lent(op) }),
        }
    }

    fn start_on_socket(&mut self, id: OpId, socket: rt::SocketId, op: Op) {
        match self.handles.hold(socket) {
            Ok(fd) => self.start(id, fd, op),
            Err(e) => self.ready.push(Completion { id, result: Err(e), payload: call::lent(op) }),
        }
    }

    fn start(&mut self, id: OpId, fd: i32, op: Op) {
        let n = id.0 as usize;
        if n >= self.slots.len() {
            assert!(n < MAX_SLOTS, "operation {n}: numbers must be small");
            self.slots.resize_with((n + 1).next_power_of_two(), Slot::default);
        }
        let slot = &mut self.slots[n];
        assert!(slot.op.is_none(), "operation {n} is already in flight");
        slot.op = Some(op);
        slot.fd = fd;
        if self.waiting.is_empty() {
            self.push(n as u32);
        } else {
            self.waiting.push_back(n as u32);
        }
    }

    /// Queues the entry of a slot, or lets it wait, or ends its operation if there is no such entry.
    fn push(&mut self, n: u32) {
        let slot = &mut self.slots[n as usize];
        match slot.entry() {
            Ok(entry) => {
                // SAFETY: the slot keeps the operation, and with it all memory that the entry points to, until the completion
                // is reaped; when this backend is dropped before, it waits or leaks.
                if unsafe { self.ring.push(&entry.user_data(u64::from(n))) } {
                    self.in_flight += 1;
                    self.reads += usize::from(self.slots[n as usize].is_read());
                } else {
                    self.waiting.push_front(n);
                }
            }
            Err(e) => self.finish(n, Err(e)),
        }
    }

    fn push_waiting(&mut self) {
        while let Some(n) = self.waiting.pop_front() {
            let before = self.waiting.len();
            self.push(n);
            if self.waiting.len() > before {
                return;
            }
        }
    }

    /// Ends the operation of a slot.
    fn finish(&mut self, n: u32, result: Result<u64, IoError>) {
        let Some(op) = self.slots[n as usize].op.take() else {
            unreachable!("operation {n} ended twice")
        };
        let id = OpId(u64::from(n));
        let closed = socket_of(&op).and_then(|socket| self.handles.release(socket));
        let completion = match (result, &op) {
            (Ok(fd), Op::Accept { .. }) => {
                // SAFETY: the kernel has just made this descriptor for us.
                let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
                match self.handles.adopt_socket(fd) {
                    Ok(socket) => {
                        Completion { id, result: Ok(0), payload: Payload::Socket(socket) }
                    }
                    Err(e) => Completion { id, result: Err(e.into()), payload: Payload::None },
                }
            }
            (Err(e), Op::Discard { .. }) => {
                Completion { id, result: Err(sys::unsupported(e)), payload: Payload::None }
            }
            (result, _) => Completion { id, result, payload: call::lent(op) },
        };
        self.ready.push(completion);
        if let Some(id) = closed {
            self.ready.push(Completion { id, result: Ok(0), payload: Payload::None });
        }
    }

    /// Takes the kernel's completions.
    fn reap(&mut self) {
        while let Some((n, result)) = { self.ring.reap().next() } {
            if n == CANCEL {
                continue;
            }
            let n = n as u32;
            if self.slots[n as usize].is_read() {
                self.ended.push_back((n, result));
            } else {
                self.end(n, result);
            }
        }
    }

    /// Hands over `count` reads that have ended, at most.
    fn end_reads(&mut self, count: usize) {
        for _ in 0..count {
            let Some((n, result)) = self.ended.pop_front() else { return };
            self.reads -= 1;
            self.end(n, result);
        }
    }

    /// Deals with one of the kernel's completions.
    fn end(&mut self, n: u32, result: i32) {
        self.in_flight -= 1;
        match u64::try_from(result) {
            Ok(done) => self.finish(n, Ok(done)),
            // Nothing was transferred.
            Err(_) if result == -libc::EINTR => self.waiting.push_back(n),
            Err(_) => self.finish(n, Err(IoError(-result))),
        }
    }

    fn patience(&self, until: Option<Instant>) -> Patience {
        if !self.ready.is_empty() || !self.ended.is_empty() {
            return Patience::Look;
        }
        let left = until.map(|until| until.since(sys::now()));
        let left = if self.waiting.is_empty() {
            left
        } else {
            Some(left.unwrap_or(RELUCTANCE).min(RELUCTANCE))
        };
        match left {
            None => Patience::Forever,
            Some(Duration::ZERO) => Patience::Look,
            Some(left) => Patience::For(left),
        }
    }
}

impl Backend for Uring {
    fn submit(&mut self, id: OpId, op: Op) {
        match op {
            Op::Read { file, .. }
            | Op::Write { file, .. }
            | Op::Flush { file }
            | Op::Discard { file, .. } => {
                self.start_on_file(id, file, op);
            }
            Op::Recv { socket, .. } | Op::Send { socket, .. } | Op::Accept { listener: socket } => {
                self.start_on_socket(id, socket, op);
            }
            Op::Close { socket } => match self.handles.close(socket, id) {
                Ok(Closing::Waiting) => {}
                Ok(Closing::Done) => {
                    self.ready.push(Completion { id, result: Ok(0), payload: Payload::None })
                }
                Err(e) => {
                    self.ready.push(Completion { id, result: Err(e), payload: Payload::None })
                }
            },
        }
    }

    fn wait(&mut self, until: Option<Instant>, done: &mut Vec<Completion>) -> Instant {
        loop {
            self.push_waiting();
            self.ring.enter(self.patience(until));
            self.reap();
            self.end_reads((self.reads / READS_AT_A_TIME).max(1));
            let now = sys::now();
            if !self.ready.is_empty() || until.is_some_and(|until| now >= until) {
                done.append(&mut self.ready);
                return now;
            }
        }
    }

    fn in_memory(&self, file: rt::FileId) -> bool {
        self.handles.file(file).is_ok_and(|f| f.in_memory)
    }

    fn now(&self) -> Instant {
        sys::now()
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        let end = sys::now().after(FAREWELL);
        // What never reached the kernel is ours to drop.
        for n in std::mem::take(&mut self.waiting) {
            self.slots[n as usize].op = None;
        }
        for (n, slot) in self.slots.iter().enumerate() {
            if slot.op.is_some() {
                let cancel = io_uring::opcode::AsyncCancel::new(n as u64).build().user_data(CANCEL);
                // SAFETY: a cancellation points to nothing. Where it does not fit, the operation has to end by itself.
                let _ = unsafe { self.ring.push(&cancel) };
            }
        }
        while self.in_flight > 0 && sys::now() < end {
            self.reap();
            self.end_reads(usize::MAX);
            if self.in_flight > 0 {
                self.ring.enter(Patience::For(end.since(sys::now())));
            }
            // Interrupted operations are not started again.
            for n in std::mem::take(&mut self.waiting) {
                self.slots[n as usize].op = None;
            }
        }
        if self.in_flight > 0 {
            tracing::warn!(
                operations = self.in_flight,
                "operations did not end; their memory is given up"
            );
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}
