//! What a server is told of its cache.

use std::path::PathBuf;
use std::time::Duration;

use base::BLOCK_U64;
use cache::{LagPolicy, Policy, Promote, Settings, controller};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use super::values::{duration, size, within};
use crate::error::{CommandError, Result};

/// The cache of a server, and how it behaves.
#[derive(Default, Debug)]
pub struct CacheConfig {
    /// Its file or block device.
    pub path: Option<PathBuf>,
    /// Bytes of the cache that is made if the pool has none; `None`: none is made. 0: there is to
    /// be none.
    pub size_bytes: Option<u64>,
    /// Give up the cache that is attached, which is lost.
    pub forget: bool,
    /// It was not asked for: where it cannot be made, the server goes on without.
    pub optional: bool,
    /// The file is the server's own: it is removed when it is of no use any more.
    pub owned: bool,
    /// How it behaves.
    pub settings: Settings,
}

/// Options of the command line: what is given takes precedence.
#[derive(Default, Debug)]
pub struct CacheOverrides {
    /// See [`CacheConfig`].
    pub path: Option<PathBuf>,
    /// See [`CacheConfig`].
    pub size_bytes: Option<u64>,
    /// See [`CacheConfig`].
    pub forget: bool,
    /// See [`Settings`].
    pub policy: Option<Policy>,
    /// See [`Settings`].
    pub max_lag: Option<Duration>,
    /// Bytes of memory for clean nodes of the index.
    pub index_memory: Option<u64>,
}

#[derive(Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CacheSection {
    pub path: Option<PathBuf>,
    #[serde(default, deserialize_with = "size")]
    size: Option<u64>,
    #[serde(default, deserialize_with = "policy")]
    policy: Option<Policy>,
    #[serde(default, deserialize_with = "duration")]
    max_lag: Option<Duration>,
    #[serde(default, deserialize_with = "lag_policy")]
    max_lag_policy: Option<LagPolicy>,
    dirty_target: Option<u8>,
    dirty_limit: Option<u8>,
    #[serde(default, deserialize_with = "size")]
    writeback_rate_min: Option<u64>,
    #[serde(default, deserialize_with = "size")]
    writeback_rate_max: Option<u64>,
    #[serde(default, deserialize_with = "size")]
    writeback_rate_idle: Option<u64>,
    #[serde(default, deserialize_with = "promote")]
    promote: Option<Promote>,
    #[serde(default, deserialize_with = "size")]
    promote_max: Option<u64>,
    #[serde(default, deserialize_with = "size")]
    sequential_cutoff: Option<u64>,
    #[serde(default, deserialize_with = "duration")]
    congested_read: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    congested_write: Option<Duration>,
    #[serde(default, deserialize_with = "size")]
    index_memory: Option<u64>,
    dirty_nodes: Option<u64>,
    #[serde(default, deserialize_with = "duration")]
    journal_interval: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    gc_slice: Option<Duration>,
}

fn policy<'de, D: Deserializer<'de>>(d: D) -> std::result::Result<Option<Policy>, D::Error> {
    String::deserialize(d)?.parse().map(Some).map_err(D::Error::custom)
}

fn lag_policy<'de, D: Deserializer<'de>>(d: D) -> std::result::Result<Option<LagPolicy>, D::Error> {
    let word = String::deserialize(d)?;
    let unknown =
        || D::Error::custom(format!("max_lag_policy is {word:?}; it can be aim or strict"));
    LagPolicy::parse(&word).map(Some).ok_or_else(unknown)
}

fn promote<'de, D: Deserializer<'de>>(d: D) -> std::result::Result<Option<Promote>, D::Error> {
    match String::deserialize(d)?.as_str() {
        "never" => Ok(Some(Promote::Never)),
        "first" => Ok(Some(Promote::First)),
        "second" => Ok(Some(Promote::Second)),
        other => {
            Err(D::Error::custom(format!("promote is {other:?}; it can be never, first or second")))
        }
    }
}

