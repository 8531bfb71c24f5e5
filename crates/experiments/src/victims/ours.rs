//! Ours: the policies of the cache, and how their steps are counted.

use cache::Policy;
use cache::replacement::{Origin, Replacement};

use super::cost::Cost;
use super::order::Order;
use super::scan;

/// Links that are read or written when a bucket is taken out of its queue.
pub(super) const UNLINK: u64 = 4;
/// The same, and put to its other end.
pub(super) const RELINK: u64 = 2 * UNLINK;
/// The number of steps that `adaptive` takes to compare how full its three queues are.
pub(super) const QUEUES: u64 = 6;
/// Blocks of a bucket. Choosing does not look at them.
const BLOCKS: u32 = 4;

/// Chooses as many victims as one scan of the old policy has. Each is filled anew.
pub(super) fn victims(buckets: u64, order: Order, policy: Policy) -> Cost {
    let mut all = Replacement::new(policy, buckets as usize, BLOCKS, 1);
    for nth in 0..buckets as u32 {
        let bucket = order.filled(nth, buckets);
        all.begin(bucket, Origin::Write, 0);
        all.insert(bucket);
    }
    let queues = if policy == Policy::Adaptive { QUEUES } else { 0 };
    let (mut cost, mut since, mut clock) = (Cost::default(), 0, 0);
    while cost.victims < scan::victims(buckets) {
        let mut looks = 0;
        let victim = all.victim(|bucket| {
            looks += 1;
            order.may_go(bucket)
        });
        let passed_over = looks - u64::from(victim.is_some());
        let steps = queues + looks + passed_over * RELINK + u64::from(victim.is_some()) * UNLINK;
        cost.looks += looks;
        cost.steps += steps;
        since += steps;
        let Some(victim) = victim else { continue };
        cost.victims += 1;
        cost.longest = cost.longest.max(since);
        since = 0;
        clock += BLOCKS;
        all.evicted(victim, 0, BLOCKS, clock);
        all.end(victim);
        all.begin(victim, Origin::Write, clock);
        all.insert(victim);
    }
    cost
}
