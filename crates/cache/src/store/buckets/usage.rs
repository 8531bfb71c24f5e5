//! The use of blocks, by which it is decided which bucket goes next, and what is known of blocks
//! that went.
//!
//! **Generations are times.** Evicting a bucket raises its generation to what a clock shows that
//! goes on as blocks are dropped ([`DropClock`]). So the generation in a key tells how old its
//! blocks are, also when it is stale.

use base::{BucketGen, BucketId, CacheAddr};
use model::cache::Policy;

use super::geometry::Geometry;
use crate::policy::replacement::{DropClock, KeptSlots, Origin, Replacement};

/// The candidates for eviction, the hits of blocks, and the clock of which generations are times.
///
/// A bucket is a candidate, or is leaving, or neither; a victim is none of them until it is said
/// whether it is evicted or leaves.
pub struct Usage {
    geometry: Geometry,
    replacement: Replacement,
    /// Buckets whose survivors move.
    leaving: u32,
    /// Blocks that were to be kept, and went.
    lost_survivors: u64,
    clock: DropClock,
}

impl Usage {
    /// Nothing is in use.
    pub(super) fn new(geometry: Geometry, policy: Policy, seed: u64) -> Usage {
        let (count, blocks) = (geometry.count() as usize, geometry.bucket_blocks());
        Usage {
            geometry,
            replacement: Replacement::new(policy, count, blocks, seed),
            leaving: 0,
            lost_survivors: 0,
            clock: DropClock::new(blocks),
        }
    }

    /// A bucket has this generation, as a checkpoint or the journal says: it is not after now.
    pub(super) fn restore_clock(&mut self, generation: BucketGen) {
        self.clock.set(generation.0);
    }

    /// All generations were told.
    pub(super) fn settle_clock(&mut self) {
        self.replacement.set_clock(self.clock.now());
    }

    /// A bucket is to be filled, with blocks of this origin.
    pub(super) fn begin(&mut self, id: BucketId, origin: Origin, generation: BucketGen) {
        self.replacement.begin(id.0, origin, generation.0);
    }

    /// True if a bucket may be evicted.
    pub(super) fn is_candidate(&self, id: BucketId) -> bool {
        self.replacement.contains(id.0)
    }

    /// A bucket, which is no candidate yet, may be evicted from now on.
    pub(super) fn add_candidate(&mut self, id: BucketId) {
        self.replacement.insert(id.0);
    }

    /// A bucket may not be evicted any more, if it might be until now.
    pub(super) fn drop_candidate(&mut self, id: BucketId) {
        if self.replacement.contains(id.0) {
            self.replacement.remove(id.0);
        }
    }

    /// At most half of the blocks of a bucket are left.
    pub(super) fn thin(&mut self, id: BucketId) {
        self.replacement.thin(id.0);
    }

    /// A bucket holds nothing that is needed any more.
    pub(super) fn end(&mut self, id: BucketId) {
        self.drop_candidate(id);
        self.replacement.end(id.0);
    }

    /// Takes out the next candidate that `may` go.
    pub(super) fn take_victim(&mut self, may: impl Fn(BucketId) -> bool) -> Option<BucketId> {
        self.replacement.victim(|id| may(BucketId(id))).map(BucketId)
    }

    /// A victim of generation `born` is evicted with `dropped` blocks. Returns its new generation.
    pub(super) fn evict(&mut self, id: BucketId, born: BucketGen, dropped: u32) -> BucketGen {
        let generation = self.clock.evict(born.0, dropped);
        self.replacement.evicted(id.0, born.0, dropped, self.clock.now());
        BucketGen(generation)
    }

    /// The survivors of a victim are to move.
    pub(super) fn begin_leaving(&mut self) {
        self.leaving += 1;
    }

    /// The survivors of a victim have moved, or were given up: it is a candidate again, the first
    /// of its queue.
    pub(super) fn end_leaving(&mut self, id: BucketId) {
        self.leaving -= 1;
        self.replacement.insert_first(id.0);
    }

    /// Buckets whose survivors move.
    pub fn leaving(&self) -> u32 {
        self.leaving
    }

    /// Buckets that may be evicted; those whose survivors move are among them.
    pub(super) fn clean(&self) -> u32 {
        self.replacement.len() as u32 + self.leaving
    }

    /// The blocks of a leaving bucket that are to be kept, by their places. Blocks that are gone
    /// may be among them.
    pub fn survivors(&self, id: BucketId) -> KeptSlots {
        self.replacement.survivors(id.0)
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
        (self.geometry.of(addr).0, self.geometry.slot(addr))
    }

    /// A read hit of `len` blocks.
    pub fn touch(&mut self, addr: CacheAddr, len: u32) {
        let (id, slot) = self.place(addr);
        self.replacement.touch(id, slot, len);
    }

    /// `len` blocks are gone, and their hits with them.
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
        self.hits(addr) + u8::from(self.is_main(self.geometry.of(addr)))
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

    /// True if a bucket in use is in the main queue.
    pub(super) fn is_main(&self, id: BucketId) -> bool {
        self.replacement.origin(id.0) == Some(Origin::Main)
    }

    /// Blocks were read that a stale key names. The shares of the queues follow. True if they are
    /// to enter the main queue.
    pub fn missed(&mut self, addr: CacheAddr, generation: BucketGen, blocks: u64) -> bool {
        let enters = self.replacement.admits(generation.0);
        self.replacement.missed(self.geometry.of(addr).0, generation.0, blocks as u32);
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
