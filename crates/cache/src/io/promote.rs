//! Promotion: what was read from the pool, or written straight to it, is kept, and entered as
//! clean.
//!
//! A clean block must be what the pool holds, also after a crash. So a write that overlaps spoils
//! what is under way; and what a commit of the pool has yet to make durable is kept back until that
//! has happened: were it entered before, a checkpoint might outlive it.
//!
//! Reads of at most `promote_blocks` are kept, and no sequential streams
//! ([`crate::policy::streams`]). Blocks that were never written are not kept: the pool tells of
//! them with the data, and tells it again as fast as the cache could. So a client that reads an
//! empty volume pushes nothing out. Of a read that meets such holes, up to [`MAX_RUNS`] runs of
//! blocks are kept.

use std::rc::Rc;

use base::checksum::block_crcs;
use base::{BLOCK, BlockRange, Crc, Epoch, Lba, Result, Slice, SliceList, VolumeId};
use format::cache::index::Cover;
use format::cache::journal::blocks_for;
use queue::Class;
use smallvec::SmallVec;

use crate::core::Core;
use crate::core::pins::TakenBlocks;
use crate::job;
use crate::settings::Promote;
use crate::space::request_room::Room;
use crate::store::buckets::Buckets;
use crate::store::key::{Body, Crcs, IndexKey};
use crate::store::promotions::{MAX_BLOCKS, PromotionKey};
use crate::store::ring_room::{JournalRoom, nodes_for};
use crate::store::state::State;
use crate::store::taken::{TakenRun, extents};
use crate::transfer::bucket_io::BucketIo;

/// Runs that are kept of one read which met holes.
const MAX_RUNS: usize = 8;

/// Blocks that are to be kept. They are watched for writes until this is dropped.
#[must_use = "it is kept by `keep`, and given up when it is dropped"]
pub(crate) struct Promotion {
    core: Core,
    key: PromotionKey,
    stage: Stage,
}

/// The progress of a promotion.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The data is not there yet.
    Begun,
    /// The data is being written into buckets.
    Running,
    /// The state has the promotion until a commit of the pool has ended, or has given it up.
    HandedOver,
}

impl Drop for Promotion {
    fn drop(&mut self) {
        if self.stage != Stage::HandedOver {
            let mut st = self.core.state_mut();
            st.promotions.end(&self.key);
            if self.stage == Stage::Running {
                st.promotions.ran();
            }
        }
    }
}

/// Blocks are being written into buckets as those of a promotion are, until this is dropped.
pub(crate) struct PromotionGuard(Core);

impl Drop for PromotionGuard {
    fn drop(&mut self) {
        self.0.state_mut().promotions.ran();
    }
}

/// Keeps blocks that were read from the pool, or written to it directly.
pub(crate) struct Promoter {
    core: Core,
    bucket_io: Rc<BucketIo>,
    room: Rc<Room>,
}

