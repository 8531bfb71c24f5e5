//! State that stays from one pass of write-back to the next.

use std::time::Duration;

use base::{BLOCK_U64, Epoch, Instant, Result, StorageError, VolumeId};

use super::all_kept::KeptByVolume;
use super::cuts::{Cut, Cuts};
use super::drain_gate::Progress;
use crate::policy::rate_controller::{self, BytePacer, Controller, ControllerState};
use crate::settings::Settings;

/// The log says again that the image is too old after this time, while it stays so.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// News for the log about the age of the pool's image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AgeNews {
    TooOld,
    /// The image was too old, and is not any more.
    InTime,
}

/// The state that stays between passes.
pub(crate) struct Passes {
    cuts: Cuts,
    tries: PassAttempts,
    controller: Controller,
    pacer: BytePacer,
    /// Tasks that wait until everything is published.
    urgent: u32,
    published: u64,
    /// The number of times that all that was dirty at a moment has been published; and the epoch
    /// that is to be published for the next time.
    turns: u64,
    turn: Epoch,
    /// When the pool's image began to lack something.
    dirty_since: Option<Instant>,
    /// How old the image was when the cache was opened, at most, while it is still that one.
    opened_with: Option<Duration>,
    /// Since when passes have failed, and the error of the last one.
    failing: Option<(Instant, StorageError)>,
    bytes: u64,
    /// Blocks of the cut that were carried, and those of them that have come to the pool; or all
    /// have, and it is being published.
    carried: u64,
    came: u64,
    publishes: bool,
    /// Bytes that had been carried when the last pass began, and blocks that it left as they are
    /// bad.
    before: u64,
    left_bad: u64,
    /// The blocks that passes leave as the pool cannot take them.
    kept: KeptByVolume,
    sleeps_at: Option<u64>,
    in_force: Option<u64>,
    /// When the log last said that the image is too old; `None`: it is not too old.
    told_late: Option<Instant>,
}

