//! Buckets: the cache's unit of allocation and eviction, and what is known of each.
//!
//! Plain data and plain functions; every change of the index tells this module of it, so that all
//! counters are exact at all times and no walk is needed to know what is free.
//!
//! **Generations.** A key names the bucket *and* its generation. Evicting a bucket raises its
//! generation: whatever pointed into it is stale at once, in O(1), and is dropped from the index
//! later. Generations are times of a clock ([`eviction`]).
//!
//! **Epochs.** A dirty key carries the epoch it was written in. Several epochs may be unpublished:
//! those that cuts have *sealed*, and the *open* one. Each bucket counts its dirty blocks by epoch,
//! so that publishing one makes counts void without touching them ([`epochs`]). Of sealed epochs,
//! overwritten blocks count too: their bytes are needed until the epoch is published.
//!
//! **Reuse.** A bucket that nothing needs any more is not free yet. What made it so (an overwrite,
//! or the raised generation) must be durable in the journal before its bytes may be overwritten:
//! until then it waits in `pending`, with the number of the record that will say so. That number is
//! what their clock shows ([`Buckets::set_clock`]).

use std::collections::VecDeque;

use base::{BucketGen, BucketId, CacheAddr, Epoch, RecordSeq};
use format::cache::bucket::{BucketKind, BucketRecord};

use crate::policy::replacement::{DropClock, Origin, Replacement, keeps_blocks};
use bucket::{Bucket, Life, OpenBucket, Source};
use census::{STREAMS, Stream};
use counts::EpochCounts;
use epochs::Epochs;
pub(crate) use eviction::{Thinnest, Victim};
use frozen::FrozenBuckets;
use model::cache::Policy;
use summaries::Summaries;

mod bucket;
pub(crate) mod census;
mod counts;
mod epochs;
mod eviction;
mod frozen;
mod nodes;
mod numbers;
mod replayed;
pub(crate) mod summaries;
mod summarised;

/// All buckets of one cache.
pub struct Buckets {
    blocks: u32,
    all: Vec<Bucket>,
    free: VecDeque<BucketId>,
    /// The last record of the journal that tells of changes until now.
    clock: RecordSeq,
    /// Become free, in order, when the journal's record is durable.
    pending: VecDeque<(RecordSeq, BucketId)>,
    open: [Option<OpenBucket>; STREAMS],
    replacement: Replacement,
    /// Buckets that may be evicted; those whose survivors move are among them.
    candidates: u32,
    /// Buckets whose survivors move.
    leaving: u32,
    /// The bucket that is looked at next to find thin ones.
    looked_at: u32,
    /// Blocks that were to be kept, and went.
    lost_survivors: u64,
    /// The clock of which generations are times.
    drop_clock: DropClock,
    summaries: Summaries,
    retired: u32,
    nodes: u32,
    index_nodes: u64,
    /// Of these, in buckets without a twin.
    nodes_once: u64,
    epochs: Epochs,
    live_blocks: u64,
    stale_blocks: u64,
    freezes: u32,
    /// The number of times that the last pin of a bucket was given up.
    unpins: u64,
    frozen: Option<FrozenBuckets>,
    source: Source,
    /// Dirty blocks; blocks of staged keys, which are in no bucket; and discards.
    dirty: EpochCounts,
    staged: EpochCounts,
    zeros: EpochCounts,
    /// Keys of discards that are published.
    dead_zeros: u64,
}

impl Buckets {
    /// `count` buckets of `blocks` blocks each, all free; all epochs before `epoch`, the open one,
    /// are published.
    pub fn new(count: u32, blocks: u32, policy: Policy, seed: u64, epoch: Epoch) -> Buckets {
        assert!(count > 0 && (1..=u32::from(u16::MAX)).contains(&blocks));
        Buckets {
            blocks,
            all: vec![Bucket::default(); count as usize],
            free: (0..count).map(BucketId).collect(),
            clock: RecordSeq(0),
            pending: VecDeque::new(),
            open: [None; STREAMS],
            replacement: Replacement::new(policy, count as usize, blocks, seed),
            candidates: 0,
            leaving: 0,
            looked_at: 0,
            lost_survivors: 0,
            drop_clock: DropClock::new(blocks),
            summaries: Summaries::new(keeps_blocks(policy), blocks),
            retired: 0,
            nodes: 0,
            index_nodes: 0,
            nodes_once: 0,
            epochs: Epochs::new(epoch, Epoch(epoch.0.saturating_sub(1))),
            live_blocks: 0,
            stale_blocks: 0,
            freezes: 0,
            unpins: 0,
            frozen: None,
            source: Source::default(),
            dirty: EpochCounts::default(),
            staged: EpochCounts::default(),
            zeros: EpochCounts::default(),
            dead_zeros: 0,
        }
    }

