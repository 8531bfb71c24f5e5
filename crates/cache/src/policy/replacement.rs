//! Replacement: which bucket is evicted next.
//!
//! Pure state over bucket numbers, allocated once. `insert`, `remove`, `touch` and `victim` each
//! take a bounded number of steps, whatever the number of buckets and however recency is
//! distributed: a victim that costs a search is a pause that foreground I/O sees.
//!
//! **Bound.** One call of [`Replacement::victim`] looks at no more than `MAX_STEPS` buckets.
//! Amortised it is fewer: S3-FIFO passes over a bucket only by taking from it what a touch gave it,
//! so a read hit has paid for every step but the last. When the steps are used up, the first bucket
//! of those looked at that may go is taken: its credit is gone by then as it would be after the
//! full walk.
//!
//! **Pins.** A bucket that must not go now is passed over. If `MAX_STEPS` in a row must not,
//! `victim` answers `None`; the next call goes on behind them.
//!
//! **No ghosts.** S3-FIFO remembers what it evicted, and admits it better when it returns. Here the
//! unit is a bucket of mixed blocks: its blocks come back one by one, each in another bucket with
//! other neighbours, so that the number of an evicted bucket says nothing. That part is left out.

mod links;
mod ordered;
mod random;
mod s3fifo;

use std::fmt;
use std::str::FromStr;

use ordered::Ordered;
use random::Random;
use s3fifo::S3Fifo;

/// How victims are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// The bucket whose last read hit is the oldest.
    Lru,
    /// The bucket that was filled first.
    Fifo,
    /// Any.
    Random,
    /// S3-FIFO (Yang and others, SOSP 2023), without ghosts: a queue on trial, then a main queue.
    #[default]
    S3Fifo,
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 4] = [Policy::Lru, Policy::Fifo, Policy::Random, Policy::S3Fifo];

    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            Policy::Lru => "lru",
            Policy::Fifo => "fifo",
            Policy::Random => "random",
            Policy::S3Fifo => "s3fifo",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(s: &str) -> Result<Policy, String> {
        let known = Policy::ALL.into_iter().find(|p| p.word() == s);
        known.ok_or_else(|| {
            let words = Policy::ALL.map(Policy::word).join(", ");
            format!("no replacement policy is called {s:?}: it is one of {words}")
        })
    }
}

#[derive(Debug)]
enum Chooser {
    Ordered(Ordered),
    Random(Random),
    S3Fifo(S3Fifo),
}

/// The candidates for eviction among a fixed number of buckets. 8 or 9 bytes a bucket.
#[derive(Debug)]
pub struct Replacement(Chooser);

impl Replacement {
    /// No candidates yet, among buckets `0..buckets`.
    pub fn new(policy: Policy, buckets: usize, seed: u64) -> Replacement {
        assert!(buckets < links::NONE as usize, "bucket numbers are 32 bits");
        Replacement(match policy {
            Policy::Lru => Chooser::Ordered(Ordered::new(buckets, true)),
            Policy::Fifo => Chooser::Ordered(Ordered::new(buckets, false)),
            Policy::Random => Chooser::Random(Random::new(buckets, seed)),
            Policy::S3Fifo => Chooser::S3Fifo(S3Fifo::new(buckets)),
        })
    }

    /// The bucket is a candidate from now on; it must not be one yet.
    pub fn insert(&mut self, id: u32) {
        assert!(!self.contains(id), "bucket {id} is a candidate already");
        match &mut self.0 {
            Chooser::Ordered(c) => c.insert(id),
            Chooser::Random(c) => c.insert(id),
            Chooser::S3Fifo(c) => c.insert(id),
        }
    }

    /// The bucket is no candidate any more; it must be one.
    pub fn remove(&mut self, id: u32) {
        assert!(self.contains(id), "bucket {id} is no candidate");
        match &mut self.0 {
            Chooser::Ordered(c) => c.remove(id),
            Chooser::Random(c) => c.remove(id),
            Chooser::S3Fifo(c) => c.remove(id),
        }
    }

    /// True if the bucket is a candidate.
    pub fn contains(&self, id: u32) -> bool {
        match &self.0 {
            Chooser::Ordered(c) => c.contains(id),
            Chooser::Random(c) => c.contains(id),
            Chooser::S3Fifo(c) => c.contains(id),
        }
    }

    /// A read hit in the bucket, candidate or not.
    pub fn touch(&mut self, id: u32) {
        match &mut self.0 {
            Chooser::Ordered(c) => c.touch(id),
            Chooser::Random(_) => {}
            Chooser::S3Fifo(c) => c.touch(id),
        }
    }

    /// Takes out the next victim that `may` go. `None`: there is none, or as many as one call looks
    /// at must stay; then the next call looks further.
    pub fn victim(&mut self, may: impl FnMut(u32) -> bool) -> Option<u32> {
        match &mut self.0 {
            Chooser::Ordered(c) => c.victim(may),
            Chooser::Random(c) => c.victim(may),
            Chooser::S3Fifo(c) => c.victim(may),
        }
    }

    /// How many candidates there are.
    pub fn len(&self) -> usize {
        match &self.0 {
            Chooser::Ordered(c) => c.len(),
            Chooser::Random(c) => c.len(),
            Chooser::S3Fifo(c) => c.len(),
        }
    }

    /// True if there is no candidate.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests;
