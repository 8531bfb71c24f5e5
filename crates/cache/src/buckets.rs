//! Buckets: the cache's unit of allocation and eviction, and what is known of each.
//!
//! Plain data and plain functions; every change of the index tells this module of it, so that all counters are exact at all times and nobody
//! needs a walk to know what is free.
//!
//! **Generations.** A key names the bucket *and* its generation. Evicting a bucket raises its generation: whatever pointed into it is stale at
//! once, in O(1), and is dropped from the index later.
//!
//! **Epochs.** A dirty key carries the epoch it was written in. Several epochs may be unpublished:
//! those that cuts have *sealed*, and the *open* one. Each bucket counts its dirty blocks by epoch,
//! so that publishing one makes counts void without touching them ([`epochs`]). Of sealed epochs,
//! overwritten blocks count too: their bytes are needed until the epoch is published.
//!
//! **Reuse.** A bucket that nothing needs any more is not free yet. What made it so (an overwrite, or the raised generation) must be durable in the journal
//! before its bytes may be overwritten: until then it waits in `pending`, with the number of the journal's entry that will say so.

use std::collections::VecDeque;

use base::{BucketGen, BucketId, CacheAddr, Epoch};

use crate::buckets::record::STREAMS;
pub use crate::buckets::record::{Census, Facts, Kind, Stream};

use crate::buckets::staged::StagedBlocks;
use crate::policy::replacement::{Policy, Replacement};
use epochs::{Dirt, Epochs};

mod epochs;
mod frozen;
pub(crate) mod record;
mod replayed;
mod staged;

/// Where a bucket is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Life {
    /// May be filled.
    #[default]
    Free,
    /// Is being filled.
    Open,
    /// Is full; has unpublished blocks, or nodes, or is a candidate for eviction.
    Sealed,
    /// Holds nothing, but may not be overwritten yet.
    Pending,
    /// Not used any more: it gave errors.
    Retired,
}

#[derive(Clone, Default)]
struct Bucket {
    generation: BucketGen,
    live: u16,
    /// Live nodes in it that checkpoints have replaced: somebody may be reading them.
    replaced: u16,
    dirt: Dirt,
    /// The freeze after which it became free.
    freed_in: u32,
    /// Reads and writes in flight.
    pins: u16,
    errors: u8,
    kind: Kind,
    life: Life,
}

#[derive(Clone, Copy)]
struct OpenBucket {
    id: BucketId,
    filled: u32,
}

