use super::*;

const CACHE: u64 = 100_000;

/// A pool, a cache of [`CACHE`] blocks before it and writers that would write `demand` blocks a second, all over a volume or, with `set`, again and again
/// the same blocks. Returns how many they wrote in each second.
fn run(speed: impl Fn(u64) -> f64, demand: f64, set: Option<u64>, seconds: u64) -> Vec<f64> {
    run_in_time(speed, demand, set, seconds, 3600).0
}

/// The same with so many seconds of age allowed. Returns also how old the pool's image got in the second half.
fn run_in_time(
    speed: impl Fn(u64) -> f64,
    demand: f64,
    set: Option<u64>,
    seconds: u64,
    max_lag: u64,
) -> (Vec<f64>, f64) {
    const STEP: u64 = 10;
    let (low, high) = Load::band(CACHE, 40, 70);
    let mut meter = Meter::default();
    // Blocks taken since the last cut; what of the room only a publication brings back.
    let (mut open, mut taken, mut cut, mut cut_taken, mut carried, mut publishing) = (0.0, 0.0, 0.0, 0.0, 0.0, 0u64);
    let (mut published, mut cut_at, mut oldest) = (0, 0, 0);
    let mut written = vec![0.0; seconds as usize];
    for ms in (0..seconds * 1000).step_by(STEP as usize) {
        let now = Instant(ms * 1_000_000);
        let dt = STEP as f64 / 1000.0;
        if cut > 0.0 {
            let step = (speed(ms / 1000) * dt).min(cut - carried);
            carried += step;
            meter.carried(step as u64, Duration::ZERO);
            if carried >= cut {
                if publishing == 0 {
                    meter.carried_all(now);
                }
                publishing += STEP;
            }
            if publishing > 300 {
                meter.published(now);
                oldest = if ms > seconds * 500 { oldest.max(ms - published) } else { 0 };
                published = cut_at;
                (cut, cut_taken, carried, publishing) = (0.0, 0.0, 0.0, 0);
                meter.end(now);
            }
        } else if open > bounded(&meter, low, high, max_lag).low as f64 || taken > CACHE as f64 / 2.0 {
            cut_at = ms;
            (cut, cut_taken, open, taken) = (open, taken, 0.0, 0.0);
            meter.begin(now, cut as u64, CACHE);
        }
        let room = CACHE as f64 - taken - cut_taken;
        let load = Load {
            open: open as u64,
            cut: cut as u64,
            carried: meter.done(cut as u64, carried as u64, now),
            room: room as u64,
            blocks: CACHE,
            low,
            high,
        };
        let load = meter.known().map_or(load, |s| load.in_time(s, Duration::from_secs(max_lag)));
        let limit = meter.speed(now).and_then(|s| load.writer_rate(s)).unwrap_or(f64::INFINITY);
        let new = (demand.min(limit) * dt).min(room);
        taken += new;
        open = (open + new).min(set.map_or(f64::INFINITY, |s| s as f64));
        written[(ms / 1000) as usize] += new;
    }
    (written, oldest as f64 / 1000.0)
}

fn bounded(meter: &Meter, low: u64, high: u64, max_lag: u64) -> Load {
    let load = Load { low, high, ..Load::default() };
    meter.known().map_or(load, |s| load.in_time(s, Duration::from_secs(max_lag)))
}

/// Lowest and highest of the seconds after the first burst, over their mean.
fn spread(written: &[f64]) -> (f64, f64) {
    let late = &written[written.len() / 2..];
    let mean = late.iter().sum::<f64>() / late.len() as f64;
    let by = |f: fn(f64, f64) -> f64| late.iter().copied().reduce(f).unwrap_or(0.0) / mean;
    (by(f64::min), by(f64::max))
}

#[test]
fn writers_settle_at_the_speed_of_write_back() {
    for speed in [500.0, 3000.0, 10_000.0] {
        let written = run(|_| speed, 30_000.0, None, 400);
        let (low, high) = spread(&written);
        assert!(low > 0.7 && high < 1.4, "{speed}: {low} {high} {:?}", &written[200..]);
        let mean = written[200..].iter().sum::<f64>() / 200.0;
        assert!(mean > 0.8 * speed && mean < 1.1 * speed, "{speed}: {mean}");
    }
}

#[test]
fn the_image_of_the_pool_stays_as_young_as_it_is_to_be() {
    // Without the bound a cut takes 28 s at this speed, and the image gets twice as old.
    let (written, oldest) = run_in_time(|_| 1000.0, 30_000.0, None, 600, 30);
    assert!((15.0..30.0).contains(&oldest), "{oldest}");
    let (low, high) = spread(&written);
    assert!(low > 0.6 && high < 1.5, "{low} {high}");
    let mean = written[300..].iter().sum::<f64>() / 300.0;
    assert!(mean > 800.0, "{mean}");
    // Before the first round nobody knows the speed, and more is dirty than can be carried in time: that slows writers, and stops nobody.
    assert!(written.iter().all(|&w| w > 400.0), "{:?}", &written[..60]);
    // One that cannot be had stops nobody.
    let (written, _) = run_in_time(|_| 1000.0, 30_000.0, None, 600, 0);
    assert!(written[300..].iter().sum::<f64>() / 300.0 > 700.0);
}

#[test]
fn writers_slower_than_write_back_are_left_alone() {
    let written = run(|_| 10_000.0, 5000.0, None, 100);
    assert!(written.iter().all(|w| (w - 5000.0).abs() < 100.0), "{written:?}");
}

#[test]
fn a_small_set_written_again_and_again_has_no_pause() {
    let written = run(|_| 3000.0, 30_000.0, Some(20_000), 200);
    let (low, _) = spread(&written);
    assert!(low > 0.3, "{low} {:?}", &written[100..]);
}

#[test]
fn a_pool_that_gets_slower_slows_writers_without_a_stop() {
    let written = run(|second| if second < 100 { 8000.0 } else { 1000.0 }, 30_000.0, None, 400);
    assert!(written[110..].iter().all(|&w| w > 100.0), "{:?}", &written[95..130]);
    let (low, high) = spread(&written);
    assert!(low > 0.7 && high < 1.4, "{low} {high}");
    let (written, _) = run_in_time(|second| if second < 100 { 8000.0 } else { 1000.0 }, 30_000.0, None, 400, 30);
    assert!(written[110..].iter().all(|&w| w > 400.0), "{:?}", &written[95..130]);
}

#[test]
fn pacing_is_not_taken_for_the_speed_of_the_pool() {
    let mut meter = Meter::default();
    meter.begin(Instant(0), 10_000, CACHE);
    meter.carried(10, Duration::from_millis(900));
    assert_eq!(meter.speed(Instant(1_000_000_000)), None);
    meter.carried(5000, Duration::ZERO);
    assert_eq!(meter.speed(Instant(2_000_000_000)), Some(5000.0));
}

#[test]
fn a_small_round_says_nothing_of_the_speed() {
    let mut meter = Meter::default();
    meter.begin(Instant(0), 100, CACHE);
    meter.carried(100, Duration::ZERO);
    meter.end(Instant(1_000_000_000));
    assert_eq!(meter.known(), None);
}

#[test]
fn an_empty_cache_limits_nobody() {
    let (low, high) = Load::band(CACHE, 40, 70);
    let load = Load { room: CACHE, blocks: CACHE, low, high, ..Load::default() };
    assert_eq!(load.writer_rate(100.0), None);
}
