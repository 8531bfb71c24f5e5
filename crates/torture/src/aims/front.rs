//! Aims at what stands between the cache and the pool: what each must have before the other says
//! so.

use base::{Duration, Prng};
use cache::Promote;
use sim::{FlushLoss, Latency};

use super::small::{boot, buckets, quick_and_wide};
use crate::settings::*;
use crate::swarm::one_of;

/// No commit, no pass and no checkpoint comes by itself.
const NEVER: Duration = Duration::from_secs(3600);

/// Volumes of all modes, most of which do not write back, on a cache that keeps all that is read.
/// Power fails right after a flush, which commits the pool; what the cache has of a block must not
/// be older then. In half of the runs the cache fails before, with something dirty in it or not.
pub(super) fn through(r: &mut Prng, s: &mut Settings, mut plan: CachePlan) {
    let count = r.range(40, 80);
    buckets(&mut plan, count);
    keep_all(&mut plan);
    plan.settings.journal_interval = one_of(r, &[Duration::from_millis(20), NEVER, NEVER]);
    plan.settings.max_lag = Duration::from_millis(one_of(r, &[4, 50, 30_000, 30_000]));
    plan.settings.dirty_nodes = one_of(r, &[8, 400]);
    quick_and_wide(s);
    s.pool.commit_interval = Duration::from_millis(one_of(r, &[2, 200, 3_600_000]));
    let loses = one_of(r, &[FlushLoss::Part, FlushLoss::All, FlushLoss::Nothing]);
    let how = one_of(
        r,
        &[FailureMode::Flush(loses), FailureMode::Once, FailureMode::Dies, FailureMode::Away],
    );
    s.failures.needed = r.one_in(2).then_some((how, FailingDevices::Cache));
    s.changes.first_modes = true;
    s.changes.mode = one_of(r, &[0, 0, 100]);
    s.names = r.range(2, 4) as usize;
    s.volume_bytes = one_of(r, &[64 << 10, 256 << 10]);
    (s.direct, s.nbd) = one_of(r, &[(1, 0), (1, 0), (0, 1)]);
    s.depth = one_of(r, &[1, 4, 16]);
    s.fua = one_of(r, &[8, 24]);
    s.most_blocks = one_of(r, &[1, 4]);
    s.mix = Mix {
        write: 8,
        sectors: one_of(r, &[0, 2]),
        read: 8,
        flush: one_of(r, &[1, 3]),
        discard: one_of(r, &[0, 1]),
        ..Mix::default()
    };
    s.boots[0] = boot(Ending::PowerCut, 200, None);
    for _ in 0..8 {
        let most = one_of(r, &[8, 80]);
        let cut = Moment::Flush(r.range(1, most));
        // The operations after the failure of the cache are what counts.
        let cut = if s.failures.needed.is_some() { None } else { Some(cut) };
        // Requests that fail are answered at once.
        let operations = if cut.is_some() { 300 } else { 1500 };
        s.boots.push(boot(Ending::PowerCut, operations, cut));
    }
    s.cache = Some(plan);
}

/// Modes change, and caches are attached and detached, under load. Nothing else commits the pool,
/// and power fails soon after a flush, while such a change is under way or when it has just ended.
pub(super) fn front(r: &mut Prng, s: &mut Settings, mut plan: CachePlan) {
    let count = r.range(40, 80);
    buckets(&mut plan, count);
    keep_all(&mut plan);
    plan.settings.journal_interval = NEVER;
    plan.settings.max_lag = NEVER;
    plan.settings.dirty_nodes = 400;
    (plan.settings.dirty_target_percent, plan.settings.dirty_limit_percent) = (60, 95);
    quick_and_wide(s);
    slow_commits(s);
    s.pool.commit_interval = NEVER;
    s.changes.first_modes = r.one_in(3);
    (s.changes.mode, s.changes.cache) = one_of(r, &[(6, 0), (0, 6), (10, 20)]);
    s.names = r.range(1, 3) as usize;
    s.volume_bytes = one_of(r, &[64 << 10, 256 << 10]);
    (s.direct, s.nbd) = one_of(r, &[(1, 0), (1, 0), (0, 1)]);
    s.depth = one_of(r, &[2, 8, 24]);
    s.fua = 1 << 20;
    s.most_blocks = one_of(r, &[1, 4]);
    s.mix = Mix {
        write: 12,
        sectors: one_of(r, &[0, 2]),
        read: 4,
        flush: one_of(r, &[1, 2]),
        ..Mix::default()
    };
    // Clients that flush all the time would commit with each flush what came before a change.
    s.changes.flush = r.one_in(2);
    if s.changes.flush {
        s.mix.flush = 0;
    }
    s.boots[0] = boot(Ending::PowerCut, 100, None);
    for _ in 0..9 {
        let (most_changes, most_flushes) = (one_of(r, &[2, 4, 8]), one_of(r, &[1, 3]));
        let change = 1 + r.below(most_changes);
        let cut = match r.below(4) {
            0 => Moment::OperationAfterChange(change, r.below(60)),
            _ => Moment::FlushAfterChange(change, 1 + r.below(most_flushes)),
        };
        s.boots.push(boot(Ending::PowerCut, 300, Some(cut)));
    }
    s.cache = Some(plan);
}

/// Volumes shrink and grow while the host is full at times, so that a shrink fails half way. Power
/// fails while they grow again.
pub(super) fn sizes(r: &mut Prng, s: &mut Settings, mut plan: CachePlan) {
    let count = r.range(40, 80);
    buckets(&mut plan, count);
    keep_all(&mut plan);
    plan.settings.journal_interval = NEVER;
    plan.settings.max_lag = NEVER;
    quick_and_wide(s);
    slow_commits(s);
    s.pool.commit_interval = NEVER;
    s.faults.full = true;
    s.changes.first_modes = r.one_in(3);
    s.admin = one_of(r, &[4, 12]);
    s.names = 2;
    s.full_size = false;
    s.volume_bytes = one_of(r, &[64 << 10, 256 << 10]);
    s.depth = one_of(r, &[1, 4]);
    s.fua = 24;
    s.most_blocks = 4;
    s.mix = Mix { write: 8, read: 2, flush: 4, ..Mix::default() };
    s.boots[0] = boot(Ending::PowerCut, 200, None);
    for _ in 0..10 {
        let (change, most) = (1 + r.below(8), one_of(r, &[12, 40]));
        let cut = Moment::OperationAfterChange(change, r.below(most));
        s.boots.push(boot(Ending::PowerCut, 300, Some(cut)));
    }
    s.cache = Some(plan);
}

/// Much happens while the pool commits.
fn slow_commits(s: &mut Settings) {
    for disk in &mut s.devices {
        disk.flush_latency = Latency::new(Duration::from_millis(4), Duration::from_millis(40));
    }
}

/// All that is read is kept.
fn keep_all(plan: &mut CachePlan) {
    plan.settings.promote = Promote::First;
    plan.settings.promote_blocks = 64;
    plan.settings.sequential_cutoff = 0;
}
