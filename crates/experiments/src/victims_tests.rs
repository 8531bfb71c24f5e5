//! The heap is a heap, and the models do what is known of them.

use base::Prng;

use super::heap::{Heap, HeapOrder};
use super::*;

const N: u64 = 1 << 14;

#[test]
fn both_ways_of_sifting_sort() {
    let before: HeapOrder = |a, b| a < b;
    let mut rng = Prng::new(1);
    for sift in [Sift::BottomUp, Sift::TopDown] {
        for n in [1, 2, 3, 10, 1000] {
            let mut heap = Heap::new(n, sift);
            let mut all: Vec<u32> = (0..n).map(|_| rng.below(50) as u32).collect();
            all.iter().for_each(|&p| heap.push((p, 0), |a, b| a > b));
            heap.reorder(before);
            let popped: Vec<u32> = std::iter::from_fn(|| heap.pop(before)).map(|e| e.0).collect();
            all.sort_unstable();
            assert_eq!(popped, all, "{sift:?} {n}");
        }
    }
}

#[test]
fn a_scan_finds_the_lowest_priorities() {
    for sift in [Sift::BottomUp, Sift::TopDown] {
        let mut found = Vec::new();
        scan::scan_for(N, Order::Distinct, sift, |bucket| found.push(bucket));
        let priorities: Vec<u32> = found.iter().map(|&b| Order::Distinct.priority(b, N)).collect();
        assert_eq!(priorities, (0..scan::victims(N) as u32).collect::<Vec<_>>());
    }
}

#[test]
fn orders_are_permutations() {
    for order in [Order::Equal, Order::Distinct, Order::Falling] {
        let mut all: Vec<u32> = (0..N as u32).map(|n| order.filled(n, N)).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..N as u32), "{order:?}");
    }
}

/// What the reports found: a bottom-up heap needs log2(n) comparisons, and as many swaps, where all
/// are equal, and a top-down one two; where all differ it is the other way round.
#[test]
fn equal_priorities_are_the_worst_for_a_bottom_up_heap() {
    let of = |order, sift| scan::scan(N, order, sift).steps as f64 / N as f64;
    let levels = scan::kept(N).ilog2() as f64;
    let (up, down) = (of(Order::Equal, Sift::BottomUp), of(Order::Equal, Sift::TopDown));
    assert!(up > 2.0 * levels - 2.0, "{up}");
    assert!(down < 5.0, "{down}");
    let compared = |sift| scan::scan(N, Order::Falling, sift).looks;
    assert!(compared(Sift::BottomUp) * 3 < compared(Sift::TopDown) * 2);
}

#[test]
fn ours_does_not_depend_on_the_number_of_buckets_or_their_priorities() {
    for policy in [Policy::Lru, Policy::Adaptive] {
        for order in [Order::Equal, Order::Distinct, Order::Falling] {
            for n in [1 << 10, N] {
                let cost = ours::victims(n, order, policy);
                let expected =
                    1 + ours::UNLINK + if policy == Policy::Lru { 0 } else { ours::QUEUES };
                assert_eq!(cost.looks, cost.victims);
                assert_eq!((cost.steps, cost.longest), (cost.victims * expected, expected));
            }
        }
        let pinned = ours::victims(N, Order::Pinned, policy);
        assert!(pinned.longest < 64 * (1 + ours::RELINK) + 100, "{pinned:?}");
        assert!(pinned.looks < pinned.victims * 3);
    }
}
