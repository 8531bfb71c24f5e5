//! Whether the cache device may still be written: one value, and the only door to what is durable.
//!
//! **Fault model.** A device that could not make something durable says so once, to one of those that asked; what it lost cannot be
//! known, reads may still see it, and the next flush ends well without it. So what was not durable before the first such error
//! never is. Of two requests that are under way at the same time it is chance which of them hears of the loss.
//!
//! 1. Only [`Cache::flush_device`] and [`Cache::write_durable`] ask the device to make something durable, and one at a time.
//! 2. An error ends the use of the device ([`Cache::fail`]) before the next one may ask. From then on both refuse.
//! 3. [`Durable`] is the proof that one of them ended well. Nothing else makes one, and whatever enters that something is durable
//!    takes one: the end of a group commit and of a checkpoint, and with them the mark that commits of the pool carry, the room that
//!    is freed in the journal's ring, and the buckets that are.

use base::SliceList;
use pool::{ErrorKind, PoolError, Result};
use queue::Class;

use crate::Cache;

/// Why nothing can be made durable any more, if so.
#[derive(Default)]
pub(crate) struct Health {
    failed: Option<PoolError>,
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

impl Health {
    /// True if nothing can be made durable any more.
    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// The error with which it failed, if it has.
    pub fn check(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// True if it had not failed before.
    fn fail(&mut self, e: &PoolError) -> bool {
        let first = self.failed.is_none();
        self.failed.get_or_insert_with(|| e.clone());
        first
    }
}

impl Cache {
    /// Makes all writes that completed before durable.
    pub(crate) async fn flush_device(&self, class: Class, what: &str) -> Result<Durable> {
        let _alone = self.0.syncing.acquire(1).await;
        self.check_failed()?;
        let outcome = self.0.device.flush(class).await;
        self.durable_if(outcome, what)
    }

    /// Writes a block, and makes it durable; what was written before may be or not.
    pub(crate) async fn write_durable(
        &self,
        class: Class,
        offset: u64,
        data: SliceList,
        what: &str,
    ) -> Result<Durable> {
        let _alone = self.0.syncing.acquire(1).await;
        self.check_failed()?;
        let outcome = self.0.device.write_durable(class, offset, data).await;
        self.durable_if(outcome, what)
    }

    fn durable_if(&self, outcome: std::result::Result<(), base::IoError>, what: &str) -> Result<Durable> {
        if let Err(e) = outcome {
            let text = format!(
                "cache device {}: {what}: {e}; what was written since the flush before may be lost, what was flushed until then is \
                 not: restart forebay, which goes on from there",
                self.0.path
            );
            let e = PoolError::new(ErrorKind::Io, text);
            self.fail(&e);
            return Err(e);
        }
        // A write may have failed for good meanwhile.
        self.check_failed()?;
        Ok(Durable(()))
    }

    /// True if the cache device is of no use any more: what this cache alone has cannot be had, and
    /// it is told of nothing else.
    pub fn has_failed(&self) -> bool {
        self.state().health.has_failed()
    }

    pub(crate) fn check_failed(&self) -> Result<()> {
        self.state().health.check()
    }

    /// The cache device is of no use any more: nothing that needs it goes on.
    pub(crate) fn fail(&self, e: &PoolError) {
        if self.state_mut().health.fail(e) {
            tracing::error!(cache = %self.0.path, "the cache is out of use: {e}");
        }
        self.state().journal.room().wake_all();
        self.set_aside_if_failed();
        self.0.room.notify();
        self.0.pressed.notify();
        self.0.admission.wake();
        self.0.flushed.notify();
        self.0.checkpoint_moved.notify();
    }

    /// Sets a cache that has failed aside, once the pool has everything.
    pub(crate) fn set_aside_if_failed(&self) {
        if self.has_failed() && !self.0.aside.get() && self.all_written_back() {
            // The next commit says that there is no cache; whatever it still holds never counts again.
            tracing::error!(cache = %self.0.path, "it held nothing that the pool lacks: the pool goes on alone, and slower; attach another");
            self.0.aside.set(true);
            self.0.pool.drop_cache();
        }
    }
}

#[cfg(test)]
#[path = "durable_tests.rs"]
mod tests;
