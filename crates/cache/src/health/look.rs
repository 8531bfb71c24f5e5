//! Looks whether another process writes to the cache's device, as the pool does of its devices
//! (`pool/src/transfer/look.rs`): a slot of the superblock is read before it is written, and
//! nothing is written later than a second after all slots were read.
//!
//! This cache is out of use if another process has written to its device, or if the pool has found
//! another writer: no start would ever see what the cache would still take.

use base::{ErrorKind, Result, StorageError};
use format::FormatError;
use format::cache::superblock::{CacheSuperblock, SLOTS};
use pool::Looks;
use queue::Class;
use rt::Reason;

use crate::{Cache, job};

impl Cache {
    /// Waits for a look, before anything is written to the device, unless one was taken not long
    /// ago. Fails if the cache has failed.
    pub(crate) async fn check_alone(&self) -> Result<()> {
        self.check_failed()?;
        if self.looks().counts(self.rt().now()) {
            return Ok(());
        }
        self.rt().waits_for_job(Reason::Look, job::LOOK, Box::pin(self.wait_for_look())).await;
        self.check_failed()
    }

    fn looks(&self) -> &Looks {
        &self.device().writers().looks
    }

    async fn wait_for_look(&self) {
        loop {
            let ended = self.looks().ended();
            let over = self.health().is_closed() || self.check_failed().is_err();
            if over || self.looks().counts(self.rt().now()) {
                return;
            }
            ended.await;
        }
    }

    /// Takes looks when they are asked for, until the cache is closed.
    pub(crate) fn begin_looking(&self) {
        let cache = self.clone();
        self.rt().detach_job(job::LOOK, async move {
            loop {
                let asked = cache.looks().asked();
                if cache.health().is_closed() {
                    return;
                }
                match cache.looks().is_asked() {
                    true => cache.look_around().await,
                    false => asked.await,
                }
            }
        });
    }

    /// No look is taken any more.
    pub(crate) fn end_looking(&self) {
        self.looks().wake_all();
    }

    /// Looks at all slots.
    async fn look_around(&self) {
        let look = |slot| {
            let cache = self.clone();
            self.rt().spawn(async move { cache.look_into(slot).await })
        };
        let looks: Vec<_> = (0..SLOTS).map(look).collect();
        for one in looks {
            one.await;
        }
        self.looks().note(self.rt().now());
    }

    /// Looks into the slot in which the next superblock is to be written.
    pub(crate) async fn look_before_superblock(&self) -> Result<()> {
        let next = self.checkpoints().durable().sequence() + 1;
        self.look_into(next % SLOTS).await;
        self.check_failed()
    }

    async fn look_into(&self, slot: u64) {
        let at = CacheSuperblock::offset_of(slot);
        let read = self.device().queue().read_blocks(Class::Commit, at, 1).await;
        let Ok(block) = read.get(0) else { return };
        let own = self.device().writers().incarnation();
        let theirs = match CacheSuperblock::decode(block) {
            Ok(sb) => {
                let newest = self.checkpoints().durable().sequence();
                if !self.device().writers().is_anothers(&sb, newest) {
                    return;
                }
                match sb.uuid == self.device().uuid() {
                    true => format!("start number {} of this cache", sb.incarnation),
                    false => "which has made a new cache there".to_owned(),
                }
            }
            Err(e @ (FormatError::Version { .. } | FormatError::Features { .. })) => {
                format!("a newer version of Forebay ({e})")
            }
            // Torn, perhaps by a write that is under way, or damaged.
            Err(_) => return,
        };
        let text = format!(
            "{}: another process writes to this cache at the same time, {theirs}; this one is \
             start number {own}. Both reach the same disk, from two machines or by two names of \
             it. Stop both, see that one alone can reach the disk, then run forebay check --data \
             before one is started",
            self.path()
        );
        let e = StorageError::new(ErrorKind::Foreign, text);
        self.pool().end_for_other_writer(e.clone());
        self.fail(&e);
    }
}

#[cfg(test)]
#[path = "look_tests.rs"]
mod tests;
