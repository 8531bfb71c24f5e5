//! A server's status as numbers.

use std::time::Duration;

use serde_json::Value;

use super::counts::Counts;
use crate::health::{is_silent, of_volume};

/// Counters by what was asked for.
#[derive(Clone, Debug, Default)]
pub struct Ops {
    /// Reads.
    pub read: Counts,
    /// Writes.
    pub write: Counts,
    /// All else: flushes, discards, zeroes.
    pub other: Counts,
}

impl Ops {
    fn of(v: &Value) -> Ops {
        let others = ["flush", "discard", "zero"].map(|kind| Counts::of(&v[kind]));
        let other = others.iter().fold(Counts::default(), |sum, one| sum.and(one));
        Ops { read: Counts::of(&v["read"]), write: Counts::of(&v["write"]), other }
    }

    /// What came after `before`.
    pub fn since(&self, before: &Ops) -> Ops {
        Ops {
            read: self.read.since(&before.read),
            write: self.write.since(&before.write),
            other: self.other.since(&before.other),
        }
    }

    /// All of them together.
    pub fn all(&self) -> Counts {
        self.read.and(&self.write).and(&self.other)
    }
}

/// What a server said of itself at a moment.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// When, by the clock of the command.
    pub at: Duration,
    /// The whole status: for what is no counter.
    pub status: Value,
    /// Requests of all clients.
    pub requests: Ops,
    /// Requests by volume, in the server's order: its name, and whether it has a problem.
    pub volumes: Vec<(String, bool, Ops)>,
    /// I/O by device and class.
    pub devices: Vec<Device>,
    /// The bounds of latencies that the server counts by, in microseconds.
    pub bounds_us: Vec<f64>,
}

/// A device of the pool, or the cache's.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its path; its id if it has none.
    pub path: String,
    /// Its state; absent of the cache's.
    pub state: Option<String>,
    /// I/O by class.
    pub classes: Vec<(String, Ops)>,
    /// It has requests that have not ended.
    pub has_requests: bool,
    /// It has not answered one of them for long.
    pub silent: bool,
}

impl Sample {
    /// From a status. What is absent is 0.
    pub fn of(status: Value, at: Duration) -> Sample {
        let volume = |v: &Value| {
            let name = v["name"].as_str().unwrap_or("?").to_owned();
            (name, of_volume(v, &status).is_some(), Ops::of(&v["requests"]))
        };
        let volumes = list(&status["volumes"]).iter().map(volume).collect();
        let mut devices: Vec<Device> =
            list(&status["pool"]["devices"]).iter().map(Device::of).collect();
        if status["cache"].is_object() {
            devices.push(Device::of(&status["cache"]));
        }
        if let Some(cache) = devices.last_mut().filter(|_| status["cache"].is_object()) {
            cache.state = None;
        }
        let bounds = list(&status["latency_bounds_us"]).iter();
        Sample {
            at,
            requests: Ops::of(&status["requests"]),
            volumes,
            devices,
            bounds_us: bounds.map(|b| b.as_f64().unwrap_or(f64::INFINITY)).collect(),
            status,
        }
    }
}

impl Device {
    fn of(v: &Value) -> Device {
        let text = |name: &str| v[name].as_str().filter(|text| !text.is_empty());
        let classes = v["queue"]["io"].as_object().into_iter().flatten();
        Device {
            path: text("path").or(text("id")).unwrap_or("?").to_owned(),
            state: text("state").map(str::to_owned),
            classes: classes.map(|(class, ops)| (class.clone(), Ops::of(ops))).collect(),
            has_requests: v["queue"]["silent_ms"].as_f64().unwrap_or(0.0) > 0.0,
            silent: is_silent(v),
        }
    }
}

fn list(v: &Value) -> &[Value] {
    v.as_array().map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_status_is_read() {
        let ops =
            json!({ "read": { "count": 3 }, "flush": { "count": 4 }, "zero": { "count": 5 } });
        let status = json!({
            "latency_bounds_us": [10, 25], "requests": ops,
            "volumes": [{ "name": "a", "requests": ops }, { "name": "b" }],
            "pool": { "devices": [{ "path": "", "id": "u", "state": "missing" }],
                "scrub": { "lost_blocks": [{ "volume": "b" }] } },
            "cache": { "path": "/c", "state": "serving", "queue": { "io": { "commit": ops } } },
        });
        let sample = Sample::of(status, Duration::from_secs(1));
        assert_eq!((sample.requests.read.count, sample.requests.all().count), (3, 12));
        assert_eq!(sample.bounds_us, [10.0, 25.0]);
        let problems: Vec<bool> = sample.volumes.iter().map(|(_, bad, _)| *bad).collect();
        assert_eq!(problems, [false, true]);
        assert_eq!(sample.devices[0].path, "u");
        assert_eq!(sample.devices[1].state, None);
        assert_eq!(sample.devices[1].classes[0].1.other.count, 9);
    }

    #[test]
    fn nonsense_is_no_panic() {
        for odd in [json!(null), json!([1]), json!({ "volumes": 3, "cache": { "queue": [] } })] {
            assert_eq!(Sample::of(odd, Duration::ZERO).requests.all().count, 0);
        }
    }
}
