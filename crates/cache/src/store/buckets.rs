//! Buckets: the cache's unit of allocation and eviction, and what is known of each.
//!
//! Plain data and plain functions; every change of the index tells this module of it, so that all
//! counters are exact at all times and no walk is needed to know what is free.
//!
//! **Parts.** Each kind of knowledge is a type of its own, which knows none of the others but those
//! below it: the table of all buckets ([`table`]), unpublished epochs ([`epochs`]), numbers of
//! blocks ([`block_counts`]), use and candidates for eviction ([`usage`]), what is free ([`reuse`])
//! and what is being filled ([`filling`]), nodes ([`nodes`]), summaries ([`summaries`]).
//! [`Buckets`] holds them, and has the steps that change several of them. Each part is lent to be
//! read. The few changes that concern one part alone are made there: of counts in this folder, of
//! use by flows.
//!
//! **Generations.** A key names the bucket *and* its generation. Evicting a bucket raises its
//! generation: whatever pointed into it is stale at once, in O(1), and is dropped from the index
//! later. Generations are times of a clock ([`usage`]).
//!
//! **Epochs.** A dirty key carries the epoch it was written in. Several epochs may be unpublished:
//! those that cuts have *sealed*, and the *open* one. Each bucket counts its dirty blocks by epoch,
//! so that publishing one makes counts void without touching them ([`epochs`]). Of sealed epochs,
//! overwritten blocks count too: their bytes are needed until the epoch is published.
//!
//! **Reuse.** A bucket that nothing needs any more is not free yet: it waits for the record of the
//! journal that says so ([`reuse`]). The number of that record is what their clock shows
//! ([`Buckets::set_clock`]).

use base::{BucketGen, BucketId, CacheAddr, Epoch, Lba, RecordSeq, VolumeId};
use format::cache::bucket::{BucketKind, BucketRecord};

use crate::policy::replacement::keeps_blocks;
use block_counts::BlockCounts;
use bucket::Life;
use census::{Census, Stream};
use epochs::Epochs;
pub(crate) use eviction::Victim;
use filling::{FillPiece, OpenBuckets};
use geometry::Geometry;
use model::cache::Policy;
use nodes::NodeBuckets;
use replayed::Source;
use reuse::Reuse;
use summaries::{NextSummary, Summaries};
use table::Table;
pub(crate) use thin::ThinBucket;
use thin::ThinSearch;
use usage::Usage;

mod block_counts;
mod bucket;
pub(crate) mod census;
mod counts;
pub(crate) mod epochs;
mod eviction;
mod filling;
mod frozen;
mod geometry;
mod nodes;
mod replayed;
mod restore;
mod reuse;
pub(crate) mod summaries;
mod table;
mod thin;
pub(crate) mod usage;

/// All buckets of one cache.
///
/// A bucket that is full is needed for its live blocks, its dirty ones, its nodes, or its pins. The
/// step that ends the last need retires the bucket. Where that is the publication of an epoch,
/// [`Buckets::tidy`] does so later.
pub struct Buckets {
    table: Table,
    epochs: Epochs,
    counts: BlockCounts,
    usage: Usage,
    reuse: Reuse,
    filling: OpenBuckets,
    nodes: NodeBuckets,
    summaries: Summaries,
    thin: ThinSearch,
    source: Source,
    /// The last record of the journal that tells of changes until now.
    clock: RecordSeq,
    /// The number of times that the last pin of a bucket was given up.
    unpins: u64,
}

impl Buckets {
    /// `count` buckets of `blocks` blocks each, all free; all epochs before `epoch`, the open one,
    /// are published.
    pub fn new(count: u32, blocks: u32, policy: Policy, seed: u64, epoch: Epoch) -> Buckets {
        let table = Table::new(Geometry::new(count, blocks));
        let summaries = Summaries::new(keeps_blocks(policy), blocks);
        Buckets {
            epochs: Epochs::new(epoch, Epoch(epoch.0.saturating_sub(1))),
            counts: BlockCounts::default(),
            usage: Usage::new(table.geometry(), policy, seed),
            reuse: Reuse::new(table.ids()),
            nodes: NodeBuckets::default(),
            filling: OpenBuckets::new(blocks, summaries.blocks()),
            summaries,
            thin: ThinSearch::default(),
            source: Source::default(),
            clock: RecordSeq(0),
            unpins: 0,
            table,
        }
    }

    /// The number of buckets and their size.
    pub fn geometry(&self) -> Geometry {
        self.table.geometry()
    }

    /// The table of buckets.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The epochs that are not published.
    pub fn epochs(&self) -> &Epochs {
        &self.epochs
    }

    /// Numbers of blocks of each kind.
    pub fn counts(&self) -> &BlockCounts {
        &self.counts
    }

