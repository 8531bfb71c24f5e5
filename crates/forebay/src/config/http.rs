//! The addresses at which the HTTP API listens, and who may use it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::host::sockets::{check_unix_path, resolve};

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

    fn from_str(text: &str) -> Result<HttpPlace, String> {
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
    /// The path of a unix socket.
    pub fn path_mut(&mut self) -> Option<&mut PathBuf> {
        match self {
            HttpPlace::Unix(path) => Some(path),
            HttpPlace::Tcp(_) | HttpPlace::None => None,
        }
    }
}
