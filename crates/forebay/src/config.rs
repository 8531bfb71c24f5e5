//! What a server is told, validated: from command-line options, from a configuration file, from
//! defaults, in this order. Plain data; nothing has been opened yet.
//!
//! `docs/configuration.md` describes every key of the file.

mod caching;
mod values;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use crate::devices::DeviceChoice;
use crate::error::{CommandError, Result};
use crate::logs::{LogFormat, parse_level};
use crate::sockets::{check_unix_path, resolve};
use crate::world::{IoChoice, check_distinct};

use caching::CacheSection;
pub use caching::{CacheConfig, CacheOverrides};
use values::{duration, size, within};

/// Nodes that a commit and a few readers need in memory at the same time.
const MIN_CACHED_NODES: usize = 256;

/// Everything that a server needs to know.
#[derive(Debug)]
pub struct ServeConfig {
    /// Files and block devices of the pool.
    pub devices: Vec<DeviceChoice>,
    /// Where NBD clients connect.
    pub nbd_socket: PathBuf,
    /// Where NBD clients connect over TCP.
    pub nbd_listen: Vec<SocketAddr>,
    /// Where commands connect.
    pub control_socket: PathBuf,
    /// What I/O goes through.
    pub io: IoChoice,
    /// How the pool behaves.
    pub settings: pool::Settings,
    /// How much clients may use.
    pub limits: nbd::Limits,
    /// The cache in front of the pool.
    pub cache: CacheConfig,
}

/// Options of the command line: what is given takes precedence.
#[derive(Default, Debug)]
pub struct Overrides {
    /// See [`ServeConfig`].
    pub devices: Vec<DeviceChoice>,
    /// See [`ServeConfig`].
    pub nbd_socket: Option<PathBuf>,
    /// See [`ServeConfig`].
    pub nbd_listen: Vec<SocketAddr>,
    /// See [`ServeConfig`].
    pub control_socket: Option<PathBuf>,
    /// See [`ServeConfig`].
    pub io: Option<IoChoice>,
    /// See [`pool::Settings`].
    pub commit_interval: Option<Duration>,
    /// See [`nbd::Limits`].
    pub max_connections: Option<usize>,
    /// See [`CacheConfig`].
    pub cache: CacheOverrides,
}

/// A configuration file. A key that is not listed here is an error that names it.
#[derive(Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigFile {
    devices: Vec<DeviceChoice>,
    #[serde(default)]
    nbd: NbdSection,
    #[serde(default)]
    control: ControlSection,
    #[serde(default)]
    pool: PoolSection,
    #[serde(default)]
    cache: CacheSection,
    #[serde(default)]
    io: IoSection,
    /// How to log.
    #[serde(default)]
    pub log: LogSection,
}

#[derive(Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NbdSection {
    socket: Option<PathBuf>,
    #[serde(default, deserialize_with = "addresses")]
    listen: Vec<SocketAddr>,
    max_connections: Option<usize>,
    max_requests_per_connection: Option<usize>,
    #[serde(default, deserialize_with = "size")]
    max_payload: Option<u64>,
}

#[derive(Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ControlSection {
    socket: Option<PathBuf>,
}

#[derive(Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PoolSection {
    #[serde(default, deserialize_with = "duration")]
    commit_interval: Option<Duration>,
    dirty_nodes: Option<u64>,
    cached_nodes: Option<usize>,
    loaded_groups: Option<usize>,
    device_depth: Option<usize>,
}

#[derive(Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct IoSection {
    backend: Option<IoChoice>,
}

/// How to log.
#[derive(Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSection {
    /// What a line looks like.
    pub format: Option<LogFormat>,
    /// Which events are logged.
    #[serde(default, deserialize_with = "level")]
    pub level: Option<String>,
}

fn level<'de, D: Deserializer<'de>>(d: D) -> std::result::Result<Option<String>, D::Error> {
    parse_level(&String::deserialize(d)?).map(Some).map_err(D::Error::custom)
}

fn addresses<'de, D: Deserializer<'de>>(d: D) -> std::result::Result<Vec<SocketAddr>, D::Error> {
    let texts = Vec::<String>::deserialize(d)?;
    texts.iter().map(|text| resolve(text).map_err(D::Error::custom)).collect()
}

