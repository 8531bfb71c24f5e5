//! The addresses at which the HTTP API listens, and who may use it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use model::setting::PlaceValue;

use super::permits::PermitsOverrides;
use super::places::{Places, absolute, listed, place_of_path};
use crate::error::{CommandError, Result};
use crate::host::sockets::{Permits, check_unix_path, resolve};

/// An address to which HTTP clients connect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HttpPlace {
    /// A unix socket, at this path.
    Unix(PathBuf),
    Tcp(SocketAddr),
    None,
}

impl FromStr for HttpPlace {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<HttpPlace, String> {
        match text.strip_prefix("unix:") {
            Some(path) => check_unix_path(Path::new(path)).map(|()| HttpPlace::Unix(path.into())),
            None if text == "none" => Ok(HttpPlace::None),
            None => {
                resolve(text).map(HttpPlace::Tcp).map_err(|e| format!("{e}, and not unix:PATH"))
            }
        }
    }
}

impl HttpPlace {
    /// As the configuration file has it.
    /// The place as the configuration file has it.
    fn text(&self) -> String {
        match self {
            HttpPlace::Unix(path) => format!("unix:{}", absolute(path)),
            HttpPlace::Tcp(address) => address.to_string(),
            HttpPlace::None => "none".to_owned(),
        }
    }

    /// The path of a unix socket.
    pub fn path_mut(&mut self) -> Option<&mut PathBuf> {
        match self {
            HttpPlace::Unix(path) => Some(path),
            HttpPlace::Tcp(_) | HttpPlace::None => None,
        }
    }
}

/// The HTTP API of a server.
#[derive(Default, Debug)]
pub struct HttpConfig {
    /// The addresses to which clients connect; the API is off if the list is empty.
    pub listen: Vec<HttpPlace>,
    /// The users that may connect to a unix socket.
    pub permits: Permits,
    /// The file with the token that clients on TCP have to know.
    pub token_file: Option<PathBuf>,
    /// Names of the server beside `localhost` and addresses.
    pub hosts: Vec<String>,
    /// True if the API was not asked for: where a TCP port is taken, the server goes on without.
    pub optional: bool,
    /// True if the file with the token is the server's own: it is made if it is not there.
    pub make_token: bool,
}

/// The part of [`HttpConfig`] that options or a configuration file say.
#[derive(Clone, Default, Debug)]
pub struct HttpOverrides {
    /// See [`HttpConfig`].
    pub listen: Vec<HttpPlace>,
    /// See [`HttpConfig`].
    pub permits: PermitsOverrides,
    /// See [`HttpConfig`].
    pub token_file: Option<PathBuf>,
    /// See [`HttpConfig`].
    pub hosts: Vec<String>,
}

impl HttpConfig {
    /// Puts together what was said, notes where it comes from, and checks it. `others` are sockets
    /// for something else.
    pub(super) fn new(
        options: HttpOverrides,
        file: HttpOverrides,
        others: [&Path; 2],
        places: &mut Places,
    ) -> Result<HttpConfig> {
        let listen = [listed(options.listen), listed(file.listen), Some(Vec::new())];
        let shown = |all: &Vec<HttpPlace>| PlaceValue::of_texts(all.iter().map(HttpPlace::text));
        let mut listen = places.choose("http.listen", listen, shown).unwrap_or_default();
        let token_file = [options.token_file, file.token_file, None];
        let token_file = places.choose("http.token_file", token_file, |path| place_of_path(path));
        let keys = ["http.socket_mode", "http.socket_group"];
        let permits = Permits::new(keys, options.permits, file.permits, places);
        let hosts = [listed(options.hosts), listed(file.hosts), Some(Vec::new())];
        let hosts =
            places.choose("http.hosts", hosts, |all| PlaceValue::of_texts(all.iter().cloned()));
        let hosts = hosts.unwrap_or_default();
        if listen.contains(&HttpPlace::None) {
            if listen.len() > 1 {
                let text = "HTTP is to listen somewhere and at none: say one of them";
                return Err(CommandError::Usage(text.into()));
            }
            listen.clear();
        }
        for place in &listen {
            if let HttpPlace::Unix(path) = place {
                check_unix_path(path).map_err(CommandError::Usage)?;
                if others.contains(&path.as_path()) {
                    let path = path.display();
                    let text = format!("HTTP cannot share the socket {path} with NBD or control");
                    return Err(CommandError::Usage(text));
                }
            }
        }
        Ok(HttpConfig { listen, permits, token_file, hosts, optional: false, make_token: false })
    }
}
