//! `forebay status`: what a running server is and does.

use clap::Args;
use serde_json::Value;

use crate::cli::checked::counted;
use crate::cli::options::ClientOptions;
use crate::cli::pool::ONE_COPY;
use crate::cli::{cache_status, device, scrub, volumes};
use crate::control::Request;
use crate::error::Result;
use crate::output::{print, print_json};
use crate::overcommit;
use crate::terminal::text::paragraph;
use crate::terminal::{Cell, Column, Look, Table, Tone, summary};
use crate::units::{human_bytes, human_seconds, human_us};

/// Show a running server: its pool, devices, cache, volumes, requests
///
/// Numbers count from the start of the server. Latencies are as the server sees them: requests from
/// their arrival to their reply, device I/O with the time in the queue.
#[derive(Args, Debug)]
pub struct Status {
    /// All volumes, however many there are
    #[arg(long)]
    all: bool,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    client: ClientOptions,
}

impl Status {
    pub fn run(self) -> Result<()> {
        let status = self.client.ask(&Request::Status {})?;
        if self.json {
            print_json(&status)
        } else {
            print(&text(&status, self.all, &Look::of_stdout()))
        }
    }
}

fn number(v: &Value) -> u64 {
    v.as_u64().unwrap_or(0)
}

fn word(v: &Value) -> &str {
    v.as_str().unwrap_or("?")
}

fn text(s: &Value, all: bool, look: &Look) -> String {
    let (pool, server) = (&s["pool"], &s["server"]);
    let state = word(&pool["state"]);
    let copies = number(&pool["copies"]);
    let mut rows: Vec<(&str, Cell)> = vec![
        ("pool", format!("{} ({})", word(&pool["name"]), word(&pool["uuid"])).into()),
        ("state", Cell::new(tone(state), format!("{state}; copies of every block: {copies}"))),
        ("space", space(pool).into()),
    ];
    if copies == 1 {
        rows.push(("copies", Cell::new(Tone::Warn, ONE_COPY)));
    }
    rows.extend(overcommit::of_status(s).map(|text| ("volumes", Cell::new(Tone::Warn, text))));
    rows.extend([
        ("commits", commits(&s["commit"]).into()),
        (
            "server",
            format!(
                "{}, {}, up {}, {} resident",
                word(&server["version"]),
                word(&server["io_backend"]),
                human_seconds(number(&server["uptime_seconds"])),
                human_bytes(number(&server["resident_bytes"])),
            )
            .into(),
        ),
        (
            "clients",
            format!(
                "{}, {} in flight{}",
                connected(server),
                counted(number(&server["requests_in_flight"]), "request"),
                waits(&s["admission"]),
            )
            .into(),
        ),
    ]);
    rows.extend(
        scrub::line(&pool["scrub"], &s["cache"]["scrub_part"]).map(|fact| ("scrub", fact.into())),
    );
    rows.extend(device::line(&pool["moves"]).map(|fact| ("moves", fact.into())));
    let mut out = summary(rows, look);
    out += &health(&s["health"], look);
    if let Some(stalls) = s["stalls"].as_str() {
        out += &format!("\n{}", paragraph((Tone::Warn, ""), stalls, look));
        out += "  see forebay explain\n";
    }
    out += &format!("\n{}", devices(&pool["devices"]).text(look));
    match cache_status::text(s, look) {
        none if none.is_empty() => {}
        cache => out += &format!("\n{cache}"),
    }
    out += &format!("\n{}", volumes::text(s, all, "forebay status --all", look));
    out += &format!("\n{}", traffic(s).text(look));
    out
}

/// How many clients there are and can be, and how many were too many.
fn connected(server: &Value) -> String {
    let most = match server["connections_max"].as_u64() {
        Some(most) => format!(" of {most}"),
        None => String::new(),
    };
    let refused = match number(&server["connections_refused"]) {
        0 => String::new(),
        n => format!(", {n} refused"),
    };
    format!("{}{most} connected{refused}", number(&server["connections"]))
}

fn tone(state: &str) -> Tone {
    match state {
        "online" => Tone::Good,
        "failed" => Tone::Bad,
        _ => Tone::Warn,
    }
}