impl Passes {
    /// The state before the first pass.
    pub fn new(settings: &Settings) -> Passes {
        Passes {
            cuts: Cuts::default(),
            tries: PassAttempts::default(),
            controller: Controller::new(settings.writeback.clone()),
            pacer: BytePacer::new(),
            urgent: 0,
            published: 0,
            turns: 0,
            turn: Epoch(0),
            dirty_since: None,
            opened_with: None,
            failing: None,
            bytes: 0,
            carried: 0,
            came: 0,
            publishes: false,
            before: 0,
            left_bad: 0,
            kept: KeptByVolume::default(),
            sleeps_at: None,
            in_force: None,
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
    pub fn tries(&mut self) -> &mut PassAttempts {
        &mut self.tries
    }

    /// A task waits until everything is published, or has ended its wait. No pass is paced
    /// meanwhile.
    pub fn set_urgent(&mut self, urgent: bool) {
        self.urgent = if urgent { self.urgent + 1 } else { self.urgent - 1 };
    }

    /// True if a task waits until everything is published.
    pub fn is_urgent(&self) -> bool {
        self.urgent > 0
    }

    /// Notes whether something is dirty now. Returns true if the pool's image begins to lack
    /// something.
    pub fn note_dirty(&mut self, dirty: bool, now: Instant) -> bool {
        if !dirty && self.cuts.count() == 0 {
            self.dirty_since = None;
            self.opened_with = None;
            self.kept.clear();
            return false;
        }
        let begins = self.dirty_since.is_none();
        self.dirty_since.get_or_insert(now);
        begins
    }

    /// The time by which the pool's image is older than the volumes, at most; `None`: it has
    /// everything.
    pub fn age(&self, now: Instant) -> Option<Duration> {
        self.dirty_since.map(|since| now.since(since))
    }

    /// The cache is opened with an image that is so old, at most, and lacks something.
    pub fn open_with(&mut self, image_age: Option<Duration>) {
        self.opened_with = image_age.filter(|_| self.dirty_since.is_some());
    }

    /// How old the image is, at most, if it is that with which the cache was opened: since a start,
    /// nothing was published, and what it lacks may be of long before.
    pub fn image_of_before(&self, now: Instant) -> Option<Duration> {
        Some(self.age(now)? + self.opened_with?)
    }

    /// The news for the log about an image of this age, where `most` is allowed; `None`: nothing,
    /// or the same as not long ago.
    pub fn age_news(&mut self, age: Duration, most: Duration, now: Instant) -> Option<AgeNews> {
        // An age a little above the limit is not logged: the pass that is under way publishes soon.
        let late = age > most + most / 4;
        match self.told_late {
            None if late => {}
            Some(then) if late && now.since(then) >= TELL_AGAIN => {}
            Some(_) if age <= most => {
                self.told_late = None;
                return Some(AgeNews::InTime);
            }
            _ => return None,
        }
        self.told_late = Some(now);
        Some(AgeNews::TooOld)
    }

    /// From now on these rates hold.
    pub fn set_rates(&mut self, rates: rate_controller::RateSettings) {
        self.controller.set(rates);
    }

    /// The rate of the controller in bytes a second; see [`Controller::update`].
    pub fn controlled(&mut self, now: Instant, dirty: u64, target: u64, idle: bool) -> u64 {
        self.controller.update(now, dirty, target, idle)
    }

    /// The state of the controller after its last update.
    pub fn controller(&self) -> ControllerState {
        self.controller.state()
    }

    /// Lets a pass carry `bytes` bytes at `rate` bytes a second, and returns zero; or returns how
    /// long it has to wait.
    pub fn take_turn(&mut self, now: Instant, bytes: u64, rate: u64) -> Duration {
        let urgent = self.is_urgent();
        let wait = if urgent { Duration::ZERO } else { self.pacer.due(now, rate) };
        self.sleeps_at = (!wait.is_zero()).then_some(rate);
        self.in_force = (!urgent).then_some(rate);
        if wait.is_zero() {
            // Urgent bytes are not charged: the next pass would have to wait for them.
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

    /// Bytes a second that the pass under way may carry; `None`: no pass carries, or nothing bounds
    /// it, as a task waits until everything is published.
    pub fn rate_in_force(&self) -> Option<u64> {
        self.in_force
    }

    /// Blocks of the cut that were carried: they become room when the cut is published.
    pub fn carried(&self) -> u64 {
        self.carried
    }

    /// A pass begins to carry the cut of this epoch.
    pub fn begins(&mut self, cut: Epoch) {
        (self.before, self.left_bad) = (self.bytes, 0);
        self.kept.begin(cut);
    }

    /// The pass leaves a block that is bad.
    pub fn leaves_bad(&mut self) {
        self.left_bad += 1;
    }

    /// The pass leaves blocks that are of this epoch from now on, as the pool cannot take them.
    pub fn keeps(&mut self, volume: VolumeId, blocks: u64, epoch: Epoch, why: &StorageError) {
        self.kept.keep(volume, blocks, epoch, why);
    }

    /// The blocks that passes leave as the pool cannot take them.
    pub fn kept(&self) -> &KeptByVolume {
        &self.kept
    }

    /// True if all the data that the last pass was to carry is bad, or cannot be taken by the pool:
    /// the next one finds the same.
    pub fn was_in_vain(&self) -> bool {
        let left = self.left_bad > 0 || self.kept.is_any();
        left && self.bytes - self.before <= self.left_bad * BLOCK_U64
    }

    /// Blocks of the cut have come to the pool.
    pub fn came(&mut self, blocks: u64) {
        self.came += blocks;
    }

    /// The pass has carried all of its cut, which is being published from now on.
    pub fn publishes(&mut self) {
        self.publishes = true;
        self.in_force = None;
    }

    /// The progress of the pass.
    pub fn progress(&self) -> Progress {
        Progress { carried: self.came, all: self.cuts.lump(), publishes: self.publishes }
    }

    /// A pass has ended, well or not: nothing is carried.
    pub fn ends(&mut self) {
        (self.carried, self.came, self.publishes) = (0, 0, false);
        self.in_force = None;
    }

    /// Bytes that were carried.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A cut is published, with all before it. `open`: the epoch that is open; `dirty`: something
    /// is dirty in the cache. Returns the volumes of which something is kept from now on, and those
    /// of which nothing is any more.
    pub fn conclude(
        &mut self,
        cut: &Cut,
        open: Epoch,
        dirty: bool,
    ) -> (Vec<VolumeId>, Vec<VolumeId>) {
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
        self.opened_with = None;
        self.kept.publish(cut.epoch)
    }

    /// Passes that were published.
    pub fn published(&self) -> u64 {
        self.published
    }

    /// The number of times that all that was dirty has been published: several passes each time
    /// while there are several cuts.
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// Notes that a pass has failed. Returns true if the one before did not, or failed for another
    /// reason.
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
pub(crate) struct PassAttempts {
    /// The number of the last pass that has begun.
    begun: u64,
    /// The number of the last pass that has ended, and its outcome.
    last: Option<(u64, Result<()>)>,
}

impl PassAttempts {
    /// The number of passes that have begun.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Notes that a pass begins. Returns its number.
    pub fn begin(&mut self) -> u64 {
        self.begun += 1;
        self.begun
    }

    /// Notes that a pass has ended.
    pub fn end(&mut self, number: u64, outcome: Result<()>) {
        self.last = Some((number, outcome));
    }

    /// The outcome of the last pass that has ended, if `begun` others had begun before it.
    pub fn ended_after(&self, begun: u64) -> Option<Result<()>> {
        self.last.clone().filter(|&(number, _)| number > begun).map(|(_, outcome)| outcome)
    }
}

#[cfg(test)]
#[path = "pass_state_tests.rs"]
mod tests;
