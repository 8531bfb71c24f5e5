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
//! Where all volumes wait for the same thing, equal parts of a window are equal shares of it, by
//! Little's law. Where one waits for something that is slow, it holds its own part only.

use std::collections::VecDeque;

use base::{Duration, Instant, VolumeId};
use pool::VolumeLimit;
use rustc_hash::FxHashMap;

use super::limit::Limit;

/// What a request costs beside its bytes. A small request costs a device, and the engine, about
/// what this many bytes do.
const FIXED: u64 = 128 << 10;
/// What may have begun and not ended where several volumes are in use: 62 requests of 4 KiB, or 7
/// of 1 MiB. It keeps fast devices busy, and is read or written by a disk in a good part of a
/// second.
const WINDOW: u64 = 8 << 20;
/// For so long a volume that was used beside another counts as in use.
const LINGER: Duration = Duration::from_secs(10);
/// Volumes without a limit and without requests are forgotten where there are more.
const IDLE: usize = 64;

/// What a request of so many bytes takes of the window.
fn cost(bytes: u64) -> u64 {
    FIXED.saturating_add(bytes)
}

/// What is to be done next.
#[derive(Debug, PartialEq)]
pub(super) enum Next<T> {
    /// This request begins; it is told by the first, and has moved the last many bytes when it
    /// ends.
    Pass(T, VolumeId, u64),
    /// The next one may at this time, or earlier if another ends.
    At(Instant),
    /// No request may begin before another has ended.
    Nothing,
}

/// Requests that could not begin at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Waits {
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
    /// Those that wait, with their bytes.
    waiting: VecDeque<(T, u64)>,
}

impl<T> Default for Share<T> {
    fn default() -> Share<T> {
        Share { limit: None, in_flight: 0, waiting: VecDeque::new() }
    }
}

impl<T> Share<T> {
    /// Nothing would be lost with it.
    fn is_idle(&self) -> bool {
        self.limit.is_none() && self.in_flight == 0 && self.waiting.is_empty()
    }

    fn ready(&self, bytes: u64) -> Instant {
        self.limit.as_ref().map_or(Instant(0), |limit| limit.ready(bytes))
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
    waits: Waits,
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
            waits: Waits::default(),
        }
    }

    /// What had to wait.
    pub fn waits(&self) -> Waits {
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
    pub fn pass_at_once(&mut self, now: Instant, volume: VolumeId, bytes: u64) -> bool {
        let share = self.volumes.entry(volume).or_default();
        let (first, ready, in_flight) =
            (share.waiting.is_empty(), share.ready(bytes), share.in_flight);
        let passes = first && ready <= now && self.fits(now, in_flight, bytes);
        if passes || self.open {
            self.pass(now, volume, bytes);
        }
        passes || self.open
    }

    /// Adds a request that could not pass at once. True if its volume's limit is why: for itself,
    /// or for the first of those it waits behind.
    pub fn push(&mut self, now: Instant, volume: VolumeId, bytes: u64, to: T) -> bool {
        self.notice(now, volume);
        let share = self.volumes.entry(volume).or_default();
        let first = share.waiting.front().map_or(bytes, |first| first.1);
        let limited = share.ready(bytes).max(share.ready(first)) > now;
        if limited {
            self.waits.limited += 1;
        } else {
            self.waits.shared += 1;
        }
        self.waits.waiting += 1;
        share.waiting.push_back((to, bytes));
        if share.waiting.len() == 1 {
            self.lines.push(volume);
        }
        limited
    }

    /// Says what is next, and takes a request that begins out of its line.
    pub fn next(&mut self, now: Instant) -> Next<T> {
        let mut at: Option<Instant> = None;
        let mut least: Option<(u64, usize)> = None;
        for (place, volume) in self.lines.iter().enumerate() {
            let Some(share) = self.volumes.get(volume) else { continue };
            let Some((_, bytes)) = share.waiting.front() else { continue };
            let ready = share.ready(*bytes);
            if ready > now && !self.open {
                at = Some(at.map_or(ready, |at| at.min(ready)));
            } else if (self.open || self.fits(now, share.in_flight, *bytes))
                && least.is_none_or(|(least, _)| share.in_flight < least)
            {
                least = Some((share.in_flight, place));
            }
        }
        let Some((_, place)) = least else { return at.map_or(Next::Nothing, Next::At) };
        // Behind the others that have as little in flight.
        let volume = self.lines.remove(place);
        let Some(share) = self.volumes.get_mut(&volume) else { return Next::Nothing };
        let Some((to, bytes)) = share.waiting.pop_front() else { return Next::Nothing };
        if !share.waiting.is_empty() {
            self.lines.push(volume);
        }
        self.waits.waiting -= 1;
        self.pass(now, volume, bytes);
        Next::Pass(to, volume, bytes)
    }

    /// A request has ended, or never begins.
    pub fn leave(&mut self, volume: VolumeId, bytes: u64) {
        self.in_flight -= cost(bytes);
        let Some(share) = self.volumes.get_mut(&volume) else { return };
        share.in_flight -= cost(bytes);
        if share.in_flight > 0 {
            return;
        }
        self.busy -= 1;
        if share.is_idle() && self.volumes.len() > IDLE {
            self.volumes.remove(&volume);
        }
    }

    /// True if there is room in the window for a request of a volume that has so much in flight.
    fn fits(&self, now: Instant, in_flight: u64, bytes: u64) -> bool {
        let cost = cost(bytes);
        now >= self.shared_until
            || in_flight == 0
            || self.in_flight.saturating_add(cost) <= WINDOW
            || in_flight.saturating_add(cost) <= WINDOW / self.busy.max(1)
    }

    fn pass(&mut self, now: Instant, volume: VolumeId, bytes: u64) {
        self.notice(now, volume);
        let share = self.volumes.entry(volume).or_default();
        if let Some(limit) = &mut share.limit {
            limit.take(now, bytes);
        }
        self.busy += u64::from(share.in_flight == 0);
        share.in_flight += cost(bytes);
        self.in_flight += cost(bytes);
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
