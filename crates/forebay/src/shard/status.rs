//! What a running server says of itself: everything of `forebay status`.

use std::path::Path;

use base::{BOUNDS_NS, shell_word};
use nbd::ConnectionStatus;
use pool::status::KindStatus;
use queue::KindStats;
use serde_json::{Value, json};
use volume::VolumeCounts;

use super::Shard;
use crate::config::{devices_json, path_json};
use crate::credentials::Files;
use crate::explain::Stalls;
use crate::health;

impl Shard {
    /// The pool's status, with what only the server knows.
    pub(super) fn status(&self) -> Value {
        let clients = self.nbd.status();
        let mut status = json!(self.volumes.pool().status());
        for device in status["pool"]["devices"].as_array_mut().into_iter().flatten() {
            let what = device["path"].as_str().and_then(|path| self.devices.emulated(path));
            device["emulate"] = json!(what);
        }
        if let Some(cache) = self.volumes.cache() {
            status["cache"] = json!(cache.status());
        }
        status["latency_bounds_us"] = BOUNDS_NS.iter().map(|ns| ns / 1_000).collect();
        status["server"] = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "io_backend": self.backend,
            "uptime_seconds": self.rt.now().since(self.started).as_secs(),
            "connections": clients.connections,
            "connections_max": self.tuning.limits().max_connections,
            "connections_accepted": clients.accepted,
            "connections_refused": clients.refused,
            "tls_handshakes": clients.handshakes,
            "tls_handshakes_failed": clients.handshakes_failed,
            "requests_in_flight": clients.requests,
            "payload_bytes": clients.payload_bytes,
            "resident_bytes": resident_bytes(),
        });
        status["tls"] = json!(self.certificates.as_ref().map(Files::status));
        // The same volumes in the same order: no time has passed.
        let volumes = status["volumes"].as_array_mut().into_iter().flatten();
        for (shown, info) in volumes.zip(self.volumes.list()) {
            shown["id"] = json!(info.id.0);
            if let Some(stats) = self.volumes.requests_of(info.id) {
                shown["requests"] =
                    stats.by_name().map(|(op, c)| (op, of_volume(c))).into_iter().collect();
            }
        }
        let requests = self.volumes.requests();
        let kind = |k: &KindStats| json!(KindStatus::of(k));
        let stalls = Stalls::of(self.rt.ledger(), self.rt.moment());
        status["stalls"] = json!(stalls.first_cause());
        status["slow_requests"] = stalls.to_json();
        let waits = self.volumes.waits();
        status["admission"] = json!({
            "waiting": waits.waiting,
            "waited_for_limit": waits.limited,
            "waited_for_share": waits.shared,
        });
        status["requests"] = json!({
            "read": kind(&requests.read),
            "write": kind(&requests.write),
            "flush": kind(&requests.flush),
            "discard": kind(&requests.discard),
            "zero": kind(&requests.zero),
        });
        status["health"] = json!(health::problems(&status));
        status
    }
}

impl Shard {
    /// The clients that are connected.
    pub(super) fn clients(&self) -> Value {
        let one = |c: ConnectionStatus| {
            let tls = c.peer.map(|peer| {
                json!({
                    "version": peer.version,
                    "cipher": peer.cipher,
                    "proof": peer.proof.name(),
                    "names": peer.names,
                })
            });
            json!({
                "number": c.number,
                "address": c.address,
                "export": c.export,
                "read_only": c.read_only,
                "requests": c.requests,
                "tls": tls,
            })
        };
        self.nbd.connections().into_iter().map(one).collect()
    }

    /// What the server goes by: as it was started, with what has changed since.
    pub(super) fn config(&self) -> Value {
        self.tuning.config(self.devices_now(), self.cache_now())
    }

    /// Where the cache is, as the configuration file has it.
    pub(super) fn cache_now(&self) -> Value {
        let cache = self.volumes.cache().map(|cache| json!(cache.status()));
        let path = cache.as_ref().and_then(|status| status["path"].as_str());
        path.map_or(Value::Null, |path| path_json(Path::new(path)))
    }

    /// What has to be said at the next start that was not said at this one; nothing if that finds
    /// the devices of the pool as they are now.
    pub(super) fn next_start(&self) -> Option<String> {
        let now = self.devices_now();
        if self.devices.keeps_list() || now == self.tuning.place("devices") {
            return None;
        }
        let mut text = match self.tuning.file() {
            Some(file) => {
                let devices =
                    toml::Value::try_from(&now).map_or_else(|_| now.to_string(), |v| v.to_string());
                format!(
                    "before the server is started next, say in {}: devices = {devices}",
                    file.display()
                )
            }
            None => {
                let one = |d: &Value| {
                    let path = d["path"].as_str().or(d.as_str()).unwrap_or_default();
                    format!("--device {}", shell_word(&self.devices.choice(path).to_string()))
                };
                let all = now.as_array().into_iter().flatten().map(one);
                format!(
                    "when the server is started next, name the devices as they are now: {}",
                    all.collect::<Vec<_>>().join(" ")
                )
            }
        };
        let leaving = self.volumes.pool().moves_status().leaving;
        if !leaving.is_empty() {
            text += &format!("; without {} once it is out of the pool", leaving.join(", "));
        }
        Some(text)
    }

    /// The devices of the pool, as the configuration file has them.
    pub(super) fn devices_now(&self) -> Value {
        let status = json!(self.volumes.pool().status());
        let mut devices = Vec::new();
        let mut missing = false;
        for device in status["pool"]["devices"].as_array().into_iter().flatten() {
            match device["path"].as_str().filter(|path| !path.is_empty()) {
                Some(path) => devices.push(self.devices.choice(path)),
                None => missing = true,
            }
        }
        let mut devices = devices_json(&devices);
        // One that is missing has no path, but that under which it was looked for.
        if let (true, Some(now)) = (missing, devices.as_array_mut()) {
            let named = self.tuning.place("devices");
            let gone = named.as_array().into_iter().flatten().filter(|one| !now.contains(one));
            let gone: Vec<Value> = gone.cloned().collect();
            now.extend(gone);
        }
        let named = self.tuning.place("devices");
        if same(&devices, &named) { named } else { devices }
    }
}

/// Whether both lists have the same, in any order.
fn same(one: &Value, other: &Value) -> bool {
    let (Some(one), Some(other)) = (one.as_array(), other.as_array()) else { return false };
    one.len() == other.len() && one.iter().all(|entry| other.contains(entry))
}

/// What clients asked of a volume: as [`KindStatus`], without quantiles.
fn of_volume(counts: &VolumeCounts) -> Value {
    let latency = &counts.latency;
    let mut shown = json!({
        "count": counts.count,
        "bytes": counts.bytes,
        "latency_sum_us": latency.sum_ns() as f64 / 1e3,
    });
    if counts.count > 0 {
        shown["latency_at_most"] = json!(latency.at_most_bounds());
    }
    shown
}

/// Memory that this process has, as far as the kernel tells.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}
