//! The offline check of a cache device: verifies every structure, and writes nothing.
//!
//! In this order, each step standing on what the steps before have found:
//!
//! 1. superblocks, whether the cache is that of its pool, and the bucket table ([`device`])
//! 2. the index of the checkpoint, each node ([`walk`]) and each key ([`extents`]); then the
//!    buckets' counters against what the walk met ([`tally`])
//! 3. the journal ([`journal`]), applied in memory by the very code that does it when a cache is
//!    opened ([`cache::raw::Replayer`])
//! 4. the index and the counters once more as they are then; keys against the pool's volumes; if
//!    asked for, all blocks that keys name are read and verified
//!
//! Step 3 and 4 need a checkpoint that is whole, because replay relies on it.
//!
//! Memory: what an open cache has of its buckets, eight bytes more of each, one bit of each block,
//! and a bounded number of nodes and data blocks.
//!
//! Staged blocks stand in the pool, whose own check verifies them. Here each block that a staged
//! key names has to be there, with the checksum that the key has; where the pool's check could not
//! read all that may tell of staged blocks, all of them count as arrived.
//!
//! Legal, because a crash leaves it and nothing depends on it: the superblock slot that is written
//! next, and one slot of each table page, may hold anything; keys may be stale; entries of the
//! journal that no client was told of may be missing, and blocks that they name; there may be
//! blocks of volumes that were deleted or shrunk (a note tells of them).

use base::{BucketId, Epoch, counted};
use btree::{Cursor, Loader, resident};
use cache::CacheFile;
use cache::raw::{
    Checkpoint, CommittedBlocks, Layout, PoolImage, Replayer, counted_above, dirty_now, layout_of,
    node_addr, read_node, record_now,
};
use cache::replacement::Eviction;

use format::cache::bucket::BucketRecord;
use format::cache::superblock::CacheSuperblock;
use model::cache::Policy;
use queue::Class;
use rt::Rt;

use crate::items::hex;
use crate::pool::check::Image;
use crate::report::{CheckOptions, Phase, Progress, Severity, Subject};
use checker::{CacheChecker, CacheLog, CacheSource, GIVE_UP};
use extents::Pass;
use plan::CacheRepairPlan;
use tally::BucketTally;
use walk::NodeCopies;

pub(crate) mod checker;
mod data;
mod device;
mod extents;
mod journal;
pub(crate) mod plan;
mod report;
mod tally;
pub(crate) mod walk;

pub use report::{CacheCounts, CacheReport, PoolRelation};

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
) -> CacheReport {
    check_for(CacheRepairPlan::default(), rt, file, image, options, progress).await.0
}

/// As [`check`]; and what a repair would do, as `plan` wants it.
pub(crate) async fn check_for(
    plan: CacheRepairPlan,
    rt: &Rt,
    file: &CacheFile,
    image: &Image,
    options: &CheckOptions,
    progress: &mut dyn FnMut(Progress),
) -> (CacheReport, CacheRepairPlan) {
    let src = CacheSource::new(rt, file);
    let log = CacheLog::new(options.listed);
    let mut checker =
        CacheChecker { src, log, plan, options: *options, holds_none: false, image, progress };
    let (slots, sb) = checker.superblocks(file.size_bytes).await;
    let standing = checker.standing(&sb);
    let sb = sb.unwrap_or_default();
    if let (Some(sb), PoolRelation::Attached) = (&sb, standing) {
        checker.attached(sb, file).await;
    }
    checker.src.device.close();
    let (log, mut plan) = (checker.log, checker.plan);
    plan.unsound = log.unsound().map(str::to_owned);
    if standing == PoolRelation::Foreign {
        plan.unsound.get_or_insert_with(|| format!("{} is not the pool's cache", file.path));
    }
    let report = CacheReport {
        path: file.path.clone(),
        uuid: sb.as_ref().map(|sb| hex(&sb.uuid)),
        standing,
        generation: sb.as_ref().map_or(0, |sb| sb.generation.0),
        sequence: sb.as_ref().map_or(0, |sb| sb.sequence),
        incarnation: sb.as_ref().map_or(0, |sb| sb.incarnation),
        slots,
        data: options.data,
        findings: log.into_findings(),
    };
    (report, plan)
}

