//! Which request may begin next: a pure state machine, to which time is passed. `T` is what a
//! request that waits is told by.
//!
//! **Limits.** A request of a volume that has a limit begins when that allows it. Requests of one
//! volume begin in the order of their arrival.
//!
//! **Shares.** Where one volume alone is in use, all its requests begin at once. Where others have
//! been in use for the last [`LINGER`], what has begun and not ended is bounded: all volumes
//! together have [`WINDOW`], and what of it is free goes to the volume that has the least. Each
//! volume that is busy has an equal part of the window for sure, though others hold more at that
//! moment, and one request in any case. So a request that finds its volume below its part begins at
//! once, and finds at most a window of others before it, however many of theirs wait here.
//!
//! A request whose work comes in turns, and one whose client is still sending its data, leaves the
//! window meanwhile. Then it stands in line again, for the window alone.
//!
//! If all volumes wait for the same thing, equal parts of a window are equal shares of it, by
//! Little's law. If one waits for something that is slow, it holds its own part only.

use std::collections::VecDeque;

use base::{Duration, Instant, VolumeId};
use pool::VolumeLimit;
use rustc_hash::FxHashMap;

use super::limit::Limit;

/// The cost of a request beside its bytes. A small request costs a device, and the engine, about
/// what this many bytes do.
const FIXED: u64 = 128 << 10;
/// The cost, in bytes, of the requests that may have begun and not ended where several volumes are
/// in use: 62 requests of 4 KiB, or 7 of 1 MiB. It keeps fast devices busy, and is read or written
/// by a disk in a good part of a second.
const WINDOW: u64 = 8 << 20;
/// For so long a volume that was used beside another counts as in use.
const LINGER: Duration = Duration::from_secs(10);
/// Volumes without a limit and without requests are forgotten where there are more.
const IDLE: usize = 64;

/// The bytes that a request moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Size {
    /// All its bytes: what the limit counts.
    pub bytes: u64,
    /// The bytes of a turn: what is in the window at a time.
    pub turn: u64,
}

impl Size {
    /// Of a request that moves all at once.
    pub fn whole(bytes: u64) -> Size {
        Size { bytes, turn: bytes }
    }

    /// The part of the window that the request takes, in bytes.
    fn cost(self) -> u64 {
        FIXED.saturating_add(self.turn)
    }
}

/// The next thing to be done.
#[derive(Debug, PartialEq)]
pub(super) enum NextStep<T> {
    /// This request begins, or goes on; it is told by the first.
    Pass(T, VolumeId, Size),
    /// The next one may at this time, or earlier if another ends.
    At(Instant),
    /// No request waits.
    Nothing,
}

/// Requests that could not begin at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WaitCounts {
    /// That waited for the limit of their volume, since the start.
    pub limited: u64,
    /// That waited for other requests to end, since the start.
    pub shared: u64,
    /// That wait now.
    pub waiting: u64,
}

struct Share<T> {
    limit: Option<Limit>,
    /// The cost of its requests that have begun and not ended.
    in_flight: u64,
    /// Requests that wait.
    waiting: VecDeque<WaitingRequest<T>>,
    /// The same of those that have begun before, and go on: no limit holds them.
    again: VecDeque<WaitingRequest<T>>,
}

struct WaitingRequest<T> {
    to: T,
    size: Size,
    /// Which one it is of all that had to wait.
    number: u64,
}

impl<T> Default for Share<T> {
    fn default() -> Share<T> {
        let (waiting, again) = (VecDeque::new(), VecDeque::new());
        Share { limit: None, in_flight: 0, waiting, again }
    }
}

impl<T> Share<T> {
    /// Nothing would be lost with it.
    fn is_idle(&self) -> bool {
        self.limit.is_none() && self.in_flight == 0 && !self.waits()
    }

    fn waits(&self) -> bool {
        !self.waiting.is_empty() || !self.again.is_empty()
    }

