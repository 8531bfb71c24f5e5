//! The gate through which changes of volumes that write back come in, with a limit on what may come
//! in during each round of a [drain](super::detach_drain).

use std::cell::Cell;
use std::rc::Rc;

use rt::sync::{Event, Semaphore};

/// The work that clients may begin in any round.
const STEP: u64 = 32;
/// The work that counts as little, at most: one pass carries it in a moment. It is more than a
/// round leaves behind if clients begin as much as they may: twice [`STEP`], and one request.
pub(super) const LITTLE: u64 = 128;
/// Blocks of a write, and of a discard, that cost as much as a request does.
const WRITTEN: u64 = 32;
const DISCARDED: u64 = 4096;

/// The work of carrying a write of `blocks` blocks.
pub fn work_of_write(blocks: u64) -> u64 {
    1 + blocks / WRITTEN
}

/// The work of carrying a discard of `blocks` blocks.
pub fn work_of_discard(blocks: u64) -> u64 {
    1 + blocks / DISCARDED
}

/// The limit on the work that clients may begin until the next round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Limit {
    /// No drain is under way, or it is in its first round.
    None,
    /// A part of what this round carries, which is so much work.
    Of(u64),
    Nothing,
}

/// The progress of the pass that is under way.
#[derive(Clone, Copy, Default)]
pub(crate) struct Progress {
    /// Blocks that it has carried to their end, and all that it is to carry.
    pub carried: u64,
    pub all: u64,
    /// True if the pass has carried all, and is being published.
    pub publishes: bool,
}

/// The gate through which changes of volumes that write back come in.
pub(crate) struct DrainGate {
    pub(super) limit: Cell<Limit>,
    /// Work that is under way, and work that the next round carries, which includes it.
    pub(super) under_way: Cell<u64>,
    pub(super) next: Cell<u64>,
    /// Requests that wait go in one by one.
    pub(super) door: Semaphore,
    /// More may come in, or all that was under way has ended.
    pub(super) moved: Event,
}

impl DrainGate {
    /// A gate that stands open.
    pub fn new() -> DrainGate {
        DrainGate {
            limit: Cell::new(Limit::None),
            under_way: Cell::new(0),
            next: Cell::new(0),
            door: Semaphore::new(1),
            moved: Event::new(),
        }
    }

    /// Has those look again that wait.
    pub fn wake(&self) {
        if self.limit.get() != Limit::None {
            self.moved.notify();
        }
    }

    /// The work that may begin in this round; `None`: any.
    fn allowed(&self, pass: Progress) -> Option<u64> {
        match self.limit.get() {
            Limit::None => None,
            Limit::Nothing => Some(0),
            Limit::Of(work) => {
                let part = match pass.publishes {
                    true => work / 2,
                    false if pass.all == 0 => work / 8,
                    false => {
                        let carried = u128::from(pass.carried.min(pass.all));
                        work / 8 + (u128::from(work) * carried / u128::from(4 * pass.all)) as u64
                    }
                };
                Some(STEP + part)
            }
        }
    }

    pub(super) fn lets_in(&self, pass: Progress) -> bool {
        self.allowed(pass).is_none_or(|allowed| self.next.get() < allowed)
    }

    pub(super) fn enter(self: &Rc<DrainGate>, work: u64) -> Change {
        self.under_way.set(self.under_way.get() + work);
        self.next.set(self.next.get().saturating_add(work));
        Change { gate: self.clone(), work }
    }

    /// A round begins: it carries all that came before, but for what has not ended yet.
    pub(super) fn begin_round(&self, first: bool) {
        self.limit.set(if first { Limit::None } else { Limit::Of(self.next.get()) });
        self.next.set(self.under_way.get());
        self.moved.notify();
    }
}

/// A change of a volume that writes back is under way until this is dropped.
#[must_use = "the change has ended when it is dropped"]
pub struct Change {
    gate: Rc<DrainGate>,
    work: u64,
}

impl Drop for Change {
    fn drop(&mut self) {
        let left = self.gate.under_way.get() - self.work;
        self.gate.under_way.set(left);
        if left == 0 {
            self.gate.wake();
        }
    }
}

#[cfg(test)]
#[path = "drain_gate_tests.rs"]
mod tests;
