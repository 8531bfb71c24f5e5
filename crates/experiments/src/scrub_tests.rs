//! The models do what was published, and ours what it is for.

use super::*;

/// MB/s.
fn rate(kind: Kind, policy: usize, cursor: bool) -> f64 {
    let c = measured(kind, policy, cursor, 1 << 30);
    c.bytes as f64 / c.took.as_secs_f64() / 1e6
}

#[test]
fn the_old_policies_are_as_fast_as_they_were() {
    for (policy, measured) in [(0, 1330.0), (1, 1996.0)] {
        let modelled = rate(Kind::Nvme, policy, false);
        assert!((modelled / measured - 1.0).abs() < 0.1, "{modelled} MB/s, and {measured} were");
    }
    let without = rate(Kind::Nvme, 1, true);
    assert!((without / 2700.0 - 1.0).abs() < 0.15, "{without} MB/s, and 2700 were");
}

#[test]
fn ours_has_most_of_each_device_and_needs_its_cursor() {
    let (with, without) = (rate(Kind::Nvme, 2, true), rate(Kind::Nvme, 2, false));
    assert!(with > 0.95 * 3130.0, "{with} MB/s of 3130");
    assert!(without < 0.75 * with, "{without} MB/s without a cursor, {with} with it");
    // A disk goes on to read while nothing is asked for.
    let disk = [0, 1, 2].map(|policy| rate(Kind::Disk, policy, policy == 2));
    assert!(disk.iter().all(|rate| *rate > 0.98 * disk[2]), "{disk:?}");
}

#[test]
fn all_of_it_is_read_once() {
    for policy in 0..POLICIES.len() {
        let c = measured(Kind::Nvme, policy, true, (1 << 28) + 4096);
        assert_eq!(c.bytes, (1 << 28) + 4096);
        let last = c.progress.last().expect("points");
        assert!((last.1 - c.bytes as f64 / (1u64 << 30) as f64).abs() < 1e-9, "{last:?}");
        assert!(c.reads >= c.bytes.div_ceil(1 << 20), "{c:?}");
    }
}
