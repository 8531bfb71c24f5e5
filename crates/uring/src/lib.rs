//! The seam on io_uring: files, block devices and sockets of one shard, with one system call per
//! turn.
//!
//! Fault model: the buffers of an operation belong to the kernel from submission to completion,
//! even if the future that waits for it is dropped. When the backend is dropped, it cancels the
//! operations in flight and waits for their end. The buffers of an operation that does not end are
//! leaked, never freed. Operations that do not fit into the submission queue wait in order in a
//! list of the backend.
//!
//! A device often reports many reads at the same moment. The backend hands them over a few at a
//! time. So the engine submits what follows from the first ones (replies, and the next requests of
//! their clients) while it still handles the others. If it got all of them at once, all clients
//! would run in step: the device would be idle while the engine works, and the engine while the
//! device works.
//!
//! Files in memory (tmpfs) are read and written during `submit`. The kernel would hand such an
//! operation to a thread, which costs many times more than the copy.
//!
//! Files whose requests may hold the thread that makes them (FUSE) are read and written by threads
//! of the kernel. So are flushes and discards of all files, and requests that a disk has no room
//! for. The kernel may make as many threads as operations are in flight: with fewer of them, a
//! device that stands still would hold them all, and so the flush of a cache that is well.
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
use posix::handles::CloseOutcome;
use posix::{Handles, Processors, Start, call, sys};
use rt::{Backend, Completion, Op, OpId, Payload, ThreadTime};

use crate::ring::{Limit, Ring};
use crate::slot::{Slot, socket_of};

/// The limit on operation numbers. The caller must use small numbers.
const MAX_SLOTS: usize = 1 << 20;
/// One part in so many of the reads in flight is handed over at a time. Random 4 KiB reads, 32 at a
/// time on one connection, are 1.42 times as fast with an eighth as with all at once, but take more
/// CPU time each (docs/benchmarks.md).
const READ_BATCHES: usize = 8;
/// The operation number of a cancellation, whose completion is ignored.
const CANCEL: u64 = u64::MAX;
/// The longest wait while the kernel accepts no entries, because it is out of memory or wants its
/// completions reaped first.
const RETRY_SUBMIT: Duration = Duration::from_millis(1);
/// The longest wait for operations in flight when the backend is dropped.
const DROP_TIMEOUT: Duration = Duration::from_secs(10);

/// The backend on io_uring.
pub struct Uring {
    ring: Ring,
    handles: Handles,
    processors: Processors,
    /// Indexed by the number of the operation.
    slots: Vec<Slot>,
    /// Slots whose entries did not fit into the queue.
    waiting: VecDeque<u32>,
    /// Number of entries in the kernel or in the submission queue.
    in_flight: usize,
    /// Operations that are to be cancelled.
    cancels: Vec<(u32, rt::SocketId)>,
    /// Number of reads of files among them.
    reads: usize,
    /// Reads that the kernel has completed and that are not handed over yet, with their results.
    ended: VecDeque<(u32, i32)>,
    /// Completions to hand over with the next `wait`.
    ready: Vec<Completion>,
    pieces: Vec<libc::iovec>,
}

impl Uring {
    /// Creates a backend whose submission queue has room for `entries`. Only the thread that
    /// created it may use it. Fails if there is no io_uring, if a call of it is not permitted, or
    /// if it is too old (before Linux 5.11).
    pub fn new(entries: u32) -> io::Result<Uring> {
        Ok(Uring {
            ring: Ring::new(entries)?,
            handles: Handles::new(true),
            processors: Processors::of_this_thread(),
            slots: Vec::new(),
            waiting: VecDeque::new(),
            in_flight: 0,
            cancels: Vec::new(),
            reads: 0,
            ended: VecDeque::new(),
            ready: Vec::new(),
            pieces: Vec::new(),
        })
    }

    /// The table of files and sockets of this backend. It can be used to open more, even while a
    /// runtime owns the backend.
    pub fn handles(&self) -> Handles {
        self.handles.clone()
    }

    /// Executes an operation at once if the file is in memory; else starts it on the ring.
    fn start_on_file(&mut self, id: OpId, file: rt::FileId, mut op: Op) {
        match self.handles.file(file) {
            Ok(f) if f.start == Start::Here => {
                let call = call::FileCall::new(f.fd, &mut op, std::mem::take(&mut self.pieces));
                // SAFETY: `op` stays here, untouched, until the call returns.
                let result = unsafe { call.run() };
                self.pieces = call.into_pieces();
                self.ready.push(Completion { id, result, payload: call::lent(op) });
            }
            Ok(f) => self.start(id, f.fd, f.start == Start::Thread, op),
            Err(e) => self.ready.push(Completion { id, result: Err(e), payload: call::lent(op) }),
        }
    }

    fn start_on_socket(&mut self, id: OpId, socket: rt::SocketId, op: Op) {
        match self.handles.hold(socket) {
            Ok(fd) => self.start(id, fd, false, op),
            Err(e) => self.ready.push(Completion { id, result: Err(e), payload: call::lent(op) }),
        }
    }

    fn start(&mut self, id: OpId, fd: i32, in_thread: bool, op: Op) {
        let n = id.0 as usize;
        if n >= self.slots.len() {
            assert!(n < MAX_SLOTS, "operation number {n} is too large");
            self.slots.resize_with((n + 1).next_power_of_two(), Slot::default);
        }
        let slot = &mut self.slots[n];
        assert!(slot.op.is_none(), "operation {n} is already in flight");
        slot.op = Some(op);
        (slot.fd, slot.in_thread) = (fd, in_thread);
        if self.waiting.is_empty() {
            self.push(n as u32);
        } else {
            self.waiting.push_back(n as u32);
        }
    }

