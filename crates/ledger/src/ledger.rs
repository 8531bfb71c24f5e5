//! Where ended stories are counted.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use base::{Instant, VolumeId};

use crate::holder::Holder;
use crate::reason::Kind;
use crate::slowest::{Slow, Slowest};
use crate::story::{Moment, PlaceId, Story, What};
use crate::summary::Summary;

const MINUTE_NS: u64 = 60_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// Minutes that are kept.
const MINUTES: usize = 60;

/// A volume, if it was said, and what was asked for.
pub(crate) type Of = (Option<VolumeId>, Kind);

/// Requests of a volume and a kind.
#[derive(Default)]
struct Counted {
    summary: Summary,
    /// The longest of them, whole, so that those of a busy volume leave that of a quiet one.
    longest: Option<Slow>,
}

/// What was moved on a device for one of those whose work keeps requests waiting.
#[derive(Clone, Copy)]
struct Moved {
    place: PlaceId,
    holder: Holder,
    bytes: u64,
    /// A bit for each second of the minute in which something was.
    seconds: u64,
}

#[derive(Default)]
struct Minute {
    /// Minutes since the clock's origin.
    number: u64,
    of: BTreeMap<Of, Counted>,
    /// By kind, so that slow writes leave the stories of slow flushes.
    slowest: BTreeMap<Kind, Slowest>,
    moved: Vec<Moved>,
}

#[derive(Default)]
struct State {
    minutes: VecDeque<Minute>,
    places: Vec<String>,
    jobs: BTreeMap<&'static str, Story>,
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

    /// A request has ended.
    pub fn end(&self, story: &Story, moment: Moment) {
        let (began, parts) = story.end(moment);
        let ns = moment.now.since(began).as_nanos() as u64;
        let mut state = self.0.borrow_mut();
        let Some(minute) = state.minute(moment.now) else { return };
        let whole = || Slow {
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
            None => minute.moved.push(Moved { place, holder, bytes, seconds: second }),
        }
    }

    /// Bytes a second that were moved for this holder at this place, of the seconds in which
    /// anything was, in those minutes since `since` of which `has` is true of some requests; `None`
    /// if nothing was.
    pub(crate) fn rate(
        &self,
        what: What,
        since: Instant,
        has: impl Fn(&Of, &Summary) -> bool,
    ) -> Option<u64> {
        let state = self.0.borrow();
        // Of what was moved a minute knows little, of volumes it may know hundreds.
        let moved = state.of_minutes_since(since).filter_map(|m| {
            let is_it = |m: &&Moved| m.place == what.place && m.holder == what.holder;
            let moved = m.moved.iter().find(is_it)?;
            m.of.iter().any(|(of, c)| has(of, &c.summary)).then_some((moved.bytes, moved.seconds))
        });
        let (bytes, seconds) = moved.fold((0, 0), |(bytes, seconds), moved| {
            (bytes + moved.0, seconds + u64::from(moved.1.count_ones()))
        });
        bytes.checked_div(seconds)
    }

    /// What ended in the minutes since `since`: by volume and kind, and the slowest requests, the
    /// longest first. Of each minute these are the slowest of each kind, and the slowest of each
    /// volume and kind.
    pub(crate) fn since(&self, since: Instant) -> (BTreeMap<Of, Summary>, Vec<Slow>) {
        let state = self.0.borrow();
        let (mut of, mut slowest) = (BTreeMap::new(), Vec::new());
        for minute in state.of_minutes_since(since) {
            let kept = minute.slowest.values().flat_map(Slowest::kept);
            slowest.extend(kept.filter(|s| s.ended >= since).cloned());
            for (key, counted) in &minute.of {
                of.entry(*key).or_insert_with(Summary::default).merge(&counted.summary);
                slowest.extend(counted.longest.iter().filter(|s| s.ended >= since).cloned());
            }
        }
        let order = |s: &Slow| (std::cmp::Reverse(s.ns), s.ended, s.volume, s.kind, s.range);
        slowest.sort_by_key(order);
        // Most of those of a volume are among those of their kind.
        slowest.dedup_by_key(|s| order(s));
        (of, slowest)
    }
}
