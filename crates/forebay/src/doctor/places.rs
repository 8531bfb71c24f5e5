//! Checks of where clients connect: sockets and their directories, TCP, the token of HTTP.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::access::{Access, Tls};
use super::finding::{Finding, Level};

const SOCKET: &str = "socket";

/// A unix socket that a configuration names.
#[derive(Clone, Debug)]
pub struct Socket {
    /// The name of what connects there: `NBD`, `control` or `HTTP`.
    pub what: &'static str,
    /// The path of the socket.
    pub path: PathBuf,
    /// The state of the path.
    pub state: SocketState,
    /// The state of the directory of the socket.
    pub directory: Directory,
}

/// The state of the path of a socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SocketState {
    /// Nothing is there.
    Free,
    /// A socket on which somebody listens.
    Listening,
    /// A socket on which nothing seems to listen.
    Stale,
    /// Something that is not a socket.
    InTheWay,
}

/// The state of the directory of a socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Directory {
    /// This user may make files there.
    Usable,
    /// The directory is not there, and the server makes it.
    IsMade,
    /// The directory cannot be used; the text says why.
    Refused(String),
}

/// An address that a configuration names.
#[derive(Clone, Debug)]
pub struct Tcp {
    /// The section of the address in the configuration.
    pub section: &'static str,
    /// The address and the port.
    pub address: SocketAddr,
    /// True if something listens there.
    pub taken: bool,
    /// True if a server goes on without this address.
    pub optional: bool,
}

/// The token of HTTP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TokenState {
    /// The configuration names none.
    None,
    /// The token is as it should be.
    Good,
    /// The token is not there, and the server makes it.
    IsMade,
    /// The token cannot be used; the text says why.
    Bad(String),
}

/// All places where clients connect, as they are.
#[derive(Clone, Debug)]
pub struct Endpoints {
    /// Unix sockets.
    pub sockets: Vec<Socket>,
    /// Addresses of TCP.
    pub tcp: Vec<Tcp>,
    pub token: TokenState,
    /// True if names of the server for HTTP clients are configured.
    pub hosts: bool,
    /// The settings that say who may connect.
    pub access: Access,
}

impl Endpoints {
    /// True if a server seems to run.
    pub fn server_runs(&self) -> bool {
        let runs = |one: &Socket| one.what == "control" && one.state == SocketState::Listening;
        self.sockets.iter().any(runs)
    }
}

/// Checks all places where clients connect.
pub fn check(places: &Endpoints) -> Vec<Finding> {
    let runs = places.server_runs();
    let mut all: Vec<Finding> = places.sockets.iter().map(|one| socket(one, runs)).collect();
    all.extend(places.tcp.iter().flat_map(|one| tcp(one, places, runs)));
    all.extend(token(places));
    all
}

fn socket(socket: &Socket, runs: bool) -> Finding {
    let Socket { what, path, state, directory } = socket;
    let name = format!("{} ({what})", path.display());
    let finding = |level, found: String, todo: &str| Finding::new(level, SOCKET, found, todo);
    match (state, directory) {
        (SocketState::InTheWay, _) => finding(
            Level::Problem,
            format!("{name} is not a socket, and in the way of one"),
            "move it away, or name another path; nothing is removed that is no socket",
        ),
        (SocketState::Listening, _) if *what == "control" => {
            Finding::ok(SOCKET, format!("a server listens on {name}"))
        }
        (SocketState::Listening, _) if runs => Finding::ok(SOCKET, format!("{name} is served")),
        (SocketState::Listening, _) => finding(
            Level::Note,
            format!("something listens on {name}, and on the control socket nothing does"),
            "nothing, if that is the service manager (forebay.socket); else see what it is: \
             ss -xlp",
        ),
        (_, Directory::Refused(why)) => finding(
            Level::Problem,
            format!("the directory of {name} cannot be used by this user: {why}"),
            "let the server's user own it, or name a path elsewhere; a unit has a directory of its \
             own by RuntimeDirectory=",
        ),
        (SocketState::Stale, _) => finding(
            Level::Note,
            format!("{name} was left behind by a server that is gone"),
            "nothing: the next start replaces it",
        ),
        (SocketState::Free, Directory::IsMade) => {
            Finding::ok(SOCKET, format!("{name} can be made, with its directory"))
        }
        (SocketState::Free, Directory::Usable) => {
            Finding::ok(SOCKET, format!("{name} can be made"))
        }
    }
}

