//! The lines of the cache.

use model::cache::{CacheState, CacheStatus};

use super::sample::Sample;
use crate::terminal::{Cell, Tone};
use crate::units::{human_bytes, human_us};

fn percent(share: Option<f64>) -> String {
    share.map_or("-".into(), |share| format!("{:.0} %", share * 100.0))
}

/// The rows of the cache: what it holds, and what write-back does. Empty if there is no cache.
pub fn rows(before: &Sample, now: &Sample, seconds: f64) -> Vec<(&'static str, Cell)> {
    let Some(cache) = &now.status.cache else { return Vec::new() };
    let old = before.status.cache.as_ref();
    vec![("cache", holds(old, cache)), ("write-back", writeback(old, cache, seconds))]
}

/// The growth of a counter. A server that was started anew counts from 0.
fn grown(old: Option<&CacheStatus>, new: &CacheStatus, of: impl Fn(&CacheStatus) -> u64) -> f64 {
    let new = of(new);
    new.checked_sub(old.map_or(0, of)).unwrap_or(new) as f64
}

fn holds(old: Option<&CacheStatus>, cache: &CacheStatus) -> Cell {
    let (hits, misses) = (grown(old, cache, |c| c.hits), grown(old, cache, |c| c.misses));
    let ratio = (hits + misses > 0.0).then(|| hits / (hits + misses));
    let tone = if cache.state == CacheState::Serving { Tone::Plain } else { Tone::Bad };
    Cell::new(
        tone,
        format!(
            "{}: {} dirty, {} clean, of {}; hits: {} now, {} in the last minute",
            cache.state,
            human_bytes(cache.dirty_bytes),
            human_bytes(cache.clean_bytes),
            human_bytes(cache.size_bytes),
            percent(ratio),
            percent(cache.hit_ratio.last_minute),
        ),
    )
}

/// The rate of write-back, and the reasons for it: what the controller makes of dirty bytes and its
/// target.
fn writeback(old: Option<&CacheStatus>, cache: &CacheStatus, seconds: f64) -> Cell {
    let w = &cache.writeback;
    let carried = grown(old, cache, |c| c.writeback.carried_bytes) / seconds;
    let part = |per_second: f64| {
        let sign = if per_second < 0.0 { "-" } else { "" };
        format!("{sign}{}/s", human_bytes(per_second.abs() as u64))
    };
    let mut text = format!(
        "{}/s of {}/s; lag {} of {}; controller saw {} dirty, target {}, P {}, I {}",
        human_bytes(carried as u64),
        human_bytes(w.rate),
        human_us(w.lag_seconds * 1e6),
        human_us(w.max_lag_seconds * 1e6),
        human_bytes(w.dirty),
        human_bytes(w.target),
        part(w.proportional),
        part(w.integral),
    );
    if w.writers_waiting > 0 {
        text += &format!("; {} writes wait for room", w.writers_waiting);
    }
    if let Some(e) = &w.error {
        text += &format!("; THE LAST PASS FAILED: {e}");
    }
    let jobs: Vec<&str> = cache.working.iter().map(|job| job.word()).collect();
    if !jobs.is_empty() {
        text += &format!("; at work: {}", jobs.join(", "));
    }
    let is_bad = w.lag_seconds > w.max_lag_seconds || w.writers_waiting > 0 || w.error.is_some();
    Cell::new(if is_bad { Tone::Warn } else { Tone::Plain }, text)
}
