//! When it was looked last whether another process writes to the same devices, and who asks for the
//! next look. One task takes all looks, so that none waits for a turn of the background.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use base::{Duration, Instant};
use rt::sync::Event;

/// For so long a look counts for what is written after it.
const COUNTS_FOR: Duration = Duration::from_secs(1);
/// From this age on the next look is taken beside what is written, so that no steady stream of
/// writes ever waits for one.
const NEXT_AFTER: Duration = Duration::from_millis(600);

/// The place of a superblock: a slot, and the row of its device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SlotPlace {
    pub row: usize,
    pub slot: u64,
}

/// The last look, and the next one.
#[derive(Default)]
pub struct LookSchedule {
    last: Cell<Option<Instant>>,
    is_asked: Cell<bool>,
    asked: Event,
    ended: Event,
    /// Places whose read is under way: a device that does not answer gets no second one.
    reads: RefCell<BTreeSet<SlotPlace>>,
}

impl LookSchedule {
    /// True if something may be written now. Where the next look is due, it is asked for.
    pub fn counts(&self, now: Instant) -> bool {
        let age = self.last.get().map(|then| now.since(then));
        if age.is_none_or(|age| age >= NEXT_AFTER) {
            self.ask();
        }
        age.is_some_and(|age| age < COUNTS_FOR)
    }

    /// Asks for a look.
    pub fn ask(&self) {
        if !self.is_asked.replace(true) {
            self.asked.notify();
        }
    }

    /// Waits for the end of a look, or of all of them.
    pub fn ended(&self) -> impl Future<Output = ()> + use<> {
        self.ended.wait()
    }

    /// True if a look is to be taken.
    pub fn is_asked(&self) -> bool {
        self.is_asked.get()
    }

    /// Waits until one is asked for, or until the last of them has ended.
    pub fn asked(&self) -> impl Future<Output = ()> + use<> {
        self.asked.wait()
    }

    /// The read of a place begins; false if one is under way.
    pub fn begin_read(&self, place: SlotPlace) -> bool {
        self.reads.borrow_mut().insert(place)
    }

    /// The read of a place has ended.
    pub fn end_read(&self, place: SlotPlace) {
        self.reads.borrow_mut().remove(&place);
    }

    /// A look has ended.
    pub fn note(&self, now: Instant) {
        self.last.set(Some(now));
        self.is_asked.set(false);
        self.ended.notify();
    }

    /// None is taken any more.
    pub fn wake_all(&self) {
        self.asked.notify();
        self.ended.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_counts_for_a_while_and_the_next_begins_before_that() {
        let looks = LookSchedule::default();
        let at = |ms: u64| Instant(ms * 1_000_000);
        assert!(!looks.counts(at(0)) && looks.is_asked());
        looks.note(at(10));
        assert!(looks.counts(at(609)) && !looks.is_asked());
        assert!(looks.counts(at(610)) && looks.is_asked());
        assert!(looks.counts(at(1009)));
        assert!(!looks.counts(at(1010)));
        looks.note(at(1020));
        assert!(looks.counts(at(1020)) && !looks.is_asked());
    }
}
