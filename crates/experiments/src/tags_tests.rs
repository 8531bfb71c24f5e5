//! The models do what is known of the policies.

use super::lab::Piece;
use super::*;

fn counts(kind: Kind, jobs: usize, policy: usize) -> TagCounts {
    let (warm, counted) = match kind {
        Kind::Disk => (Duration::from_secs(10), Duration::from_secs(40)),
        _ => (Duration::from_secs(1), Duration::from_secs(1)),
    };
    measured(kind, jobs, policy, warm, counted)
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
        let all: Vec<TagCounts> = [1, 72].map(|jobs| counts(kind, jobs, 3)).into();
        assert!(all.iter().all(|c| c.tag_wakes == 0 && c.in_vain == 0), "{all:?}");
        assert!(all[1].reads * 100 >= all[0].reads * 98, "{kind:?}: {all:?}");
        if kind == Kind::Disk {
            assert!(all[1].jumps * 100 <= all[0].jumps * 103, "{all:?}");
        }
    }
}

#[test]
fn on_flash_tags_make_no_read_slower() {
    let second = Duration::from_secs(1);
    for kind in [Kind::Ssd, Kind::Nvme] {
        let [tags, none] =
            [kind.tags(), FOR_ALL].map(|tags| latency(kind, 72, tags, second, second));
        for (with, without) in tags.into_iter().zip(none) {
            assert!(
                !without.is_zero() && with <= without * 101 / 100,
                "{kind:?} {with:?} {without:?}"
            );
        }
    }
}

/// Processor time of the scheduler for a piece, with so many tags. All reads of the experiment are
/// under way, and the oldest piece that the device has ends next.
fn processor_time_of_a_piece(tags: usize) -> Duration {
    const PIECES: u64 = 1 << 20;
    let mut ours = ForebayTags::new(Kind::Nvme.device_kind(), tags);
    let (mut asked, mut device) = (0, std::collections::VecDeque::new());
    let mut rng = base::Prng::new(1);
    let began = posix::sys::processor_time();
    for ended in 0..PIECES {
        while asked < ended + FOR_ALL as u64 {
            let offset = rng.below(1 << 20) << 20;
            for nth in 0..4u32 {
                let offset = offset + u64::from(nth) * lab::PIECE;
                ours.ask(Instant(ended), 0, Piece { id: asked, offset, more: 3 - nth });
                asked += 1;
            }
        }
        while let Some(piece) = ours.next(Instant(ended)) {
            device.push_back(piece.id);
        }
        ours.done(Instant(ended), device.pop_front().expect("a piece is under way"));
    }
    (posix::sys::processor_time() - began) / PIECES as u32
}

#[test]
#[ignore = "run by hand: docs/benchmarks.md"]
fn processor_time_with_and_without_tags() {
    let rounds = (0..9).map(|_| [Kind::Nvme.tags(), FOR_ALL].map(processor_time_of_a_piece));
    let (mut with, mut without): (Vec<_>, Vec<_>) = rounds.map(|[a, b]| (a, b)).unzip();
    with.sort_unstable();
    without.sort_unstable();
    println!(
        "a piece takes {:?} with tags and {:?} without: {with:?} {without:?}",
        with[4], without[4]
    );
    assert!(with[4] <= without[4] * 11 / 10);
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