/// All buckets of one cache.
pub struct Buckets {
    blocks: u32,
    all: Vec<Bucket>,
    free: VecDeque<BucketId>,
    /// Become free, in order, when the journal's entry is durable.
    pending: VecDeque<(u64, BucketId)>,
    open: [Option<OpenBucket>; STREAMS],
    replacement: Replacement,
    candidates: u32,
    retired: u32,
    nodes: u32,
    node_blocks: u64,
    epochs: Epochs,
    live_blocks: u64,
    stale_blocks: u64,
    raised: Vec<(BucketId, BucketGen)>,
    freezes: u32,
    frozen: Option<frozen::Frozen>,
    source: replayed::Source,
    /// What is in no bucket.
    pub(crate) staged: StagedBlocks,
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
            pending: VecDeque::new(),
            open: [None; STREAMS],
            replacement: Replacement::new(policy, count as usize, seed),
            candidates: 0,
            retired: 0,
            nodes: 0,
            node_blocks: 0,
            epochs: Epochs::new(epoch, Epoch(epoch.0.saturating_sub(1))),
            live_blocks: 0,
            stale_blocks: 0,
            raised: Vec::new(),
            freezes: 0,
            frozen: None,
            source: replayed::Source::default(),
            staged: StagedBlocks::default(),
        }
    }

    /// Buckets as a checkpoint left them: `facts` in order, none is open. All that is dirty, of
    /// epochs above `above`, counts as of `epoch`, the open one.
    pub fn restore(
        facts: &[Facts],
        blocks: u32,
        (policy, seed): (Policy, u64),
        (above, epoch): (Epoch, Epoch),
    ) -> Buckets {
        let mut b = Buckets::new(facts.len() as u32, blocks, policy, seed, epoch);
        b.epochs = Epochs::new(epoch, above);
        b.source = replayed::Source::Disk(None);
        b.free.clear();
        for (i, f) in facts.iter().enumerate() {
            let dirty = u32::from(f.dirty_open) + u32::from(f.dirty_cut);
            let it = &mut b.all[i];
            it.generation = f.generation;
            it.kind = f.kind;
            it.live = f.live;
            if dirty > 0 {
                b.epochs.add(BucketId(i as u32), &mut it.dirt, dirty);
            }
            // Nothing is decided about it before replay has ended.
            it.life = Life::Open;
            match f.kind {
                Kind::Nodes => {
                    b.nodes += 1;
                    b.node_blocks += u64::from(f.live);
                }
                _ => b.live_blocks += u64::from(f.live),
            }
        }
        b
    }

    /// After [`Buckets::restore`] and the journal's replay: finds out which buckets are free and which may be evicted. `epoch` is the open one now.
    pub fn settle(&mut self, epoch: Epoch) {
        self.all.iter_mut().for_each(|b| b.dirt.renumber(epoch));
        self.epochs.renumber(epoch);
        self.source = replayed::Source::Memory;
        for i in 0..self.all.len() {
            let id = BucketId(i as u32);
            if self.all[i].life == Life::Open {
                self.seal(id, 0);
            }
        }
        self.journal_durable(0);
    }

    /// Blocks in a bucket.
    pub fn bucket_blocks(&self) -> u32 {
        self.blocks
    }

    /// How many there are.
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

    /// Up to `want` blocks to be filled next, in one bucket; pinned until [`Buckets::unpin`]. `None`: no bucket is free.
    pub fn append(&mut self, stream: Stream, want: u32, journal: u64) -> Option<(CacheAddr, u32, BucketGen)> {
        let s = stream as usize;
        if let Some(open) = &self.open[s]
            && self.all[open.id.0 as usize].errors > 0
        {
            // A write there has failed: the rest of it is not tried.
            let id = open.id;
            self.open[s] = None;
            self.seal(id, journal);
        }
        if self.open[s].is_none() {
            // Nodes of a checkpoint take what was free when it froze the facts: that is in front. Others take from behind.
            let id = match stream {
                Stream::Nodes => {
                    let &id = self.free.front()?;
                    if self.all[id.0 as usize].freed_in == self.freezes && self.freezes > 0 {
                        return None;
                    }
                    self.free.pop_front()?
                }
                _ => self.free.pop_back()?,
            };
            self.keep_frozen(id);
            let b = &mut self.all[id.0 as usize];
            b.life = Life::Open;
            b.kind = stream.kind();
            if b.kind == Kind::Nodes {
                self.nodes += 1;
            }
            self.open[s] = Some(OpenBucket { id, filled: 0 });
        }
        let Some(open) = &mut self.open[s] else { unreachable!("it was just opened") };
        let (id, at) = (open.id, open.filled);
        let len = want.min(self.blocks - at);
        open.filled += len;
        let full = open.filled == self.blocks;
        let b = &mut self.all[id.0 as usize];
        b.pins += 1;
        let generation = b.generation;
        if full {
            self.open[s] = None;
            self.seal(id, journal);
        }
        Some((CacheAddr(u64::from(id.0) * u64::from(self.blocks) + u64::from(at)), len, generation))
    }

    fn seal(&mut self, id: BucketId, journal: u64) {
        self.all[id.0 as usize].life = Life::Sealed;
        self.look_at(id, journal, true);
    }

    /// Keeps the bucket of `addr` from being reused.
    pub fn pin(&mut self, addr: CacheAddr) {
        let id = self.of(addr);
        self.all[id.0 as usize].pins += 1;
    }

    /// Lets go of it.
    pub fn unpin(&mut self, addr: CacheAddr, journal: u64) {
        let id = self.of(addr);
        let b = &mut self.all[id.0 as usize];
        assert!(b.pins > 0, "{id:?} was not pinned");
        b.pins -= 1;
        if b.pins == 0 {
            self.look_at(id, journal, false);
        }
    }

    /// A read hit.
    pub fn touch(&mut self, addr: CacheAddr) {
        let id = self.of(addr);
        self.replacement.touch(id.0);
    }

    fn dirty_of(&self, id: BucketId) -> u32 {
        self.all[id.0 as usize].dirt.above(self.epochs.above())
    }

    /// The index refers to `len` more blocks at `addr`; if they are dirty, of the open epoch.
    pub fn add(&mut self, addr: CacheAddr, len: u32, dirty: bool) {
        let id = self.of(addr);
        if !self.check_blocks(id, len, 0) {
            return;
        }
        self.keep_frozen(id);
        let b = &mut self.all[id.0 as usize];
        b.live += len as u16;
        if b.kind == Kind::Free {
            // In replay: nobody said that it was taken into use.
            b.kind = Kind::Data;
        }
        self.live_blocks += u64::from(len);
        if dirty {
            self.epochs.add(id, &mut b.dirt, len);
        }
        if self.replacement.contains(id.0) && dirty {
            self.replacement.remove(id.0);
            self.candidates -= 1;
        }
    }

    /// The index refers no more to `len` blocks at `addr`, that a key with `generation` named;
    /// `written`: its epoch, if it was [counted](Buckets::counted). What was dirty is so no more,
    /// unless its epoch is sealed.
    pub fn remove(&mut self, addr: CacheAddr, generation: BucketGen, len: u32, written: Option<Epoch>, journal: u64) {
        let id = self.of(addr);
        if self.all[id.0 as usize].generation != generation {
            self.stale_blocks = self.stale_blocks.saturating_sub(u64::from(len));
            return;
        }
        if !self.check_blocks(id, 0, len) {
            return;
        }
        let class = written.map(|e| self.class_of(e));
        self.keep_frozen(id);
        let b = &mut self.all[id.0 as usize];
        b.live -= len as u16;
        self.live_blocks -= u64::from(len);
        if let Some(class) = class
            && !self.epochs.remove(&mut b.dirt, class, len)
        {
            self.contradicts(format!("{id:?} has fewer dirty blocks than are removed"));
        }
        self.look_at(id, journal, false);
    }

    /// A node of the index at `addr` was written; or is needed no more.
    pub fn add_node(&mut self, addr: CacheAddr) {
        let id = self.of(addr);
        self.keep_frozen(id);
        self.all[id.0 as usize].live += 1;
        self.node_blocks += 1;
    }

    /// A node of the index is needed no more.
    pub fn remove_node(&mut self, addr: CacheAddr, journal: u64) {
        let id = self.of(addr);
        self.keep_frozen(id);
        let b = &mut self.all[id.0 as usize];
        assert!(b.replaced > 0 && b.kind == Kind::Nodes, "{id:?} has no nodes that were replaced");
        b.replaced -= 1;
        b.live -= 1;
        self.node_blocks -= 1;
        self.look_at(id, journal, false);
    }

    /// Moves a bucket on in its life, if it is time.
    fn look_at(&mut self, id: BucketId, journal: u64, fresh: bool) {
        let i = id.0 as usize;
        if self.all[i].life != Life::Sealed {
            return;
        }
        let dirty = self.dirty_of(id);
        let b = &self.all[i];
        if b.live == 0 && dirty == 0 {
            if b.pins == 0 {
                self.retire_to(id, journal, Life::Pending);
            }
        } else if b.kind == Kind::Data && dirty == 0 && !self.replacement.contains(id.0) && (fresh || b.pins == 0) {
            self.replacement.insert(id.0);
            self.candidates += 1;
        }
    }

    fn retire_to(&mut self, id: BucketId, journal: u64, life: Life) {
        if self.replacement.contains(id.0) {
            self.replacement.remove(id.0);
            self.candidates -= 1;
        }
        self.keep_frozen(id);
        let b = &mut self.all[id.0 as usize];
        if b.kind == Kind::Nodes {
            self.nodes -= 1;
        }
        b.kind = Kind::Free;
        b.dirt.clear();
        if b.errors > 0 || life == Life::Retired {
            b.life = Life::Retired;
            self.retired += 1;
            return;
        }
        b.life = life;
        self.pending.push_back((journal, id));
    }

    /// Evicts one bucket: raises its generation. It becomes free when entry `journal` is durable; [`Buckets::take_raised`] says what that must
    /// tell. `None`: there is none to be had.
    pub fn evict(&mut self, journal: u64) -> Option<BucketId> {
        let all = &self.all;
        let id = BucketId(self.replacement.victim(|id| all[id as usize].pins == 0)?);
        self.candidates -= 1;
        self.keep_frozen(id);
        let b = &mut self.all[id.0 as usize];
        self.live_blocks -= u64::from(b.live);
        self.stale_blocks += u64::from(b.live);
        b.live = 0;
        b.generation = BucketGen(b.generation.0.wrapping_add(1));
        self.raised.push((id, b.generation));
        self.retire_to(id, journal, Life::Pending);
        Some(id)
    }

    /// Generations that were raised since the last call: to be journaled before anything else.
    pub fn take_raised(&mut self) -> Vec<(BucketId, BucketGen)> {
        std::mem::take(&mut self.raised)
    }

    /// All entries of the journal up to `entry` are durable: what waited for them is free. Returns whether anything became so.
    pub fn journal_durable(&mut self, entry: u64) -> bool {
        let before = self.free.len();
        while let Some(&(needs, id)) = self.pending.front() {
            if needs > entry {
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
    pub fn take_cut(&mut self) -> Epoch {
        let epoch = self.epochs.seal();
        self.staged.seal(epoch);
        epoch
    }

    /// The cut that sealed `epoch` is published: all of it and of those before is clean. It takes
    /// as long as there are sealed ones; [`Buckets::tidy`] then makes candidates of their buckets.
    pub fn publish(&mut self, epoch: Epoch) {
        self.epochs.publish(epoch);
        self.stale_blocks += self.staged.publish(epoch);
    }

    /// Goes through up to `max` buckets of published epochs; true if there are more.
    pub fn tidy(&mut self, max: usize, journal: u64) -> bool {
        for _ in 0..max {
            let Some(id) = self.epochs.next_published() else { return false };
            self.look_at(id, journal, false);
        }
        !self.epochs.is_tidy()
    }

    /// Most of the bucket of `addr` is not needed any more (of nodes, half), and what is left can be moved.
    pub fn is_sparse(&self, addr: CacheAddr) -> bool {
        let b = &self.all[self.of(addr).0 as usize];
        let least = if b.kind == Kind::Nodes { 2 } else { 8 };
        b.life == Life::Sealed && u32::from(b.live - b.replaced) * least <= self.blocks
    }

    /// A stale key was dropped that named `len` blocks.
    pub fn forget_stale(&mut self, len: u64) {
        self.stale_blocks = self.stale_blocks.saturating_sub(len);
    }

    /// A write to this bucket failed, or a block of it stayed bad when it was read again: in this life it is not used again once it is empty.
    /// The next one tries it again: a sector that is written anew may be well.
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

    /// Buckets that may be filled at once.
    pub fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Buckets that wait for the journal.
    pub fn pending(&self) -> u32 {
        self.pending.len() as u32
    }

    /// Blocks in buckets that no published image has, of the open epoch and of all that are sealed.
    pub fn dirty_blocks(&self) -> (u64, u64) {
        self.epochs.blocks()
    }

    /// Of the sealed epochs' blocks, those up to `epoch`.
    pub fn dirty_blocks_upto(&self, epoch: Epoch) -> u64 {
        self.epochs.blocks_upto(epoch)
    }

    /// Blocks that the index refers to.
    pub fn live_blocks(&self) -> u64 {
        self.live_blocks
    }

    /// Blocks of nodes of the index.
    pub fn node_blocks(&self) -> u64 {
        self.node_blocks
    }

    /// Blocks that stale keys, and staged ones that are published, still name.
    pub fn stale_blocks(&self) -> u64 {
        self.stale_blocks
    }

    /// What there is, by state.
    pub fn census(&self) -> Census {
        let free = self.free() + self.pending();
        let used = self.count() - free - self.retired - self.nodes;
        Census {
            free,
            clean: self.candidates,
            dirty: used - self.candidates,
            metadata: self.nodes,
            retired: self.retired,
        }
    }

    /// Blocks of `stream` that can be had without a new bucket.
    pub fn left_open(&self, stream: Stream) -> u32 {
        let open = self.open[stream as usize].as_ref().filter(|open| self.all[open.id.0 as usize].errors == 0);
        open.map_or(0, |open| self.blocks - open.filled)
    }
}

#[cfg(test)]
mod model_tests;
