//! Paths, addresses and the log: the values of a configuration beside the settings of the table.
//! All of them are read when the server starts.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use export::Rule;
use model::setting::{AccessRule, NamedDevice, PlaceItem, PlaceValue, Source};

use super::http::HttpPlace;
use super::permits::Mode;
use super::sections::Sections;
use super::tls::TlsMode;
use crate::host::devices::DeviceChoice;
use crate::host::host_log::HostLogChoice;
use crate::host::logs::LogFormat;
use crate::host::world::IoChoice;
use crate::units::exact_size;

/// A key of the configuration that is no setting of the table.
#[derive(Debug)]
pub struct PlaceKey {
    /// The name of the key, and its value in the sections.
    pub field: Field,
    /// The option of the command line, or an empty text.
    pub option: &'static str,
    /// The value that holds if nothing is said, for people.
    pub default: &'static str,
    /// A value as the configuration file has it.
    pub example: &'static str,
    /// The meaning of the key, for people.
    pub what: &'static str,
}

/// The access to a value of the sections.
#[derive(Debug)]
pub struct Field {
    /// The name of the key, with its section if it has one.
    pub name: &'static str,
    shown: fn(&Sections) -> PlaceValue,
    is_said: fn(&Sections) -> bool,
    fill: fn(&mut Sections, &mut Sections) -> bool,
    rebase: fn(&mut Sections, &Path),
}

macro_rules! field {
    ($($field:ident).+) => {
        Field {
            name: stringify!($($field).+),
            shown: |s| s.$($field).+.shown(),
            is_said: |s| s.$($field).+.is_said(),
            fill: |s, other| fill(&mut s.$($field).+, &mut other.$($field).+),
            rebase: |s, base| s.$($field).+.rebase(base),
        }
    };
}

/// An example of rules.
const ACCESS: &str = r#"[{ client = "vm1", volumes = ["vm1-*", "iso"], read_only = false }]"#;