    /// The same, to count keys that name no bucket.
    pub(in crate::store) fn counts_mut(&mut self) -> &mut BlockCounts {
        &mut self.counts
    }

    /// The use of blocks, and what is known of those that went.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// The same, to note that blocks are used.
    pub fn usage_mut(&mut self) -> &mut Usage {
        &mut self.usage
    }

    /// Buckets that hold nothing.
    pub fn reuse(&self) -> &Reuse {
        &self.reuse
    }

    /// Buckets that are being filled.
    pub fn filling(&self) -> &OpenBuckets {
        &self.filling
    }

    /// Numbers of nodes of the index.
    pub fn nodes(&self) -> &NodeBuckets {
        &self.nodes
    }

    /// Summaries that are not written yet.
    pub fn summaries(&self) -> &Summaries {
        &self.summaries
    }

    /// The journal tells of changes until now with records up to this one.
    pub(in crate::store) fn set_clock(&mut self, told: RecordSeq) {
        self.clock = told;
    }

    /// The number of times that the last pin of a bucket was given up.
    pub fn unpins(&self) -> u64 {
        self.unpins
    }

    /// True if a key of that generation says that a block is in the main queue.
    pub fn is_in_main(&self, addr: CacheAddr, generation: BucketGen) -> bool {
        self.table.is_current(addr, generation) && self.usage.is_main(self.geometry().of(addr))
    }

    /// The present record of a bucket.
    pub fn record(&self, id: BucketId) -> BucketRecord {
        self.table.record_now(id, self.epochs.moment())
    }

    /// Records are frozen for a checkpoint: what becomes free from now on is not for its nodes.
    pub(in crate::store) fn freeze(&mut self) {
        self.table.freeze_records(self.epochs.moment());
        self.reuse.note_freeze();
    }

    /// The checkpoint has what it needs.
    pub fn thaw(&mut self) {
        self.table.forget_frozen();
    }

    /// The number of buckets in each state.
    pub fn census(&self) -> Census {
        let (free, retired) = (self.reuse.free_soon(), self.reuse.retired());
        let (clean, metadata) = (self.usage.clean(), self.nodes.buckets());
        let used = self.geometry().count() - free - retired - metadata;
        Census { free, clean, dirty: used - clean, metadata, retired }
    }

    /// Blocks of `stream` that can be had without a new bucket.
    pub fn left_open(&self, stream: Stream) -> u32 {
        let open = self.filling.open_of(stream);
        open.filter(|id| !self.table.has_bad_twin(*id)).map_or(0, |_| self.filling.left_of(stream))
    }

    /// Nodes that can be written without a bucket that is not free now, each twice.
    pub fn room_for_nodes(&self) -> u64 {
        u64::from(self.reuse.free() / 2) * u64::from(self.geometry().bucket_blocks())
            + u64::from(self.left_open(Stream::Nodes))
    }

    /// The same, each once at least.
    pub fn room_for_nodes_once(&self) -> u64 {
        u64::from(self.reuse.free()) * u64::from(self.geometry().bucket_blocks())
            + u64::from(self.left_open(Stream::Nodes))
    }

    /// As [`Buckets::append_beside`], and no nodes are left to be written.
    #[cfg(test)]
    pub fn append(&mut self, stream: Stream, want: u32) -> Option<(CacheAddr, u32, BucketGen)> {
        self.append_beside(stream, want, 0)
    }

    /// Up to `want` blocks to be filled next, in one bucket; pinned until [`Buckets::unpin`].
    /// `None`: no bucket is free. Nodes that are `left` to be written, with these, find room then,
    /// once at least.
    pub fn append_beside(
        &mut self,
        stream: Stream,
        want: u32,
        left: u64,
    ) -> Option<(CacheAddr, u32, BucketGen)> {
        if let Some(id) = self.filling.open_of(stream)
            && self.table.has_bad_twin(id)
        {
            // A write there has failed: the rest of it is not tried.
            self.filling.end(stream);
            self.seal(id);
        }
        if self.filling.open_of(stream).is_none() {
            let id = self.open_next(stream, left)?;
            self.filling.begin(stream, id);
        }
        let piece = self.filling.take_blocks(stream, want);
        let Some(FillPiece { id, slot, len, is_last }) = piece else {
            unreachable!("it was just opened")
        };
        self.table.unrecorded(id).pins.add();
        let generation = self.table.bucket(id).generation;
        if is_last {
            self.seal(id);
        }
        Some((self.geometry().addr(id, slot), len, generation))
    }

