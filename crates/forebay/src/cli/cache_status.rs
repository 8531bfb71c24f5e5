//! The cache, as people read it.

use base::counted;
use serde_json::Value;

use crate::terminal::text::shortened;
use crate::terminal::{Cell, Look, Tone, summary};
use crate::units::{human_bytes, human_us};

/// Volumes that are named for a mode.
const LISTED: usize = 5;
/// Columns of their names.
const NAME: usize = 24;

fn number(v: &Value) -> u64 {
    v.as_u64().unwrap_or(0)
}

fn bytes(v: &Value) -> String {
    human_bytes(number(v))
}

fn word(v: &Value) -> &str {
    v.as_str().unwrap_or("?")
}

/// The cache's part of a server's status; empty if there is none.
pub fn text(status: &Value, look: &Look) -> String {
    let c = &status["cache"];
    if !c.is_object() {
        return String::new();
    }
    let mut rows: Vec<(&str, Cell)> = vec![
        ("cache", Cell::new(tone(c), format!("{}: {}", word(&c["path"]), state(c)))),
        ("modes", modes(&status["volumes"]).into()),
        (
            "holds",
            format!(
                "{} dirty, {} clean, of {}",
                bytes(&c["dirty_bytes"]),
                bytes(&c["clean_bytes"]),
                bytes(&c["size_bytes"])
            )
            .into(),
        ),
        ("blocks read", reads(c).into()),
        ("kept", kept(&c["replacement"]).into()),
        ("buckets", buckets(&c["buckets"]).into()),
        ("index", index(&c["index"]).into()),
        ("journal", journal(&c["journal"]).into()),
        ("write-back", writeback(&c["writeback"]).into()),
    ];
    if let Some(hits) = by_volume(&c["hit_ratio"]) {
        rows.push(("hits", hits.into()));
    }
    if c["gc"].is_object() {
        rows.push(("gc", gc(&c["gc"]).into()));
    }
    for kept in c["kept"].as_array().into_iter().flatten() {
        rows.push(("STAYS", Cell::new(Tone::Bad, stays(kept))));
    }
    if let Some(bad) = bad(c, &status["volumes"]) {
        rows.push(("LOST", Cell::new(Tone::Bad, bad)));
    }
    summary(rows, look)
}

fn tone(c: &Value) -> Tone {
    if word(&c["state"]) == "failed" { Tone::Bad } else { Tone::Plain }
}

/// The name of a volume among others.
fn name(v: &Value) -> String {
    shortened(word(&v["name"]), NAME)
}

fn state(c: &Value) -> String {
    match word(&c["state"]) {
        "failed" => "FAILED: it takes nothing any more".into(),
        other => other.to_owned(),
    }
}

/// `writeback: a, b; none: c`.
fn modes(volumes: &Value) -> String {
    let mut by_mode: Vec<(&str, Vec<String>)> = Vec::new();
    for v in volumes.as_array().into_iter().flatten() {
        let (mode, name) = (word(&v["cache_mode"]), name(v));
        match by_mode.iter_mut().find(|(m, _)| *m == mode) {
            Some((_, names)) => names.push(name),
            None => by_mode.push((mode, vec![name])),
        }
    }
    let one = |(mode, names): (&str, Vec<String>)| {
        let more = names.len().saturating_sub(LISTED);
        let listed = names.into_iter().take(LISTED).collect::<Vec<_>>().join(", ");
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{mode}: {listed}{more}")
    };
    let texts: Vec<String> = by_mode.into_iter().map(one).collect();
    if texts.is_empty() { "no volumes".into() } else { texts.join("; ") }
}

/// A share, `-` if there is none.
fn percent(v: &Value) -> String {
    v.as_f64().map_or("-".into(), |share| format!("{:.1}%", share * 100.0))
}

fn reads(c: &Value) -> String {
    let ratio = &c["hit_ratio"];
    let mut text = format!(
        "{} found here, {} of the last hour's, {} of the last minute's ({} of {}), {} kept after \
         a miss, {} past the cache",
        percent(&ratio["total"]),
        percent(&ratio["last_hour"]),
        percent(&ratio["last_minute"]),
        number(&c["hits"]),
        number(&c["hits"]) + number(&c["misses"]),
        number(&c["promoted"]),
        number(&c["bypassed"]),
    );
    match number(&c["refetched"]) {
        0 => {}
        n => text += &format!("; {n} BAD HERE and dropped, the pool has them"),
    }
    text
}

