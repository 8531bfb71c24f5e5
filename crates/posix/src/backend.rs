//! The backend on epoll and threads. It tries an operation on a socket at once, and polls the
//! socket if the operation would block. It hands operations on files to threads.
//!
//! Fault model: the buffers of an operation on a file belong to a thread from submission to
//! completion. When the backend is dropped, it waits for the threads, so no memory is freed while a
//! call uses it. Only the thread that calls `submit` and `wait` touches the buffers of operations
//! on sockets.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::mem::take;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use base::{Duration, Instant, IoError};
use rt::{Backend, Completion, DeviceKind, FileId, Op, OpId, Payload, SocketId, ThreadTime};

use crate::call::{FileCall, lent};
use crate::handles::{CloseOutcome, Handles};
use crate::poll::{Poll, attempt};
use crate::processors::Processors;
use crate::start::Start;
use crate::sys;
use crate::workers::Workers;

/// The limit on operation numbers. The caller must use small numbers.
const MAX_SLOTS: usize = 1 << 20;
/// The name of the workers' eventfd in the epoll instance; sockets have smaller names.
const BELL: u64 = u64::MAX;

/// The backend on epoll and threads.
pub struct Posix {
    // The first field, so that it is dropped first: this waits for the threads. Only then may the
    // operations and files be dropped.
    workers: Workers,
    poll: Poll,
    handles: Handles,
    processors: Processors,
    /// Indexed by the number of the operation.
    slots: Vec<Slot>,
    /// Indexed by the number of the socket.
    queues: Vec<Queues>,
    ready: Vec<Completion>,
    spare: Vec<Vec<libc::iovec>>,
}

#[derive(Default)]
struct Slot {
    op: Option<Op>,
    /// Number of bytes that a filling receive already has.
    moved: usize,
}

/// The operations that wait on a socket, in order.
#[derive(Default)]
struct Queues {
    watched: bool,
    /// Receives, or accepts.
    incoming: VecDeque<u32>,
    outgoing: VecDeque<u32>,
}

impl Queues {
    fn of(&mut self, op: &Op) -> &mut VecDeque<u32> {
        if matches!(op, Op::Send { .. }) { &mut self.outgoing } else { &mut self.incoming }
    }
}

impl Posix {
    /// Creates a backend with so many threads for each file, at least one.
    pub fn new(threads_of_a_file: usize) -> io::Result<Posix> {
        let workers = Workers::new(threads_of_a_file)?;
        let poll = Poll::new()?;
        poll.watch(workers.bell(), BELL)?;
        Ok(Posix {
            workers,
            poll,
            handles: Handles::new(false),
            processors: Processors::of_this_thread(),
            slots: Vec::new(),
            queues: Vec::new(),
            ready: Vec::new(),
            spare: Vec::new(),
        })
    }

    /// The table of files and sockets of this backend. It can be used to open more, even while a
    /// runtime owns the backend.
    pub fn handles(&self) -> Handles {
        self.handles.clone()
    }

    fn fail(&mut self, id: OpId, e: IoError, op: Op) {
        self.ready.push(Completion { id, result: Err(e), payload: lent(op) });
    }

    fn occupy(&mut self, id: OpId, op: Op) -> u32 {
        let n = id.0 as usize;
        if n >= self.slots.len() {
            assert!(n < MAX_SLOTS, "operation number {n} is too large");
            self.slots.resize_with((n + 1).next_power_of_two(), Slot::default);
        }
        let slot = &mut self.slots[n];
        assert!(slot.op.is_none(), "operation {n} is already in flight");
        *slot = Slot { op: Some(op), moved: 0 };
        n as u32
    }

    fn start_on_file(&mut self, id: OpId, file: FileId, mut op: Op) {
        let handle = match self.handles.file(file) {
            Ok(handle) => handle,
            Err(e) => return self.fail(id, e, op),
        };
        // Moving the operation into its slot does not move the memory of its buffers.
        let call = FileCall::new(handle.fd, &mut op, self.spare.pop().unwrap_or_default());
        if handle.start == Start::Here {
            // SAFETY: `op` stays here, untouched, until the call returns.
            let result = unsafe { call.run() };
            self.spare.push(call.into_pieces());
            self.ready.push(Completion { id, result, payload: lent(op) });
        } else if let Err(e) = self.workers.prepare(file) {
            self.fail(id, e.into(), op);
        } else {
            let n = self.occupy(id, op);
            // SAFETY: the slot owns the operation until `take` has returned the call. Files are
            // open while the table exists, and the workers are dropped before the table.
            unsafe { self.workers.start(file, n, call) };
        }
    }

