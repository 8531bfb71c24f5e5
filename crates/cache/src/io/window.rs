//! The writes that are under way past the cache.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use base::{Instant, Lba, VolumeId};
use rt::sync::Event;

/// So many writes past the cache may be under way at first, and at most.
const FIRST_WINDOW: u32 = 4;
const LARGEST_WINDOW: u32 = 256;
/// The longest time for which one late answer of the cache device counts.
const LONGEST: Duration = Duration::from_secs(1);

/// What is under way past the buckets.
#[derive(Default)]
pub(crate) struct Bypass {
    under_way: RefCell<Vec<Range>>,
    ended: Event,
    /// So many wait to take a cut: none begins.
    held: Cell<u32>,
    /// The cache device is late; until then.
    late_until: Cell<Instant>,
    window: RefCell<Window>,
}

type Range = (VolumeId, Lba, Lba);

/// A write past the buckets that is under way.
pub(crate) struct UnderWay {
    of: Rc<Bypass>,
    range: Range,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut all = self.of.under_way.borrow_mut();
        if let Some(i) = all.iter().position(|r| *r == self.range) {
            all.swap_remove(i);
        }
        drop(all);
        self.of.ended.notify();
    }
}

/// How many writes past the cache may be under way while the cache has room for them: as many as
/// the pool answers in time. One that was overtaken leaves room for one, when the pool has answered
/// it; each that is in time lets one more go.
struct Window {
    allowed: u32,
    under_way: u32,
    /// Of these, those that the cache has overtaken.
    overtaken: u32,
}

impl Default for Window {
    fn default() -> Window {
        Window { allowed: FIRST_WINDOW, under_way: 0, overtaken: 0 }
    }
}

impl Window {
    fn has_place(&self) -> bool {
        self.overtaken == 0 && self.under_way < self.allowed
    }

    fn overtaken(&mut self) {
        self.allowed = 1;
        self.overtaken += 1;
    }

    fn ended(&mut self, overtaken: bool) {
        self.under_way -= 1;
        if overtaken {
            self.overtaken -= 1;
        } else if self.overtaken == 0 {
            self.allowed = (self.allowed + 1).min(LARGEST_WINDOW);
        }
    }
}

/// A place in the window.
pub(crate) struct InWindow {
    of: Rc<Bypass>,
    /// The cache was faster.
    pub overtaken: bool,
}

impl Drop for InWindow {
    fn drop(&mut self) {
        self.of.window.borrow_mut().ended(self.overtaken);
    }
}

/// Keeps writes from going past the cache.
pub(crate) struct Hold(Rc<Bypass>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.held.set(self.0.held.get() - 1);
        self.0.ended.notify();
    }
}

impl Bypass {
    /// Waits for the writes under way; none begins until the guard is dropped.
    pub async fn hold(self: &Rc<Bypass>) -> Hold {
        self.held.set(self.held.get() + 1);
        let hold = Hold(self.clone());
        loop {
            let ended = self.ended.wait();
            if self.under_way.borrow().is_empty() {
                return hold;
            }
            ended.await;
        }
    }

    /// A place among the writes past the cache. `None`: the pool is behind, and the cache has room.
    pub fn enter_window(self: &Rc<Bypass>, much_room: bool) -> Option<InWindow> {
        let mut window = self.window.borrow_mut();
        if much_room && !window.has_place() {
            return None;
        }
        window.under_way += 1;
        Some(InWindow { of: self.clone(), overtaken: false })
    }

    /// The cache overtakes one of them.
    pub fn overtake(&self) {
        self.window.borrow_mut().overtaken();
    }

    /// Waits for those under way that it overlaps, and for cuts that wait: it is of upkeep, and is
    /// done in any case.
    pub async fn begin_in_turn(self: &Rc<Bypass>, range: Range) -> UnderWay {
        loop {
            let ended = self.ended.wait();
            if self.held.get() == 0 && !self.overlaps(range) {
                self.under_way.borrow_mut().push(range);
                return UnderWay { of: self.clone(), range };
            }
            ended.await;
        }
    }

    fn overlaps(&self, (volume, lba, end): Range) -> bool {
        self.under_way.borrow().iter().any(|&(v, a, b)| v == volume && a < end && lba < b)
    }

    /// Waits for those under way that it overlaps: of two, the last key must be of the last data.
    /// `None`: a cut waits; or the cache has room, so that no request waits for the pool.
    pub async fn begin(self: &Rc<Bypass>, range: Range, much_room: bool) -> Option<UnderWay> {
        loop {
            let ended = self.ended.wait();
            if self.held.get() > 0 {
                return None;
            }
            if !self.overlaps(range) {
                self.under_way.borrow_mut().push(range);
                return Some(UnderWay { of: self.clone(), range });
            }
            if much_room {
                return None;
            }
            ended.await;
        }
    }

    /// The device answered at `now`, and took `late` longer than it should.
    pub fn note_late(&self, now: Instant, late: Duration) {
        let until = now.after(late.min(LONGEST));
        self.late_until.set(self.late_until.get().max(until));
    }

    /// True if the device was late a moment ago.
    pub fn is_late(&self, now: Instant) -> bool {
        now < self.late_until.get()
    }
}
