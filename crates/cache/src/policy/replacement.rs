//! Replacement: which bucket is evicted next, and which of its blocks are kept.
//!
//! Pure state over bucket numbers, allocated once. Every call takes a bounded number of steps,
//! whatever the number of buckets and however recency is distributed: a victim that costs a search
//! is a pause that foreground I/O sees.
//!
//! **Bound.** One call of [`Replacement::victim`] looks at no more than `MAX_STEPS` buckets, one of
//! [`Replacement::survivors`] at the blocks of one bucket.
//!
//! **Pins.** A bucket that must not be evicted now is passed over. After `MAX_STEPS` such buckets
//! in a row `victim` returns `None`; the next call goes on behind them.

mod adaptive;
mod budget;
mod clock;
mod drops;
mod hits;
mod links;
mod ordered;
mod origin;
mod random;
mod shares;

use adaptive::Adaptive;
pub use adaptive::KeptSlots;
pub use clock::DropClock;
use model::cache::Policy;
use ordered::OrderedQueue;
pub use origin::Origin;
use random::Random;

/// True if a policy keeps blocks of a victim.
pub fn keeps_blocks(policy: Policy) -> bool {
    policy == Policy::Adaptive
}

/// The way in which victims are chosen.
#[derive(Clone, Copy, Debug)]
pub struct Eviction {
    /// The policy.
    pub policy: Policy,
    /// The seed, for the policy that draws victims.
    pub seed: u64,
}

#[derive(Debug)]
enum Chooser {
    Ordered(OrderedQueue),
    Random(Random),
    Adaptive(Box<Adaptive>),
}

/// The candidates for eviction among a fixed number of buckets. 8 to 10 bytes a bucket; with
/// [`Policy::Adaptive`] 29 to 45, and 2 bits a block.
#[derive(Debug)]
pub struct Replacement(Chooser);

impl Replacement {
    /// A state without candidates, for buckets `0..buckets` of `bucket_blocks` blocks each.
    pub fn new(policy: Policy, buckets: usize, bucket_blocks: u32, seed: u64) -> Replacement {
        assert!(buckets < links::NONE as usize, "bucket numbers are 32 bits");
        Replacement(match policy {
            Policy::Lru => Chooser::Ordered(OrderedQueue::new(buckets, true)),
            Policy::Fifo => Chooser::Ordered(OrderedQueue::new(buckets, false)),
            Policy::Random => Chooser::Random(Random::new(buckets, seed)),
            Policy::Adaptive => Chooser::Adaptive(Box::new(Adaptive::new(buckets, bucket_blocks))),
        })
    }

    fn adaptive(&self) -> Option<&Adaptive> {
        match &self.0 {
            Chooser::Adaptive(c) => Some(c),
            _ => None,
        }
    }

    fn adaptive_mut(&mut self) -> Option<&mut Adaptive> {
        match &mut self.0 {
            Chooser::Adaptive(c) => Some(c),
            _ => None,
        }
    }

    /// The bucket is to be filled, with blocks of this origin; none of them was hit yet. `born`:
    /// its generation, which is what the clock showed when it was evicted last.
    pub fn begin(&mut self, id: u32, origin: Origin, born: u32) {
        if let Some(c) = self.adaptive_mut() {
            c.begin(id, origin, born);
        }
    }

    /// The bucket, which is no candidate, holds nothing that is needed any more.
    pub fn end(&mut self, id: u32) {
        if let Some(c) = self.adaptive_mut() {
            c.end(id);
        }
    }

    /// The bucket is a candidate from now on; it must not be one yet.
    pub fn insert(&mut self, id: u32) {
        assert!(!self.contains(id), "bucket {id} is a candidate already");
        match &mut self.0 {
            Chooser::Ordered(c) => c.insert(id),
            Chooser::Random(c) => c.insert(id),
            Chooser::Adaptive(c) => c.insert(id),
        }
    }

    /// A victim whose survivors have moved is a candidate again, the first of its queue, without
    /// hits.
    pub fn insert_first(&mut self, id: u32) {
        match &mut self.0 {
            Chooser::Adaptive(c) => {
                assert!(!c.contains(id), "bucket {id} is a candidate already");
                c.insert_first(id);
            }
            _ => self.insert(id),
        }
    }

    /// The bucket is no candidate any more; it must be one.
    pub fn remove(&mut self, id: u32) {
        assert!(self.contains(id), "bucket {id} is no candidate");
        match &mut self.0 {
            Chooser::Ordered(c) => c.remove(id),
            Chooser::Random(c) => c.remove(id),
            Chooser::Adaptive(c) => c.remove(id),
        }
    }