    fn start_on_socket(&mut self, id: OpId, socket: SocketId, op: Op) {
        let fd = match self.handles.hold(socket) {
            Ok(fd) => fd,
            Err(e) => return self.fail(id, e, op),
        };
        let s = socket.0 as usize;
        if s >= self.queues.len() {
            self.queues.resize_with(s + 1, Queues::default);
        }
        let behind = !self.queues[s].of(&op).is_empty();
        let n = self.occupy(id, op);
        if !behind {
            if let Some(result) = self.attempt(n, fd) {
                return self.finish(n, result);
            }
            if !self.queues[s].watched {
                if let Err(e) = self.poll.watch(fd, u64::from(socket.0)) {
                    return self.finish(n, Err(e.into()));
                }
                self.queues[s].watched = true;
            }
        }
        if let Some(op) = &self.slots[n as usize].op {
            self.queues[s].of(op).push_back(n);
        }
    }

    fn attempt(&mut self, n: u32, fd: RawFd) -> Option<Result<u64, IoError>> {
        let slot = &mut self.slots[n as usize];
        let Some(op) = &mut slot.op else { unreachable!("operation {n} is not in flight") };
        let mut pieces = self.spare.pop().unwrap_or_default();
        let result = attempt(fd, op, &mut slot.moved, &mut pieces);
        self.spare.push(pieces);
        result
    }

    /// Continues the operations that wait on a socket, as far as they do not block.
    fn proceed(&mut self, socket: SocketId) {
        for incoming in [true, false] {
            while let Some(queues) = self.queues.get_mut(socket.0 as usize) {
                let queue = if incoming { &mut queues.incoming } else { &mut queues.outgoing };
                let (Some(&n), Ok(fd)) = (queue.front(), self.handles.held(socket)) else { break };
                let Some(result) = self.attempt(n, fd) else { break };
                let queues = &mut self.queues[socket.0 as usize];
                let queue = if incoming { &mut queues.incoming } else { &mut queues.outgoing };
                queue.pop_front();
                self.finish(n, result);
            }
        }
    }

    fn close(&mut self, id: OpId, socket: SocketId) {
        let closing = self.handles.close(socket, id);
        match closing {
            Err(e) => self.ready.push(Completion { id, result: Err(e), payload: Payload::None }),
            Ok(closing) => {
                let queues = self.queues.get_mut(socket.0 as usize).map(take).unwrap_or_default();
                // The last of these operations releases the number, which completes the close.
                for n in queues.incoming.into_iter().chain(queues.outgoing) {
                    self.finish(n, Err(IoError::CANCELED));
                }
                if closing == CloseOutcome::Done {
                    self.ready.push(Completion { id, result: Ok(0), payload: Payload::None });
                }
            }
        }
    }

    /// Ends the operation of a slot.
    fn finish(&mut self, n: u32, result: Result<u64, IoError>) {
        let Some(op) = self.slots[n as usize].op.take() else {
            unreachable!("operation {n} ended twice")
        };
        let id = OpId(u64::from(n));
        let closed = match &op {
            Op::Recv { socket, .. } | Op::Send { socket, .. } | Op::Accept { listener: socket } => {
                self.handles.release(*socket)
            }
            _ => None,
        };
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
            (result, _) => Completion { id, result, payload: lent(op) },
        };
        self.ready.push(completion);
        if let Some(id) = closed {
            self.ready.push(Completion { id, result: Ok(0), payload: Payload::None });
        }
    }
}

impl Backend for Posix {
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
            Op::Close { socket } => self.close(id, socket),
        }
    }

    fn wait(&mut self, until: Option<Instant>, done: &mut Vec<Completion>) -> Instant {
        loop {
            let limit = if self.ready.is_empty() {
                until.map(|until| until.since(sys::now()))
            } else {
                Some(Duration::ZERO)
            };
            for name in self.poll.wait(limit) {
                if name == BELL {
                    for made in self.workers.take() {
                        self.spare.push(made.call.into_pieces());
                        self.finish(made.slot, made.result);
                    }
                } else {
                    self.proceed(SocketId(name as u32));
                }
            }
            let now = sys::now();
            if !self.ready.is_empty() || until.is_some_and(|until| now >= until) {
                done.append(&mut self.ready);
                return now;
            }
        }
    }

    fn kind(&self, file: FileId) -> DeviceKind {
        self.handles.kind(file)
    }

    fn ran(&self) -> Option<ThreadTime> {
        Some(self.processors.ran())
    }

    fn now(&self) -> Instant {
        sys::now()
    }
}