impl ConfigFile {
    /// Reads a file. Relative paths in it are relative to the directory that it is in.
    pub fn read(path: &Path) -> Result<ConfigFile> {
        let at = path.display();
        let text =
            std::fs::read_to_string(path).map_err(|e| CommandError::Usage(format!("{at}: {e}")))?;
        let mut file =
            ConfigFile::parse(&text).map_err(|e| CommandError::Usage(format!("{at}: {e}")))?;
        let base = path.parent().unwrap_or(Path::new(""));
        let devices = file.devices.iter_mut().map(|d| &mut d.path);
        let paths = devices
            .chain(&mut file.nbd.socket)
            .chain(&mut file.control.socket)
            .chain(&mut file.cache.path);
        paths.for_each(|p| *p = base.join(&*p));
        Ok(file)
    }

    fn parse(text: &str) -> std::result::Result<ConfigFile, toml::de::Error> {
        toml::from_str(text)
    }
}

impl ServeConfig {
    /// Puts together what was said, with sockets in `home` where nothing was said about them, and
    /// checks it.
    pub fn new(options: Overrides, file: ConfigFile, home: &Path) -> Result<ServeConfig> {
        let usage = |text: String| Err(CommandError::Usage(text));
        let devices = if options.devices.is_empty() { file.devices } else { options.devices };
        if devices.is_empty() {
            return usage("no device is named".into());
        }
        let cache = CacheConfig::new(options.cache, file.cache)?;
        check_distinct(devices.iter().map(|d| d.path.as_path()).chain(cache.path.as_deref()))?;
        let settings = settings(options.commit_interval, &file.pool)?;
        let limits = limits(options.max_connections, &file.nbd)?;
        let nbd_socket =
            options.nbd_socket.or(file.nbd.socket).unwrap_or_else(|| home.join("nbd.sock"));
        let control_socket = options
            .control_socket
            .or(file.control.socket)
            .unwrap_or_else(|| home.join("control.sock"));
        for path in [&nbd_socket, &control_socket] {
            check_unix_path(path).map_err(CommandError::Usage)?;
        }
        if nbd_socket == control_socket {
            return usage(format!(
                "NBD and control cannot share the socket {}",
                nbd_socket.display()
            ));
        }
        let io = options.io.or(file.io.backend).unwrap_or_default();
        let nbd_listen =
            if options.nbd_listen.is_empty() { file.nbd.listen } else { options.nbd_listen };
        Ok(ServeConfig {
            devices,
            nbd_socket,
            nbd_listen,
            control_socket,
            io,
            settings,
            limits,
            cache,
        })
    }
}

fn settings(commit_interval: Option<Duration>, file: &PoolSection) -> Result<pool::Settings> {
    let default = pool::Settings::default();
    let depth = file.device_depth.unwrap_or(default.device.depth);
    let settings = pool::Settings {
        commit_interval: commit_interval
            .or(file.commit_interval)
            .unwrap_or(default.commit_interval),
        dirty_nodes: file.dirty_nodes.unwrap_or(default.dirty_nodes),
        cached_nodes: file.cached_nodes.unwrap_or(default.cached_nodes),
        loaded_groups: file.loaded_groups.unwrap_or(default.loaded_groups),
        device: queue::Limits { depth, ..default.device },
        ..default
    };
    let hour = Duration::from_secs(3600);
    within("commit_interval", settings.commit_interval, Duration::from_millis(1), hour)?;
    within("dirty_nodes", settings.dirty_nodes, 64, 1 << 24)?;
    within("cached_nodes", settings.cached_nodes, MIN_CACHED_NODES, 1 << 28)?;
    within("loaded_groups", settings.loaded_groups, 16, 1 << 24)?;
    within("device_depth", settings.device.depth, 1, 4096)?;
    Ok(settings)
}