/// All of them, in the order in which the configuration file has its sections.
pub static PLACES: &[PlaceKey] = &[
    PlaceKey {
        field: field!(devices),
        option: "--device",
        default: "none; at least one is needed, or pool.name",
        example: r#"["/dev/disk/by-id/one", "/dev/disk/by-id/two"]"#,
        what: "files and block devices of the pool, in any order; each is a path, or a table such \
               as { path = \"/srv/a.img\", emulate = \"hdd\" }",
    },
    PlaceKey {
        field: field!(pool.name),
        option: "--pool",
        default: "none: that of the devices that are named",
        example: r#""tank""#,
        what: "the pool that is served, by its name or uuid; its devices are found wherever they \
               are, so none has to be named",
    },
    PlaceKey {
        field: field!(pool.search),
        option: "--search",
        default: "none",
        example: r#"["/srv/forebay"]"#,
        what: "directories with files that may be devices or the cache of the pool; looked for \
               there, and among all block devices, is what is not where it was last",
    },
    PlaceKey {
        field: field!(access),
        option: "",
        default: "none: clients over TLS may open all volumes",
        example: ACCESS,
        what: "what clients over TLS may open: a name of their certificate or key and names of \
               volumes, in which * stands for any text and ? for one character; what no rule gives \
               is not there for them",
    },
    PlaceKey {
        field: field!(nbd.socket),
        option: "--nbd-socket",
        default: "./forebay-data/nbd.sock",
        example: r#""/run/forebay/nbd.sock""#,
        what: "unix socket of NBD clients",
    },
    PlaceKey {
        field: field!(nbd.socket_mode),
        option: "--nbd-socket-mode",
        default: "0600; with a group 0660",
        example: r#""0660""#,
        what: "mode of that socket: who may write may connect, and read and write all volumes",
    },
    PlaceKey {
        field: field!(nbd.socket_group),
        option: "--nbd-socket-group",
        default: "that of the process",
        example: r#""kvm""#,
        what: "group of that socket, of which the user that runs the server is a member",
    },
    PlaceKey {
        field: field!(nbd.listen),
        option: "--nbd-listen",
        default: "none",
        example: r#"["127.0.0.1:10809"]"#,
        what: "addresses to serve on TCP too, with TLS",
    },
    PlaceKey {
        field: field!(nbd.tls),
        option: "--tls",
        default: "require",
        example: r#""require""#,
        what: "clients over TCP must have TLS (require), may have it (offer), or cannot have it \
               (off); without it all who can connect can read and write all volumes",
    },
    PlaceKey {
        field: field!(tls.certificates),
        option: "--tls-certificates",
        default: "none",
        example: r#""/etc/forebay/tls""#,
        what: "directory with server-cert.pem, server-key.pem, ca-cert.pem and, if there is one, \
               ca-crl.pem; read again when they change",
    },
    PlaceKey {
        field: field!(tls.psk),
        option: "--tls-psk",
        default: "none",
        example: r#""/etc/forebay/keys.psk""#,
        what: "file of keys that clients may have instead of certificates, a line NAME:HEX for \
               each, for its owner alone; read again when it changes",
    },
    PlaceKey {
        field: field!(tls.verify_peer),
        option: "--tls-verify-peer",
        default: "true",
        example: "true",
        what: "clients without such a key need a certificate of ca-cert.pem; false: any client may \
               connect, and is not known by a name",
    },
    PlaceKey {
        field: field!(control.socket),
        option: "--socket",
        default: "./forebay-data/control.sock",
        example: r#""/run/forebay/control.sock""#,
        what: "unix socket of commands such as forebay status",
    },
    PlaceKey {
        field: field!(control.socket_mode),
        option: "",
        default: "0600; with a group 0660",
        example: r#""0660""#,
        what: "mode of that socket: users with write permission may do everything",
    },
    PlaceKey {
        field: field!(control.socket_group),
        option: "",
        default: "that of the process",
        example: r#""forebay""#,
        what: "group of that socket, of which the user that runs the server is a member",
    },
    PlaceKey {
        field: field!(http.listen),
        option: "--http-listen",
        default: "none; forebay up: a socket in its directory and 127.0.0.1:10810",
        example: r#"["127.0.0.1:10810"]"#,
        what: "where the HTTP API and metrics are served: \"ADDRESS:PORT\", \"unix:PATH\", or a \
               list of them",
    },
    PlaceKey {
        field: field!(http.socket_mode),
        option: "",
        default: "0600; with a group 0660",
        example: r#""0660""#,
        what: "mode of its unix sockets: users with write permission may do everything, without a \
               token",
    },
    PlaceKey {
        field: field!(http.socket_group),
        option: "",
        default: "that of the process",
        example: r#""forebay""#,
        what: "group of its unix sockets, of which the user that runs the server is a member",
    },
    PlaceKey {
        field: field!(http.token_file),
        option: "--http-token-file",
        default: "none; forebay up: http.token in its directory",
        example: r#""/etc/forebay/http.token""#,
        what: "file with the token that HTTP clients on TCP need, for its owner alone; without one \
               they get metrics and health only",
    },
    PlaceKey {
        field: field!(http.hosts),
        option: "",
        default: "none",
        example: r#"["box.lan"]"#,
        what: "names by which HTTP clients may ask for the server over TCP, beside localhost and \
               addresses",
    },
    PlaceKey {
        field: field!(cache.path),
        option: "--cache",
        default: "none",
        example: r#""/dev/disk/by-id/fast-part1""#,
        what: "file or block device of the write-back cache; needed where the pool has a cache",
    },
    PlaceKey {
        field: field!(cache.size),
        option: "--cache-size",
        default: "none",
        example: r#""100G""#,
        what: "if the pool has no cache, one of this size is made at the path; 0: what is dirty is \
               written back, and the cache is detached",
    },
    PlaceKey {
        field: field!(io.backend),
        option: "--io",
        default: "auto",
        example: r#""auto""#,
        what: "what I/O goes through: uring or posix; auto: io_uring where it is permitted, else \
               posix",
    },
    PlaceKey {
        field: field!(io.host_log),
        option: "--host-log",
        default: "auto",
        example: r#""auto""#,
        what: "where answered writes are recorded for the case that the process dies: a directory, \
               best in memory; auto: in /dev/shm, /run, or beside the sockets; off: nowhere",
    },
    PlaceKey {
        field: field!(log.format),
        option: "--log",
        default: "human",
        example: r#""human""#,
        what: "where the log goes and what a line looks like: human or json on standard error, \
               journal for systemd's",
    },
    PlaceKey {
        field: field!(log.level),
        option: "--log-level",
        default: "info",
        example: r#""info""#,
        what: "which events are logged: error, warn, info, debug, trace, or by part: \
               \"warn,nbd=debug\"",
    },
];

/// A value of a place.
trait Shown {
    /// The value as the configuration file has it.
    fn shown(&self) -> PlaceValue;

    /// Makes relative paths relative to a directory.
    fn rebase(&mut self, _base: &Path) {}

    /// Whether somebody has said it.
    fn is_said(&self) -> bool {
        true
    }
}

