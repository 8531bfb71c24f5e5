//! Options that several commands have.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cache::CacheFile;
use clap::Args;
use model::Verb;
use pool::DeviceFile;

use crate::config::values;
use crate::config::{
    CacheConfig, CacheOverrides, HttpOverrides, HttpPlace, LogSection, Mode, Overrides,
    PermitsOverrides, TlsMode, TlsOverrides, parse_flag,
};
use crate::control::client::{ask, usual_socket};
use crate::control::words::doing;
use crate::error::{CommandError, Result};
use crate::host::cache_file;
use crate::host::devices::DeviceChoice;
use crate::host::home::Home;
use crate::host::host_log::HostLogChoice;
use crate::host::logs::{self, LogFormat};
use crate::host::roles;
use crate::host::sockets::resolve;
use crate::host::world::{IoChoice, OpenedDevices, World, check_distinct};
use crate::terminal::progress::waiting;
use crate::units::{parse_duration, parse_size};

/// The directory where `forebay up` keeps everything, and commands look for a server.
pub const DEFAULT_HOME: &str = "./forebay-data";

/// A size of something that is not empty.
pub fn positive_size(text: &str) -> std::result::Result<u64, String> {
    match parse_size(text)? {
        0 => Err("it cannot be 0".into()),
        n => Ok(n),
    }
}

/// A size of a volume.
pub fn volume_size(text: &str) -> std::result::Result<u64, String> {
    match positive_size(text)? {
        n if n % 512 != 0 => {
            Err("a volume's size is a multiple of its sectors of 512 bytes".into())
        }
        n if n > format::MAX_VOLUME_BYTES => Err("a volume has at most 1P".into()),
        n => Ok(n),
    }
}

/// A name of a pool or a volume.
pub fn name(text: &str) -> std::result::Result<String, String> {
    match pool::is_name(text) {
        true => Ok(text.to_owned()),
        false => {
            Err("a name has 1 to 64 bytes, no control characters, no '/', and is not '.' or '..'"
                .into())
        }
    }
}

/// Options that say how a server runs.
#[derive(Args, Debug)]
#[command(next_help_heading = "Server")]
pub struct ServerOptions {
    /// Unix socket for NBD clients
    #[arg(long, value_name = "PATH")]
    nbd_socket: Option<PathBuf>,
    /// Mode of that socket, such as 0660: who may write may connect [default: 0600; with a group
    /// 0660]
    #[arg(long, value_name = "MODE")]
    nbd_socket_mode: Option<Mode>,
    /// Group of that socket
    #[arg(long, value_name = "GROUP")]
    nbd_socket_group: Option<String>,
    /// Listen for NBD clients on TCP too (repeatable), with TLS
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = resolve)]
    nbd_listen: Vec<SocketAddr>,
    /// Whether clients over TCP must, may or cannot have TLS; without it all who can connect can
    /// read and write all volumes [default: require]
    #[arg(long, value_enum, value_name = "MODE")]
    tls: Option<TlsMode>,
    /// Directory with server-cert.pem, server-key.pem, ca-cert.pem and, if there is one, ca-crl.pem
    #[arg(long, value_name = "DIR")]
    tls_certificates: Option<PathBuf>,
    /// File of keys that clients may have instead of certificates: a line NAME:HEX for each
    #[arg(long, value_name = "PATH")]
    tls_psk: Option<PathBuf>,
    /// Whether clients without such a key need a certificate of the authority [default: true]
    #[arg(long, value_name = "true|false", value_parser = parse_flag)]
    tls_verify_peer: Option<bool>,
    /// Unix socket for commands such as `forebay status`
    #[arg(long = "socket", value_name = "PATH")]
    control_socket: Option<PathBuf>,
    /// Serve the HTTP API and metrics here (repeatable); none: nowhere [default of forebay up:
    /// unix:DIR/http.sock and 127.0.0.1:10810]
    #[arg(long, value_name = "ADDRESS:PORT|unix:PATH")]
    http_listen: Vec<HttpPlace>,
    /// File with the token that HTTP clients on TCP need, for its owner alone; without one they get
    /// metrics and health only [default of forebay up: DIR/http.token]
    #[arg(long, value_name = "PATH")]
    http_token_file: Option<PathBuf>,
    /// Backend for I/O; `auto` takes io_uring where it is permitted
    #[arg(long, value_enum, value_name = "BACKEND")]
    io: Option<IoChoice>,
    /// Record answered writes in this directory, best in memory, for the case that the process dies
    /// [default: auto: in /dev/shm, /run, or beside the sockets]
    #[arg(long, value_name = "DIR|auto|off")]
    host_log: Option<HostLogChoice>,
    /// Make changes durable at least this often, flushed or not [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    commit_interval: Option<Duration>,
    /// The devices that were in use last are lost, and those that are there were out of use by
    /// then: go on with the newest of these, as it was when it left. What was written since is lost
    #[arg(long)]
    take_back: bool,
    /// NBD connections at a time [default: 256]
    #[arg(long, value_name = "N")]
    max_connections: Option<usize>,
}

