//! Paths, addresses and the log: the values of a configuration beside the settings of the table.
//! All of them are read when the server starts.

use std::path::Path;

use model::setting::PlaceValue;

use super::chosen::Source;

/// A key of the configuration that is no setting of the table.
#[derive(Debug)]
pub struct PlaceKey {
    /// The name of the key, with its section if it has one.
    pub name: &'static str,
    /// The option of the command line, or an empty text.
    pub option: &'static str,
    /// The value that holds if nothing is said, for people.
    pub default: &'static str,
    /// A value as the configuration file has it.
    pub example: &'static str,
    /// The meaning of the key, for people.
    pub what: &'static str,
}

/// An example of rules.
const ACCESS: &str = r#"[{ client = "vm1", volumes = ["vm1-*", "iso"], read_only = false }]"#;

/// All of them, in the order in which the configuration file has its sections.
pub static PLACES: &[PlaceKey] = &[
    PlaceKey {
        name: "devices",
        option: "--device",
        default: "none, at least one is needed",
        example: r#"["/dev/disk/by-id/one", "/dev/disk/by-id/two"]"#,
        what: "files and block devices of the pool, in any order; each is a path, or a table such \
               as { path = \"/srv/a.img\", emulate = \"hdd\" }",
    },
    PlaceKey {
        name: "access",
        option: "",
        default: "none: clients over TLS may open all volumes",
        example: ACCESS,
        what: "what clients over TLS may open: a name of their certificate or key and names of \
               volumes, in which * stands for any text and ? for one character; what no rule gives \
               is not there for them",
    },
    PlaceKey {
        name: "nbd.socket",
        option: "--nbd-socket",
        default: "./forebay-data/nbd.sock",
        example: r#""/run/forebay/nbd.sock""#,
        what: "unix socket of NBD clients",
    },
    PlaceKey {
        name: "nbd.socket_mode",
        option: "--nbd-socket-mode",
        default: "0600; with a group 0660",
        example: r#""0660""#,
        what: "mode of that socket: who may write may connect, and read and write all volumes",
    },
    PlaceKey {
        name: "nbd.socket_group",
        option: "--nbd-socket-group",
        default: "that of the process",
        example: r#""kvm""#,
        what: "group of that socket, of which the user that runs the server is a member",
    },
    PlaceKey {
        name: "nbd.listen",
        option: "--nbd-listen",
        default: "none",
        example: r#"["127.0.0.1:10809"]"#,
        what: "addresses to serve on TCP too, with TLS",
    },
    PlaceKey {
        name: "nbd.tls",
        option: "--tls",
        default: "require",
        example: r#""require""#,
        what: "clients over TCP must have TLS (require), may have it (offer), or cannot have it \
               (off); without it all who can connect can read and write all volumes",
    },
    PlaceKey {
        name: "tls.certificates",
        option: "--tls-certificates",
        default: "none",
        example: r#""/etc/forebay/tls""#,
        what: "directory with server-cert.pem, server-key.pem, ca-cert.pem and, if there is one, \
               ca-crl.pem; read again when they change",
    },
    PlaceKey {
        name: "tls.psk",
        option: "--tls-psk",
        default: "none",
        example: r#""/etc/forebay/keys.psk""#,
        what: "file of keys that clients may have instead of certificates, a line NAME:HEX for \
               each, for its owner alone; read again when it changes",
    },
    PlaceKey {
        name: "tls.verify_peer",
        option: "--tls-verify-peer",
        default: "true",
        example: "true",
        what: "clients without such a key need a certificate of ca-cert.pem; false: any client may \
               connect, and is not known by a name",
    },
    PlaceKey {
        name: "control.socket",
        option: "--socket",
        default: "./forebay-data/control.sock",
        example: r#""/run/forebay/control.sock""#,
        what: "unix socket of commands such as forebay status",
    },
    PlaceKey {
        name: "control.socket_mode",
        option: "",
        default: "0600; with a group 0660",
        example: r#""0660""#,
        what: "mode of that socket: users with write permission may do everything",
    },
    PlaceKey {
        name: "control.socket_group",
        option: "",
        default: "that of the process",
        example: r#""forebay""#,
        what: "group of that socket, of which the user that runs the server is a member",
    },
    PlaceKey {
        name: "http.listen",
        option: "--http-listen",
        default: "none; forebay up: a socket in its directory and 127.0.0.1:10810",
        example: r#"["127.0.0.1:10810"]"#,
        what: "where the HTTP API and metrics are served: \"ADDRESS:PORT\", \"unix:PATH\", or a \
               list of them",
    },
    PlaceKey {
        name: "http.socket_mode",
        option: "",
        default: "0600; with a group 0660",
        example: r#""0660""#,
        what: "mode of its unix sockets: users with write permission may do everything, without a \
               token",
    },
    PlaceKey {
        name: "http.socket_group",
        option: "",
        default: "that of the process",
        example: r#""forebay""#,
        what: "group of its unix sockets, of which the user that runs the server is a member",
    },
    PlaceKey {
        name: "http.token_file",
        option: "--http-token-file",
        default: "none; forebay up: http.token in its directory",
        example: r#""/etc/forebay/http.token""#,
        what: "file with the token that HTTP clients on TCP need, for its owner alone; without one \
               they get metrics and health only",
    },
    PlaceKey {
        name: "http.hosts",
        option: "",
        default: "none",
        example: r#"["box.lan"]"#,
        what: "names by which HTTP clients may ask for the server over TCP, beside localhost and \
               addresses",
    },
    PlaceKey {
        name: "cache.path",
        option: "--cache",
        default: "none",
        example: r#""/dev/disk/by-id/fast-part1""#,
        what: "file or block device of the write-back cache; needed where the pool has a cache",
    },
    PlaceKey {
        name: "cache.size",
        option: "--cache-size",
        default: "none",
        example: r#""100G""#,
        what: "if the pool has no cache, one of this size is made at the path; 0: what is dirty is \
               written back, and the cache is detached",
    },
    PlaceKey {
        name: "io.backend",
        option: "--io",
        default: "auto",
        example: r#""auto""#,
        what: "what I/O goes through: uring or posix; auto: io_uring where it is permitted, else \
               posix",
    },
    PlaceKey {
        name: "io.host_log",
        option: "--host-log",
        default: "auto",
        example: r#""auto""#,
        what: "where answered writes are recorded for the case that the process dies: a directory, \
               best in memory; auto: in /dev/shm, /run, or beside the sockets; off: nowhere",
    },
    PlaceKey {
        name: "log.format",
        option: "--log",
        default: "human",
        example: r#""human""#,
        what: "where the log goes and what a line looks like: human or json on standard error, \
               journal for systemd's",
    },
    PlaceKey {
        name: "log.level",
        option: "--log-level",
        default: "info",
        example: r#""info""#,
        what: "which events are logged: error, warn, info, debug, trace, or by part: \
               \"warn,nbd=debug\"",
    },
];

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
    /// Returns the value of a place: the one of the command line, or else of the file, or else the
    /// default. Notes the value, with where it comes from; `shown` gives it as the configuration
    /// file has it.
    pub fn choose<T>(
        &mut self,
        name: &'static str,
        [option, file, default]: [Option<T>; 3],
        shown: impl FnOnce(&T) -> PlaceValue,
    ) -> Option<T> {
        let (value, source) = match (option, file) {
            (Some(value), _) => (Some(value), Source::Option),
            (None, Some(value)) => (Some(value), Source::File),
            (None, None) => (default, Source::Default),
        };
        self.put(name, value.as_ref().map_or(PlaceValue::None, shown), source);
        value
    }

    fn put(&mut self, name: &'static str, value: PlaceValue, source: Source) {
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

/// A list, unless nothing is in it.
pub fn listed<T>(all: Vec<T>) -> Option<Vec<T>> {
    Some(all).filter(|all| !all.is_empty())
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
