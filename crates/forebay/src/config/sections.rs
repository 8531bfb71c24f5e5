//! The values of a configuration, by the sections of its file: one struct of each section, which
//! the file and the command line fill, and by which a server goes. Each value stands here once;
//! `None`, or an empty list, is what was not said. The help of an option is the comment of its
//! value.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use export::Rule;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use toml::Value as Toml;

use super::http::HttpPlace;
use super::permits::{Mode, mode_for};
use super::table::{Key, known};
use super::tls::{TlsMode, parse_flag};
use super::values::{Kind, Value};
use crate::host::devices::DeviceChoice;
use crate::host::home_place::HomePlace;
use crate::host::host_log::HostLogChoice;
use crate::host::logs::{self, DEFAULT_LEVEL, LogFormat};
use crate::host::sockets::{Permits, resolve};
use crate::host::world::IoChoice;
use crate::units::{parse_duration, parse_size};

/// All sections.
#[derive(Clone, Default, Debug, Args)]
#[command(next_help_heading = "Server")]
pub struct Sections {
    /// The files and block devices of the pool.
    #[arg(skip)]
    pub devices: Vec<DeviceChoice>,
    /// The rules that say which volumes clients over TLS may open; an empty list is one, too.
    #[arg(skip)]
    pub access: Option<Vec<Rule>>,
    /// See [`PoolSection`].
    #[command(flatten)]
    pub pool: PoolSection,
    /// See [`NbdSection`].
    #[command(flatten)]
    pub nbd: NbdSection,
    /// See [`TlsSection`].
    #[command(flatten)]
    pub tls: TlsSection,
    /// See [`ControlSection`].
    #[command(flatten)]
    pub control: ControlSection,
    /// See [`HttpSection`].
    #[command(flatten)]
    pub http: HttpSection,
    /// See [`IoSection`].
    #[command(flatten)]
    pub io: IoSection,
    /// Make changes durable at least this often, flushed or not [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub commit_interval: Option<Duration>,
    /// The devices that were in use last are lost, and those that are there were out of use by
    /// then: go on with the newest of these, as it was when it left. What was written since is lost
    #[arg(long)]
    pub take_back: bool,
    /// NBD connections at a time [default: 256]
    #[arg(long, value_name = "N")]
    pub max_connections: Option<usize>,
    /// See [`CacheSection`].
    #[command(flatten)]
    pub cache: CacheSection,
    /// See [`LogSection`].
    #[command(flatten)]
    pub log: LogSection,
    /// The settings of the table that the file says.
    #[arg(skip)]
    pub in_file: Vec<(&'static Key, Value)>,
}

/// The pool, and where its devices are looked for.
#[derive(Clone, Default, Debug, Args, Deserialize)]
#[serde(default)]
pub struct PoolSection {
    /// The name of the pool, or its uuid; an option of `forebay serve` alone.
    #[arg(skip)]
    #[serde(deserialize_with = "text")]
    pub name: Option<String>,
    /// Look for devices of the pool among the files in this directory, too (repeatable)
    #[arg(long, value_name = "DIR")]
    #[serde(deserialize_with = "paths")]
    pub search: Option<Vec<PathBuf>>,
}

/// The sockets of NBD clients.
#[derive(Clone, Default, Debug, Args, Deserialize)]
#[serde(default)]
pub struct NbdSection {
    /// Unix socket for NBD clients
    #[arg(id = "nbd-socket", long, value_name = "PATH")]
    #[serde(deserialize_with = "path")]
    pub socket: Option<PathBuf>,
    /// Mode of that socket, such as 0660: who may write may connect [default: 0600; with a group
    /// 0660]
    #[arg(id = "nbd-socket-mode", long, value_name = "MODE")]
    #[serde(deserialize_with = "mode")]
    pub socket_mode: Option<Mode>,
    /// Group of that socket
    #[arg(id = "nbd-socket-group", long, value_name = "GROUP")]
    #[serde(deserialize_with = "text")]
    pub socket_group: Option<String>,
    /// Listen for NBD clients on TCP too (repeatable), with TLS
    #[arg(id = "nbd-listen", long, value_name = "ADDRESS:PORT", value_parser = resolve)]
    #[serde(deserialize_with = "addresses")]
    pub listen: Vec<SocketAddr>,
    /// Whether clients over TCP must, may or cannot have TLS; without it all who can connect can
    /// read and write all volumes [default: require]
    #[arg(long, value_enum, value_name = "MODE")]
    #[serde(deserialize_with = "tls_mode")]
    pub tls: Option<TlsMode>,
}

/// The files of TLS: those that prove the server to clients, and those by which the server knows
/// clients.
#[derive(Clone, Default, Debug, Args, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsSection {
    /// Directory with server-cert.pem, server-key.pem, ca-cert.pem and, if there is one, ca-crl.pem
    #[arg(id = "tls-certificates", long, value_name = "DIR")]
    pub certificates: Option<PathBuf>,
    /// File of keys that clients may have instead of certificates: a line NAME:HEX for each
    #[arg(id = "tls-psk", long, value_name = "PATH")]
    pub psk: Option<PathBuf>,
    /// Whether clients without such a key need a certificate of the authority [default: true]
    #[arg(id = "tls-verify-peer", long, value_name = "true|false", value_parser = parse_flag)]
    pub verify_peer: Option<bool>,
}

