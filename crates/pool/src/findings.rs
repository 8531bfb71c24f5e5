//! The state of a scrub: what it does, how far it has come, and what it has found. Plain data.

mod away;
pub(crate) mod lost_blocks;
mod moves;
mod spares;
mod speed;

use std::collections::BTreeMap;

use base::{BLOCK_U64, ErrorKind, Instant, Result, StorageError, VolumeId};
use format::superblock::scrub::{LostExtent, ScrubPlace, ScrubRecord};
use model::scrub::{BlockKind, Found, LostBlocks, PoolScrub, ScrubFound, ScrubState};
use rt::sync::Event;

pub(crate) use moves::{MoveBacklog, MoveState};
use speed::Speed;

/// Seconds of a day.
const DAY_S: u64 = 86_400;

/// The options of a scrub.
#[derive(Clone, Debug, Default)]
pub struct ScrubOptions {
    /// The path of the only device that is to be read; `None`: all of them.
    pub device: Option<String>,
    /// Bytes a second, of each copy; `None`: as fast as the devices' schedulers let it.
    pub rate: Option<u64>,
}

/// The newest scrub of the pool, as something else that is scrubbed along with the pool has to know
/// it.
#[derive(Clone, Copy, Debug)]
pub struct NewestScrub {
    /// The number of scrubs that were started since the pool was opened.
    pub turn: u64,
    /// The state of the scrub.
    pub state: ScrubState,
    /// True if the scrub is of all devices.
    pub is_whole: bool,
    /// Bytes a second that it may read of each copy; 0: as many as it can.
    pub rate: u64,
}

/// The scrub of a pool.
pub(crate) struct Scrub {
    record: ScrubRecord,
    found: BTreeMap<(usize, BlockKind), Found>,
    /// The same, of devices that were removed since.
    found_on_removed: Vec<ScrubFound>,
    /// The only device that it read, if that was removed since.
    removed: Option<String>,
    speed: Speed,
    /// Bytes that were verified when its place was reached.
    verified_there: u64,
    leaves: u64,
    /// The number of the last start; work that belongs to an older start does not count.
    turn: u64,
    /// The flow of scrubs is at work on one.
    at_work: bool,
    /// Rung when a scrub has begun, or is to rest, go on or end, or nothing of it is in flight any
    /// more.
    changed: Event,
}

impl Scrub {
    /// The scrub that a superblock records.
    pub fn new(mut record: ScrubRecord) -> Scrub {
        if record.state == ScrubState::Never && record.counts_from == 0 {
            record.counts_from = record.ended_at;
        }
        Scrub {
            verified_there: record.verified,
            record,
            found: BTreeMap::new(),
            found_on_removed: Vec::new(),
            removed: None,
            speed: Speed::default(),
            leaves: 0,
            turn: 0,
            at_work: false,
            changed: Event::new(),
        }
    }

    /// The record of the scrub that superblocks are to have.
    pub fn record(&self) -> &ScrubRecord {
        &self.record
    }

    /// The flow of scrubs is to look what it has to do.
    pub fn look_again(&self) {
        self.changed.notify();
    }

    /// The flow of scrubs begins to work on one, or nothing of that is in flight any more.
    pub fn set_at_work(&mut self, at_work: bool) {
        self.at_work = at_work;
        self.look_again();
    }

    /// True if a scrub is over, and something of it is still in flight.
    pub fn is_ending(&self) -> bool {
        let over = !matches!(self.record.state, ScrubState::Running | ScrubState::Paused);
        over && self.at_work
    }

    /// Waits until a scrub has begun, or is to rest, go on or end, or nothing of it is in flight.
    pub fn changed(&self) -> impl Future<Output = ()> + use<> {
        self.changed.wait()
    }

    /// A scrub begins, of this device or all, at no rate of its own. `all`: bytes to be verified.
    pub fn start(&mut self, device: Option<u8>, all: u64, now: u32) -> Result<()> {
        match self.record.state {
            ScrubState::Running => {
                return Err(wrong("a scrub runs already; see forebay scrub status"));
            }
            ScrubState::Paused => {
                return Err(wrong("a scrub is paused; resume it or cancel it first"));
            }
            ScrubState::Never | ScrubState::Done | ScrubState::Cancelled => {}
        }
        let old = std::mem::take(&mut self.record);
        self.record = ScrubRecord {
            state: ScrubState::Running,
            device,
            all,
            started_at: now,
            completed_at: old.completed_at,
            counts_from: old.counts_from,
            passed_before: old.passed_before || old.passed > 0,
            more_lost: old.more_lost,
            extents: old.extents,
            ..ScrubRecord::default()
        };
        self.found.clear();
        self.found_on_removed.clear();
        self.removed = None;
        (self.speed, self.turn, self.verified_there) = (Speed::default(), self.turn + 1, 0);
        self.look_again();
        Ok(())
    }

    pub fn pause(&mut self, now: u32) -> Result<()> {
        self.turn_to(ScrubState::Running, ScrubState::Paused, "no scrub runs")?;
        self.record.paused_at = now;
        Ok(())
    }

