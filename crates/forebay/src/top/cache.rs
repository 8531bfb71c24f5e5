//! The lines of the cache.

use serde_json::Value;

use super::sample::Sample;
use crate::terminal::{Cell, Tone};
use crate::units::{human_bytes, human_us};

fn bytes(v: &Value) -> String {
    human_bytes(v.as_u64().unwrap_or(0))
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".into(), |share| format!("{:.0} %", share * 100.0))
}

/// What it holds, and what write-back does. Nothing if there is no cache.
pub fn rows(before: &Sample, now: &Sample, seconds: f64) -> Vec<(&'static str, Cell)> {
    let (old, cache) = (&before.status["cache"], &now.status["cache"]);
    if !cache.is_object() {
        return Vec::new();
    }
    vec![("cache", holds(old, cache)), ("write-back", writeback(old, cache, seconds))]
}

fn holds(old: &Value, cache: &Value) -> Cell {
    let state = cache["state"].as_str().unwrap_or("?");
    let blocks = |name: &str| {
        let [old, new] = [old, cache].map(|of| of[name].as_u64().unwrap_or(0));
        new.checked_sub(old).unwrap_or(new) as f64
    };
    let (hits, misses) = (blocks("hits"), blocks("misses"));
    let ratio = (hits + misses > 0.0).then(|| hits / (hits + misses));
    let tone = if state == "serving" { Tone::Plain } else { Tone::Bad };
    Cell::new(
        tone,
        format!(
            "{state}: {} dirty, {} clean, of {}; hits: {} now, {} in the last minute",
            bytes(&cache["dirty_bytes"]),
            bytes(&cache["clean_bytes"]),
            bytes(&cache["size_bytes"]),
            percent(ratio),
            percent(cache["hit_ratio"]["last_minute"].as_f64()),
        ),
    )
}

/// How fast, and why: what the controller makes of dirty bytes and its target.
fn writeback(old: &Value, cache: &Value, seconds: f64) -> Cell {
    let (old, w) = (&old["writeback"], &cache["writeback"]);
    let [before, carried] = [old, w].map(|of| of["carried_bytes"].as_u64().unwrap_or(0));
    let carried = carried.checked_sub(before).unwrap_or(carried) as f64 / seconds;
    let seconds_of = |name: &str| w[name].as_f64().unwrap_or(0.0);
    let (lag, most) = (seconds_of("lag_seconds"), seconds_of("max_lag_seconds"));
    let part = |name: &str| {
        let per_second = w[name].as_f64().unwrap_or(0.0);
        let sign = if per_second < 0.0 { "-" } else { "" };
        format!("{sign}{}/s", human_bytes(per_second.abs() as u64))
    };
    let mut text = format!(
        "{}/s of {}/s; lag {} of {}; controller saw {} dirty, target {}, P {}, I {}",
        human_bytes(carried as u64),
        bytes(&w["rate"]),
        human_us(lag * 1e6),
        human_us(most * 1e6),
        bytes(&w["dirty"]),
        bytes(&w["target"]),
        part("proportional"),
        part("integral"),
    );
    let waiting = w["writers_waiting"].as_u64().unwrap_or(0);
    if waiting > 0 {
        text += &format!("; {waiting} writes wait for room");
    }
    if let Some(e) = w["error"].as_str() {
        text += &format!("; THE LAST PASS FAILED: {e}");
    }
    let jobs = cache["working"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let jobs: Vec<&str> = jobs.collect();
    if !jobs.is_empty() {
        text += &format!("; at work: {}", jobs.join(", "));
    }
    let is_bad = lag > most || waiting > 0 || w["error"].is_string();
    Cell::new(if is_bad { Tone::Warn } else { Tone::Plain }, text)
}