impl ServerOptions {
    /// The options as they go into the configuration.
    pub fn overrides(
        self,
        devices: Vec<DeviceChoice>,
        cache: CacheChoice,
        log: LogSection,
    ) -> Overrides {
        let connections = self.max_connections.map(|n| values::Value::Number(n as u64));
        let settings = chosen([
            ("pool.commit_interval", self.commit_interval.map(values::Value::Time)),
            ("nbd.max_connections", connections),
        ]);
        Overrides {
            devices,
            take_back: self.take_back,
            nbd_socket: self.nbd_socket,
            nbd_listen: self.nbd_listen,
            nbd_permits: PermitsOverrides {
                mode: self.nbd_socket_mode,
                group: self.nbd_socket_group,
            },
            tls: TlsOverrides {
                mode: self.tls,
                certificates: self.tls_certificates,
                keys: self.tls_psk,
                verify_peer: self.tls_verify_peer,
                access: None,
            },
            control_socket: self.control_socket,
            http: HttpOverrides {
                listen: self.http_listen,
                permits: PermitsOverrides::default(),
                token_file: self.http_token_file,
                hosts: Vec::new(),
            },
            io: self.io,
            host_log: self.host_log,
            settings: cache.settings.into_iter().chain(settings).collect(),
            cache: cache.place,
            log,
        }
    }
}

/// The cache of a server.
#[derive(Args, Debug)]
#[command(next_help_heading = "Cache")]
pub struct CacheOptions {
    /// File or block device of the write-back cache in front of the pool [default of forebay up:
    /// DIR/cache.img]
    #[arg(long, value_name = "PATH")]
    cache: Option<PathBuf>,
    /// If the pool has no cache, make one of this size. 0: write back what an attached one holds,
    /// detach it, and go on without [default of forebay up: 2G, a quarter of the free space at
    /// most]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    cache_size: Option<u64>,
    /// Which blocks are kept: lru, fifo, random or adaptive [default: adaptive]
    #[arg(long, value_name = "POLICY")]
    cache_policy: Option<cache::Policy>,
    /// Longest time by which the pool's image should be older than the volumes: what losing the
    /// cache costs [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    max_lag: Option<Duration>,
    /// Memory for the cache's index; the rest is read from the cache when needed [default: 48M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    index_memory: Option<u64>,
    /// The cache is lost: go on with the pool's image, which is older, and report how old. What was
    /// written since is lost
    #[arg(long)]
    forget_cache: bool,
}

