//! The shares of the three queues.

use std::cmp::Ordering;

use super::origin::Origin;

/// Shares are counted in parts of a bucket.
const PARTS: u64 = 1024;
/// The gain of a queue for a block that it should have kept, in these parts.
const GAIN: u64 = PARTS / 4;
/// The shares at the beginning, in percent of the buckets in use, by [`Origin`].
const BEGIN: [u64; 3] = [5, 85, 10];
/// The least shares, in the same way, but never less than two buckets: one is being filled.
const LEAST: [u64; 3] = [1, 2, 2];
const LEAST_BUCKETS: u64 = 2;
/// The largest share of blocks that were read and missed, in percent. Where popular blocks go cold
/// fast, this queue gets nearly all of the cache: then the policy is about FIFO. In a loop over a
/// little more than the cache it would get all, and have no hit.
const MOST_READ: u64 = 90;
/// From this share on, in percent, that queue gains only three quarters as much at a time: a block
/// that it drops costs one miss, and then enters the main queue.
const MUCH_READ: u64 = 30;

#[derive(Debug)]
pub(super) struct Shares {
    all: u64,
    of: [u64; 3],
}

impl Shares {
    pub fn new(buckets: u64) -> Shares {
        let all = buckets * PARTS;
        Shares { all, of: BEGIN.map(|percent| all * percent / 100) }
    }

    /// A queue's buckets compared with its share of all that are `used`, by [`Origin`]. Others hold
    /// nodes of the index, or are free.
    pub fn compare(&self, origin: Origin, used: [u32; 3]) -> Ordering {
        let all: u128 = used.into_iter().map(u128::from).sum();
        let mine = u128::from(used[origin as usize]);
        (mine * u128::from(self.all)).cmp(&(u128::from(self.of[origin as usize]) * all))
    }

    /// A queue should have kept a block: it gets more, taken from the others in proportion to their
    /// shares.
    pub fn give(&mut self, origin: Origin) {
        let mine = self.of[origin as usize];
        let (most, gain) = match origin {
            Origin::Read if mine >= self.all * MUCH_READ / 100 => (MOST_READ, GAIN * 3 / 4),
            Origin::Read => (MOST_READ, GAIN),
            _ => (100, GAIN),
        };
        let gain = gain.min((self.all * most / 100).saturating_sub(mine));
        let others = Origin::ALL.map(|o| if o == origin { 0 } else { self.of[o as usize] });
        let sum = others.iter().sum::<u64>().max(1);
        for (i, share) in others.into_iter().enumerate().filter(|(i, _)| *i != origin as usize) {
            let least = (self.all * LEAST[i] / 100).max(LEAST_BUCKETS * PARTS);
            let part = (gain * share / sum).min(share.saturating_sub(least));
            self.of[i] -= part;
            self.of[origin as usize] += part;
        }
    }

    /// A share in thousandths of the cache.
    pub fn thousandths(&self, origin: Origin) -> u32 {
        (self.of[origin as usize] * 1000 / self.all) as u32
    }
}

#[cfg(test)]
mod tests {
    use base::Prng;

    use super::*;

    #[test]
    fn shares_keep_their_bounds_and_their_sum() {
        let (mut shares, mut prng) = (Shares::new(1000), Prng::new(1));
        let sum = shares.of.iter().sum::<u64>();
        for i in 0..200_000 {
            // One of them is wanted much more than the others, for a while.
            let much = Origin::ALL[i / 20_000 % 3];
            let origin = if prng.one_in(10) { Origin::ALL[prng.below(3) as usize] } else { much };
            shares.give(origin);
            assert_eq!(shares.of.iter().sum::<u64>(), sum);
            let [read, write, main] = Origin::ALL.map(|o| shares.thousandths(o));
            assert!((9..=900).contains(&read) && write.min(main) >= 19, "{read}, {write}, {main}");
        }
        (0..200_000).for_each(|_| shares.give(Origin::Main));
        assert!(shares.thousandths(Origin::Main) > 940);
        (0..200_000).for_each(|_| shares.give(Origin::Read));
        assert!(shares.thousandths(Origin::Read) > 890);
    }

    #[test]
    fn a_share_is_a_part_of_the_buckets_in_use() {
        let shares = Shares::new(100);
        for (used, found) in [
            ([5, 85, 10], [Ordering::Equal; 3]),
            ([10, 80, 10], [Ordering::Greater, Ordering::Less, Ordering::Equal]),
            // Half of the cache has nodes.
            ([2, 43, 5], [Ordering::Less, Ordering::Greater, Ordering::Equal]),
            ([0, 0, 1], [Ordering::Less, Ordering::Less, Ordering::Greater]),
        ] {
            let of = Origin::ALL.map(|o| shares.compare(o, used));
            assert_eq!(of, found, "{used:?}");
        }
    }
}
