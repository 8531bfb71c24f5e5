//! The last hour of a server: totals every five seconds, in a ring.
//!
//! Fault model: the engine may be too busy to answer, and counters begin anew where a cache is
//! replaced. Then a sample, or one of its numbers, is absent. The engine is asked for the status
//! that all share, once in each [`EVERY`], however many look at the history: that is what one
//! stream of events costs. The ring takes 60 KiB.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model::Status;
use model::history::{self, Figure};
use model::io::IoOfKind;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::engine::Engine;
use crate::snapshot::Snapshot;

/// Between two samples.
const EVERY: Duration = Duration::from_secs(5);
/// Samples that are kept: those of an hour.
const KEPT: usize = 720;

/// A counter of a status.
type Counter = fn(&Status) -> Option<u64>;

/// A number of a sample, from a status and the one before.
enum SampleSource {
    /// A number of the status itself.
    Now(fn(&Status) -> Option<f64>),
    /// The growth of a counter, a second.
    Rate(Counter),
    /// The share that the first of two counters has of the growth of both.
    Share(Counter, Counter),
    /// The microseconds in which this share of the new requests was done. It is read off the
    /// histogram, and so between two of its bounds only about right.
    Quantile(fn(&Status) -> &IoOfKind, f64),
}

const SERIES: &[(&str, SampleSource)] = &[
    ("read_requests", SampleSource::Rate(|s| Some(s.requests.read.count))),
    ("write_requests", SampleSource::Rate(|s| Some(s.requests.write.count))),
    ("flush_requests", SampleSource::Rate(|s| Some(s.requests.flush.count))),
    ("read_bytes", SampleSource::Rate(|s| Some(s.requests.read.bytes))),
    ("write_bytes", SampleSource::Rate(|s| Some(s.requests.write.bytes))),
    ("read_p50_us", SampleSource::Quantile(|s| &s.requests.read, 0.5)),
    ("read_p99_us", SampleSource::Quantile(|s| &s.requests.read, 0.99)),
    ("write_p50_us", SampleSource::Quantile(|s| &s.requests.write, 0.5)),
    ("write_p99_us", SampleSource::Quantile(|s| &s.requests.write, 0.99)),
    ("flush_p99_us", SampleSource::Quantile(|s| &s.requests.flush, 0.99)),
    ("in_flight", SampleSource::Now(|s| Some(s.server.requests_in_flight as f64))),
    ("dirty_bytes", SampleSource::Now(|s| Some(s.cache.as_ref()?.dirty_bytes as f64))),
    ("lag_seconds", SampleSource::Now(|s| Some(s.cache.as_ref()?.writeback.lag_seconds))),
    ("writeback_rate_bytes", SampleSource::Now(|s| Some(s.cache.as_ref()?.writeback.rate as f64))),
    ("carried_bytes", SampleSource::Rate(|s| Some(s.cache.as_ref()?.writeback.carried_bytes))),
    (
        "hit_share",
        SampleSource::Share(|s| Some(s.cache.as_ref()?.hits), |s| Some(s.cache.as_ref()?.misses)),
    ),
    ("pool_used_bytes", SampleSource::Now(|s| Some(s.pool.used_bytes as f64))),
    ("scrub_bytes", SampleSource::Now(|s| Some(s.pool.scrub.rate as f64))),
    ("moves_bytes", SampleSource::Now(|s| Some(s.pool.moves.rate as f64))),
];

struct Sample {
    at: Instant,
    /// In the order of [`SERIES`]; not a number where there is none.
    values: [f32; SERIES.len()],
}

#[derive(Default)]
struct Ring {
    samples: VecDeque<Sample>,
    /// The number of the next sample.
    next: u64,
}

/// The last hour.
#[derive(Default)]
pub struct History(Mutex<Ring>);

impl History {
    /// Takes samples until it is dropped.
    pub async fn follow(self: Arc<Self>, engine: Arc<dyn Engine>, snapshot: Arc<Snapshot>) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut before: Option<(Instant, Arc<Status>)> = None;
        loop {
            ticks.tick().await;
            let Ok(status) = snapshot.get(&engine).await else { continue };
            let at = Instant::now();
            if let Some((earlier, last)) = &before {
                let seconds = at.duration_since(*earlier).as_secs_f64();
                self.add(Sample { at, values: sample(last, &status, seconds) });
            }
            before = Some((at, status));
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Ring) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, sample: Sample) {
        self.with(|ring| {
            if ring.samples.len() == KEPT {
                ring.samples.pop_front();
            }
            ring.samples.push_back(sample);
            ring.next += 1;
        });
    }

    /// Samples from this number on, the oldest first: a list for each series, and how old each
    /// sample is.
    pub fn shown(&self, from: u64) -> history::History {
        self.with(|ring| {
            let oldest = ring.next - ring.samples.len() as u64;
            let skipped = from.saturating_sub(oldest).min(ring.samples.len() as u64) as usize;
            let shown = || ring.samples.iter().skip(skipped);
            let series: BTreeMap<String, Vec<Option<Figure>>> = SERIES
                .iter()
                .enumerate()
                .map(|(at, (name, _))| {
                    let values = shown().map(|s| rounded(f64::from(s.values[at]))).collect();
                    ((*name).to_owned(), values)
                })
                .collect();
            history::History {
                every_seconds: EVERY.as_secs(),
                next: ring.next,
                seconds_ago: shown()
                    .filter_map(|s| rounded(s.at.elapsed().as_secs_f64()))
                    .collect(),
                series,
            }
        })
    }
}

