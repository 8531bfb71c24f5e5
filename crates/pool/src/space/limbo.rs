//! Limbo: blocks that commits have freed, and that reads may still use.
//!
//! A read that looks up addresses takes a [`Pin`] in the same step. The blocks that a commit frees
//! wait for all reads that began before. They become free, in the order of commits, when the last
//! of these reads has dropped its pin. That rings an event.

use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use rt::sync::Event;

use super::run::Run;

/// Reads in flight hold one of these, so that the blocks they read are not given to others.
#[derive(Clone)]
pub(crate) struct Pin(Rc<Hold>);

/// Reads of the same era hold the same pin; later ones have a later era.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct Era(u64);

/// What the pins of an era share. The last of them rings.
struct Hold {
    era: Era,
    ended: Event,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.ended.notify();
    }
}

impl Pin {
    fn of(era: Era, ended: &Event) -> Pin {
        Pin(Rc::new(Hold { era, ended: ended.clone() }))
    }

    /// The era in which the read began.
    pub fn era(&self) -> Era {
        self.0.era
    }
}

/// Freed blocks that wait for reads.
pub(super) struct Limbo {
    /// Held by the reads that began since the last commit.
    pin: Pin,
    /// By era, the oldest first.
    waiting: VecDeque<Waiting>,
    /// Rings when the last read of an era has ended.
    ended: Event,
}

/// Blocks that wait for the reads of an era, and for all that is before them in the queue.
struct Waiting {
    era: Era,
    reads: Weak<Hold>,
    runs: Vec<Run>,
}

impl Default for Limbo {
    fn default() -> Limbo {
        let ended = Event::new();
        Limbo { pin: Pin::of(Era::default(), &ended), waiting: VecDeque::new(), ended }
    }
}

impl Limbo {
    /// A pin, to be held by a read of addresses that are looked up now.
    pub fn pin(&self) -> Pin {
        self.pin.clone()
    }

    /// A commit is durable, and has freed `frees`.
    pub fn push(&mut self, frees: Vec<Vec<Run>>) {
        // They become free one after another, so the first one's reads keep them all. A commit that
        // frees nothing does not end the era: the next one that does waits for the reads of now.
        for runs in frees {
            self.end_era(runs);
        }
    }

    /// Reads that begin from now on are of another era. These blocks wait for those until now.
    fn end_era(&mut self, runs: Vec<Run>) -> Era {
        let era = self.pin.era();
        let pin = std::mem::replace(&mut self.pin, Pin::of(Era(era.0 + 1), &self.ended));
        self.waiting.push_back(Waiting { era, reads: Rc::downgrade(&pin.0), runs });
        era
    }

    /// Ends the era, and returns it. It has [passed](Limbo::has_passed) when all reads that began
    /// in it or before have ended.
    pub fn reads_until_now(&mut self) -> Era {
        self.end_era(Vec::new())
    }

    /// The last era for whose reads blocks wait; `None` where none wait.
    pub fn newest(&self) -> Option<Era> {
        self.waiting.back().map(|last| last.era)
    }

    /// True if all reads until the end of an era have ended, and [`Limbo::pop`] has returned the
    /// blocks that waited for them. Only of an era that blocks waited for, or that
    /// [`Limbo::reads_until_now`] has ended.
    pub fn has_passed(&self, era: Era) -> bool {
        self.waiting.front().is_none_or(|first| first.era > era)
    }

    /// Waits until the last read of an era has ended; then [`Limbo::pop`] may return more.
    pub fn reads_ended(&self) -> impl Future<Output = ()> + use<> {
        self.ended.wait()
    }

    /// True if nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes out a run that no read uses any more; `None`: there is none now.
    pub fn pop(&mut self) -> Option<Run> {
        loop {
            let first = self.waiting.front_mut()?;
            if first.reads.strong_count() > 0 {
                return None;
            }
            match first.runs.pop() {
                Some(run) => return Some(run),
                None => drop(self.waiting.pop_front()),
            }
        }
    }

    /// All runs that wait.
    #[cfg(test)]
    pub fn runs(&self) -> impl Iterator<Item = Run> {
        self.waiting.iter().flat_map(|waiting| waiting.runs.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

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

    #[test]
    fn an_era_has_passed_when_its_last_read_has_ended_and_that_rings() {
        let mut cx = Context::from_waker(Waker::noop());
        let mut limbo = Limbo::default();
        let reads = [limbo.pin(), limbo.pin()];
        let era = limbo.reads_until_now();
        let later = limbo.pin();
        let mut ended = std::pin::pin!(limbo.reads_ended());
        for read in reads {
            assert!(ended.as_mut().poll(&mut cx).is_pending());
            assert!(limbo.pop().is_none() && !limbo.has_passed(era));
            drop(read);
        }
        assert!(ended.as_mut().poll(&mut cx).is_ready());
        assert!(limbo.pop().is_none() && limbo.has_passed(era));
        assert_eq!(later.era(), Era(era.0 + 1));
        // Blocks that a commit frees wait for the reads of the era that it ends.
        assert_eq!(limbo.newest(), None);
        limbo.push(vec![vec![Run { addr: PoolAddr(0), len: 1 }]]);
        assert_eq!(limbo.newest(), Some(later.era()));
    }
}