/// The choices that the options of a cache make.
pub struct CacheChoice {
    /// The place of the cache, and what becomes of it.
    pub place: CacheOverrides,
    /// The settings of the cache that were given.
    pub settings: Vec<(&'static str, values::Value)>,
}

impl CacheOptions {
    /// The options as they go into the configuration.
    pub fn choice(self) -> CacheChoice {
        let place = CacheOverrides {
            path: self.cache,
            size_bytes: self.cache_size,
            forget: self.forget_cache,
        };
        let settings = chosen([
            ("cache.policy", self.cache_policy.map(|policy| values::Value::Word(policy.word()))),
            ("cache.max_lag", self.max_lag.map(values::Value::Time)),
            ("cache.index_memory", self.index_memory.map(values::Value::Size)),
        ]);
        CacheChoice { place, settings: settings.collect() }
    }
}

/// The settings that were given.
fn chosen<const N: usize>(
    all: [(&'static str, Option<values::Value>); N],
) -> impl Iterator<Item = (&'static str, values::Value)> {
    all.into_iter().filter_map(|(name, value)| Some((name, value?)))
}

/// Options that say how a server logs.
#[derive(Args, Debug)]
#[command(next_help_heading = "Log")]
pub struct LogOptions {
    /// Format of the log (on standard error) [default: human]
    #[arg(long, value_enum, value_name = "FORMAT")]
    log: Option<LogFormat>,
    /// Which events are logged: error, warn, info, debug or trace, or by part as in warn,nbd=debug
    /// [default: info]
    #[arg(long, value_name = "LEVEL", env = logs::LEVEL_VARIABLE, value_parser = logs::parse_level)]
    log_level: Option<String>,
}

impl LogOptions {
    /// The options as they go into the configuration.
    pub fn choice(self) -> LogSection {
        LogSection { format: self.log, level: self.log_level }
    }
}

/// For commands that work on devices without a server: only what goes wrong is logged.
pub fn log_warnings() -> Result<()> {
    let level = std::env::var(logs::LEVEL_VARIABLE).unwrap_or_else(|_| "warn".into());
    let level = logs::parse_level(&level)
        .map_err(|e| CommandError::Usage(format!("{}: {e}", logs::LEVEL_VARIABLE)))?;
    logs::start(&level);
    Ok(())
}

/// Options that say where to find a running server.
#[derive(Args, Debug)]
pub struct ClientOptions {
    /// Control socket of the server [default: what FOREBAY_SOCKET in the environment says; without
    /// it ./forebay-data/control.sock, or if that is not there /run/forebay/control.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl ClientOptions {
    /// The socket where the server is looked for. A variable that is empty says nothing.
    pub fn socket(&self) -> PathBuf {
        let of_variable = || std::env::var_os("FOREBAY_SOCKET").filter(|path| !path.is_empty());
        let said = self.socket.clone().or_else(|| of_variable().map(PathBuf::from));
        said.unwrap_or_else(|| usual_socket().to_owned())
    }

    /// Asks the server. Where its answer takes long, a terminal says what is waited for.
    pub fn ask<R: Verb + Clone>(&self, request: R) -> Result<R::Answer> {
        let what = doing(&request.clone().into());
        waiting(what, || ask(&self.socket(), request))
    }
}

/// Options that say where to find a pool that is not being served.
#[derive(Args, Debug)]
pub struct OfflineOptions {
    /// A file or block device of the pool, instead of a directory (repeatable)
    #[arg(
        long = "device",
        value_name = "PATH[,emulate=hdd|ssd]",
        value_parser = DeviceChoice::parser(),
        num_args = 1..
    )]
    devices: Vec<DeviceChoice>,
    /// File or block device of the pool's cache [default with a directory: DIR/cache.img, if it is
    /// there]
    #[arg(long, value_name = "PATH")]
    cache: Option<PathBuf>,
    /// Backend for I/O
    #[arg(long, value_enum, value_name = "BACKEND", default_value_t)]
    io: IoChoice,
}

impl OfflineOptions {
    /// Opens the devices that are named, or else those of the directory, for reading.
    pub fn open(&self, dir: &Path) -> Result<(World, Vec<DeviceFile>)> {
        let (world, opened) = self.open_for(dir, false)?;
        Ok((world, opened.go_on()))
    }

    /// Opens the devices like `open`, for writing too if `write` says so; and says why those are
    /// missing that are.
    pub fn open_for(&self, dir: &Path, write: bool) -> Result<(World, OpenedDevices)> {
        let devices = match self.devices.is_empty() {
            true => Home::devices(dir)?.into_iter().map(DeviceChoice::from).collect(),
            false => self.devices.clone(),
        };
        check_distinct(devices.iter().map(|d| d.path.as_path()).chain(self.cache.as_deref()))?;
        let world = World::new(self.io, &devices)?;
        if write && self.devices.is_empty() {
            Home::check_place_of(dir, devices.iter().map(|d| d.path.as_path()))?;
        }
        let opened = world.open_devices(&devices, write)?;
        let named = CacheConfig { path: self.cache.clone(), ..CacheConfig::default() };
        roles::check(&named, opened.files.iter().map(|f| Path::new(&f.path)))?;
        Ok((world, opened))
    }

    /// Whether a cache is named.
    pub fn names_cache(&self) -> bool {
        self.cache.is_some()
    }

    /// Opens the cache that is named, or else that of the directory if it is there, for reading.
    pub fn open_cache(&self, world: &World, dir: &Path) -> Result<Option<CacheFile>> {
        self.open_cache_for(world, dir, false)
    }

    /// Opens the cache like `open_cache`, for writing too if `write` says so.
    pub fn open_cache_for(
        &self,
        world: &World,
        dir: &Path,
        write: bool,
    ) -> Result<Option<CacheFile>> {
        let path = match &self.cache {
            Some(path) => Some(path.clone()),
            None if self.devices.is_empty() => Some(Home::cache(dir)?).filter(|path| path.exists()),
            None => None,
        };
        let Some(path) = path else { return Ok(None) };
        if write && self.cache.is_none() {
            Home::check_place_of(dir, std::iter::once(path.as_path()))?;
        }
        let opened = cache_file::open_for(&world.handles, &path, write);
        opened.map(Some).map_err(|e| CommandError::Failed(e.to_string()))
    }

    /// Opens the cache alone.
    pub fn open_only_cache(&self, dir: &Path) -> Result<(World, CacheFile)> {
        let world = World::new(self.io, &[])?;
        let file = self.open_cache(&world, dir)?;
        let Some(file) = file else {
            return Err(CommandError::Failed(format!(
                "there is no {}: name the cache with --cache",
                Home::cache(dir)?.display()
            )));
        };
        Ok((world, file))
    }
}