fn limits(max_connections: Option<usize>, file: &NbdSection) -> Result<nbd::Limits> {
    let default = nbd::Limits::default();
    let limits = nbd::Limits {
        max_connections: max_connections
            .or(file.max_connections)
            .unwrap_or(default.max_connections),
        max_in_flight_requests: file
            .max_requests_per_connection
            .unwrap_or(default.max_in_flight_requests),
        max_payload_bytes: file.max_payload.unwrap_or(default.max_payload_bytes),
        ..default
    };
    within("max_connections", limits.max_connections, 1, 4096)?;
    within("max_requests_per_connection", limits.max_in_flight_requests, 1, 4096)?;
    within("max_payload", limits.max_payload_bytes, 32 << 20, 1 << 40)?;
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use emulate::Emulate;

    use super::*;

    fn config(text: &str) -> Result<ServeConfig> {
        let file = ConfigFile::parse(text).map_err(|e| CommandError::Usage(e.to_string()))?;
        ServeConfig::new(Overrides::default(), file, Path::new("home"))
    }

    const WHOLE: &str = r#"
        devices = ["a", { path = "/b", emulate = "hdd" }]
        [nbd]
        socket = "n.sock"
        listen = ["127.0.0.1:10809", "[::1]:10809"]
        max_connections = 7
        max_requests_per_connection = 9
        max_payload = "128M"
        [control]
        socket = "c.sock"
        [pool]
        commit_interval = "250ms"
        dirty_nodes = 100
        cached_nodes = 1000
        loaded_groups = 20
        device_depth = 32
        [cache]
        path = "c.img"
        size = "3G"
        policy = "lru"
        max_lag = "7s"
        dirty_target = 11
        dirty_limit = 22
        writeback_rate_min = "1M"
        writeback_rate_max = "50M"
        writeback_rate_idle = "5M"
        promote = "second"
        promote_max = "64K"
        sequential_cutoff = "1M"
        index_memory = "32M"
        dirty_nodes = 99
        journal_interval = "2s"
        [io]
        backend = "posix"
        [log]
        format = "json"
        level = "debug"
    "#;

    #[test]
    fn every_key_is_heard() {
        let c = config(WHOLE).unwrap();
        assert_eq!(
            c.devices,
            [
                PathBuf::from("a").into(),
                DeviceChoice { path: "/b".into(), emulate: Some(Emulate::Hdd) }
            ]
        );
        assert_eq!(
            (c.nbd_socket.to_str(), c.control_socket.to_str()),
            (Some("n.sock"), Some("c.sock"))
        );
        assert_eq!(c.nbd_listen.len(), 2);
        assert_eq!((c.limits.max_connections, c.limits.max_in_flight_requests), (7, 9));
        assert_eq!(c.limits.max_payload_bytes, 128 << 20);
        assert_eq!(c.settings.commit_interval, Duration::from_millis(250));
        assert_eq!((c.settings.dirty_nodes, c.settings.cached_nodes), (100, 1000));
        assert_eq!((c.settings.loaded_groups, c.settings.device.depth), (20, 32));
        assert_eq!(
            (c.cache.path.as_deref(), c.cache.size_bytes),
            (Some(Path::new("c.img")), Some(3 << 30))
        );
        let cached = c.cache.settings;
        assert_eq!((cached.policy, cached.max_lag), (cache::Policy::Lru, Duration::from_secs(7)));
        assert_eq!((cached.dirty_target_percent, cached.dirty_limit_percent), (11, 22));
        let rates = (cached.writeback.min, cached.writeback.max, cached.writeback.idle_rate);
        assert_eq!(rates, (1 << 20, 50 << 20, 5 << 20));
        assert_eq!((cached.promote, cached.promote_blocks), (cache::Promote::Second, 16));
        assert_eq!(
            (cached.sequential_cutoff, cached.resident_nodes, cached.dirty_nodes),
            (1 << 20, 8192, 99)
        );
        assert_eq!(cached.journal_interval, Duration::from_secs(2));
        assert_eq!(c.io, IoChoice::Posix);
        let log = ConfigFile::parse(WHOLE).unwrap().log;
        assert_eq!((log.format, log.level.as_deref()), (Some(LogFormat::Json), Some("debug")));
    }

    #[test]
    fn every_key_is_documented() {
        let text = include_str!("../../../docs/configuration.md");
        for line in WHOLE.lines().map(str::trim) {
            let key = line.split_once('=').map_or(line, |(key, _)| key.trim());
            assert!(
                text.contains(&format!("`{key}`")) || key.is_empty(),
                "{key} is not in docs/configuration.md"
            );
        }
    }

    #[test]
    fn what_is_not_known_is_named() {
        for (text, word) in [
            ("devices = [\"a\"]\ncolour = 1", "colour"),
            ("devices = [\"a\"]\n[nbd]\nsoket = \"x\"", "soket"),
            ("devices = [\"a\"]\n[cache]\nsize = \"2G\"", "path"),
            ("devices = [\"a\"]\n[cache]\npath = \"a\"", "named twice"),
            ("devices = [\"a\"]\n[cache]\npath = \"c\"\ncolour = 1", "colour"),
            (
                "devices = [\"a\"]\n[cache]\npath = \"c\"\npolicy = \"sieve\"",
                "one of lru, fifo, random, s3fifo",
            ),
            ("devices = [\"a\"]\n[cache]\npath = \"c\"\npromote = \"third\"", "never"),
            ("devices = [\"a\"]\n[cache]\npath = \"c\"\nmax_lag = \"1ms\"", "max_lag"),
            ("devices = [\"a\"]\n[cache]\npath = \"c\"\ndirty_limit = 30", "dirty_limit"),
            (
                "devices = [\"a\"]\n[cache]\npath = \"c\"\nwriteback_rate_min = \"2G\"",
                "writeback_rate_max",
            ),
            ("devices = [\"a\"]\n[cache]\npath = \"c\"\nindex_memory = 1", "index_memory"),
            ("devices = [\"a\"]\n[cache]\npath = \"c\"\npromote_max = 1", "promote_max"),
            ("devices = [\"a\"]\n[nbd]\nlisten = [\"nowhere\"]", "nowhere"),
            ("devices = [\"a\"]\n[pool]\ncommit_interval = \"soon\"", "soon"),
            ("devices = [\"a\"]\n[pool]\ncommit_interval = \"0s\"", "commit_interval"),
            ("devices = [\"a\"]\n[pool]\ncached_nodes = 3", "cached_nodes"),
            ("devices = [\"a\"]\n[nbd]\nmax_payload = \"1M\"", "max_payload"),
            ("devices = [\"a\"]\n[io]\nbackend = \"dos\"", "dos"),
            ("devices = [\"a\"]\n[log]\nlevel = \"x=y=z\"", "x=y=z"),
            ("[nbd]", "devices"),
            ("devices = []", "no device"),
            (
                "devices = [{ path = \"a\", emulate = \"tape\" }]",
                "emulate is \"tape\"; it can be hdd or ssd",
            ),
            ("devices = [{ path = \"a\", emulat = \"hdd\" }]", "emulat"),
            ("devices = [{ emulate = \"hdd\" }]", "path"),
            ("devices = [{ path = \"a\", emulate = \"hdd\" }, \"a\"]", "named twice"),
            ("devices = [\"a\", \"a\"]", "named twice"),
            ("devices = [\"a\"]\n[nbd]\nsocket = \"s\"\n[control]\nsocket = \"s\"", "share"),
        ] {
            let e = config(text).unwrap_err();
            assert_eq!(e.exit_status(), 2);
            assert!(e.to_string().contains(word), "{text}: {e}");
        }
    }

    #[test]
    fn options_come_before_the_file_and_the_file_before_defaults() {
        let options = Overrides {
            devices: vec![PathBuf::from("d").into()],
            control_socket: Some("o.sock".into()),
            commit_interval: Some(Duration::from_secs(1)),
            cache: CacheOverrides {
                max_lag: Some(Duration::from_secs(9)),
                policy: Some(cache::Policy::Fifo),
                ..CacheOverrides::default()
            },
            ..Overrides::default()
        };
        let c = ServeConfig::new(options, ConfigFile::parse(WHOLE).unwrap(), Path::new("home"))
            .unwrap();
        assert_eq!(c.devices, [PathBuf::from("d").into()]);
        assert_eq!(
            (c.nbd_socket.to_str(), c.control_socket.to_str()),
            (Some("n.sock"), Some("o.sock"))
        );
        assert_eq!(
            (c.settings.commit_interval, c.settings.dirty_nodes),
            (Duration::from_secs(1), 100)
        );
        assert_eq!(c.cache.settings.max_lag, Duration::from_secs(9));
        assert_eq!(
            (c.cache.settings.policy, c.cache.size_bytes),
            (cache::Policy::Fifo, Some(3 << 30))
        );
        let c = config("devices = [\"a\"]").unwrap();
        assert_eq!(c.nbd_socket, Path::new("home/nbd.sock"));
        assert_eq!(c.settings.commit_interval, Duration::from_secs(5));
    }

    #[test]
    fn paths_are_relative_to_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("forebay.toml");
        std::fs::write(&path, WHOLE).unwrap();
        let file = ConfigFile::read(&path).unwrap();
        assert_eq!(file.devices[0], dir.path().join("a").into());
        assert_eq!(file.devices[1].path, Path::new("/b"));
        assert_eq!(file.nbd.socket, Some(dir.path().join("n.sock")));
        assert_eq!(file.cache.path, Some(dir.path().join("c.img")));
        let e = ConfigFile::read(&dir.path().join("none")).unwrap_err().to_string();
        assert!(e.contains("none"), "{e}");
    }
}
