//! Threads that execute blocking calls on files, and signal an eventfd when calls have ended. Each
//! file has threads of its own, so a device that stands still holds no call on another one.
//!
//! A file begins with one thread and gets more as its calls wait, so that all files have one where
//! the system gives few (a limit of processes or of memory). When it refuses one, no file gets more
//! from then on, and some are given back, as others need a thread too: commands, say. A file for
//! which there is none shares those of another file.
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

use base::{Duration, Instant, IoError};
use rt::FileId;

use crate::call::FileCall;
use crate::sys;

/// A call that has ended.
pub(crate) struct EndedCall {
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
    /// Threads that wait for a job.
    idle: usize,
    /// The number of threads that are to end.
    too_many: usize,
    stop: bool,
}

/// The queue that the threads of one file share.
#[derive(Default)]
struct CallQueue {
    jobs: Mutex<Jobs>,
    more: Condvar,
}

/// The ended calls that all threads share.
struct EndedCalls {
    done: Mutex<Vec<EndedCall>>,
    /// An eventfd that is readable while `done` is not empty.
    bell: OwnedFd,
}

/// The threads of one file.
struct Crew {
    desk: Arc<CallQueue>,
    /// None: it shares the desk of another file.
    threads: Vec<JoinHandle<()>>,
}

/// A file that shares the threads of another one tries to get one of its own this often.
const AGAIN: Duration = Duration::from_secs(1);

/// The number of threads that are given back when the system refuses one.
const GIVEN_BACK: usize = 4;

/// The threads of all files. Dropping them waits for the calls that are being executed, and drops
/// the others.
pub(crate) struct Workers {
    ended: Arc<EndedCalls>,
    /// By the number of the file; `None` before its first call.
    crews: Vec<Option<Crew>>,
    threads_of_a_file: usize,
    /// The system has refused a thread.
    no_more: bool,
    /// When a file that has none tried to get one.
    tried: Instant,
}

/// Locks a mutex, even if it is poisoned: no update here can be left half done by a panic.
fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Crew {
    /// Starts one more thread.
    fn grow(&mut self, file: FileId, ended: &Arc<EndedCalls>) -> io::Result<()> {
        let (desk, ended) = (self.desk.clone(), ended.clone());
        let name = format!("io{}.{}", file.0, self.threads.len());
        let named = std::thread::Builder::new().name(name);
        self.threads.push(named.spawn(move || work(&desk, &ended))?);
        Ok(())
    }

    /// Ends threads, but for the last one, when they have no call to execute.
    fn give_back(&mut self, threads: usize) {
        let mut jobs = lock(&self.desk.jobs);
        jobs.too_many = threads.min(self.threads.len().saturating_sub(1));
        drop(jobs);
        self.desk.more.notify_all();
    }
}

impl Workers {
    /// Each file gets so many threads at most, one of them with its first call.
    pub fn new(threads_of_a_file: usize) -> io::Result<Workers> {
        // SAFETY: the arguments are plain numbers.
        let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if bell < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just created, and nothing else owns it.
        let bell = unsafe { OwnedFd::from_raw_fd(bell) };
        let ended = Arc::new(EndedCalls { done: Mutex::default(), bell });
        let threads_of_a_file = threads_of_a_file.max(1);
        let (crews, tried) = (Vec::new(), sys::now());
        Ok(Workers { ended, crews, threads_of_a_file, no_more: false, tried })
    }

    /// The eventfd to poll for readability.
    pub fn bell(&self) -> RawFd {
        self.ended.bell.as_raw_fd()
    }

    /// Sees to it that the file has a thread. Fails if no file can have one.
    pub fn prepare(&mut self, file: FileId) -> io::Result<()> {
        let n = file.0 as usize;
        if n >= self.crews.len() {
            self.crews.resize_with(n + 1, || None);
        }
        match &self.crews[n] {
            Some(crew) if !crew.threads.is_empty() || sys::now().since(self.tried) < AGAIN => {
                return Ok(());
            }
            _ => {}
        }
        let mut crew = Crew { desk: Arc::default(), threads: Vec::new() };
        if let Err(e) = crew.grow(file, &self.ended) {
            self.tried = sys::now();
            // The one whose calls wait least: a device may stand still.
            let waits = |crew: &&Crew| {
                let jobs = lock(&crew.desk.jobs);
                (jobs.idle == 0, jobs.queue.len(), crew.threads.len())
            };
            let own = self.crews.iter().flatten().filter(|crew| !crew.threads.is_empty());
            let Some(other) = own.min_by_key(waits) else { return Err(e) };
            crew.desk = other.desk.clone();
            self.refused(&e);
        }
        // Calls that wait at the desk of another file are done there.
        self.crews[n] = Some(crew);
        Ok(())
    }

    fn refused(&mut self, e: &io::Error) {
        if std::mem::replace(&mut self.no_more, true) {
            return;
        }
        tracing::warn!(
            "no more threads for calls on files: {e}; raise the limit of processes (pids) or of \
             memory, or let io_uring be used"
        );
        if let Some(most) = self.crews.iter_mut().flatten().max_by_key(|crew| crew.threads.len()) {
            most.give_back(GIVEN_BACK);
        }
    }

    /// Lets a thread of the file execute a call.
    ///
    /// # Safety
    /// The operation that the call was made from must not be touched or dropped, and its file must
    /// stay open, until [`Workers::take`] has returned the call or the workers have been dropped.
    ///
    /// # Panics
    /// If the file was not prepared.
    pub unsafe fn start(&mut self, file: FileId, slot: u32, call: FileCall) {
        let Some(Some(crew)) = self.crews.get_mut(file.0 as usize) else {
            unreachable!("file {} has no threads", file.0)
        };
        let mut jobs = lock(&crew.desk.jobs);
        jobs.queue.push_back(Job { slot, call });
        let waits = jobs.queue.len() > jobs.idle;
        drop(jobs);
        crew.desk.more.notify_one();
        let grows = (1..self.threads_of_a_file).contains(&crew.threads.len());
        if waits
            && grows
            && !self.no_more
            && let Err(e) = crew.grow(file, &self.ended)
        {
            self.refused(&e);
        }
    }

    /// Returns the calls that have ended since the last time.
    pub fn take(&self) -> Vec<EndedCall> {
        let mut count = 0u64;
        let at = (&raw mut count).cast::<libc::c_void>();
        let mut done = lock(&self.ended.done);
        // SAFETY: `at` points to eight bytes that live until the call returns. It is fine if there
        // is nothing to read.
        let _ = sys::retry(|| unsafe { libc::read(self.bell(), at, 8) });
        std::mem::take(&mut *done)
    }
}

fn work(desk: &CallQueue, ended: &EndedCalls) {
    loop {
        let job = {
            let mut jobs = lock(&desk.jobs);
            loop {
                if jobs.stop {
                    return;
                }
                match jobs.queue.pop_front() {
                    Some(job) => break job,
                    None if jobs.too_many > 0 => {
                        jobs.too_many -= 1;
                        return;
                    }
                    None => {
                        jobs.idle += 1;
                        jobs = desk.more.wait(jobs).unwrap_or_else(PoisonError::into_inner);
                        jobs.idle -= 1;
                    }
                }
            }
        };
        // SAFETY: the caller of `start` promised what this needs.
        let result = unsafe { job.call.run() };
        let mut done = lock(&ended.done);
        let first = done.is_empty();
        done.push(EndedCall { slot: job.slot, result, call: job.call });
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