/// A member of a list.
trait Member {
    fn item(&self) -> PlaceItem;

    fn path_mut(&mut self) -> Option<&mut PathBuf> {
        None
    }
}

impl<T: Shown> Shown for Option<T> {
    fn shown(&self) -> PlaceValue {
        self.as_ref().map_or(PlaceValue::None, T::shown)
    }

    fn rebase(&mut self, base: &Path) {
        self.iter_mut().for_each(|value| value.rebase(base));
    }

    fn is_said(&self) -> bool {
        self.is_some()
    }
}

impl<T: Member> Shown for Vec<T> {
    fn shown(&self) -> PlaceValue {
        PlaceValue::List(self.iter().map(T::item).collect())
    }

    fn rebase(&mut self, base: &Path) {
        self.iter_mut().filter_map(T::path_mut).for_each(|path| path.rebase(base));
    }

    fn is_said(&self) -> bool {
        !self.is_empty()
    }
}

impl Shown for PathBuf {
    fn shown(&self) -> PlaceValue {
        place_of_path(self)
    }

    fn rebase(&mut self, base: &Path) {
        *self = base.join(&*self);
    }
}

impl Shown for HostLogChoice {
    fn shown(&self) -> PlaceValue {
        self.text().into()
    }

    fn rebase(&mut self, base: &Path) {
        self.path_mut().into_iter().for_each(|path| path.rebase(base));
    }
}

macro_rules! shown {
    ($($type:ty: $shown:expr),* $(,)?) => {
        $(impl Shown for $type {
            fn shown(&self) -> PlaceValue {
                let shown: fn(&$type) -> PlaceValue = $shown;
                shown(self)
            }
        })*
    };
}

shown! {
    bool: |on| PlaceValue::Flag(*on),
    u64: |size| exact_size(*size).into(),
    String: |text| text.as_str().into(),
    Mode: |mode| format!("{:04o}", mode.0).into(),
    TlsMode: |mode| mode.name().into(),
    IoChoice: |io| io.name().into(),
    LogFormat: |format| format.name().into(),
}

impl Member for String {
    fn item(&self) -> PlaceItem {
        PlaceItem::Text(self.clone())
    }
}

impl Member for PathBuf {
    fn item(&self) -> PlaceItem {
        PlaceItem::Text(absolute(self))
    }

    fn path_mut(&mut self) -> Option<&mut PathBuf> {
        Some(self)
    }
}

impl Member for SocketAddr {
    fn item(&self) -> PlaceItem {
        PlaceItem::Text(self.to_string())
    }
}

impl Member for HttpPlace {
    fn item(&self) -> PlaceItem {
        PlaceItem::Text(match self {
            HttpPlace::Unix(path) => format!("unix:{}", absolute(path)),
            HttpPlace::Tcp(address) => address.to_string(),
            HttpPlace::None => "none".to_owned(),
        })
    }

    fn path_mut(&mut self) -> Option<&mut PathBuf> {
        HttpPlace::path_mut(self)
    }
}

impl Member for DeviceChoice {
    fn item(&self) -> PlaceItem {
        let path = absolute(&self.path);
        match self.emulate {
            None => PlaceItem::Text(path),
            Some(emulate) => PlaceItem::Device(NamedDevice { path, emulate }),
        }
    }

    fn path_mut(&mut self) -> Option<&mut PathBuf> {
        Some(&mut self.path)
    }
}

impl Member for Rule {
    fn item(&self) -> PlaceItem {
        let Rule { client, volumes, read_only } = self.clone();
        PlaceItem::Rule(AccessRule { client, volumes, read_only })
    }
}

/// Takes a value from `other` where there is none. True if it took one.
fn fill<T: Shown>(value: &mut T, other: &mut T) -> bool {
    let fills = !value.is_said() && other.is_said();
    if fills {
        std::mem::swap(value, other);
    }
    fills
}

impl Sections {
    /// Makes relative paths relative to a directory.
    pub(super) fn rebase(&mut self, base: &Path) {
        PLACES.iter().for_each(|place| (place.field.rebase)(self, base));
    }

    /// Puts together the values of options, then those of a file, then the defaults of a server
    /// with its sockets in `home`. Returns where each value comes from, too.
    pub(super) fn merge(mut self, mut file: Sections, home: &Path) -> (Sections, Places) {
        let mut source = |place: &PlaceKey| match (place.field.is_said)(&self) {
            true => Source::Option,
            false if (place.field.fill)(&mut self, &mut file) => Source::File,
            false => Source::Default,
        };
        let sources: Vec<Source> = PLACES.iter().map(&mut source).collect();
        self.complete(home);
        let given = PLACES.iter().zip(sources).map(|(place, source)| GivenPlace {
            name: place.field.name,
            value: (place.field.shown)(&self),
            source,
        });
        let given = Places(given.collect());
        (self, given)
    }
}

