//! Requests for commits, and how those ended.

use std::cell::{Cell, RefCell};

use rt::sync::Event;

use base::StorageError;

/// Events between writers, tasks that wait for a commit, and the commit task.
pub(crate) struct Requests {
    /// A commit is asked for.
    wanted: Cell<bool>,
    request: Event,
    /// A commit has ended, well or not.
    ended: Event,
    /// The open transaction is not empty any more.
    dirtied: Event,
    /// A commit has failed, and is to be tried again.
    retry: Cell<bool>,
    failures: Cell<u64>,
    last_error: RefCell<Option<StorageError>>,
}

impl Requests {
    pub fn new() -> Requests {
        Requests {
            wanted: Cell::new(false),
            request: Event::new(),
            ended: Event::new(),
            dirtied: Event::new(),
            retry: Cell::new(false),
            failures: Cell::new(0),
            last_error: RefCell::new(None),
        }
    }

    /// Asks for a commit.
    pub fn ask(&self) {
        self.wanted.set(true);
        self.request.notify();
    }

    /// True if a commit was asked for since this was called last.
    pub fn take(&self) -> bool {
        self.wanted.replace(false)
    }

    /// Waits until a commit is asked for.
    pub fn asked(&self) -> impl Future<Output = ()> + use<> {
        self.request.wait()
    }

    /// A commit has ended, or is not needed.
    pub fn tell_ended(&self) {
        self.ended.notify();
    }

    /// Waits for the end of a commit.
    pub fn ended(&self) -> impl Future<Output = ()> + use<> {
        self.ended.wait()
    }

    /// Something is in the open transaction.
    pub fn tell_dirtied(&self) {
        self.dirtied.notify();
    }

    /// Waits for that.
    pub fn dirtied(&self) -> impl Future<Output = ()> + use<> {
        self.dirtied.wait()
    }

    /// Whether a commit has failed, and is to be tried again.
    pub fn set_retry(&self, retry: bool) {
        self.retry.set(retry);
    }

    pub fn retry(&self) -> bool {
        self.retry.get()
    }

    /// A commit has failed; those that wait for it are told so.
    pub fn note_failure(&self, e: StorageError) {
        self.failures.set(self.failures.get() + 1);
        *self.last_error.borrow_mut() = Some(e);
    }

    /// The number of commits that have failed.
    pub fn failures(&self) -> u64 {
        self.failures.get()
    }

    /// The last error, if more than `failures` commits have failed.
    pub fn error_since(&self, failures: u64) -> Option<StorageError> {
        if self.failures.get() == failures { None } else { self.last_error.borrow().clone() }
    }

    /// The pool is closed: all that wait look for themselves.
    pub fn wake_all(&self) {
        self.request.notify();
        self.dirtied.notify();
        self.ended.notify();
    }
}