    pub fn resume(&mut self) -> Result<()> {
        self.turn_to(ScrubState::Paused, ScrubState::Running, "no scrub is paused")?;
        self.record.paused_at = 0;
        Ok(())
    }

    fn turn_to(&mut self, from: ScrubState, to: ScrubState, otherwise: &str) -> Result<()> {
        if self.record.state != from {
            return Err(wrong(otherwise));
        }
        (self.record.state, self.speed) = (to, Speed::default());
        self.look_again();
        Ok(())
    }

    pub fn cancel(&mut self, now: u32) -> Result<()> {
        if !self.is_on() {
            return Err(wrong("no scrub runs"));
        }
        (self.record.state, self.record.ended_at) = (ScrubState::Cancelled, now);
        self.record.paused_at = 0;
        self.look_again();
        Ok(())
    }

    /// A device of the pool is out of use, or lacks something: what it holds is not read, or not
    /// all of it. `is_whole`: whether the device of a row is in use and lacks nothing.
    pub fn note_away(&mut self, is_whole: impl Fn(usize) -> bool) {
        self.record.away |= self.is_on() && !self.device().is_some_and(is_whole);
    }

    /// The device of a row was removed: what was found on it keeps its name, and so does a scrub of
    /// it alone. If that is not over, it ends here. True if so.
    pub fn device_removed(&mut self, row: usize, name: &str, now: u32) -> bool {
        let removed = &mut self.found_on_removed;
        self.found.retain(|&(at, kind), &mut found| {
            if at == row {
                removed.push(ScrubFound { device: name.to_owned(), kind, found });
            }
            at != row
        });
        if self.device() != Some(row) {
            return false;
        }
        let ends = self.cancel(now).is_ok();
        self.record.away |= ends;
        // Another device may get the row.
        (self.record.device, self.removed) = (None, Some(name.to_owned()));
        ends
    }

    /// True if the scrub is of all devices.
    fn is_whole(&self) -> bool {
        self.record.device.is_none() && self.removed.is_none()
    }

    /// A scrub runs or is paused.
    fn is_on(&self) -> bool {
        matches!(self.record.state, ScrubState::Running | ScrubState::Paused)
    }

    /// Records that blocks which may be good on a device that is out of use could not be verified.
    pub fn lacks_device(&mut self) {
        self.record.away = true;
    }

    /// The scrub has verified all that it was to. Only one of all devices counts as complete, and
    /// only if all were in use from its start to its end.
    ///
    /// False, and nothing is changed, if the start of this number does not run any more: it was
    /// paused or cancelled, and another one may have been started.
    pub fn complete(&mut self, turn: u64, now: u32) -> bool {
        if self.turn() != Some(turn) {
            return false;
        }
        (self.record.state, self.record.ended_at) = (ScrubState::Done, now);
        self.record.all = self.record.verified;
        if self.record.device.is_none() && !self.record.away {
            self.record.completed_at = now;
            self.record.passed_before = false;
            self.record.more_lost = self.record.more_lost_now;
        }
        true
    }

    pub fn set_rate(&mut self, rate: Option<u64>) {
        self.record.rate = rate;
    }

    pub fn rate(&self) -> Option<u64> {
        self.record.rate
    }

    /// Sets recorded times that are later than `now` to `now`: the clock was ahead once, or is
    /// behind. Otherwise no scrub would be due before that time has come, and a pause would not
    /// count as long. True if there was one.
    pub fn forget_future(&mut self, now: u32) -> bool {
        let r = &mut self.record;
        let times = [
            &mut r.started_at,
            &mut r.ended_at,
            &mut r.completed_at,
            &mut r.counts_from,
            &mut r.paused_at,
        ];
        let mut any = false;
        for time in times {
            any |= *time > now;
            *time = now.min(*time);
        }
        any
    }

    /// The Unix time from which the interval to the next scrub counts; 0 if unknown.
    pub fn since(&self) -> u32 {
        self.record.completed_at.max(self.record.counts_from)
    }

    /// No scrub was ever complete: the time to the first one counts from here.
    pub fn begin_counting(&mut self, from: u32) {
        self.record.counts_from = from;
        if self.record.state == ScrubState::Never {
            self.record.ended_at = from;
        }
    }

    /// True if the next scrub is to begin by itself: none of all devices was complete for so many
    /// seconds, none runs or is paused, and the last one was not cancelled within a day. One that
    /// lacked a device is followed by another a day later, or, while the pool is `degraded`, when
    /// that time has passed once more, as what is there was verified.
    pub fn is_due(&self, now: u64, every: u64, degraded: bool) -> bool {
        let passed = |since: u32, seconds| now >= u64::from(since) + seconds;
        let may = match self.record.state {
            ScrubState::Running | ScrubState::Paused => false,
            ScrubState::Cancelled => passed(self.record.ended_at, every.min(DAY_S)),
            ScrubState::Done if self.record.away && self.is_whole() => {
                passed(self.record.ended_at, if degraded { every } else { every.min(DAY_S) })
            }
            ScrubState::Never | ScrubState::Done => true,
        };
        may && passed(self.since(), every)
    }

