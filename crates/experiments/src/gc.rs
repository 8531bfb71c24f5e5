//! Garbage collection of an index: how long does it hold up requests?
//!
//! A pass over the index walks some nodes, then pauses. While it walks, requests wait. bcache
//! walked 100 nodes or more and slept for 100 ms. What was proposed for it walks 10 nodes, sleeps
//! for 10 ms, and takes more nodes at a time where a pass would not end in time.
//!
//! * [`plant`]: clients, a device, a pass
//! * [`old`]: bcache, and the proposal
//! * [`ours`]: the pace of the cache, `cache::gc_pace`

mod old;
mod ours;
mod plant;
#[cfg(test)]
#[path = "gc_tests.rs"]
mod tests;

use base::Duration;

use crate::report::{Picture, Report, Scale, Table, grouped, ms, short, time};
use crate::svg::{self, Panel};
use old::{Bcache, Proposal};
use ours::ForebayGc;
use plant::{GcMeasurements, World, run as pass};

/// Nodes of the indexes.
const SIZES: &[u64] = &[10_000, 144_000, 1_000_000];
/// Requests at once.
const DEPTHS: [usize; 2] = [10, 128];
/// The time to walk a node of bcache's index.
const NODE: Duration = Duration::from_millis(1);
/// Time from the begin of a pass to the begin of the next, for each node of the index: 3834 s for
/// 144,330 nodes, as was measured.
const INTERVAL_NODE: Duration = Duration::from_micros(26_564);
/// The approximate time to walk a leaf of an index of Forebay.
const LEAF: Duration = Duration::from_micros(20);

/// A policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum GcPolicy {
    Bcache,
    Proposal,
    Ours,
}

impl GcPolicy {
    const ALL: [GcPolicy; 3] = [GcPolicy::Bcache, GcPolicy::Proposal, GcPolicy::Ours];

    fn name(self) -> &'static str {
        match self {
            GcPolicy::Bcache => "bcache",
            GcPolicy::Proposal => "proposal",
            GcPolicy::Ours => "ours",
        }
    }

    fn run(self, world: World) -> GcMeasurements {
        match self {
            GcPolicy::Bcache => pass(world, Bcache { nodes: world.nodes }),
            GcPolicy::Proposal => pass(world, Proposal::new(world.nodes, world.interval)),
            GcPolicy::Ours => pass(world, ForebayGc::new(world.nodes, world.interval)),
        }
    }
}

/// An index as that of bcache.
fn world(nodes: u64, depth: usize, blocked: bool) -> World {
    World { nodes, node: NODE, interval: INTERVAL_NODE * nodes as u32, depth, blocked }
}

/// Runs the experiment.
pub fn run(scale: Scale) -> Report {
    let mut report = Report::new("Garbage collection of an index");
    describe(&mut report);
    report.text("Latencies of requests in ms, from the begin of a pass to its end:");
    report.table(latencies(scale.pick(SIZES, &[3_000])));
    report.text(
        "Three findings. Where no bucket is given out during a pass, a gentle policy is worse \
         than a rough one: the pass takes longer, and the free buckets do not last. With the \
         proposal and ours requests have half of the time, as a node of 1 ms is followed by a \
         pause of 1 ms, so they have the same mean (25.6 ms at depth 128, where bcache has 199 \
         with 144,000 nodes; the medians measured in 2025 were 25 and 210). What differs is how \
         long a request may have to wait at once. And the median of ours is the highest at depth \
         10: each request meets a node, where with bcache most meet none and some meet all. A \
         longer `gc_pause` would give requests more, and a pass has the time for it here: half of \
         the interval is 13 ms a node. The default is made for leaves of 20 us, of which a slice \
         has ten.",
    );
    report.text(&format!(
        "What a pass does when the next one is due soon. An index of {} nodes that take {} each, \
         so {} of work, at depth 10:",
        grouped(scale.pick(144_000, 14_400)),
        time(LEAF.as_nanos() as u64),
        time((LEAF * scale.pick(144_000, 14_400)).as_nanos() as u64),
    ));
    report.table(hurry(scale.pick(144_000, 14_400)));
    report.text(
        "The proposal makes its slices longer, by the number of sleeps that fit into half of the \
         interval; the walk itself is not in its formula. Ours keeps the slice and makes the pause \
         shorter, but never shorter than the slice, so that requests have half of the time.",
    );
    let nodes = scale.pick(144_000, 3_000);
    let title = format!("The slowest request of each second, {} nodes, depth 128", grouped(nodes));
    let seconds = scale.pick(150, 6);
    let panel = GcPolicy::ALL.into_iter().fold(
        Panel::new("ms", svg::AxisScale::Decades(1.0)),
        |panel, policy| {
            let seen = policy.run(world(nodes, 128, false));
            let values: Vec<f64> =
                seen.longest.iter().take(seconds).map(|d| d.as_secs_f64() * 1e3).collect();
            panel.seconds(policy.name(), &values)
        },
    );
    report.picture(Picture {
        file: "gc-slowest.svg".into(),
        svg: svg::picture(&title, &[panel]),
        title,
    });
    report
}

