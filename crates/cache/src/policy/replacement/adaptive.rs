//! The adaptive policy: three queues of buckets, hits counted by block, survivors, and shares that
//! follow what is missed.
//!
//! **Queues.** Buckets of blocks that were read and missed ([`Origin::Read`]), of blocks that were
//! written ([`Origin::Write`]), and the main queue, of blocks that have proved themselves
//! ([`Origin::Main`]). The victim is the oldest bucket of a queue: of the blocks read if these have
//! more than their share, else of the blocks written if these have, else of the main queue. Shares
//! are parts of the buckets in use. A bucket of the main queue of which at most half is left goes
//! before all others of that queue: all that is left of it moves together, and keeps its hits. So
//! holes, which overwritten blocks leave, cost no hits.
//!
//! **Survivors.** Two bits count the hits of each block. When a bucket leaves, its blocks that were
//! hit move to the main queue. Those of the other queues begin there without hits; those of the
//! main queue have one hit less. At most half of a bucket survives, the blocks with the most hits
//! first, so that each victim gives back half a bucket at least. Moves have a budget, a part of
//! what comes to the cache ([`budget`]). Where it is used up, blocks of the other queues need two
//! hits, and then three.
//!
//! **Ghosts.** What was dropped is not remembered here: the index keeps the stale keys of evicted
//! buckets. A key has the generation of its bucket, and generations are times of a clock that goes
//! on as blocks are dropped ([`super::clock`]). So the generation says when the block was written
//! to the cache, in blocks dropped since. A block that is read again while it is young enough
//! enters the main queue; where that is full, only if its age is less than four fifths of that of
//! the oldest bucket there. Without that rule a loop over more than the cache would push itself
//! out, again and again. A block that is written again does not enter the main queue: in
//! experiments with traces that cost hits.
//!
//! **Shares.** A block that was read, and that a queue had dropped lately ([`drops`]), gives that
//! queue a quarter of a bucket ([`shares`]).
//!
//! **After a restart** hits, queues and shares are learnt anew. Buckets with data that the open
//! found begin in the queue of blocks that were written. Stale keys and summaries are still on the
//! device.
//!
//! **Memory**: for a bucket of 128 blocks 32 bytes of hits, 8 of links, 5 of its own, and 16 to 32
//! of drops: 61 to 77 bytes, 0.12 to 0.15 GiB for a TiB.

use std::cmp::Ordering;

use smallvec::SmallVec;

use super::budget::Budget;
use super::drops::Drops;
use super::hits::{HitCounts, MOST_HITS};
use super::links::{Links, MAX_STEPS, NONE, QueueEnds};
use super::origin::Origin;
use super::shares::Shares;

/// A key is a ghost until this many tenths of the cache were dropped since its block was written.
const GHOST_TENTHS: u64 = 22;
/// The last blocks that a queue has dropped, as many as this part of the cache, were dropped
/// lately.
const LATELY: u64 = 10;

/// The queue of a bucket, plus one; 0: the bucket is not in use.
const ORIGIN: u8 = 3;
const CANDIDATE: u8 = 4;
/// At most half of the bucket is left.
const THIN: u8 = 8;
/// The survivors of the bucket have moved.
const LEFT: u8 = 16;

/// The list of thin buckets of the main queue, behind those of the three origins.
const THIN_LIST: usize = 3;

/// Blocks of a bucket that are to be kept: their places in it.
pub type KeptSlots = SmallVec<[u32; 64]>;

#[derive(Debug)]
pub(super) struct Adaptive {
    links: Links,
    lists: [QueueEnds; 4],
    /// Buckets in use by each queue, candidates or not.
    used: [u32; 3],
    flags: Vec<u8>,
    /// The clock when the bucket was freed last.
    born: Vec<u32>,
    hits: HitCounts,
    shares: Shares,
    drops: Drops,
    budget: Budget,
    /// The present time of the clock.
    clock: u32,
}

