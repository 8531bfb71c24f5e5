//! The models do what is known of the policies.

use super::*;

fn counts(kind: Kind, jobs: usize, policy: usize) -> Counts {
    let times = match kind {
        Kind::Disk => (Duration::from_secs(10), Duration::from_secs(40)),
        _ => (Duration::from_secs(1), Duration::from_secs(1)),
    };
    measured(kind, jobs, policy, times)
}

#[test]
fn batch_wake_breaks_reads_apart_and_wakes_in_vain() {
    let (alone, many) = (counts(Kind::Disk, 1, 1), counts(Kind::Disk, 72, 1));
    assert!(many.jumps * 10 > alone.jumps * 11 * many.reads / alone.reads, "{alone:?} {many:?}");
    assert!(many.reads < alone.reads, "{alone:?} {many:?}");
    assert!(many.in_vain * 4 > many.tag_wakes, "{many:?}");
    // With those at the end of reads, more tasks are woken than tags are granted.
    let flash = counts(Kind::Nvme, 72, 1);
    assert!(flash.tag_wakes + flash.end_wakes > flash.grants * 9 / 10, "{flash:?}");
}

#[test]
fn stash_and_wake_keeps_reads_together() {
    let (alone, many) = (counts(Kind::Disk, 1, 2), counts(Kind::Disk, 72, 2));
    assert!(many.reads * 100 >= alone.reads * 97, "{alone:?} {many:?}");
    let batch = counts(Kind::Disk, 72, 1);
    assert!(many.tag_wakes * 2 < batch.tag_wakes, "{many:?} {batch:?}");
    assert!(many.in_vain * 20 < many.tag_wakes.max(20), "{many:?}");
}

#[test]
fn with_our_scheduler_no_task_waits_for_a_tag() {
    for kind in Kind::ALL {
        let all: Vec<Counts> = [1, 72].map(|jobs| counts(kind, jobs, 3)).into();
        assert!(all.iter().all(|c| c.tag_wakes == 0 && c.in_vain == 0), "{all:?}");
        assert!(all[1].reads * 100 >= all[0].reads * 98, "{kind:?}: {all:?}");
        if kind == Kind::Disk {
            assert!(all[1].jumps * 100 <= all[0].jumps * 103, "{all:?}");
        }
    }
}

#[test]
fn no_policy_loses_a_task() {
    for policy in 0..POLICIES.len() {
        for kind in Kind::ALL {
            let c = counts(kind, 48, policy);
            let of_link = if kind == Kind::Ssd { 1077 } else { 2985 };
            let all = if kind == Kind::Disk { 40 * 40 } else { of_link * 95 / 100 };
            assert!(c.reads >= all, "{kind:?} {policy}: {c:?}");
        }
    }
}
