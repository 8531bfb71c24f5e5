//! The old policy, and what was proposed.

use base::{Duration, Instant};

use super::plant::Pace;

/// bcache until 2025: a hundredth of the index, at least 100 nodes, then 100 ms. Both policies
/// sleep only if requests are under way, which is always the case here.
pub(super) struct Bcache {
    pub nodes: u64,
}

impl Pace for Bcache {
    fn slice(&mut self) -> u64 {
        (self.nodes / 100).max(100)
    }

    fn pause(&mut self, _now: Instant, _nodes: u64, _took: Duration) -> Duration {
        Duration::from_millis(100)
    }
}

/// The proposal: 10 nodes, then 10 ms. Where a pass would not end in half of the time to the next
/// one, more nodes.
pub(super) struct Proposal {
    nodes_a_slice: u64,
}

impl Proposal {
    const SLEEP_MS: u64 = 10;
    const LEAST: u64 = 10;

    /// For an index of so many nodes, and so much time between passes.
    pub fn new(nodes: u64, average_interval: Duration) -> Proposal {
        Proposal { nodes_a_slice: Proposal::nodes_a_slice(nodes, average_interval) }
    }

    pub fn nodes_a_slice(nodes: u64, average_interval: Duration) -> u64 {
        let most_ms = average_interval.as_millis() as u64 / 2;
        let sleeps_ms = Proposal::SLEEP_MS * (nodes / Proposal::LEAST);
        if most_ms >= Proposal::SLEEP_MS && sleeps_ms > most_ms {
            nodes / (most_ms / Proposal::SLEEP_MS)
        } else {
            Proposal::LEAST
        }
    }
}

impl Pace for Proposal {
    fn slice(&mut self) -> u64 {
        self.nodes_a_slice
    }

    fn pause(&mut self, _now: Instant, _nodes: u64, _took: Duration) -> Duration {
        Duration::from_millis(Proposal::SLEEP_MS)
    }
}
