//! The end of the use of a cache device that has failed ([`crate::device::flush_barrier`]), and
//! whether one answers at all.

use std::fmt::Display;

use base::{ErrorKind, Result, SliceList, StorageError, worth_telling};
use format::cache::superblock::{CacheSuperblock, SLOTS};
use pool::Link;
use queue::Class;

use crate::Cache;
use crate::device::flush_barrier::Durable;

impl Cache {
    /// Makes all writes that completed before durable.
    pub(crate) async fn flush_device(&self, class: Class, what: &str) -> Result<Durable> {
        self.device().flush(class, what).await.inspect_err(|e| self.fail(e))
    }

    /// Writes a block, and makes it durable; earlier writes may be durable then or not.
    pub(crate) async fn write_durable(
        &self,
        class: Class,
        offset: u64,
        data: SliceList,
        what: &str,
    ) -> Result<Durable> {
        self.device().write_durable(class, offset, data, what).await.inspect_err(|e| self.fail(e))
    }

    /// True if the cache device has failed: what this cache alone has cannot be read, and the cache
    /// does not learn of further writes.
    pub fn has_failed(&self) -> bool {
        self.health().has_failed()
    }

    /// An error if the cache device has failed, or does not give even one of its superblocks: then
    /// what could not be read of it, which is `what`, is not known to be lost.
    pub(crate) async fn check_answers(&self, class: Class, what: impl Display) -> Result<()> {
        if !self.has_failed() {
            for slot in 0..SLOTS {
                let at = CacheSuperblock::offset_of(slot);
                if self.device().queue().read_block_again(class, at).await.is_ok() {
                    return Ok(());
                }
            }
        }
        let (why, todo) = match self.has_failed() {
            true => ("has failed", ", then restart forebay: what was flushed is in the cache"),
            false => ("answers nothing", ""),
        };
        let text = format!(
            "{what} cannot be read: the cache's device {} {why}; see to its path, cable or \
             power{todo}",
            self.path()
        );
        if worth_telling(self.state_mut().count_unread()) {
            tracing::error!("{text}");
        }
        Err(StorageError::new(ErrorKind::Io, text))
    }

    /// An error if nothing may be written to the device any more.
    pub(crate) fn check_failed(&self) -> Result<()> {
        if !self.has_failed()
            && let Some(why) = self.pool().other_writer()
        {
            self.health().fail(&why);
            // Waiting tasks are told by a task of its own: the caller may hold the state.
            let cache = self.clone();
            self.rt().detach(async move { cache.fail(&why) });
        }
        self.health().check()
    }

    /// Fails when the cache is closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        self.health().check_open()
    }

    /// Ends the use of the cache device: all that needs it fails, and all tasks that wait for it
    /// are woken.
    pub(crate) fn fail(&self, e: &StorageError) {
        self.health().fail(e);
        self.set_aside_if_failed();
        self.wake_all();
    }

    /// Wakes all tasks that wait for something that will not come.
    fn wake_all(&self) {
        self.state().journal().room().wake_all();
        self.wakes().all();
        self.admission().wake();
        self.group_commits().wake();
        self.checkpoints().wake();
    }

    /// The pool goes on alone from now on, and says so with its next commit: the pool must have all
    /// that this cache had, and clients may ask for nothing meanwhile. The device is not waited
    /// for. Nothing is written to the cache any more, so whatever the pool changes, a crash before
    /// that commit leaves both as they are now.
    pub fn leave(&self) {
        self.health().retire();
        self.pool().link_journal(Link::None);
        self.pool().drop_cache();
        self.wake_all();
    }

    /// All that waits for the device of a cache that has [left](Cache::leave) fails at once: the
    /// device may hang.
    pub fn give_up_device(&self) {
        assert!(self.is_aside(), "the pool does not need it");
        self.device().queue().give_up();
    }

    /// Sets a cache that has failed aside, once the pool has everything.
    pub(crate) fn set_aside_if_failed(&self) {
        // The pool cannot say so either where another process writes to it.
        let can_say = self.pool().other_writer().is_none();
        if self.has_failed() && can_say && !self.is_aside() && self.all_written_back() {
            // The next commit says that there is no cache; whatever it still holds never counts
            // again.
            tracing::error!(cache = %self.path(), "the failed cache held no dirty data: it was \
                detached; the pool serves alone");
            self.health().set_aside();
            self.pool().drop_cache();
        }
    }
}

#[cfg(test)]
#[path = "fail_tests.rs"]
mod tests;
