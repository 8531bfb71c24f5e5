//! Blocks that are pinned themselves: background reads hold just what they read.
//!
//! A commit may free such blocks meanwhile. They wait here for the pins that began before they were
//! freed. Later pins are about what has them next, or about neighbours.
//!
//! Pins are counted by *pages*, which are parts of the address space. A block waits for the pins of
//! its whole page. So a pin, its end and a freed run cost the same however many pins there are.

use std::ops::RangeInclusive;

use base::PoolAddr;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::block_run::Run;

/// Blocks of a page.
const PAGE: u64 = 32;

/// Reads of the same era began between the same two commits that freed blocks; later ones have a
/// later era. Blocks are freed at the end of an era.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct Era(pub(super) u64);

/// The pages of some blocks.
pub(super) struct Pages(RangeInclusive<u64>);

impl Pages {
    pub fn of(run: Run) -> Pages {
        let PoolAddr(first) = run.addr;
        // The address may be of a damaged node.
        let last = first.saturating_add(u64::from(run.len.max(1)) - 1);
        Pages(first / PAGE..=last / PAGE)
    }

    fn count(&self) -> u64 {
        self.0.end() - self.0.start() + 1
    }
}

/// A page with pins.
#[derive(Default)]
struct PinnedPage {
    /// The number of pins, by era, the oldest first.
    pins: SmallVec<[(Era, u32); 1]>,
    /// Freed runs that wait for some of them, and when they were freed. Each touches this page, and
    /// perhaps others.
    runs: Vec<(Era, Run)>,
}

impl PinnedPage {
    fn begin(&mut self, era: Era) {
        match self.pins.binary_search_by_key(&era, |pins| pins.0) {
            Ok(at) => self.pins[at].1 += 1,
            Err(at) => self.pins.insert(at, (era, 1)),
        }
    }

    /// A pin of this era ends. Moves the runs that wait for none any more to `released`.
    fn end(&mut self, era: Era, released: &mut Vec<(Era, Run)>) {
        let Ok(at) = self.pins.binary_search_by_key(&era, |pins| pins.0) else {
            unreachable!("it has a pin")
        };
        self.pins[at].1 -= 1;
        if self.pins[at].1 > 0 {
            return;
        }
        self.pins.remove(at);
        let pins = &self.pins;
        self.runs.retain(|&(freed, run)| {
            let waits = is_pinned(pins, freed);
            if !waits {
                released.push((freed, run));
            }
            waits
        });
    }
}

/// True if one of these pins, the oldest first, began before the end of an era.
fn is_pinned(pins: &[(Era, u32)], freed: Era) -> bool {
    pins.first().is_some_and(|(oldest, _)| *oldest <= freed)
}

/// Pins by page, and what waits for them.
#[derive(Default)]
pub(super) struct HeldPages {
    pages: FxHashMap<u64, PinnedPage>,
    /// Runs that have waited for a page. Another page of theirs may have pins.
    released: Vec<(Era, Run)>,
    /// All runs that wait, those that were released too.
    waiting: usize,
}

impl HeldPages {
    /// A pin of these pages begins, of a read of this era.
    pub fn begin(&mut self, pages: &Pages, era: Era) {
        for page in pages.0.clone() {
            self.pages.entry(page).or_default().begin(era);
        }
    }

    /// Ends a pin of these pages, of a read of this era. Returns true if runs were released.
    pub fn end(&mut self, pages: &Pages, era: Era) -> bool {
        let before = self.released.len();
        for number in pages.0.clone() {
            let Some(page) = self.pages.get_mut(&number) else { unreachable!("it has a pin") };
            page.end(era, &mut self.released);
            if page.pins.is_empty() {
                self.pages.remove(&number);
            }
        }
        self.released.len() > before
    }

    /// True if a run that was freed at the end of this era is pinned: it waits then.
    pub fn keeps(&mut self, freed: Era, run: Run) -> bool {
        let first = self.first_pinned(&Pages::of(run), freed);
        let Some(page) = first.and_then(|number| self.pages.get_mut(&number)) else { return false };
        page.runs.push((freed, run));
        self.waiting += 1;
        true
    }

    /// The first of these pages with a pin that began before the end of an era. Looks at each of
    /// them, or at all that have pins, whichever are fewer: a run may be as long as a group.
    fn first_pinned(&self, pages: &Pages, freed: Era) -> Option<u64> {
        let is_it = |page: &PinnedPage| is_pinned(&page.pins, freed);
        if pages.count() <= self.pages.len() as u64 {
            return pages.0.clone().find(|number| self.pages.get(number).is_some_and(is_it));
        }
        let among =
            self.pages.iter().filter(|(number, page)| pages.0.contains(number) && is_it(page));
        among.map(|(number, _)| *number).min()
    }

    /// Takes out a run that has waited for a page, and may have to wait for another one; `None`:
    /// there is none now.
    pub fn pop(&mut self) -> Option<(Era, Run)> {
        let run = self.released.pop()?;
        self.waiting -= 1;
        Some(run)
    }

    /// True if runs wait.
    pub fn holds_any(&self) -> bool {
        self.waiting > 0
    }

    /// All runs that wait.
    #[cfg(test)]
    pub fn runs(&self) -> Vec<Run> {
        let pinned = self.pages.values().flat_map(|page| &page.runs);
        pinned.chain(&self.released).map(|(_, run)| *run).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The run has more pages than can be looked at one by one.
    #[test]
    fn a_long_run_costs_no_more_than_the_pages_that_have_pins() {
        let page = |number: u64| Pages(number..=number);
        let all = Pages(0..=u64::MAX / PAGE);
        let mut held = HeldPages::default();
        for number in [1 << 50, 1 << 51] {
            held.begin(&page(number), Era(1));
        }
        held.begin(&page(7), Era(2));
        assert_eq!(held.first_pinned(&all, Era(0)), None);
        assert_eq!(held.first_pinned(&all, Era(1)), Some(1 << 50));
        assert_eq!(held.first_pinned(&all, Era(2)), Some(7));
        assert_eq!(held.first_pinned(&page(1 << 51), Era(1)), Some(1 << 51));
        assert_eq!(held.first_pinned(&page(7), Era(1)), None);
        held.end(&page(7), Era(2));
        assert_eq!(held.first_pinned(&Pages(0..=1 << 49), Era(2)), None);
    }
}
