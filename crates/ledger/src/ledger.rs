//! The ledger, in which stories begin, and are counted when they have ended.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use base::{Instant, VolumeId};

use crate::holder::Holder;
use crate::open::{Open, Slot};
use crate::slowest::{SlowRequest, SlowestRequests};
use crate::story::{Moment, PlaceId, Story, WaitCause};
use crate::summary::Summary;
use model::wait::RequestClass;

const MINUTE_NS: u64 = 60_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// Minutes that are kept.
const MINUTES: usize = 60;
/// Of requests that are under way so many are looked at, the oldest ones.
const LOOKED_AT: usize = 4_096;

/// A volume, if it was said, and what was asked for.
pub(crate) type RequestKind = (Option<VolumeId>, RequestClass);

/// Requests of a volume and a kind.
#[derive(Default)]
struct KindCounts {
    summary: Summary,
    /// The longest of them, whole, so that those of a busy volume leave that of a quiet one.
    longest: Option<SlowRequest>,
}

/// The bytes that were moved on a device for one of the holders that keep requests waiting.
#[derive(Clone, Copy)]
struct MovedBytes {
    place: PlaceId,
    holder: Holder,
    bytes: u64,
    /// A bit for each second of the minute in which something was moved.
    seconds: u64,
}

#[derive(Default)]
struct Minute {
    /// Minutes since the clock's origin.
    number: u64,
    of: BTreeMap<RequestKind, KindCounts>,
    /// By kind, so that slow writes leave the stories of slow flushes.
    slowest: BTreeMap<RequestClass, SlowestRequests>,
    moved: Vec<MovedBytes>,
}

#[derive(Default)]
struct State {
    minutes: VecDeque<Minute>,
    places: Vec<String>,
    jobs: BTreeMap<&'static str, Story>,
    open: Open<Story>,
}

/// Requests that are under way and slow already.
#[derive(Clone, Debug, Default)]
pub(crate) struct PendingSlow {
    /// The number of these requests.
    pub count: u64,
    /// There may be more: not all were looked at.
    pub more: bool,
    /// The oldest of them, the longest first, with what their time was made of up to now.
    pub oldest: Vec<SlowRequest>,
}

impl State {
    /// The minute of this time: the last that there is, or a new one.
    fn minute(&mut self, now: Instant) -> Option<&mut Minute> {
        let number = now.0 / MINUTE_NS;
        if self.minutes.back().is_none_or(|m| m.number != number) {
            if self.minutes.len() == MINUTES {
                self.minutes.pop_front();
            }
            self.minutes.push_back(Minute { number, ..Minute::default() });
        }
        self.minutes.back_mut()
    }

    fn of_minutes_since(&self, since: Instant) -> impl Iterator<Item = &Minute> {
        self.minutes.iter().filter(move |m| (m.number + 1) * MINUTE_NS > since.0)
    }
}

/// The ledger of an engine; clones are the same one.
#[derive(Clone, Default)]
pub struct Ledger(Rc<RefCell<State>>);

impl Ledger {
    /// The place of this name, such as "cache device nvme0n1".
    pub fn place(&self, name: &str) -> PlaceId {
        let mut state = self.0.borrow_mut();
        let known = state.places.iter().position(|n| n == name);
        let at = known.unwrap_or_else(|| {
            state.places.push(name.to_owned());
            state.places.len() - 1
        });
        // More places than fit have no name.
        PlaceId(u16::try_from(at + 1).unwrap_or(0))
    }

    /// The name of a place; empty for no place in particular.
    pub fn name_of(&self, place: PlaceId) -> String {
        let at = usize::from(place.0).checked_sub(1);
        at.and_then(|at| self.0.borrow().places.get(at).cloned()).unwrap_or_default()
    }

    /// The job of this name.
    pub fn job(&self, name: &'static str, at: Moment) -> Story {
        let mut state = self.0.borrow_mut();
        state.jobs.entry(name).or_insert_with(|| Story::of_job(name, at)).clone()
    }

    /// A request for `len` bytes from `offset` on has just arrived. It is under way until
    /// [`Ledger::end`].
    pub fn begin(&self, kind: RequestClass, offset: u64, len: u64, at: Moment) -> Story {
        let story = Story::of_request(kind, offset, len, at);
        story.set_slot(self.0.borrow_mut().open.push(story.clone()));
        story
    }

    /// A request has ended.
    pub fn end(&self, story: &Story, moment: Moment) {
        let (began, parts) = story.end(moment);
        let took = moment.now.since(began);
        if let Some(counted) = story.take_counted() {
            counted.end(took);
        }
        let ns = took.as_nanos() as u64;
        let mut state = self.0.borrow_mut();
        state.open.remove(story.set_slot(Slot::NONE));
        let Some(minute) = state.minute(moment.now) else { return };
        let whole = || SlowRequest {
            ended: moment.now,
            ns,
            volume: story.volume(),
            kind: story.kind(),
            range: story.range(),
            parts: parts.clone(),
        };
        let counted = minute.of.entry((story.volume(), story.kind())).or_default();
        if counted.longest.as_ref().is_none_or(|longest| ns > longest.ns) {
            counted.longest = Some(whole());
        }
        counted.summary.count_one(ns, &parts);
        minute.slowest.entry(story.kind()).or_default().offer(ns, whole);
    }

