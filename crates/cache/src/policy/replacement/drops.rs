//! Which queue dropped a bucket's blocks, and how many it has dropped since.
//!
//! A bucket's life is named by its number and its generation. The table has one entry for each
//! hash of a life, of the last that ended; so it takes 4 to 8 bytes a bucket. Where two lives have
//! the same entry, the later one counts: an earlier one may then be taken for younger than it is,
//! which gives a queue a quarter of a bucket that it should not have, now and then.

use base::prng::mix64;

use super::origin::Origin;

/// The queue stands above the count of its dropped blocks.
const SHIFT: u32 = 30;
const COUNT: u32 = (1 << SHIFT) - 1;
/// No life with this hash has ended.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Drops {
    last: Vec<u32>,
    /// Blocks dropped by each queue.
    dropped: [u32; 3],
}

impl Drops {
    pub fn new(buckets: usize) -> Drops {
        Drops { last: vec![NONE; buckets.next_power_of_two()], dropped: [0; 3] }
    }

    fn place(&self, id: u32, born: u32) -> usize {
        mix64(u64::from(id) << 32 | u64::from(born)) as usize & (self.last.len() - 1)
    }

    /// A queue drops so many blocks of a bucket.
    pub fn note(&mut self, id: u32, born: u32, origin: Origin, blocks: u32) {
        let dropped = &mut self.dropped[origin as usize];
        *dropped = dropped.wrapping_add(blocks) & COUNT;
        let entry = (origin as u32) << SHIFT | *dropped;
        let place = self.place(id, born);
        self.last[place] = entry;
    }

    /// The queue that dropped a bucket's blocks, if they are among the last `blocks` that it
    /// dropped.
    pub fn by_whom(&self, id: u32, born: u32, blocks: u64) -> Option<Origin> {
        let entry = self.last[self.place(id, born)];
        let origin = *Origin::ALL.get((entry >> SHIFT) as usize)?;
        let since = self.dropped[origin as usize].wrapping_sub(entry) & COUNT;
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
}
