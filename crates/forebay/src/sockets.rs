//! Listening sockets.
//!
//! Fault model: a server that was killed leaves its unix sockets behind. Such a one refuses
//! connections and is replaced; one on which somebody answers, and anything that is no socket, is
//! left alone. The sockets of a killed process answer for as long as the kernel still ends its I/O,
//! a little longer than it lives itself; so an answer is asked for repeatedly, for up to a second.
//! Unix sockets are for their owner alone from the moment they exist. Those that the service
//! manager listens on already are its own: their modes and their names are left as they are.

pub mod inherited;

use std::fs::{File, Metadata, Permissions};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};

use crate::error::{CommandError, Result};
use inherited::Inherited;

const BACKLOG: i32 = 128;
const ANSWER_TRIES: u32 = 50;
const ANSWER_PAUSE: Duration = Duration::from_millis(20);
/// The kernel's limit, with the zero at the end.
const MAX_UNIX_PATH: usize = 107;

/// A listening unix socket and its name.
pub struct UnixSocket {
    path: PathBuf,
    /// What stands at the path later may be somebody else's. None if it is the service manager's.
    identity: Option<Identity>,
}

/// Device, inode, and the time it was made: numbers of inodes are used again.
#[derive(PartialEq, Eq)]
struct Identity(u64, u64, i64, i64);

impl Identity {
    fn of(m: &Metadata) -> Identity {
        Identity(m.dev(), m.ino(), m.mtime(), m.mtime_nsec())
    }
}

impl UnixSocket {
    /// Listens at `path`, or takes over who does.
    pub fn open(path: &Path, inherited: &mut Inherited) -> Result<(UnixSocket, UnixListener)> {
        match inherited.take_unix(path) {
            Some(listener) => Ok((UnixSocket { path: path.to_owned(), identity: None }, listener)),
            None => UnixSocket::bind(path),
        }
    }

    fn bind(path: &Path) -> Result<(UnixSocket, UnixListener)> {
        let failed =
            |e: io::Error| CommandError::failed(format_args!("listening on {}", path.display()), e);
        check_unix_path(path).map_err(CommandError::Failed)?;
        make_directory(path).map_err(failed)?;
        let socket = match bind_now(path) {
            Err(e) if e.kind() == ErrorKind::AddrInUse => {
                remove_stale(path)?;
                bind_now(path)
            }
            other => other,
        };
        let socket = socket.map_err(failed)?;
        let meta = path.symlink_metadata().map_err(failed)?;
        let identity = Some(Identity::of(&meta));
        Ok((
            UnixSocket { path: path.to_owned(), identity },
            UnixListener::from(OwnedFd::from(socket)),
        ))
    }

    /// Takes the name away, if it is still ours.
    pub fn remove(&self) {
        let Some(identity) = &self.identity else { return };
        let ours = self.path.symlink_metadata().is_ok_and(|m| Identity::of(&m) == *identity);
        if ours && let Err(e) = std::fs::remove_file(&self.path) {
            tracing::warn!("removing {}: {e}", self.path.display());
        }
    }
}

/// Makes the directory of a socket, for its owner alone, if it does not exist and the one above it
/// does.
fn make_directory(socket: &Path) -> io::Result<()> {
    match socket.parent().filter(|dir| !dir.as_os_str().is_empty() && !dir.exists()) {
        Some(dir) => std::fs::DirBuilder::new().mode(0o700).create(dir),
        None => Ok(()),
    }
}

fn bind_now(path: &Path) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // The file that bind makes takes over the mode of the socket.
    let file = File::from(OwnedFd::from(socket));
    file.set_permissions(Permissions::from_mode(0o600))?;
    let socket = Socket::from(OwnedFd::from(file));
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

fn remove_stale(path: &Path) -> Result<()> {
    let text = path.display();
    let is_socket = path.symlink_metadata().is_ok_and(|m| m.file_type().is_socket());
    if !is_socket {
        return Err(CommandError::Failed(format!("{text} is in the way: it is not a socket")));
    }
    for attempt in 0..ANSWER_TRIES {
        if attempt > 0 {
            #[allow(clippy::disallowed_methods, reason = "start-up, outside of the engine's time")]
            std::thread::sleep(ANSWER_PAUSE);
        }
        match UnixStream::connect(path) {
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
                tracing::debug!("{text} was left behind by a server that is gone");
                let removed = std::fs::remove_file(path);
                return removed
                    .map_err(|e| CommandError::failed(format_args!("removing the old {text}"), e));
            }
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            _ => {}
        }
    }
    Err(CommandError::Failed(format!("{text} is in use by another process (is forebay running?)")))
}

