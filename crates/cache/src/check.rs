//! The offline check of a cache device: verifies every structure, and writes nothing.
//!
//! In this order, each step standing on what the steps before have found:
//!
//! 1. superblocks, whether the cache is that of its pool, and the bucket table ([`device`])
//! 2. the index of the checkpoint, each node ([`walk`]) and each key ([`extents`]); then the
//!    buckets' counters against what the walk met ([`tally`])
//! 3. the journal ([`journal`]), applied in memory by the very code that does it when a cache is
//!    opened ([`crate::lifecycle::replay`])
//! 4. the index and the counters once more as they are then; keys against the pool's volumes; if
//!    asked for, all blocks that keys name are read and verified
//!
//! Step 3 and 4 need a checkpoint that is whole, because replay relies on it.
//!
//! Memory: what an open cache has of its buckets, eight bytes more of each, one bit of each block,
//! and a bounded number of nodes and data blocks.
//!
//! What is staged stands in the pool, whose own check verifies it. Here each block that a staged
//! key names has to be there, with the checksum that the key has; where the pool's check could not
//! read all that may tell of it, all counts as arrived.
//!
//! Legal, because a crash leaves it and nothing depends on it: the superblock slot that is written
//! next, and one slot of each table page, may hold anything; keys may be stale; entries of the
//! journal that no client was told of may be missing, and blocks that they name; there may be
//! blocks of volumes that were deleted or shrunk (a note tells of them).

use base::{BucketId, EntrySeq, Epoch, Generation};
use btree::{Cursor, Store, Tree};
use format::cache::bucket::{BucketKind, BucketRecord};
use format::cache::superblock::CacheSuperblock;
use pool::check::{CheckOptions, Image, Severity, Subject};
use queue::Class;
use rt::Rt;

use crate::buckets::Buckets;
use crate::device::file::CacheFile;
use crate::device::layout::Layout;
use crate::lifecycle::replay::{
    Replayer, counted_above, dirty_now, epoch_at, layout_of, record_now,
};
use crate::lifecycle::staged::{Committed, StagedVerifier};
use crate::policy::replacement::Policy;
use crate::store::index::{INDEX_TREE, Index};
use crate::store::load::read_node;
use checker::{Checker, GIVE_UP, Log, Source};
use extents::Pass;
use tally::Tally;

pub(crate) mod checker;
mod data;
mod device;
mod extents;
mod journal;
pub mod report;
mod tally;
pub(crate) mod walk;

pub use report::{Counts, Phase, Progress, Report, Standing};