    /// Queues the entry of a slot, or puts the slot on the waiting list. Ends the operation if no
    /// entry can be built for it.
    fn push(&mut self, n: u32) {
        let slot = &mut self.slots[n as usize];
        match slot.entry() {
            Ok(entry) => {
                // SAFETY: the slot owns the operation, and with it all memory that the entry points
                // to, until the completion is reaped. If this backend is dropped before, it waits
                // for the completion or leaks the slot.
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

    /// Ends the accepts of a listener that is being closed.
    fn cancel_accepts(&mut self, of: rt::SocketId) {
        for n in 0..self.slots.len() as u32 {
            let op = self.slots[n as usize].op.as_ref();
            if !op.is_some_and(|op| matches!(op, Op::Accept { listener } if *listener == of)) {
                continue;
            }
            match self.waiting.iter().position(|&waiting| waiting == n) {
                Some(place) => {
                    self.waiting.remove(place);
                    self.finish(n, Err(IoError::CANCELED));
                }
                None => self.cancels.push((n, of)),
            }
        }
    }

    fn push_cancels(&mut self) {
        while let Some(&(n, of)) = self.cancels.last() {
            // The operation may have ended since, and its slot be another's.
            let op = self.slots[n as usize].op.as_ref();
            if !op.is_some_and(|op| matches!(op, Op::Accept { listener } if *listener == of)) {
                self.cancels.pop();
                continue;
            }
            let cancel = io_uring::opcode::AsyncCancel::new(n.into()).build().user_data(CANCEL);
            // SAFETY: a cancellation points to no memory.
            if !unsafe { self.ring.push(&cancel) } {
                return;
            }
            self.cancels.pop();
        }
    }

    fn push_waiting(&mut self) {
        self.push_cancels();
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
                // SAFETY: the kernel has just created this descriptor for us.
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

    /// Takes the completions of the kernel.
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

    /// Hands over at most `count` reads that have ended.
    fn end_reads(&mut self, count: usize) {
        for _ in 0..count {
            let Some((n, result)) = self.ended.pop_front() else { return };
            self.reads -= 1;
            self.end(n, result);
        }
    }

    /// Handles one completion of the kernel.
    fn end(&mut self, n: u32, result: i32) {
        self.in_flight -= 1;
        match u64::try_from(result) {
            Ok(done) => self.finish(n, Ok(done)),
            // An interrupted operation has transferred nothing, so it is started again.
            Err(_) if result == -libc::EINTR && !self.is_closing(n) => self.waiting.push_back(n),
            Err(_) => self.finish(n, Err(IoError(-result))),
        }
    }

    /// Whether the socket of an operation is being closed.
    fn is_closing(&self, n: u32) -> bool {
        let socket = self.slots[n as usize].op.as_ref().and_then(socket_of);
        socket.is_some_and(|socket| self.handles.is_closing(socket))
    }

    fn limit(&self, until: Option<Instant>) -> Limit {
        if !self.ready.is_empty() || !self.ended.is_empty() {
            return Limit::Poll;
        }
        let left = until.map(|until| until.since(sys::now()));
        let left = if self.waiting.is_empty() && self.cancels.is_empty() {
            left
        } else {
            Some(left.unwrap_or(RETRY_SUBMIT).min(RETRY_SUBMIT))
        };
        match left {
            None => Limit::None,
            Some(Duration::ZERO) => Limit::Poll,
            Some(left) => Limit::AtMost(left),
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
                Ok(CloseOutcome::Waiting) => self.cancel_accepts(socket),
                Ok(CloseOutcome::Done) => {
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
            self.ring.enter(self.limit(until));
            self.reap();
            self.end_reads((self.reads / READ_BATCHES).max(1));
            let now = sys::now();
            if !self.ready.is_empty() || until.is_some_and(|until| now >= until) {
                done.append(&mut self.ready);
                return now;
            }
        }
    }

    fn kind(&self, file: rt::FileId) -> rt::DeviceKind {
        self.handles.kind(file)
    }

    fn ran(&self) -> Option<ThreadTime> {
        Some(self.processors.ran())
    }

    fn now(&self) -> Instant {
        sys::now()
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        let end = sys::now().after(DROP_TIMEOUT);
        // Operations that never reached the kernel can be dropped.
        for n in std::mem::take(&mut self.waiting) {
            self.slots[n as usize].op = None;
        }
        for (n, slot) in self.slots.iter().enumerate() {
            if slot.op.is_some() {
                let cancel = io_uring::opcode::AsyncCancel::new(n as u64).build().user_data(CANCEL);
                // SAFETY: a cancellation points to no memory. If it does not fit into the queue,
                // the operation has to end by itself.
                let _ = unsafe { self.ring.push(&cancel) };
            }
        }
        while self.in_flight > 0 && !self.ring.is_broken() && sys::now() < end {
            self.reap();
            self.end_reads(usize::MAX);
            if self.in_flight > 0 {
                self.ring.enter(Limit::AtMost(end.since(sys::now())));
            }
            // Interrupted operations are not started again.
            for n in std::mem::take(&mut self.waiting) {
                self.slots[n as usize].op = None;
            }
        }
        if self.in_flight > 0 {
            tracing::warn!(
                operations = self.in_flight,
                "operations did not end after io_uring was closed; their buffers are leaked"
            );
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}
