//! Aims at snapshots: what one has is freed by nothing but its deletion, and then all of it is.

use base::{Duration, Prng};

use super::small::{boot, buckets, quick_and_wide};
use crate::settings::*;
use crate::swarm::one_of;

/// Snapshots of a few volumes are taken and deleted all the time, while clients write over what
/// they have, in all modes, and devices, caches and modes change. Power fails at any moment, and
/// soon after such a change. In half of the runs little happens beside it, so that a commit is
/// short.
pub(super) fn snapshots(r: &mut Prng, s: &mut Settings, mut plan: CachePlan) {
    let count = r.range(40, 80);
    buckets(&mut plan, count);
    plan.settings.max_lag = Duration::from_millis(one_of(r, &[4, 50, 500, 30_000]));
    plan.settings.journal_interval = Duration::from_millis(one_of(r, &[1, 20, 1000]));
    (plan.detach, plan.lost) = (one_of(r, &[0, 3]), one_of(r, &[0, 4]));
    quick_and_wide(s);
    s.pool.commit_interval = Duration::from_millis(one_of(r, &[2, 20, 200, 1000]));
    s.changes.snapshots = one_of(r, &[2, 6, 15]);
    s.changes.kept_snapshots = one_of(r, &[3, 10, 20]);
    if r.one_in(2) {
        s.changes.first_modes = r.one_in(2);
        (s.changes.mode, s.changes.cache) = (one_of(r, &[0, 20, 80]), one_of(r, &[0, 40, 120]));
        s.changes.scrubs = one_of(r, &[0, 20, 80]);
        s.changes.moves = one_of(r, &[0, 8, 30]);
        s.admin = one_of(r, &[0, 20, 60]);
        s.faults.full = r.one_in(6);
        s.failures.lost_nodes = one_of(r, &[0, 0, 0, 2]);
    }
    s.names = r.range(1, 4) as usize;
    s.full_size = r.one_in(2);
    s.volume_bytes = one_of(r, &[64 << 10, 256 << 10, 1 << 20, 2 << 20]);
    (s.direct, s.nbd) = one_of(r, &[(1, 0), (1, 0), (0, 1), (1, 1)]);
    s.depth = one_of(r, &[1, 4, 16]);
    s.fua = 24;
    s.most_blocks = one_of(r, &[1, 4, 16]);
    s.hot = one_of(r, &[0, 4, 14]);
    s.mix = Mix {
        write: 12,
        sectors: one_of(r, &[0, 2, 6]),
        large: one_of(r, &[0, 0, 1]),
        read: 4,
        flush: one_of(r, &[0, 1, 3]),
        discard: one_of(r, &[0, 1, 3]),
        zeroes: one_of(r, &[0, 1]),
        extents: one_of(r, &[0, 1]),
        outside: 0,
    };
    s.boots[0] = boot(Ending::Close, 150, None);
    for _ in 0..r.range(3, 7) {
        let ending = one_of(r, &[Ending::Close, Ending::Kill, Ending::PowerCut, Ending::PowerCut]);
        let cut = match r.below(3) {
            0 => None,
            1 => Some(Moment::Operation(r.below(3000))),
            _ => Some(Moment::OperationAfterChange(1 + r.below(20), r.below(60))),
        };
        let cut = cut.filter(|_| ending != Ending::Close);
        s.boots.push(BootPlan { verify: !r.one_in(4), ..boot(ending, 200, cut) });
    }
    s.cache = if r.one_in(2) { None } else { Some(plan) };
}
