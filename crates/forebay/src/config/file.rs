//! The configuration file. A key that it cannot have is an error that names it, and the line.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use toml::{Spanned, Value as Toml};

use super::chosen::{ChosenSettings, Source, find_in, why_gone};
use super::http::{HttpOverrides, HttpPlace};
use super::permits::{Mode, PermitsOverrides};
use super::table::Key;
use super::tls::{AccessRow, TlsMode, TlsOverrides};
use super::values::{Kind, Value};
use crate::error::{CommandError, Result};
use crate::host::devices::DeviceChoice;
use crate::host::host_log::HostLogChoice;
use crate::host::logs::{LogFormat, parse_level};
use crate::host::sockets::resolve;
use crate::host::world::IoChoice;

/// The content of a configuration file.
#[derive(Default, Debug)]
pub struct ConfigFile {
    /// The devices of the pool.
    pub devices: Vec<DeviceChoice>,
    /// The path of the unix socket for NBD clients.
    pub nbd_socket: Option<PathBuf>,
    /// The TCP addresses for NBD clients.
    pub nbd_listen: Vec<SocketAddr>,
    /// The users that may connect to the unix socket of NBD.
    pub nbd_permits: PermitsOverrides,
    /// TLS, and the volumes that its clients may open.
    pub tls: TlsOverrides,
    /// The path of the control socket, to which commands connect.
    pub control_socket: Option<PathBuf>,
    /// The users that may connect to the control socket.
    pub control_permits: PermitsOverrides,
    /// The HTTP API.
    pub http: HttpOverrides,
    /// The cache's file or block device.
    pub cache_path: Option<PathBuf>,
    /// The size in bytes of a cache that is to be made.
    pub cache_size: Option<u64>,
    /// The number of the line that says the size of the cache.
    pub cache_size_line: Option<usize>,
    /// The choice of the I/O backend.
    pub io: Option<IoChoice>,
    /// See [`ServeConfig`](super::ServeConfig).
    pub host_log: Option<HostLogChoice>,
    /// The section `log`.
    pub log: LogSection,
    /// The file itself, if there is one.
    pub path: Option<PathBuf>,
    /// Lines that have no effect any more, and why.
    pub needless: Vec<String>,
    settings: Vec<(&'static Key, Value)>,
}

/// As it stands there.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sections {
    devices: Vec<DeviceChoice>,
    access: Option<Vec<AccessRow>>,
    #[serde(default)]
    nbd: Keys,
    #[serde(default)]
    tls: TlsSection,
    #[serde(default)]
    control: ControlSection,
    #[serde(default)]
    http: HttpSection,
    #[serde(default)]
    pool: Keys,
    #[serde(default)]
    scrub: Keys,
    #[serde(default)]
    cache: Keys,
    #[serde(default)]
    io: IoSection,
    #[serde(default)]
    log: LogSection,
}

/// A section with settings of the table, and where their values stand.
type Keys = BTreeMap<String, Spanned<Toml>>;

#[derive(Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ControlSection {
    socket: Option<PathBuf>,
    socket_mode: Option<Mode>,
    socket_group: Option<String>,
}

#[derive(Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HttpSection {
    #[serde(default, deserialize_with = "http_places")]
    listen: Vec<HttpPlace>,
    token_file: Option<PathBuf>,
    socket_mode: Option<Mode>,
    socket_group: Option<String>,
    #[serde(default)]
    hosts: Vec<String>,
}

/// The section `tls`.
#[derive(Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TlsSection {
    certificates: Option<PathBuf>,
    psk: Option<PathBuf>,
    verify_peer: Option<bool>,
}

/// One place, or a list.
fn http_places<'de, D: Deserializer<'de>>(d: D) -> std::result::Result<Vec<HttpPlace>, D::Error> {
    let one = |value: &Toml| match value {
        Toml::String(text) => text.parse().map_err(D::Error::custom),
        other => Err(D::Error::custom(format!("{other} is not \"ADDRESS:PORT\" or \"unix:PATH\""))),
    };
    match Toml::deserialize(d)? {
        Toml::Array(all) => all.iter().map(one).collect(),
        value => Ok(vec![one(&value)?]),
    }
}

#[derive(Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct IoSection {
    backend: Option<IoChoice>,
    #[serde(default, deserialize_with = "host_log")]
    host_log: Option<HostLogChoice>,
}

fn host_log<'de, D: Deserializer<'de>>(
    d: D,
) -> std::result::Result<Option<HostLogChoice>, D::Error> {
    String::deserialize(d)?.parse().map(Some).map_err(D::Error::custom)
}

/// The section `log`.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSection {
    /// The format of a line.
    pub format: Option<LogFormat>,
    /// The level of events that are logged.
    #[serde(default, deserialize_with = "level")]
    pub level: Option<String>,
}

fn level<'de, D: Deserializer<'de>>(d: D) -> std::result::Result<Option<String>, D::Error> {
    parse_level(&String::deserialize(d)?).map(Some).map_err(D::Error::custom)
}

/// A fault: the byte of the file at which it stands, and what is wrong.
type Fault = (usize, String);

