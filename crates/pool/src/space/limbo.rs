//! Limbo: blocks that commits have freed, and that reads may still use.
//!
//! A read that looks up addresses takes a [`Pin`] in the same step. There are two kinds:
//!
//! - Of *all blocks*, for reads of clients. The blocks that a commit frees wait for all such reads
//!   that began before. They become free, in the order of commits, when the last of these reads has
//!   dropped its pin.
//! - Of *some blocks*, for background work and for nodes of trees. These wait for it if they are
//!   freed ([`held`](super::held)), and no others do. So work that gives way to clients keeps
//!   little from being used again, however long it takes.
//!
//! A write has one too, of no blocks: those that it was given are not freed meanwhile. What waits
//! for all that began before ([`Limbo::reads_until_now`]) waits for it as well.
//!
//! An event rings when blocks may have become free, or the last read of an era has ended.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use rt::sync::Event;
use smallvec::SmallVec;

use super::block_run::Run;
use super::held::{Era, HeldPages, Pages};

/// Reads in flight hold one of these, so that the blocks they read are not given to others.
#[derive(Clone)]
pub(crate) struct Pin(PinScope);

#[derive(Clone)]
enum PinScope {
    All(Rc<AllBlocks>),
    Some(Rc<SomeBlocks>),
    None(Rc<Reads>),
}

/// The part that all pins of an era share. The last of them rings.
struct Reads {
    era: Era,
    ended: Event,
}

impl Drop for Reads {
    fn drop(&mut self) {
        self.ended.notify();
    }
}

/// The part that the pins of all blocks of an era share. The last of them rings.
struct AllBlocks {
    reads: Rc<Reads>,
}

impl Drop for AllBlocks {
    fn drop(&mut self) {
        self.reads.ended.notify();
    }
}

/// The part that the clones of a pin of some blocks share. The last of them rings, if any run
/// waited for it.
struct SomeBlocks {
    reads: Rc<Reads>,
    runs: SmallVec<[Pages; 1]>,
    held: Rc<RefCell<HeldPages>>,
}

impl Drop for SomeBlocks {
    fn drop(&mut self) {
        let mut held = self.held.borrow_mut();
        let mut released = false;
        for pages in &self.runs {
            released |= held.end(pages, self.reads.era);
        }
        if released {
            self.reads.ended.notify();
        }
    }
}

impl Pin {
    /// The era in which the read began.
    pub fn era(&self) -> Era {
        self.reads().era
    }

    fn reads(&self) -> &Rc<Reads> {
        match &self.0 {
            PinScope::All(pin) => &pin.reads,
            PinScope::Some(pin) => &pin.reads,
            PinScope::None(reads) => reads,
        }
    }
}

/// Freed blocks that wait for reads.
///
/// - A block that is freed becomes free only by [`Limbo::pop`], and once.
/// - No pin that began before a block was freed, and is about that block, is held then.
pub(crate) struct Limbo {
    /// Held by the reads of all blocks that began since the last commit.
    all: Rc<AllBlocks>,
    /// Eras that have ended, but whose reads may not have, the oldest first.
    eras: VecDeque<(Era, Weak<Reads>)>,
    /// By era, the oldest first.
    waiting: VecDeque<WaitingRuns>,
    /// Blocks that are pinned themselves.
    held: Rc<RefCell<HeldPages>>,
    /// Runs that have become free so far.
    freed: u64,
    /// Rings when [`Limbo::pop`] may return more.
    ended: Event,
}

/// The outcome of a look at a run of limbo.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PopOutcome {
    /// No read uses it any more.
    Free(Run),
    /// The run is pinned itself, and goes on waiting.
    Pinned,
}

/// Blocks that wait for the reads of all blocks of an era, and for all that is before them in the
/// queue.
struct WaitingRuns {
    era: Era,
    reads: Weak<AllBlocks>,
    runs: Vec<Run>,
}

impl Default for Limbo {
    fn default() -> Limbo {
        let ended = Event::new();
        Limbo {
            all: AllBlocks::of(Era::default(), &ended),
            eras: VecDeque::new(),
            waiting: VecDeque::new(),
            held: Rc::default(),
            freed: 0,
            ended,
        }
    }
}

