//! `forebay status`: what a running server is and does.

use clap::Args;
use serde_json::Value;

use crate::cli::options::ClientOptions;
use crate::cli::{cache_status, device, scrub, volume};
use crate::control::Request;
use crate::control::client::ask;
use crate::error::Result;
use crate::output::{print, print_json, table};
use crate::units::{human_bytes, human_seconds, human_us};

/// Show a running server: its pool, devices, cache, volumes, requests
///
/// Numbers count from the start of the server. Latencies are as the server sees them: requests from
/// their arrival to their reply, device I/O with the time in the queue.
#[derive(Args, Debug)]
pub struct Status {
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    client: ClientOptions,
}

impl Status {
    pub fn run(self) -> Result<()> {
        let status = ask(&self.client.socket, &Request::Status {})?;
        if self.json { print_json(&status) } else { print(&text(&status)) }
    }
}

fn number(v: &Value) -> u64 {
    v.as_u64().unwrap_or(0)
}

fn word(v: &Value) -> &str {
    v.as_str().unwrap_or("?")
}

fn text(s: &Value) -> String {
    let (pool, server) = (&s["pool"], &s["server"]);
    let rows = [
        ("pool", format!("{} ({})", word(&pool["name"]), word(&pool["uuid"]))),
        (
            "state",
            format!("{}; copies of every block: {}", word(&pool["state"]), number(&pool["copies"])),
        ),
        ("space", space(pool)),
        ("commits", commits(&s["commit"])),
        (
            "server",
            format!(
                "{}, {}, up {}, {} resident",
                word(&server["version"]),
                word(&server["io_backend"]),
                human_seconds(number(&server["uptime_seconds"])),
                human_bytes(number(&server["resident_bytes"])),
            ),
        ),
        (
            "clients",
            format!(
                "{} connected, {} requests in flight{}",
                number(&server["connections"]),
                number(&server["requests_in_flight"]),
                waits(&s["admission"]),
            ),
        ),
    ];
    let scrub = scrub::line(&pool["scrub"]).map(|fact| vec!["scrub".to_owned(), fact]);
    let moves = device::line(&pool["moves"]).map(|fact| vec!["moves".to_owned(), fact]);
    let rows = rows.map(|(name, fact)| vec![name.to_owned(), fact]);
    let mut out = table(&rows.into_iter().chain(scrub).chain(moves).collect::<Vec<_>>());
    out += &health(&s["health"]);
    if let Some(stalls) = s["stalls"].as_str() {
        out += &format!("\n{stalls}; see forebay explain\n");
    }
    out += &format!("\n{}", table(&devices(&pool["devices"])));
    match cache_status::text(s) {
        none if none.is_empty() => {}
        cache => out += &format!("\n{cache}"),
    }
    let volumes = s["volumes"].as_array().map(Vec::as_slice).unwrap_or_default();
    out += &format!("\n{}", table(&volume::rows(volumes)));
    out += &format!("\n{}", table(&traffic(s)));
    out
}

/// What is wrong and what to do, a line each.
fn health(problems: &Value) -> String {
    let mut out = String::new();
    for p in problems.as_array().into_iter().flatten() {
        let (what, todo, page) = (word(&p["what"]), word(&p["todo"]), word(&p["page"]));
        out += &format!("\n! {what}\n  to do: {todo} ({page} in docs/operations.md)\n");
    }
    out
}

/// Requests that wait for the limit or the share of their volume, or have done so.
fn waits(admission: &Value) -> String {
    let [now, limit, share] =
        ["waiting", "waited_for_limit", "waited_for_share"].map(|name| number(&admission[name]));
    if now + limit + share == 0 {
        return String::new();
    }
    format!(", {now} of them waiting; {limit} have waited for a limit, {share} for their share")
}

fn space(pool: &Value) -> String {
    let (used, capacity) = (number(&pool["used_bytes"]), number(&pool["capacity_bytes"]));
    let percent = used as f64 * 100.0 / capacity.max(1) as f64;
    format!("{} of {} used ({percent:.1}%)", human_bytes(used), human_bytes(capacity))
}