    /// Buckets as a checkpoint left them: `records` in order, none is open. All that is dirty, of
    /// epochs above `above`, counts as of `epoch`, the open one.
    pub fn restore(
        records: &[BucketRecord],
        blocks: u32,
        policy: Policy,
        seed: u64,
        above: Epoch,
        epoch: Epoch,
    ) -> Buckets {
        let mut b = Buckets::new(records.len() as u32, blocks, policy, seed, epoch);
        b.epochs = Epochs::new(epoch, above);
        b.source = Source::Disk(None);
        b.free.clear();
        for (i, f) in records.iter().enumerate() {
            let dirty = u32::from(f.dirty_open) + u32::from(f.dirty_cut);
            let it = &mut b.all[i];
            it.generation = f.generation;
            b.drop_clock.set(f.generation.0);
            it.kind = f.kind;
            it.live = f.live;
            if dirty > 0 {
                b.epochs.add(BucketId(i as u32), &mut it.dirt, dirty);
                b.dirty.add(u64::from(dirty));
            }
            // Nothing is decided about it before replay has ended.
            it.life = Life::Open;
            match f.kind {
                BucketKind::Nodes => {
                    b.nodes += 1;
                    b.index_nodes += u64::from(f.live);
                }
                BucketKind::Copies => b.nodes += 1,
                BucketKind::Free | BucketKind::Data => b.live_blocks += u64::from(f.live),
            }
        }
        b.restore_twins(records);
        b
    }

    /// After [`Buckets::restore`] and the journal's replay: finds out which buckets are free and
    /// which may be evicted. `epoch` is the open one now.
    pub(in crate::store) fn settle(&mut self, epoch: Epoch) {
        self.all.iter_mut().for_each(|b| b.dirt.renumber(epoch));
        self.epochs.renumber(epoch);
        self.source = Source::Memory;
        self.replacement.set_clock(self.drop_clock.now());
        for i in 0..self.all.len() {
            let id = BucketId(i as u32);
            if self.all[i].life == Life::Open {
                if self.all[i].kind == BucketKind::Data {
                    // Which of its blocks were read is not known; where they came from neither.
                    self.replacement.begin(id.0, Origin::Write, self.all[i].generation.0);
                }
                self.seal(id);
            }
        }
        self.journal_durable(RecordSeq(0));
    }

    /// The journal tells of changes until now with records up to this one.
    pub(in crate::store) fn set_clock(&mut self, told: RecordSeq) {
        self.clock = told;
    }

    /// The present record of a bucket.
    pub fn record(&self, id: BucketId) -> BucketRecord {
        frozen::record_now(&self.all, id.0 as usize, self.epochs.moment())
    }

    /// Records are frozen for a checkpoint: what becomes free from now on is not for its nodes.
    pub(in crate::store) fn freeze(&mut self) {
        assert!(self.frozen.is_none(), "one checkpoint at a time");
        self.freezes += 1;
        self.frozen = Some(FrozenBuckets::new(self.epochs.moment(), self.all.len()));
    }

    /// The checkpoint has what it needs.
    pub fn thaw(&mut self) {
        self.frozen = None;
    }

    /// The records of a page of the table, as they were frozen.
    pub fn frozen_page(&self, page: u32) -> Vec<BucketRecord> {
        let frozen =
            self.frozen.as_ref().unwrap_or_else(|| unreachable!("a checkpoint has frozen them"));
        frozen.page(page, &self.all)
    }

