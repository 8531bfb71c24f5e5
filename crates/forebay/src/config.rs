//! The configuration of a server, validated: from command-line options, from a configuration file,
//! from defaults, in this order. Plain data; nothing has been opened yet.
//!
//! * [`table`]: all settings; [`values`]: what they can be; [`chosen`]: their values, and where
//!   each comes from
//! * [`places`]: what else a configuration says; [`shown`]: all of it, for people and programs
//! * [`example`]: a file that explains itself
//! * [`file`](mod@file): the configuration file; [`saving`]: a setting that is written to it;
//!   [`origin`]: the file and the options of a server that runs
//!
//! `docs/configuration.md` describes every key of the file.

mod caching;
pub mod chosen;
pub mod example;
mod file;
mod http;
pub mod origin;
mod permits;
pub mod places;
pub mod saving;
pub mod shown;
pub mod table;
mod tls;
pub mod values;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use model::setting::{NamedDevice, PlaceItem, PlaceValue};

use crate::error::{CommandError, Result};
use crate::host::devices::DeviceChoice;
use crate::host::host_log::HostLogChoice;
use crate::host::logs::{DEFAULT_LEVEL, LogFormat};
use crate::host::sockets::{Permits, check_unix_path, group_of};
use crate::host::world::{IoChoice, check_distinct};
use crate::units::exact_size;

pub use caching::{CacheConfig, CacheOverrides};
use chosen::{ChosenSettings, Source, known};
pub use file::{ConfigFile, LogSection};
pub use http::{HttpConfig, HttpOverrides, HttpPlace};
pub use permits::{Mode, PermitsOverrides};
use places::{Places, listed};
pub use places::{absolute, place_of_path};
pub use tls::{TlsConfig, TlsMode, TlsOverrides, parse_flag};
use values::Value;

/// Everything that a server needs to know.
#[derive(Debug)]
pub struct ServeConfig {
    /// The files and block devices of the pool.
    pub devices: Vec<DeviceChoice>,
    /// The path of the unix socket for NBD clients.
    pub nbd_socket: PathBuf,
    /// The TCP addresses for NBD clients.
    pub nbd_listen: Vec<SocketAddr>,
    /// The users that may connect to the unix socket of NBD.
    pub nbd_permits: Permits,
    /// TLS, and the volumes that its clients may open.
    pub tls: TlsConfig,
    /// The path of the control socket, to which commands connect.
    pub control_socket: PathBuf,
    /// The users that may connect to the control socket.
    pub control_permits: Permits,
    /// The HTTP API.
    pub http: HttpConfig,
    /// The choice of the I/O backend.
    pub io: IoChoice,
    /// The place where answers that are not durable yet are kept for the case that the process
    /// dies, if anywhere; or why they cannot be kept.
    pub host_log: HostLogChoice,
    /// The directory of the server's sockets.
    pub home: PathBuf,
    /// True if the start goes on with devices that were out of use, as they were, if no others are
    /// there.
    pub take_back: bool,
    /// The cache in front of the pool.
    pub cache: CacheConfig,
    /// The settings of pool and cache, and the limits of clients.
    pub settings: ChosenSettings,
    /// The format of a line of the log.
    pub log_format: LogFormat,
    /// The level of events that are logged.
    pub log_level: String,
    /// All values but the settings, each with where it comes from.
    pub places: Places,
    /// The configuration file, if there is one.
    pub file: Option<PathBuf>,
    /// Lines of the file that have no effect any more, and why.
    pub needless: Vec<String>,
}

/// Options of the command line: what is given takes precedence.
#[derive(Clone, Default, Debug)]
pub struct Overrides {
    /// See [`ServeConfig`].
    pub devices: Vec<DeviceChoice>,
    /// See [`ServeConfig`].
    pub nbd_socket: Option<PathBuf>,
    /// See [`ServeConfig`].
    pub nbd_listen: Vec<SocketAddr>,
    /// See [`ServeConfig`].
    pub nbd_permits: PermitsOverrides,
    /// See [`TlsConfig`].
    pub tls: TlsOverrides,
    /// See [`ServeConfig`].
    pub control_socket: Option<PathBuf>,
    /// See [`HttpConfig`].
    pub http: HttpOverrides,
    /// See [`ServeConfig`].
    pub io: Option<IoChoice>,
    /// See [`ServeConfig`].
    pub host_log: Option<HostLogChoice>,
    /// See [`ServeConfig`].
    pub take_back: bool,
    /// See [`CacheConfig`].
    pub cache: CacheOverrides,
    /// The options of the log.
    pub log: LogSection,
    /// Settings, by their full names.
    pub settings: Vec<(&'static str, Value)>,
}

impl ServeConfig {
    /// Tells the log of lines of the file that have no effect any more.
    pub fn tell_needless(&self) {
        for line in &self.needless {
            tracing::warn!("the configuration file, {line}; remove the line");
        }
    }

