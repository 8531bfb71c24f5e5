//! The table of settings. The configuration file, options of the command line and `forebay set`
//! read them by it, and `docs/configuration.md` is compared with it: each is written down here.

use std::time::Duration;

use base::BLOCK_U64;
use cache::{LagPolicy, Policy, Promote};
use rt::DeviceKind;

use super::values::{Kind, Value};

/// The values of all settings.
#[derive(Clone, Default, Debug)]
pub struct Settings {
    /// The settings of the pool.
    pub pool: pool::Settings,
    /// The settings of the cache, if there is one.
    pub cache: cache::Settings,
    /// The limits of clients.
    pub limits: nbd::Limits,
}

/// Settings of older versions that have no effect any more, each with the reason.
pub const GONE: &[(&str, &str)] = &[
    ("cache.stream_writes", ALWAYS_CACHED),
    ("cache.congested_read", ALWAYS_CACHED),
    ("cache.congested_write", ALWAYS_CACHED),
];
const ALWAYS_CACHED: &str = "writes of volumes that write back always go through the cache";

/// A setting.
#[derive(Debug)]
pub struct Key {
    /// The section of the setting in the configuration file.
    pub section: &'static str,
    /// The name of the setting in that section.
    pub name: &'static str,
    /// The option of the command line, or an empty text.
    pub option: &'static str,
    /// The kind of values, with their range.
    pub kind: Kind,
    /// True if the setting may change while the server runs.
    pub live: bool,
    /// The meaning of the setting, for people.
    pub what: &'static str,
    get: fn(&Settings) -> Value,
    put: fn(&mut Settings, Value),
}

impl Key {
    /// Returns the name of the setting with its section.
    pub fn full_name(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }

    /// Returns the value of the setting.
    pub fn get(&self, settings: &Settings) -> Value {
        (self.get)(settings)
    }

    /// Gives the setting a value of its kind that is in its range.
    pub fn put(&self, settings: &mut Settings, value: Value) {
        (self.put)(settings, value);
    }

    const fn option(mut self, option: &'static str) -> Key {
        self.option = option;
        self
    }

    const fn at_start(mut self) -> Key {
        self.live = false;
        self
    }
}

/// The access to a field of the settings.
struct Field {
    get: fn(&Settings) -> Value,
    put: fn(&mut Settings, Value),
}

const fn key(
    section: &'static str,
    name: &'static str,
    kind: Kind,
    field: Field,
    what: &'static str,
) -> Key {
    let Field { get, put } = field;
    Key { section, name, option: "", kind, live: true, what, get, put }
}

/// A field that is a number of bytes, or another number.
macro_rules! number {
    ($kind:ident: $($field:ident).+) => {
        Field {
            get: |s| Value::$kind(s.$($field).+ as u64),
            put: |s, v| s.$($field).+ = v.number() as _,
        }
    };
}

macro_rules! time {
    ($($field:ident).+) => {
        Field { get: |s| Value::Time(s.$($field).+), put: |s, v| s.$($field).+ = v.time() }
    };
}

/// A field that is the kind of devices; without one, the kernel is asked.
macro_rules! kind {
    ($($field:ident).+) => {
        Field {
            get: |s| Value::Word(s.$($field).+.map_or("auto", DeviceKind::word)),
            put: |s, v| {
                s.$($field).+ = DeviceKind::ALL.into_iter().find(|one| one.word() == v.word());
            },
        }
    };
}

/// A field that is one of an enumeration; one without a word cannot be met.
macro_rules! word {
    ($all:expr, $($field:ident).+) => {
        Field {
            get: |s| Value::Word(s.$($field).+.word()),
            put: |s, v| {
                let known = $all.into_iter().find(|one| one.word() == v.word());
                s.$($field).+ = known.unwrap_or_else(|| unreachable!("the table has its words"));
            },
        }
    };
}

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;
const T: u64 = 1 << 40;
const MANY: u64 = 1 << 24;
const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

const LATE: Duration = Duration::from_secs(10);
const KINDS: Kind = Kind::Word(&["auto", "rotating", "ssd", "nvme", "unknown"]);

const POOL: &str = "pool";
const CACHE: &str = "cache";
const NBD: &str = "nbd";
const SCRUB: &str = "scrub";

