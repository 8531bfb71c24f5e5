//! Listening sockets.
//!
//! Fault model: a server that was killed leaves its unix sockets behind. Such a one refuses
//! connections and is replaced; one on which somebody answers, and anything that is no socket, is
//! left alone. The sockets of a killed process answer for as long as the kernel still ends its I/O,
//! a little longer than it lives itself; so an answer is asked for repeatedly, for up to a second.
//! Unix sockets are for their owner alone from the moment they exist, until they have the group and
//! the mode that were asked for. Those that the service manager listens on already are its own:
//! their modes and their names are left as they are.

pub mod inherited;

use std::fs::{File, Metadata, Permissions};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown, lchown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::Group;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::error::{CommandError, Result};
use inherited::Inherited;

const BACKLOG: i32 = 128;
const ANSWER_TRIES: u32 = 50;
const ANSWER_PAUSE: Duration = Duration::from_millis(20);
/// The kernel's limit, with the zero at the end.
const MAX_UNIX_PATH: usize = 107;

/// The mode of a socket for its owner alone.
pub const PRIVATE: u32 = 0o600;

/// The users that may connect to a unix socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Permits {
    /// The permission bits; who may write may connect.
    pub mode: u32,
    /// The name of the group of the socket; `None`: the group of the process.
    pub group: Option<String>,
}

impl Default for Permits {
    fn default() -> Permits {
        Permits { mode: PRIVATE, group: None }
    }
}

/// A listening unix socket and its name.
pub struct UnixSocket {
    path: PathBuf,
    /// The identity of the socket file, as another file may stand at the path later. `None` if the
    /// socket is the service manager's.
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
    pub fn open(
        path: &Path,
        permits: &Permits,
        inherited: &mut Inherited,
    ) -> Result<(UnixSocket, UnixListener)> {
        match inherited.take_unix(path) {
            Some(listener) => Ok((UnixSocket { path: path.to_owned(), identity: None }, listener)),
            None => UnixSocket::bind(path, permits),
        }
    }

    fn bind(path: &Path, permits: &Permits) -> Result<(UnixSocket, UnixListener)> {
        let failed =
            |e: io::Error| CommandError::failed(format_args!("listening on {}", path.display()), e);
        check_unix_path(path).map_err(CommandError::Failed)?;
        let group = permits.group.as_deref().map(group_of).transpose()?;
        make_directories(path, group)?;
        let socket = match bind_now(path) {
            Err(e) if e.kind() == ErrorKind::AddrInUse => {
                remove_stale(path)?;
                bind_now(path)
            }
            other => other,
        };
        let socket = socket.map_err(failed)?;
        permit(path, group, permits.mode).inspect_err(|_| {
            let _ = std::fs::remove_file(path);
        })?;
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

/// Makes the directories of a socket that do not exist, each for its owner and the group alone, as
/// systemd does for the sockets that it listens on.
fn make_directories(socket: &Path, group: Option<u32>) -> Result<()> {
    let missing = |dir: &&Path| !dir.as_os_str().is_empty() && !dir.exists();
    let all: Vec<&Path> = socket.ancestors().skip(1).take_while(missing).collect();
    for dir in all.into_iter().rev() {
        make_directory(dir, group).map_err(|e| {
            CommandError::failed(
                format_args!("making {}, the directory of {}", dir.display(), socket.display()),
                e,
            )
        })?;
    }
    Ok(())
}

fn make_directory(dir: &Path, group: Option<u32>) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(dir) {
        // A path such as new/../s: making the level before made this one too.
        Err(e) if e.kind() == ErrorKind::AlreadyExists && dir.is_dir() => return Ok(()),
        other => other?,
    }
    if let Some(group) = group {
        chown(dir, None, Some(group))?;
        std::fs::set_permissions(dir, Permissions::from_mode(0o750))?;
    }
    Ok(())
}

/// The number of a group, by its name or its number.
pub fn group_of(name: &str) -> Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    match Group::from_name(name) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err(CommandError::Usage(format!(
            "there is no group {name:?} here; getent group lists all"
        ))),
        Err(e) => Err(CommandError::failed(format_args!("looking for the group {name:?}"), e)),
    }
}

