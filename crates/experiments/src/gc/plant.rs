//! Clients, a device, and a pass over the index that holds both up while it walks.

use std::collections::VecDeque;

use base::{Duration, Histogram, Instant};

/// The time that a request takes. Requests are served one after the other.
pub(super) const SERVICE: Duration = Duration::from_micros(100);
/// The free buckets that there are when a pass begins are used up after so many writes.
pub(super) const RESERVE: u64 = 600_000;

/// The policy that divides a pass into slices and pauses.
pub(super) trait Pace {
    /// Nodes of the next slice.
    fn slice(&mut self) -> u64;
    /// A slice has walked so many nodes, which took so long, and has ended now: the pause after it.
    /// Requests are under way at all times.
    fn pause(&mut self, now: Instant, nodes: u64, took: Duration) -> Duration;
}

/// An index, and the clients before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct World {
    pub nodes: u64,
    /// The time to walk a node. No request goes on meanwhile.
    pub node: Duration,
    /// From the begin of a pass to the begin of the next.
    pub interval: Duration,
    /// Requests at once.
    pub depth: usize,
    /// No bucket is given out while a pass runs.
    pub blocked: bool,
}

/// The measurements of a pass.
pub(super) struct GcMeasurements {
    pub latency: Histogram,
    /// The sum of all latencies.
    pub sum: Duration,
    /// From the begin of the pass to its end.
    pub took: Duration,
    /// The longest slice.
    pub longest_walk: Duration,
    /// By second: the longest latency of the requests that ended in it.
    pub longest: Vec<Duration>,
}

struct GcPlant {
    now: Instant,
    /// When the requests came that wait; as many at all times.
    waiting: VecDeque<Instant>,
    /// Writes until the free buckets are used up, if they can be.
    room: Option<u64>,
    seen: GcMeasurements,
}

impl GcPlant {
    /// Serves one request.
    fn serve(&mut self) {
        let Some(came) = self.waiting.pop_front() else { return };
        self.now = self.now.after(SERVICE);
        let took = self.now.since(came);
        self.seen.latency.record(took);
        self.seen.sum += took;
        let second = self.now.0 as usize / 1_000_000_000;
        self.seen.longest.resize(self.seen.longest.len().max(second + 1), Duration::ZERO);
        self.seen.longest[second] = self.seen.longest[second].max(took);
        self.waiting.push_back(self.now);
        self.room = self.room.map(|room| room - 1);
    }

    /// Serves requests until then.
    fn serve_until(&mut self, until: Instant) {
        while self.now < until && self.room != Some(0) {
            self.serve();
        }
        self.now = self.now.max(until);
    }
}

/// One pass, from its begin to its end, and until the requests have ended that it held up.
pub(super) fn run(world: World, mut pace: impl Pace) -> GcMeasurements {
    let nothing = Duration::ZERO;
    let seen = GcMeasurements {
        latency: Histogram::default(),
        sum: nothing,
        took: nothing,
        longest_walk: nothing,
        longest: Vec::new(),
    };
    let waiting = std::iter::repeat_n(Instant(0), world.depth).collect();
    let room = world.blocked.then_some(RESERVE);
    let mut plant = GcPlant { now: Instant(0), waiting, room, seen };
    let mut left = world.nodes;
    while left > 0 {
        let nodes = pace.slice().clamp(1, left);
        let took = world.node * nodes as u32;
        plant.now = plant.now.after(took);
        plant.seen.longest_walk = plant.seen.longest_walk.max(took);
        left -= nodes;
        let pause = pace.pause(plant.now, nodes, took);
        if left > 0 {
            plant.serve_until(plant.now.after(pause));
        }
    }
    plant.seen.took = plant.now.since(Instant(0));
    plant.room = None;
    (0..world.depth).for_each(|_| plant.serve());
    plant.seen
}
