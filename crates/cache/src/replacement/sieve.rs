//! SIEVE: one queue in the order of insertion, and a hand that goes from the oldest to the newest and round again.
//!
//! The hand clears the mark of a bucket that was read since it came by, and takes the first one without a mark. What is spared stays where it is, so that
//! new buckets and those that proved themselves do not mix: a scan is swept out without passing through the whole queue.

use super::MAX_STEPS;
use super::links::{Links, NONE, Queue};

const CANDIDATE: u8 = 1;
/// Read since the hand came by; kept also while the bucket is no candidate yet.
const VISITED: u8 = 2;

#[derive(Debug)]
pub(super) struct Sieve {
    links: Links,
    queue: Queue,
    flags: Vec<u8>,
    /// The bucket to be looked at next; [`NONE`]: the oldest.
    hand: u32,
}

impl Sieve {
    pub fn new(buckets: usize) -> Sieve {
        Sieve { links: Links::new(buckets), queue: Queue::new(), flags: vec![0; buckets], hand: NONE }
    }

    pub fn insert(&mut self, id: u32) {
        self.queue.push(&mut self.links, id);
        self.flags[id as usize] |= CANDIDATE;
    }

    pub fn remove(&mut self, id: u32) {
        if self.hand == id {
            self.hand = self.links.newer(id);
        }
        self.queue.unlink(&mut self.links, id);
        self.flags[id as usize] = 0;
    }

    pub fn contains(&self, id: u32) -> bool {
        self.flags[id as usize] & CANDIDATE != 0
    }

    pub fn touch(&mut self, id: u32) {
        self.flags[id as usize] |= VISITED;
    }

    pub fn victim(&mut self, mut may: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut spared = None;
        // Twice round is enough: after the first no bucket is marked.
        for _ in 0..MAX_STEPS.min(2 * self.len()) {
            let id = if self.hand == NONE { self.queue.oldest() } else { self.hand };
            self.hand = self.links.newer(id);
            let visited = self.flags[id as usize] & VISITED != 0;
            self.flags[id as usize] &= !VISITED;
            if (!visited || spared.is_none()) && may(id) {
                if !visited {
                    self.remove(id);
                    return Some(id);
                }
                spared = Some(id);
            }
        }
        let id = spared?;
        self.remove(id);
        Some(id)
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }
}
