//! Threads that execute blocking calls on files, and signal an eventfd when calls have ended. Each
//! file has threads of its own, so a device that stands still holds no call on another one.
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
use rt::FileId;

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

/// What the threads of one file share.
#[derive(Default)]
struct Desk {
    jobs: Mutex<Jobs>,
    more: Condvar,
}

/// What all threads share.
struct Ended {
    done: Mutex<Vec<Done>>,
    /// An eventfd that is readable while `done` is not empty.
    bell: OwnedFd,
}

/// The threads of one file.
struct Crew {
    desk: Arc<Desk>,
    threads: Vec<JoinHandle<()>>,
}

/// The threads of all files. Dropping them waits for the calls that are being executed, and drops
/// the others.
pub(crate) struct Workers {
    ended: Arc<Ended>,
    /// By the number of the file; `None` before its first call.
    crews: Vec<Option<Crew>>,
    threads_of_a_file: usize,
}

/// Locks a mutex, even if it is poisoned: no update here can be left half done by a panic.
fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Crew {
    /// Starts threads, fewer if the system refuses some. Fails if it refuses all.
    fn new(file: FileId, threads: usize, ended: &Arc<Ended>) -> io::Result<Crew> {
        let mut crew = Crew { desk: Arc::default(), threads: Vec::new() };
        for n in 0..threads {
            let (desk, ended) = (crew.desk.clone(), ended.clone());
            let named = std::thread::Builder::new().name(format!("io{}.{n}", file.0));
            match named.spawn(move || work(&desk, &ended)) {
                Ok(thread) => crew.threads.push(thread),
                Err(e) if crew.threads.is_empty() => return Err(e),
                Err(e) => {
                    tracing::warn!("only {n} of {threads} threads for a file: {e}");
                    break;
                }
            }
        }
        Ok(crew)
    }
}

impl Workers {
    /// Each file gets so many threads, at least one, with its first call.
    pub fn new(threads_of_a_file: usize) -> io::Result<Workers> {
        // SAFETY: the arguments are plain numbers.
        let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if bell < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just created, and nothing else owns it.
        let bell = unsafe { OwnedFd::from_raw_fd(bell) };
        let ended = Arc::new(Ended { done: Mutex::default(), bell });
        Ok(Workers { ended, crews: Vec::new(), threads_of_a_file: threads_of_a_file.max(1) })
    }

    /// The eventfd to poll for readability.
    pub fn bell(&self) -> RawFd {
        self.ended.bell.as_raw_fd()
    }

    /// Sees to it that the file has threads.
    pub fn prepare(&mut self, file: FileId) -> io::Result<()> {
        let n = file.0 as usize;
        if n >= self.crews.len() {
            self.crews.resize_with(n + 1, || None);
        }
        if self.crews[n].is_none() {
            self.crews[n] = Some(Crew::new(file, self.threads_of_a_file, &self.ended)?);
        }
        Ok(())
    }

    /// Lets a thread of the file execute a call.
    ///
    /// # Safety
    /// The operation that the call was made from must not be touched or dropped, and its file must
    /// stay open, until [`Workers::take`] has returned the call or the workers have been dropped.
    ///
    /// # Panics
    /// If the file was not prepared.
    pub unsafe fn start(&self, file: FileId, slot: u32, call: FileCall) {
        let Some(Some(crew)) = self.crews.get(file.0 as usize) else {
            unreachable!("file {} has no threads", file.0)
        };
        lock(&crew.desk.jobs).queue.push_back(Job { slot, call });
        crew.desk.more.notify_one();
    }

    /// Returns the calls that have ended since the last time.
    pub fn take(&self) -> Vec<Done> {
        let mut count = 0u64;
        let at = (&raw mut count).cast::<libc::c_void>();
        let mut done = lock(&self.ended.done);
        // SAFETY: `at` points to eight bytes that live until the call returns. It is fine if there
        // is nothing to read.
        let _ = sys::retry(|| unsafe { libc::read(self.bell(), at, 8) });
        std::mem::take(&mut *done)
    }
}

fn work(desk: &Desk, ended: &Ended) {
    loop {
        let job = {
            let mut jobs = lock(&desk.jobs);
            loop {
                if jobs.stop {
                    return;
                }
                match jobs.queue.pop_front() {
                    Some(job) => break job,
                    None => jobs = desk.more.wait(jobs).unwrap_or_else(PoisonError::into_inner),
                }
            }
        };
        // SAFETY: the caller of `start` promised what this needs.
        let result = unsafe { job.call.run() };
        let mut done = lock(&ended.done);
        let first = done.is_empty();
        done.push(Done { slot: job.slot, result, call: job.call });
        if first {
            let one = 1u64;
            let at = (&raw const one).cast::<libc::c_void>();
            // SAFETY: `at` points to eight bytes that live until the call returns. The count cannot
            // overflow, because `take` resets it as often as it is raised.
            let _ = sys::retry(|| unsafe { libc::write(ended.bell.as_raw_fd(), at, 8) });
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for crew in self.crews.iter().flatten() {
            lock(&crew.desk.jobs).stop = true;
            crew.desk.more.notify_all();
        }
        for thread in self.crews.drain(..).flatten().flat_map(|crew| crew.threads) {
            // A thread that panicked has reported it itself, and makes no more calls.
            let _ = thread.join();
        }
    }
}