impl AllBlocks {
    fn of(era: Era, ended: &Event) -> Rc<AllBlocks> {
        Rc::new(AllBlocks { reads: Rc::new(Reads { era, ended: ended.clone() }) })
    }
}

impl Limbo {
    /// A pin of all blocks, to be held by a read of addresses that are looked up now.
    pub fn pin(&self) -> Pin {
        Pin(PinScope::All(self.all.clone()))
    }

    /// A pin of these blocks alone, for background work and for nodes. They were looked up with the
    /// other pin, whose place it takes. A pin for a long time has to be one of these: from a pin of
    /// all blocks on nothing that is freed is used again, and where room is short clients wait for
    /// that.
    pub fn pin_blocks(&self, runs: impl IntoIterator<Item = Run>, looked_up: &Pin) -> Pin {
        let (reads, held) = (looked_up.reads().clone(), self.held.clone());
        let runs: SmallVec<[Pages; 1]> = runs.into_iter().map(Pages::of).collect();
        runs.iter().for_each(|pages| held.borrow_mut().begin(pages, reads.era));
        Pin(PinScope::Some(Rc::new(SomeBlocks { reads, runs, held })))
    }

    /// A pin of no blocks, to be held by a write of blocks that were taken for it.
    pub fn pin_none(&self) -> Pin {
        Pin(PinScope::None(self.all.reads.clone()))
    }

    /// A commit is durable, and has freed `frees`.
    pub fn free_after_reads(&mut self, frees: Vec<Vec<Run>>) {
        // The lists become free one after another, so the reads of the first one keep them all. A
        // commit that frees nothing does not end the era: the next one that does waits for the
        // reads of now.
        for runs in frees {
            self.end_era(runs);
        }
    }

    /// Reads that begin from now on are of another era. These blocks wait for those until now.
    fn end_era(&mut self, runs: Vec<Run>) -> Era {
        let era = self.all.reads.era;
        let all = std::mem::replace(&mut self.all, AllBlocks::of(Era(era.0 + 1), &self.ended));
        self.eras.push_back((era, Rc::downgrade(&all.reads)));
        self.waiting.push_back(WaitingRuns { era, reads: Rc::downgrade(&all), runs });
        era
    }

    /// Ends the era, and returns it. It has [passed](Limbo::has_passed) when all reads that began
    /// in it or before have ended.
    pub fn reads_until_now(&mut self) -> Era {
        self.end_era(Vec::new())
    }

    /// The last era for whose reads of all blocks any wait; `None` where none wait.
    pub fn newest(&self) -> Option<Era> {
        self.waiting.back().map(|last| last.era)
    }

    /// True if all reads of all blocks until the end of an era have ended, and [`Limbo::pop`] has
    /// returned the blocks that waited for them, but for those that are pinned themselves. Only of
    /// an era that blocks waited for, or that [`Limbo::reads_until_now`] has ended.
    pub fn has_freed(&self, era: Era) -> bool {
        self.waiting.front().is_none_or(|first| first.era > era)
    }

    /// True if all reads until the end of an era have ended, and [`Limbo::pop`] has found that.
    /// Only of an era that [`Limbo::reads_until_now`] has ended.
    pub fn has_passed(&self, era: Era) -> bool {
        self.has_freed(era) && self.eras.front().is_none_or(|(first, _)| *first > era)
    }

    /// Waits until reads have ended, so that [`Limbo::pop`] may return more, or finds that an era
    /// has passed.
    pub fn reads_ended(&self) -> impl Future<Output = ()> + use<> {
        self.ended.wait()
    }

    /// True if freed blocks wait for reads, or for [`Limbo::pop`].
    pub fn has_any(&self) -> bool {
        !self.waiting.is_empty() || self.any_pinned()
    }

    /// True if freed blocks wait for pins of just them.
    pub fn any_pinned(&self) -> bool {
        self.held.borrow().holds_any()
    }

