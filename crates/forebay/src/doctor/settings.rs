//! Checks of settings that may be meant so, and hardly are: each is in its range, and fights
//! another one or does nothing.

use std::time::Duration;

use cache::LagPolicy;

use super::finding::{Finding, Level};
use crate::config::table::Settings;
use crate::units::{exact_duration, exact_size, human_bytes, human_seconds};

const CHECK: &str = "settings";
const ZERO: Duration = Duration::ZERO;
/// The interval of commits above which a crash loses much.
const RARE_COMMITS: Duration = Duration::from_secs(60);
/// The interval of commits below which a pool hardly does anything else.
const MANY_COMMITS: Duration = Duration::from_millis(100);
/// A pass of write-back begins within half of `max_lag`, and ends with a commit of the pool.
const SHORT_LAG: Duration = Duration::from_secs(2);
/// The time that a rotating disk needs for a read or a write, with others before it.
const ROTATING_TARGET: Duration = Duration::from_millis(10);
/// The number of times `max_lag` that write-back of a full cache may take: if it takes longer, it
/// does not hold `max_lag`.
const LAGS: f64 = 10.0;

/// The sizes and targets that the checks use, beside the settings.
#[derive(Clone, Copy, Default, Debug)]
pub struct KnownSizes {
    /// The size of the cache in bytes; `None` if there is no cache.
    pub cache_bytes: Option<u64>,
    /// The size in bytes of the largest device of the pool.
    pub device_bytes: u64,
    /// True if a device of the pool rotates.
    pub rotates: bool,
}

/// Checks the settings.
pub fn check(settings: &Settings, known: &KnownSizes) -> Vec<Finding> {
    let mut all = Vec::new();
    commits(settings, &mut all);
    scrub(settings, known, &mut all);
    devices(settings, known, &mut all);
    if let Some(bytes) = known.cache_bytes {
        lag(settings, bytes, &mut all);
        streams(settings, &mut all);
    }
    if all.is_empty() {
        all.push(Finding::ok(CHECK, "none fights another"));
    }
    all
}

fn add(all: &mut Vec<Finding>, level: Level, found: impl Into<String>, todo: &str) {
    all.push(Finding::new(level, CHECK, found, todo));
}

fn commits(settings: &Settings, all: &mut Vec<Finding>) {
    let every = settings.pool.commit_interval;
    let is = format!("pool.commit_interval is {}", exact_duration(every));
    if every > RARE_COMMITS {
        let found = format!("{is}: a crash loses up to so much of what was not flushed");
        add(all, Level::Warning, found, "set it to some seconds; 5s is the default");
    } else if every < MANY_COMMITS {
        let found = format!("{is}: the devices are busy with commits");
        let todo = "set it to a second or more: a client that needs its data at once flushes";
        add(all, Level::Warning, found, todo);
    }
}

fn scrub(settings: &Settings, known: &KnownSizes, all: &mut Vec<Finding>) {
    let pool = &settings.pool;
    if pool.scrub_every == ZERO {
        let found = "scrub.every is 0: bad blocks that no client reads are found too late, when \
                     the other copy is bad, too";
        let todo = "set scrub.every to 30d, or run forebay scrub start by a timer of your own";
        add(all, Level::Warning, found, todo);
        if pool.scrub_at.is_some() {
            let found = "scrub.at is set, and scrub.every is 0: no scrub begins by itself";
            add(all, Level::Note, found, "set scrub.every, or leave scrub.at away");
        }
        return;
    }
    let Some(seconds) = known.device_bytes.checked_div(pool.scrub_rate) else { return };
    if Duration::from_secs(seconds) > pool.scrub_every {
        let found = format!(
            "scrub.rate is {} a second: a full device of {} takes {}, and the next scrub is due \
             after {}",
            exact_size(pool.scrub_rate),
            human_bytes(known.device_bytes),
            human_seconds(seconds),
            exact_duration(pool.scrub_every)
        );
        add(all, Level::Warning, found, "raise scrub.rate (0: no limit), or scrub.every");
    }
}

fn devices(settings: &Settings, known: &KnownSizes, all: &mut Vec<Finding>) {
    let pool = &settings.pool;
    if pool.spare_after == ZERO {
        let found = "pool.spare_after is 0: no spare takes the place of a lost device by itself";
        add(all, Level::Note, found, "set it to 10m, if the pool has a spare");
    }
    if pool.sit_out == ZERO {
        let found = "pool.sit_out is 0: clients wait for a device that is about to fail, though \
                     another has a copy";
        add(all, Level::Note, found, "set it to 10m");
    }
    if pool.device.depth == 1 {
        let found = "pool.device_depth is 1: a device has no requests to choose from, and clients \
                     wait for each other";
        add(all, Level::Warning, found, "set it to 32 or more; 128 is the default");
    }
    let targets = [("read", pool.targets.read), ("write", pool.targets.write)];
    for (what, target) in targets {
        if known.rotates && target > ZERO && target < ROTATING_TARGET {
            let found = format!(
                "pool.latency_target_{what} is {}, and a device of the pool rotates: it never \
                 holds that, so write-back, scrubs and moves get the least there is",
                exact_duration(target)
            );
            add(all, Level::Warning, found, "set it to 0s (by the kind of device), or above 10ms");
        }
    }
}