    /// A bucket is about to change.
    fn keep_frozen(&mut self, id: BucketId) {
        if let Some(frozen) = &mut self.frozen {
            frozen.keep(id.0 as usize, &self.all);
        }
    }

    /// Blocks in a bucket.
    pub fn bucket_blocks(&self) -> u32 {
        self.blocks
    }

    /// The number of buckets.
    pub fn count(&self) -> u32 {
        self.all.len() as u32
    }

    /// The bucket of a block.
    pub fn of(&self, addr: CacheAddr) -> BucketId {
        BucketId((addr.0 / u64::from(self.blocks)) as u32)
    }

    /// True if `addr` up to `addr + len` lies in one bucket of this cache.
    pub fn contains(&self, addr: CacheAddr, len: u32) -> bool {
        let b = u64::from(self.blocks);
        addr.0 / b < self.all.len() as u64 && len > 0 && addr.0 % b + u64::from(len) <= b
    }

    /// True if what points into the bucket of `addr` with `generation` is still good.
    pub fn is_current(&self, addr: CacheAddr, generation: BucketGen) -> bool {
        self.all.get(self.of(addr).0 as usize).is_some_and(|b| b.generation == generation)
    }

    /// The open epoch: new dirty blocks belong to it.
    pub fn epoch(&self) -> Epoch {
        self.epochs.open()
    }

    /// The newest epoch that is sealed and not published.
    pub fn cut(&self) -> Option<Epoch> {
        self.epochs.cut()
    }

    /// The counters of dirty blocks, and of staged ones, are exactly about the keys that were
    /// written after this epoch. It is the published one; but from an open to the first publication
    /// after it, it may be older: the one that was published as of the checkpoint. Which of the
    /// keys that this had counted were published before the end of that life, only a walk over all
    /// keys would tell.
    pub fn counted_above(&self) -> Epoch {
        self.epochs.above()
    }

    /// The epoch in which a key was written, if the counters are about it.
    pub fn counted(&self, written: Option<Epoch>) -> Option<Epoch> {
        written.filter(|&w| w > self.epochs.above())
    }

    /// The epoch that a dirty key of epoch `written` counts for.
    pub(crate) fn class_of(&self, written: Epoch) -> Epoch {
        self.epochs.class_of(written)
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
        let s = stream as usize;
        if let Some(open) = &self.open[s]
            && self.has_bad_twin(open.id)
        {
            // A write there has failed: the rest of it is not tried.
            let id = open.id;
            self.open[s] = None;
            self.seal(id);
        }
        if self.open[s].is_none() {
            // Nodes of a checkpoint take what was free when it froze the records: that is in front.
            // Others take from behind.
            let id = match stream {
                Stream::Nodes => self.take_for_nodes(left)?,
                _ => self.free.pop_back()?,
            };
            self.keep_frozen(id);
            let b = &mut self.all[id.0 as usize];
            b.life = Life::Open;
            b.kind = stream.kind();
            b.compacted_in = Epoch(0);
            let generation = b.generation;
            match stream.origin() {
                Some(origin) => {
                    self.replacement.begin(id.0, origin, generation.0);
                    self.summaries.begin(id, generation);
                }
                None => self.nodes += 1,
            }
            self.open[s] = Some(OpenBucket { id, filled: 0 });
        }
        let capacity = self.capacity(stream);
        let Some(open) = &mut self.open[s] else { unreachable!("it was just opened") };
        let (id, at) = (open.id, open.filled);
        let len = want.min(capacity - at);
        open.filled += len;
        let full = open.filled == capacity;
        let b = &mut self.all[id.0 as usize];
        b.pins.add();
        let generation = b.generation;
        if full {
            self.open[s] = None;
            self.seal(id);
        }
        Some((CacheAddr(u64::from(id.0) * u64::from(self.blocks) + u64::from(at)), len, generation))
    }

    fn seal(&mut self, id: BucketId) {
        self.all[id.0 as usize].life = Life::Sealed;
        self.look_at(id, true);
    }

    /// Keeps the bucket of `addr` from being reused.
    pub fn pin(&mut self, addr: CacheAddr) {
        let id = self.of(addr);
        self.all[id.0 as usize].pins.add();
    }