/// Gives a socket to its group, then lets those in who may connect.
fn permit(path: &Path, group: Option<u32>, mode: u32) -> Result<()> {
    let at = path.display();
    if let Some(number) = group {
        lchown(path, None, Some(number)).map_err(|e| {
            CommandError::Failed(format!(
                "giving {at} to the group {number}: {e} (the user that runs the server has to be \
                 a member of it)"
            ))
        })?;
    }
    std::fs::set_permissions(path, Permissions::from_mode(mode))
        .map_err(|e| CommandError::failed(format_args!("the mode of {at}"), e))
}

fn bind_now(path: &Path) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // The file that bind makes takes over the mode of the socket.
    let file = File::from(OwnedFd::from(socket));
    file.set_permissions(Permissions::from_mode(0o600))?;
    let socket = Socket::from(OwnedFd::from(file));
    // The kernel lists the path as it is said here, and only a whole one says which file it is. One
    // that would be too long stays as it is.
    let whole = std::path::absolute(path).ok().filter(|whole| check_unix_path(whole).is_ok());
    socket.bind(&SockAddr::unix(whole.as_deref().unwrap_or(path))?)?;
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
    Err(CommandError::Failed(format!(
        "{text} is in use by another process (is a server running? forebay status asks it)"
    )))
}

/// Whether a path can be the name of a unix socket.
pub fn check_unix_path(path: &Path) -> std::result::Result<(), String> {
    if path.as_os_str().is_empty() {
        return Err("the path of a unix socket is empty".into());
    }
    // Clients are told the whole path, and run in other directories.
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let len = whole.as_os_str().len();
    if len <= MAX_UNIX_PATH {
        return Ok(());
    }
    Err(format!(
        "{}: the path of a unix socket has at most {MAX_UNIX_PATH} bytes, not {len}: no client \
         could connect to it. Name a shorter one (--nbd-socket, --socket, --http-listen \
         unix:PATH), or a directory nearer to the root",
        whole.display()
    ))
}

/// Resolves `ADDRESS:PORT`.
pub fn resolve(text: &str) -> std::result::Result<SocketAddr, String> {
    let wrong = |e: &dyn std::fmt::Display| format!("{text:?} is not ADDRESS:PORT ({e})");
    let mut addresses = text.to_socket_addrs().map_err(|e| wrong(&e))?;
    addresses.next().ok_or_else(|| wrong(&"the name has no address"))
}

/// Listens on TCP, or takes over who does. `all`: the addresses of the same list. An IPv6 address
/// beside an IPv4 one with its port takes no IPv4 connections: on Linux `[::]` has those too
/// otherwise, and one of `0.0.0.0` and `[::]` could not be used.
pub fn open_tcp(
    address: SocketAddr,
    all: &[SocketAddr],
    inherited: &mut Inherited,
) -> Result<OwnedFd> {
    match inherited.take_tcp(address) {
        Some(listener) => Ok(listener.into()),
        None => bind_tcp(address, all),
    }
}

