//! What has changed between two looks at a server: its statuses and its jobs are compared.
//!
//! What has come and gone between two looks is not seen. Nothing is asked of the engine for it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// What is compared, in the order in which changes are told: a name for programs, and what its
/// values are, for people.
pub const WHAT: &[(&str, &str)] = &[
    ("problem", "what is wrong; its name is its page in docs/operations.md"),
    ("pool", "state of the pool"),
    ("device", "state of a device of the pool; null: it is none"),
    ("cache", "state of the cache; null: the pool has none"),
    ("scrub", "state of the scrub"),
    ("moves", "state of the moves between devices"),
    ("job", "state of the job of this number"),
    ("volume", "size of a volume in bytes; null: it is not there"),
    ("volume-mode", "what the cache does for a volume"),
    ("volume-read-only", "whether clients may change nothing of a volume"),
];

/// The place in [`WHAT`], and what tells one thing from another there.
type Key = (usize, String);

/// All that is compared: a name for people, and a value.
#[derive(Default)]
struct Facts(BTreeMap<Key, (String, Value)>);

fn each(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

impl Facts {
    fn of(status: &Value, jobs: &Value) -> Facts {
        let mut all = Facts::default();
        let text = |value: &Value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        for problem in each(&status["health"]) {
            // Several devices may have the same one.
            all.add("problem", text(&problem["page"]), "", &problem["what"]);
        }
        let pool = &status["pool"];
        let name = text(&pool["name"]);
        all.add("pool", String::new(), &name, &pool["state"]);
        for device in each(&pool["devices"]) {
            // One that is missing has no path.
            let path = device["path"].as_str().unwrap_or_default();
            all.add("device", text(&device["id"]), path, &device["state"]);
        }
        if let Some(path) = status["cache"]["path"].as_str() {
            all.add("cache", path.to_owned(), path, &status["cache"]["state"]);
        }
        all.add("scrub", String::new(), &name, &pool["scrub"]["state"]);
        all.add("moves", String::new(), &name, &pool["moves"]["state"]);
        for job in each(jobs) {
            all.add("job", text(&job["job"]), "", &job["state"]);
        }
        for volume in each(&status["volumes"]) {
            let (id, name) = (text(&volume["id"]), text(&volume["name"]));
            all.add("volume", id.clone(), &name, &volume["size_bytes"]);
            all.add("volume-mode", id.clone(), &name, &volume["cache_mode"]);
            all.add("volume-read-only", id, &name, &volume["read_only"]);
        }
        all
    }

    fn add(&mut self, what: &str, key: String, name: &str, value: &Value) {
        let place = WHAT.iter().position(|one| one.0 == what);
        let Some(place) = place.filter(|_| !value.is_null()) else { return };
        let name = if name.is_empty() { key.clone() } else { name.to_owned() };
        self.0.entry((place, key)).or_insert((name, value.clone()));
    }
}

/// Changes between two looks, each a status and the list of jobs. `at` is the time of the second.
pub fn changes(before: (&Value, &Value), now: (&Value, &Value), at: f64) -> Vec<Value> {
    let (before, now) = (Facts::of(before.0, before.1), Facts::of(now.0, now.1));
    let mut keys: Vec<&Key> = before.0.keys().chain(now.0.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let one = |key: &Key| {
        let (old, new) = (before.0.get(key), now.0.get(key));
        let what = WHAT[key.0].0;
        let told = match (old, new) {
            // Its text may have numbers that grow.
            (Some(_), Some(_)) if what == "problem" => false,
            (Some(old), Some(new)) => old.1 != new.1,
            // An old job is forgotten.
            (Some(_), None) if what == "job" => false,
            // The volume itself is told of.
            (Some(_), None) | (None, Some(_)) => !what.starts_with("volume-"),
            (None, None) => false,
        };
        // The name of what is missing is its id: the one that it had, or has again, says more.
        let named = [new, old].into_iter().flatten().max_by_key(|fact| fact.0 != key.1);
        let value = |fact: Option<&(String, Value)>| fact.map(|f| f.1.clone());
        let name = named.map(|fact| &fact.0);
        told.then(|| {
            json!({ "what": what, "name": name, "from": value(old), "to": value(new), "at": at })
        })
    };
    keys.into_iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Value {
        json!({
            "health": [{ "page": "pool-full", "what": "it is 91 % full" }],
            "pool": {
                "name": "tank", "state": "online",
                "devices": [
                    { "id": "u1", "path": "/a", "state": "online" },
                    { "id": "u2", "path": "/b", "state": "online" },
                ],
                "scrub": { "state": "never" }, "moves": { "state": "none", "rate": 0 },
            },
            "cache": { "path": "/c", "state": "serving", "hits": 1 },
            "volumes": [
                volume(1, "v", 10, "none", false), volume(2, "w", 20, "none", false),
            ],
        })
    }

    fn volume(id: u64, name: &str, size_bytes: u64, mode: &str, read_only: bool) -> Value {
        json!({
            "id": id, "name": name, "size_bytes": size_bytes, "cache_mode": mode,
            "read_only": read_only,
        })
    }

    fn told(before: (&Value, &Value), now: (&Value, &Value)) -> Vec<String> {
        let line = |one: Value| {
            assert_eq!(one["at"], 7.5);
            let name = one["name"].as_str().unwrap();
            format!("{} {name}: {} {}", one["what"].as_str().unwrap(), one["from"], one["to"])
        };
        changes(before, now, 7.5).into_iter().map(line).collect()
    }

    #[test]
    fn all_that_changes_is_told() {
        let (before, mut now) = (status(), status());
        let jobs = json!([{ "job": 1, "state": "running" }, { "job": 2, "state": "done" }]);
        now["health"] = json!([
            { "page": "device-missing", "what": "/b is missing" },
            { "page": "device-missing", "what": "/d is missing" },
        ]);
        now["pool"]["state"] = json!("degraded");
        now["pool"]["devices"] = json!([
            { "id": "u1", "path": "/a", "state": "online" },
            { "id": "u2", "path": null, "state": "missing" },
            { "id": "u3", "path": "/d", "state": "online" },
        ]);
        now["cache"] = json!({ "path": "/e", "state": "serving" });
        now["pool"]["scrub"]["state"] = json!("running");
        now["pool"]["moves"]["state"] = json!("moving");
        now["volumes"] =
            json!([volume(1, "v", 11, "writeback", true), volume(3, "w", 30, "none", false)]);
        let later = json!([{ "job": 1, "state": "done" }, { "job": 3, "state": "failed" }]);
        assert_eq!(
            told((&before, &jobs), (&now, &later)),
            [
                "problem device-missing: null \"/b is missing\"",
                "problem pool-full: \"it is 91 % full\" null",
                "pool tank: \"online\" \"degraded\"",
                "device /b: \"online\" \"missing\"",
                "device /d: null \"online\"",
                "cache /c: \"serving\" null",
                "cache /e: null \"serving\"",
                "scrub tank: \"never\" \"running\"",
                "moves tank: \"none\" \"moving\"",
                "job 1: \"running\" \"done\"",
                "job 3: null \"failed\"",
                "volume v: 10 11",
                "volume w: 20 null",
                "volume w: null 30",
                "volume-mode v: \"none\" \"writeback\"",
                "volume-read-only v: false true",
            ]
        );
        // The name that it has again.
        assert!(
            told((&now, &jobs), (&before, &jobs))
                .contains(&"device /b: \"missing\" \"online\"".to_owned())
        );
    }

    #[test]
    fn what_only_counts_is_no_change() {
        let (before, mut now) = (status(), status());
        now["health"][0]["what"] = json!("it is 92 % full");
        now["cache"]["hits"] = json!(99);
        now["pool"]["moves"]["rate"] = json!(5);
        let none = json!([]);
        assert!(told((&before, &none), (&now, &none)).is_empty());
        // Nor is what is not known.
        assert!(told((&json!(null), &none), (&json!(null), &none)).is_empty());
    }
}