    /// Takes a bucket that `stream` is to fill; `left` is as for [`Buckets::append_beside`].
    fn open_next(&mut self, stream: Stream, left: u64) -> Option<BucketId> {
        // Nodes of a checkpoint take what was free when it froze the records: that is in front.
        // Others take from behind.
        let id = match stream {
            Stream::Nodes => self.nodes.take_for_nodes(&mut self.table, &mut self.reuse, left)?,
            _ => self.reuse.take_last()?,
        };
        let b = self.table.change(id);
        b.life = Life::Open;
        b.kind = stream.kind();
        b.compacted_in = Epoch(0);
        if let Some(origin) = stream.origin() {
            self.usage.begin(id, origin, b.generation);
            self.summaries.begin(id, b.generation);
        }
        Some(id)
    }

    fn seal(&mut self, id: BucketId) {
        *self.table.unrecorded(id).life = Life::Sealed;
        self.look_at(id, true);
    }

    /// Keeps the bucket of `addr` from being reused.
    pub fn pin(&mut self, addr: CacheAddr) {
        let id = self.geometry().of(addr);
        self.table.unrecorded(id).pins.add();
    }

    /// Lets go of it.
    pub fn unpin(&mut self, addr: CacheAddr) {
        let id = self.geometry().of(addr);
        if self.table.unrecorded(id).pins.remove() {
            self.unpins += 1;
            if self.table.bucket(id).life == Life::Sealed {
                self.summaries.complete(id);
            }
            self.look_at(id, false);
        }
    }

    /// The index refers to `len` more blocks at `addr`; if they are dirty, of the open epoch.
    pub(in crate::store) fn add(&mut self, addr: CacheAddr, len: u32, dirty: bool) {
        let id = self.geometry().of(addr);
        if !self.source.check_blocks(&self.table, id, len, 0) {
            return;
        }
        let b = self.table.change(id);
        b.live += len as u16;
        if b.kind == BucketKind::Free {
            // In replay: no record says that it was taken into use.
            b.kind = BucketKind::Data;
        }
        self.counts.add_live(u64::from(len));
        if dirty {
            self.epochs.add(id, &mut b.dirt, len);
            self.counts.add_dirty(u64::from(len));
            self.usage.drop_candidate(id);
        }
    }

    /// Blocks at `addr` are those of a volume from `lba` on.
    pub(in crate::store) fn name(&mut self, addr: CacheAddr, volume: VolumeId, lba: Lba, len: u64) {
        let (id, from) = (self.geometry().of(addr), self.geometry().slot(addr));
        self.summaries.name(id, from as usize, volume, lba, len);
    }

    /// The index refers no more to `len` blocks at `addr`, that a key with `generation` named;
    /// `written`: its epoch, if it was [counted](Epochs::counted). What was dirty is so no more,
    /// unless its epoch is sealed.
    pub(in crate::store) fn remove(
        &mut self,
        addr: CacheAddr,
        generation: BucketGen,
        len: u32,
        written: Option<Epoch>,
    ) {
        let id = self.geometry().of(addr);
        if self.table.bucket(id).generation != generation {
            self.counts.forget_stale(u64::from(len));
            return;
        }
        if !self.source.check_blocks(&self.table, id, 0, len) {
            return;
        }
        self.usage.forget_hits(addr, len);
        let b = self.table.change(id);
        b.live -= len as u16;
        self.counts.remove_live(u64::from(len));
        if let Some(class) = written.map(|e| self.epochs.class_of(e)) {
            let enough = self.epochs.remove(&mut b.dirt, class, len);
            if !(enough && self.counts.remove_dirty(u64::from(len), class)) {
                let what = format!("{id:?} has fewer dirty blocks than are removed");
                self.source.contradicts(what);
            }
        }
        self.look_at(id, false);
    }

    /// Staged keys name `len` blocks less; `written`: their epoch, if it was
    /// [counted](Epochs::counted).
    pub(in crate::store) fn remove_staged(&mut self, len: u64, written: Option<Epoch>) {
        let class = written.map(|w| self.epochs.class_of(w));
        // In memory, the superblock's number was wrong: the next collection counts, and says so.
        if !self.counts.remove_staged(len, class) && self.source.is_disk() {
            let what = format!("fewer staged blocks than are removed: not {len}");
            self.source.contradicts(what);
        }
    }

    /// Garbage collection begins, and drops the keys of published discards.
    pub fn forget_dead_zeros(&mut self) {
        self.counts.forget_dead_zeros();
    }

    /// Moves a bucket on in its life, if it is time.
    fn look_at(&mut self, id: BucketId, fresh: bool) {
        let b = self.table.bucket(id);
        if b.life != Life::Sealed {
            return;
        }
        let dirty = b.dirt.above(self.epochs.counted_above());
        if b.live == 0 && dirty == 0 {
            if b.pins.is_none() {
                self.retire(id, self.clock);
            }
        } else if b.kind == BucketKind::Data {
            if dirty == 0
                && !b.leaving
                && !self.usage.is_candidate(id)
                && (fresh || b.pins.is_none())
            {
                self.usage.add_candidate(id);
            }
            if u32::from(b.live) * 2 <= self.geometry().bucket_blocks() {
                self.usage.thin(id);
            }
        }
    }

