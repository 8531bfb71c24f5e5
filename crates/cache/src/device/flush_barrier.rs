//! Whether a cache may still be written to: one value; and the only door to what is durable.
//!
//! **Fault model.** A device that could not make something durable says so once, to one of those
//! that asked; what it lost cannot be known, reads may still see it, and the next flush ends well
//! without it. So what was not durable before the first such error never is. Of two requests that
//! are under way at the same time it is chance which of them hears of the loss.
//!
//! 1. Only a [`Barrier`] asks the device to make something durable, once at a time.
//! 2. An error ends the use of the device before the next one may ask. From then on it refuses.
//! 3. [`Durable`] is the proof that one of them ended well. Nothing else makes one, and each
//!    function that enters that something is durable takes one: the end of a group commit and of a
//!    checkpoint, and with them the mark that commits of the pool carry, the room that is freed in
//!    the journal's ring, and the buckets that are.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{Duration, ErrorKind, Instant, IoError, Result, SliceList, StorageError};
use pool::HostLog;
use queue::{Class, Device};
use rt::sync::Semaphore;

/// The file system under a cache is not said to be full any more when a write succeeds so long
/// after the last one that found no space.
const SPACE_IS_BACK: Duration = Duration::from_secs(10);

#[derive(Default)]
struct HealthState {
    path: String,
    failed: RefCell<Option<StorageError>>,
    /// Why it takes no writes for now, and since when: the file system under it is full.
    full: RefCell<Option<(StorageError, Instant)>>,
    closed: Cell<bool>,
    aside: Cell<bool>,
    host_log: HostLog,
}

/// Whether a cache may still be written to, and whether it counts; clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Health(Rc<HealthState>);

impl Health {
    /// Of the cache on `path`, which is well.
    pub fn new(path: &str) -> Health {
        Health(Rc::new(HealthState { path: path.to_owned(), ..HealthState::default() }))
    }

    /// The log of what was answered and is not durable yet. It becomes void when the device fails:
    /// what a flush has lost must not be entered again.
    pub fn host_log(&self) -> &HostLog {
        &self.0.host_log
    }

    /// True if nothing can be made durable any more: the device has failed, or the pool goes on
    /// without the cache.
    pub fn has_failed(&self) -> bool {
        self.0.failed.borrow().is_some()
    }

    /// The error with which the device failed, if it has.
    pub fn check(&self) -> Result<()> {
        self.0.failed.borrow().clone().map_or(Ok(()), Err)
    }

    /// The device is of no use any more.
    pub fn fail(&self, e: &StorageError) {
        let mut failed = self.0.failed.borrow_mut();
        if failed.is_none() {
            tracing::error!(cache = %self.0.path, "the cache is out of use: {e}");
            self.0.host_log.void(&format!("the cache is out of use: {e}"));
            // For clients it has failed for good: what a client tries again is not what was lost.
            *failed = Some(StorageError::new(ErrorKind::Io, e.context.clone()));
        }
    }

    /// The pool goes on without it, as it has everything: the device is asked for nothing any more.
    pub fn retire(&self) {
        let text = format!("the cache {} was taken out", self.0.path);
        let why = StorageError::new(ErrorKind::Io, text);
        self.0.failed.borrow_mut().get_or_insert(why);
        self.set_aside();
    }

    /// A client's write of data ended like this: whether the file system under the cache is full.
    /// That is over some time after the last write that found no space: others may need none.
    pub fn note_written(&self, outcome: &Result<()>, now: Instant) {
        let mut full = self.0.full.borrow_mut();
        match (outcome, &*full) {
            (Err(e), _) if e.kind == ErrorKind::NoSpace => *full = Some((e.clone(), now)),
            (Ok(()), Some((_, last))) if now.since(*last) >= SPACE_IS_BACK => *full = None,
            _ => {}
        }
    }

    /// Why it takes no writes, or none for now.
    pub fn error(&self) -> Option<String> {
        let failed = self.0.failed.borrow().as_ref().map(|e| e.to_string());
        failed.or_else(|| self.0.full.borrow().as_ref().map(|(e, _)| e.to_string()))
    }

    /// True if the background work has ended, and no room will be made any more.
    pub fn is_closed(&self) -> bool {
        self.0.closed.get()
    }

    /// An error if it is closed.
    pub fn check_open(&self) -> Result<()> {
        if self.is_closed() {
            Err(StorageError::new(ErrorKind::Io, "the cache is closed"))
        } else {
            Ok(())
        }
    }

    pub fn close(&self) {
        self.0.closed.set(true);
    }

    /// True if the pool has all that it had, and goes on alone.
    pub fn is_aside(&self) -> bool {
        self.0.aside.get()
    }

    pub fn set_aside(&self) {
        self.0.aside.set(true);
    }
}

/// The device has made durable all that was written to it before it was asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Durable(());

#[cfg(test)]
impl Durable {
    /// For the journal's tests, which have no device.
    pub fn supposed() -> Durable {
        Durable(())
    }
}

/// Asks the device to make durable what was written to it.
pub(crate) struct Barrier {
    device: Device,
    health: Health,
    /// Held while the device is asked.
    alone: Semaphore,
}

impl Barrier {
    pub fn new(device: &Device, health: &Health) -> Barrier {
        Barrier { device: device.clone(), health: health.clone(), alone: Semaphore::new(1) }
    }

    /// Makes all writes that completed before durable. `what` is for errors.
    pub async fn flush(&self, class: Class, what: &str) -> Result<Durable> {
        let _alone = self.alone.acquire(1).await;
        self.health.check()?;
        let outcome = self.device.flush(class).await;
        self.durable_if(outcome, what)
    }

    /// Writes a block, and makes it durable; what was written before may be or not.
    pub async fn write(
        &self,
        class: Class,
        offset: u64,
        data: SliceList,
        what: &str,
    ) -> Result<Durable> {
        let _alone = self.alone.acquire(1).await;
        self.health.check()?;
        let outcome = self.device.write_durable(class, offset, data).await;
        self.durable_if(outcome, what)
    }

    fn durable_if(&self, outcome: std::result::Result<(), IoError>, what: &str) -> Result<Durable> {
        if let Err(e) = outcome {
            let text = format!(
                "cache device {}: {what}: {e}; unflushed writes may be lost; flushed data is safe; \
                 restart forebay",
                self.health.0.path
            );
            self.health.fail(&StorageError::new(ErrorKind::Io, text));
        }
        // A write may have failed for good meanwhile.
        self.health.check().map(|()| Durable(()))
    }
}
