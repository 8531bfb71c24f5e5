//! The shares of the three queues.

use super::origin::Origin;

/// Shares are counted in parts of a bucket.
const PARTS: u64 = 1024;
/// How full a queue is that has its share.
pub(super) const FULL: u64 = 1024;
/// What a queue gets for a block that it should have kept.
const GAIN: u64 = PARTS / 4;
/// Of the cache, in percent: at the beginning, by [`Origin`]; the least of each; the most of what
/// was read and missed.
const BEGIN: [u64; 3] = [5, 85, 10];
const LEAST: u64 = 2;
const MOST_READ: u64 = 30;

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

    /// How full a queue of so many buckets is: [`FULL`] if it has just its share.
    pub fn fullness(&self, origin: Origin, buckets: u64) -> u64 {
        buckets * PARTS * FULL / self.of[origin as usize].max(1)
    }

    /// A queue should have kept a block: it gets more, of the others, in proportion.
    pub fn give(&mut self, origin: Origin) {
        let most = if origin == Origin::Read { self.all * MOST_READ / 100 } else { self.all };
        let gain = GAIN.min(most.saturating_sub(self.of[origin as usize]));
        let others = Origin::ALL.map(|o| if o == origin { 0 } else { self.of[o as usize] });
        let sum = others.iter().sum::<u64>().max(1);
        for (i, share) in others.into_iter().enumerate().filter(|(i, _)| *i != origin as usize) {
            let part = (gain * share / sum).min(share.saturating_sub(self.all * LEAST / 100));
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
            assert!(read <= 300 && read.min(write).min(main) >= 19, "{read}, {write}, {main}");
        }
        (0..200_000).for_each(|_| shares.give(Origin::Main));
        assert!(shares.thousandths(Origin::Main) > 940);
        (0..200_000).for_each(|_| shares.give(Origin::Read));
        assert!(shares.thousandths(Origin::Read) > 290);
    }

    #[test]
    fn a_queue_with_its_share_is_full() {
        let shares = Shares::new(100);
        assert_eq!(shares.fullness(Origin::Write, 85), FULL);
        assert_eq!(shares.fullness(Origin::Read, 10), 2 * FULL);
        assert_eq!(shares.fullness(Origin::Main, 9), FULL * 9 / 10);
    }
}