    /// Puts together what was said, with sockets in `home` where nothing was said about them, and
    /// checks it.
    pub fn new(options: Overrides, file: ConfigFile, home: &Path) -> Result<ServeConfig> {
        let settings = choose(&options.settings, &file).map_err(CommandError::Usage)?;
        let mut places = Places::default();
        let named = [listed(options.devices), listed(file.devices), None];
        let Some(devices) = places.choose("devices", named, |all| place_of_devices(all)) else {
            return Err(CommandError::Usage("no device is named".into()));
        };
        let path = [options.cache.path, file.cache_path, None];
        let path = places.choose("cache.path", path, |path| place_of_path(path));
        // The place that says the size, if the file says it.
        let said = options.cache.size_bytes.is_none().then(|| {
            let path =
                file.path.as_ref().map_or_else(String::new, |p| format!("{}: ", p.display()));
            file.cache_size_line.map(|line| format!("{path}line {line}: "))
        });
        let size = [options.cache.size_bytes, file.cache_size, None];
        let size = places.choose("cache.size", size, |size| exact_size(*size).into());
        let cache = CacheConfig::new(path, size, options.cache.forget).map_err(|e| {
            match said.flatten() {
                Some(said) => CommandError::Usage(format!("{said}{e}")),
                None => e,
            }
        })?;
        check_distinct(devices.iter().map(|d| d.path.as_path()).chain(cache.path.as_deref()))?;
        let mut socket = |name, option, file, default| {
            let from = [option, file, Some(home.join(default))];
            places.choose(name, from, |path: &PathBuf| place_of_path(path)).unwrap_or_default()
        };
        let nbd_socket = socket("nbd.socket", options.nbd_socket, file.nbd_socket, "nbd.sock");
        let (option, in_file) = (options.control_socket, file.control_socket);
        let control_socket = socket("control.socket", option, in_file, "control.sock");
        check_sockets(&nbd_socket, &control_socket)?;
        let listen = [listed(options.nbd_listen), listed(file.nbd_listen), Some(Vec::new())];
        let nbd_listen = places.choose("nbd.listen", listen, |all| place_of_addresses(all));
        let nbd_listen = nbd_listen.unwrap_or_default();
        let tcp = !nbd_listen.is_empty();
        let tls = TlsConfig::new(options.tls, file.tls, tcp, &mut places)?;
        let keys = ["nbd.socket_mode", "nbd.socket_group"];
        let (option, in_file) = (options.nbd_permits, file.nbd_permits);
        let nbd_permits = Permits::new(keys, option, in_file, &mut places);
        let keys = ["control.socket_mode", "control.socket_group"];
        let (option, in_file) = (PermitsOverrides::default(), file.control_permits);
        let control_permits = Permits::new(keys, option, in_file, &mut places);
        let others = [&*nbd_socket, &*control_socket];
        let http = HttpConfig::new(options.http, file.http, others, &mut places)?;
        let io = [options.io, file.io, Some(IoChoice::default())];
        let io = places.choose("io.backend", io, |io| io.name().into());
        let host_log = [options.host_log, file.host_log, Some(HostLogChoice::default())];
        let host_log = places.choose("io.host_log", host_log, |choice| choice.text().into());
        let format = [options.log.format, file.log.format, Some(LogFormat::of_environment())];
        let log_format = places.choose("log.format", format, |format| format.name().into());
        let level = [options.log.level, file.log.level, Some(DEFAULT_LEVEL.to_owned())];
        let log_level = places.choose("log.level", level, |level| level.to_string().into());
        Ok(ServeConfig {
            devices,
            nbd_socket,
            nbd_listen,
            nbd_permits,
            tls,
            control_socket,
            control_permits,
            http,
            io: io.unwrap_or_default(),
            host_log: host_log.unwrap_or_default(),
            home: home.to_owned(),
            take_back: options.take_back,
            cache,
            settings,
            log_format: log_format.unwrap_or_else(LogFormat::of_environment),
            log_level: log_level.unwrap_or_default(),
            places,
            file: file.path,
            needless: file.needless,
        })
    }

    /// Returns who may connect to each unix socket: the kind of clients, the section of the
    /// configuration that says it, and the permits.
    pub fn permits(&self) -> impl Iterator<Item = (&'static str, &'static str, &Permits)> {
        let http = self.http.listen.iter().any(|place| matches!(place, HttpPlace::Unix(_)));
        let own =
            [("NBD", "nbd", &self.nbd_permits), ("control", "control", &self.control_permits)];
        own.into_iter().chain(http.then_some(("HTTP", "http", &self.http.permits)))
    }

    /// Fails if a socket is to have a group that this machine does not know. To be called before a
    /// server touches anything.
    pub fn check_groups(&self) -> Result<()> {
        for (_, section, permits) in self.permits() {
            let Some(name) = &permits.group else { continue };
            group_of(name).map_err(|e| e.within(format_args!("{section}.socket_group")))?;
        }
        Ok(())
    }
}

fn check_sockets(nbd: &Path, control: &Path) -> Result<()> {
    for path in [nbd, control] {
        check_unix_path(path).map_err(CommandError::Usage)?;
    }
    if nbd == control {
        let text = format!("NBD and control cannot share the socket {}", nbd.display());
        return Err(CommandError::Usage(text));
    }
    Ok(())
}

/// Devices as the configuration file has them.
pub fn place_of_devices(devices: &[DeviceChoice]) -> PlaceValue {
    let one = |device: &DeviceChoice| match device.emulate {
        None => PlaceItem::Text(absolute(&device.path)),
        Some(emulate) => PlaceItem::Device(NamedDevice { path: absolute(&device.path), emulate }),
    };
    PlaceValue::List(devices.iter().map(one).collect())
}

fn place_of_addresses(all: &[SocketAddr]) -> PlaceValue {
    PlaceValue::of_texts(all.iter().map(SocketAddr::to_string))
}

fn choose(
    options: &[(&'static str, Value)],
    file: &ConfigFile,
) -> std::result::Result<ChosenSettings, String> {
    let mut chosen = ChosenSettings::default();
    for &(key, value) in file.settings() {
        chosen.put(key, value, Source::File)?;
    }
    for &(name, value) in options {
        chosen.put(known(name), value, Source::Option)?;
    }
    chosen.check(None)?;
    Ok(chosen)
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
