//! Which bucket goes, what of it is kept, and what is known of blocks that went.
//!
//! A victim without survivors is evicted at once. One with survivors is *leaving* until they have
//! moved; then it is a candidate again, the first of its queue. Where room is short, buckets are
//! evicted without waiting for that: then survivors are dropped.
//!
//! **Generations are times.** Evicting a bucket raises its generation to what a clock shows that
//! goes on as blocks are dropped ([`crate::policy::replacement::DropClock`]). So the generation in
//! a key tells how old its blocks are, also when it is stale.

use base::{BucketGen, BucketId, CacheAddr, RecordSeq};
use format::cache::bucket::BucketKind;

use super::Buckets;
use super::bucket::Life;
use crate::policy::replacement::{Origin, Survivors};

/// The outcome of taking a victim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Victim {
    /// The victim is evicted, and has this generation now.
    Evicted(BucketId, BucketGen),
    /// Blocks of the victim are to be moved first. It is pinned.
    Leaving(BucketId, BucketGen),
}

/// A thin bucket: at most half of it is to be moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thinnest {
    pub id: BucketId,
    pub generation: BucketGen,
    /// All that is left of it is to be moved, not just what is dirty.
    pub whole: bool,
}

impl Buckets {
    /// Evicts one bucket: raises its generation. It becomes free when the record that will tell of
    /// it is durable, which is the next one. `None`: there is none to be had.
    pub(in crate::store) fn evict(&mut self) -> Option<Victim> {
        let id = self.take_victim()?;
        let live = u64::from(self.all[id.0 as usize].live);
        self.lost_survivors += (self.replacement.survivors(id.0).len() as u64).min(live);
        Some(self.evict_victim(id))
    }

    /// The same for a bucket without survivors. One that has some is leaving.
    pub(in crate::store) fn evict_or_keep(&mut self) -> Option<Victim> {
        let id = self.take_victim()?;
        if self.replacement.survivors(id.0).is_empty() {
            return Some(self.evict_victim(id));
        }
        self.leaving += 1;
        let b = &mut self.all[id.0 as usize];
        b.leaving = true;
        b.pins.add();
        Some(Victim::Leaving(id, b.generation))
    }

    fn evict_victim(&mut self, id: BucketId) -> Victim {
        Victim::Evicted(id, self.raise_victim(id, RecordSeq(self.clock.0 + 1)))
    }

    /// Evicts one bucket that is free at once, without a record: before anything is served. False:
    /// there is none to be had.
    pub fn evict_unlogged(&mut self) -> bool {
        let victim = self.take_victim();
        if let Some(id) = victim {
            self.raise_victim(id, self.clock);
        }
        self.journal_durable(self.clock);
        victim.is_some()
    }

    /// True if at most half of what the buckets can hold is needed.
    pub fn is_half_garbage(&self) -> bool {
        2 * self.live_blocks <= u64::from(self.count()) * u64::from(self.blocks)
    }

    /// Looks at up to `most` buckets, after those that were looked at before. Of the unpinned ones
    /// that are thin, and not dirty in a sealed epoch, it pins the thinnest. It is found once in an
    /// epoch. `clean_too`: also if none of its blocks is dirty.
    pub fn pin_thinnest(&mut self, most: u32, clean_too: bool) -> Option<Thinnest> {
        let (count, open, above) = (self.count(), self.epochs.open(), self.epochs.above());
        let keeps_all = self.is_half_garbage();
        let mut thinnest: Option<(u32, u32)> = None;
        for _ in 0..most.min(count) {
            let id = self.looked_at;
            self.looked_at = (id + 1) % count;
            let b = &self.all[id as usize];
            let is_idle = b.pins.is_none() && !b.leaving;
            let is_used = (b.life, b.kind, is_idle) != (Life::Sealed, BucketKind::Data, true);
            if is_used || b.compacted_in == open {
                continue;
            }
            let dirty = match b.dirt.above(above) {
                0 => clean_too.then_some(0),
                _ => b.dirt.only_of(open, above),
            };
            let live = u32::from(b.live);
            let left = |dirty| if keeps_all && 2 * live <= self.blocks { live } else { dirty };
            let thin = dirty.map(left).filter(|left| (1..=self.blocks / 2).contains(left));
            thinnest = [thinnest, thin.map(|left| (left, id))].into_iter().flatten().min();
        }
        let (left, id) = thinnest?;
        let b = &mut self.all[id as usize];
        b.pins.add();
        b.compacted_in = open;
        let whole = keeps_all && left == u32::from(b.live);
        Some(Thinnest { id: BucketId(id), generation: b.generation, whole })
    }