/// The socket of commands.
#[derive(Clone, Default, Debug, Args, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControlSection {
    /// Unix socket for commands such as `forebay status`
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// The mode of that socket.
    #[arg(skip)]
    pub socket_mode: Option<Mode>,
    /// The group of that socket.
    #[arg(skip)]
    pub socket_group: Option<String>,
}

/// The HTTP API.
#[derive(Clone, Default, Debug, Args, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpSection {
    /// Serve the HTTP API and metrics here (repeatable); none: nowhere [default of forebay up:
    /// unix:DIR/http.sock and 127.0.0.1:10810]
    #[arg(id = "http-listen", long, value_name = "ADDRESS:PORT|unix:PATH")]
    #[serde(default, deserialize_with = "http_places")]
    pub listen: Vec<HttpPlace>,
    /// File with the token that HTTP clients on TCP need, for its owner alone; without one they get
    /// metrics and health only [default of forebay up: DIR/http.token]
    #[arg(id = "http-token-file", long, value_name = "PATH")]
    pub token_file: Option<PathBuf>,
    /// The mode of its unix sockets.
    #[arg(skip)]
    pub socket_mode: Option<Mode>,
    /// The group of its unix sockets.
    #[arg(skip)]
    pub socket_group: Option<String>,
    /// Names of the server beside `localhost` and addresses.
    #[arg(skip)]
    #[serde(default)]
    pub hosts: Vec<String>,
    /// True if the API was not asked for: where a TCP port is taken, the server goes on without.
    #[arg(skip)]
    #[serde(skip)]
    pub optional: bool,
    /// True if the file with the token is the server's own: it is made if it is not there.
    #[arg(skip)]
    #[serde(skip)]
    pub make_token: bool,
}

/// The backend of I/O, and the record of answered writes.
#[derive(Clone, Default, Debug, Args, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IoSection {
    /// Backend for I/O; `auto` takes io_uring where it is permitted
    #[arg(id = "io", long, value_enum, value_name = "BACKEND")]
    pub backend: Option<IoChoice>,
    /// Record answered writes in this directory, best in memory, for the case that the process dies
    /// [default: auto: in /dev/shm, /run, or beside the sockets]
    #[arg(long, value_name = "DIR|auto|off")]
    #[serde(default, deserialize_with = "host_log")]
    pub host_log: Option<HostLogChoice>,
}