impl Adaptive {
    pub fn new(buckets: usize, bucket_blocks: u32) -> Adaptive {
        Adaptive {
            links: Links::new(buckets),
            lists: [const { QueueEnds::new() }; 4],
            used: [0; 3],
            flags: vec![0; buckets],
            born: vec![0; buckets],
            hits: HitCounts::new(buckets, bucket_blocks),
            shares: Shares::new(buckets as u64),
            drops: Drops::new(buckets),
            budget: Budget::new(buckets as u64 * u64::from(bucket_blocks)),
            clock: 0,
        }
    }

    /// The queue of a bucket that is in use.
    pub fn origin(&self, id: u32) -> Option<Origin> {
        let origin = self.flags[id as usize] & ORIGIN;
        origin.checked_sub(1).map(|i| Origin::ALL[usize::from(i)])
    }

    pub fn begin(&mut self, id: u32, origin: Origin, born: u32) {
        assert_eq!(self.flags[id as usize], 0, "bucket {id} is in use already");
        self.flags[id as usize] = origin as u8 + 1;
        self.born[id as usize] = born;
        self.used[origin as usize] += 1;
        self.budget.earn(self.hits.bucket_blocks());
        self.hits.clear_bucket(id);
    }

    pub fn end(&mut self, id: u32) {
        if let Some(origin) = self.origin(id) {
            debug_assert!(!self.contains(id));
            self.used[origin as usize] -= 1;
            self.flags[id as usize] = 0;
        }
    }

    fn list_of(&self, id: u32) -> usize {
        let flags = self.flags[id as usize];
        if flags & THIN != 0 { THIN_LIST } else { usize::from((flags & ORIGIN).max(1)) - 1 }
    }

    pub fn insert(&mut self, id: u32) {
        let list = self.list_of(id);
        self.lists[list].push(&mut self.links, id);
        self.flags[id as usize] |= CANDIDATE;
    }

    /// As `insert`, for a bucket whose survivors have moved: it is the next victim of its queue.
    pub fn insert_first(&mut self, id: u32) {
        self.hits.clear_bucket(id);
        self.flags[id as usize] |= LEFT;
        let list = self.list_of(id);
        self.lists[list].push_oldest(&mut self.links, id);
        self.flags[id as usize] |= CANDIDATE;
    }

    pub fn remove(&mut self, id: u32) {
        let list = self.list_of(id);
        self.lists[list].unlink(&mut self.links, id);
        self.flags[id as usize] &= !CANDIDATE;
    }

    pub fn contains(&self, id: u32) -> bool {
        self.flags[id as usize] & CANDIDATE != 0
    }

    /// At most half of a bucket is left.
    pub fn thin(&mut self, id: u32) {
        let flags = self.flags[id as usize];
        if self.origin(id) != Some(Origin::Main) || flags & THIN != 0 {
            return;
        }
        if flags & CANDIDATE == 0 {
            self.flags[id as usize] |= THIN;
            return;
        }
        self.remove(id);
        self.flags[id as usize] |= THIN;
        self.insert(id);
    }

    pub fn touch(&mut self, id: u32, slot: u32, blocks: u32) {
        (slot..slot + blocks).for_each(|slot| self.hits.add(id, slot));
    }

    pub fn hits(&self, id: u32, slot: u32) -> u8 {
        self.hits.get(id, slot)
    }

    pub fn set_hits(&mut self, id: u32, slot: u32, hits: u8) {
        self.hits.set(id, slot, hits);
    }

    /// Notes that `blocks` blocks of a victim were moved.
    pub fn moved(&mut self, blocks: u32) {
        self.budget.spend(blocks);
    }

    /// True if a queue has more than its share of the buckets in use.
    fn exceeds(&self, origin: Origin) -> bool {
        self.shares.compare(origin, self.used) == Ordering::Greater
    }

    /// The queues, in the order in which they give victims.
    fn givers(&self) -> [Origin; 3] {
        if self.exceeds(Origin::Read) {
            [Origin::Read, Origin::Write, Origin::Main]
        } else if self.exceeds(Origin::Write) {
            [Origin::Write, Origin::Main, Origin::Read]
        } else {
            [Origin::Main, Origin::Read, Origin::Write]
        }
    }

