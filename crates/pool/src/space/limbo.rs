//! Limbo: blocks that commits have freed, and that reads may still use.
//!
//! A read that looks up addresses takes a [`Pin`] in the same step. The blocks that a commit frees
//! wait with the pin of all reads that began before. They become free, in the order of commits,
//! when no read has that pin any more.

use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use super::run::Run;

/// Reads in flight hold one of these, so that the blocks they read are not given to others.
pub(crate) type Pin = Rc<Era>;

/// Reads of the same era hold the same pin; later ones have a later era.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct Era(u64);

/// Freed blocks that wait for reads.
#[derive(Default)]
pub(super) struct Limbo {
    /// Held by the reads that began since the last commit.
    pin: Pin,
    waiting: VecDeque<(Pin, Vec<Run>)>,
}

impl Limbo {
    /// A pin, to be held by a read of addresses that are looked up now.
    pub fn pin(&self) -> Pin {
        self.pin.clone()
    }

    /// A commit is durable, and has freed `frees`.
    pub fn push(&mut self, frees: Vec<Vec<Run>>) {
        for runs in frees {
            // They become free one after another, so the first one's pin holds them all. A commit
            // that frees nothing does not end the era: the next one that does waits for the reads
            // of now.
            let pin = self.end_era();
            self.waiting.push_back((pin, runs));
        }
    }

    /// Reads that begin from now on hold another pin; returns the one until now.
    fn end_era(&mut self) -> Pin {
        let next = Pin::new(Era(self.pin.0 + 1));
        std::mem::replace(&mut self.pin, next)
    }

    /// Ends the era. Returns it, and a handle that is alive while a read that began in it or before
    /// is under way, or freed blocks wait for such a read.
    pub fn reads_until_now(&mut self) -> (Era, Weak<Era>) {
        let pin = self.end_era();
        let (era, alive) = (*pin, Rc::downgrade(&pin));
        self.waiting.push_back((pin, Vec::new()));
        (era, alive)
    }

    /// True if nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes out a run that no read uses any more; `None`: there is none now.
    pub fn pop(&mut self) -> Option<Run> {
        loop {
            let (pin, runs) = self.waiting.front_mut()?;
            if Rc::strong_count(pin) > 1 {
                return None;
            }
            match runs.pop() {
                Some(run) => return Some(run),
                None => drop(self.waiting.pop_front()),
            }
        }
    }

    /// All runs that wait.
    #[cfg(test)]
    pub fn runs(&self) -> impl Iterator<Item = Run> {
        self.waiting.iter().flat_map(|(_, runs)| runs.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use base::{PoolAddr, Prng};

    use super::*;

    /// Commits free blocks, reads begin and end. A model keeps, for each freed block, the reads
    /// that had begun by then and have not ended.
    #[test]
    fn blocks_become_free_in_order_when_the_reads_before_their_commit_have_ended() {
        let mut rng = Prng::new(5);
        let mut limbo = Limbo::default();
        let mut reads: Vec<(u64, Pin)> = Vec::new();
        let mut model: VecDeque<(Vec<u64>, Vec<u64>)> = VecDeque::new();
        let (mut next, mut block) = (0, 0);
        for _ in 0..20_000 {
            match rng.below(5) {
                0 | 1 if reads.len() < 20 => {
                    next += 1;
                    reads.push((next, limbo.pin()));
                }
                0..=2 if !reads.is_empty() => {
                    let (ended, _) = reads.swap_remove(rng.below(reads.len() as u64) as usize);
                    model.iter_mut().for_each(|(_, before)| before.retain(|&read| read != ended));
                }
                3 => {
                    let blocks: Vec<u64> = (block..block + rng.below(4)).collect();
                    block += blocks.len() as u64;
                    let run = |&b: &u64| Run { addr: PoolAddr(b), len: 1 };
                    limbo.push(vec![blocks.iter().map(run).collect()]);
                    model.push_back((blocks, reads.iter().map(|(read, _)| *read).collect()));
                }
                _ => match limbo.pop() {
                    Some(run) => {
                        while model.front().is_some_and(|(blocks, _)| blocks.is_empty()) {
                            model.pop_front();
                        }
                        let (blocks, before) = model.front_mut().expect("it waits in the model");
                        assert!(before.is_empty(), "{run:?} while {before:?} read");
                        let at = blocks.iter().position(|&b| b == run.addr.0);
                        blocks.swap_remove(at.expect("of the oldest commit"));
                    }
                    None => {
                        // Every commit that has blocks left waits for a read, itself or by one
                        // before it.
                        let stuck = model.iter().find(|(_, before)| !before.is_empty());
                        let mut left = model.iter().take_while(|(_, before)| before.is_empty());
                        assert!(left.all(|(blocks, _)| blocks.is_empty()), "{stuck:?}");
                    }
                },
            }
        }
        drop(reads);
        while limbo.pop().is_some() {}
        assert!(limbo.is_empty());
    }
}
