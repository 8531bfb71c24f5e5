//! The ring itself: set-up for what the kernel has, and one system call to submit and wait.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

use base::Duration;
use io_uring::squeue::Entry;
use io_uring::{IoUring, Probe, opcode};

/// How long [`Ring::enter`] waits for a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patience {
    /// Not at all.
    Look,
    /// So long.
    For(Duration),
    /// As long as it takes.
    Forever,
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

const ENTER_GETEVENTS: u32 = 1;
const ENTER_EXT_ARG: u32 = 1 << 3;

pub(crate) struct Ring {
    uring: IoUring,
}

impl Ring {
    /// A ring of `entries` entries. An error means that this kernel, or who confines us, does not have what it takes.
    pub fn new(entries: u32) -> io::Result<Ring> {
        // Best first: completions are handled when we ask for them and not by interrupting us (6.1), or at the next system
        // call (5.19), or whenever.
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
        ];
        if features && codes.iter().all(|&code| probe.is_supported(code)) {
            Ok(Ring { uring })
        } else {
            Err(io::Error::new(io::ErrorKind::Unsupported, "this kernel's io_uring is too old"))
        }
    }

    /// Queues an entry; false if the queue is full, even after submitting what is in it.
    ///
    /// # Safety
    /// What the entry points to stays valid until its completion.
    pub unsafe fn push(&mut self, entry: &Entry) -> bool {
        // SAFETY: as the caller says.
        if unsafe { self.uring.submission().push(entry) }.is_ok() {
            return true;
        }
        // Whatever the reason for a failure, it shows in whether there is room now.
        let _ = self.enter_raw(0, 0, None);
        // SAFETY: as the caller says.
        unsafe { self.uring.submission().push(entry) }.is_ok()
    }

    /// Submits what is queued and waits for completions, in one system call (or none, if there is nothing to do).
    pub fn enter(&mut self, patience: Patience) {
        let sq = self.uring.submission();
        let idle = sq.is_empty() && !sq.taskrun() && !sq.cq_overflow();
        drop(sq);
        // Every failure (a signal, the time is over, completions must be taken first) is handled by looking at what is there.
        let _ = match patience {
            Patience::Look if idle => return,
            Patience::Look => self.enter_raw(0, ENTER_GETEVENTS, None),
            Patience::Forever => self.enter_raw(1, ENTER_GETEVENTS, None),
            Patience::For(d) => {
                let seconds = i64::try_from(d.as_secs()).unwrap_or(i64::MAX);
                let t = Timespec { seconds, nanoseconds: i64::from(d.subsec_nanos()) };
                self.enter_raw(1, ENTER_GETEVENTS | ENTER_EXT_ARG, Some(&t))
            }
        };
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
        // SAFETY: the argument and the time it points to live until the call returns; that what the entries point to is valid
        // was promised when they were pushed.
        let r = unsafe {
            libc::syscall(libc::SYS_io_uring_enter, fd, to_submit, min_complete, flags, arg, size)
        };
        if r < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The next completion: its number and its result.
    pub fn reap(&mut self) -> impl Iterator<Item = (u64, i32)> + '_ {
        self.uring.completion().map(|c| (c.user_data(), c.result()))
    }
}
