//! The use that the engine's thread makes of its time.
//!
//! A time between two looks at the world in which the thread was busy, or did not run, is told
//! apart: whatever came in that time had to wait for the thread.

use base::{Duration, Instant};
use ledger::{AwayTimes, Holder, Moment, Reason};
use smallvec::SmallVec;

use crate::seam::ThreadTime;

/// A wait for the world that is shorter found something that was there already.
const SLEPT: Duration = Duration::from_micros(20);
/// A time between two looks that is longer may be one in which the thread did not run.
pub(crate) const LONG: Duration = Duration::from_millis(10);
/// For so long after a request the thread sleeps no longer than this at a time.
const SERVING: Duration = Duration::from_secs(2);
const BEAT: Duration = Duration::from_millis(100);
/// The time between two reads of what the thread has had of the processors.
const READ_EVERY: Duration = Duration::from_millis(5);

/// The use that the engine's thread makes of its time.
pub(crate) struct Thread {
    /// The last look at the world.
    looked: Instant,
    /// The time that jobs have run since then.
    jobs: SmallVec<[(Holder, Duration); 4]>,
    /// The last request that arrived.
    requested: Option<Instant>,
    /// When it ran last before it stood still, and why it did; `None` if it has slept since.
    stood: Option<(Instant, Reason)>,
    /// The time that the thread did not run, in all.
    away: AwayTimes,
    /// The last time at which it was read what the thread had had of the processors, and what that
    /// was.
    read: (Instant, Option<ThreadTime>),
    /// The work of requests themselves.
    requests: Holder,
}

impl Thread {
    pub fn new(now: Instant) -> Thread {
        Thread {
            looked: now,
            jobs: SmallVec::new(),
            requested: None,
            stood: None,
            away: AwayTimes::default(),
            read: (now, None),
            requests: Holder::of("requests"),
        }
    }

    /// A request has arrived.
    pub fn requested(&mut self, now: Instant) {
        self.requested = Some(now);
    }

    /// The time at which the thread wakes at the latest, if there is something to do at `until`:
    /// while clients are there it looks at the clock now and then, so that a time in which it did
    /// not run can be told.
    pub fn wakes_by(&self, now: Instant, until: Option<Instant>) -> Option<Instant> {
        let served = self.requested.is_some_and(|at| now.since(at) < SERVING);
        let beat = served.then(|| now.after(BEAT));
        until.into_iter().chain(beat).min()
    }

    /// A job has kept the thread for so long.
    pub fn job_ran(&mut self, job: Holder, took: Duration) {
        match self.jobs.iter_mut().find(|(name, _)| *name == job) {
            Some((_, sum)) => *sum += took,
            None => self.jobs.push((job, took)),
        }
    }

    /// Notes that the thread looks at the world again: it asked at a time, to be woken at another
    /// one, and it is now. `ran` reads what the thread has had of the processors.
    pub fn turned(
        &mut self,
        asked: Instant,
        until: Option<Instant>,
        now: Instant,
        ran: impl Fn() -> Option<ThreadTime>,
    ) -> Moment {
        let busy = now.since(self.looked);
        let slept = now.since(asked) >= SLEPT;
        let overslept = until.map_or(Duration::ZERO, |u| now.since(u.max(asked)));
        let late = if slept { overslept } else { busy };
        let mut moment = Moment { late, ..Moment::at(now) };
        if let Some((job, took)) = self.jobs.iter().max_by_key(|(_, took)| *took)
            && *took * 2 > busy
        {
            moment.holder = *job;
        } else {
            moment.holder = self.requests;
        }
        if slept && late < LONG {
            // A timer is never exact.
            moment.late = Duration::ZERO;
        }
        if late >= LONG {
            let had = ran().zip(self.read.1).map(|(now, before)| now.since(before));
            let most = |time: Duration| time * 2 >= late;
            if slept || had.is_some_and(|had| !most(had.used)) {
                let crowded = had.and_then(|had| had.queued).is_some_and(most);
                moment.reason = if crowded { Reason::NoProcessor } else { Reason::NotRunning };
                moment.holder = Holder::NONE;
            }
        }
        if moment.reason != Reason::Engine {
            self.away = self.away.and(AwayTimes::of(moment.reason, late));
            let since = Instant(now.0.saturating_sub(late.as_nanos() as u64));
            self.stood = Some((since, moment.reason));
        } else if let Some((since, reason)) = self.stood.filter(|_| !slept) {
            // Events that came meanwhile may be seen only now.
            moment.late = now.since(since);
            (moment.reason, moment.holder) = (reason, Holder::NONE);
        } else {
            self.stood = None;
        }
        moment.away = self.away;
        self.looked = now;
        self.jobs.clear();
        if now.since(self.read.0) >= READ_EVERY {
            self.read = (now, ran());
        }
        moment
    }
}

#[cfg(test)]
#[path = "thread_tests.rs"]
mod tests;