/// What is wrong and what to do, a paragraph each.
fn health(problems: &Value, look: &Look) -> String {
    let mut out = String::new();
    for p in problems.as_array().into_iter().flatten() {
        let (what, todo, page) = (word(&p["what"]), word(&p["todo"]), word(&p["page"]));
        let todo = format!("{todo} ({page} in docs/operations.md)");
        out += &format!("\n{}", paragraph((Tone::Bad, "! "), what, look));
        out += &paragraph((Tone::Plain, "  to do: "), &todo, look);
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
    let mut text =
        format!("{} of {} used ({percent:.1}%)", human_bytes(used), human_bytes(capacity));
    if let Some(left) = pool["available_bytes"].as_u64() {
        text += &format!(", {} left for data", human_bytes(left));
    }
    text
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

fn devices(list: &Value) -> Table {
    let columns = [
        Column::shortened("DEVICE", 20),
        Column::shortened("STATE", 16),
        Column::wrapped("ERRORS"),
    ];
    let mut table = Table::new(&columns);
    for d in list.as_array().map(Vec::as_slice).unwrap_or_default() {
        let path = match word(&d["path"]) {
            "" => format!("(device {})", word(&d["id"])),
            path => path.to_owned(),
        };
        let counts =
            ["read", "write", "checksum", "healed"].map(|name| (name, number(&d["errors"][name])));
        let errors: Vec<String> =
            counts.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{n} {name}")).collect();
        let errors = match errors.is_empty() {
            true => Cell::from("none"),
            false => Cell::new(Tone::Bad, errors.join(", ")),
        };
        let mut state = word(&d["state"]).to_owned();
        let mut tone = device::tone(&state);
        if let Some(what) = d["emulate"].as_str() {
            state += &format!(", emulating {what}");
        }
        if let Some(why) = d["sits_out"]["why"].as_str() {
            state += &format!(", {why}: read only where it must be");
            tone = Tone::Warn;
        }
        table.add([path.into(), Cell::new(tone, state), errors]);
    }
    table
}

/// What clients asked for, and what devices were asked for it, by class.
fn traffic(s: &Value) -> Table {
    let heads = ["", "COUNT", "BYTES", "P50", "P99", "MAX"];
    let mut table = Table::new(&heads.map(Column::new));
    let mut add = |name: String, kind: &Value| {
        let latency = |q: &str| Cell::from(human_us(kind["latency_us"][q].as_f64().unwrap_or(0.0)));
        if number(&kind["count"]) > 0 {
            table.add([
                name.into(),
                number(&kind["count"]).to_string().into(),
                human_bytes(number(&kind["bytes"])).into(),
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
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::text::width;

    const LOOK: Look = Look { columns: 80, colour: false };

    #[test]
    fn a_damaged_pool_is_shown_as_such() {
        let quantiles =
            serde_json::json!({ "p50": 80.0, "p99": 1200.0, "p999": 2000.0, "max": 3e6 });
        let status = serde_json::json!({
            "pool": { "name": "p", "uuid": "u", "state": "degraded", "copies": 2,
                "capacity_bytes": 1u64 << 34, "provisioned_bytes": 1u64 << 50,
                "used_bytes": 1u64 << 33, "available_bytes": 7u64 << 30, "devices": [
                    { "path": "/a", "id": "1", "state": "online", "emulate": "hdd",
                        "errors": { "read": 0, "checksum": 3, "healed": 3 } },
                    { "path": "", "id": "2", "state": "missing", "errors": {} }] },
            "volumes": [{
                "name": "v", "size_bytes": 1u64 << 50, "allocated_bytes": 5, "sector_bytes": 512
            }],
            "commit": { "count": 7, "failed": 1, "duration_ms": quantiles,
                "critical_section_us": quantiles },
            "requests": { "read": { "count": 5, "bytes": 4096, "latency_us": quantiles } },
            "server": { "connections": 2, "connections_max": 2, "connections_refused": 7 },
        });
        let text = text(&status, false, &LOOK);
        for part in [
            "degraded",
            "online, emulating hdd",
            "3 checksum, 3 healed",
            "(device 2)",
            "missing",
            "1 FAILED",
            "2 of 2 connected, 7 refused, 0 requests in flight",
            "8 GiB of 16 GiB used (50.0%), 7 GiB left for data",
            "the volumes have 1 PiB together, and the pool holds 16 GiB",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(!text.contains("copies   "), "it has two: {text}");
        assert!(text.contains("requests read  5      4 KiB  80 us  1.2 ms  3.0 s"), "{text}");
    }

    #[test]
    fn a_strange_answer_is_no_panic() {
        for value in [
            Value::Null,
            serde_json::json!([]),
            serde_json::json!({ "pool": 5, "volumes": {}, "io": [] }),
        ] {
            assert!(text(&value, false, &LOOK).contains("pool"));
        }
    }

    #[test]
    fn one_copy_is_told_for_as_long_as_it_is_one() {
        let status = serde_json::json!({ "pool": { "state": "online", "copies": 1 } });
        let text = text(&status, false, &Look { columns: 200, colour: false });
        assert!(text.contains(ONE_COPY), "{text}");
    }

    #[test]
    fn long_names_and_many_problems_fit() {
        let path = format!("/{}/cache.img", "x".repeat(120));
        let health: Vec<Value> = (0..3)
            .map(|i| {
                serde_json::json!({ "what": format!("device {i} is away"), "page": "device-missing",
                    "todo": "forebay device online NAME, when it may be used again; or replace" })
            })
            .collect();
        let status = serde_json::json!({
            "pool": { "name": "p".repeat(64), "uuid": "fb3c67df-f111-4703-ab55-386c0277c152",
                "state": "online", "devices": [{ "path": path, "id": "1", "state": "online",
                "sits_out": { "why": "slow" }, "errors": { "read": 1, "checksum": 2 } }] },
            "cache": { "path": path, "state": "serving" },
            "volumes": [{ "name": "v".repeat(64) }],
            "stalls": "12 requests of the last 10 minutes took more than 20 ms; 9 waited mostly \
                       for a read of pool device data/pool0.img",
            "health": health,
        });
        let text = text(&status, false, &LOOK);
        assert!(text.lines().all(|line| width(line) <= 80), "{text}");
        assert!(text.contains("\n  see forebay explain\n"), "{text}");
        assert!(text.contains("! device 2 is away\n  to do: forebay device online"), "{text}");
    }
}
