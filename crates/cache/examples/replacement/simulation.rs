//! A cache of buckets, with the policies as the cache has them: missed blocks, written blocks and
//! those of the main queue are appended to open buckets of their own; a victim takes all of its
//! blocks with it, but for the survivors; an overwritten block leaves a hole. Where a dropped block
//! was, and in which generation, is known until it comes back: the cache's index has its stale key.

use std::collections::VecDeque;

use cache::replacement::{DropClock, Origin, Replacement};
use model::cache::Policy;

pub const BUCKET_BLOCKS: u32 = 128;
const NONE: u32 = u32::MAX;

/// One block, and whether it is written.
pub type Access = (u32, bool);

/// Where a block was when it was dropped.
#[derive(Clone, Copy)]
struct Stale {
    bucket: u32,
    generation: u32,
}

pub struct Cache {
    replacement: Replacement,
    /// The place of each block of the volume: bucket and slot as one number.
    place: Vec<u32>,
    stale: Vec<Option<Stale>>,
    /// The block in each place.
    holds: Vec<u32>,
    live: Vec<u32>,
    generation: Vec<u32>,
    clock: DropClock,
    free: VecDeque<u32>,
    /// Bucket and blocks filled, by origin.
    open: [Option<(u32, u32)>; 3],
    /// Blocks that came from a client or from the pool, and survivors.
    pub inserted: u64,
    pub moved: u64,
}

impl Cache {
    pub fn new(policy: Policy, blocks: usize, buckets: u32) -> Cache {
        Cache {
            replacement: Replacement::new(policy, buckets as usize, BUCKET_BLOCKS, 1),
            place: vec![NONE; blocks],
            stale: vec![None; blocks],
            holds: vec![NONE; (buckets * BUCKET_BLOCKS) as usize],
            live: vec![0; buckets as usize],
            generation: vec![0; buckets as usize],
            clock: DropClock::new(BUCKET_BLOCKS),
            free: (0..buckets).collect(),
            open: [None; 3],
            inserted: 0,
            moved: 0,
        }
    }

    /// True if it was a hit.
    pub fn access(&mut self, (block, write): Access) -> bool {
        let at = self.place[block as usize];
        if at != NONE && !write {
            self.replacement.touch(at / BUCKET_BLOCKS, at % BUCKET_BLOCKS, 1);
            return true;
        }
        let (mut main, mut hits) = (false, 0);
        if at != NONE {
            let (bucket, slot) = (at / BUCKET_BLOCKS, at % BUCKET_BLOCKS);
            main = self.replacement.origin(bucket) == Some(Origin::Main);
            hits = self.replacement.hits(bucket, slot) + u8::from(main);
            self.drop_block(at);
        } else if let Some(stale) = self.stale[block as usize].take() {
            if !write {
                main = self.replacement.admits(stale.generation);
                self.replacement.missed(stale.bucket, stale.generation, 1);
            }
        }
        let origin = match (main, write) {
            (true, _) => Origin::Main,
            // The other policies have one open bucket for what is written, and one for what missed.
            (false, true) => Origin::Write,
            (false, false) => Origin::Read,
        };
        if self.open[origin as usize].is_none() {
            self.make_room();
        }
        self.append(origin, block, hits);
        self.inserted += 1;
        false
    }

    /// Appends a block to its open bucket; there is a free bucket, should one be needed.
    fn append(&mut self, origin: Origin, block: u32, hits: u8) {
        let (bucket, filled) = self.open[origin as usize].unwrap_or_else(|| {
            let Some(bucket) = self.free.pop_front() else { unreachable!("there was room") };
            self.replacement.begin(bucket, origin, self.generation[bucket as usize]);
            (bucket, 0)
        });
        let at = bucket * BUCKET_BLOCKS + filled;
        self.holds[at as usize] = block;
        self.place[block as usize] = at;
        self.live[bucket as usize] += 1;
        self.replacement.set_hits(bucket, filled, hits);
        let full = filled + 1 == BUCKET_BLOCKS;
        self.open[origin as usize] = (!full).then_some((bucket, filled + 1));
        if full {
            self.replacement.insert(bucket);
            self.look_at(bucket);
        }
    }

    /// An overwritten block.
    fn drop_block(&mut self, at: u32) {
        let bucket = at / BUCKET_BLOCKS;
        self.holds[at as usize] = NONE;
        self.live[bucket as usize] -= 1;
        self.replacement.set_hits(bucket, at % BUCKET_BLOCKS, 0);
        if self.replacement.contains(bucket) {
            self.look_at(bucket);
        }
    }

    /// A sealed bucket without blocks is free.
    fn look_at(&mut self, bucket: u32) {
        let live = self.live[bucket as usize];
        if live == 0 {
            self.replacement.remove(bucket);
            self.replacement.end(bucket);
            self.free.push_back(bucket);
        } else if live * 2 <= BUCKET_BLOCKS {
            self.replacement.thin(bucket);
        }
    }

    /// Evicts until a bucket is free. Survivors are in memory until then: the cache has free
    /// buckets for them, under all policies, which are no part of this model.
    fn make_room(&mut self) {
        while self.free.is_empty() {
            self.evict();
        }
    }

    fn evict(&mut self) {
        let Some(bucket) = self.replacement.victim(|_| true) else {
            unreachable!("no more than three buckets are open")
        };
        let mut kept = Vec::new();
        for slot in self.replacement.survivors(bucket) {
            let at = bucket * BUCKET_BLOCKS + slot;
            if self.holds[at as usize] != NONE {
                kept.push((at, self.replacement.hits_after(bucket, slot)));
            }
        }
        let from = bucket * BUCKET_BLOCKS;
        let generation = self.generation[bucket as usize];
        let survivors: Vec<(u32, u8)> =
            kept.iter().map(|&(at, hits)| (self.holds[at as usize], hits)).collect();
        kept.iter().for_each(|&(at, _)| self.holds[at as usize] = NONE);
        let mut dropped = 0;
        for at in from..from + BUCKET_BLOCKS {
            let block = std::mem::replace(&mut self.holds[at as usize], NONE);
            if block != NONE {
                self.place[block as usize] = NONE;
                self.stale[block as usize] = Some(Stale { bucket, generation });
                dropped += 1;
            }
        }
        self.live[bucket as usize] = 0;
        self.generation[bucket as usize] = self.clock.evict(generation, dropped);
        self.replacement.evicted(bucket, generation, dropped, self.clock.now());
        self.replacement.end(bucket);
        self.free.push_back(bucket);
        self.moved += survivors.len() as u64;
        self.replacement.moved(survivors.len() as u32);
        for (block, hits) in survivors {
            self.append(Origin::Main, block, hits);
        }
    }
}
