//! Tags: how many requests may be in flight, and when a free tag goes to what waits.
//!
//! A task waits for the outcome of its request, not for a tag. So a tag is handed to a request,
//! and its task is woken once, when it ends. The next request may go as soon as a tag is free. On
//! rotating devices a hand-over begins when a quarter of the tags is free: then what goes to the
//! device together is sorted over more requests, and the pieces of one request reach it in a row.
//! It ends when no tag is left. A request that has begun has the next tag that is free, until all
//! of its pieces have gone.

pub(crate) struct Tags {
    depth: usize,
    taken: usize,
    /// The number of tags that are free when a hand-over begins.
    batch: usize,
    handing_over: bool,
}

impl Tags {
    pub fn new(depth: usize, in_batches: bool) -> Tags {
        assert!(depth > 0);
        let batch = if in_batches { depth.div_ceil(4) } else { 1 };
        Tags { depth, taken: 0, batch, handing_over: true }
    }

    pub fn taken(&self) -> usize {
        self.taken
    }

    /// True if a request may have a tag now; `begun`: one that has its first already.
    pub fn may_take(&mut self, begun: bool) -> bool {
        let free = self.depth - self.taken;
        self.handing_over |= free >= self.batch;
        free > 0 && (begun || self.handing_over)
    }

    pub fn take(&mut self) {
        self.taken += 1;
        self.handing_over &= self.taken < self.depth;
    }

    pub fn give_back(&mut self) {
        self.taken -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hand_over_begins_with_a_quarter_and_ends_with_the_last() {
        let mut tags = Tags::new(8, true);
        for _ in 0..8 {
            assert!(tags.may_take(false));
            tags.take();
        }
        assert!(!tags.may_take(false) && !tags.may_take(true));
        tags.give_back();
        assert!(!tags.may_take(false), "one of eight is less than a quarter");
        assert!(tags.may_take(true), "it has begun");
        tags.give_back();
        for _ in 0..2 {
            assert!(tags.may_take(false));
            tags.take();
        }
        tags.give_back();
        assert!(!tags.may_take(false));
    }

    #[test]
    fn without_batches_each_free_tag_goes_at_once() {
        let mut tags = Tags::new(3, false);
        (0..3).for_each(|_| tags.take());
        for _ in 0..3 {
            assert!(!tags.may_take(false));
            tags.give_back();
            assert!(tags.may_take(false));
            tags.take();
        }
    }
}