fn lag(settings: &Settings, bytes: u64, all: &mut Vec<Finding>) {
    let cache = &settings.cache;
    let (lag, strict) = (cache.max_lag, cache.max_lag_policy == LagPolicy::Strict);
    let most = bytes / 100 * u64::from(cache.dirty_limit_percent);
    let seconds = most as f64 / cache.writeback.max.max(1) as f64;
    if seconds > LAGS * lag.as_secs_f64() {
        let found = format!(
            "cache.writeback_rate_max is {} a second: write-back of a full cache takes {}, and \
             cache.max_lag is {}{}",
            exact_size(cache.writeback.max),
            human_seconds(seconds as u64),
            exact_duration(lag),
            if strict { "; with max_lag_policy strict writers are slowed to that" } else { "" }
        );
        add(all, Level::Warning, found, "raise writeback_rate_max or max_lag");
    }
    if lag < SHORT_LAG {
        let found = format!(
            "cache.max_lag is {}: write-back commits the pool twice in that time",
            exact_duration(lag)
        );
        add(
            all,
            Level::Note,
            found,
            "set it to some seconds, unless the pool is as fast as the cache",
        );
    }
    if cache.journal_interval > Duration::from_secs(10) {
        let found = format!(
            "cache.journal_interval is {}: a crash loses up to so much of what was not flushed",
            exact_duration(cache.journal_interval)
        );
        add(all, Level::Warning, found, "set it to 1s, the default");
    }
    if cache.dirty_target_percent < 5 {
        let found = format!(
            "cache.dirty_target is {}: what is written again soon goes to the pool each time",
            cache.dirty_target_percent
        );
        add(all, Level::Note, found, "set it to 40, the default, to have bursts absorbed");
    }
}

fn streams(settings: &Settings, all: &mut Vec<Finding>) {
    let cache = &settings.cache;
    let (cutoff, longest) = (cache.sequential_cutoff, cache.promote_blocks * base::BLOCK_U64);
    if cutoff > 0 && longest > cutoff {
        let found = format!(
            "cache.promote_max is {}, and from cache.sequential_cutoff, {}, on a read is a stream, \
             which is not kept",
            exact_size(longest),
            exact_size(cutoff)
        );
        add(all, Level::Note, found, "raise sequential_cutoff, or lower promote_max");
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::has;
    use super::*;

    const KNOWN: KnownSizes =
        KnownSizes { cache_bytes: Some(2 << 30), device_bytes: 16 << 30, rotates: false };

    fn found(change: impl FnOnce(&mut Settings)) -> Vec<Finding> {
        let mut settings = Settings::default();
        change(&mut settings);
        check(&settings, &KNOWN)
    }

    #[test]
    fn defaults_are_fine() {
        for bytes in [64 << 20, 2 << 30, 200 << 30] {
            let known = KnownSizes { cache_bytes: Some(bytes), rotates: true, ..KNOWN };
            let all = check(&Settings::default(), &known);
            assert!(all.len() == 1 && all[0].level == Level::Ok, "{all:?}");
        }
    }

    #[test]
    fn each_is_told() {
        type Change = fn(&mut Settings);
        let rows: [(Change, Level, &[&str]); 14] = [
            (|s| s.pool.commit_interval = Duration::from_secs(3600), Level::Warning, &["1h"]),
            (|s| s.pool.commit_interval = Duration::from_millis(1), Level::Warning, &["busy"]),
            (|s| s.pool.scrub_every = ZERO, Level::Warning, &["scrub.every is 0"]),
            (
                |s| (s.pool.scrub_every, s.pool.scrub_at) = (ZERO, Some(120)),
                Level::Note,
                &["scrub.at"],
            ),
            (|s| s.pool.scrub_rate = 4096, Level::Warning, &["4K a second", "48 d", "30d"]),
            (|s| s.pool.spare_after = ZERO, Level::Note, &["spare_after is 0"]),
            (|s| s.pool.sit_out = ZERO, Level::Note, &["sit_out is 0"]),
            (|s| s.pool.device.depth = 1, Level::Warning, &["device_depth is 1"]),
            (
                |s| s.cache.writeback.max = 1 << 20,
                Level::Warning,
                &["writeback_rate_max is 1M", "32 min", "30s"],
            ),
            (
                |s| {
                    s.cache.writeback.max = 1 << 20;
                    s.cache.max_lag_policy = LagPolicy::Strict;
                },
                Level::Warning,
                &["writers are slowed"],
            ),
            (|s| s.cache.max_lag = Duration::from_millis(500), Level::Note, &["max_lag is 500ms"]),
            (|s| s.cache.journal_interval = RARE_COMMITS, Level::Warning, &["journal_interval"]),
            (|s| s.cache.dirty_target_percent = 1, Level::Note, &["dirty_target is 1"]),
            (|s| s.cache.sequential_cutoff = 65_536, Level::Note, &["promote_max is 256K", "64K"]),
        ];
        for (change, level, words) in rows {
            let all = found(change);
            assert!(has(&all, level, words), "{words:?}: {all:?}");
        }
    }

    #[test]
    fn a_target_that_a_disk_cannot_hold() {
        let mut settings = Settings::default();
        settings.pool.targets.read = Duration::from_millis(1);
        assert!(!has(&check(&settings, &KNOWN), Level::Warning, &["latency"]), "an SSD does");
        let all = check(&settings, &KnownSizes { rotates: true, ..KNOWN });
        assert!(has(&all, Level::Warning, &["pool.latency_target_read is 1ms"]), "{all:?}");
    }

    #[test]
    fn without_a_cache_its_settings_do_not_matter() {
        let mut settings = Settings::default();
        settings.cache.writeback.max = 65_536;
        let all = check(&settings, &KnownSizes { cache_bytes: None, ..KNOWN });
        assert!(all.iter().all(|one| one.level == Level::Ok), "{all:?}");
    }
}