/// Four digits of it, which keeps the answer short; none where it is not a number.
fn rounded(value: f64) -> Option<Figure> {
    if !value.is_finite() {
        return None;
    }
    let unit = 10f64.powi(value.abs().max(1e-3).log10().floor() as i32 - 3);
    let value = (value / unit).round() * unit;
    Some(Figure((value * 1e6).round() / 1e6))
}

fn sample(before: &Status, now: &Status, seconds: f64) -> [f32; SERIES.len()] {
    // A counter that has shrunk is another one.
    let growth = |of: Counter| Some(of(now)?.checked_sub(of(before)?)? as f64);
    std::array::from_fn(|place| {
        let value = match SERIES[place].1 {
            SampleSource::Now(of) => of(now),
            SampleSource::Rate(of) => growth(of).map(|grown| grown / seconds.max(1e-3)),
            SampleSource::Share(part, rest) => {
                growth(part).zip(growth(rest)).and_then(|(a, b)| (a + b > 0.0).then(|| a / (a + b)))
            }
            SampleSource::Quantile(of, share) => {
                quantile(of(before), of(now), &now.latency_bounds_us, share)
            }
        };
        value.map_or(f32::NAN, |value| value as f32)
    })
}

/// The value that this share of the growth of a histogram does not exceed: between two bounds it
/// is estimated by the logarithm.
fn quantile(before: &IoOfKind, now: &IoOfKind, bounds: &[u64], share: f64) -> Option<f64> {
    let total = now.count.checked_sub(before.count).filter(|n| *n > 0)?;
    let wanted = share * total as f64;
    let (mut below, mut low) = (0.0, 1.0);
    for (index, bound) in bounds.iter().enumerate() {
        let high = *bound as f64;
        let earlier = before.latency_at_most.get(index).copied().unwrap_or(0);
        let at_most = now.latency_at_most.get(index)?.checked_sub(earlier)? as f64;
        if at_most >= wanted {
            let part = if at_most > below { (wanted - below) / (at_most - below) } else { 1.0 };
            return Some(low * (high / low).powf(part));
        }
        (below, low) = (at_most, high);
    }
    Some(low)
}

#[cfg(test)]
mod tests {
    use model::cache::CacheStatus;
    use model::io::RequestsByKind;

    use super::*;

    fn status(count: u64, at_most: [u64; 3], hits: u64) -> Status {
        let read = IoOfKind {
            count,
            bytes: count * 4096,
            latency_at_most: at_most.to_vec(),
            ..Default::default()
        };
        Status {
            latency_bounds_us: vec![10, 100, 1000],
            requests: RequestsByKind { read, ..Default::default() },
            cache: Some(CacheStatus { hits, misses: 10, ..Default::default() }),
            ..Default::default()
        }
    }

    fn value(values: &[f32], name: &str) -> f32 {
        values[SERIES.iter().position(|(n, _)| *n == name).unwrap()]
    }

    #[test]
    fn samples_are_of_what_is_new() {
        let (before, now) = (status(100, [100, 100, 100], 4), status(200, [100, 150, 200], 9));
        let values = sample(&before, &now, 5.0);
        assert_eq!(value(&values, "read_requests"), 20.0);
        assert_eq!(value(&values, "read_bytes"), 20.0 * 4096.0);
        assert!((value(&values, "read_p50_us") - 100.0).abs() < 0.1);
        assert!(value(&values, "read_p99_us") > 900.0);
        assert_eq!(value(&values, "hit_share"), 1.0);
        assert!(value(&values, "write_p50_us").is_nan(), "nothing was written");
        // The other way round counters have shrunk.
        let values = sample(&now, &before, 5.0);
        for name in ["read_requests", "read_p50_us", "hit_share"] {
            assert!(value(&values, name).is_nan(), "{name}");
        }
        let values = sample(&now, &Status::default(), 5.0);
        for name in ["hit_share", "dirty_bytes", "lag_seconds", "carried_bytes"] {
            assert!(value(&values, name).is_nan(), "{name}: there is no cache");
        }
    }

    #[test]
    fn an_hour_is_kept_and_the_new_is_shown() {
        let history = History::default();
        assert_eq!(history.shown(7).next, 0);
        let values = |n: usize| std::array::from_fn(|at| (n + at) as f32);
        for n in 0..KEPT + 10 {
            history.add(Sample { at: Instant::now(), values: values(n) });
        }
        let shown = history.shown(0);
        let reads = &shown.series["read_requests"];
        assert_eq!((reads.len(), reads[0]), (KEPT, Some(Figure(10.0))));
        assert_eq!(shown.seconds_ago.len(), KEPT);
        let last = history.shown(shown.next - 1);
        assert_eq!(last.series["read_requests"], [Some(Figure((KEPT + 9) as f64))]);
        assert_eq!(history.shown(shown.next).seconds_ago, []);
        // A client that has seen a server before this one.
        assert_eq!(history.shown(u64::MAX).seconds_ago, []);
    }

    #[test]
    fn numbers_have_four_digits() {
        for (value, text) in [
            (0.0, "0"),
            (1234567.0, "1235000"),
            (0.123456, "0.1235"),
            (12.3456, "12.35"),
            (4096.4, "4096"),
            (f64::NAN, "null"),
        ] {
            let shown = serde_json::to_string(&rounded(value)).unwrap();
            let same = shown == text || shown.parse::<f64>().ok() == text.parse::<f64>().ok();
            assert!(same, "{value}: {shown}");
        }
    }
}