/// Nodes that are kept while the replayed index is gone through.
const NODES: usize = 4096;
/// Nodes of these that are read ahead.
const AHEAD: usize = 32;
/// Verifies the cache on `file`, in front of the pool that `image` is of, offline.
pub async fn check(
    rt: &Rt,
    file: &CacheFile,
    image: &Image,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Report {
    let src = Source::new(rt, file);
    let log = Log::new(options.listed);
    let mut checker = Checker { src, log, options: *options, image, progress };
    let (slots, sb) = checker.superblocks().await;
    let standing = checker.standing(sb.as_ref());
    if let (Some(sb), Standing::Attached) = (&sb, standing) {
        checker.attached(sb, file).await;
    }
    checker.src.device.close();
    let log = checker.log;
    Report {
        path: file.path.clone(),
        uuid: sb.as_ref().map(|sb| pool::dump::hex(&sb.uuid)),
        standing,
        generation: sb.as_ref().map_or(0, |sb| sb.generation.0),
        sequence: sb.as_ref().map_or(0, |sb| sb.sequence),
        incarnation: sb.as_ref().map_or(0, |sb| sb.incarnation),
        slots,
        data: options.data,
        counts: log.counts,
        errors: log.total(Severity::Error),
        damaged_copies: log.total(Severity::DamagedCopy),
        notes: log.total(Severity::Note),
        problems: log.into_problems(),
    }
}

impl Checker<'_> {
    async fn attached(&mut self, sb: &CacheSuperblock, file: &CacheFile) {
        let layout = match layout_of(sb, file) {
            Ok(layout) => layout,
            Err(e) => {
                return self.log.error(Subject::Superblock, &file.path, e.to_string(), GIVE_UP);
            }
        };
        self.log.counts.buckets = layout.buckets.into();
        let before = self.log.total(Severity::Error);
        let records = self.table(sb, &layout).await;
        let whole = self.checkpoint(sb, &layout, records.as_deref()).await;
        self.lost_entries(sb, &layout).await;
        match records {
            Some(records) if whole && self.log.total(Severity::Error) == before => {
                self.replayed(sb, layout, records).await;
            }
            _ => {
                let what =
                    "the journal was not applied and no data read: what they rely on is not whole";
                self.log.note(Subject::Journal, &file.path, what);
            }
        }
    }

    /// The index as of the checkpoint, and the buckets' counters. False if a part of it cannot be
    /// read.
    async fn checkpoint(
        &mut self,
        sb: &CacheSuperblock,
        layout: &Layout,
        records: Option<&[BucketRecord]>,
    ) -> bool {
        let mut tally = Tally::new(layout);
        let generation = |bucket: usize| records.and_then(|f| f.get(bucket)).map(|f| f.generation);
        let above = counted_above(sb, self.image.published);
        let mut pass = Pass::over_checkpoint(layout, self.image, (above, sb.cut, sb.epoch));
        let mut walk = walk::over(sb);
        let mut whole = true;
        while let Some((r, page)) = walk.next_node(&mut self.nodes(sb, layout)).await {
            if tally.node(r.ptr.addr) {
                let place = walk::place_of(&r);
                self.log.error(Subject::Node, place, "something else has its block too", GIVE_UP);
                // Not entered, so that the walk ends whatever the bytes say.
                walk.leave(&page);
                continue;
            }
            self.log.counts.nodes += 1;
            if page.level() == 0 {
                for i in 0..page.count() {
                    let key = page.key(i);
                    whole &= pass
                        .key((&key, page.value(i)), generation, &mut tally, &mut self.log)
                        .is_ok();
                }
            }
            self.progress(Phase::Index, tally.met_blocks(), layout.data_blocks());
        }
        whole &= walk.is_whole();
        if let (true, Some(records)) = (whole, records) {
            let now = |id: BucketId| record_now(records[id.0 as usize], sb, self.image.published);
            tally.compare("the bucket table", now, true, &mut self.log);
            let staged = dirty_now(sb.staged, sb, self.image.published);
            tally.compare_staged("the superblock", staged, &mut self.log);
        }
        whole
    }

    /// The index as it is when the journal was applied.
    async fn replayed(&mut self, sb: &CacheSuperblock, layout: Layout, records: Vec<BucketRecord>) {
        let published = self.image.published;
        let epoch = epoch_at(sb, published);
        let records: Vec<BucketRecord> =
            records.into_iter().map(|f| record_now(f, sb, published)).collect();
        // Nothing is evicted here: any policy will do.
        let above = counted_above(sb, published);
        let mut buckets =
            Buckets::restore(&records, layout.bucket_blocks, (Policy::Fifo, 0), (above, epoch));
        let staged = dirty_now(sb.staged, sb, published);
        buckets.restore_staged(staged.0.saturating_add(staged.1));
        drop(records);
        let generation = Generation((u64::from(sb.incarnation) + 1) << 32);
        let index =
            Index::open(Tree::open(INDEX_TREE, sb.root), Store::new(NODES), generation, published);
        let Source { rt, device, path } = self.src.clone();
        let staged = StagedVerifier::new(Committed::of(self.image));
        let mut replayer = Replayer { rt, device, path, layout, index, buckets, staged };
        self.progress(Phase::Journal, 0, 1);
        match replayer
            .run(
                crate::lifecycle::replay::replay_from(sb),
                EntrySeq(self.image.cache_journal),
                epoch,
            )
            .await
        {
            Err(e) => self.log.error(Subject::Journal, "journal", e.to_string(), GIVE_UP),
            Ok(done) => {
                let c = &mut self.log.counts;
                (c.journal_entries, c.journal_records, c.not_arrived) =
                    (done.entries, done.records, done.dropped);
                self.keys(&mut replayer, done.epoch).await;
            }
        }
    }

    /// Goes through all keys of a replayed index.
    async fn keys(&mut self, replayer: &mut Replayer, newest: Epoch) {
        let layout = replayer.layout;
        let mut tally = Tally::new(&layout);
        let above = replayer.buckets.counted_above();
        let mut pass = Pass::over_replayed(&layout, self.image, (above, newest));
        let mut cursor = Cursor::new(&[], None);
        let mut more = true;
        while more {
            let mut records = Vec::new();
            more = match self.next_leaf(replayer, &mut cursor, &mut records).await {
                Ok(more) => more,
                Err(e) => return self.log.error(Subject::Node, "index", e.to_string(), GIVE_UP),
            };
            let buckets = &replayer.buckets;
            let generation =
                |bucket: usize| Some(buckets.record(BucketId(bucket as u32)).generation);
            let mut data = Vec::new();
            for (k, v) in &records {
                let counts = pass.key((k, v), generation, &mut tally, &mut self.log);
                data.extend(counts.ok().flatten().filter(|_| self.options.data));
            }
            self.verify(&layout, data).await;
            self.progress(Phase::Keys, tally.met_blocks(), replayer.buckets.live_blocks());
            self.src.rt.yield_now().await;
        }
        pass.end(&mut self.log);
        // Buckets of nodes are not asked about: this walk did not see the nodes.
        let records = |id: BucketId| match replayer.buckets.record(id) {
            f if f.kind == BucketKind::Nodes => BucketRecord { live: 0, ..f },
            f => f,
        };
        tally.compare("the journal", records, false, &mut self.log);
        tally.compare_staged("the journal", replayer.buckets.staged_named(), &mut self.log);
    }

    /// The records of the next leaf, reading ahead.
    async fn next_leaf(
        &self,
        replayer: &mut Replayer,
        cursor: &mut Cursor,
        records: &mut Vec<(Vec<u8>, Vec<u8>)>,
    ) -> base::Result<bool> {
        let Replayer { index, layout, .. } = &mut *replayer;
        let reads = cursor.ahead(index.tree(), index.store(), AHEAD).into_iter().map(|fault| {
            let (src, layout) = (self.src.clone(), *layout);
            self.src.rt.spawn(async move {
                let read = read_node(&src.device, &layout, &fault, Class::Foreground).await;
                (fault, read)
            })
        });
        for read in reads.collect::<Vec<_>>() {
            if let Some((fault, Ok(bytes))) = read.await {
                // One that is bad is met again when it is needed.
                let _ = index.store_mut().admit(&fault, &bytes);
            }
        }
        replayer
            .resident(|index, _| {
                Ok(cursor.next_leaf(index.tree(), index.store(), |k, v| {
                    records.push((k.to_vec(), v.to_vec()))
                })?)
            })
            .await
    }
}

#[cfg(test)]
pub(crate) mod tests;
