//! The ring: set-up by what the kernel supports, and one system call to submit and to wait.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

use base::Duration;
use io_uring::squeue::Entry;
use io_uring::{IoUring, Probe, opcode};

/// The time that [`Ring::enter`] waits for a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Limit {
    /// The call does not wait.
    Poll,
    /// The call waits at most for this time.
    AtMost(Duration),
    /// The call waits without a limit.
    None,
}

/// The last argument of `io_uring_enter` with `IORING_ENTER_EXT_ARG`.
#[repr(C)]
struct GetEventsArg {
    sigmask: u64,
    sigmask_size: u32,
    min_wait_us: u32,
    timeout: u64,
}

#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

/// Threads that the kernel may make for operations on files: more than the devices of a pool and a
/// cache are given at a time, so that no operation waits for another one's thread. It makes them
/// as they are needed, and ends those that had nothing to do for some seconds.
const MOST_THREADS: u32 = 1024;

const ENTER_GETEVENTS: u32 = 1;
const ENTER_EXT_ARG: u32 = 1 << 3;

/// Errors that `io_uring_enter` may return for a ring that is well: completions must be reaped
/// first, the kernel is short of memory for now, a signal came, or the time is up.
const PASSING: [i32; 5] = [libc::EAGAIN, libc::EBUSY, libc::ENOMEM, libc::EINTR, libc::ETIME];

pub(crate) struct Ring {
    uring: IoUring,
    /// The kernel takes no calls for it any more.
    broken: bool,
}

impl Ring {
    /// Sets up a ring with `entries` entries. Fails if the kernel is too old for this backend, or
    /// if a container or a policy forbids io_uring.
    pub fn new(entries: u32) -> io::Result<Ring> {
        // Try the best set-up first. Completions are handled only when we ask for them (Linux 6.1),
        // at the next system call (5.19), or at any time.
        let mut refused = None;
        for level in 0..3 {
            let mut b = IoUring::builder();
            b.setup_clamp().setup_cqsize(entries.saturating_mul(4).max(4)).dontfork();
            if level < 2 {
                b.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all();
            }
            if level < 1 {
                b.setup_single_issuer().setup_defer_taskrun();
            }
            match b.build(entries) {
                Ok(uring) => return Ring::check(uring),
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => refused = Some(e),
                Err(e) => return Err(e),
            }
        }
        Err(refused.unwrap_or_else(|| io::Error::from_raw_os_error(libc::EINVAL)))
    }