impl CacheConfig {
    /// Puts together what was said, and checks it.
    pub(super) fn new(options: CacheOverrides, file: CacheSection) -> Result<CacheConfig> {
        let path = options.path.or(file.path);
        let size_bytes = options.size_bytes.or(file.size);
        if path.is_none() && size_bytes.is_some_and(|n| n > 0) {
            return Err(CommandError::Usage(
                "a cache needs a path: --cache PATH, or path in [cache]".into(),
            ));
        }
        let default = Settings::default();
        let rates = controller::Settings {
            min: file.writeback_rate_min.unwrap_or(default.writeback.min),
            max: file.writeback_rate_max.unwrap_or(default.writeback.max),
            idle_rate: file.writeback_rate_idle.unwrap_or(default.writeback.idle_rate),
        };
        let memory = options.index_memory.or(file.index_memory);
        let memory = memory.unwrap_or(default.resident_nodes as u64 * BLOCK_U64);
        let promote_max = file.promote_max.unwrap_or(default.promote_blocks * BLOCK_U64);
        let mut settings = default.clone();
        settings.policy = options.policy.or(file.policy).unwrap_or(default.policy);
        settings.resident_nodes = (memory / BLOCK_U64) as usize;
        settings.dirty_nodes = file.dirty_nodes.unwrap_or(default.dirty_nodes);
        settings.journal_interval = file.journal_interval.unwrap_or(default.journal_interval);
        settings.max_lag = options.max_lag.or(file.max_lag).unwrap_or(default.max_lag);
        settings.max_lag_policy = file.max_lag_policy.unwrap_or(default.max_lag_policy);
        settings.dirty_target_percent = file.dirty_target.unwrap_or(default.dirty_target_percent);
        settings.dirty_limit_percent = file.dirty_limit.unwrap_or(default.dirty_limit_percent);
        settings.writeback = rates;
        settings.promote = file.promote.unwrap_or(default.promote);
        settings.promote_blocks = promote_max / BLOCK_U64;
        settings.sequential_cutoff = file.sequential_cutoff.unwrap_or(default.sequential_cutoff);
        settings.congested_read = file.congested_read.unwrap_or(default.congested_read);
        settings.congested_write = file.congested_write.unwrap_or(default.congested_write);
        settings.gc_slice = file.gc_slice.unwrap_or(default.gc_slice);
        let hour = Duration::from_secs(3600);
        within("max_lag", settings.max_lag, Duration::from_millis(100), hour)?;
        within(
            "journal_interval",
            settings.journal_interval,
            Duration::from_millis(1),
            Duration::from_secs(60),
        )?;
        within(
            "gc_slice",
            settings.gc_slice,
            Duration::from_micros(10),
            Duration::from_millis(100),
        )?;
        within("congested_read", settings.congested_read, Duration::ZERO, Duration::from_secs(10))?;
        within(
            "congested_write",
            settings.congested_write,
            Duration::ZERO,
            Duration::from_secs(10),
        )?;
        within("dirty_target", settings.dirty_target_percent, 1, 90)?;
        within(
            "dirty_limit",
            settings.dirty_limit_percent,
            settings.dirty_target_percent.saturating_add(1),
            98,
        )?;
        within(
            "writeback_rate_max",
            settings.writeback.max,
            settings.writeback.min.max(64 << 10),
            1 << 40,
        )?;
        within("writeback_rate_min", settings.writeback.min, 64 << 10, settings.writeback.max)?;
        within("promote_max", promote_max, BLOCK_U64, 1 << 20)?;
        within("index_memory", memory, 1 << 20, 1 << 40)?;
        within("dirty_nodes", settings.dirty_nodes, 64, 1 << 24)?;
        Ok(CacheConfig {
            path,
            size_bytes,
            forget: options.forget,
            optional: false,
            owned: false,
            settings,
        })
    }
}