/// All settings.
pub static KEYS: &[Key] = &[
    key(
        NBD,
        "max_connections",
        Kind::Number(1, 4096),
        number!(Number: limits.max_connections),
        "clients with a volume, so many over unix sockets and so many over TCP",
    )
    .option("--max-connections")
    .at_start(),
    key(
        NBD,
        "max_requests_per_connection",
        Kind::Number(1, 4096),
        number!(Number: limits.max_in_flight_requests),
        "requests of one connection that are worked on at a time",
    )
    .at_start(),
    key(
        NBD,
        "max_payload",
        Kind::Size(32 * M, T),
        number!(Size: limits.max_payload_bytes),
        "data of all requests being worked on",
    )
    .at_start(),
    key(
        POOL,
        "commit_interval",
        Kind::Time(MS, HOUR),
        time!(pool.commit_interval),
        "what was written becomes durable at least this often, flushed or not",
    )
    .option("--commit-interval"),
    key(
        POOL,
        "dirty_nodes",
        Kind::Number(64, MANY),
        number!(Number: pool.dirty_nodes),
        "tree nodes (4 KiB each) changed in memory at which a commit begins before its time; at \
         as many a write-back pass writes those that it has changed",
    ),
    key(
        POOL,
        "cached_nodes",
        // A commit and a few readers need the least of them at the same time.
        Kind::Number(256, 1 << 28),
        number!(Number: pool.cached_nodes),
        "tree nodes (4 KiB each) kept in memory",
    )
    .at_start(),
    key(
        POOL,
        "loaded_groups",
        Kind::Number(16, MANY),
        number!(Number: pool.loaded_groups),
        "block groups whose allocation bitmaps are kept in memory",
    ),
    key(
        POOL,
        "device_depth",
        Kind::Number(1, 4096),
        number!(Number: pool.device.depth),
        "requests in flight on each device",
    )
    .at_start(),
    key(POOL, "kind", KINDS, kind!(pool.device.kind), "what kind of disk each device is")
        .at_start(),
    key(
        POOL,
        "latency_target_read",
        Kind::Time(Duration::ZERO, LATE),
        time!(pool.targets.read),
        "how long a client's read of a device should take at most",
    ),
    key(
        POOL,
        "latency_target_write",
        Kind::Time(Duration::ZERO, LATE),
        time!(pool.targets.write),
        "the same for a client's write to a device of the pool",
    ),
    key(
        POOL,
        "read_ahead",
        Kind::Size(0, 1 << 20),
        number!(Size: pool.read_ahead),
        "on disks that rotate, data is read so far ahead of clients that read in order; 0: none is",
    ),
    key(
        POOL,
        "sit_out",
        Kind::Time(Duration::ZERO, Duration::from_secs(86_400)),
        time!(pool.sit_out),
        "so long a device that is slow beside others or errs often is read only where it must be; \
         0: never",
    ),
    key(
        POOL,
        "spare_after",
        Kind::Time(Duration::ZERO, Duration::from_secs(7 * 86_400)),
        time!(pool.spare_after),
        "a spare takes the place of a device that was missing or failed for so long; 0: none does \
         by itself",
    ),
    key(
        SCRUB,
        "every",
        Kind::Time(Duration::ZERO, Duration::from_secs(3650 * 86_400)),
        time!(pool.scrub_every),
        "a scrub begins by itself so long after the last one; 0: none does",
    ),
    key(
        SCRUB,
        "at",
        Kind::TimeOfDay,
        Field {
            get: |s| Value::TimeOfDay(s.pool.scrub_at),
            put: |s, v| s.pool.scrub_at = v.time_of_day(),
        },
        "the time of day, UTC, at which a scrub that is due begins",
    ),
    key(
        SCRUB,
        "rate",
        Kind::Size(0, T),
        number!(Size: pool.scrub_rate),
        "bytes a second that a scrub reads of each copy at most; 0: as fast as devices let it",
    ),
    key(
        SCRUB,
        "gap",
        Kind::Size(0, M),
        number!(Size: pool.scrub_gap),
        "a scrub reads through gaps of so many bytes between blocks",
    ),
    key(
        CACHE,
        "policy",
        Kind::Word(&["lru", "fifo", "random", "adaptive"]),
        word!(Policy::ALL, cache.policy),
        "which blocks are kept",
    )
    .option("--cache-policy")
    .at_start(),
    key(
        CACHE,
        "max_lag",
        Kind::Time(Duration::from_millis(100), HOUR),
        time!(cache.max_lag),
        "how much older than the volumes the pool's image should be at most",
    )
    .option("--max-lag"),
    key(
        CACHE,
        "max_lag_policy",
        Kind::Word(&["aim", "strict"]),
        word!(LagPolicy::ALL, cache.max_lag_policy),
        "what becomes of writers when the image is older",
    ),
    key(
        CACHE,
        "dirty_target",
        Kind::Number(1, 90),
        number!(Number: cache.dirty_target_percent),
        "percent of the cache that dirty data is held to",
    ),
    key(
        CACHE,
        "dirty_limit",
        Kind::Number(2, 98),
        number!(Number: cache.dirty_limit_percent),
        "percent of the cache's room that dirty data may take before a write waits 100 ms",
    ),
    key(
        CACHE,
        "writeback_rate_min",
        Kind::Size(64 * K, T),
        number!(Size: cache.writeback.min),
        "bytes a second that a pass of write-back carries at least",
    ),
    key(
        CACHE,
        "writeback_rate_max",
        Kind::Size(64 * K, T),
        number!(Size: cache.writeback.max),
        "bytes a second that write-back carries at most; a cache flush or detach does not wait",
    ),
    key(
        CACHE,
        "writeback_rate_idle",
        Kind::Size(0, T),
        number!(Size: cache.writeback.idle_rate),
        "bytes a second that write-back may come to while no client asks for anything",
    ),
    key(
        CACHE,
        "promote",
        Kind::Word(&["never", "first", "second"]),
        word!(Promote::ALL, cache.promote),
        "which reads are kept after a miss",
    ),
    key(
        CACHE,
        "promote_max",
        Kind::Size(BLOCK_U64, M),
        Field {
            get: |s| Value::Size(s.cache.promote_blocks * BLOCK_U64),
            put: |s, v| s.cache.promote_blocks = v.number() / BLOCK_U64,
        },
        "reads that are longer are not kept",
    ),
    key(
        CACHE,
        "sequential_cutoff",
        Kind::Size(0, T),
        number!(Size: cache.sequential_cutoff),
        "reads that are longer are streams, which are not kept; 0: none is",
    ),
    key(CACHE, "kind", KINDS, kind!(cache.device.kind), "what kind of disk the cache device is")
        .at_start(),
    key(
        CACHE,
        "latency_target_read",
        Kind::Time(Duration::ZERO, LATE),
        time!(cache.targets.read),
        "how long a client's read of the cache device should take at most",
    ),
    key(
        CACHE,
        "latency_target_write",
        Kind::Time(Duration::ZERO, LATE),
        time!(cache.targets.write),
        "the same for a client's write to the cache device",
    ),
    key(
        CACHE,
        "index_memory",
        Kind::Size(M, T),
        Field {
            get: |s| Value::Size(s.cache.resident_nodes as u64 * BLOCK_U64),
            put: |s, v| s.cache.resident_nodes = (v.number() / BLOCK_U64) as usize,
        },
        "memory for clean nodes of the index",
    )
    .option("--index-memory")
    .at_start(),
    key(
        CACHE,
        "dirty_nodes",
        Kind::Number(64, MANY),
        number!(Number: cache.dirty_nodes),
        "changed nodes (4 KiB each) of the index from which on a checkpoint begins",
    )
    .at_start(),
    key(
        CACHE,
        "journal_interval",
        Kind::Time(MS, Duration::from_secs(60)),
        time!(cache.journal_interval),
        "what was written becomes durable in the cache at least this often, flushed or not",
    ),
    key(
        CACHE,
        "gc_slice",
        Kind::Time(Duration::from_micros(10), Duration::from_millis(100)),
        time!(cache.gc_slice),
        "garbage collection gives others a turn after so much time",
    ),
    key(
        CACHE,
        "gc_min_nodes",
        Kind::Number(1, 1000),
        number!(Number: cache.gc_min_nodes),
        "leaves of the index that such a slice looks at, at least",
    ),
    key(
        CACHE,
        "gc_pause",
        Kind::Time(Duration::ZERO, Duration::from_secs(1)),
        time!(cache.gc_pause),
        "garbage collection rests for so long after a slice at most, while clients are at work",
    ),
];

/// Pairs of settings of which the first is below the second, or not above it, as the third says.
pub const ORDER: &[(&str, &str, bool)] = &[
    ("cache.dirty_target", "cache.dirty_limit", true),
    ("cache.writeback_rate_min", "cache.writeback_rate_max", false),
];

/// The setting of this full name, which the program itself names.
pub fn known(name: &str) -> &'static Key {
    let found = KEYS.iter().find(|key| key.full_name() == name);
    found.unwrap_or_else(|| unreachable!("the table has {name}"))
}