    fn take_victim(&mut self) -> Option<BucketId> {
        let all = &self.all;
        self.replacement.victim(|id| all[id as usize].pins.is_none()).map(BucketId)
    }

    fn raise_victim(&mut self, id: BucketId, told: RecordSeq) -> BucketGen {
        self.candidates -= 1;
        self.keep_frozen(id);
        let b = &mut self.all[id.0 as usize];
        let (live, born) = (std::mem::take(&mut b.live), b.generation);
        b.generation = BucketGen(self.drop_clock.evict(born.0, u32::from(live)));
        let generation = b.generation;
        self.live_blocks -= u64::from(live);
        self.stale_blocks += u64::from(live);
        self.replacement.evicted(id.0, born.0, u32::from(live), self.drop_clock.now());
        self.retire_to(id, told, Life::Pending);
        generation
    }

    /// The blocks of a leaving bucket that are to be kept, by their places. Blocks that are gone
    /// may be among them.
    pub fn survivors(&self, id: BucketId) -> Survivors {
        self.replacement.survivors(id.0)
    }

    /// The survivors of a leaving bucket have moved, or were given up; its pin is given back.
    pub fn end_leaving(&mut self, id: BucketId) {
        let b = &mut self.all[id.0 as usize];
        assert!(std::mem::take(&mut b.leaving), "{id:?} was not leaving");
        self.leaving -= 1;
        self.replacement.insert_first(id.0);
        self.unpin(CacheAddr(u64::from(id.0) * u64::from(self.blocks)));
    }

    /// Notes that `blocks` survivors were moved.
    pub(in crate::store) fn moved(&mut self, blocks: u64) {
        self.replacement.moved(blocks as u32);
    }

    /// Survivors of a leaving bucket are given up.
    pub fn lose_survivors(&mut self, blocks: u64) {
        self.lost_survivors += blocks;
    }

    /// Survivors that were dropped, as room was short.
    pub fn lost_survivors(&self) -> u64 {
        self.lost_survivors
    }

    fn place(&self, addr: CacheAddr) -> (u32, u32) {
        let blocks = u64::from(self.blocks);
        ((addr.0 / blocks) as u32, (addr.0 % blocks) as u32)
    }

    /// A read hit of `len` blocks.
    pub fn touch(&mut self, addr: CacheAddr, len: u32) {
        let (id, slot) = self.place(addr);
        self.replacement.touch(id, slot, len);
    }

    pub(super) fn forget_hits(&mut self, addr: CacheAddr, len: u32) {
        let (id, slot) = self.place(addr);
        (slot..slot + len).for_each(|slot| self.replacement.set_hits(id, slot, 0));
    }

    /// The hits of a block.
    pub fn hits(&self, addr: CacheAddr) -> u8 {
        let (id, slot) = self.place(addr);
        self.replacement.hits(id, slot)
    }

    /// The hits that a block takes with it when it is overwritten. In the main queue that counts as
    /// one.
    pub fn hits_when_replaced(&self, addr: CacheAddr) -> u8 {
        let (id, slot) = self.place(addr);
        let main = self.replacement.origin(id) == Some(Origin::Main);
        self.replacement.hits(id, slot) + u8::from(main)
    }

    /// The hits that a survivor has when it was moved.
    pub fn hits_after(&self, addr: CacheAddr) -> u8 {
        let (id, slot) = self.place(addr);
        self.replacement.hits_after(id, slot)
    }

    /// A block has so many hits.
    pub fn set_hits(&mut self, addr: CacheAddr, hits: u8) {
        let (id, slot) = self.place(addr);
        self.replacement.set_hits(id, slot, hits);
    }

    /// True if a key of that generation says that a block is in the main queue.
    pub fn is_in_main(&self, addr: CacheAddr, generation: BucketGen) -> bool {
        let origin = self.replacement.origin(self.of(addr).0);
        self.is_current(addr, generation) && origin == Some(Origin::Main)
    }

    /// Blocks were read that a stale key names. The shares of the queues follow. True if they are
    /// to enter the main queue.
    pub fn missed(&mut self, addr: CacheAddr, generation: BucketGen, blocks: u64) -> bool {
        let enters = self.replacement.admits(generation.0);
        let (id, _) = self.place(addr);
        self.replacement.missed(id, generation.0, blocks as u32);
        enters
    }

    /// True if a stale key of that generation is to be kept, for it tells what was dropped.
    pub fn is_ghost(&self, generation: BucketGen) -> bool {
        self.replacement.is_ghost(generation.0)
    }

    /// The shares of the queues in thousandths of the cache: blocks read and missed, blocks
    /// written, the main queue.
    pub fn shares(&self) -> Option<[u32; 3]> {
        self.replacement.shares()
    }
}
