//! Direct writes, straight to the pool: of volumes that write through or around the cache.
//!
//! **Coherence.** What the cache has of the range is dropped first, and a read that begins before
//! the pool has the new blocks is not kept. The drop is in the journal, and no commit of the pool
//! becomes durable before the journal is: after a crash a block that the cache still has is
//! therefore no older than the pool's. Such a volume has nothing dirty here; switching to these
//! modes sees to that. A cache that has failed is not asked any more by such volumes
//! ([`crate::lifecycle::failed_dirty`]).

use std::rc::Rc;

use base::{BLOCK, BlockRange, ErrorKind, Lba, Result, Slice, SliceList, StorageError, VolumeId};
use format::cache::journal::blocks_for;
use queue::Class;

use crate::core::Core;
use crate::io::promote::Promoter;
use crate::space::request_room::Room;
use crate::store::index::STEP_EXTENTS;
use crate::store::key::END;
use crate::store::promotions::MAX_BLOCKS;
use crate::store::ring_room::nodes_for;
use crate::transfer::journal_writer::JournalWriter;
use crate::writeback::pass_runner::PassRunner;

/// A direct write is changing a range in the pool. Reads of the range are not kept until this is
/// dropped.
#[must_use = "the change has ended when it is dropped"]
struct Direct<'c> {
    core: &'c Core,
    volume: VolumeId,
    range: BlockRange,
}

/// Nothing of a volume is kept until this is dropped.
#[must_use = "what is read is kept again when it is dropped"]
pub struct DropGuard<'c> {
    _direct: Direct<'c>,
}

impl Drop for Direct<'_> {
    fn drop(&mut self) {
        self.core.state_mut().promotions.end_direct(self.volume, self.range);
    }
}

/// Writes past the cache, of volumes that write through or around it.
pub(crate) struct DirectWriter {
    core: Core,
    journal: Rc<JournalWriter>,
    room: Rc<Room>,
    promoter: Rc<Promoter>,
    passes: Rc<PassRunner>,
}

impl DirectWriter {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        journal: &Rc<JournalWriter>,
        room: &Rc<Room>,
        promoter: &Rc<Promoter>,
        passes: &Rc<PassRunner>,
    ) -> Rc<DirectWriter> {
        Rc::new(DirectWriter {
            core: core.clone(),
            journal: journal.clone(),
            room: room.clone(),
            promoter: promoter.clone(),
            passes: passes.clone(),
        })
    }

    /// See [`crate::Cache::write_direct`].
    pub(crate) async fn write_direct(
        &self,
        volume: VolumeId,
        lba: Lba,
        data: &Slice,
        keep: bool,
    ) -> Result<()> {
        let mut at = 0;
        while at < data.len() {
            let n = (data.len() - at).min(MAX_BLOCKS as usize * BLOCK);
            self.write_direct_step(volume, lba.plus((at / BLOCK) as u64), data.slice(at, n), keep)
                .await?;
            at += n;
        }
        Ok(())
    }

    async fn write_direct_step(
        &self,
        volume: VolumeId,
        lba: Lba,
        data: Slice,
        keep: bool,
    ) -> Result<()> {
        let blocks = (data.len() / BLOCK) as u64;
        let sequential = self.core.clients().follow_write(volume, lba, blocks);
        let direct = self.begin_direct(volume, BlockRange::of(lba, blocks), false).await?;
        let outcome = self.in_pool(|| self.core.pool().write(volume, lba, &data)).await;
        drop(direct);
        if sequential || !keep {
            self.core.state_mut().bypassed(blocks);
        } else if outcome.is_ok()
            && let Some(promotion) = self.promoter.begin_keeping(volume, lba, blocks)
        {
            self.promoter.keep(promotion, SliceList::from_iter([data]));
        }
        outcome
    }

    /// Changes the pool. If that has no room, what is dirty is published first, which may
    /// give some back.
    async fn in_pool<F: Future<Output = Result<()>>>(&self, change: impl Fn() -> F) -> Result<()> {
        for _ in 0..2 {
            match change().await {
                Err(e)
                    if e.kind == ErrorKind::NoSpace
                        && !self.core.has_failed()
                        && !self.core.is_aside() =>
                {
                    self.passes.publish_for_room().await.map_err(|_| e)?;
                }
                outcome => return outcome,
            }
        }
        change().await
    }

    /// See [`crate::Cache::discard_direct`].
    pub(crate) async fn discard_direct(&self, volume: VolumeId, lba: Lba, end: Lba) -> Result<()> {
        let _direct = self.begin_direct(volume, BlockRange::new(lba, end), false).await?;
        self.in_pool(|| self.core.pool().discard(volume, lba, end)).await
    }

    /// See [`crate::Cache::drop_volume`].
    pub(crate) async fn drop_volume(&self, volume: VolumeId) -> Result<DropGuard<'_>> {
        let direct = self.begin_direct(volume, BlockRange::new(Lba(0), END), false).await?;
        self.journal.flush().await?;
        self.core.state_mut().forget_volume(volume);
        Ok(DropGuard { _direct: direct })
    }

    /// See [`crate::Cache::change_direct`].
    pub(crate) async fn change_direct(
        &self,
        volume: VolumeId,
        range: BlockRange,
        change: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        let _direct = self.begin_direct(volume, range, true).await?;
        change.await
    }

    /// Drops what the cache has of the range, and keeps reads of it from being kept until the guard
    /// is dropped.
    async fn begin_direct(
        &self,
        volume: VolumeId,
        range: BlockRange,
        between_passes: bool,
    ) -> Result<Direct<'_>> {
        self.core.clients().note_request(self.core.rt().now());
        self.core.state_mut().promotions.begin_direct(volume, range);
        let direct = Direct { core: &self.core, volume, range };
        self.drop_clean(volume, range, between_passes).await?;
        Ok(direct)
    }

    async fn drop_clean(
        &self,
        volume: VolumeId,
        range: BlockRange,
        between_passes: bool,
    ) -> Result<()> {
        let BlockRange { from: mut at, end } = range;
        while at < end {
            let mut room = if between_passes {
                self.room.room_between_passes().await?
            } else {
                self.room.room_for_request(blocks_for(1, 0), nodes_for(STEP_EXTENTS as u64)).await?
            };
            let upto = self
                .core
                .resident(Class::Foreground, |st| {
                    let left = BlockRange::new(at, end);
                    let (old, upto) = st.index.overlapping_step(&st.buckets, volume, left)?;
                    if old.is_empty() {
                        return Ok(upto);
                    }
                    if old.iter().any(|e| st.index.unpublished(e).is_some()) {
                        let text = format!(
                            "volume {volume} has blocks at {at} that are not in \
                             the pool yet; set its mode to writeback, then again"
                        );
                        return Err(StorageError::new(ErrorKind::Invalid, text).into());
                    }
                    st.drop_keys(&mut room, volume, BlockRange::new(at, upto))?;
                    Ok(upto)
                })
                .await?;
            at = upto;
            if at < end {
                self.core.rt().yield_now().await;
            }
        }
        Ok(())
    }
}
