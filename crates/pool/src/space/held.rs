//! Blocks that are pinned themselves: background reads hold just what they read.
//!
//! A commit may free such blocks meanwhile. They wait here until no pin holds them.
//!
//! Pins are counted by *pages*, which are parts of the address space. A block waits for the pins of
//! its whole page. So a pin, its end and a freed run cost the same however many pins there are.

use std::ops::RangeInclusive;

use base::PoolAddr;
use rustc_hash::FxHashMap;

use super::run::Run;

/// Blocks of a page.
const PAGE: u64 = 32;

/// The pages of some blocks.
pub(super) struct Pages(RangeInclusive<u64>);

impl Pages {
    pub fn of(run: Run) -> Pages {
        let PoolAddr(first) = run.addr;
        Pages(first / PAGE..=(first + u64::from(run.len.max(1)) - 1) / PAGE)
    }
}

/// A page with pins.
#[derive(Default)]
struct Page {
    pins: u32,
    /// Freed runs that wait for them. Each touches this page, and perhaps others.
    runs: Vec<Run>,
}

/// Pins by page, and what waits for them.
#[derive(Default)]
pub(super) struct Held {
    pages: FxHashMap<u64, Page>,
    /// Runs that have waited for a page. Another page of theirs may have pins.
    released: Vec<Run>,
    /// All runs that wait, those that were released too.
    waiting: usize,
}

impl Held {
    /// A pin of these pages begins.
    pub fn begin(&mut self, pages: &Pages) {
        for page in pages.0.clone() {
            self.pages.entry(page).or_default().pins += 1;
        }
    }

    /// It ends.
    pub fn end(&mut self, pages: &Pages) {
        for page in pages.0.clone() {
            let Some(pinned) = self.pages.get_mut(&page) else { unreachable!("it has a pin") };
            pinned.pins -= 1;
            if pinned.pins == 0 {
                self.released.extend(self.pages.remove(&page).into_iter().flat_map(|p| p.runs));
            }
        }
    }

    /// True if a freed run is pinned: it waits then.
    pub fn keeps(&mut self, run: Run) -> bool {
        if self.pages.is_empty() {
            return false;
        }
        for page in Pages::of(run).0 {
            if let Some(pinned) = self.pages.get_mut(&page) {
                pinned.runs.push(run);
                self.waiting += 1;
                return true;
            }
        }
        false
    }

    /// Takes out a run that has waited for a page, and may have to wait for another one; `None`:
    /// there is none now.
    pub fn pop(&mut self) -> Option<Run> {
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
        pinned.chain(&self.released).copied().collect()
    }
}