/// The place of a server's cache, and what becomes of the cache at the start.
#[derive(Clone, Default, Debug, Args, Deserialize)]
#[command(next_help_heading = "Cache")]
#[serde(default)]
pub struct CacheSection {
    /// File or block device of the write-back cache in front of the pool [default of forebay up:
    /// DIR/cache.img]
    #[arg(id = "cache", long, value_name = "PATH")]
    #[serde(deserialize_with = "path")]
    pub path: Option<PathBuf>,
    /// If the pool has no cache, make one of this size. 0: write back what an attached one holds,
    /// detach it, and go on without [default of forebay up: 2G, a quarter of the free space at
    /// most]
    #[arg(id = "cache-size", long, value_name = "SIZE", value_parser = parse_size)]
    #[serde(deserialize_with = "size")]
    pub size: Option<u64>,
    /// Which blocks are kept: lru, fifo, random or adaptive [default: adaptive]
    #[arg(id = "cache-policy", long, value_name = "POLICY")]
    #[serde(skip)]
    pub policy: Option<cache::Policy>,
    /// Longest time by which the pool's image should be older than the volumes: what losing the
    /// cache costs [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    #[serde(skip)]
    pub max_lag: Option<Duration>,
    /// Memory for the cache's index; the rest is read from the cache when needed [default: 48M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    #[serde(skip)]
    pub index_memory: Option<u64>,
    /// The cache is lost: go on with the pool's image, which is older, and report how old. What was
    /// written since is lost
    #[arg(id = "forget-cache", long)]
    #[serde(skip)]
    pub forget: bool,
    /// True if the cache was not asked for: where none can be made, the server goes on without.
    #[arg(skip)]
    #[serde(skip)]
    pub optional: bool,
    /// True if the file is the server's own: it is removed when it is of no use any more.
    #[arg(skip)]
    #[serde(skip)]
    pub owned: bool,
    /// The directory of `forebay up` in which the place of the cache is kept.
    #[arg(skip)]
    #[serde(skip)]
    pub kept_in: Option<PathBuf>,
    /// The place of that directory, to be kept in it once the cache is open.
    #[arg(skip)]
    #[serde(skip)]
    pub place: Option<HomePlace>,
}

/// The log of a server.
#[derive(Clone, Default, Debug, Args, Deserialize)]
#[command(next_help_heading = "Log")]
#[serde(deny_unknown_fields)]
pub struct LogSection {
    /// Format of the log (on standard error) [default: human]
    #[arg(id = "log", long, value_enum, value_name = "FORMAT")]
    pub format: Option<LogFormat>,
    /// Which events are logged: error, warn, info, debug or trace, or by part as in warn,nbd=debug
    /// [default: info]
    #[arg(id = "log-level", long, value_name = "LEVEL", env = logs::LEVEL_VARIABLE,
        value_parser = logs::parse_level)]
    #[serde(default, deserialize_with = "level")]
    pub level: Option<String>,
}

impl Sections {
    /// The settings of the table that are said.
    pub fn settings(&self) -> impl Iterator<Item = (&'static Key, Value)> {
        let options = [
            ("cache.policy", self.cache.policy.map(|policy| Value::Word(policy.word()))),
            ("cache.max_lag", self.cache.max_lag.map(Value::Time)),
            ("cache.index_memory", self.cache.index_memory.map(Value::Size)),
            ("pool.commit_interval", self.commit_interval.map(Value::Time)),
            ("nbd.max_connections", self.max_connections.map(|n| Value::Number(n as u64))),
        ];
        let given = options.into_iter().filter_map(|(name, value)| Some((known(name), value?)));
        self.in_file.iter().copied().chain(given)
    }

    /// Says the defaults where nothing is said: those of sockets are in `home`.
    pub(super) fn complete(&mut self, home: &Path) {
        let Sections { access, pool, nbd, tls, control, http, io, log, .. } = self;
        access.get_or_insert_default();
        pool.search.get_or_insert_default();
        nbd.socket.get_or_insert_with(|| home.join("nbd.sock"));
        nbd.tls.get_or_insert(TlsMode::Require);
        tls.verify_peer.get_or_insert(true);
        control.socket.get_or_insert_with(|| home.join("control.sock"));
        nbd.socket_mode.get_or_insert(mode_for(&nbd.socket_group));
        control.socket_mode.get_or_insert(mode_for(&control.socket_group));
        http.socket_mode.get_or_insert(mode_for(&http.socket_group));
        io.backend.get_or_insert_default();
        io.host_log.get_or_insert_default();
        log.format.get_or_insert_with(LogFormat::of_environment);
        log.level.get_or_insert_with(|| DEFAULT_LEVEL.to_owned());
    }
}

/// A value that has a default.
pub trait Complete<T> {
    /// The value, which is there in the sections that a server goes by.
    fn said(&self) -> &T;
}

impl<T> Complete<T> for Option<T> {
    fn said(&self) -> &T {
        self.as_ref().unwrap_or_else(|| unreachable!("it has a default, which has been said"))
    }
}

