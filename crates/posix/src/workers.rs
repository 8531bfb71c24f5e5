//! A few threads that execute blocking calls on files, and signal an eventfd when calls have ended.
#![allow(unsafe_code)]
#![allow(
    clippy::disallowed_types,
    reason = "the threads that do the waiting are the world outside of the engine"
)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use base::IoError;

use crate::call::FileCall;
use crate::sys;

/// A call that has ended.
pub(crate) struct Done {
    /// The slot of the operation.
    pub slot: u32,
    pub result: Result<u64, IoError>,
    pub call: FileCall,
}

struct Job {
    slot: u32,
    call: FileCall,
}

#[derive(Default)]
struct Jobs {
    queue: VecDeque<Job>,
    stop: bool,
}

struct Shared {
    jobs: Mutex<Jobs>,
    more: Condvar,
    done: Mutex<Vec<Done>>,
    /// An eventfd that is readable while `done` is not empty.
    bell: OwnedFd,
}

/// The threads. Dropping them waits for the calls that are being executed, and drops the others.
pub(crate) struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// Locks a mutex, even if it is poisoned: no update here can be left half done by a panic.
fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Workers {
    pub fn new(threads: usize) -> io::Result<Workers> {
        // SAFETY: the arguments are plain numbers.
        let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if bell < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just created, and nothing else owns it.
        let bell = unsafe { OwnedFd::from_raw_fd(bell) };
        let shared = Arc::new(Shared {
            jobs: Mutex::default(),
            more: Condvar::new(),
            done: Mutex::default(),
            bell,
        });
        let mut workers = Workers { shared, threads: Vec::new() };
        for n in 0..threads.max(1) {
            let shared = workers.shared.clone();
            let thread =
                std::thread::Builder::new().name(format!("io{n}")).spawn(move || work(&shared))?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    /// The eventfd to poll for readability.
    pub fn bell(&self) -> RawFd {
        self.shared.bell.as_raw_fd()
    }

    /// Lets a thread execute a call.
    ///
    /// # Safety
    /// The operation that the call was made from must not be touched or dropped, and its file must
    /// stay open, until [`Workers::take`] has returned the call or the workers have been dropped.
    pub unsafe fn start(&self, slot: u32, call: FileCall) {
        lock(&self.shared.jobs).queue.push_back(Job { slot, call });
        self.shared.more.notify_one();
    }

    /// Returns the calls that have ended since the last time.
    pub fn take(&self) -> Vec<Done> {
        let mut count = 0u64;
        let at = (&raw mut count).cast::<libc::c_void>();
        let mut done = lock(&self.shared.done);
        // SAFETY: `at` points to eight bytes that live until the call returns. It is fine if there
        // is nothing to read.
        let _ = sys::retry(|| unsafe { libc::read(self.bell(), at, 8) });
        std::mem::take(&mut *done)
    }
}

fn work(shared: &Shared) {
    loop {
        let job = {
            let mut jobs = lock(&shared.jobs);
            loop {
                if jobs.stop {
                    return;
                }
                match jobs.queue.pop_front() {
                    Some(job) => break job,
                    None => jobs = shared.more.wait(jobs).unwrap_or_else(PoisonError::into_inner),
                }
            }
        };
        // SAFETY: the caller of `start` promised what this needs.
        let result = unsafe { job.call.run() };
        let mut done = lock(&shared.done);
        let first = done.is_empty();
        done.push(Done { slot: job.slot, result, call: job.call });
        if first {
            let one = 1u64;
            let at = (&raw const one).cast::<libc::c_void>();
            // SAFETY: `at` points to eight bytes that live until the call returns. The count cannot
            // overflow, because `take` resets it as often as it is raised.
            let _ = sys::retry(|| unsafe { libc::write(shared.bell.as_raw_fd(), at, 8) });
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        lock(&self.shared.jobs).stop = true;
        self.shared.more.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has reported it itself, and makes no more calls.
            let _ = thread.join();
        }
    }
}
