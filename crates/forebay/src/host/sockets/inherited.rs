//! Sockets on which the service manager listens already (systemd's socket activation): clients that
//! connect while the server starts anew wait, and are refused by nothing.
//!
//! A socket is known by its address. Where the configuration names an address that is inherited,
//! the server takes it over; one that the configuration does not name is a mistake of one of the
//! two, and the server does not start.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf, absolute};

use listenfd::ListenFd;
use socket2::SockRef;

use crate::error::{CommandError, Result};

/// Listening sockets, until they are taken.
#[derive(Default)]
pub struct Inherited {
    unix: Vec<(PathBuf, UnixListener)>,
    tcp: Vec<(SocketAddr, TcpListener)>,
}

impl Inherited {
    /// Returns the sockets that this process was started with (`LISTEN_FDS`, `LISTEN_PID`). Errors:
    /// one that is no listening stream socket, or has no address.
    pub fn of_environment() -> Result<Inherited> {
        let mut passed = ListenFd::from_env();
        let mut all = Inherited::default();
        for number in 0..passed.len() {
            all.add(&mut passed, number).map_err(|why| {
                CommandError::Failed(format!(
                    "socket {number} of those that the service manager passes (LISTEN_FDS): {why}"
                ))
            })?;
        }
        Ok(all)
    }

    fn add(&mut self, passed: &mut ListenFd, number: usize) -> std::result::Result<(), String> {
        let text = |e: std::io::Error| e.to_string();
        if let Ok(Some(socket)) = passed.take_unix_listener(number) {
            check(&SockRef::from(&socket))?;
            socket.set_nonblocking(false).map_err(text)?;
            let address = socket.local_addr().map_err(text)?;
            let path = address.as_pathname().ok_or("it has no name in the file system")?;
            self.unix.push((path.to_owned(), socket));
            return Ok(());
        }
        match passed.take_tcp_listener(number).map_err(text)? {
            Some(socket) => {
                check(&SockRef::from(&socket))?;
                socket.set_nonblocking(false).map_err(text)?;
                self.tcp.push((socket.local_addr().map_err(text)?, socket));
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Takes the socket at `path`, if it is inherited.
    pub fn take_unix(&mut self, path: &Path) -> Option<UnixListener> {
        let wanted = absolute(path).ok()?;
        let place =
            self.unix.iter().position(|(path, _)| absolute(path).is_ok_and(|p| p == wanted))?;
        Some(self.unix.swap_remove(place).1)
    }

    /// Takes the socket at `address`, if it is inherited.
    pub fn take_tcp(&mut self, address: SocketAddr) -> Option<TcpListener> {
        let place = self.tcp.iter().position(|(at, _)| *at == address)?;
        Some(self.tcp.swap_remove(place).1)
    }

    /// All that are wanted are taken. Errors: one is left.
    pub fn finish(self) -> Result<()> {
        let unix = self.unix.iter().map(|(path, _)| path.display().to_string());
        let tcp = self.tcp.iter().map(|(address, _)| address.to_string());
        let left: Vec<_> = unix.chain(tcp).collect();
        if left.is_empty() {
            return Ok(());
        }
        Err(CommandError::Failed(format!(
            "the service manager listens on {}, and the configuration does not name it: make the \
             addresses of the socket unit and of the configuration the same (nbd.socket, \
             nbd.listen, control.socket, http.listen)",
            left.join(" and ")
        )))
    }
}

fn check(socket: &SockRef<'_>) -> std::result::Result<(), String> {
    match socket.is_listener() {
        Ok(true) => Ok(()),
        Ok(false) => Err("nothing listens on it (a socket unit of Accept=yes?)".into()),
        Err(e) => Err(e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_known_by_their_addresses() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n.sock");
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap();
        let unix = UnixListener::bind(&path).unwrap();
        let mut all = Inherited { unix: vec![(path.clone(), unix)], tcp: vec![(address, tcp)] };
        assert!(all.take_unix(&dir.path().join("other.sock")).is_none());
        assert!(all.take_unix(&dir.path().join("./n.sock")).is_some());
        assert!(all.take_unix(&path).is_none(), "taken twice");
        assert!(all.take_tcp("127.0.0.1:1".parse().unwrap()).is_none());
        assert!(all.take_tcp(address).is_some());
        all.finish().unwrap();
    }

    #[test]
    fn one_that_is_not_wanted_is_an_error() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap();
        let all = Inherited { unix: vec![], tcp: vec![(address, tcp)] };
        let Err(e) = all.finish() else { panic!("a socket was left") };
        assert!(e.to_string().contains(&address.to_string()), "{e}");
    }
}