    /// Lets go of it.
    pub fn unpin(&mut self, addr: CacheAddr) {
        let id = self.of(addr);
        let b = &mut self.all[id.0 as usize];
        if b.pins.remove() {
            self.unpins += 1;
            if b.life == Life::Sealed {
                self.summaries.complete(id);
            }
            self.look_at(id, false);
        }
    }

    fn dirty_of(&self, id: BucketId) -> u32 {
        self.all[id.0 as usize].dirt.above(self.epochs.above())
    }

    /// The index refers to `len` more blocks at `addr`; if they are dirty, of the open epoch.
    pub(in crate::store) fn add(&mut self, addr: CacheAddr, len: u32, dirty: bool) {
        let id = self.of(addr);
        if !self.check_blocks(id, len, 0) {
            return;
        }
        self.keep_frozen(id);
        let b = &mut self.all[id.0 as usize];
        b.live += len as u16;
        if b.kind == BucketKind::Free {
            // In replay: no record says that it was taken into use.
            b.kind = BucketKind::Data;
        }
        self.live_blocks += u64::from(len);
        if dirty {
            self.epochs.add(id, &mut b.dirt, len);
            self.dirty.add(u64::from(len));
        }
        if self.replacement.contains(id.0) && dirty {
            self.replacement.remove(id.0);
            self.candidates -= 1;
        }
    }

    /// The index refers no more to `len` blocks at `addr`, that a key with `generation` named;
    /// `written`: its epoch, if it was [counted](Buckets::counted). What was dirty is so no more,
    /// unless its epoch is sealed.
    pub(in crate::store) fn remove(
        &mut self,
        addr: CacheAddr,
        generation: BucketGen,
        len: u32,
        written: Option<Epoch>,
    ) {
        let id = self.of(addr);
        if self.all[id.0 as usize].generation != generation {
            self.forget_stale(u64::from(len));
            return;
        }
        if !self.check_blocks(id, 0, len) {
            return;
        }
        let class = written.map(|e| self.class_of(e));
        self.keep_frozen(id);
        self.forget_hits(addr, len);
        let b = &mut self.all[id.0 as usize];
        b.live -= len as u16;
        self.live_blocks -= u64::from(len);
        if let Some(class) = class {
            let enough = self.epochs.remove(&mut b.dirt, class, len);
            if !(enough && self.dirty.remove(u64::from(len), class)) {
                self.contradicts(format!("{id:?} has fewer dirty blocks than are removed"));
            }
        }
        self.look_at(id, false);
    }

    /// Moves a bucket on in its life, if it is time.
    fn look_at(&mut self, id: BucketId, fresh: bool) {
        let i = id.0 as usize;
        if self.all[i].life != Life::Sealed {
            return;
        }
        let dirty = self.dirty_of(id);
        let b = &self.all[i];
        if b.live == 0 && dirty == 0 {
            if b.pins.is_none() {
                self.retire_to(id, self.clock, Life::Pending);
            }
        } else if b.kind == BucketKind::Data {
            if dirty == 0
                && !b.leaving
                && !self.replacement.contains(id.0)
                && (fresh || b.pins.is_none())
            {
                self.replacement.insert(id.0);
                self.candidates += 1;
            }
            if u32::from(self.all[i].live) * 2 <= self.blocks {
                self.replacement.thin(id.0);
            }
        }
    }

    fn retire_to(&mut self, id: BucketId, told: RecordSeq, life: Life) {
        if self.replacement.contains(id.0) {
            self.replacement.remove(id.0);
            self.candidates -= 1;
        }
        self.replacement.end(id.0);
        self.summaries.forget(id);
        self.keep_frozen(id);
        self.retire_twin(id, told, life);
        let b = &mut self.all[id.0 as usize];
        if b.kind.is_of_index() {
            self.nodes -= 1;
        }
        b.kind = BucketKind::Free;
        b.dirt.clear();
        if b.errors > 0 || life == Life::Retired {
            b.life = Life::Retired;
            self.retired += 1;
            return;
        }
        b.life = life;
        self.pending.push_back((told, id));
    }