    /// A bucket holds nothing any more, as the record `told` says. Its twin goes with it.
    fn retire(&mut self, id: BucketId, told: RecordSeq) {
        let twin = self.nodes.let_twin_go(&mut self.table, id);
        for id in twin.into_iter().chain([id]) {
            self.usage.end(id);
            self.summaries.forget(id);
            self.reuse.retire(&mut self.table, id, told);
        }
    }

    /// All records of the journal up to `record` are durable: what waited for them is free. Returns
    /// whether anything became so.
    pub(in crate::store) fn journal_durable(&mut self, record: RecordSeq) -> bool {
        self.reuse.free_durable(&mut self.table, record)
    }

    /// Takes a cut: what is of the open epoch now belongs to it, what comes belongs to the next.
    /// O(1).
    pub(in crate::store) fn take_cut(&mut self) -> Epoch {
        let epoch = self.epochs.seal();
        self.counts.seal(epoch);
        epoch
    }

    /// The cut that sealed `epoch` is published: all of it and of those before is clean. It
    /// takes as long as there are sealed ones; [`Buckets::tidy`] then makes candidates of their
    /// buckets.
    pub(in crate::store) fn publish(&mut self, epoch: Epoch) {
        self.epochs.publish(epoch);
        self.counts.publish(epoch);
    }

    /// Goes through up to `max` buckets of published epochs; true if there are more.
    pub fn tidy(&mut self, max: usize) -> bool {
        for _ in 0..max {
            let Some(id) = self.epochs.next_published() else { return false };
            self.look_at(id, false);
        }
        !self.epochs.is_tidy()
    }

    /// True if at most half of what the buckets can hold is needed.
    pub fn is_half_garbage(&self) -> bool {
        2 * self.counts.live_blocks() <= self.geometry().all_blocks()
    }

    /// Looks at up to `most` buckets, after those that were looked at before. Of the unpinned ones
    /// that are thin, and not dirty in a sealed epoch, it pins the thinnest. It is found once in an
    /// epoch. `clean_too`: also if none of its blocks is dirty.
    pub fn pin_thinnest(&mut self, most: u32, clean_too: bool) -> Option<ThinBucket> {
        let keeps_all = self.is_half_garbage();
        self.thin.pin_next(&mut self.table, &self.epochs, most, clean_too, keeps_all)
    }

    /// Most of the bucket of `addr` is not needed any more, and what is left can be moved. Of
    /// nodes: half of it, or they do not stand twice and could, or the bucket or its twin is
    /// condemned.
    pub fn is_sparse(&self, addr: CacheAddr) -> bool {
        let id = self.geometry().of(addr);
        let b = self.table.bucket(id);
        if b.life != Life::Sealed {
            return false;
        }
        let (left, all) = (u32::from(b.live - b.replaced), self.geometry().bucket_blocks());
        if b.kind != BucketKind::Nodes {
            return left * 8 <= all;
        }
        let once = b.twin.is_none() && self.reuse.free() > 1;
        left * 2 <= all || once || self.table.has_bad_twin(id)
    }

    /// A node of the index at `addr` was written.
    pub(in crate::store) fn add_node(&mut self, addr: CacheAddr) {
        let id = self.geometry().of(addr);
        self.nodes.enter(&mut self.table, id);
    }

    /// A node in this bucket is of no checkpoint to come; it goes when no read needs it.
    pub fn replace_node(&mut self, id: BucketId) {
        *self.table.unrecorded(id).replaced += 1;
    }

    /// A node of the index is needed no more.
    pub(in crate::store) fn remove_node(&mut self, addr: CacheAddr) {
        let id = self.geometry().of(addr);
        self.nodes.leave(&mut self.table, id);
        self.look_at(id, false);
    }

    /// The next summary that is to be written; its bucket is pinned.
    pub fn next_summary(&mut self) -> Option<NextSummary> {
        let next = self.summaries.pop()?;
        self.pin(next.addr);
        Some(next)
    }

    /// A write to this bucket failed, or a block of it stayed bad when it was read again: in this
    /// life it is not used again once it is empty. The next one tries it again: a sector that is
    /// written anew may be well.
    pub fn condemn(&mut self, addr: CacheAddr) {
        let id = self.geometry().of(addr);
        let errors = self.table.unrecorded(id).errors;
        *errors = errors.saturating_add(1);
    }
}

#[cfg(test)]
#[path = "buckets_tests.rs"]
mod tests;
