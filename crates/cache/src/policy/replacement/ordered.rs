//! LRU and FIFO: one queue, whose oldest goes. LRU moves a bucket to the other end when it is read.

use super::links::{Links, MAX_STEPS, NONE, QueueEnds};

#[derive(Debug)]
pub(super) struct OrderedQueue {
    links: Links,
    queue: QueueEnds,
    candidate: Vec<bool>,
    by_use: bool,
}

impl OrderedQueue {
    pub fn new(buckets: usize, by_use: bool) -> OrderedQueue {
        OrderedQueue {
            links: Links::new(buckets),
            queue: QueueEnds::new(),
            candidate: vec![false; buckets],
            by_use,
        }
    }

    pub fn insert(&mut self, id: u32) {
        self.queue.push(&mut self.links, id);
        self.candidate[id as usize] = true;
    }

    pub fn remove(&mut self, id: u32) {
        self.queue.unlink(&mut self.links, id);
        self.candidate[id as usize] = false;
    }

    pub fn contains(&self, id: u32) -> bool {
        self.candidate[id as usize]
    }

    pub fn touch(&mut self, id: u32) {
        if self.by_use && self.contains(id) {
            self.renew(id);
        }
    }

    /// A bucket that must not be evicted now goes to the other end, so that it does not stand in
    /// the way.
    pub fn victim(&mut self, mut may: impl FnMut(u32) -> bool) -> Option<u32> {
        for _ in 0..MAX_STEPS.min(self.len()) {
            let id = self.queue.oldest();
            debug_assert_ne!(id, NONE);
            if may(id) {
                self.remove(id);
                return Some(id);
            }
            self.renew(id);
        }
        None
    }

    fn renew(&mut self, id: u32) {
        self.queue.unlink(&mut self.links, id);
        self.queue.push(&mut self.links, id);
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }
}