/// Whether a path can be the name of a unix socket.
pub fn check_unix_path(path: &Path) -> std::result::Result<(), String> {
    let len = path.as_os_str().len();
    if (1..=MAX_UNIX_PATH).contains(&len) {
        return Ok(());
    }
    Err(format!(
        "{}: the path of a unix socket has 1 to {MAX_UNIX_PATH} bytes, not {len}",
        path.display()
    ))
}

/// Resolves `ADDRESS:PORT`.
pub fn resolve(text: &str) -> std::result::Result<SocketAddr, String> {
    let wrong = |e: &dyn std::fmt::Display| format!("{text:?} is not ADDRESS:PORT ({e})");
    let mut addresses = text.to_socket_addrs().map_err(|e| wrong(&e))?;
    addresses.next().ok_or_else(|| wrong(&"the name has no address"))
}

/// Listens on TCP, or takes over who does.
pub fn open_tcp(address: SocketAddr, inherited: &mut Inherited) -> Result<OwnedFd> {
    match inherited.take_tcp(address) {
        Some(listener) => Ok(listener.into()),
        None => bind_tcp(address),
    }
}

fn bind_tcp(address: SocketAddr) -> Result<OwnedFd> {
    let bind = || -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket)
    };
    bind()
        .map(OwnedFd::from)
        .map_err(|e| CommandError::failed(format_args!("listening on {address}"), e))
}

/// The address that a client connects to.
pub fn nbd_uri_unix(socket: &Path, volume: &str) -> String {
    let path = std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned());
    format!(
        "nbd+unix:///{}?socket={}",
        percent_encode(volume.as_bytes()),
        percent_encode(path.as_os_str().as_encoded_bytes())
    )
}

/// The same over TCP.
pub fn nbd_uri_tcp(address: SocketAddr, volume: &str) -> String {
    format!("nbd://{address}/{}", percent_encode(volume.as_bytes()))
}

/// RFC 3986: all but unreserved characters and slashes.
fn percent_encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &b in bytes {
        match b {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                text.push(char::from(b))
            }
            _ => text.push_str(&format!("%{b:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_private_and_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (socket, listener) = UnixSocket::bind(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(UnixStream::connect(&path).is_ok());
        let Err(e) = UnixSocket::bind(&path) else { panic!("taken away from who listens on it") };
        assert!(e.to_string().contains("in use"), "{e}");
        drop(listener);
        // Times in file systems may be as coarse as a tick of the kernel.
        #[allow(clippy::disallowed_methods, reason = "a test")]
        std::thread::sleep(std::time::Duration::from_millis(50));
        let (again, _listener) = UnixSocket::bind(&path).unwrap();
        socket.remove();
        assert!(path.exists(), "the name is another's now");
        again.remove();
        assert!(!path.exists());
    }

    #[test]
    fn the_directory_is_made_if_the_one_above_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/s");
        let (_socket, _listener) = UnixSocket::bind(&path).unwrap();
        let mode = dir.path().join("new").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let Err(e) = UnixSocket::bind(&dir.path().join("a/b/s")) else { panic!("made") };
        assert!(e.to_string().contains("a/b/s"), "{e}");
    }

    #[test]
    fn a_file_in_the_way_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        std::fs::write(&path, "precious").unwrap();
        assert!(UnixSocket::bind(&path).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
        assert!(UnixSocket::bind(&dir.path().join("x".repeat(120))).is_err());
    }

    #[test]
    fn uris_are_encoded() {
        assert_eq!(
            nbd_uri_unix(Path::new("/a b/ü&?.sock"), "vol 0"),
            "nbd+unix:///vol%200?socket=/a%20b/%C3%BC%26%3F.sock"
        );
        let address: SocketAddr = "[::1]:10809".parse().unwrap();
        assert_eq!(nbd_uri_tcp(address, "v"), "nbd://[::1]:10809/v");
    }

    #[test]
    fn addresses() {
        assert!(resolve("127.0.0.1:10809").is_ok());
        assert!(resolve("127.0.0.1").is_err());
        assert!(resolve("nonsense").is_err());
    }
}
