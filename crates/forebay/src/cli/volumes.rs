//! Volumes for people: the important ones first, and no more than can be read.

use std::cmp::Reverse;

use serde_json::Value;

use crate::cli::limit;
use crate::health::of_volume;
use crate::terminal::text::paragraph;
use crate::terminal::{Cell, Column, Look, Table, Tone};
use crate::units::human_bytes;

/// So many rows of a table are shown unless all are wanted.
pub const SHOWN: usize = 20;
/// So many volumes with problems are told of one by one.
const TOLD: usize = 5;

/// A table of a server's volumes, and what is wrong with them. `command` shows all of them.
pub fn text(status: &Value, all: bool, command: &str, look: &Look) -> String {
    let mut ranked: Vec<Ranked> = ranked(status);
    if ranked.is_empty() {
        return "no volumes; make one: forebay volume create NAME --size 8G\n".to_owned();
    }
    let mut out = String::new();
    let bad = ranked.iter().filter(|one| one.problem.is_some()).count();
    for one in ranked.iter().take(TOLD) {
        if let Some(problem) = one.problem {
            let text = format!("{} {problem}", one.name);
            out += &paragraph((Tone::Bad, "! "), &text, look);
        }
    }
    if bad > TOLD {
        out += &format!("! and {} more volumes with problems\n", bad - TOLD);
    }
    let hidden = if all { 0 } else { ranked.len().saturating_sub(SHOWN) };
    ranked.truncate(ranked.len() - hidden);
    out += &table(&ranked).text(look);
    out + &not_shown(hidden, "volumes", command, look)
}

/// Says how many rows a table leaves out.
pub fn not_shown(hidden: usize, what: &str, command: &str, look: &Look) -> String {
    match hidden {
        0 => String::new(),
        n => {
            let text = format!("{n} more {what} are not shown: {command}");
            paragraph((Tone::Plain, ""), &text, look)
        }
    }
}

/// A volume, and what makes it important.
struct Ranked<'a> {
    volume: &'a Value,
    name: &'a str,
    problem: Option<&'static str>,
    requests: u64,
}

/// All volumes: those with problems first, then by the requests they got since the server started.
fn ranked(status: &Value) -> Vec<Ranked<'_>> {
    let rank = |volume| Ranked {
        volume,
        name: volume["name"].as_str().unwrap_or_default(),
        problem: of_volume(volume, status),
        requests: requests(volume),
    };
    let mut all: Vec<Ranked> = list(&status["volumes"]).iter().map(rank).collect();
    all.sort_by_key(|one| (one.problem.is_none(), Reverse(one.requests), one.name));
    all
}

fn list(v: &Value) -> &[Value] {
    v.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// What clients have asked of a volume.
fn requests(volume: &Value) -> u64 {
    let kinds = volume["requests"].as_object().into_iter().flatten();
    kinds.filter_map(|(_, kind)| kind["count"].as_u64()).sum()
}

fn table(volumes: &[Ranked]) -> Table {
    let mut table = Table::new(&[
        Column::shortened("NAME", 12),
        Column::new("SIZE"),
        Column::new("ALLOCATED"),
        Column::new("SECTOR"),
        Column::new("MAY"),
        Column::new("REQUESTS"),
        Column::wrapped("LIMIT"),
    ]);
    let bytes = |v: &Value| human_bytes(v.as_u64().unwrap_or(0));
    for one in volumes {
        let v = one.volume;
        let tone = if one.problem.is_some() { Tone::Bad } else { Tone::Plain };
        table.add([
            Cell::new(tone, one.name),
            bytes(&v["size_bytes"]).into(),
            bytes(&v["allocated_bytes"]).into(),
            v["sector_bytes"].to_string().into(),
            if v["read_only"] == true { "read" } else { "write" }.into(),
            one.requests.to_string().into(),
            limit::text(&v["limit"]).into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::terminal::text::width;

    const LOOK: Look = Look { columns: 80, colour: false };

    fn volume(name: &str, id: u64, requests: u64) -> Value {
        json!({
            "name": name, "id": id, "size_bytes": 1u64 << 50, "allocated_bytes": 1023u64 << 20,
            "sector_bytes": 4096, "read_only": id == 1, "requests": {
                "read": { "count": requests / 2 }, "write": { "count": requests - requests / 2 } },
            "limit": { "iops": 100_000, "bytes_per_second": 1u64 << 30, "burst_ms": 1500 },
        })
    }

    fn shown(text: &str) -> Vec<String> {
        let rows = text.lines().skip_while(|line| !line.starts_with("NAME")).skip(1);
        let rows = rows.filter(|line| line.contains("1 PiB"));
        rows.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
    }

    #[test]
    fn the_important_ones_are_first_and_the_rest_is_counted() {
        let mut volumes: Vec<Value> =
            (0..300).map(|i| volume(&format!("vm{i:03}"), i, i % 100)).collect();
        volumes.push(volume(&"x".repeat(64), 300, 1_000_000_000));
        let status = json!({
            "volumes": volumes,
            "pool": { "scrub": { "lost_blocks": [{ "volume": "vm007" }] } },
            "cache": { "bad_blocks": [[5, 1], [5, 2]] },
        });
        let few = text(&status, false, "forebay volume list --all", &LOOK);
        assert!(few.lines().all(|line| width(line) <= 80), "{few}");
        assert!(few.starts_with("! vm007 has blocks without a good copy"), "{few}");
        assert!(few.ends_with("281 more volumes are not shown: forebay volume list --all\n"));
        let names = shown(&few);
        assert_eq!(names.len(), SHOWN);
        assert_eq!(names[..2], ["vm007", "vm005"], "problems, by load");
        assert!(names[2].starts_with("xxxx") && names[2].contains('…'), "{names:?}");
        assert_eq!(names[3..6], ["vm099", "vm199", "vm299"]);
        let all = text(&status, true, "", &LOOK);
        assert_eq!(shown(&all).len(), 301);
        assert!(!all.contains("not shown"));
    }

    #[test]
    fn no_volumes_and_nonsense_are_no_panic() {
        for status in [json!({}), json!({ "volumes": 5 }), json!({ "volumes": [] })] {
            assert!(text(&status, false, "", &LOOK).contains("forebay volume create"));
        }
        let odd = json!({ "volumes": [{}, 7], "pool": 3, "cache": { "bad_blocks": [1] } });
        assert!(text(&odd, false, "", &LOOK).contains("NAME"));
    }
}