    /// The request that is next, when the limit allows it, and whether it begins with that. It is
    /// the one that has waited longest of those that the limit does not hold.
    fn first(&self, now: Instant) -> Option<(Size, Instant, bool)> {
        let begins = self.waiting.front().map(|w| (w, self.ready(w.size)));
        let goes_on = self.again.front();
        match (begins, goes_on) {
            (Some((w, ready)), Some(a)) if ready <= now && w.number < a.number => {
                Some((w.size, ready, true))
            }
            (_, Some(a)) => Some((a.size, Instant(0), false)),
            (Some((w, ready)), None) => Some((w.size, ready, true)),
            (None, None) => None,
        }
    }

    fn ready(&self, size: Size) -> Instant {
        self.limit.as_ref().map_or(Instant(0), |limit| limit.ready(size.bytes))
    }
}

/// The requests of all volumes, as far as they have not ended.
pub(super) struct Shares<T> {
    volumes: FxHashMap<VolumeId, Share<T>>,
    /// Volumes of which requests wait.
    lines: Vec<VolumeId>,
    /// The cost of all that has begun and not ended.
    in_flight: u64,
    /// Volumes that have any of it.
    busy: u64,
    /// The volume whose request began last.
    last: Option<VolumeId>,
    /// Until then several volumes are in use.
    shared_until: Instant,
    /// Nothing waits any more.
    open: bool,
    waits: WaitCounts,
    /// The number of requests that have had to wait.
    number: u64,
}

impl<T> Shares<T> {
    /// No request is there.
    pub fn new() -> Shares<T> {
        Shares {
            volumes: FxHashMap::default(),
            lines: Vec::new(),
            in_flight: 0,
            busy: 0,
            last: None,
            shared_until: Instant(0),
            open: false,
            waits: WaitCounts::default(),
            number: 0,
        }
    }

    /// The numbers of requests that had to wait.
    pub fn waits(&self) -> WaitCounts {
        self.waits
    }

    /// True if any request waits.
    pub fn has_line(&self) -> bool {
        !self.lines.is_empty()
    }

    /// A volume that may not have been here yet has this limit.
    pub fn know(&mut self, now: Instant, volume: VolumeId, limit: &VolumeLimit) {
        let share = self.volumes.entry(volume).or_default();
        share.limit.get_or_insert_with(|| Limit::new(now, limit));
    }

    /// From now on a volume has this limit, or none. It holds for requests that wait, too.
    pub fn set_limit(&mut self, now: Instant, volume: VolumeId, limit: Option<&VolumeLimit>) {
        let share = self.volumes.entry(volume).or_default();
        match (&mut share.limit, limit) {
            (Some(old), Some(new)) => old.change(now, new),
            (old, new) => *old = new.map(|new| Limit::new(now, new)),
        }
        if share.is_idle() {
            self.volumes.remove(&volume);
        }
    }

    /// From now on nothing waits.
    pub fn open(&mut self) {
        self.open = true;
    }

    /// True if a request need not wait; it has begun then.
    pub fn pass_at_once(&mut self, now: Instant, volume: VolumeId, size: Size) -> bool {
        let share = self.volumes.entry(volume).or_default();
        let (first, ready, in_flight) = (!share.waits(), share.ready(size), share.in_flight);
        let passes = first && ready <= now && self.fits(now, in_flight, size);
        if passes || self.open {
            self.pass(now, volume, size, true);
        }
        passes || self.open
    }

    /// Adds a request that could not pass at once. True if its volume's limit is why: for itself,
    /// or for the first of those it waits behind.
    pub fn push(&mut self, now: Instant, volume: VolumeId, size: Size, to: T) -> bool {
        self.notice(now, volume);
        let share = self.volumes.entry(volume).or_default();
        let first = share.waiting.front().map_or(size, |first| first.size);
        let limited = share.ready(size).max(share.ready(first)) > now;
        if limited {
            self.waits.limited += 1;
        } else {
            self.waits.shared += 1;
        }
        let was_empty = !share.waits();
        share.waiting.push_back(WaitingRequest { to, size, number: self.number });
        self.stand(volume, was_empty);
        limited
    }

    /// The same for a request that has begun before and left. The limit has counted it then.
    pub fn again_at_once(&mut self, now: Instant, volume: VolumeId, size: Size) -> bool {
        let share = self.volumes.entry(volume).or_default();
        let (first, in_flight) = (!share.waits(), share.in_flight);
        let passes = self.open || first && self.fits(now, in_flight, size);
        if passes {
            self.pass(now, volume, size, false);
        }
        passes
    }

