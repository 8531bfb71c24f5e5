//! The bounds hold whatever comes; a plant is brought to its target.

use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

fn at(ms: u64) -> Instant {
    Instant(ms * 1_000_000)
}

proptest! {
    #[test]
    fn bounds_are_obeyed(
        (min, max, idle_rate) in (any::<u64>(), any::<u64>(), any::<u64>()),
        steps in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>()),
            0..100),
    ) {
        let mut c = Controller::new(RateSettings { min, max, idle_rate });
        let max = max.max(1);
        for (now, dirty, target, idle) in steps {
            let rate = c.update(Instant(now), dirty, target, idle);
            prop_assert!(rate >= min.clamp(1, max) && rate <= max);
            let s = c.state();
            prop_assert!(s.integral.is_finite() && s.integral >= 0.0 && s.integral <= max as f64);
        }
    }

    /// Whatever was set last, from that moment on.
    #[test]
    fn bounds_that_change_are_obeyed_at_once(
        steps in prop::collection::vec(
            (any::<u64>(), any::<u64>(), any::<bool>(), 1..1u64 << 40, 1..1u64 << 40), 1..100),
    ) {
        let mut c = Controller::new(RateSettings::default());
        for (i, (dirty, target, idle, min, max)) in steps.into_iter().enumerate() {
            if i % 3 == 0 {
                c.set(RateSettings { min, max, idle_rate: max });
            }
            let RateSettings { min, max, .. } = c.settings;
            prop_assert!((min..=max).contains(&c.state().rate));
            let rate = c.update(at(i as u64 * 40), dirty, target, idle);
            prop_assert!((min..=max).contains(&rate) && c.state().integral <= max as f64);
        }
    }

    /// In any stretch, no more than rate * (time + burst) and one request goes through.
    #[test]
    fn a_pacer_keeps_the_rate(
        rate in 1..1u64 << 40, gaps in prop::collection::vec((0..200u64, 1..1u64 << 30), 1..100),
    ) {
        let mut p = BytePacer::new();
        let (mut now, mut sent): (Instant, Vec<(f64, f64)>) = (at(1000), Vec::new());
        for (gap, bytes) in gaps {
            now = now.after(Duration::from_millis(gap));
            now = now.after(p.due(now, rate));
            p.charge(bytes, rate);
            sent.push((now.0 as f64 / 1e9, bytes as f64));
        }
        for i in 0..sent.len() {
            let mut sum = 0.0;
            for (t, bytes) in &sent[i..] {
                // The last one of a stretch is the one request over.
                let rate = rate as f64;
                let allowed = rate * (t - sent[i].0 + BURST.as_secs_f64()) * 1.000_001
                    + 1024.0
                    + rate * 1e-6;
                prop_assert!(sum <= allowed, "{sum} > {allowed}");
                sum += bytes;
            }
        }
    }
}

#[test]
fn a_rate_that_falls_is_not_asked_for_what_went_before() {
    let mut p = BytePacer::new();
    // More than it may go ahead at once, at 100 MiB a second.
    p.charge(100 * MIB, 100 * MIB);
    let before = p.due(at(0), 100 * MIB);
    let wait = p.due(at(0), MIB / 16);
    assert!(wait <= before + Duration::from_millis(11), "{wait:?} after {before:?}");
    // At the lower rate the next one waits for the last.
    p.due(at(0).after(wait), MIB / 16);
    p.charge(MIB, MIB / 16);
    let next = p.due(at(0).after(wait), MIB / 16);
    assert!(next >= Duration::from_millis(15_900), "{next:?}");
    // Where the rate rises, it is the rate for all of them.
    let raised = p.due(at(0).after(wait), 100 * MIB);
    assert!(raised <= Duration::from_millis(11), "{raised:?}");
}

#[test]
fn does_not_wind_up() {
    let mut c = Controller::new(RateSettings { min: MIB, max: 100 * MIB, idle_rate: MIB });
    let target = 1000 * MIB;
    let mut ms = 0;
    // A day far above the target: the pool takes less than comes.
    for _ in 0..86_400 {
        ms += 1000;
        assert_eq!(c.update(at(ms), 100_000 * MIB, target, false), 100 * MIB);
    }
    // Then below it: back at the minimum in a few updates.
    let updates = (0..100)
        .take_while(|_| {
            ms += 1000;
            c.update(at(ms), target / 2, target, false) > MIB
        })
        .count();
    assert!(updates <= 3, "{updates}");
    // And a day below: it rises at once when there is much.
    for _ in 0..86_400 {
        ms += 1000;
        assert_eq!(c.update(at(ms), 0, target, false), MIB);
    }
    ms += 1000;
    assert!(c.update(at(ms), 2 * target, target, false) >= 99 * MIB);
}

