//! The clock by which blocks age: it goes on by one with each bucket's worth of dropped blocks.

/// See the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct DropClock {
    bucket_blocks: u32,
    now: u32,
    /// Blocks dropped since the clock went on.
    rest: u32,
}

impl DropClock {
    /// A clock for buckets of `bucket_blocks` blocks.
    pub fn new(bucket_blocks: u32) -> DropClock {
        DropClock { bucket_blocks, now: 0, rest: 0 }
    }

    /// The present time of the clock.
    pub fn now(&self) -> u32 {
        self.now
    }

    /// Sets the clock forward to at least this, a generation from before the restart.
    pub fn set(&mut self, at_least: u32) {
        self.now = self.now.max(at_least);
    }

    /// Notes that a bucket of generation `born` is evicted, and `dropped` blocks with it. Returns
    /// the bucket's new generation: what the clock shows then, but always another than before.
    pub fn evict(&mut self, born: u32, dropped: u32) -> u32 {
        let all = self.rest + dropped;
        self.now = self.now.wrapping_add(all / self.bucket_blocks);
        self.rest = all % self.bucket_blocks;
        if self.now > born { self.now } else { born.wrapping_add(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_is_new_each_time_and_about_what_the_clock_shows() {
        let mut clock = DropClock::new(10);
        clock.set(5);
        assert_eq!((clock.evict(3, 10), clock.now()), (6, 6));
        assert_eq!((clock.evict(4, 9), clock.evict(4, 1), clock.now()), (6, 7, 7));
        assert_eq!((clock.evict(7, 0), clock.evict(8, 3), clock.now()), (8, 9, 7));
        assert_eq!(clock.evict(u32::MAX, 0), 0);
    }
}
