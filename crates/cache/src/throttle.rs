//! Writers held to what the pool can take.
//!
//! Room comes back in lumps: a round makes its whole cut clean at once, when it is published. Writers must not feel the lumps, so they are held to a rate that
//! follows two measures that move evenly:
//!
//! - the **backlog**, what is dirty and was not carried to the pool yet: of the open epoch, and of the cut what is left. Where writers are as fast as
//!   write-back it stands still. Below `low` it does not matter; from there the rate falls in a straight line, from twice the speed of write-back
//!   towards none at `high`. So it settles in the middle, where the rate is that speed, whatever that is. One cut is as large then as the backlog, and dirty
//!   data, a whole cut and what comes meanwhile, swings up to twice of it. The pool's image gets as old as two cuts take, so `high` is also bounded by
//!   what is carried in about half of the age that is allowed ([`Load::in_time`]). That moves with the speed: when it becomes known, or the pool gets
//!   slower, the backlog may be far above `high` at once. So the rate falls to half of the speed only: the backlog shrinks, and nobody stops.
//! - the **runway**, the room that is left over the time until the cut is published, once half of the room is gone; the less is left, the stricter. A small
//!   set of blocks that is written again and again makes no backlog, but takes room all the same.
//!
//! The speed of write-back is what it was of late ([`Meter`]), pauses between carrying and publishing included, but only while it was not paced.
//!
//! All are pure: time is passed in, may stand still and may jump.

use base::{Duration, Instant};

/// Speed is measured over pieces of this length.
const WINDOW: Duration = Duration::from_millis(500);
/// Half of what is known of the speed is younger than about this, in seconds.
const MEMORY: f64 = 8.0;
/// A cut is not published sooner than in so many seconds.
const PUBLISH: f64 = 0.2;
/// By how much the last publication counts in what publishing takes, and the share of a round that it counts as, at most.
const PUBLISH_WEIGHT: f64 = 0.3;
const MOST_PUBLISHING: f64 = 0.8;
/// Of the age that the pool's image may reach, a cut as large as `high` takes this part.
const CUT_SHARE: f64 = 0.48;
/// A round of fewer blocks is hardly faster, for it has costs of its own. So `high` is not made smaller for the sake of the image's age.
const SMALL_CUT: u64 = 4096;
/// For the sake of the backlog, writers are slowed to this part of the speed of write-back, not further.
const EASED: f64 = 0.5;
/// Blocks a second that writers may always write while there is room.
const LEAST: f64 = 16.0;

/// How fast write-back is when nothing but the pool holds it up.
#[derive(Debug, Default)]
pub struct Meter {
    since: Option<Instant>,
    blocks: u64,
    slept: Duration,
    speed: Option<f64>,
    /// What publishing takes, in seconds.
    publish: f64,
    carried_at: Option<Instant>,
}

impl Meter {
    /// A round begins, of so many blocks of a cache of so many. Of few the costs of the round itself are measured, so they say nothing.
    pub fn begin(&mut self, now: Instant, cut: u64, cache_blocks: u64) {
        let tells = cut >= SMALL_CUT.min(cache_blocks / 16);
        (self.since, self.blocks, self.slept) = (tells.then_some(now), 0, Duration::ZERO);
    }

    /// So many blocks are carried, and write-back was paced for `slept` before.
    pub fn carried(&mut self, blocks: u64, slept: Duration) {
        self.blocks += blocks;
        self.slept += slept;
    }

    /// All of the cut is carried; what follows is its publication.
    pub fn carried_all(&mut self, now: Instant) {
        self.carried_at = Some(now);
    }

    /// The cut is published.
    pub fn published(&mut self, now: Instant) {
        if let Some(at) = self.carried_at.take() {
            let took = now.since(at).as_secs_f64();
            self.publish += if self.publish == 0.0 { took } else { PUBLISH_WEIGHT * (took - self.publish) };
        }
    }

