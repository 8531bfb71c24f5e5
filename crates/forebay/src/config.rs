//! What a server is told, validated: from command-line options, from a configuration file, from
//! defaults, in this order. Plain data; nothing has been opened yet.
//!
//! * [`table`]: all settings; [`values`]: what they can be; [`chosen`]: their values, and where
//!   each comes from
//! * [`file`](mod@file): the configuration file; [`saving`]: a setting that is written to it
//!
//! `docs/configuration.md` describes every key of the file.

mod caching;
pub mod chosen;
mod file;
pub mod saving;
pub mod table;
pub mod values;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::devices::DeviceChoice;
use crate::error::{CommandError, Result};
use crate::sockets::check_unix_path;
use crate::world::{IoChoice, check_distinct};

pub use caching::{CacheConfig, CacheOverrides};
use chosen::{Chosen, Source, known};
pub use file::{ConfigFile, LogSection};
use values::Value;

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
    /// The cache in front of the pool.
    pub cache: CacheConfig,
    /// How pool and cache behave, and how much clients may use.
    pub settings: Chosen,
    /// The configuration file, if there is one.
    pub file: Option<PathBuf>,
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
    /// See [`CacheConfig`].
    pub cache: CacheOverrides,
    /// Settings, by their full names.
    pub settings: Vec<(&'static str, Value)>,
}

impl ServeConfig {
    /// Puts together what was said, with sockets in `home` where nothing was said about them, and
    /// checks it.
    pub fn new(options: Overrides, file: ConfigFile, home: &Path) -> Result<ServeConfig> {
        let usage = |text: String| Err(CommandError::Usage(text));
        let settings = choose(&options.settings, &file).map_err(CommandError::Usage)?;
        let devices = if options.devices.is_empty() { file.devices } else { options.devices };
        if devices.is_empty() {
            return usage("no device is named".into());
        }
        let cache = CacheConfig::new(options.cache, file.cache_path, file.cache_size)?;
        check_distinct(devices.iter().map(|d| d.path.as_path()).chain(cache.path.as_deref()))?;
        let nbd_socket =
            options.nbd_socket.or(file.nbd_socket).unwrap_or_else(|| home.join("nbd.sock"));
        let control_socket = options
            .control_socket
            .or(file.control_socket)
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
        let io = options.io.or(file.io).unwrap_or_default();
        let nbd_listen =
            if options.nbd_listen.is_empty() { file.nbd_listen } else { options.nbd_listen };
        Ok(ServeConfig {
            devices,
            nbd_socket,
            nbd_listen,
            control_socket,
            io,
            cache,
            settings,
            file: file.path,
        })
    }
}

fn choose(
    options: &[(&'static str, Value)],
    file: &ConfigFile,
) -> std::result::Result<Chosen, String> {
    let mut chosen = Chosen::default();
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
#[path = "config/tests.rs"]
mod tests;