fn tcp(tcp: &Tcp, places: &Endpoints, runs: bool) -> Vec<Finding> {
    let Tcp { section, address, taken, optional } = tcp;
    let finding = |level, found: String, todo: &str| Finding::new(level, "tcp", found, todo);
    let mut all = Vec::new();
    let name = format!("{section}.listen has {address}");
    if *section == "nbd" && places.access.tls == Tls::Known {
        all.push(Finding::ok("tcp", format!("{name}: its clients prove who they are by TLS")));
    } else if *section == "nbd" {
        let (level, clients, todo) = if address.ip().is_loopback() {
            let todo = "set up TLS (tls.psk, tls.certificates) or use the unix socket, if not all \
                        users may have all volumes";
            (Level::Note, "all users of this machine", todo)
        } else {
            let todo = "require TLS (tls.psk, tls.certificates); or have a tunnel or a firewall \
                        permit its clients alone";
            (Level::Warning, "all who reach this machine", todo)
        };
        let found = format!("{name}: {clients} can read and write all volumes, without a password");
        all.push(finding(level, found, todo));
    } else if !address.ip().is_loopback() {
        let found = match places.token {
            TokenState::None => format!("{name}: all who reach it can read metrics and health"),
            _ => format!("{name}: HTTP is not encrypted, so the token can be read on the way"),
        };
        let todo = "listen on 127.0.0.1 or a unix socket, and have a proxy with TLS, or ssh -L, \
                    before it";
        all.push(finding(Level::Warning, found, todo));
    }
    if *taken && !runs {
        all.push(match optional {
            true => finding(
                Level::Note,
                format!("{name}, which something else uses: the server goes on without it"),
                "say --http-listen with another port, if you want it",
            ),
            false => finding(
                Level::Warning,
                format!("{name}, where something listens already"),
                "stop that (ss -tlp), or name another port; nothing, if it is the service manager",
            ),
        });
    }
    all
}

fn token(places: &Endpoints) -> Vec<Finding> {
    let http = places.tcp.iter().any(|one| one.section == "http");
    let finding =
        |level, found: String, todo: &str| vec![Finding::new(level, "token", found, todo)];
    match &places.token {
        TokenState::Bad(why) if http => {
            let todo = "head -c 24 /dev/urandom | base64 makes a token; chmod 600, for the \
                        server's user";
            finding(Level::Problem, why.clone(), todo)
        }
        TokenState::None if http => finding(
            Level::Note,
            "http.listen has TCP without http.token_file: clients there get metrics and health"
                .into(),
            "name a token_file, if they are to have more",
        ),
        TokenState::Good if http => vec![Finding::ok("token", "its owner alone can read it")],
        TokenState::IsMade if http => vec![Finding::ok("token", "the server makes it")],
        TokenState::Good | TokenState::Bad(_) => finding(
            Level::Note,
            "http.token_file is set, and http.listen has no TCP: nothing asks for the token".into(),
            "leave it away, or add \"127.0.0.1:10810\" to http.listen",
        ),
        _ if places.hosts && !http => finding(
            Level::Note,
            "http.hosts is set, and http.listen has no TCP: no name matters".into(),
            "leave it away, or add an address to http.listen",
        ),
        _ => Vec::new(),
    }
}

#[cfg(test)]
#[path = "places_tests.rs"]
mod tests;