#[test]
fn idle_does_not_leap() {
    let settings = RateSettings { min: 4 * MIB, max: 1 << 30, idle_rate: 64 * MIB };
    let mut c = Controller::new(settings);
    let (dirty, target) = (496 * MIB, 36_700 * MIB);
    let mut before = c.update(at(0), dirty, target, false);
    assert_eq!(before, 4 * MIB);
    for i in 1..600 {
        let rate = c.update(at(i * 100), dirty, target, true);
        assert!(rate <= before + before / 5, "{before} to {rate}");
        before = rate;
    }
    assert_eq!(before, 64 * MIB);
    assert_eq!(c.update(at(60_100), dirty, target, false), 4 * MIB, "clients are back");
}

#[test]
fn a_new_bound_is_reached_without_waiting_for_the_next_period() {
    let mut c = Controller::new(RateSettings { min: MIB, max: 2 * MIB, idle_rate: MIB });
    assert_eq!(c.update(at(0), 1000 * MIB, 0, false), 2 * MIB);
    assert_eq!(c.update(at(1), 1000 * MIB, 0, false), 2 * MIB);
    c.set(RateSettings { min: MIB, max: 90 * MIB, idle_rate: MIB });
    assert_eq!(c.update(at(1), 1000 * MIB, 0, false), 90 * MIB);
    c.set(RateSettings { min: MIB, max: 3 * MIB, idle_rate: MIB });
    assert_eq!(c.state().rate, 3 * MIB);
}

#[test]
fn the_clock_may_stand_still() {
    let mut c = Controller::new(RateSettings::default());
    for i in 0..10_000 {
        c.update(at(5), 2000 * MIB, 1000 * MIB, i % 2 == 0);
    }
    assert!(
        c.state().integral < 2.0 * MIB as f64,
        "time did not pass, so nothing adds up: {}",
        c.state().integral
    );
}

/// Clients write `inflow` bytes a second, write-back takes what the controller says or `pool` can.
fn plant(inflow: impl Fn(u64) -> u64, pool: u64, seconds: u64, first: u64) -> Vec<f64> {
    let mut c = Controller::new(RateSettings { min: MIB, max: 1 << 30, idle_rate: MIB });
    let target = 1000 * MIB;
    let mut dirty = first as f64;
    let mut seen = Vec::new();
    for tick in 0..seconds * 10 {
        let rate = c.update(at(tick * 100), dirty as u64, target, false).min(pool);
        dirty = (dirty + (inflow(tick / 10) as f64 - rate as f64) / 10.0).max(0.0);
        seen.push(dirty / target as f64);
    }
    seen
}

#[test]
fn converges_without_oscillation() {
    for (inflow, first) in [
        (20 * MIB, 0),
        (20 * MIB, 2000 * MIB),
        (5 * MIB, 1000 * MIB),
        (60 * MIB, 0),
        (60 * MIB, 1500 * MIB),
    ] {
        let seen = plant(|_| inflow, 1 << 30, 1200, first);
        let settled = &seen[seen.len() / 2..];
        assert!(
            settled.iter().all(|d| (0.98..=1.02).contains(d)),
            "{inflow}: {:?}",
            settled.last()
        );
        // After it has crossed the target once it stays within a tenth of it, but for the load's
        // own step.
        let crossed = seen.iter().skip_while(|d| (**d > 1.0) == (first > 1000 * MIB)).count();
        let after = &seen[seen.len() - crossed..];
        let low = after.iter().copied().fold(f64::MAX, f64::min);
        assert!(low > 0.9, "{inflow}, from {first}: fell to {low}");
    }
}

#[test]
fn recovers_from_a_pool_that_was_too_slow() {
    // 100 MiB/s for two minutes into a pool of 40, then 20.
    let seen = plant(|s| if s < 120 { 100 * MIB } else { 20 * MIB }, 40 * MIB, 2400, 0);
    let settled = &seen[seen.len() * 3 / 4..];
    assert!(settled.iter().all(|d| (0.95..=1.05).contains(d)), "{:?}", settled.last());
}
