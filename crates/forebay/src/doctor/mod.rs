//! `forebay doctor`: what of this machine and of a configuration would hurt a server.
//!
//! Fault model: nothing is changed, and nothing is locked for more than a moment, and then only
//! where no server runs; so it may run beside a server. What cannot be found out costs its check,
//! and nothing else. It looks as the user that runs it.
//!
//! * [`finding`]: what a check has found; [`text`]: all of them, for people
//! * [`machine`]: checks of the machine
//! * [`found`]: what was found of devices; [`device`]: checks of each; [`together`]: of all
//! * [`start`]: what a start would look at itself
//! * [`settings`]: checks of settings; [`places`]: of where clients connect; [`access`]: of who may
//! * [`probe`]: looks at the machine, for all of these

mod access;
mod device;
pub mod finding;
mod found;
mod machine;
mod places;
mod probe;
mod settings;
mod start;
mod text;
mod together;

use std::path::PathBuf;

use emulate::Emulate;
use rt::DeviceKind;

use crate::config::table::Settings;
use crate::config::{Complete, ServeConfig};
use crate::host::world::IoChoice;
use crate::units::human_bytes;
use finding::{Finding, Level};
use found::{Device, Role, State};
use machine::ServerNeeds;

pub use text::text;

const BLOCK: u64 = base::BLOCK_U64;
/// Descriptors of a server for itself: commands, the ring, standard streams.
const OWN_FILES: u64 = 64;
/// Connections to each place where HTTP is served.
const HTTP_CONNECTIONS: u64 = 64;
/// The most memory, in bytes, for what is read ahead of clients.
const READ_AHEAD: u64 = 16 << 20;

/// Looks at this machine alone.
pub fn of_machine() -> Vec<Finding> {
    let needs = ServerNeeds {
        io: IoChoice::Auto,
        connections: Settings::default().limits.max_connections as u64,
        own_files: OWN_FILES,
        memory: memory(&Settings::default(), true),
        ..ServerNeeds::default()
    };
    machine::check(&probe::machine::look(), &needs)
}

/// Looks at this machine, and at what a server with this configuration would find on it. A server
/// of a directory looks for the cache at `own_cache`, where nothing else is said. `is_used`: the
/// devices have held a pool.
pub fn of_config(
    config: &mut ServeConfig,
    own_cache: Option<PathBuf>,
    is_used: bool,
) -> Vec<Finding> {
    let places = probe::sockets::look(config);
    let settings = config.settings.settings();
    let devices = devices(config);
    let has_cache = devices.iter().any(|one| one.role != Role::Pool);
    let said = &config.said;
    let http_listens = said.http.listen.len() as u64;
    let listens = http_listens + said.nbd.listen.len() as u64;
    let needs = ServerNeeds {
        io: *said.io.backend.said(),
        connections: settings.limits.max_connections as u64,
        http_connections: HTTP_CONNECTIONS * http_listens,
        own_files: OWN_FILES + devices.len() as u64 + listens,
        memory: memory(settings, has_cache),
        runs: places.server_runs(),
    };
    let mut all = machine::check(&probe::machine::look(), &needs);
    for one in &devices {
        let kind = match one.role {
            Role::Pool => settings.pool.device.kind,
            Role::Cache(_) => settings.cache.device.kind,
        };
        all.extend(device::check(one, kind));
        all.extend(device::copies_twice(one));
    }
    let pool = devices.iter().filter(|one| one.role == Role::Pool);
    let table = probe::device::table(pool.map(|one| one.path.as_path()));
    all.extend(together::check(&devices, table.as_ref()));
    all.extend(settings::check(settings, &known(config, &devices)));
    all.extend(loud(config.said.log.level.said()));
    all.extend(places::check(&places));
    all.extend(access::check(&places.access));
    if places.server_runs() {
        all.extend(start::of_server(config.said.control.socket.said()));
    } else {
        let path = &mut config.said.cache.path;
        *path = path.take().or(own_cache);
        all.extend(start::check(config, is_used));
    }
    all
}

/// The warning of a server that is about to start, where its control group has less memory than it
/// may come to need; `None`: there is enough, or no limit.
pub fn memory_warning(config: &ServeConfig) -> Option<String> {
    let has_cache = config.said.cache.path.is_some();
    let parts = memory(config.settings.settings(), has_cache);
    let needed: u64 = parts.iter().map(|part| part.1).sum();
    let has = probe::machine::group_bytes().filter(|has| *has < needed)?;
    Some(format!(
        "this server may need {} of memory, and its control group has {}: the kernel may end it \
         under load. forebay doctor says by which settings; lower them, or give it more",
        human_bytes(needed),
        human_bytes(has)
    ))
}

