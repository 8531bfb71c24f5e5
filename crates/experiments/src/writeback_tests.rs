//! The models do what was reported.

use super::*;

fn seen(name: &str, short: bool) -> [WritebackMeasurements; 2] {
    let scale = if short { Scale::Short } else { Scale::Full };
    let all = scenarios(scale);
    both(all.iter().find(|s| s.name == name).expect("a scenario"))
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

#[test]
fn the_old_controller_leaps_on_idle_and_ours_does_not() {
    let [old, ours] = seen("idle", true);
    // 4 MiB/s, then 1 TiB/s from the sixth round on.
    assert_eq!(old.rates[10], 4_194_304.0);
    assert_eq!(old.rates[35], i32::MAX as f64 * 512.0);
    // Clients are back: one sector a second, until it is computed again.
    assert!(old.rates[45..].contains(&512.0), "{:?}", &old.rates[45..]);
    for pair in ours.rates.windows(2) {
        // A tenth more each 100 ms.
        assert!(pair[1] <= 2.7 * pair[0], "{pair:?}");
    }
    assert_eq!(most(&ours.rates), f64::from(64 << 20));
}

#[test]
fn any_trickle_prevents_the_leap() {
    let [old, _] = seen("trickle", true);
    assert_eq!(most(&old.rates), 4_194_304.0);
}

#[test]
fn the_old_thread_stops_writes_while_it_scans() {
    let [old, ours] = seen("start", true);
    let slowest = old.write.max_ns() as f64 / 1e9;
    assert!((5.0..5.5).contains(&slowest), "{slowest}");
    assert!(old.stalled >= 4, "{}", old.stalled);
    assert!(ours.write.max_ns() < 1_000_000, "{}", ours.write.max_ns());
    // With 10 writes a second a pause every 30 s.
    let [old, ours] = seen("light", true);
    assert!(old.stalled >= 8, "{}: {:?}", old.stalled, old.writes);
    assert_eq!(ours.stalled, 0);
}

#[test]
fn what_the_array_does_not_take_slows_our_writers_evenly() {
    let [old, ours] = seen("full", true);
    let total = |s: &WritebackMeasurements| s.writes.iter().sum::<u64>();
    assert!(total(&old) > 100_000 && total(&ours) > 100_000);
    assert!(ours.write.max_ns() <= 110_000_000 * 32, "{}", ours.write.max_ns());
}