    fn check(uring: IoUring) -> io::Result<Ring> {
        let p = uring.params();
        let features = p.is_feature_nodrop()
            && p.is_feature_submit_stable()
            && p.is_feature_ext_arg()
            && p.is_feature_fast_poll();
        let mut probe = Probe::new();
        uring.submitter().register_probe(&mut probe)?;
        let codes = [
            opcode::Read::CODE,
            opcode::Readv::CODE,
            opcode::Write::CODE,
            opcode::Writev::CODE,
            opcode::Fsync::CODE,
            opcode::Fallocate::CODE,
            opcode::Recv::CODE,
            opcode::Send::CODE,
            opcode::SendMsg::CODE,
            opcode::Accept::CODE,
            opcode::AsyncCancel::CODE,
            opcode::Nop::CODE,
        ];
        if features && codes.iter().all(|&code| probe.is_supported(code)) {
            // The other limit, that of operations on sockets, stays.
            if let Err(e) = uring.submitter().register_iowq_max_workers(&mut [MOST_THREADS, 0]) {
                tracing::debug!("the kernel keeps its limit of threads for I/O: {e}");
            }
            let mut ring = Ring { uring, broken: false };
            ring.turn_once()?;
            Ok(ring)
        } else {
            Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this kernel's io_uring is too old: Linux 5.11 or newer is needed",
            ))
        }
    }

    /// Sends an operation that does nothing around the ring. A policy may permit the call that
    /// makes a ring, and not the one that uses it.
    fn turn_once(&mut self) -> io::Result<()> {
        let nothing = opcode::Nop::new().build();
        // SAFETY: the entry points to no memory.
        let queued = unsafe { self.uring.submission().push(&nothing) };
        queued.map_err(|_| io::Error::other("the queue of a new ring has no room"))?;
        loop {
            match self.enter_raw(1, ENTER_GETEVENTS, None) {
                Err(e) if !is_passing(&e) => return Err(e),
                _ => {}
            }
            if let Some((_, result)) = self.reap().next() {
                return match result {
                    0.. => Ok(()),
                    e => Err(io::Error::from_raw_os_error(-e)),
                };
            }
        }
    }

    /// True once the kernel takes no calls for the ring any more.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Queues an entry. Returns false if the queue is still full after submitting its entries.
    ///
    /// # Safety
    /// The memory that the entry points to must stay valid until its completion.
    pub unsafe fn push(&mut self, entry: &Entry) -> bool {
        // SAFETY: see the safety section above.
        if unsafe { self.uring.submission().push(entry) }.is_ok() {
            return true;
        }
        // Ignore the error: the next push shows whether there is room now.
        let _ = self.enter_raw(0, 0, None);
        // SAFETY: see the safety section above.
        unsafe { self.uring.submission().push(entry) }.is_ok()
    }

    /// Submits the queued entries and waits for completions, in one system call. Makes no system
    /// call if there is nothing to do.
    ///
    /// # Panics
    /// If the kernel does not take the call, for a reason that does not pass: nothing that is under
    /// way would ever end, and what waits for it would wait for ever.
    pub fn enter(&mut self, limit: Limit) {
        let sq = self.uring.submission();
        let idle = sq.is_empty() && !sq.taskrun() && !sq.cq_overflow();
        drop(sq);
        let entered = match limit {
            Limit::Poll if idle => return,
            Limit::Poll => self.enter_raw(0, ENTER_GETEVENTS, None),
            Limit::None => self.enter_raw(1, ENTER_GETEVENTS, None),
            Limit::AtMost(d) => {
                let seconds = i64::try_from(d.as_secs()).unwrap_or(i64::MAX);
                let t = Timespec { seconds, nanoseconds: i64::from(d.subsec_nanos()) };
                self.enter_raw(1, ENTER_GETEVENTS | ENTER_EXT_ARG, Some(&t))
            }
        };
        // After an error that passes the caller looks at the completions that are there.
        if let Some(e) = entered.err().filter(|e| !is_passing(e)) {
            self.broken = true;
            panic!("the kernel takes no calls for io_uring any more (io_uring_enter): {e}");
        }
    }

    fn enter_raw(
        &mut self,
        min_complete: u32,
        flags: u32,
        timeout: Option<&Timespec>,
    ) -> io::Result<()> {
        let to_submit = self.uring.submission().len() as u32;
        let ext = timeout.map(|t| GetEventsArg {
            sigmask: 0,
            sigmask_size: 0,
            min_wait_us: 0,
            timeout: std::ptr::from_ref(t) as u64,
        });
        let (arg, size) = ext.as_ref().map_or((std::ptr::null(), 0), |ext| {
            (std::ptr::from_ref(ext), size_of::<GetEventsArg>())
        });
        let fd = self.uring.as_raw_fd();
        // SAFETY: the argument and the time that it points to live until the call returns. The
        // callers of `push` promised that the memory behind the entries is valid.
        let r = unsafe {
            libc::syscall(libc::SYS_io_uring_enter, fd, to_submit, min_complete, flags, arg, size)
        };
        if r < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Iterates over the completions: the number of the operation, and its result.
    pub fn reap(&mut self) -> impl Iterator<Item = (u64, i32)> + '_ {
        self.uring.completion().map(|c| (c.user_data(), c.result()))
    }
}

fn is_passing(e: &io::Error) -> bool {
    e.raw_os_error().is_some_and(|code| PASSING.contains(&code))
}