/// The finding about a configuration that cannot be read.
pub fn unreadable(why: &str) -> Finding {
    let todo = "mend it; docs/configuration.md and forebay config --example have all keys. The \
                machine was looked at, devices and settings were not";
    Finding::new(Level::Problem, "config", why, todo)
}

/// The finding that the pool of a configuration is not there.
pub fn not_found(why: &str) -> Finding {
    let todo = "the machine was looked at, the pool was not";
    Finding::new(Level::Problem, "pool", why, todo)
}

/// The finding that a configuration differs from what the pool has.
pub fn differs(what: String) -> Finding {
    let todo = "nothing has to be done: a start finds what the pool has. configuration-differs in \
                docs/operations.md says how to make them agree";
    Finding::new(Level::Warning, "config", what, todo)
}

/// The finding about a directory of `forebay up` that cannot be read.
pub fn unreadable_directory(why: &str) -> Finding {
    let todo = "do what it says, and look again. The machine was looked at, the pool was not";
    Finding::new(Level::Problem, "directory", why, todo)
}

/// The finding that there is nothing to look at, and why.
pub fn nothing(found: String, todo: &str) -> Finding {
    Finding::new(Level::Note, "config", found, todo)
}

/// The memory in bytes that a server may come to have, by the setting that bounds it.
fn memory(settings: &Settings, has_cache: bool) -> Vec<(&'static str, u64)> {
    let (pool, cache) = (&settings.pool, &settings.cache);
    let mut all = vec![
        ("nbd.max_payload", settings.limits.max_payload_bytes),
        ("pool.cached_nodes", (pool.cached_nodes as u64).saturating_mul(BLOCK)),
        ("pool.dirty_nodes", pool.dirty_nodes.saturating_mul(BLOCK)),
        ("pool.read_ahead", if pool.read_ahead > 0 { READ_AHEAD } else { 0 }),
    ];
    if has_cache {
        let index = (cache.resident_nodes as u64).saturating_mul(BLOCK);
        all.push(("cache.index_memory", index));
        all.push(("cache.dirty_nodes", cache.dirty_nodes.saturating_mul(BLOCK)));
    }
    all
}

fn devices(config: &ServeConfig) -> Vec<Device> {
    let look = |path: &std::path::Path, role, emulate| probe::device::look(path, role, emulate);
    let pool = config.said.devices.iter().map(|one| look(&one.path, Role::Pool, one.emulate));
    let size = config.said.cache.size;
    // A cache of no size is written back and detached at the start, if it is there.
    let cache = config.said.cache.path.iter().filter(|path| size != Some(0) || path.exists());
    pool.chain(cache.map(|path| look(path, Role::Cache(size.filter(|n| *n > 0)), None))).collect()
}

fn known(config: &ServeConfig, devices: &[Device]) -> settings::KnownSizes {
    let pool = || devices.iter().filter(|one| one.role == Role::Pool);
    let said = config.settings.settings().pool.device.kind;
    let kind = |one: &Device| {
        let emulated = |what| match what {
            Emulate::Hdd => DeviceKind::Rotating,
            Emulate::Ssd => DeviceKind::Ssd,
        };
        said.or(one.emulate.map(emulated)).or(one.properties().map(|properties| properties.kind))
    };
    let cache = devices.iter().find(|one| one.role != Role::Pool);
    let cache_bytes = cache.and_then(|one| match (&one.state, one.role) {
        (State::There(properties), _) => Some(properties.size_bytes).filter(|n| *n > 0),
        (_, Role::Cache(size)) => size,
        _ => None,
    });
    settings::KnownSizes {
        cache_bytes,
        device_bytes: pool()
            .filter_map(|one| Some(one.properties()?.size_bytes))
            .max()
            .unwrap_or(0),
        rotates: pool().any(|one| kind(one) == Some(DeviceKind::Rotating)),
    }
}

/// A log that says too much for a server that is used.
fn loud(level: &str) -> Option<Finding> {
    let is_loud = ["debug", "trace"].iter().any(|word| level.contains(word));
    let found = || format!("log.level is {level:?}: the log gets large, and costs time");
    let todo = "set it to \"info\", unless you look for something";
    is_loud.then(|| Finding::new(Level::Note, "settings", found(), todo))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_that_of_the_settings() {
        let of = |has_cache| -> u64 {
            memory(&Settings::default(), has_cache).iter().map(|part| part.1).sum()
        };
        assert_eq!(of(false), (64 + 96 + 24 + 16) << 20);
        assert_eq!(of(true) - of(false), (48 + 64) << 20);
    }

    #[test]
    fn a_log_that_is_loud() {
        assert!(loud("info").is_none());
        assert!(loud("warn,nbd=debug").is_some_and(|one| one.level == Level::Note));
    }

    #[test]
    fn a_configuration_that_cannot_be_read_is_a_problem() {
        assert_eq!(unreadable("line 3: nonsense").level, Level::Problem);
    }
}
