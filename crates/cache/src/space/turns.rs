//! The lines in which requests wait for room one after the other: at the door, for room in the
//! journal and for nodes; and for blocks of buckets.

use std::cell::Cell;

use base::Instant;
use rt::sync::{Permit, Semaphore};

use super::writer_line::WaitStart;
use crate::policy::writer_delay::PATIENCE;

/// The findings of a write that has waited in vain.
#[derive(Clone, Copy)]
struct Verdict {
    /// The number of blocks that can be had at most.
    room: u32,
    /// The verdict holds as long as this many dirty blocks cannot be written back.
    bad: u64,
    /// The time up to which the verdict holds: for as long as it took to find out, and not less
    /// than `PATIENCE`.
    until: Instant,
}

/// See the [module](self).
pub(crate) struct Turns {
    /// Held by the first of the requests that wait for room in the journal or for nodes.
    door: Semaphore,
    /// Held by the write that is taking blocks.
    taking: Semaphore,
    /// Since when no write has found a block.
    dry_since: Cell<Option<WaitStart>>,
    verdict: Cell<Option<Verdict>>,
}

impl Turns {
    /// No request waits.
    pub fn new() -> Turns {
        Turns {
            door: Semaphore::new(1),
            taking: Semaphore::new(1),
            dry_since: Cell::new(None),
            verdict: Cell::new(None),
        }
    }

    /// True if no request waits at the door.
    pub fn is_door_free(&self) -> bool {
        self.door.free() > 0
    }

    /// Waits to be the first of the requests at the door. It stays the first until the permit is
    /// dropped.
    pub fn door(&self) -> impl Future<Output = Permit> {
        self.door.acquire(1)
    }

    /// The turn to take blocks, if no write has it.
    pub fn try_take(&self) -> Option<Permit> {
        self.taking.try_acquire(1)
    }

    /// Waits for the turn to take blocks.
    pub fn take(&self) -> impl Future<Output = Permit> {
        self.taking.acquire(1)
    }

    /// True while no write finds a block.
    pub fn is_dry(&self) -> bool {
        self.dry_since.get().is_some()
    }

    /// A write finds no block. Returns since when none has: all writes that find none share one
    /// wait, which `begin` begins if it has not begun.
    pub fn found_none(&self, begin: impl FnOnce() -> WaitStart) -> WaitStart {
        let waiting = self.dry_since.get().unwrap_or_else(begin);
        self.dry_since.set(Some(waiting));
        waiting
    }

    /// A write has found blocks: the time without any has ended.
    pub fn found_some(&self) {
        self.dry_since.set(None);
    }

    /// A write has waited in vain from `waiting` until `now`, and gives `room` blocks back. A write
    /// that needs more does not wait to find out the same: of many large writes in line each would
    /// wait for as long as the first.
    /// `bad` dirty blocks, more than none, cannot be written back.
    pub fn refused(&self, waiting: WaitStart, now: Instant, room: u32, bad: u64) {
        let until = now.after(now.since(waiting.since).max(PATIENCE));
        self.verdict.set((bad > 0).then_some(Verdict { room, bad, until }));
    }

    /// True if a write of so many blocks would wait in vain while `bad` cannot be written back.
    pub fn is_in_vain(&self, now: Instant, blocks: u32, bad: u64) -> bool {
        self.verdict.get().is_some_and(|v| now <= v.until && blocks > v.room && bad >= v.bad)
    }

    /// A write has found all its blocks at once.
    pub fn found_all(&self, blocks: u32) {
        let left = |v: Verdict| Some(Verdict { room: v.room.checked_sub(blocks)?, ..v });
        self.verdict.set(self.verdict.get().and_then(left));
    }

    /// Blocks became free while a write waited.
    pub fn room_came(&self) {
        self.verdict.set(None);
    }
}