/// What replacement keeps.
fn kept(r: &Value) -> String {
    let mut text = format!("by {}", word(&r["policy"]));
    if r["shares"].is_object() {
        let shares = ["read", "write", "main"]
            .map(|queue| format!("{queue} {}", percent(&r["shares"][queue])))
            .join(", ");
        text += &format!(
            " ({shares}); {} blocks kept when their bucket went, {} came back soon",
            number(&r["moved_blocks"]),
            number(&r["ghost_hits"]),
        );
    }
    match number(&r["lost_survivors"]) {
        0 => {}
        n => text += &format!(", {n} dropped as room was short"),
    }
    match number(&r["bad_survivors"]) {
        0 => {}
        n => text += &format!(", {n} BAD"),
    }
    match number(&r["lost_summaries"]) {
        0 => {}
        n => text += &format!("; {n} buckets got no summary, as the cache's device was too slow"),
    }
    text
}

/// The hit ratio of each volume.
fn by_volume(ratio: &Value) -> Option<String> {
    let volumes = ratio["volumes"].as_array().filter(|all| !all.is_empty())?;
    let one = |v: &Value| {
        let (total, minute) = (percent(&v["total"]), percent(&v["last_minute"]));
        format!("{} {total} (last minute {minute})", name(v))
    };
    let more = volumes.len().saturating_sub(LISTED);
    let listed = volumes.iter().take(LISTED).map(one).collect::<Vec<_>>().join(", ");
    Some(if more > 0 { format!("{listed} and {more} more") } else { listed })
}

fn buckets(b: &Value) -> String {
    let kinds =
        ["free", "clean", "dirty", "metadata"].map(|kind| format!("{} {kind}", number(&b[kind])));
    let mut text = kinds.join(", ");
    match number(&b["retired"]) {
        0 => {}
        n => text += &format!(", {n} RETIRED after errors"),
    }
    text
}

fn index(i: &Value) -> String {
    format!(
        "{} nodes, {} in memory, {} unwritten; {} checkpoints",
        number(&i["nodes"]),
        bytes(&i["resident_bytes"]),
        number(&i["unwritten_nodes"]),
        number(&i["checkpoints"]),
    )
}

fn journal(j: &Value) -> String {
    format!(
        "{} of {} used; {} group commits of {:.1} records",
        bytes(&j["used"]),
        bytes(&j["size"]),
        number(&j["commits"]),
        j["records_per_commit"].as_f64().unwrap_or(0.0),
    )
}

fn writeback(w: &Value) -> String {
    // What the controller has, unless room or age require more.
    let rate = w["rate_in_force"].as_u64().map_or(&w["rate"], |_| &w["rate_in_force"]);
    let mut text = format!(
        "{}/s ({}/s to {}/s), {} passes; the pool's image is {} behind",
        bytes(rate),
        bytes(&w["min"]),
        bytes(&w["max"]),
        number(&w["passes"]),
        human_us(w["lag_seconds"].as_f64().unwrap_or(0.0) * 1e6),
    );
    let (lag, most) = (
        w["lag_seconds"].as_f64().unwrap_or(0.0),
        w["max_lag_seconds"].as_f64().unwrap_or(f64::MAX),
    );
    if lag > most {
        text += &format!(", OLDER THAN max_lag ({})", human_us(most * 1e6));
    }
    if number(&w["writers_waiting"]) > 0 {
        text += &format!("; {} writes wait for room", number(&w["writers_waiting"]));
    }
    if number(&w["target"]) > 0 {
        text += &format!("; {} dirty is the target", bytes(&w["target"]));
    }
    if let Some(e) = w["error"].as_str() {
        text += &format!("; THE LAST ONE FAILED: {e}");
    }
    text
}

fn gc(g: &Value) -> String {
    let ms = |v: &Value| human_us(v.as_f64().unwrap_or(0.0) * 1e3);
    let Some(last) = g["last_sec"].as_f64() else { return "no pass yet".into() };
    format!(
        "{} passes, the last {} ago; {} on average, {} at most; its longest slice took {}",
        number(&g["passes"]),
        human_us(last * 1e6),
        ms(&g["average_duration_ms"]),
        ms(&g["max_duration_ms"]),
        human_us(g["slice_us"]["max"].as_f64().unwrap_or(0.0)),
    )
}

/// What cannot be written back of a volume.
fn stays(kept: &Value) -> String {
    format!(
        "{} of {}, which cannot come to the pool: {}",
        counted(number(&kept["blocks"]), "block", "blocks"),
        word(&kept["volume"]),
        word(&kept["why"])
    )
}