fn describe(report: &mut Report) {
    report.text(
        "An index is walked node by node, 1 ms each, and no request goes on meanwhile. Clients \
         have 10 or 128 requests under way at all times, of which the device does one after the \
         other in 0.1 ms. So 10,000 requests a second are the most, and depth 128 alone means \
         12.8 ms.",
    );
    report.text("- *bcache*: a hundredth of the index and at least 100 nodes, then 100 ms.");
    report.text(
        "- *Proposal* of 2025: 10 nodes, then 10 ms; more nodes if the sleeps alone would not fit \
         into half of the average time between passes.",
    );
    report.text(&format!(
        "- *Ours*: `cache::gc_pace` with its default settings: a slice ends after 200 us, which is \
         one node here, then {} at most, and less if the pass would not end in half of the time \
         between passes.",
        time(ours::LIMITS.pause.as_nanos() as u64),
    ));
    report.text(&format!(
        "Modelled: a pass begins every {} for each node of the index, as measured (3834 s for \
         144,330 nodes), and past passes are known. *Blocked*: no bucket is given out during a \
         pass, and the free ones last for {} writes, a minute at full speed. In Forebay eviction \
         gives buckets whether a pass runs or not, so there is no such row.",
        time(INTERVAL_NODE.as_nanos() as u64),
        grouped(plant::RESERVE),
    ));
}

fn latencies(sizes: &[u64]) -> Table {
    let mut table = Table::new(
        3,
        &[
            "nodes, depth",
            "policy",
            "allocator",
            "median",
            "mean",
            "P99",
            "slowest",
            "pass takes, s",
            "it walks, %",
        ],
    );
    for &nodes in sizes {
        for depth in DEPTHS {
            for (policy, blocked) in [
                (GcPolicy::Bcache, false),
                (GcPolicy::Bcache, true),
                (GcPolicy::Proposal, false),
                (GcPolicy::Proposal, true),
                (GcPolicy::Ours, false),
            ] {
                let world = world(nodes, depth, blocked);
                let seen = policy.run(world);
                let mean = seen.sum.as_secs_f64() * 1e3 / seen.latency.count() as f64;
                table.row(vec![
                    format!("{}, {depth}", grouped(nodes)),
                    policy.name().to_string(),
                    if blocked { "blocked" } else { "free" }.to_string(),
                    ms(seen.latency.quantile_ns(0.5)),
                    short(mean),
                    ms(seen.latency.quantile_ns(0.99)),
                    ms(seen.latency.max_ns()),
                    short(seen.took.as_secs_f64()),
                    short(walks(&world, &seen)),
                ]);
            }
        }
    }
    table
}

/// The share of its time in which a pass walks, in percent.
fn walks(world: &World, seen: &GcMeasurements) -> f64 {
    (world.node * world.nodes as u32).as_secs_f64() * 100.0 / seen.took.as_secs_f64()
}

fn hurry(nodes: u64) -> Table {
    let mut table = Table::new(
        2,
        &["passes every", "policy", "pass takes, s", "it walks, %", "longest walk", "slowest, ms"],
    );
    let work = LEAF * nodes as u32;
    for times in [1000, 12, 6, 3, 2] {
        let interval = work * times;
        for policy in [GcPolicy::Proposal, GcPolicy::Ours] {
            let world = World { nodes, node: LEAF, interval, depth: 10, blocked: false };
            let seen = policy.run(world);
            table.row(vec![
                format!("{} s", short(interval.as_secs_f64())),
                policy.name().to_string(),
                short(seen.took.as_secs_f64()),
                short(walks(&world, &seen)),
                time(seen.longest_walk.as_nanos() as u64),
                ms(seen.latency.max_ns()),
            ]);
        }
    }
    table
}
