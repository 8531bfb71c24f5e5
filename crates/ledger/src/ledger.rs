//! Where ended stories are counted.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use base::{Instant, VolumeId};

use crate::reason::Kind;
use crate::slowest::{Slow, Slowest};
use crate::story::{Moment, PlaceId, Story};
use crate::summary::Summary;

const MINUTE_NS: u64 = 60_000_000_000;
/// Minutes that are kept.
const MINUTES: usize = 60;

/// Requests by volume and kind.
type ByKind = BTreeMap<(Option<VolumeId>, Kind), Summary>;

#[derive(Default)]
struct Minute {
    /// Minutes since the clock's origin.
    number: u64,
    of: ByKind,
    /// By kind, so that slow writes leave the stories of slow flushes.
    slowest: BTreeMap<Kind, Slowest>,
}

#[derive(Default)]
struct State {
    minutes: VecDeque<Minute>,
    places: Vec<String>,
    jobs: BTreeMap<&'static str, Story>,
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
        let number = moment.now.0 / MINUTE_NS;
        if state.minutes.back().is_none_or(|m| m.number != number) {
            if state.minutes.len() == MINUTES {
                state.minutes.pop_front();
            }
            state.minutes.push_back(Minute { number, ..Minute::default() });
        }
        let Some(minute) = state.minutes.back_mut() else { return };
        let key = (story.volume(), story.kind());
        minute.of.entry(key).or_default().count_one(ns, &parts);
        minute.slowest.entry(story.kind()).or_default().offer(ns, || Slow {
            ended: moment.now,
            ns,
            volume: story.volume(),
            kind: story.kind(),
            range: story.range(),
            parts,
        });
    }

    /// What ended in the minutes since `since`: by volume and kind, and the slowest requests, the
    /// longest first.
    pub(crate) fn since(&self, since: Instant) -> (ByKind, Vec<Slow>) {
        let state = self.0.borrow();
        let (mut of, mut slowest) = (BTreeMap::new(), Vec::new());
        for minute in state.minutes.iter().filter(|m| (m.number + 1) * MINUTE_NS > since.0) {
            for (key, summary) in &minute.of {
                of.entry(*key).or_insert_with(Summary::default).merge(summary);
            }
            let kept = minute.slowest.values().flat_map(Slowest::kept);
            slowest.extend(kept.filter(|s| s.ended >= since).cloned());
        }
        slowest.sort_by_key(|s| (std::cmp::Reverse(s.ns), s.ended));
        (of, slowest)
    }
}
