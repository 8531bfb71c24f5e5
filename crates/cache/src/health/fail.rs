//! The end of the use of a cache device that has failed ([`crate::device::flush_barrier`]), and
//! whether one answers at all.

use std::fmt::Display;
use std::rc::Rc;

use base::{ErrorKind, Result, SliceList, StorageError, worth_telling};
use format::cache::superblock::{CacheSuperblock, SLOTS};
use pool::Link;
use queue::Class;

use crate::core::Core;
use crate::device::flush_barrier::Durable;

/// The end of the use of the device of a cache that has failed, or that leaves its pool.
pub(crate) struct Failures {
    core: Core,
}

impl Failures {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core) -> Rc<Failures> {
        Rc::new(Failures { core: core.clone() })
    }

    /// Makes all writes that completed before durable.
    pub(crate) async fn flush_device(&self, class: Class, what: &str) -> Result<Durable> {
        self.core.device().flush(class, what).await.inspect_err(|e| self.fail(e))
    }

    /// Writes a block, and makes it durable; earlier writes may be durable then or not.
    pub(crate) async fn write_durable(
        &self,
        class: Class,
        offset: u64,
        data: SliceList,
        what: &str,
    ) -> Result<Durable> {
        self.core
            .device()
            .write_durable(class, offset, data, what)
            .await
            .inspect_err(|e| self.fail(e))
    }

    /// An error if the cache device has failed, or does not give even one of its superblocks: then
    /// what could not be read of it, which is `what`, is not known to be lost.
    pub(crate) async fn check_answers(&self, class: Class, what: impl Display) -> Result<()> {
        if !self.core.has_failed() {
            for slot in 0..SLOTS {
                let at = CacheSuperblock::offset_of(slot);
                if self.core.device().queue().read_block_again(class, at).await.is_ok() {
                    return Ok(());
                }
            }
        }
        let (why, todo) = match self.core.has_failed() {
            true => ("has failed", ", then restart forebay: what was flushed is in the cache"),
            false => ("answers nothing", ""),
        };
        let text = format!(
            "{what} cannot be read: the cache's device {} {why}; see to its path, cable or \
             power{todo}",
            self.core.path()
        );
        if worth_telling(self.core.state_mut().count_unread()) {
            tracing::error!("{text}");
        }
        Err(StorageError::new(ErrorKind::Io, text))
    }

    /// An error if nothing may be written to the device any more.
    pub(crate) fn check_failed(self: &Rc<Self>) -> Result<()> {
        if !self.core.has_failed()
            && let Some(why) = self.core.pool().other_writer()
        {
            self.core.health().fail(&why);
            // Waiting tasks are told by a task of its own: the caller may hold the state.
            let this = self.clone();
            self.core.rt().detach(async move { this.fail(&why) });
        }
        self.core.health().check()
    }

    /// Ends the use of the cache device: all that needs it fails, and all tasks that wait for it
    /// are woken.
    pub(crate) fn fail(&self, e: &StorageError) {
        self.core.health().fail(e);
        self.set_aside_if_failed();
        self.wake_all();
    }

    /// Wakes all tasks that wait for something that will not come.
    fn wake_all(&self) {
        self.core.state().journal().room().wake_all();
        self.core.wakes().all();
        self.core.admission().wake();
        self.core.group_commits().wake();
        self.core.checkpoints().wake();
    }

    /// See [`crate::Cache::leave`].
    pub(crate) fn leave(&self) {
        self.core.health().retire();
        self.core.pool().cache_link().link_journal(Link::None);
        self.core.pool().cache_link().drop_cache();
        self.wake_all();
    }

    /// See [`crate::Cache::give_up_device`].
    pub(crate) fn give_up_device(&self) {
        assert!(self.core.is_aside(), "the pool does not need it");
        self.core.device().queue().give_up();
    }

    /// Sets a cache that has failed aside, once the pool has everything.
    pub(crate) fn set_aside_if_failed(&self) {
        // The pool cannot say so either where another process writes to it.
        let can_say = self.core.pool().other_writer().is_none();
        if self.core.has_failed()
            && can_say
            && !self.core.is_aside()
            && self.core.levels().all_written_back()
        {
            // The next commit says that there is no cache; whatever it still holds never counts
            // again.
            tracing::error!(cache = %self.core.path(), "the failed cache held no dirty data: it \
                was detached; the pool serves alone");
            self.core.health().set_aside();
            self.core.pool().cache_link().drop_cache();
        }
    }
}

#[cfg(test)]
#[path = "fail_tests.rs"]
mod tests;
