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

/// Half of what a device can do is asked for by clients, and a scrub goes on.
#[test]
fn beside_a_scrub_clients_are_little_slower_and_it_moves_on() {
    for (what, name, bytes) in beside::DEVICES {
        let seconds = if what == Emulate::Hdd { 200 } else { 1 };
        let seen = |queueing, clients, scrubs| {
            let bench = Bench::new(what, bytes, queueing, clients, scrubs);
            bench.run(base::Duration::from_secs(seconds))
        };
        let idle = seen(Queueing::Scheduled, Clients::None, true).speed();
        let most = seen(Queueing::Scheduled, Clients::Closed, false).rate();
        let half = Clients::Open(most / 2.0);
        let times = |queueing| {
            let (alone, both) = (seen(queueing, half, false), seen(queueing, half, true));
            let slower = both.per_mille(990).as_secs_f64() / alone.per_mille(990).as_secs_f64();
            (slower, idle / both.speed())
        };
        let (slower, longer) = times(Queueing::Scheduled);
        assert!(slower < 1.65 && longer < 6.5, "{name}: P99 {slower} times, {longer} as long");
        assert!(times(Queueing::None).0 > 3.0 * slower, "{name}: the device alone does as well");
        // It has its share where clients leave no gap, and no more.
        let both = seen(Queueing::Scheduled, Clients::Closed, true);
        assert!(
            both.rate() > 0.8 * most && both.speed() > idle / 100.0,
            "{name}: {}",
            both.speed()
        );
    }
}