impl Promoter {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core, bucket_io: &Rc<BucketIo>, room: &Rc<Room>) -> Rc<Promoter> {
        Rc::new(Promoter { core: core.clone(), bucket_io: bucket_io.clone(), room: room.clone() })
    }

    fn promotion(self: &Rc<Self>, key: PromotionKey, stage: Stage) -> Promotion {
        Promotion { core: self.core.clone(), key, stage }
    }

    /// Counts something that is written into buckets as one of the promotions that are. `None`:
    /// there are as many as may be.
    pub(crate) fn begin_running(self: &Rc<Self>) -> Option<PromotionGuard> {
        let mut st = self.core.state_mut();
        if !st.promotions.may_run() {
            return None;
        }
        st.promotions.run();
        drop(st);
        Some(PromotionGuard(self.core.clone()))
    }

    /// Decides whether a read that missed is to be kept, and watches for writes to its blocks from
    /// now on. `ghosts` of them were here not long ago.
    pub(crate) fn begin_promotion(
        self: &Rc<Self>,
        volume: VolumeId,
        range: BlockRange,
        ghosts: u64,
    ) -> Option<Promotion> {
        if range.blocks() > self.core.settings().promote_blocks.min(MAX_BLOCKS) {
            return None;
        }
        if self.core.levels().is_low_on_buckets() {
            return None;
        }
        let mut st = self.core.state_mut();
        if !st.promotions.may_run() || st.health().has_failed() {
            return None;
        }
        let wanted = match self.core.settings().promote {
            Promote::Never => false,
            Promote::First => true,
            Promote::Second => st.doorkeeper.touch(volume, range.from),
        };
        if !wanted {
            return None;
        }
        // A write may have ended since the read was planned, before there was anything to spoil.
        if !st.is_of_the_pool(volume, range) {
            return None;
        }
        let key = st.watch(volume, range, ghosts)?;
        drop(st);
        Some(self.promotion(key, Stage::Begun))
    }

    /// Begins to keep what a direct write wrote. To be called in one go with the end of the write.
    pub(crate) fn begin_keeping(
        self: &Rc<Self>,
        volume: VolumeId,
        from: Lba,
        blocks: u64,
    ) -> Option<Promotion> {
        let key = self.core.state_mut().watch(volume, BlockRange::of(from, blocks), 0)?;
        Some(self.promotion(key, Stage::Begun))
    }

    /// Keeps the data of a promotion, now or when the pool has committed it.
    pub(crate) fn keep(self: &Rc<Self>, mut promotion: Promotion, data: SliceList) {
        let key = promotion.key;
        let (needs, committed) =
            (self.core.pool().edited(key.volume), self.core.pool().committed());
        let now = self.core.state_mut().promotions.keep(key, data, needs, committed);
        let Some(data) = now else {
            promotion.stage = Stage::HandedOver;
            return;
        };
        promotion.stage = Stage::Running;
        let this = self.clone();
        self.core
            .rt()
            .detach_job(job::PROMOTION, async move { this.promote(promotion, data).await });
    }

    /// Keeps what was written of the data of a promotion: between holes, in the order of the
    /// volume, up to [`MAX_RUNS`] runs.
    pub(crate) fn keep_written(self: &Rc<Self>, promotion: Promotion, found: &pool::Blocks) {
        let key = promotion.key;
        let mut runs: SmallVec<[(u64, SliceList); MAX_RUNS]> = SmallVec::new();
        // Each hole is one slice.
        let mut holes = found.holes.iter().peekable();
        let (mut at, mut end) = (0, 0);
        for slice in &found.data {
            let is_hole = holes.next_if(|hole| hole.0 == at).is_some();
            let from = at;
            at += (slice.len() / BLOCK) as u64;
            if is_hole {
                continue;
            }
            let is_full = runs.len() == MAX_RUNS;
            match runs.last_mut() {
                Some((_, data)) if end == from => data.push(slice.clone()),
                _ if is_full => break,
                _ => runs.push((from, SliceList::from_iter([slice.clone()]))),
            }
            end = at;
        }
        for (first, data) in runs {
            let blocks = (data.iter().map(|slice| slice.len()).sum::<usize>() / BLOCK) as u64;
            let from = key.from.plus(first);
            // In one step with the others: what has spoilt the whole has spoilt each part.
            let part = self.core.state_mut().promotions.part_of(&key, BlockRange::of(from, blocks));
            if let Some(part) = part {
                self.keep(self.promotion(part, Stage::Begun), data);
            }
        }
    }

    async fn promote(&self, promotion: Promotion, data: SliceList) {
        if let Err(e) = self.promote_blocks(&promotion.key, data).await {
            tracing::debug!("what was read was not kept: {e}");
        }
    }

    /// Plan, transfer, settle.
    async fn promote_blocks(&self, key: &PromotionKey, data: SliceList) -> Result<()> {
        let Some((mut taken, room, data)) = self.plan_promotion(key, data) else { return Ok(()) };
        self.bucket_io.write_taken(&mut taken, &data, Class::Promotion).await?;
        let crcs: Crcs = block_crcs(&data).collect();
        self.settle_promotion(key, room, &taken, &crcs).await
    }

    /// Takes blocks for what was read, as far as there is room: no client waits for it.
    fn plan_promotion(
        &self,
        key: &PromotionKey,
        data: SliceList,
    ) -> Option<(TakenBlocks, JournalRoom, Slice)> {
        self.core.state().promotions.good(key)?;
        if self.core.levels().is_low_on_buckets() {
            return None;
        }
        let blocks = data.iter().map(|s| s.len()).sum::<usize>() / BLOCK;
        let Some(room) = self.room.try_room(blocks_for(1, 0), nodes_for(blocks as u64)) else {
            self.core.wakes().checkpoint.notify();
            return None;
        };
        let whole = self.one_piece(data);
        let stream = self.core.state().promotions.stream(key);
        let taken = self.room.take_some(stream, blocks as u32);
        let blocks = taken.blocks() as usize;
        (blocks > 0).then(|| (taken, room, whole.slice(0, blocks * BLOCK)))
    }

    /// Enters what was kept, unless the blocks were written to meanwhile.
    async fn settle_promotion(
        &self,
        key: &PromotionKey,
        mut room: JournalRoom,
        taken: &[TakenRun],
        crcs: &[Crc],
    ) -> Result<()> {
        self.core
            .resident(Class::Promotion, |st| {
                let Some((volume, BlockRange { from, .. })) = st.promotions.good(key) else {
                    return Ok(());
                };
                let range = BlockRange::of(from, crcs.len() as u64);
                let found = st.index.overlapping(&st.buckets, volume, range, usize::MAX)?;
                // Data that was published before the promotion began is in what was read.
                let published = st.promotions.published(key);
                if found.iter().any(|e| !hides_nothing(e, published, &st.buckets)) {
                    return Ok(());
                }
                let parts = found.iter().any(|e| e.is_part() && !e.is_stale(&st.buckets));
                // A bucket counts the block of a published part: the journal has to know that it
                // does no more, as it does not learn of clean keys.
                if parts {
                    st.drop_keys(&mut room, volume, range)?;
                }
                let new = extents(volume, from, taken, crcs, Cover::ALL, None);
                st.promote(volume, range, &new)
            })
            .await
    }

    fn one_piece(&self, mut data: SliceList) -> Slice {
        if data.len() == 1
            && let Some(one) = data.pop()
        {
            return one;
        }
        let mut whole = self.core.rt().bufs().take(data.iter().map(|s| s.len()).sum());
        let mut at = 0;
        for part in &data {
            whole[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        whole.freeze()
    }

    /// Keeps blocks that waited for a commit of the pool.
    pub(crate) async fn keeper(self: &Rc<Self>) {
        while !self.core.health().is_closed() && !self.core.pool().is_closed() {
            let ended = self.core.pool().commit_ended();
            let committed = self.core.pool().committed();
            loop {
                let ready = self.core.state_mut().promotions.take_ready(committed);
                let Some((key, data)) = ready else { break };
                self.promote(self.promotion(key, Stage::Running), data).await;
            }
            ended.await;
        }
    }
}

impl State {
    /// True if the cache has nothing of a range, so that the pool's published image alone says what
    /// it holds; false also if a node of the index is not in memory.
    fn is_of_the_pool(&self, volume: VolumeId, range: BlockRange) -> bool {
        let published = self.index.published();
        let found = self.index.overlapping(&self.buckets, volume, range, usize::MAX);
        found.is_ok_and(|found| found.iter().all(|e| hides_nothing(e, published, &self.buckets)))
    }
}

/// True if the pool's image has, as of `published`, what a key names, or something newer.
fn hides_nothing(e: &IndexKey, published: Epoch, buckets: &Buckets) -> bool {
    match e.body {
        Body::Staged { .. } => e.written <= Some(published),
        // Of a part that is published, the pool has the whole.
        Body::Data { .. } if e.is_part() => e.written <= Some(published),
        _ => e.is_stale(buckets) && e.written <= Some(published),
    }
}

#[cfg(test)]
mod tests {
    use base::Duration;
    use pool::Pool;

    use super::*;
    use crate::Cache;
    use crate::Settings;
    use crate::testkit::{Lab, fill, fill_pool_alone, settings};

    #[test]
    fn reads_alone_have_the_index_written() {
        let lab = Lab::new();
        let (files, file) = (lab.files(), lab.file());
        lab.boot(move |rt| async move {
            let (pool, _) = Pool::open(&rt, files, pool::Settings::default()).await.unwrap();
            let settings = Settings { dirty_nodes: 2, ..settings() };
            let cache = Cache::open(&rt, &file, &pool, settings).await.unwrap();
            let a = pool.find_volume("a").unwrap().id;
            fill_pool_alone(&pool, a).await;
            let before = cache.status().index.checkpoints;
            for i in 0..400 {
                // Of the blocks below 1200 the odd ones are not in the cache.
                cache.read(a, Lba(1 + i * 14 % 1198), 1).await.unwrap();
                rt.sleep(Duration::from_millis(1)).await;
            }
            let now = cache.status();
            assert!(now.promoted > 50, "{}", now.promoted);
            assert!(now.index.checkpoints > before + 1, "{} checkpoints", now.index.checkpoints);
            assert!(now.index.unwritten_nodes < 10, "{} changed nodes", now.index.unwritten_nodes);
            cache.close().await.unwrap();
            pool.close().await.unwrap();
        });
    }

    #[test]
    fn what_was_forgotten_is_not_kept_after_that() {
        let lab = Lab::new();
        let (files, file) = (lab.files(), lab.file());
        lab.boot(move |rt| async move {
            let (pool, _) = Pool::open(&rt, files, pool::Settings::default()).await.unwrap();
            let cache = Cache::open(&rt, &file, &pool, settings()).await.unwrap();
            let a = pool.find_volume("a").unwrap().id;
            let keys = |from, end| {
                let st = &mut *cache.core().state_mut();
                let range = BlockRange::new(Lba(from), Lba(end));
                st.index.overlapping(&st.buckets, a, range, usize::MAX).unwrap().len()
            };
            // Two blocks were read; that of which the cache has no neighbours is forgotten before
            // it is kept.
            let mut late = Vec::new();
            for lba in [Lba(1), Lba(3600)] {
                cache.prefetch(a, lba, lba.plus(1)).await.unwrap();
                let key = cache
                    .flows()
                    .promoter
                    .begin_promotion(a, BlockRange::of(lba, 1), 0)
                    .expect("it is not there");
                late.push((key, pool.read(a, lba, 1).await.unwrap()));
            }
            cache.forget_from(a, Lba(3500)).await.unwrap();
            for (key, data) in late {
                cache.flows().promoter.keep(key, data);
            }
            rt.sleep(Duration::from_secs(1)).await;
            assert_eq!((keys(1, 2), keys(3500, 1 << 39)), (1, 0));
            cache.close().await.unwrap();
            pool.close().await.unwrap();
        });
    }

    /// A write may end between the plan of a read and its promotion: there is nothing to spoil.
    #[test]
    fn what_was_written_meanwhile_is_not_promoted() {
        let lab = Lab::new();
        lab.within_an_hour(settings(), move |cache, a| async move {
            let block = |lba| BlockRange::of(Lba(lba), 1);
            cache.prefetch(a, Lba(3500), Lba(3510)).await.unwrap();
            assert!(cache.flows().promoter.begin_promotion(a, block(3500), 0).is_some());
            fill(&cache, a, 3500, 1, 7).await;
            assert!(cache.flows().promoter.begin_promotion(a, block(3500), 0).is_none());
            assert!(cache.flows().promoter.begin_promotion(a, block(3501), 0).is_some());
        });
    }
}
