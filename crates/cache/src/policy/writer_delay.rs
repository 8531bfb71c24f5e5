//! When a writer may go on: by the room that is left, and by nothing else.
//!
//! **Room** is what can be written to before anything has to be published: free buckets, and those
//! that can be evicted. While there is enough of it no writer waits. From a share of it on, each
//! request waits for a time that a fixed curve gives: it grows hyperbolically with the share that
//! is gone, as in ZFS's write throttle (openzfs/zfs: module/zfs/dmu_tx.c, the comment before
//! `dmu_tx_delay`). Writers therefore settle where the curve gives them the speed of write-back,
//! whatever that is. No estimate of any speed is in it, so there is none that a mixed load could
//! spoil.
//!
//! No request waits for longer than it takes for half of what is left of the room to last a second
//! ([`HALF_LIFE`]): writers that were fast slow down by no more than half from one second to the
//! next, however fast they were. Without that bound a fast device runs down the steep end of the
//! hyperbola within a fraction of a second.
//!
//! **The line.** Requests that have to wait stand in a line, one for each volume, in the order of
//! arrival; the line that has had the least goes next. One request passes at a time, no sooner than
//! its delay after the one before. The delay is computed anew at every look, so room that comes
//! free counts at once. Where there is no room at all, the first request waits for room, and passes
//! as soon as there is some.
//!
//! **Age.** With `max_lag_policy = "strict"` the same curve is applied to the age of the pool's
//! image too. But each block that is carried to the pool lets one be written without this delay. So
//! the delay never holds writers below the present speed of write-back.
//!
//! All of this is pure: time is passed in, may stand still and may jump.

use std::collections::VecDeque;

use base::{Duration, Instant, VolumeId};

/// No request waits longer than this for its turn after the one before it, while there is room.
pub const MOST: Duration = Duration::from_millis(100);
/// The delay of a block half way between the curve's beginning and its end, in seconds.
const MIDDLE: f64 = 100e-6;
/// Half of the room that is left lasts at least this long, in seconds.
const HALF_LIFE: f64 = 1.0;
/// The curve begins at this part of the share at which it ends.
const BEGINS: f64 = 0.8;
/// A request that passes late by no more than this shortens the wait of the next one.
const SLACK: Duration = Duration::from_millis(5);
/// Cuts are about this part of the cache while it is under pressure, and cost little
/// ([`crate::policy::which_cut::seal_at`]).
pub(crate) const LUMP: u64 = 8;
/// For a larger cut at most this part of the cache is left out of the room.
const MOST_LUMP: u64 = 4;
/// The most credit, in blocks, that carried blocks earn writers.
const MOST_CREDIT: u64 = 1024;

/// The time for which write-back may fail before writers that wait for it fail too.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// A writer gives up if it still has no room when more than this many passes have ended.
pub(crate) const PASSES: u64 = 16;

/// The delay of a request, as a function of the share of something that is gone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Curve {
    begin: f64,
    end: f64,
}

impl Curve {
    /// A curve that reaches [`MOST`] at `percent` at the latest.
    pub fn until(percent: u8) -> Curve {
        let end = f64::from(percent) / 100.0;
        Curve { begin: end * BEGINS, end }
    }

    /// The share from which on requests wait.
    pub fn begin(&self) -> f64 {
        self.begin
    }

    /// The delay of a request of `blocks` blocks, where the share `gone` of `all` blocks is gone.
    /// `all` is 0 for something that writes do not use up, such as age.
    pub fn delay(&self, blocks: u64, gone: f64, all: u64) -> Duration {
        if gone <= self.begin {
            return Duration::ZERO;
        }
        if gone >= self.end {
            return MOST;
        }
        let left = self.end - gone;
        let by_curve = MIDDLE * (gone - self.begin) / left;
        let by_half_life = HALF_LIFE / std::f64::consts::LN_2 / (left * all as f64);
        let seconds = blocks as f64 * by_curve.min(by_half_life);
        Duration::from_secs_f64(seconds.min(MOST.as_secs_f64()))
    }
}

/// The load of the cache at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Blocks that can be written before anything has to be published.
    pub room: u64,
    /// The largest number of blocks that such room can have.
    pub all: u64,
    /// Blocks that the pass which is under way publishes, or the next one.
    pub lump: u64,
    /// The number of these blocks that the pass has carried: they become room when it is published.
    pub soon: u64,
    /// Blocks that are reserved for requests which have passed, and which they have not taken yet.
    pub reserved: u64,
    /// The age of the pool's image as a share of what it may be, where writers are slowed for it.
    pub age: Option<f64>,
}

impl Load {
    /// The share of the room that is gone. A publication brings room in a lump, and the speed of
    /// writers should not jump with it. So as many blocks as the pass publishes are left out of the
    /// room, and the blocks that it has carried count as room already. The pass has carried all of
    /// them before the part that was left out is needed. Of a lump that is too large to leave all
    /// of it out, each block that is carried counts for less than one.
    pub fn gone(&self) -> f64 {
        let out = self.left_out();
        let carried = match self.lump > out {
            true => {
                (u128::from(self.soon.min(self.lump)) * u128::from(out) / u128::from(self.lump))
                    as u64
            }
            false => self.soon.min(out),
        };
        let left = (self.left() + carried).saturating_sub(out);
        (1.0 - left as f64 / self.usable().max(1) as f64).max(0.0)
    }