impl ConfigFile {
    /// Reads a file. Relative paths in it are relative to the directory that it is in.
    pub fn read(path: &Path) -> Result<ConfigFile> {
        let at = path.display();
        let wrong = |e: &dyn std::fmt::Display| {
            let e = CommandError::Usage(format!("{at}: {e}"));
            e.or_next("forebay config --example shows every key")
        };
        let text = std::fs::read_to_string(path).map_err(|e| wrong(&e))?;
        let mut file = ConfigFile::parse(&text).map_err(|e| wrong(&e))?;
        let base = path.parent().unwrap_or(Path::new(""));
        let devices = file.devices.iter_mut().map(|d| &mut d.path);
        let paths = devices
            .chain(&mut file.nbd_socket)
            .chain(&mut file.control_socket)
            .chain(&mut file.http.token_file)
            .chain(&mut file.tls.certificates)
            .chain(&mut file.tls.keys)
            .chain(file.http.listen.iter_mut().filter_map(HttpPlace::path_mut))
            .chain(file.host_log.iter_mut().filter_map(HostLogChoice::path_mut))
            .chain(&mut file.cache_path);
        paths.for_each(|p| *p = base.join(&*p));
        file.path = Some(path.to_owned());
        Ok(file)
    }

    /// Reads the text of a file.
    pub fn parse(text: &str) -> std::result::Result<ConfigFile, String> {
        let sections: Sections = toml::from_str(text).map_err(|e| e.to_string())?;
        let line = |at: usize| text.get(..at).map_or(1, |before| before.matches('\n').count() + 1);
        let size_line = sections.cache.get("size").map(|value| line(value.span().start));
        let told = |(at, text): Fault| format!("line {}: {text}", line(at));
        let (file, needless) = ConfigFile::of(sections).map_err(told)?;
        let needless = needless.into_iter().map(told).collect();
        Ok(ConfigFile { cache_size_line: size_line, needless, ..file })
    }

    /// Also returns what of it has no effect any more.
    fn of(sections: Sections) -> std::result::Result<(ConfigFile, Vec<Fault>), Fault> {
        let Sections { devices, access, mut nbd, tls, control, .. } = sections;
        let Sections { http, pool, scrub, mut cache, io, log, .. } = sections;
        let mut file = ConfigFile {
            devices,
            nbd_socket: take(&mut nbd, "socket", path)?,
            nbd_listen: take(&mut nbd, "listen", addresses)?.unwrap_or_default(),
            nbd_permits: PermitsOverrides {
                mode: take(&mut nbd, "socket_mode", mode)?,
                group: take(&mut nbd, "socket_group", text)?,
            },
            tls: TlsOverrides {
                mode: take(&mut nbd, "tls", tls_mode)?,
                certificates: tls.certificates,
                keys: tls.psk,
                verify_peer: tls.verify_peer,
                access: access.map(|rows| rows.into_iter().map(Into::into).collect()),
            },
            control_socket: control.socket,
            control_permits: PermitsOverrides {
                mode: control.socket_mode,
                group: control.socket_group,
            },
            http: HttpOverrides {
                listen: http.listen,
                permits: PermitsOverrides { mode: http.socket_mode, group: http.socket_group },
                token_file: http.token_file,
                hosts: http.hosts,
            },
            cache_path: take(&mut cache, "path", path)?,
            cache_size: take(&mut cache, "size", |value| {
                Kind::Size(0, u64::MAX).read(&value).map(Value::number)
            })?,
            cache_size_line: None,
            io: io.backend,
            host_log: io.host_log,
            log,
            path: None,
            needless: Vec::new(),
            settings: Vec::new(),
        };
        let mut needless = Vec::new();
        for (section, keys) in [("nbd", nbd), ("pool", pool), ("scrub", scrub), ("cache", cache)] {
            for (name, value) in keys {
                let at = value.span().start;
                if let Some(why) = why_gone(section, &name) {
                    let text = format!("{section}.{name} has no effect any more: {why}");
                    needless.push((at, text));
                    continue;
                }
                let key = find_in(section, &name).map_err(|e| (at, e))?;
                let read = key.kind.read(value.get_ref());
                let read = read.map_err(|e| (at, format!("{}: {e}", key.full_name())))?;
                // The range is named with the line, too.
                ChosenSettings::default().put(key, read, Source::File).map_err(|e| (at, e))?;
                file.settings.push((key, read));
            }
        }
        Ok((file, needless))
    }

    /// The settings that it has.
    pub fn settings(&self) -> &[(&'static Key, Value)] {
        &self.settings
    }
}

/// Takes a key that is no setting out of a section.
fn take<T>(
    keys: &mut Keys,
    name: &str,
    read: impl FnOnce(Toml) -> std::result::Result<T, String>,
) -> std::result::Result<Option<T>, Fault> {
    let Some(value) = keys.remove(name) else { return Ok(None) };
    let at = value.span().start;
    read(value.into_inner()).map(Some).map_err(|e| (at, format!("{name}: {e}")))
}

fn text(value: Toml) -> std::result::Result<String, String> {
    match value {
        Toml::String(text) => Ok(text),
        other => Err(format!("{other} is no text")),
    }
}

fn mode(value: Toml) -> std::result::Result<Mode, String> {
    match value {
        Toml::Integer(number) => Err(Mode::not_of_number(number)),
        value => text(value)?.parse(),
    }
}

fn tls_mode(value: Toml) -> std::result::Result<TlsMode, String> {
    let told = value.to_string();
    value.try_into().map_err(|_| format!("{told} is not \"require\", \"offer\" or \"off\""))
}

fn path(value: Toml) -> std::result::Result<PathBuf, String> {
    match value {
        Toml::String(path) => Ok(path.into()),
        other => Err(format!("{other} is no path")),
    }
}

fn addresses(value: Toml) -> std::result::Result<Vec<SocketAddr>, String> {
    let Toml::Array(all) = value else {
        return Err(format!("{value} is no list of \"ADDRESS:PORT\""));
    };
    let one = |value: &Toml| match value {
        Toml::String(text) => resolve(text),
        other => Err(format!("{other} is not \"ADDRESS:PORT\"")),
    };
    all.iter().map(one).collect()
}
