//! Ours: `cache::gc_pace`.

use base::{Duration, Instant};
use cache::gc_pace::{self, Limits, OtherActivity, Runs};

use super::plant;

/// The default settings.
pub(super) const LIMITS: Limits =
    Limits { slice: Duration::from_micros(200), min_nodes: 1, pause: Duration::from_millis(1) };

pub(super) struct ForebayGc {
    pace: gc_pace::Pace,
    /// The time to walk a node, as the last slice took it; zero before the first slice.
    node: Duration,
}

impl ForebayGc {
    /// For an index of so many nodes, and so much time between passes.
    pub fn new(nodes: u64, interval: Duration) -> ForebayGc {
        let mut runs = Runs::default();
        for n in 0..2 {
            let began = Instant(0).after(interval * n);
            runs.note(began, began, false);
        }
        ForebayGc { pace: gc_pace::Pace::begin(Instant(0), nodes, &runs), node: Duration::ZERO }
    }
}

impl plant::Pace for ForebayGc {
    /// As many nodes as a slice has before it ends. The first one has one.
    fn slice(&mut self) -> u64 {
        let ends = |n: &u64| LIMITS.ends_slice(self.node * *n as u32, *n);
        if self.node.is_zero() { 1 } else { (1..).find(ends).unwrap_or(1) }
    }

    fn pause(&mut self, now: Instant, nodes: u64, took: Duration) -> Duration {
        self.node = took / nodes as u32;
        self.pace.worked(nodes, took);
        self.pace.pause(now, &LIMITS, OtherActivity::Foreground)
    }
}
