//! Counts by epoch: how many of something the open epoch has, and each sealed one.
//!
//! A thing that is overwritten in the open epoch counts no longer. One that is overwritten in a
//! sealed epoch is *retained*: the cut of that epoch has it, so it counts until that epoch is
//! published.

use std::collections::VecDeque;

use base::Epoch;

/// The counts of one sealed epoch.
#[derive(Clone, Copy, Debug)]
struct SealedCounts {
    epoch: Epoch,
    all: u64,
    /// Of these, overwritten since the epoch was sealed.
    retained: u64,
}

impl SealedCounts {
    /// The number of things that were not overwritten.
    fn named(&self) -> u64 {
        self.all - self.retained
    }
}

/// Counts of all epochs that are not published.
#[derive(Clone, Default, Debug)]
pub(super) struct EpochCounts {
    open: u64,
    /// The number of things of sealed epochs that the open one has overwritten.
    overwritten: u64,
    /// The oldest first.
    sealed: VecDeque<SealedCounts>,
    sealed_sum: u64,
}

/// The counts that published epochs had.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct PublishedCounts {
    pub all: u64,
    /// Of these, not overwritten: keys still name them.
    pub named: u64,
}

impl EpochCounts {
    /// Counts as a checkpoint left them: all of it is of the open epoch.
    pub fn restore(open: u64) -> EpochCounts {
        EpochCounts { open, ..EpochCounts::default() }
    }

    /// The open epoch has `n` more.
    pub fn add(&mut self, n: u64) {
        self.open += n;
    }

    /// `n` of those of `epoch` are overwritten. False if it does not have as many.
    #[must_use]
    pub fn remove(&mut self, n: u64, epoch: Epoch) -> bool {
        let sealed = self.sealed.iter_mut().find(|s| s.epoch == epoch);
        let has = sealed.as_ref().map_or(self.open, |s| s.named());
        let enough = n <= has;
        match sealed {
            Some(s) if enough => {
                s.retained += n;
                self.overwritten += n;
            }
            None if enough => self.open -= n,
            _ => {}
        }
        enough
    }

    /// The number of things of the open epoch that were in no sealed epoch before, at least.
    pub fn fresh(&self) -> u64 {
        self.open - self.open.min(self.overwritten)
    }

    /// Seals the open epoch, which is `epoch`, and opens the next.
    pub fn seal(&mut self, epoch: Epoch) {
        let all = std::mem::take(&mut self.open);
        self.overwritten = 0;
        self.sealed_sum += all;
        self.sealed.push_back(SealedCounts { epoch, all, retained: 0 });
    }

    /// Everything up to `epoch` is published.
    pub fn publish(&mut self, epoch: Epoch) -> PublishedCounts {
        let mut gone = PublishedCounts::default();
        while let Some(&first) = self.sealed.front().filter(|s| s.epoch <= epoch) {
            self.sealed.pop_front();
            gone.all += first.all;
            gone.named += first.named();
        }
        self.sealed_sum -= gone.all;
        gone
    }

    /// The number of things that are not published: of the open epoch, and of all sealed ones.
    pub fn all(&self) -> (u64, u64) {
        (self.open, self.sealed_sum)
    }

    /// The number of things of the sealed epochs up to `epoch`.
    pub fn upto(&self, epoch: Epoch) -> u64 {
        self.sealed.iter().take_while(|s| s.epoch <= epoch).map(|s| s.all).sum()
    }

    /// As [`EpochCounts::all`], without what is retained.
    pub fn named(&self) -> (u64, u64) {
        (self.open, self.sealed.iter().map(SealedCounts::named).sum())
    }
}

#[cfg(test)]
mod tests {
    use base::Prng;

    use super::*;

    /// Each thing by itself: the epoch that it counts for, and whether it was overwritten.
    #[test]
    fn counts_are_those_of_a_list_of_all_things() {
        for seed in 0..50 {
            let mut rng = Prng::new(seed);
            let (mut counts, mut things) = (EpochCounts::default(), Vec::<(Epoch, bool)>::new());
            let (mut published, mut open) = (Epoch(0), Epoch(1));
            for _ in 0..300 {
                match rng.below(10) {
                    0..5 => {
                        let n = rng.below(9);
                        counts.add(n);
                        things.extend((0..n).map(|_| (open, false)));
                    }
                    5..8 => {
                        let live: Vec<usize> =
                            (0..things.len()).filter(|&i| !things[i].1).collect();
                        if live.is_empty() {
                            continue;
                        }
                        let i = live[rng.below(live.len() as u64) as usize];
                        let has = things.iter().filter(|t| **t == (things[i].0, false)).count();
                        assert!(!counts.remove(has as u64 + 1, things[i].0), "more than there are");
                        assert!(counts.remove(1, things[i].0));
                        things[i].1 = true;
                        if things[i].0 == open {
                            things.swap_remove(i);
                        }
                    }
                    8 => {
                        counts.seal(open);
                        open = Epoch(open.0 + 1);
                    }
                    _ => {
                        published =
                            Epoch(published.0 + rng.below(u64::from(open.0 - published.0)) as u32);
                        let (gone, stay): (Vec<_>, _) =
                            things.into_iter().partition(|t| t.0 <= published);
                        let named = gone.iter().filter(|t| !t.1).count() as u64;
                        assert_eq!(
                            counts.publish(published),
                            PublishedCounts { all: gone.len() as u64, named }
                        );
                        things = stay;
                    }
                }
                let count = |f: &dyn Fn(&(Epoch, bool)) -> bool| {
                    things.iter().filter(|t| f(t)).count() as u64
                };
                assert_eq!(counts.all(), (count(&|t| t.0 == open), count(&|t| t.0 < open)));
                assert_eq!(
                    counts.named(),
                    (count(&|t| t.0 == open), count(&|t| t.0 < open && !t.1))
                );
                let upto = Epoch(published.0 + (open.0 - published.0) / 2);
                assert_eq!(counts.upto(upto), count(&|t| t.0 <= upto && t.0 < open));
            }
        }
    }

    #[test]
    fn what_a_cut_has_is_not_fresh_when_it_is_written_again() {
        let mut counts = EpochCounts::default();
        counts.add(10);
        assert_eq!(counts.fresh(), 10);
        counts.seal(Epoch(1));
        assert_eq!(counts.fresh(), 0);
        // Four of the cut are overwritten, one of them twice, and three new ones come.
        assert!(counts.remove(4, Epoch(1)));
        counts.add(4);
        assert!(counts.remove(1, Epoch(2)));
        counts.add(1 + 3);
        assert_eq!((counts.all(), counts.fresh()), ((7, 10), 3));
        // Discarded, they are in no epoch.
        assert!(counts.remove(7, Epoch(2)));
        assert_eq!(counts.fresh(), 0);
        counts.seal(Epoch(2));
        counts.add(2);
        assert_eq!(counts.fresh(), 2);
    }
}