    /// How much of a cut, of which so many blocks are carried, counts as done. Publishing is a part of it, as large as it takes time: while nothing is carried
    /// because the cut is being published, writers need not be slower.
    pub fn done(&self, cut: u64, carried: u64, now: Instant) -> u64 {
        let (Some(speed), 1..) = (self.speed, cut) else { return carried };
        let all = cut as f64;
        let publishing = (speed * self.publish).min(all * MOST_PUBLISHING);
        let published = self.carried_at.map_or(0.0, |at| now.since(at).as_secs_f64() * speed);
        (carried.min(cut) as f64 * (1.0 - publishing / all) + published.min(publishing)) as u64
    }

    /// The round has ended.
    pub fn end(&mut self, now: Instant) {
        self.look(now);
        (self.since, self.carried_at) = (None, None);
    }

    /// Blocks a second; `None`: not known yet.
    pub fn speed(&mut self, now: Instant) -> Option<f64> {
        if self.since.is_some_and(|since| now.since(since) >= WINDOW) {
            self.look(now);
        }
        self.speed
    }

    /// The same, as of the last look.
    pub fn known(&self) -> Option<f64> {
        self.speed
    }

    fn look(&mut self, now: Instant) {
        let Some(since) = self.since else { return };
        let time = now.since(since);
        if time.is_zero() {
            return;
        }
        if self.slept * 5 < time {
            let seconds = time.as_secs_f64();
            let sample = self.blocks as f64 / seconds;
            let weight = 1.0 - (-seconds / MEMORY).exp();
            self.speed = Some(self.speed.map_or(sample, |s| s + weight * (sample - s)));
        }
        (self.since, self.blocks, self.slept) = (Some(now), 0, Duration::ZERO);
    }
}

/// What the cache is burdened with, in blocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    /// Dirty, and in no cut.
    pub open: u64,
    /// Of the cut.
    pub cut: u64,
    /// Of the cut what is done ([`Meter::done`]).
    pub carried: u64,
    /// What can be written to before anything has to be published.
    pub room: u64,
    /// All there is.
    pub blocks: u64,
    /// Where the backlog begins to matter.
    pub low: u64,
    /// Where it should not get.
    pub high: u64,
}

impl Load {
    /// The backlogs between which writers are slowed, for a cache of `blocks` in which dirty data is to stay below `limit` percent; `target`: at so many
    /// percent, at least, write-back begins.
    pub fn band(blocks: u64, target: u8, limit: u8) -> (u64, u64) {
        let share = |tenths: u64| blocks * u64::from(limit) / 100 * tenths / 10;
        (share(4).min(blocks * u64::from(target) / 100), share(6))
    }

    /// With `low` and `high` such that a pool to which so many blocks a second are carried has an image no older than `max_lag`.
    pub fn in_time(self, speed: f64, max_lag: Duration) -> Load {
        let most = ((speed * max_lag.as_secs_f64() * CUT_SHARE) as u64).max(SMALL_CUT);
        let high = self.high.min(most);
        Load { low: self.low.min(high / 3 * 2), high, ..self }
    }

    /// Dirty and not carried yet.
    pub fn backlog(&self) -> u64 {
        self.open + self.cut.saturating_sub(self.carried)
    }

    /// How far it is from where it begins to matter to the middle: 0 to 1.
    pub fn urgency(&self) -> f64 {
        let middle = (self.high.saturating_sub(self.low) / 2).max(1);
        (self.backlog().saturating_sub(self.low) as f64 / middle as f64).min(1.0)
    }

    /// Blocks a second that writers may write, where write-back has this speed; `None`: as many as they like.
    pub fn writer_rate(&self, speed: f64) -> Option<f64> {
        let mut rate = f64::INFINITY;
        let backlog = self.backlog();
        if backlog > self.low {
            let width = self.high.saturating_sub(self.low).max(1) as f64;
            rate = speed * (2.0 * self.high.saturating_sub(backlog) as f64 / width).max(EASED);
        }
        let half = self.blocks as f64 / 2.0;
        let room = self.room as f64;
        if room < half {
            // Without a cut all of the open epoch will be the next.
            let rest = if self.cut > 0 { self.cut.saturating_sub(self.carried) } else { self.open };
            let time = rest as f64 / speed.max(1.0) + PUBLISH;
            rate = rate.min(room / time / (1.0 - room / half));
        }
        rate.is_finite().then_some(rate.max(LEAST))
    }
}

#[cfg(test)]
#[path = "throttle_tests.rs"]
mod tests;