    /// True if the bucket is a candidate.
    pub fn contains(&self, id: u32) -> bool {
        match &self.0 {
            Chooser::Ordered(c) => c.contains(id),
            Chooser::Random(c) => c.contains(id),
            Chooser::Adaptive(c) => c.contains(id),
        }
    }

    /// At most half of the blocks of a bucket are left.
    pub fn thin(&mut self, id: u32) {
        if let Some(c) = self.adaptive_mut() {
            c.thin(id);
        }
    }

    /// A read hit of `blocks` blocks from `slot` on in the bucket, candidate or not.
    pub fn touch(&mut self, id: u32, slot: u32, blocks: u32) {
        match &mut self.0 {
            Chooser::Ordered(c) => c.touch(id),
            Chooser::Random(_) => {}
            Chooser::Adaptive(c) => c.touch(id, slot, blocks),
        }
    }

    /// The hits of a block, at most 3; 0 where they are not counted.
    pub fn hits(&self, id: u32, slot: u32) -> u8 {
        self.adaptive().map_or(0, |c| c.hits(id, slot))
    }

    /// Sets the hits of a block.
    pub fn set_hits(&mut self, id: u32, slot: u32, hits: u8) {
        if let Some(c) = self.adaptive_mut() {
            c.set_hits(id, slot, hits);
        }
    }

    /// The hits that a survivor has after its move.
    pub fn hits_after(&self, id: u32, slot: u32) -> u8 {
        self.adaptive().map_or(0, |c| c.hits_after(id, slot))
    }

    /// The origin of the blocks of a bucket in use, if it is known.
    pub fn origin(&self, id: u32) -> Option<Origin> {
        self.adaptive().and_then(|c| c.origin(id))
    }

    /// Takes out the next victim that `may` go. `None`: there is none, or as many as one call looks
    /// at must stay; then the next call looks further.
    pub fn victim(&mut self, may: impl FnMut(u32) -> bool) -> Option<u32> {
        match &mut self.0 {
            Chooser::Ordered(c) => c.victim(may),
            Chooser::Random(c) => c.victim(may),
            Chooser::Adaptive(c) => c.victim(may),
        }
    }

    /// The blocks of a victim that are to be kept, by their places in it, in order. Places whose
    /// blocks are gone may be among them.
    pub fn survivors(&self, id: u32) -> KeptSlots {
        self.adaptive().map_or_else(KeptSlots::new, |c| c.survivors(id))
    }

    /// Notes that `blocks` survivors were moved.
    pub fn moved(&mut self, blocks: u32) {
        if let Some(c) = self.adaptive_mut() {
            c.moved(blocks);
        }
    }

    /// A victim of generation `born` is evicted, and `dropped` blocks with it. The [`DropClock`]
    /// shows `clock`.
    pub fn evicted(&mut self, id: u32, born: u32, dropped: u32, clock: u32) {
        if let Some(c) = self.adaptive_mut() {
            c.evicted(id, born, dropped, clock);
        }
    }

    /// Sets the clock to what it showed before the restart.
    pub fn set_clock(&mut self, clock: u32) {
        if let Some(c) = self.adaptive_mut() {
            c.set_clock(clock);
        }
    }

    /// True if a stale key with this generation is a ghost: its blocks were in the cache not long
    /// ago.
    pub fn is_ghost(&self, born: u32) -> bool {
        self.adaptive().is_some_and(|c| c.is_ghost(born))
    }

    /// True if a block that was missed enters the main queue. It was in the cache before, in a
    /// bucket of generation `born`.
    pub fn admits(&self, born: u32) -> bool {
        self.adaptive().is_some_and(|c| c.admits(born))
    }

    /// Notes that blocks were read and missed which had been in this bucket, in generation `born`.
    /// The shares follow.
    pub fn missed(&mut self, id: u32, born: u32, blocks: u32) {
        if let Some(c) = self.adaptive_mut() {
            c.missed(id, born, blocks);
        }
    }

    /// The shares of the queues in thousandths of the cache, by [`Origin`], if there are any.
    pub fn shares(&self) -> Option<[u32; 3]> {
        self.adaptive().map(Adaptive::shares)
    }

    /// The number of candidates.
    pub fn len(&self) -> usize {
        match &self.0 {
            Chooser::Ordered(c) => c.len(),
            Chooser::Random(c) => c.len(),
            Chooser::Adaptive(c) => c.len(),
        }
    }

    /// True if there is no candidate.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
#[path = "replacement_tests.rs"]
mod tests;
