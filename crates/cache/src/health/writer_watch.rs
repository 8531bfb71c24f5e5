//! Looks whether another process writes to the cache's device, as the pool does of its devices
//! (`pool/src/transfer/writer_watch.rs`): a slot of the superblock is read before it is written,
//! and nothing is written later than a second after all slots were read.
//!
//! This cache is out of use if another process has written to its device, or if the pool has found
//! another writer: no start would ever see what the cache would still take.

use std::rc::Rc;

use base::{ErrorKind, Result, StorageError};
use format::FormatError;
use format::cache::superblock::{CacheSuperblock, SLOTS};
use pool::LookSchedule;
use queue::Class;
use rt::Reason;

use crate::core::Core;
use crate::health::fail::Failures;
use crate::job;

/// Looks for another process that writes to the cache's device.
pub(crate) struct WriterWatch {
    core: Core,
    failures: Rc<Failures>,
}

impl WriterWatch {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core, failures: &Rc<Failures>) -> Rc<WriterWatch> {
        Rc::new(WriterWatch { core: core.clone(), failures: failures.clone() })
    }

    /// Waits for a look, before anything is written to the device, unless one was taken not long
    /// ago. Fails if the cache has failed.
    pub(crate) async fn check_alone(&self) -> Result<()> {
        self.failures.check_failed()?;
        if self.looks().counts(self.core.rt().now()) {
            return Ok(());
        }
        self.core.rt().waits_for_job(Reason::Look, job::LOOK, Box::pin(self.wait_for_look())).await;
        self.failures.check_failed()
    }

    fn looks(&self) -> &LookSchedule {
        &self.core.device().writers().looks
    }

    async fn wait_for_look(&self) {
        loop {
            let ended = self.looks().ended();
            let over = self.core.health().is_closed() || self.failures.check_failed().is_err();
            if over || self.looks().counts(self.core.rt().now()) {
                return;
            }
            ended.await;
        }
    }

    /// Takes looks when they are asked for, until the cache is closed.
    pub(crate) fn begin_looking(self: &Rc<Self>) {
        let this = self.clone();
        self.core.rt().detach_job(job::LOOK, async move {
            loop {
                let asked = this.looks().asked();
                if this.core.health().is_closed() {
                    return;
                }
                match this.looks().is_asked() {
                    true => this.look_around().await,
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
    async fn look_around(self: &Rc<Self>) {
        let look = |slot| {
            let this = self.clone();
            self.core.rt().spawn(async move { this.look_into(slot).await })
        };
        let looks: Vec<_> = (0..SLOTS).map(look).collect();
        for one in looks {
            one.await;
        }
        self.looks().note(self.core.rt().now());
    }

    /// Looks into the slot in which the next superblock is to be written.
    pub(crate) async fn look_before_superblock(&self) -> Result<()> {
        let next = self.core.checkpoints().durable().sequence() + 1;
        self.look_into(next % SLOTS).await;
        self.failures.check_failed()
    }

    async fn look_into(&self, slot: u64) {
        let at = CacheSuperblock::offset_of(slot);
        let read = self.core.device().queue().read_blocks(Class::Commit, at, 1).await;
        let Ok(block) = read.get(0) else { return };
        let own = self.core.device().writers().incarnation();
        let theirs = match CacheSuperblock::decode(block) {
            Ok(sb) => {
                let newest = self.core.checkpoints().durable().sequence();
                if !self.core.device().writers().is_anothers(&sb, newest) {
                    return;
                }
                match sb.uuid == self.core.device().uuid() {
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
            self.core.path()
        );
        let e = StorageError::new(ErrorKind::Foreign, text);
        self.core.pool().end_for_other_writer(e.clone());
        self.failures.fail(&e);
    }
}

#[cfg(test)]
#[path = "writer_watch_tests.rs"]
mod tests;
