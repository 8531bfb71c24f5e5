//! Direct writes, straight to the pool: of volumes that write through or around the cache.
//!
//! **Coherence.** What the cache has of the range is dropped first, and a read that begins before
//! the pool has the new blocks is not kept. The drop is in the journal, and no commit of the pool
//! becomes durable before the journal is: after a crash a block that the cache still has is
//! therefore no older than the pool's. Such a volume has nothing dirty here; switching to these
//! modes sees to that. A cache that has failed is not asked any more by such volumes
//! ([`crate::health::failed_dirty`]).

use base::{BLOCK, BlockRange, ErrorKind, Lba, Result, Slice, SliceList, StorageError, VolumeId};
use format::cache::journal::blocks_for;
use pool::CacheMark;
use queue::Class;

use crate::Cache;
use crate::store::index::STEP_EXTENTS;
use crate::store::key::END;
use crate::store::promotions::MAX_BLOCKS;
use crate::store::ring_room::nodes_for;

/// A direct write is changing a range in the pool. Reads of the range are not kept until this is
/// dropped.
#[must_use = "the change has ended when it is dropped"]
struct Direct<'c> {
    cache: &'c Cache,
    volume: VolumeId,
    range: BlockRange,
}

/// Nothing of a volume is kept until this is dropped.
#[must_use = "what is read is kept again when it is dropped"]
pub struct NotKept<'c> {
    _direct: Direct<'c>,
}

impl Drop for Direct<'_> {
    fn drop(&mut self) {
        self.cache.state_mut().promotions.end_direct(self.volume, self.range);
    }
}

impl Cache {
    /// Writes whole blocks to the pool; with `keep` they are kept here too, as clean, when the pool
    /// has committed them.
    pub async fn write_direct(
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
        let sequential = self.clients().follow_write(volume, lba, blocks);
        let direct = self.begin_direct(volume, BlockRange::of(lba, blocks), false).await?;
        let outcome = self.in_pool(|| self.pool().write(volume, lba, &data)).await;
        drop(direct);
        if sequential || !keep {
            self.state_mut().bypassed(blocks);
        } else if outcome.is_ok()
            && let Some(promotion) = self.begin_keeping(volume, lba, blocks)
        {
            self.keep(promotion, SliceList::from_iter([data]));
        }
        outcome
    }

    /// Changes the pool. If that has no room, what is dirty is published first, which may
    /// give some back.
    async fn in_pool<F: Future<Output = Result<()>>>(&self, change: impl Fn() -> F) -> Result<()> {
        for _ in 0..2 {
            match change().await {
                Err(e)
                    if e.kind == ErrorKind::NoSpace && !self.has_failed() && !self.is_aside() =>
                {
                    self.publish_for_room().await.map_err(|_| e)?;
                }
                outcome => return outcome,
            }
        }
        change().await
    }

    /// Unmaps blocks in the pool.
    pub async fn discard_direct(&self, volume: VolumeId, lba: Lba, end: Lba) -> Result<()> {
        let _direct = self.begin_direct(volume, BlockRange::new(lba, end), false).await?;
        self.in_pool(|| self.pool().discard(volume, lba, end)).await
    }

    /// Drops all that the cache has of a volume, which has nothing dirty here, while its requests
    /// go on. It is durable when this returns, and nothing of the volume is kept until the guard is
    /// dropped.
    pub async fn drop_volume(&self, volume: VolumeId) -> Result<NotKept<'_>> {
        let direct = self.begin_direct(volume, BlockRange::new(Lba(0), END), false).await?;
        self.flush().await?;
        self.state_mut().forget_volume(volume);
        Ok(NotKept { _direct: direct })
    }

    /// Lets `change` change `range` of a volume in the pool, when the cache has dropped what it has
    /// of that. To be called [between passes](Cache::between_passes).
    pub async fn change_direct(
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
        self.clients().note_request(self.rt().now());
        self.state_mut().promotions.begin_direct(volume, range);
        let direct = Direct { cache: self, volume, range };
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
                self.room_between_passes().await?
            } else {
                self.room_for_request(blocks_for(1, 0), nodes_for(STEP_EXTENTS as u64)).await?
            };
            let upto = self
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
                self.rt().yield_now().await;
            }
        }
        Ok(())
    }

    /// Makes durable what the journal has to know before the pool: what the cache dropped for
    /// direct writes. Every commit of the pool waits for it. Returns what is durable then.
    pub(crate) async fn records_durable(&self) -> Result<Option<CacheMark>> {
        let target = self.state().dropped();
        if self.health().is_aside() {
            return Ok(None);
        }
        let outcome = self.durable(target, Class::Commit).await;
        if self.health().is_aside() {
            // Set aside meanwhile: the commit that waits says so too.
            return Ok(None);
        }
        if self.has_failed() {
            // Also if that was durable: direct writes have changed the pool since, and the cache
            // was not told.
            return Ok(Some(self.last_word()));
        }
        outcome?;
        Ok(Some(self.mark(false)))
    }

    /// The mark of this cache in the pool's superblock.
    pub(crate) fn mark(&self, clean_void: bool) -> CacheMark {
        let entry = self.state().journal().durable_entry();
        CacheMark { uuid: self.device().uuid(), entry, opened: self.pool().opened(), clean_void }
    }

    /// True if the pool has all of a volume.
    pub fn is_written_back(&self, volume: VolumeId) -> bool {
        let st = self.state();
        st.dirty_volumes().last(Some(volume)) <= st.index.published()
    }

    /// True if the pool has everything.
    pub(crate) fn all_written_back(&self) -> bool {
        let st = self.state();
        st.dirty_volumes().last(None) <= st.index.published()
    }

    /// True if the pool has everything, and no pass has yet to be told of what came to nothing: of
    /// blocks of a volume that was deleted, say.
    pub(crate) fn holds_nothing(&self) -> bool {
        let (open, cut) = self.state().buckets.unpublished_blocks();
        open + cut == 0 && self.all_written_back()
    }

    /// True if the cache has failed while it held nothing that the pool lacks, or is being detached
    /// and was closed: the pool goes on alone.
    pub fn is_aside(&self) -> bool {
        self.health().is_aside()
    }
}
