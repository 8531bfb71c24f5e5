//! The last changes of a server, in a ring: its statuses and its jobs are looked at again and
//! again.
//!
//! Fault model: the engine may be too busy to answer. A look is left out then, and the next one
//! sees the changes since the one before. A thing that has come and gone between two looks is not
//! seen. The looks are at the status that all share: the one of the history, and the one that a
//! page has just asked for. So they cost the engine next to nothing.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model::Status;
use model::change::{Change, LastChanges};
use model::job::Job;
use tokio::time::{MissedTickBehavior, interval};

use crate::changes::{Observation, changes, unix_time};
use crate::engine::Engine;
use crate::jobs::Jobs;
use crate::snapshot::Snapshot;

/// Between two looks, where no client asks.
const EVERY: Duration = Duration::from_secs(5);
/// Changes that are kept.
const KEPT: usize = 200;

#[derive(Default)]
struct Ring {
    /// The status and the jobs of the last look.
    seen: Option<(Arc<Status>, Vec<Job>)>,
    /// The time of the first look, in seconds of Unix time.
    since: f64,
    changes: VecDeque<Change>,
    /// The number of the next change.
    next: u64,
}

/// The last changes.
#[derive(Default)]
pub struct PastChanges(Mutex<Ring>);

impl PastChanges {
    /// Looks until it is dropped.
    pub async fn follow(
        self: Arc<Self>,
        engine: Arc<dyn Engine>,
        snapshot: Arc<Snapshot>,
        jobs: Jobs,
    ) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.look(&engine, &snapshot, &jobs).await;
        }
    }

    /// Looks once. Nothing waits between the answer and its comparison, so looks that overlap come
    /// in the order of what they saw.
    pub async fn look(&self, engine: &Arc<dyn Engine>, snapshot: &Snapshot, jobs: &Jobs) {
        if let Ok(status) = snapshot.get(engine).await {
            self.see(status, jobs.list(), unix_time());
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Ring) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn see(&self, status: Arc<Status>, jobs: Vec<Job>, at: f64) {
        self.with(|ring| {
            match &ring.seen {
                None => ring.since = at,
                Some((old_status, old_jobs)) => {
                    let before = Observation { status: old_status, jobs: old_jobs };
                    let found = changes(before, Observation { status: &status, jobs: &jobs }, at);
                    ring.next += found.len() as u64;
                    ring.changes.extend(found);
                    let over = ring.changes.len().saturating_sub(KEPT);
                    ring.changes.drain(..over);
                }
            }
            ring.seen = Some((status, jobs));
        });
    }

    /// The changes from this number on, the oldest first.
    pub fn shown(&self, from: u64) -> LastChanges {
        self.with(|ring| {
            let oldest = ring.next - ring.changes.len() as u64;
            let skipped = from.saturating_sub(oldest).min(ring.changes.len() as u64) as usize;
            LastChanges {
                next: ring.next,
                since: ring.since,
                changes: ring.changes.iter().skip(skipped).cloned().collect(),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use model::change::{Fact, Subject};
    use model::scrub::ScrubState;

    use super::*;

    fn status(state: ScrubState) -> Arc<Status> {
        let mut status = Status::default();
        status.pool.scrub.state = state;
        Arc::new(status)
    }

    #[test]
    fn the_last_changes_are_kept_and_the_new_are_shown() {
        let past = PastChanges::default();
        assert_eq!(past.shown(0), LastChanges::default());
        past.see(status(ScrubState::Never), Vec::new(), 10.5);
        assert_eq!(past.shown(0), LastChanges { since: 10.5, ..LastChanges::default() });
        let total = KEPT as u64 + 7;
        for number in 0..total {
            let state = if number % 2 == 0 { ScrubState::Running } else { ScrubState::Paused };
            past.see(status(state), Vec::new(), 11.0 + number as f64);
        }
        let shown = past.shown(0);
        assert_eq!((shown.next, shown.changes.len(), shown.since), (total, KEPT, 10.5));
        assert_eq!(shown.changes[0].at, 11.0 + 7.0);
        let last = past.shown(total - 1).changes;
        assert_eq!((last.len(), last[0].what), (1, Subject::Scrub));
        assert_eq!(last[0].to, Some(Fact::Text("running".into())));
        assert_eq!(past.shown(total).changes, []);
        // A client that has seen a server before this one.
        assert_eq!(past.shown(u64::MAX).changes, []);
    }
}
