//! The models do what was reported.

use super::*;

fn seen(policy: GcPolicy, nodes: u64, depth: usize, blocked: bool) -> GcMeasurements {
    policy.run(world(nodes, depth, blocked))
}

const MS: u64 = 1_000_000;

#[test]
fn a_pass_of_bcache_stalls_requests_for_100_ms_again_and_again() {
    let s = seen(GcPolicy::Bcache, 10_000, 10, false);
    assert!((100 * MS..103 * MS).contains(&s.latency.max_ns()), "{}", s.latency.max_ns());
    assert!(s.longest.iter().all(|d| d.as_millis() >= 100), "{:?}", s.longest);
    // 100 slices of 100 ms, and 99 sleeps.
    assert_eq!(s.took, Duration::from_millis(100 * 100 + 99 * 100));
    // With a larger index slices are longer: a hundredth of it.
    let s = seen(GcPolicy::Bcache, 144_000, 128, false);
    assert!((1440 * MS..1460 * MS).contains(&s.latency.max_ns()), "{}", s.latency.max_ns());
}

#[test]
fn the_proposal_stalls_them_for_10_ms_and_takes_longer() {
    let s = seen(GcPolicy::Proposal, 10_000, 10, false);
    assert!((10 * MS..12 * MS).contains(&s.latency.max_ns()), "{}", s.latency.max_ns());
    assert_eq!(s.took, Duration::from_millis(1000 * 10 + 999 * 10));
    // Depth 128 does not fit into the sleeps, as was measured: 25 ms.
    let s = seen(GcPolicy::Proposal, 10_000, 128, false);
    assert!((22 * MS..29 * MS).contains(&s.latency.quantile_ns(0.5)));
}

#[test]
fn the_formula_of_the_proposal() {
    let of = |nodes, ms| Proposal::nodes_a_slice(nodes, Duration::from_millis(ms));
    // No pass was measured; plenty of time; 10 s of sleeps do not fit into half of 4 s.
    assert_eq!((of(10_000, 0), of(10_000, 1_000_000), of(10_000, 4_000)), (10, 10, 50));
}

#[test]
fn an_allocator_that_is_blocked_stops_writes_for_the_rest_of_the_pass() {
    let s = seen(GcPolicy::Proposal, 144_000, 10, true);
    assert!(s.latency.max_ns() > 100_000 * MS, "{}", s.latency.max_ns());
    assert!(seen(GcPolicy::Proposal, 144_000, 10, false).latency.max_ns() < 12 * MS);
}

#[test]
fn ours_holds_a_request_up_for_a_node_at_most() {
    let s = seen(GcPolicy::Ours, 10_000, 10, false);
    assert_eq!(s.longest_walk, NODE);
    // Half of the time is left to requests: ten of them take 2 ms.
    assert!(s.latency.max_ns() <= 4 * MS, "{}", s.latency.max_ns());
    assert!(s.took <= Duration::from_millis(20_100), "{:?}", s.took);
}

#[test]
fn ours_ends_in_half_of_the_interval_where_that_is_possible() {
    for times in [6, 12, 100] {
        let (nodes, interval) = (14_400, LEAF * 14_400 * times);
        let world = World { nodes, node: LEAF, interval, depth: 10, blocked: false };
        let s = GcPolicy::Ours.run(world);
        assert!(s.took <= interval / 2 + Duration::from_millis(5), "{times}: {:?}", s.took);
        assert_eq!(s.longest_walk, Duration::from_micros(200));
    }
}