/// Dirty blocks that cannot be written back.
fn bad(c: &Value, volumes: &Value) -> Option<String> {
    let list = c["bad_blocks"].as_array().filter(|list| !list.is_empty())?;
    let name = |id: &Value| {
        let found =
            volumes.as_array().into_iter().flatten().find(|v| !v["id"].is_null() && v["id"] == *id);
        found.map_or_else(|| format!("volume {id}"), |v| word(&v["name"]).to_owned())
    };
    let mut ranges: Vec<(&Value, u64, u64)> = Vec::new();
    for block in list {
        let at = block[1].as_u64().unwrap_or(0);
        match ranges.last_mut() {
            Some((id, _, end)) if **id == block[0] && *end == at => *end += 1,
            _ => ranges.push((&block[0], at, at + 1)),
        }
    }
    let text = |&(id, from, end): &(&Value, u64, u64)| match end - from {
        1 => format!("block {from} of {}", name(id)),
        _ => format!("blocks {from} to {} of {}", end - 1, name(id)),
    };
    let named: Vec<String> = ranges.iter().take(LISTED).map(text).collect();
    let of_named: u64 = ranges.iter().take(LISTED).map(|(_, from, end)| end - from).sum();
    let all = c["bad_blocks_known"].as_u64().unwrap_or(list.len() as u64);
    let more = match all.saturating_sub(of_named) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!(
        "{}{more}: damaged before they came to the pool, or known in part, and the pool cannot \
         read the rest; reading them is an error until they are written again",
        named.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As wide as the longest fact, so that none of them wraps.
    const LOOK: Look = Look { columns: 400, colour: false };

    #[test]
    fn a_cache_in_trouble_is_shown_as_such() {
        let status = serde_json::json!({
            "volumes": [
                { "name": "a", "cache_mode": "writeback" }, { "name": "b", "cache_mode": "none" },
                { "name": "c", "cache_mode": "writeback" }],
            "cache": {
                "path": "/c.img", "state": "failed", "size_bytes": 2u64 << 30,
                "dirty_bytes": 3u64 << 20, "clean_bytes": 0,
                "hits": 3, "misses": 1, "refetched": 2, "bad_blocks": [[1, 77]],
                "hit_ratio": { "total": 0.75, "last_hour": 0.5, "last_minute": null,
                    "volumes": [{ "name": "a", "total": 0.75, "last_minute": 0.25 }] },
                "replacement": { "policy": "adaptive", "moved_blocks": 12, "ghost_hits": 5,
                    "shares": { "read": 0.05, "write": 0.85, "main": 0.1 }, "bad_survivors": 1,
                    "lost_summaries": 4 },
                "buckets": { "free": 5, "retired": 1 }, "journal": { "used": 4096,
                    "size": 1 << 20, "records_per_commit": 2.25 },
                "gc": { "passes": 3, "last_sec": 2.5, "average_duration_ms": 20.0,
                    "max_duration_ms": 30.0, "slice_us": { "max": 210.0 } },
                "writeback": { "rate": 4 << 20, "min": 1 << 20, "max": 1 << 30,
                "lag_seconds": 1.5, "max_lag_seconds": 1.0,
                    "writers_waiting": 7, "error": "no space" },
            },
        });
        let text = text(&status, &LOOK);
        for part in [
            "/c.img: FAILED",
            "writeback: a, c; none: b",
            "3 MiB dirty, 0 B clean, of 2 GiB",
            "75.0% found here, 50.0% of the last hour's, - of the last minute's (3 of 4)",
            "by adaptive (read 5.0%, write 85.0%, main 10.0%); 12 blocks kept when their bucket \
             went, 5 came back soon, 1 BAD; 4 buckets got no summary, as the cache's device was \
             too slow",
            "a 75.0% (last minute 25.0%)",
            "2 BAD HERE",
            "5 free, 0 clean, 0 dirty, 0 metadata, 1 RETIRED",
            "4 KiB of 1 MiB used; 0 group commits of 2.2 records",
            "4 MiB/s (1 MiB/s to 1 GiB/s), 0 passes; the pool's image is 1.5 s behind, OLDER THAN \
             max_lag (1.0 s)",
            "7 writes wait for room",
            "THE LAST ONE FAILED: no space",
            "3 passes, the last 2.5 s ago; 20.0 ms on average, 30.0 ms at most; its longest slice \
             took 210 us",
            "block 77 of volume 1: damaged",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn none_and_nonsense_are_no_panic() {
        assert_eq!(text(&Value::Null, &LOOK), "");
        assert_eq!(text(&serde_json::json!({ "cache": 5 }), &LOOK), "");
        let odd = serde_json::json!({ "cache": {}, "volumes": 5 });
        assert!(text(&odd, &LOOK).contains("no volumes"));
    }
}