fn bind_tcp(address: SocketAddr, all: &[SocketAddr]) -> Result<OwnedFd> {
    let beside_v4 = || all.iter().any(|a| a.is_ipv4() && a.port() == address.port());
    let bind = || -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() && address.port() != 0 && beside_v4() {
            socket.set_only_v6(true)?;
        }
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
pub fn nbd_uri_tcp(address: SocketAddr, encrypted: bool, volume: &str) -> String {
    let scheme = if encrypted { "nbds" } else { "nbd" };
    format!("{scheme}://{address}/{}", percent_encode(volume.as_bytes()))
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
    use std::net::TcpListener;

    use super::*;

    fn bind(path: &Path) -> Result<(UnixSocket, UnixListener)> {
        UnixSocket::bind(path, &Permits::default())
    }

    #[test]
    fn a_socket_is_private_and_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (socket, listener) = bind(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(UnixStream::connect(&path).is_ok());
        let Err(e) = bind(&path) else { panic!("taken away from who listens on it") };
        assert!(e.to_string().contains("in use"), "{e}");
        drop(listener);
        // Times in file systems may be as coarse as a tick of the kernel.
        #[allow(clippy::disallowed_methods, reason = "a test")]
        std::thread::sleep(std::time::Duration::from_millis(50));
        let (again, _listener) = bind(&path).unwrap();
        socket.remove();
        assert!(path.exists(), "the name is another's now");
        again.remove();
        assert!(!path.exists());
    }

    #[test]
    fn all_addresses_of_both_kinds_have_one_port() {
        let free = |address: &str| bind_tcp(address.parse().unwrap(), &[]);
        let port = TcpListener::from(free("0.0.0.0:0").unwrap()).local_addr().unwrap().port();
        let all = ["0.0.0.0", "[::]"].map(|ip| format!("{ip}:{port}").parse().unwrap());
        for order in [[0, 1], [1, 0]] {
            let open = order.map(|i| bind_tcp(all[i], &all).map(TcpListener::from));
            assert!(open.iter().all(std::result::Result::is_ok), "{open:?}");
        }
        // Alone it takes both.
        let _alone = bind_tcp(all[1], &all[1..]).unwrap();
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    }

    #[test]
    fn all_directories_that_are_missing_are_made() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for (socket, made) in [("new/s", vec!["new"]), ("a/b/c/s", vec!["a", "a/b", "a/b/c"])] {
            let (_socket, _listener) = bind(&at(socket)).unwrap();
            for name in made {
                let mode = at(name).metadata().unwrap().permissions().mode();
                assert_eq!(mode & 0o777, 0o700, "{name}");
            }
        }
        let (_socket, _listener) = bind(&at("x/../s")).unwrap();
        assert!(at("x").is_dir() && at("s").exists());
        std::fs::write(at("file"), "").unwrap();
        let Err(e) = bind(&at("file/d/s")) else { panic!("a file became a directory") };
        assert!(e.to_string().starts_with("making ") && e.to_string().contains("file/d"), "{e}");
    }

    #[test]
    fn a_file_in_the_way_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        std::fs::write(&path, "precious").unwrap();
        assert!(bind(&path).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
        assert!(bind(&dir.path().join("x".repeat(120))).is_err());
    }

    #[test]
    fn uris_are_encoded() {
        assert_eq!(
            nbd_uri_unix(Path::new("/a b/ü&?.sock"), "vol 0"),
            "nbd+unix:///vol%200?socket=/a%20b/%C3%BC%26%3F.sock"
        );
        let address: SocketAddr = "[::1]:10809".parse().unwrap();
        assert_eq!(nbd_uri_tcp(address, false, "v"), "nbd://[::1]:10809/v");
        assert_eq!(nbd_uri_tcp(address, true, "v"), "nbds://[::1]:10809/v");
    }

    #[test]
    fn addresses() {
        assert!(resolve("127.0.0.1:10809").is_ok());
        assert!(resolve("127.0.0.1").is_err());
        assert!(resolve("nonsense").is_err());
    }

    #[test]
    fn a_socket_has_the_mode_and_the_group_that_it_should_have() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/er/s");
        let own = dir.path().metadata().unwrap().gid();
        let permits = Permits { mode: 0o660, group: Some(own.to_string()) };
        let (socket, _listener) = UnixSocket::bind(&path, &permits).unwrap();
        let of = |path: &Path| path.metadata().map(|m| (m.permissions().mode() & 0o777, m.gid()));
        assert_eq!(of(&path).unwrap(), (0o660, own));
        for made in ["new", "new/er"] {
            assert_eq!(of(&dir.path().join(made)).unwrap(), (0o750, own), "{made}");
        }
        socket.remove();
        let none = Permits { mode: 0o660, group: Some("no such group".into()) };
        let Err(e) = UnixSocket::bind(&path, &none) else { panic!("a group that is not there") };
        assert!(e.to_string().contains("no such group") && !path.exists(), "{e}");
        assert_eq!(e.exit_status(), 2);
    }
}