    /// Adds a request that could not go on at once.
    pub fn push_again(&mut self, now: Instant, volume: VolumeId, size: Size, to: T) {
        self.notice(now, volume);
        let share = self.volumes.entry(volume).or_default();
        let was_empty = !share.waits();
        share.again.push_back(WaitingRequest { to, size, number: self.number });
        self.waits.shared += 1;
        self.stand(volume, was_empty);
    }

    /// A request of a volume waits from now on.
    fn stand(&mut self, volume: VolumeId, was_empty: bool) {
        (self.waits.waiting, self.number) = (self.waits.waiting + 1, self.number + 1);
        if was_empty {
            self.lines.push(volume);
        }
    }

    /// Says what is next, and takes a request that begins out of its line.
    pub fn next(&mut self, now: Instant) -> NextStep<T> {
        let mut at: Option<Instant> = None;
        let mut least: Option<(u64, usize, bool)> = None;
        for (place, volume) in self.lines.iter().enumerate() {
            let Some(share) = self.volumes.get(volume) else { continue };
            let Some((size, ready, begins)) = share.first(now) else { continue };
            let fits = self.fits(now, share.in_flight, size);
            // Without a limit, the window ends when only one volume is in use.
            let may = if ready > now { ready } else { self.shared_until };
            if !self.open && (ready > now || !fits) {
                at = Some(at.map_or(may, |at| at.min(may)));
            } else if least.is_none_or(|(least, ..)| share.in_flight < least) {
                least = Some((share.in_flight, place, begins));
            }
        }
        let Some((_, place, begins)) = least else {
            return at.map_or(NextStep::Nothing, NextStep::At);
        };
        // Behind the others that have as little in flight.
        let volume = self.lines.remove(place);
        let Some(share) = self.volumes.get_mut(&volume) else { return NextStep::Nothing };
        let line = if begins { &mut share.waiting } else { &mut share.again };
        let Some(WaitingRequest { to, size, .. }) = line.pop_front() else {
            return NextStep::Nothing;
        };
        if share.waits() {
            self.lines.push(volume);
        }
        self.waits.waiting -= 1;
        self.pass(now, volume, size, begins);
        NextStep::Pass(to, volume, size)
    }

    /// A request that is in the window has ended, never begins, or does nothing for a while.
    pub fn leave(&mut self, volume: VolumeId, size: Size) {
        self.in_flight -= size.cost();
        let Some(share) = self.volumes.get_mut(&volume) else { return };
        share.in_flight -= size.cost();
        if share.in_flight > 0 {
            return;
        }
        self.busy -= 1;
        if share.is_idle() && self.volumes.len() > IDLE {
            self.volumes.remove(&volume);
        }
    }

    /// True if there is room in the window for a request of a volume that has so much in flight.
    fn fits(&self, now: Instant, in_flight: u64, size: Size) -> bool {
        let cost = size.cost();
        now >= self.shared_until
            || in_flight == 0
            || self.in_flight.saturating_add(cost) <= WINDOW
            || in_flight.saturating_add(cost) <= WINDOW / self.busy.max(1)
    }

    /// A request is in the window from now on. The limit counts it if it `begins`.
    fn pass(&mut self, now: Instant, volume: VolumeId, size: Size, begins: bool) {
        self.notice(now, volume);
        let share = self.volumes.entry(volume).or_default();
        if let Some(limit) = share.limit.as_mut().filter(|_| begins) {
            limit.take(now, size.bytes);
        }
        self.busy += u64::from(share.in_flight == 0);
        share.in_flight += size.cost();
        self.in_flight += size.cost();
    }

    /// A volume is in use: beside another, if that was the last one.
    fn notice(&mut self, now: Instant, volume: VolumeId) {
        let last = self.last.replace(volume);
        if last.is_some_and(|last| last != volume) {
            self.shared_until = now.after(LINGER);
        }
    }
}

#[cfg(test)]
#[path = "shares_tests.rs"]
mod tests;
