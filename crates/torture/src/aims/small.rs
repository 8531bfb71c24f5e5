//! Building blocks of aimed runs.

use base::Duration;
use sim::Latency;

use crate::settings::*;

const FOREVER: Duration = Duration::from_secs(100_000);
pub(super) const BUCKET: u64 = 64 << 10;

pub(super) fn buckets(plan: &mut CachePlan, n: u64) {
    plan.disk.size_bytes = (3 << 20) + n * plan.bucket_bytes;
}

pub(super) fn micros(least: u64, most: u64) -> Latency {
    Latency::new(Duration::from_micros(least), Duration::from_micros(most))
}

/// No disk is so slow that a volume which is read block by block outlasts the patience of a run,
/// nor so small that it is soon full.
pub(super) fn quick_and_wide(s: &mut Settings) {
    let most = Duration::from_micros(20_000);
    for disk in &mut s.devices {
        for latency in [&mut disk.read_latency, &mut disk.write_latency] {
            *latency = Latency::new(latency.least.min(most), latency.most.min(most));
        }
        disk.size_bytes = disk.size_bytes.max(40 << 20);
    }
}

pub(super) fn boot(ending: Ending, operations: u64, cut_at: Option<Moment>) -> BootPlan {
    BootPlan { ending, operations, cut_after: FOREVER, cut_at, verify: true }
}
