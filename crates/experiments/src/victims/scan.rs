//! The look at all buckets, after `invalidate_buckets_lru` of bcache.

use super::cost::Cost;
use super::heap::{Heap, HeapOrder, Sift};
use super::order::Order;

/// Buckets that the heap keeps.
pub(super) fn kept(buckets: u64) -> u64 {
    buckets >> 7
}

/// Victims of one scan.
pub(super) fn victims(buckets: u64) -> u64 {
    buckets >> 8
}

/// While buckets are looked at, the worst that is kept is on top.
const WORST_FIRST: HeapOrder = |a, b| a > b;
/// While victims are taken, the best one is.
const BEST_FIRST: HeapOrder = |a, b| a < b;

/// One scan, and its victims: those of the lowest priority.
pub(super) fn scan(buckets: u64, order: Order, sift: Sift) -> Cost {
    scan_for(buckets, order, sift, |_| ())
}

pub(super) fn scan_for(
    buckets: u64,
    order: Order,
    sift: Sift,
    mut victim: impl FnMut(u32),
) -> Cost {
    let mut heap = Heap::new(kept(buckets) as usize, sift);
    let (mut looks, mut compared) = (0, 0);
    for bucket in 0..buckets as u32 {
        looks += 1;
        if !order.may_go(bucket) {
            continue;
        }
        let entry = (order.priority(bucket, buckets), bucket);
        match heap.top() {
            Some(top) if heap.is_full() => {
                compared += 1;
                if !WORST_FIRST(entry.0, top.0) {
                    heap.replace_top(entry, WORST_FIRST);
                }
            }
            _ => heap.push(entry, WORST_FIRST),
        }
    }
    heap.reorder(BEST_FIRST);
    let steps = |heap: &Heap| looks + compared + heap.comparisons + heap.swaps;
    // The first victim waits for all of this.
    let mut cost = Cost { longest: steps(&heap), ..Cost::default() };
    while cost.victims < victims(buckets)
        && let Some((_, bucket)) = heap.pop(BEST_FIRST)
    {
        victim(bucket);
        cost.victims += 1;
    }
    Cost { looks: compared + heap.comparisons, steps: steps(&heap), ..cost }
}