fn commits(commit: &Value) -> String {
    let us = |v: &Value, unit_us: f64| human_us(v.as_f64().unwrap_or(0.0) * unit_us);
    let (duration, freeze) = (&commit["duration_ms"], &commit["critical_section_us"]);
    let mut text = format!(
        "{}, each {} (p99 {}), of which {} (p99 {}) hold up requests",
        number(&commit["count"]),
        us(&duration["p50"], 1e3),
        us(&duration["p99"], 1e3),
        us(&freeze["p50"], 1.0),
        us(&freeze["p99"], 1.0),
    );
    match number(&commit["failed"]) {
        0 => {}
        n => text += &format!("; {n} FAILED"),
    }
    text
}

fn devices(list: &Value) -> Vec<Vec<String>> {
    let mut rows = vec![["DEVICE", "STATE", "ERRORS"].map(str::to_owned).to_vec()];
    for d in list.as_array().map(Vec::as_slice).unwrap_or_default() {
        let path = match word(&d["path"]) {
            "" => format!("(device {})", word(&d["id"])),
            path => path.to_owned(),
        };
        let counts =
            ["read", "write", "checksum", "healed"].map(|name| (name, number(&d["errors"][name])));
        let errors: Vec<String> =
            counts.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{n} {name}")).collect();
        let errors = if errors.is_empty() { "none".into() } else { errors.join(", ") };
        let mut state = word(&d["state"]).to_owned();
        if let Some(what) = d["emulate"].as_str() {
            state += &format!(", emulating {what}");
        }
        if let Some(why) = d["sits_out"]["why"].as_str() {
            state += &format!(", {why}: read only where it must be");
        }
        rows.push(vec![path, state, errors]);
    }
    rows
}

/// What clients asked for, and what devices were asked for it, by class.
fn traffic(s: &Value) -> Vec<Vec<String>> {
    let mut rows = vec![["", "COUNT", "BYTES", "P50", "P99", "MAX"].map(str::to_owned).to_vec()];
    let mut add = |name: String, kind: &Value| {
        let latency = |q: &str| human_us(kind["latency_us"][q].as_f64().unwrap_or(0.0));
        if number(&kind["count"]) > 0 {
            let count = number(&kind["count"]).to_string();
            rows.push(vec![
                name,
                count,
                human_bytes(number(&kind["bytes"])),
                latency("p50"),
                latency("p99"),
                latency("max"),
            ]);
        }
    };
    for kind in ["read", "write", "flush", "discard", "zero"] {
        add(format!("requests {kind}"), &s["requests"][kind]);
    }
    for (class, kinds) in s["io"].as_object().into_iter().flatten() {
        for kind in ["read", "write", "flush"] {
            add(format!("io {class} {kind}"), &kinds[kind]);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_pool_is_shown_as_such() {
        let quantiles =
            serde_json::json!({ "p50": 80.0, "p99": 1200.0, "p999": 2000.0, "max": 3e6 });
        let status = serde_json::json!({
            "pool": { "name": "p", "uuid": "u", "state": "degraded", "copies": 2,
                "capacity_bytes": 1u64 << 34,
                "used_bytes": 1u64 << 33, "devices": [
                    { "path": "/a", "id": "1", "state": "online", "emulate": "hdd",
                        "errors": { "read": 0, "checksum": 3, "healed": 3 } },
                    { "path": "", "id": "2", "state": "missing", "errors": {} }] },
            "volumes": [{
                "name": "v", "size_bytes": 1u64 << 50, "allocated_bytes": 5, "sector_bytes": 512
            }],
            "commit": { "count": 7, "failed": 1, "duration_ms": quantiles,
                "critical_section_us": quantiles },
            "requests": { "read": { "count": 5, "bytes": 4096, "latency_us": quantiles } },
            "server": {},
        });
        let text = text(&status);
        for part in [
            "degraded",
            "online, emulating hdd",
            "3 checksum, 3 healed",
            "(device 2)",
            "missing",
            "1 FAILED",
            "8 GiB of 16 GiB used (50.0%)",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(text.contains("requests read  5      4 KiB  80 us  1.2 ms  3.0 s"), "{text}");
    }

    #[test]
    fn a_strange_answer_is_no_panic() {
        for value in [
            Value::Null,
            serde_json::json!([]),
            serde_json::json!({ "pool": 5, "volumes": {}, "io": [] }),
        ] {
            assert!(text(&value).contains("pool"));
        }
    }
}
