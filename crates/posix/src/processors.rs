//! The time that a thread has had of the machine's processors.

use std::fs::File;
use std::os::unix::fs::FileExt;

use base::Duration;
use rt::ThreadTime;

use crate::sys;

/// Three numbers of up to 20 digits.
const LINE: usize = 64;

/// The time that one thread has had of the processors. Only the thread that made it may ask.
pub struct Processors {
    /// The thread's counts in the scheduler; `None` if the kernel keeps none.
    scheduler: Option<File>,
}

impl Processors {
    /// For the calling thread.
    pub fn of_this_thread() -> Processors {
        Processors { scheduler: File::open("/proc/thread-self/schedstat").ok() }
    }

    /// The time that the thread has had since it began.
    pub fn ran(&self) -> ThreadTime {
        ThreadTime { used: sys::processor_time(), queued: self.queued() }
    }

    fn queued(&self) -> Option<Duration> {
        let mut line = [0; LINE];
        let len = self.scheduler.as_ref()?.read_at(&mut line, 0).ok()?;
        // Time on a processor, time in the queue of one, both in ns, and how often it ran.
        let text = std::str::from_utf8(&line[..len]).ok()?;
        text.split_ascii_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_works_has_run() {
        let mine = Processors::of_this_thread();
        let before = mine.ran();
        let mut had = before;
        while had.since(before).used < Duration::from_millis(2) {
            had = mine.ran();
        }
        if let Some(queued) = before.queued {
            assert!(had.queued >= Some(queued), "{before:?} {had:?}");
        }
    }
}