macro_rules! permits {
    ($($section:ty),*) => {
        $(impl $section {
            /// Returns the users that may connect to its unix sockets.
            pub fn permits(&self) -> Permits {
                Permits { mode: self.socket_mode.said().0, group: self.socket_group.clone() }
            }
        })*
    };
}

permits!(NbdSection, ControlSection, HttpSection);

/// Reads a value of the file whose error is to be this text.
fn read<'de, D: Deserializer<'de>, T>(
    d: D,
    read: impl FnOnce(Toml) -> Result<T, String>,
) -> Result<T, D::Error> {
    read(Toml::deserialize(d)?).map_err(D::Error::custom)
}

fn text_of(value: Toml) -> Result<String, String> {
    match value {
        Toml::String(text) => Ok(text),
        other => Err(format!("{other} is no text")),
    }
}

fn text<'de, D: Deserializer<'de>>(d: D) -> Result<Option<String>, D::Error> {
    read(d, |value| text_of(value).map(Some))
}

fn path<'de, D: Deserializer<'de>>(d: D) -> Result<Option<PathBuf>, D::Error> {
    read(d, |value| match value {
        Toml::String(path) => Ok(Some(path.into())),
        other => Err(format!("{other} is no path")),
    })
}

fn paths<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Vec<PathBuf>>, D::Error> {
    let one = |value: Toml| text_of(value).map(PathBuf::from);
    read(d, |value| match value {
        Toml::Array(all) => all.into_iter().map(one).collect::<Result<_, _>>().map(Some),
        other => Err(format!("{other} is no list of directories")),
    })
}

fn size<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
    read(d, |value| Kind::Size(0, u64::MAX).read(&value).map(|size| Some(size.number())))
}

fn mode<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Mode>, D::Error> {
    read(d, |value| match value {
        Toml::Integer(number) => Err(Mode::not_of_number(number)),
        value => text_of(value)?.parse().map(Some),
    })
}

fn tls_mode<'de, D: Deserializer<'de>>(d: D) -> Result<Option<TlsMode>, D::Error> {
    read(d, |value| {
        let told = value.to_string();
        let mode = value.try_into();
        mode.map(Some).map_err(|_| format!("{told} is not \"require\", \"offer\" or \"off\""))
    })
}

fn addresses<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<SocketAddr>, D::Error> {
    let one = |value: &Toml| match value {
        Toml::String(text) => resolve(text),
        other => Err(format!("{other} is not \"ADDRESS:PORT\"")),
    };
    read(d, |value| match value {
        Toml::Array(all) => all.iter().map(one).collect(),
        other => Err(format!("{other} is no list of \"ADDRESS:PORT\"")),
    })
}

/// One place, or a list.
fn http_places<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<HttpPlace>, D::Error> {
    let one = |value: &Toml| match value {
        Toml::String(text) => text.parse(),
        other => Err(format!("{other} is not \"ADDRESS:PORT\" or \"unix:PATH\"")),
    };
    read(d, |value| match value {
        Toml::Array(all) => all.iter().map(one).collect(),
        value => Ok(vec![one(&value)?]),
    })
}

fn host_log<'de, D: Deserializer<'de>>(d: D) -> Result<Option<HostLogChoice>, D::Error> {
    String::deserialize(d)?.parse().map(Some).map_err(D::Error::custom)
}

fn level<'de, D: Deserializer<'de>>(d: D) -> Result<Option<String>, D::Error> {
    logs::parse_level(&String::deserialize(d)?).map(Some).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_is_named_may_connect() {
        let of = |mode: Option<&str>, group: Option<&str>| {
            let mut said = Sections::default();
            said.nbd.socket_mode = mode.map(|text| text.parse().unwrap());
            said.nbd.socket_group = group.map(str::to_owned);
            said.complete(Path::new("home"));
            said.nbd.permits()
        };
        assert_eq!(of(None, None), Permits::default());
        assert_eq!(of(None, Some("kvm")).mode, 0o660);
        assert_eq!(of(Some("0600"), Some("kvm")).mode, 0o600);
        assert_eq!(of(Some("0666"), None), Permits { mode: 0o666, group: None });
    }
}