    /// Since when a paused scrub is so, if that is not known yet. True if it was not.
    pub fn note_paused(&mut self, now: u32) -> bool {
        let unknown = self.record.state == ScrubState::Paused && self.record.paused_at == 0;
        if unknown {
            self.record.paused_at = now;
        }
        unknown
    }

    /// For how many seconds it has been paused, if that is long. `every`: the interval of scrubs.
    fn paused_long(&self, now: u64, every: u64) -> Option<u64> {
        let since = u64::from(self.record.paused_at);
        let long = if every == 0 { DAY_S } else { every.min(DAY_S) };
        let is_known = self.record.state == ScrubState::Paused && since > 0;
        Some(now.saturating_sub(since)).filter(|seconds| is_known && *seconds >= long)
    }

    /// The newest one, at `rate` if it was told none of its own.
    pub fn newest(&self, rate: u64) -> NewestScrub {
        NewestScrub {
            turn: self.turn,
            state: self.record.state,
            is_whole: self.is_whole(),
            rate: self.record.rate.unwrap_or(rate),
        }
    }

    /// The number of the start that runs now; `None`: none does.
    pub fn turn(&self) -> Option<u64> {
        (self.record.state == ScrubState::Running).then_some(self.turn)
    }

    /// The row of the only device that is read.
    pub fn device(&self) -> Option<usize> {
        self.record.device.map(usize::from)
    }

    pub fn place(&self) -> ScrubPlace {
        self.record.place
    }

    /// Everything before this place is verified.
    pub fn go_to(&mut self, place: ScrubPlace) {
        self.record.place = place;
        self.verified_there = self.record.verified;
    }

    /// Records that `left` bytes are to be verified from the scrub's place on.
    pub fn note_left(&mut self, left: u64) {
        self.record.all = self.all(left);
    }

    /// Bytes that it will have verified in the end, where so many are left from its place on. As
    /// more is written, or freed, that changes; of one that is over it does not.
    fn all(&self, left: u64) -> u64 {
        let goes_on = matches!(self.record.state, ScrubState::Running | ScrubState::Paused);
        let all = if goes_on { self.verified_there + left } else { self.record.all };
        all.max(self.record.verified)
    }

    /// A leaf of a checksum tree was looked at.
    pub fn count_leaf(&mut self) {
        self.leaves += 1;
    }

    /// Counts bytes that were verified, of all copies.
    pub fn verified(&mut self, now: Instant, bytes: u64) {
        self.record.verified += bytes;
        self.speed.count(now, self.record.verified);
    }

    /// A bad block was found on a device, and healed or not.
    pub fn found(&mut self, row: usize, kind: BlockKind, healed: bool) {
        let found = self.found.entry((row, kind)).or_default();
        found.bad += 1;
        self.record.bad += 1;
        if healed {
            found.healed += 1;
            self.record.healed += 1;
        }
    }

    /// `unix`: the Unix time; `every`: the interval of scrubs in seconds; `ahead`: the bytes to be
    /// verified from its place on.
    pub fn status(
        &self,
        now: Instant,
        unix: u32,
        every: u64,
        ahead: u64,
        name: impl Fn(usize) -> String,
        volume: impl Fn(VolumeId) -> String,
    ) -> PoolScrub {
        let r = &self.record;
        let runs = r.state == ScrubState::Running;
        let all = self.all(ahead);
        let left = all - r.verified;
        let rate = if runs { self.speed.now(now) } else { 0 };
        let lost = |e: &LostExtent| LostBlocks {
            volume: volume(e.volume),
            offset: e.lba.0 * BLOCK_U64,
            length: u64::from(e.blocks) * BLOCK_U64,
        };
        let on_removed = self.found_on_removed.iter().cloned();
        let found = |(&(row, kind), &found): (&(usize, BlockKind), &Found)| ScrubFound {
            device: name(row),
            kind,
            found,
        };
        PoolScrub {
            state: r.state,
            device: self.device().map(&name).or_else(|| self.removed.clone()),
            started_at: r.started_at,
            ended_at: r.ended_at,
            completed_at: r.completed_at,
            paused_long_s: self.paused_long(unix.into(), every),
            verified_bytes: r.verified,
            all_bytes: all,
            rate,
            rate_limit: r.rate,
            left_s: (rate > 0).then(|| left / rate),
            bad: r.bad,
            healed: r.healed,
            lost: r.lost,
            passed_over: r.passed.into(),
            incomplete: r.passed > 0 || r.passed_before,
            away: r.away,
            leaves: self.leaves,
            found: self.found.iter().map(found).chain(on_removed).collect(),
            lost_blocks: r.extents.iter().map(lost).collect(),
            more_lost: r.more_lost,
        }
    }
}

fn wrong(text: &str) -> StorageError {
    StorageError::new(ErrorKind::Invalid, text)
}

#[cfg(test)]
#[path = "findings_tests.rs"]
mod tests;