impl CacheChecker<'_> {
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
        let mut tally = BucketTally::new(layout);
        let generation = |bucket: usize| records.and_then(|f| f.get(bucket)).map(|f| f.generation);
        let above = counted_above(sb, self.image.published);
        let mut pass = Pass::over_checkpoint(layout, self.image, above, sb.cut, sb.epoch);
        let mut walk = walk::over(sb);
        let mut whole = true;
        let twins = records.map(NodeCopies::of).unwrap_or_default();
        while let Some((r, page)) = walk.next_node(&mut self.nodes(sb, layout, &twins)).await {
            let addr = node_addr(r.ptr.addr);
            let copy = twins.copy_of(layout, addr);
            if tally.node(addr) | copy.is_some_and(|copy| tally.node(copy)) {
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
                        .key(&key, page.value(i), generation, &mut tally, &mut self.log)
                        .is_ok();
                }
            }
            self.progress(Phase::Index, tally.met_blocks(), layout.data_blocks());
        }
        whole &= walk.is_whole();
        if let (true, Some(records)) = (whole, records) {
            let now = |id: BucketId| record_now(records[id.0 as usize], sb, self.image.published);
            tally.compare("the bucket table", now, true, &mut self.log);
            self.pairs(records);
            let (open, cut) = dirty_now(sb.staged.0, sb.staged.1, sb, self.image.published);
            tally.compare_staged("the superblock", open, cut, &mut self.log);
        }
        whole
    }

    /// Buckets of nodes and of copies name each other.
    fn pairs(&mut self, records: &[BucketRecord]) {
        for (i, f) in (0..).zip(records) {
            let Some(twin) = f.twin else { continue };
            let other = records.get(twin.0 as usize);
            let is_pair = |o: &BucketRecord| o.twin == Some(BucketId(i)) && o.kind != f.kind;
            if !other.is_some_and(is_pair) {
                let what =
                    format!("it names bucket {} as its twin, which does not name it", twin.0);
                self.log.error(Subject::Bucket, format!("bucket {i}"), what, GIVE_UP);
            }
        }
    }

    /// The index as it is when the journal was applied.
    async fn replayed(&mut self, sb: &CacheSuperblock, layout: Layout, records: Vec<BucketRecord>) {
        let CacheSource { rt, device, path } = self.src.clone();
        let mut replayer = Replayer::new(
            &rt,
            &device,
            &path,
            Checkpoint { sb, layout, records },
            PoolImage { published: self.image.published, committed: committed(self.image) },
            NODES,
            // Nothing is evicted here: any policy will do.
            Eviction { policy: Policy::Fifo, seed: 0 },
        );
        self.progress(Phase::Journal, 0, 1);
        match replayer.run(sb, self.image.cache_says).await {
            Err(e) => self.log.error(Subject::Journal, "journal", e.to_string(), GIVE_UP),
            Ok(done) => {
                let c = &mut self.log.counts;
                (c.journal_entries, c.journal_records, c.not_arrived) =
                    (done.entries, done.records, done.dropped);
                self.not_arrived(done.dropped);
                self.keys(&mut replayer, &layout, done.epoch).await;
            }
        }
    }

    /// Legal, as a crash leaves it. Rot in the last entry's blocks looks the same (decision 0014).
    fn not_arrived(&mut self, blocks: u64) {
        if blocks == 0 {
            return;
        }
        let what = format!(
            "{} named by its last entries, and not on the device: such a block counts as never \
             written, which is so after a crash amid a flush; if all had been flushed a second \
             before, the device has lost what it was given, and older data is read there",
            counted(blocks, "block is", "blocks are")
        );
        self.log.note(Subject::Journal, "journal", what);
    }

    /// Goes through all keys of a replayed index.
    async fn keys(&mut self, replayer: &mut Replayer, layout: &Layout, newest: Epoch) {
        let mut tally = BucketTally::new(layout);
        let above = replayer.counted_above();
        let mut pass = Pass::over_replayed(layout, self.image, above, newest);
        let mut cursor = Cursor::new(&[], None);
        let mut more = true;
        while more {
            let mut records = Vec::new();
            more = match self.next_leaf(replayer, layout, &mut cursor, &mut records).await {
                Ok(more) => more,
                Err(e) => return self.log.error(Subject::Node, "index", e.to_string(), GIVE_UP),
            };
            let generation =
                |bucket: usize| Some(replayer.record(BucketId(bucket as u32)).generation);
            let mut data = Vec::new();
            for (k, v) in &records {
                let counts = pass.key(k, v, generation, &mut tally, &mut self.log);
                data.extend(counts.ok().flatten().filter(|_| self.options.data));
            }
            self.verify(layout, data).await;
            self.progress(Phase::Keys, tally.met_blocks(), replayer.live_blocks());
            self.src.rt.yield_now().await;
        }
        pass.end(&mut self.log);
        // Buckets of nodes are not asked about: this walk did not see the nodes.
        let records = |id: BucketId| match replayer.record(id) {
            f if f.kind.is_of_index() => BucketRecord { live: 0, ..f },
            f => f,
        };
        tally.compare("the journal", records, false, &mut self.log);
        let (open, cut) = replayer.staged_named();
        tally.compare_staged("the journal", open, cut, &mut self.log);
    }

    /// The records of the next leaf, reading ahead.
    async fn next_leaf(
        &self,
        replayer: &mut Replayer,
        layout: &Layout,
        cursor: &mut Cursor,
        records: &mut Vec<(Vec<u8>, Vec<u8>)>,
    ) -> base::Result<bool> {
        let (tree, nodes) = replayer.index();
        let reads = cursor.ahead(tree, nodes, AHEAD).into_iter().map(|fault| {
            let (src, layout) = (self.src.clone(), *layout);
            let copy = replayer.copy_of(&fault);
            self.src.rt.spawn(async move {
                let read = read_node(&src.device, &layout, &fault, copy, Class::Foreground).await;
                (fault, read.map(|(bytes, _)| bytes))
            })
        });
        for read in reads.collect::<Vec<_>>() {
            if let Some((fault, Ok(bytes))) = read.await {
                // One that is bad is met again when it is needed.
                let _ = Replayer::store(replayer).admit(&fault, &bytes);
            }
        }
        let next = |replayer: &mut Replayer| {
            let (tree, nodes) = replayer.index();
            Ok(cursor.next_leaf(tree, nodes, |k, v| records.push((k.to_vec(), v.to_vec())))?)
        };
        resident(replayer, next).await
    }
}

/// Returns the staged blocks that the pool has committed, or that they are not known.
fn committed(image: &Image) -> CommittedBlocks {
    match (&image.staged, &image.volumes) {
        (Some(staged), Some(volumes)) => CommittedBlocks::Found {
            staged: staged.clone(),
            volumes: volumes.iter().map(|v| v.0).collect(),
        },
        _ => CommittedBlocks::Unknown,
    }
}