    /// All records of the journal up to `record` are durable: what waited for them is free. Returns
    /// whether anything became so.
    pub(in crate::store) fn journal_durable(&mut self, record: RecordSeq) -> bool {
        let before = self.free.len();
        while let Some(&(needs, id)) = self.pending.front() {
            if needs > record {
                break;
            }
            self.pending.pop_front();
            let b = &mut self.all[id.0 as usize];
            b.life = Life::Free;
            b.freed_in = self.freezes;
            self.free.push_back(id);
        }
        self.free.len() > before
    }

    /// Takes a cut: what is of the open epoch now belongs to it, what comes belongs to the next.
    /// O(1).
    pub(in crate::store) fn take_cut(&mut self) -> Epoch {
        let epoch = self.epochs.seal();
        self.dirty.seal(epoch);
        self.staged.seal(epoch);
        self.zeros.seal(epoch);
        epoch
    }

    /// The cut that sealed `epoch` is published: all of it and of those before is clean. It
    /// takes as long as there are sealed ones; [`Buckets::tidy`] then makes candidates of their
    /// buckets.
    pub(in crate::store) fn publish(&mut self, epoch: Epoch) {
        self.epochs.publish(epoch);
        self.stale_blocks += self.staged.publish(epoch).named;
        self.dead_zeros += self.zeros.publish(epoch).all;
        self.dirty.publish(epoch);
    }

    /// Goes through up to `max` buckets of published epochs; true if there are more.
    pub fn tidy(&mut self, max: usize) -> bool {
        for _ in 0..max {
            let Some(id) = self.epochs.next_published() else { return false };
            self.look_at(id, false);
        }
        !self.epochs.is_tidy()
    }

    /// Most of the bucket of `addr` is not needed any more, and what is left can be moved. Of
    /// nodes: half of it, or they do not stand twice.
    pub fn is_sparse(&self, addr: CacheAddr) -> bool {
        let id = self.of(addr);
        let b = &self.all[id.0 as usize];
        b.life == Life::Sealed
            && match b.kind {
                BucketKind::Nodes => self.is_node_bucket_to_leave(id),
                _ => u32::from(b.live - b.replaced) * 8 <= self.blocks,
            }
    }

    /// As [`Buckets::restore`]: so many blocks of staged keys are not published.
    pub(in crate::store) fn restore_staged(&mut self, blocks: u64) {
        self.staged = EpochCounts::restore(blocks);
    }

    /// Staged keys of the open epoch name `len` blocks more.
    pub(in crate::store) fn add_staged(&mut self, len: u64) {
        self.staged.add(len);
    }

    /// Staged keys name `len` blocks less; `written`: their epoch, if it was
    /// [counted](Buckets::counted).
    pub(in crate::store) fn remove_staged(&mut self, len: u64, written: Option<Epoch>) {
        match written.map(|w| self.class_of(w)) {
            Some(class) if self.staged.remove(len, class) => {}
            Some(_) if matches!(self.source, Source::Disk(_)) => {
                self.contradicts(format!("fewer staged blocks than are removed: not {len}"));
            }
            // The superblock's number was wrong: the next collection counts, and says so.
            Some(_) => {}
            None => self.forget_stale(len),
        }
    }

    /// `n` discards were entered.
    pub(in crate::store) fn add_zeros(&mut self, n: u64) {
        self.zeros.add(n);
    }

    /// A stale key was dropped that named `len` blocks. Keys that were stale when the cache was
    /// opened are not counted, so there may be fewer.
    pub(in crate::store) fn forget_stale(&mut self, len: u64) {
        self.stale_blocks = self.stale_blocks.saturating_sub(len);
    }

    /// A write to this bucket failed, or a block of it stayed bad when it was read again: in this
    /// life it is not used again once it is empty. The next one tries it again: a sector that is
    /// written anew may be well.
    pub fn condemn(&mut self, addr: CacheAddr) {
        let id = self.of(addr);
        let b = &mut self.all[id.0 as usize];
        b.errors = b.errors.saturating_add(1);
    }

    /// True if it is condemned.
    #[cfg(test)]
    pub fn has_errors(&self, addr: CacheAddr) -> bool {
        self.all[self.of(addr).0 as usize].errors > 0
    }
}

#[cfg(test)]
#[path = "buckets_tests.rs"]
mod tests;
