//! What stays from one pass of write-back to the next.

use std::time::Duration;

use base::{BLOCK_U64, Epoch, Instant, Result, StorageError};

use super::cuts::{Cut, Cuts};
use crate::policy::controller::{self, Controller, ControllerState, Pacer};
use crate::settings::Settings;

/// What stays between passes.
pub(crate) struct Passes {
    cuts: Cuts,
    tries: Tries,
    controller: Controller,
    pacer: Pacer,
    /// Tasks that wait for all of it.
    urgent: u32,
    published: u64,
    /// How often all that was dirty at a moment has been published since, one after the other; and
    /// the epoch that was open at the last of these moments.
    turns: u64,
    turn: Epoch,
    /// What the pool's image is missing began then.
    dirty_since: Option<Instant>,
    /// Passes have failed since, and the last one for this.
    failing: Option<(Instant, StorageError)>,
    bytes: u64,
    /// Blocks of the cut that were carried.
    carried: u64,
    sleeps_at: Option<u64>,
    /// When it was told of last that the image is too old; `None`: it is not.
    pub told_late: Option<Instant>,
}

impl Passes {
    /// None has run.
    pub fn new(settings: &Settings) -> Passes {
        Passes {
            cuts: Cuts::default(),
            tries: Tries::default(),
            controller: Controller::new(settings.writeback.clone()),
            pacer: Pacer::new(),
            urgent: 0,
            published: 0,
            turns: 0,
            turn: Epoch(0),
            dirty_since: None,
            failing: None,
            bytes: 0,
            carried: 0,
            sleeps_at: None,
            told_late: None,
        }
    }

    /// The cuts that are not published.
    pub fn cuts(&self) -> &Cuts {
        &self.cuts
    }

    /// The same, to change them.
    pub fn cuts_mut(&mut self) -> &mut Cuts {
        &mut self.cuts
    }

    /// The passes that were tried.
    pub fn tries(&mut self) -> &mut Tries {
        &mut self.tries
    }

    /// A task waits for all of it, or does not any more: no pass is paced meanwhile.
    pub fn set_urgent(&mut self, urgent: bool) {
        self.urgent = if urgent { self.urgent + 1 } else { self.urgent - 1 };
    }

    /// A task waits for all of it.
    pub fn is_urgent(&self) -> bool {
        self.urgent > 0
    }

    /// Something is dirty now, or nothing. True if it began with that.
    pub fn note_dirty(&mut self, dirty: bool, now: Instant) -> bool {
        if !dirty && self.cuts.count() == 0 {
            self.dirty_since = None;
            return false;
        }
        let begins = self.dirty_since.is_none();
        self.dirty_since.get_or_insert(now);
        begins
    }

    /// How much older the pool's image may be than the volumes; `None`: it has everything.
    pub fn age(&self, now: Instant) -> Option<Duration> {
        self.dirty_since.map(|since| now.since(since))
    }

    /// From now on these rates hold.
    pub fn set_rates(&mut self, rates: controller::Settings) {
        self.controller.set(rates);
    }

    /// What the controller says, in bytes a second; see [`Controller::update`].
    pub fn controlled(&mut self, now: Instant, dirty: u64, target: u64, idle: bool) -> u64 {
        self.controller.update(now, dirty, target, idle)
    }

    /// What the controller did last.
    pub fn controller(&self) -> ControllerState {
        self.controller.state()
    }

    /// Lets a pass carry so many bytes at `rate` bytes a second; or says how long it has to wait.
    pub fn take_turn(&mut self, now: Instant, bytes: u64, rate: u64) -> Duration {
        let urgent = self.is_urgent();
        let wait = if urgent { Duration::ZERO } else { self.pacer.due(now, rate) };
        self.sleeps_at = (!wait.is_zero()).then_some(rate);
        if wait.is_zero() {
            // What is urgent is not paid for: the pass after it would stand still for it.
            if !urgent {
                self.pacer.charge(bytes, rate);
            }
            self.bytes += bytes;
            self.carried += bytes / BLOCK_U64;
        }
        wait
    }

    /// The rate at which a pass waits before it carries more, in bytes a second.
    pub fn sleeps_at(&self) -> Option<u64> {
        self.sleeps_at
    }

    /// Blocks of the cut that were carried: they are room when it is published.
    pub fn carried(&self) -> u64 {
        self.carried
    }

    /// A pass has ended, well or not: nothing is carried.
    pub fn ends(&mut self) {
        self.carried = 0;
    }

    /// Bytes that were carried.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A cut is published, with all before it. `open`: the epoch that is open; `dirty`: there is
    /// something dirty in the cache.
    pub fn conclude(&mut self, cut: &Cut, open: Epoch, dirty: bool) {
        self.cuts.publish(cut.epoch);
        self.ends();
        self.published += 1;
        self.failing = None;
        if cut.epoch >= self.turn {
            self.turns += 1;
            self.turn = open;
        }
        let dirty = self.cuts.count() > 0 || dirty;
        self.dirty_since = dirty.then_some(cut.taken_at);
    }

    /// Passes that were published.
    pub fn published(&self) -> u64 {
        self.published
    }

    /// How often all that was dirty has been published: several passes each time while there are
    /// several cuts.
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// A pass has failed. True if the one before did not, or for something else.
    pub fn fails(&mut self, e: StorageError, now: Instant) -> bool {
        let (since, last) = self.failing.take().unzip();
        let news = last.is_none_or(|last| last.context != e.context);
        self.failing = Some((since.unwrap_or(now), e));
        news
    }

    /// Since when passes have failed, and why the last one did.
    pub fn failing(&self) -> Option<&(Instant, StorageError)> {
        self.failing.as_ref()
    }
}

/// The passes that were tried, by number.
#[derive(Default)]
pub(crate) struct Tries {
    /// The last that has begun.
    begun: u64,
    /// The last that has ended, and how.
    last: Option<(u64, Result<()>)>,
}

impl Tries {
    /// How many have begun.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// One begins; its number.
    pub fn begin(&mut self) -> u64 {
        self.begun += 1;
        self.begun
    }

    /// One has ended.
    pub fn end(&mut self, number: u64, outcome: Result<()>) {
        self.last = Some((number, outcome));
    }

    /// How the last pass ended, if it began after so many had.
    pub fn after(&self, begun: u64) -> Option<Result<()>> {
        self.last.clone().filter(|&(number, _)| number > begun).map(|(_, outcome)| outcome)
    }
}

#[cfg(test)]
#[path = "passes_tests.rs"]
mod tests;