    /// Looks at the next run, which the caller makes free where no read uses it any more; `None`:
    /// all that is left waits.
    pub(super) fn pop(&mut self) -> Option<PopOutcome> {
        while self.eras.front().is_some_and(|(_, reads)| reads.strong_count() == 0) {
            self.eras.pop_front();
        }
        let mut held = self.held.borrow_mut();
        let (freed, run) = loop {
            if let Some(released) = held.pop() {
                break released;
            }
            let first = self.waiting.front_mut()?;
            if first.reads.strong_count() > 0 {
                return None;
            }
            match first.runs.pop() {
                Some(run) => break (first.era, run),
                None => drop(self.waiting.pop_front()),
            }
        };
        if held.keeps(freed, run) {
            return Some(PopOutcome::Pinned);
        }
        self.freed += 1;
        Some(PopOutcome::Free(run))
    }

    /// The number of runs that have become free so far.
    pub fn freed(&self) -> u64 {
        self.freed
    }

    /// All runs that wait.
    #[cfg(test)]
    pub fn runs(&self) -> Vec<Run> {
        let held = self.held.borrow().runs();
        self.waiting.iter().flat_map(|waiting| waiting.runs.iter().copied()).chain(held).collect()
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
                    limbo.free_after_reads(vec![blocks.iter().map(run).collect()]);
                    model.push_back((blocks, reads.iter().map(|(read, _)| *read).collect()));
                }
                _ => match limbo.pop() {
                    Some(PopOutcome::Pinned) => unreachable!("all reads are of all blocks"),
                    Some(PopOutcome::Free(run)) => {
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
        assert!(!limbo.has_any());
    }

    /// Blocks are freed, and pinned by themselves. What is freed while it is pinned waits for
    /// that, with what is freed of the rest of its page, and nothing else does.
    #[test]
    fn a_pin_of_some_blocks_keeps_only_these() {
        let mut rng = Prng::new(6);
        let mut limbo = Limbo::default();
        // With the number of frees before each of them.
        let mut pins: Vec<(u64, Run, Pin)> = Vec::new();
        let mut freed: Vec<(u64, Run)> = Vec::new();
        let page = |block: u64| block / 32;
        let touch = |a: &Run, b: &Run| {
            let last = |run: &Run| run.addr.0 + u64::from(run.len) - 1;
            page(a.addr.0) <= page(last(b)) && page(b.addr.0) <= page(last(a))
        };
        let (mut waited, mut at_once, mut frees) = (0, 0, 0);
        for _ in 0..20_000 {
            let run = Run { addr: PoolAddr(rng.below(5000)), len: 1 + rng.below(100) as u32 };
            let keeps = |(before, pinned, _): &(u64, Run, Pin), (at, run): &(u64, Run)| {
                *before <= *at && touch(pinned, run)
            };
            match rng.below(4) {
                0 if pins.len() < 10 => {
                    let now = limbo.pin();
                    pins.push((frees, run, limbo.pin_blocks([run], &now)));
                }
                0 | 1 if !pins.is_empty() => {
                    drop(pins.swap_remove(rng.below(pins.len() as u64) as usize));
                }
                2 => {
                    limbo.free_after_reads(vec![vec![run]]);
                    freed.push((frees, run));
                    frees += 1;
                }
                _ => {
                    while let Some(popped) = limbo.pop() {
                        let PopOutcome::Free(run) = popped else {
                            waited += 1;
                            continue;
                        };
                        at_once += 1;
                        let is_it =
                            |f: &(u64, Run)| f.1 == run && !pins.iter().any(|p| keeps(p, f));
                        let at = freed.iter().position(is_it).expect("freed, and not pinned");
                        freed.swap_remove(at);
                    }
                    let pinned = |f: &(u64, Run)| pins.iter().any(|pin| keeps(pin, f));
                    assert!(freed.iter().all(pinned), "all that is left is pinned");
                    assert_eq!(limbo.any_pinned(), !freed.is_empty());
                }
            }
        }
        assert!(waited > 300 && at_once > 300, "{waited} and {at_once}");
        pins.push((frees, Run { addr: PoolAddr(0), len: 1 }, limbo.pin_none()));
        let era = limbo.reads_until_now();
        while limbo.pop().is_some() {}
        assert!(limbo.has_freed(era) && !limbo.has_passed(era), "all that began before counts");
        pins.clear();
        while limbo.pop().is_some() {}
        assert!(!limbo.has_any() && limbo.has_passed(era));
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
        limbo.free_after_reads(vec![vec![Run { addr: PoolAddr(0), len: 1 }]]);
        assert_eq!(limbo.newest(), Some(later.era()));
    }
}
