//! Victims: what it costs to find the buckets that are evicted next.
//!
//! bcache looks at all buckets, keeps the best of them in a heap, and evicts these one after
//! another. Since 6.11 the heap's sift-down goes *bottom-up*: it walks to a leaf first, and then
//! back to the place of what it sifts. That halves the comparisons where all priorities differ. In
//! a cache that is not filled all are equal. Then each bucket that is looked at takes the place of
//! the first of the heap, as the condition counts equal ones as better, and each walk goes to a
//! leaf.
//!
//! * [`cost`]: what is counted
//! * [`heap`]: the heap, with both ways of sifting; it counts its steps
//! * [`scan`]: the look at all buckets
//! * [`order`]: priorities of buckets
//! * [`ours`]: the policies of `cache::replacement`, and how their steps are counted

mod cost;
mod heap;
mod order;
mod ours;
mod scan;
#[cfg(test)]
#[path = "victims_tests.rs"]
mod tests;

use cache::Policy;

use crate::report::{Report, Scale, Table, grouped, short, time};
use heap::Sift;
use order::Order;

/// The virtual time of a step, in nanoseconds.
const STEP_NS: u64 = 10;

/// Runs the experiment.
pub fn run(scale: Scale) -> Report {
    let buckets = scale.pick(1 << 25, 1 << 16);
    let mut report = Report::new("Choosing victims");
    report.text(&format!(
        "{} buckets ({} TiB in buckets of 512 KiB). The old policy looks at all of them and keeps \
         the best {} in a heap, of which it then evicts {}: the sizes of bcache. The next request \
         for a bucket waits for all of that, if none is left. Ours chooses each victim when it is \
         needed; the same number of victims is counted, and each is filled again afterwards.",
        grouped(buckets),
        buckets >> 21,
        grouped(scan::kept(buckets)),
        grouped(scan::victims(buckets)),
    ));
    report.text(
        "- *Bottom-up heap*: as in Linux from 6.11 until 2025. *Top-down heap*: what it went back \
         to. They differ in the sift-down only.",
    );
    report.text(
        "- *Ours*: the policies `lru` and `adaptive` of the cache, as they are. With *half \
         pinned*, every other bucket at random must not go, as it is dirty, say.",
    );
    report.text(&format!(
        "Counted: comparisons, and all steps. A step of the heap is a comparison, a swap, or the \
         look whether a bucket may go. For ours a step is a look at a bucket or a link that is \
         read or written: {} for a bucket that is taken out of its queue, {} for one that goes to \
         its other end, and with `adaptive` {} to compare its three queues. Looks at a bucket are \
         counted as they happen, links by that formula. Modelled: each step costs {STEP_NS} ns. \
         For ours that is too little where a link is not in the processor's cache; with 100 ns a \
         step it would be ten times as much, and still below 0.1 ms. Buckets have 4 blocks here, \
         so that 32 million of them fit into memory; a choice does not look at blocks.",
        ours::UNLINK,
        ours::RELINK,
        ours::QUEUES,
    ));
    let mut table = Table::new(
        2,
        &[
            "priorities",
            "policy",
            "comparisons or looks a victim",
            "steps a victim",
            "time a victim",
            "longest pause",
        ],
    );
    for order in Order::ALL {
        let old = [("bottom-up heap", Sift::BottomUp), ("top-down heap", Sift::TopDown)]
            .map(|(name, sift)| (name, scan::scan(buckets, order, sift)));
        let new = [("ours, lru", Policy::Lru), ("ours, adaptive", Policy::Adaptive)]
            .map(|(name, policy)| (name, ours::victims(buckets, order, policy)));
        for (name, cost) in old.into_iter().chain(new) {
            let each = |n: u64| n as f64 / cost.victims as f64;
            table.row(vec![
                order.name().to_string(),
                name.to_string(),
                short(each(cost.looks)),
                short(each(cost.steps)),
                time((each(cost.steps) * STEP_NS as f64) as u64),
                time(cost.longest * STEP_NS),
            ]);
        }
    }
    report.table(table);
    report.text(
        "With equal priorities each bucket takes the place of the top, as bcache counts an equal \
         one as better. For each the bottom-up heap makes log2 of its size comparisons and as many \
         swaps, the top-down one two comparisons. (The discussion says 2 log2(n) comparisons: half \
         of what it counts are swaps.) Where priorities differ the bottom-up heap is the better \
         one, as intended. The pause of either grows with the number of buckets, as it is a scan. \
         Ours has none, and does not depend on priorities.",
    );
    report
}
