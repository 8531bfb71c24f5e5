//! Paths, addresses and the log: the values of a configuration beside the settings of the table.
//! All of them are read when the server starts.

use std::path::Path;

use model::setting::PlaceValue;

use super::chosen::Source;

/// A key of the configuration that is no setting of the table.
#[derive(Debug)]
pub struct Place {
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

const fn place(
    (name, option): (&'static str, &'static str),
    (default, example): (&'static str, &'static str),
    what: &'static str,
) -> Place {
    Place { name, option, default, example, what }
}

/// An example of rules.
const ACCESS: &str = r#"[{ client = "vm1", volumes = ["vm1-*", "iso"], read_only = false }]"#;

/// All of them, in the order in which the configuration file has its sections.
pub static PLACES: &[Place] = &[
    place(
        ("devices", "--device"),
        ("none, at least one is needed", r#"["/dev/disk/by-id/one", "/dev/disk/by-id/two"]"#),
        "files and block devices of the pool, in any order; each is a path, or a table such as \
         { path = \"/srv/a.img\", emulate = \"hdd\" }",
    ),
    place(
        ("access", ""),
        ("none: clients over TLS may open all volumes", ACCESS),
        "what clients over TLS may open: a name of their certificate or key and names of volumes, \
         in which * stands for any text and ? for one character; what no rule gives is not there \
         for them",
    ),
    place(
        ("nbd.socket", "--nbd-socket"),
        ("./forebay-data/nbd.sock", r#""/run/forebay/nbd.sock""#),
        "unix socket of NBD clients",
    ),
    place(
        ("nbd.socket_mode", "--nbd-socket-mode"),
        ("0600; with a group 0660", r#""0660""#),
        "mode of that socket: who may write may connect, and read and write all volumes",
    ),
    place(
        ("nbd.socket_group", "--nbd-socket-group"),
        ("that of the process", r#""kvm""#),
        "group of that socket, of which the user that runs the server is a member",
    ),
    place(
        ("nbd.listen", "--nbd-listen"),
        ("none", r#"["127.0.0.1:10809"]"#),
        "addresses to serve on TCP too, with TLS",
    ),
    place(
        ("nbd.tls", "--tls"),
        ("require", r#""require""#),
        "clients over TCP must have TLS (require), may have it (offer), or cannot have it (off); \
         without it all who can connect can read and write all volumes",
    ),
    place(
        ("tls.certificates", "--tls-certificates"),
        ("none", r#""/etc/forebay/tls""#),
        "directory with server-cert.pem, server-key.pem, ca-cert.pem and, if there is one, \
         ca-crl.pem; read again when they change",
    ),
    place(
        ("tls.psk", "--tls-psk"),
        ("none", r#""/etc/forebay/keys.psk""#),
        "file of keys that clients may have instead of certificates, a line NAME:HEX for each, for \
         its owner alone; read again when it changes",
    ),
    place(
        ("tls.verify_peer", "--tls-verify-peer"),
        ("true", "true"),
        "clients without such a key need a certificate of ca-cert.pem; false: any client may \
         connect, and is not known by a name",
    ),
    place(
        ("control.socket", "--socket"),
        ("./forebay-data/control.sock", r#""/run/forebay/control.sock""#),
        "unix socket of commands such as forebay status",
    ),
    place(
        ("control.socket_mode", ""),
        ("0600; with a group 0660", r#""0660""#),
        "mode of that socket: users with write permission may do everything",
    ),
    place(
        ("control.socket_group", ""),
        ("that of the process", r#""forebay""#),
        "group of that socket, of which the user that runs the server is a member",
    ),
    place(
        ("http.listen", "--http-listen"),
        (
            "none; forebay up: a socket in its directory and 127.0.0.1:10810",
            r#"["127.0.0.1:10810"]"#,
        ),
        "where the HTTP API and metrics are served: \"ADDRESS:PORT\", \"unix:PATH\", or a list of \
         them",
    ),
    place(
        ("http.socket_mode", ""),
        ("0600; with a group 0660", r#""0660""#),
        "mode of its unix sockets: users with write permission may do everything, without a token",
    ),
    place(
        ("http.socket_group", ""),
        ("that of the process", r#""forebay""#),
        "group of its unix sockets, of which the user that runs the server is a member",
    ),
    place(
        ("http.token_file", "--http-token-file"),
        ("none; forebay up: http.token in its directory", r#""/etc/forebay/http.token""#),
        "file with the token that HTTP clients on TCP need, for its owner alone; without one they \
         get metrics and health only",
    ),
    place(
        ("http.hosts", ""),
        ("none", r#"["box.lan"]"#),
        "names by which HTTP clients may ask for the server over TCP, beside localhost and \
         addresses",
    ),
    place(
        ("cache.path", "--cache"),
        ("none", r#""/dev/disk/by-id/fast-part1""#),
        "file or block device of the write-back cache; needed where the pool has a cache",
    ),
    place(
        ("cache.size", "--cache-size"),
        ("none", r#""100G""#),
        "if the pool has no cache, one of this size is made at the path; 0: what is dirty is \
         written back, and the cache is detached",
    ),
    place(
        ("io.backend", "--io"),
        ("auto", r#""auto""#),
        "what I/O goes through: uring or posix; auto: io_uring where it is permitted, else posix",
    ),
    place(
        ("io.host_log", "--host-log"),
        ("auto", r#""auto""#),
        "where answered writes are recorded for the case that the process dies: a directory, best \
         in memory; auto: in /dev/shm, /run, or beside the sockets; off: nowhere",
    ),
    place(
        ("log.format", "--log"),
        ("human", r#""human""#),
        "where the log goes and what a line looks like: human or json on standard error, \
         journal for systemd's",
    ),
    place(
        ("log.level", "--log-level"),
        ("info", r#""info""#),
        "which events are logged: error, warn, info, debug, trace, or by part: \"warn,nbd=debug\"",
    ),
];

/// The value of a place, and where it comes from.
#[derive(Clone, PartialEq, Debug)]
pub struct Given {
    /// The name of the key.
    pub name: &'static str,
    /// The value as the configuration file has it.
    pub value: PlaceValue,
    /// The origin of the value.
    pub source: Source,
}

/// The values of all places.
#[derive(Clone, Default, Debug)]
pub struct Places(Vec<Given>);

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
            None => self.0.push(Given { name, value, source }),
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
    pub fn iter(&self) -> impl Iterator<Item = &Given> {
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
