//! Which queue dropped a bucket's blocks, and how many it has dropped since.
//!
//! The life of a bucket, from its filling to its eviction, is named by number and generation. Each
//! life that ended has two places in a table, by its hash, and takes the place with the older
//! entry. Age is counted in blocks that the queue of the entry has dropped since, so the other
//! queues, which drop many more buckets, do not push out the entries of the main queue. An entry
//! has a tag, another part of the hash. So a life that was forgotten is not taken for another one.
//! Otherwise a queue would get more for blocks that were dropped long ago, and most blocks that are
//! missed are of that kind. The table has two to four entries a bucket, of 8 bytes: a bucket of
//! which little is left when it goes takes an entry too.

use base::prng::mix64;

use super::origin::Origin;

/// The bits from here on name the queue; those below have the count of its dropped blocks.
const SHIFT: u32 = 30;
const COUNT: u32 = (1 << SHIFT) - 1;

/// The end of a life.
#[derive(Clone, Copy, Debug)]
struct EndedLife {
    tag: u32,
    /// The queue, and the count of its dropped blocks then.
    at: u32,
}

/// No life with this hash has ended.
const NONE: EndedLife = EndedLife { tag: 0, at: u32::MAX };

#[derive(Debug)]
pub(super) struct Drops {
    last: Vec<EndedLife>,
    /// Blocks dropped by each queue.
    dropped: [u32; 3],
}

impl Drops {
    pub fn new(buckets: usize) -> Drops {
        Drops { last: vec![NONE; (buckets * 2).next_power_of_two()], dropped: [0; 3] }
    }

    /// The places of a life, and its tag.
    fn places(&self, id: u32, born: u32) -> ([usize; 2], u32) {
        let hash = mix64(u64::from(id) << 32 | u64::from(born));
        let other = mix64(hash);
        let mask = self.last.len() - 1;
        ([hash as usize & mask, other as usize & mask], (hash >> 32) as u32)
    }

    /// The queue of an entry, and the blocks that it has dropped since.
    fn since(&self, ended: EndedLife) -> Option<(Origin, u32)> {
        let origin = *Origin::ALL.get((ended.at >> SHIFT) as usize)?;
        Some((origin, self.dropped[origin as usize].wrapping_sub(ended.at) & COUNT))
    }

    /// Notes that a queue drops `blocks` blocks of a bucket.
    pub fn note(&mut self, id: u32, born: u32, origin: Origin, blocks: u32) {
        let dropped = &mut self.dropped[origin as usize];
        *dropped = dropped.wrapping_add(blocks) & COUNT;
        let at = (origin as u32) << SHIFT | *dropped;
        let ([one, other], tag) = self.places(id, born);
        let since = |place: usize| self.since(self.last[place]).map_or(u32::MAX, |(_, n)| n);
        let place = if since(one) >= since(other) { one } else { other };
        self.last[place] = EndedLife { tag, at };
    }

    /// The queue that dropped a bucket's blocks, if they are among the last `blocks` that it
    /// dropped.
    pub fn by_whom(&self, id: u32, born: u32, blocks: u64) -> Option<Origin> {
        let (places, tag) = self.places(id, born);
        let ended = places.map(|place| self.last[place]).into_iter().find(|e| e.tag == tag)?;
        let (origin, since) = self.since(ended)?;
        (u64::from(since) < blocks).then_some(origin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_blocks_that_a_queue_dropped_are_known_by_their_bucket() {
        let mut drops = Drops::new(1 << 20);
        assert_eq!(drops.by_whom(0, 0, 1000), None);
        for id in 0..30 {
            drops.note(id, 7, Origin::ALL[id as usize % 3], 10);
        }
        // Of each queue ten buckets were dropped.
        for id in 0..30 {
            let found = drops.by_whom(id, 7, 50);
            let lately = id >= 15;
            assert_eq!(found, lately.then_some(Origin::ALL[id as usize % 3]), "{id}");
        }
        assert_eq!(drops.by_whom(29, 8, 50), None);
        // The counts wrap.
        for id in 31..34 {
            drops.note(id, 1, Origin::Main, COUNT / 2);
            drops.note(40, id, Origin::Main, 10);
            assert_eq!(drops.by_whom(id, 1, 50), Some(Origin::Main));
            assert_eq!(drops.by_whom(id - 1, 1, 50), None);
        }
    }

    #[test]
    fn a_life_that_was_forgotten_is_not_taken_for_another() {
        let mut drops = Drops::new(16);
        (0..1000).for_each(|id| drops.note(id, 1, Origin::Read, 1));
        let known = (0..1000).filter(|&id| drops.by_whom(id, 1, 1 << 20).is_some()).count();
        assert!(known <= 32, "{known}");
        assert_eq!((0..1000).find_map(|id| drops.by_whom(id, 2, 1 << 20)), None);
    }
}
