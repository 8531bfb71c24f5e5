//! Commits of the pool: each of them waits until the journal has what the cache has dropped for
//! direct writes, and says in the superblock which cache belongs to the pool.

use std::rc::Rc;

use base::Result;
use pool::{CacheJournal, CacheMark, JournalDurable};
use queue::Class;

use crate::core::Core;
use crate::transfer::journal_writer::JournalWriter;

/// The answers to commits of the pool, each of which asks what it has to wait for.
pub(crate) struct PoolCommits {
    core: Core,
    journal: Rc<JournalWriter>,
}

impl PoolCommits {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core, journal: &Rc<JournalWriter>) -> Rc<PoolCommits> {
        Rc::new(PoolCommits { core: core.clone(), journal: journal.clone() })
    }

    /// The statement of the pool's commits on a cache whose journal is not written any more.
    pub(crate) fn last_word(&self) -> CacheMark {
        let clean_void = {
            let st = self.core.state();
            st.health().has_failed() || st.journal().durable() < st.dropped()
        };
        self.mark(clean_void)
    }

    /// Makes durable what the journal has to know before the pool: what the cache dropped for
    /// direct writes. Every commit of the pool waits for it. Returns what is durable then.
    async fn records_durable(&self) -> Result<Option<CacheMark>> {
        let target = self.core.state().dropped();
        if self.core.health().is_aside() {
            return Ok(None);
        }
        let outcome = self.journal.durable(target, Class::Commit).await;
        if self.core.health().is_aside() {
            // Set aside meanwhile: the commit that waits says so too.
            return Ok(None);
        }
        if self.core.has_failed() {
            // Also if that was durable: direct writes have changed the pool since, and the cache
            // was not told.
            return Ok(Some(self.last_word()));
        }
        outcome?;
        Ok(Some(self.mark(false)))
    }

    /// The mark of this cache in the pool's superblock.
    pub(crate) fn mark(&self, clean_void: bool) -> CacheMark {
        let entry = self.core.state().journal().durable_entry();
        CacheMark {
            uuid: self.core.device().uuid(),
            entry,
            opened: self.core.pool().opened(),
            clean_void,
        }
    }
}

impl CacheJournal for PoolCommits {
    fn make_durable(self: Rc<Self>) -> JournalDurable {
        Box::pin(async move { self.records_durable().await })
    }
}