/// The value of a place, and where it comes from.
#[derive(Clone, PartialEq, Debug)]
pub struct GivenPlace {
    /// The name of the key.
    pub name: &'static str,
    /// The value as the configuration file has it.
    pub value: PlaceValue,
    /// The origin of the value.
    pub source: Source,
}

/// The values of all places.
#[derive(Clone, Default, Debug)]
pub struct Places(Vec<GivenPlace>);

impl Places {
    /// Notes a value, and where it comes from.
    pub fn put(&mut self, name: &'static str, value: PlaceValue, source: Source) {
        match self.0.iter_mut().find(|one| one.name == name) {
            Some(one) => (one.value, one.source) = (value, source),
            None => self.0.push(GivenPlace { name, value, source }),
        }
    }

    /// A value that the program has chosen itself, though as an option.
    pub fn by_default(&mut self, name: &str) {
        self.0.iter_mut().filter(|one| one.name == name).for_each(|g| g.source = Source::Default);
    }

    /// The value of a place while the server runs: one that is another than at the start was set.
    pub fn now(&mut self, name: &'static str, value: PlaceValue) {
        if self.get(name) != Some(&value) {
            self.put(name, value, Source::Set);
        }
    }

    /// Returns the value that was noted for a place.
    pub fn get(&self, name: &str) -> Option<&PlaceValue> {
        self.0.iter().find(|one| one.name == name).map(|one| &one.value)
    }

    /// All that was noted.
    pub fn iter(&self) -> impl Iterator<Item = &GivenPlace> {
        self.0.iter()
    }
}

/// What a configuration names, to be compared with what the pool has.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct NamedPlaces {
    /// The devices; none if the pool alone is named.
    pub devices: Vec<PathBuf>,
    /// The cache.
    pub cache: Option<PathBuf>,
    /// The cache is to be taken out.
    pub no_cache: bool,
    /// The pool is named.
    pub pool: bool,
}

impl Places {
    /// The devices and the cache that are named.
    pub fn named(&self) -> NamedPlaces {
        let text = |name: &str| match self.get(name) {
            Some(PlaceValue::Text(text)) => Some(text.as_str()),
            _ => None,
        };
        let devices = self.0.iter().find(|one| one.name == "devices");
        let devices = devices.map_or(&[][..], |one| one.value.items());
        NamedPlaces {
            devices: devices.iter().filter_map(PlaceItem::path).map(PathBuf::from).collect(),
            cache: text("cache.path").map(PathBuf::from),
            no_cache: text("cache.size") == Some("0"),
            pool: text("pool.name").is_some(),
        }
    }
}

/// Whether a key has this full name and is no setting of the table.
pub fn is_place(name: &str) -> bool {
    PLACES.iter().any(|place| place.field.name == name)
}

/// Devices as the configuration file has them.
pub fn place_of_devices(devices: &[DeviceChoice]) -> PlaceValue {
    PlaceValue::List(devices.iter().map(DeviceChoice::item).collect())
}

/// A path that does not depend on the directory in which it is read.
pub fn place_of_path(path: &Path) -> PlaceValue {
    PlaceValue::Text(absolute(path))
}

/// The same, as a text.
pub fn absolute(path: &Path) -> String {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute.display().to_string()
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Args, Command};

    use super::*;
    use crate::config::table::KEYS;

    /// The tables name the options that the command line has.
    #[test]
    fn options_are_those_of_the_tables() {
        let command = Sections::augment_args(Command::new("serve"));
        let taken = command.get_arguments().filter_map(Arg::get_long);
        let mut taken: Vec<String> = taken.map(|long| format!("--{long}")).collect();
        let places = PLACES.iter().map(|place| place.option);
        let named = places.chain(KEYS.iter().map(|key| key.option)).filter(|one| !one.is_empty());
        // Devices and the pool are options of commands, and two others are for one start.
        let of_commands = ["--device", "--pool"];
        let mut named: Vec<&str> = named.filter(|one| !of_commands.contains(one)).collect();
        named.extend(["--take-back", "--forget-cache"]);
        named.sort();
        taken.sort();
        assert_eq!(taken, named);
    }
}