    /// A device has moved bytes for one of those whose work keeps requests waiting.
    pub fn moved(&self, place: PlaceId, holder: Holder, bytes: u64, now: Instant) {
        if place == PlaceId::NONE {
            return;
        }
        let mut state = self.0.borrow_mut();
        let Some(minute) = state.minute(now) else { return };
        let second = 1 << (now.0 % MINUTE_NS / SECOND_NS);
        match minute.moved.iter_mut().find(|m| m.place == place && m.holder == holder) {
            Some(moved) => {
                moved.bytes += bytes;
                moved.seconds |= second;
            }
            None => minute.moved.push(MovedBytes { place, holder, bytes, seconds: second }),
        }
    }

    /// Bytes a second that were moved for this holder at this place, of the seconds in which
    /// anything was, in those minutes since `since` of which `has` is true of some requests; `None`
    /// if nothing was.
    pub(crate) fn rate(
        &self,
        what: WaitCause,
        since: Instant,
        has: impl Fn(&RequestKind, &Summary) -> bool,
    ) -> Option<u64> {
        let state = self.0.borrow();
        // Of what was moved a minute knows little, of volumes it may know hundreds.
        let moved = state.of_minutes_since(since).filter_map(|m| {
            let is_it = |m: &&MovedBytes| m.place == what.place && m.holder == what.holder;
            let moved = m.moved.iter().find(is_it)?;
            m.of.iter().any(|(of, c)| has(of, &c.summary)).then_some((moved.bytes, moved.seconds))
        });
        let (bytes, seconds) = moved.fold((0, 0), |(bytes, seconds), moved| {
            (bytes + moved.0, seconds + u64::from(moved.1.count_ones()))
        });
        bytes.checked_div(seconds)
    }

    /// True if a request of this volume has ended in the last hour, or is under way.
    pub fn knows(&self, volume: VolumeId) -> bool {
        let state = self.0.borrow();
        let mut ended = state.minutes.iter().flat_map(|minute| minute.of.keys());
        let mut open = state.open.iter().take(LOOKED_AT);
        ended.any(|(of, _)| *of == Some(volume)) || open.any(|s| s.volume() == Some(volume))
    }

    /// Requests of a volume and a kind for which `asked` is true that are under way for more than
    /// `ns`, of those that came first; `told` of them are told.
    pub(crate) fn pending(
        &self,
        moment: Moment,
        ns: u64,
        told: usize,
        asked: impl Fn(&RequestKind) -> bool,
    ) -> PendingSlow {
        let state = self.0.borrow();
        let mut pending = PendingSlow::default();
        let mut found: Vec<&Story> = Vec::new();
        let mut all = state.open.iter();
        for story in all.by_ref().take(LOOKED_AT) {
            let age = moment.now.since(story.began()).as_nanos() as u64;
            if age > ns && asked(&(story.volume(), story.kind())) {
                found.push(story);
            }
        }
        // Stories that come later are younger.
        let next = all.next().map(|s| moment.now.since(s.began()).as_nanos() as u64);
        pending.more = next.is_some_and(|age| age > ns);
        pending.count = found.len() as u64;
        // A request may have waited before the thread could look, so the order is not exact.
        found.sort_by_key(|story| story.began());
        let whole = |story: &&Story| {
            let (began, parts) = story.so_far(moment)?;
            Some(SlowRequest {
                ended: moment.now,
                ns: moment.now.since(began).as_nanos() as u64,
                volume: story.volume(),
                kind: story.kind(),
                range: story.range(),
                parts,
            })
        };
        pending.oldest = found.iter().take(told).filter_map(whole).collect();
        pending
    }

    /// The requests that ended in the minutes since `since`: by volume and kind, and the slowest
    /// ones, the longest first. Of each minute these are the slowest of each kind, and the slowest
    /// of each volume and kind.
    pub(crate) fn since(
        &self,
        since: Instant,
    ) -> (BTreeMap<RequestKind, Summary>, Vec<SlowRequest>) {
        let state = self.0.borrow();
        let (mut of, mut slowest) = (BTreeMap::new(), Vec::new());
        for minute in state.of_minutes_since(since) {
            let kept = minute.slowest.values().flat_map(SlowestRequests::kept);
            slowest.extend(kept.filter(|s| s.ended >= since).cloned());
            for (key, counted) in &minute.of {
                of.entry(*key).or_insert_with(Summary::default).merge(&counted.summary);
                slowest.extend(counted.longest.iter().filter(|s| s.ended >= since).cloned());
            }
        }
        let order = |s: &SlowRequest| (std::cmp::Reverse(s.ns), s.ended, s.volume, s.kind, s.range);
        slowest.sort_by_key(order);
        // Most of those of a volume are among those of their kind.
        slowest.dedup_by_key(|s| order(s));
        (of, slowest)
    }
}
