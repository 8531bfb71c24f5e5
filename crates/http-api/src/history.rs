//! The last hour of a server: totals every five seconds, in a ring.
//!
//! Fault model: the engine may be too busy to answer, and counters begin anew where a cache is
//! replaced. Then a sample, or one of its numbers, is absent. The engine is asked for the status
//! that all share, once in each [`EVERY`], however many look at the history: that is what one
//! stream of events costs. The ring takes 60 KiB.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::engine::Engine;
use crate::snapshot::Snapshot;

/// Between two samples.
const EVERY: Duration = Duration::from_secs(5);
/// Samples that are kept: those of an hour.
const KEPT: usize = 720;

/// Where in a status a number is.
enum Of {
    /// It is there.
    Now(&'static str),
    /// A counter is there: its growth, a second.
    Rate(&'static str),
    /// Two counters are there: what share of the growth of both the first has.
    Share(&'static str, &'static str),
    /// Requests are there: the microseconds in which this share of the new ones was done. It is
    /// read off the histogram, and so between two of its bounds only about right.
    Quantile(&'static str, f64),
}

const SERIES: &[(&str, Of)] = &[
    ("read_requests", Of::Rate("/requests/read/count")),
    ("write_requests", Of::Rate("/requests/write/count")),
    ("flush_requests", Of::Rate("/requests/flush/count")),
    ("read_bytes", Of::Rate("/requests/read/bytes")),
    ("write_bytes", Of::Rate("/requests/write/bytes")),
    ("read_p50_us", Of::Quantile("/requests/read", 0.5)),
    ("read_p99_us", Of::Quantile("/requests/read", 0.99)),
    ("write_p50_us", Of::Quantile("/requests/write", 0.5)),
    ("write_p99_us", Of::Quantile("/requests/write", 0.99)),
    ("flush_p99_us", Of::Quantile("/requests/flush", 0.99)),
    ("in_flight", Of::Now("/server/requests_in_flight")),
    ("dirty_bytes", Of::Now("/cache/dirty_bytes")),
    ("lag_seconds", Of::Now("/cache/writeback/lag_seconds")),
    ("writeback_rate_bytes", Of::Now("/cache/writeback/rate")),
    ("carried_bytes", Of::Rate("/cache/writeback/carried_bytes")),
    ("hit_share", Of::Share("/cache/hits", "/cache/misses")),
    ("pool_used_bytes", Of::Now("/pool/used_bytes")),
    ("scrub_bytes", Of::Now("/pool/scrub/rate")),
    ("moves_bytes", Of::Now("/pool/moves/rate")),
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
        let mut before: Option<(Instant, Arc<Value>)> = None;
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
    pub fn to_json(&self, from: u64) -> Value {
        self.with(|ring| {
            let oldest = ring.next - ring.samples.len() as u64;
            let skipped = from.saturating_sub(oldest).min(ring.samples.len() as u64) as usize;
            let shown = || ring.samples.iter().skip(skipped);
            let ages: Vec<Value> = shown().map(|s| rounded(s.at.elapsed().as_secs_f64())).collect();
            let series: Map<String, Value> = SERIES
                .iter()
                .enumerate()
                .map(|(at, (name, _))| {
                    let values = shown().map(|s| rounded(f64::from(s.values[at]))).collect();
                    ((*name).to_owned(), Value::Array(values))
                })
                .collect();
            json!({
                "every_seconds": EVERY.as_secs(),
                "next": ring.next,
                "seconds_ago": ages,
                "series": series,
            })
        })
    }
}

/// Four digits of it, which keeps the answer short; null where it is none.
fn rounded(value: f64) -> Value {
    if !value.is_finite() {
        return Value::Null;
    }
    let unit = 10f64.powi(value.abs().max(1e-3).log10().floor() as i32 - 3);
    let value = (value / unit).round() * unit;
    let value = (value * 1e6).round() / 1e6;
    if value.fract() == 0.0 { json!(value as i64) } else { json!(value) }
}

fn sample(before: &Value, now: &Value, seconds: f64) -> [f32; SERIES.len()] {
    let number = |status: &Value, at: &str| status.pointer(at).and_then(Value::as_f64);
    // A counter that has shrunk is another one.
    let growth = |at: &str| Some(number(now, at)? - number(before, at)?).filter(|d| *d >= 0.0);
    std::array::from_fn(|place| {
        let value = match SERIES[place].1 {
            Of::Now(at) => number(now, at),
            Of::Rate(at) => growth(at).map(|grown| grown / seconds.max(1e-3)),
            Of::Share(part, rest) => {
                growth(part).zip(growth(rest)).and_then(|(a, b)| (a + b > 0.0).then(|| a / (a + b)))
            }
            Of::Quantile(at, share) => quantile(before, now, at, share),
        };
        value.map_or(f32::NAN, |value| value as f32)
    })
}

/// Where in the growth of a histogram this share of all values is: between two bounds it is
/// estimated by the logarithm.
fn quantile(before: &Value, now: &Value, at: &str, share: f64) -> Option<f64> {
    let of = |status: &Value, name: &str, index: usize| {
        status.pointer(at)?.get(name)?.get(index).and_then(Value::as_u64)
    };
    let count = |status: &Value| status.pointer(at)?.get("count")?.as_u64();
    let total = count(now)?.checked_sub(count(before).unwrap_or(0)).filter(|n| *n > 0)?;
    let wanted = share * total as f64;
    let bounds = now["latency_bounds_us"].as_array()?;
    let (mut below, mut low) = (0.0, 1.0);
    for (index, bound) in bounds.iter().enumerate() {
        let high = bound.as_f64()?;
        let earlier = of(before, "latency_at_most", index).unwrap_or(0);
        let at_most = of(now, "latency_at_most", index)?.checked_sub(earlier)? as f64;
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
    use super::*;

    fn status(count: u64, at_most: [u64; 3], hits: u64) -> Value {
        json!({
            "latency_bounds_us": [10, 100, 1000],
            "requests": { "read": { "count": count, "bytes": count * 4096,
                                    "latency_at_most": at_most } },
            "cache": { "hits": hits, "misses": 10 },
        })
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
        assert!(value(&values, "write_bytes").is_nan() && value(&values, "lag_seconds").is_nan());
        // The other way round counters have shrunk.
        let values = sample(&now, &before, 5.0);
        for name in ["read_requests", "read_p50_us", "hit_share"] {
            assert!(value(&values, name).is_nan(), "{name}");
        }
    }

    #[test]
    fn an_hour_is_kept_and_the_new_is_shown() {
        let history = History::default();
        assert_eq!(history.to_json(7)["next"], 0);
        let values = |n: usize| std::array::from_fn(|at| (n + at) as f32);
        for n in 0..KEPT + 10 {
            history.add(Sample { at: Instant::now(), values: values(n) });
        }
        let shown = history.to_json(0);
        let reads = shown["series"]["read_requests"].as_array().unwrap();
        assert_eq!((reads.len(), &reads[0]), (KEPT, &json!(10)));
        assert_eq!(shown["seconds_ago"].as_array().unwrap().len(), KEPT);
        let next = shown["next"].as_u64().unwrap();
        let last = history.to_json(next - 1);
        assert_eq!(last["series"]["read_requests"], json!([KEPT + 9]));
        assert_eq!(history.to_json(next)["seconds_ago"], json!([]));
        // A client that has seen a server before this one.
        assert_eq!(history.to_json(u64::MAX)["seconds_ago"], json!([]));
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
            let shown = rounded(value);
            let written = shown.to_string();
            let same = written == text || shown == json!(text.parse::<f64>().ok());
            assert!(same, "{value}: {shown}");
        }
    }
}