    /// The blocks of which [`Load::gone`] is a share.
    fn usable(&self) -> u64 {
        self.all - self.left_out()
    }

    fn left_out(&self) -> u64 {
        self.lump.clamp(self.all / LUMP, self.all / MOST_LUMP)
    }

    fn left(&self) -> u64 {
        self.room.saturating_sub(self.reserved)
    }
}

/// The next step for a line.
#[derive(Debug, PartialEq)]
pub enum NextStep<T> {
    /// This request passes.
    Pass(T, u64),
    /// The next one passes at this time, or earlier if there is more room by then.
    At(Instant),
    /// The next one waits for room.
    Room,
    /// No request waits.
    Empty,
}

struct VolumeQueue<T> {
    volume: VolumeId,
    waiting: VecDeque<(T, u64)>,
    /// The number of blocks that the requests of the line have had, on a clock that all lines
    /// share.
    served: u64,
}

/// Requests that wait for their turn; `T` is the means by which each is woken.
pub struct Line<T> {
    curve: Curve,
    ages: Curve,
    queues: VecDeque<VolumeQueue<T>>,
    /// The clock of [`VolumeQueue::served`]: what the line that went last had had.
    clock: u64,
    passed_at: Instant,
    credit: u64,
}

impl<T> Line<T> {
    /// An empty line.
    pub fn new(curve: Curve) -> Line<T> {
        Line {
            curve,
            ages: Curve::until(100),
            queues: VecDeque::new(),
            clock: 0,
            passed_at: Instant(0),
            credit: 0,
        }
    }

    /// The curve over the room that is gone.
    pub fn curve(&self) -> Curve {
        self.curve
    }

    /// Sets another curve over the room that is gone. It holds for requests that wait, too.
    pub fn set_curve(&mut self, curve: Curve) {
        self.curve = curve;
    }

    /// True if no request waits.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// The number of requests that wait.
    pub fn waiting(&self) -> u64 {
        self.queues.iter().map(|q| q.waiting.len() as u64).sum()
    }

    /// Notes that `blocks` blocks were carried to the pool: they earn writers credit.
    pub fn carried(&mut self, blocks: u64) {
        self.credit = (self.credit + blocks).min(MOST_CREDIT);
    }

    /// True if a request of `blocks` blocks need not stand in line. Then it has passed.
    pub fn pass_at_once(&mut self, now: Instant, blocks: u64, load: &Load) -> bool {
        if !self.is_empty() || self.due(blocks, load) > now || !has_room(blocks, load) {
            return false;
        }
        self.passes(now, blocks, load);
        true
    }

    /// Adds a request of `blocks` blocks to the line of its volume.
    pub fn push(&mut self, volume: VolumeId, blocks: u64, who: T) {
        let place = self.queues.iter().position(|q| q.volume == volume);
        let place = place.unwrap_or_else(|| {
            self.queues.push_back(VolumeQueue {
                volume,
                waiting: VecDeque::new(),
                served: self.clock,
            });
            self.queues.len() - 1
        });
        self.queues[place].waiting.push_back((who, blocks));
    }

    /// Decides what happens next. A request that passes is removed from the line.
    pub fn next(&mut self, now: Instant, load: &Load) -> NextStep<T> {
        let least = self.queues.iter().enumerate().min_by_key(|(_, q)| q.served);
        let Some((place, queue)) = least else { return NextStep::Empty };
        let blocks = queue.waiting.front().map_or(0, |w| w.1);
        let due = self.due(blocks, load);
        if due > now {
            return NextStep::At(due);
        }
        if !has_room(blocks, load) {
            return NextStep::Room;
        }
        self.passes(now, blocks, load);
        let queue = &mut self.queues[place];
        self.clock = queue.served;
        queue.served += blocks;
        let first = queue.waiting.pop_front();
        if queue.waiting.is_empty() {
            self.queues.remove(place);
        }
        match first {
            Some((who, blocks)) => NextStep::Pass(who, blocks),
            None => NextStep::Empty,
        }
    }

    /// Takes out all requests that wait, whatever the room: the cache is of no use to them.
    pub fn drain(&mut self) -> impl Iterator<Item = (T, u64)> {
        std::mem::take(&mut self.queues).into_iter().flat_map(|q| q.waiting)
    }

    fn due(&self, blocks: u64, load: &Load) -> Instant {
        let by_room = self.curve.delay(blocks, load.gone(), load.usable());
        let by_age = match load.age {
            Some(age) if self.credit < blocks => self.ages.delay(blocks, age, 0),
            _ => Duration::ZERO,
        };
        let delay = by_room.max(by_age);
        // Without a delay it does not matter when the one before passed.
        if delay.is_zero() { Instant(0) } else { self.passed_at.after(delay) }
    }

    fn passes(&mut self, now: Instant, blocks: u64, load: &Load) {
        let due = self.due(blocks, load);
        self.passed_at = due.max(Instant(now.0.saturating_sub(SLACK.as_nanos() as u64)));
        if load.age.is_some() {
            self.credit = self.credit.saturating_sub(blocks);
        }
    }
}

/// True if there is room for a request, or if none is reserved for another one: then this one is to
/// wait for buckets.
fn has_room(blocks: u64, load: &Load) -> bool {
    load.reserved == 0 || load.left() >= blocks
}

#[cfg(test)]
#[path = "writer_delay_tests.rs"]
mod tests;