    /// A bucket that must not be evicted now goes to the other end of its list, so that it does not
    /// stand in the way.
    pub fn victim(&mut self, mut may: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut steps = 0;
        for origin in self.givers() {
            let lists: &[usize] = match origin {
                Origin::Main => &[THIN_LIST, Origin::Main as usize],
                Origin::Read => &[Origin::Read as usize],
                Origin::Write => &[Origin::Write as usize],
            };
            for &list in lists {
                for _ in 0..self.lists[list].len().min(MAX_STEPS - steps) {
                    steps += 1;
                    let id = self.lists[list].oldest();
                    debug_assert_ne!(id, NONE);
                    let goes = may(id);
                    self.remove(id);
                    if goes {
                        return Some(id);
                    }
                    self.insert(id);
                }
            }
        }
        None
    }

    /// True if all that is left of a victim is to be kept.
    fn moves_whole(&self, id: u32) -> bool {
        self.flags[id as usize] & (THIN | LEFT) == THIN
    }

    /// The places of a victim whose blocks are to be kept, in order. Blocks that are gone may be
    /// among them where at most half of the bucket is left.
    pub fn survivors(&self, id: u32) -> KeptSlots {
        let mut kept = KeptSlots::new();
        let Some(origin) = self.origin(id) else { return kept };
        if self.moves_whole(id) {
            kept.extend(0..self.hits.bucket_blocks());
            return kept;
        }
        let least = if origin == Origin::Main { 1 } else { self.budget.least_hits() };
        let most = self.hits.bucket_blocks() as usize / 2;
        for hits in (least..=MOST_HITS).rev() {
            for slot in self.hits.slots_with(id, hits) {
                if kept.len() < most {
                    kept.push(slot);
                }
            }
        }
        kept.sort_unstable();
        kept
    }

    /// The hits that a survivor has after its move.
    pub fn hits_after(&self, id: u32, slot: u32) -> u8 {
        match self.origin(id) {
            Some(Origin::Main) if self.moves_whole(id) => self.hits.get(id, slot),
            Some(Origin::Main) => self.hits.get(id, slot).saturating_sub(1),
            _ => 0,
        }
    }

    pub fn evicted(&mut self, id: u32, born: u32, dropped: u32, clock: u32) {
        self.clock = clock;
        if let Some(origin) = self.origin(id) {
            self.drops.note(id, born, origin, dropped);
        }
    }

    pub fn set_clock(&mut self, clock: u32) {
        self.clock = clock;
    }

    fn age(&self, born: u32) -> u32 {
        self.clock.saturating_sub(born)
    }

    pub fn is_ghost(&self, born: u32) -> bool {
        u64::from(self.age(born)) * 10 < GHOST_TENTHS * self.flags.len() as u64
    }

    /// True if a missed block of this generation is to enter the main queue.
    pub fn admits(&self, born: u32) -> bool {
        if !self.is_ghost(born) {
            return false;
        }
        let is_empty = self.used[Origin::Main as usize] == 0;
        if is_empty || self.shares.compare(Origin::Main, self.used) == Ordering::Less {
            return true;
        }
        match self.lists[Origin::Main as usize].oldest() {
            NONE => false,
            oldest => {
                let [age, of_oldest] = [born, self.born[oldest as usize]].map(|b| self.age(b));
                u64::from(age) * 5 < u64::from(of_oldest) * 4
            }
        }
    }

    pub fn missed(&mut self, id: u32, born: u32, blocks: u32) {
        let all = u64::from(self.hits.bucket_blocks()) * self.flags.len() as u64;
        if let Some(origin) = self.drops.by_whom(id, born, all / LATELY) {
            (0..blocks.min(self.hits.bucket_blocks())).for_each(|_| self.shares.give(origin));
        }
    }

    /// The shares of the queues, each in thousandths of the cache.
    pub fn shares(&self) -> [u32; 3] {
        Origin::ALL.map(|o| self.shares.thousandths(o))
    }

    pub fn len(&self) -> usize {
        self.lists.iter().map(QueueEnds::len).sum()
    }
}

#[cfg(test)]
#[path = "adaptive_tests.rs"]
mod tests;
