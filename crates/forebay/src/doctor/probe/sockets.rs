//! Sockets, ports and the token, as they are. Nothing connects: a connection would wake a server
//! for which the service manager listens.

use std::fs::read_to_string;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use posix::look;
use tls::Acceptor;

use crate::config::{Complete, HttpPlace, ServeConfig};
use crate::doctor::access::{Access, Permit, Tls};
use crate::doctor::places::{Directory, Endpoints, Socket, SocketState, Tcp, TokenState};
use crate::host::calendar::unix_now;
use crate::host::sockets::group_of;
use crate::serve::http::token;

/// The flag of a listening socket in `/proc/net/unix`.
const LISTENS: u32 = 1 << 16;
/// The state of a listening socket in `/proc/net/tcp`.
const TCP_LISTENS: &str = "0A";

/// All places of a configuration.
pub fn look(config: &ServeConfig) -> Endpoints {
    let unix = read_to_string("/proc/net/unix").unwrap_or_default();
    let tcp = ["tcp", "tcp6"].map(|name| read_to_string(format!("/proc/net/{name}")));
    let listening: Vec<SocketAddr> = tcp.iter().flatten().flat_map(|text| ports(text)).collect();
    let socket = |what, path: &Path| Socket {
        what,
        path: path.to_owned(),
        state: state(path, &unix),
        directory: directory(path),
    };
    let said = &config.said;
    let mut sockets =
        vec![socket("NBD", said.nbd.socket.said()), socket("control", said.control.socket.said())];
    let address = |section, address: SocketAddr, optional| {
        let same =
            |one: &&SocketAddr| one.port() == address.port() && overlap(one.ip(), address.ip());
        let taken = address.port() != 0 && listening.iter().find(same).is_some();
        Tcp { section, address, taken, optional }
    };
    let mut tcp: Vec<Tcp> = said.nbd.listen.iter().map(|a| address("nbd", *a, false)).collect();
    for place in &said.http.listen {
        match place {
            HttpPlace::Unix(path) => sockets.push(socket("HTTP", path)),
            HttpPlace::Tcp(a) => tcp.push(address("http", *a, said.http.optional)),
            HttpPlace::None => {}
        }
    }
    Endpoints {
        sockets,
        tcp,
        token: token_state(config),
        hosts: !said.http.hosts.is_empty(),
        access: access(config),
    }
}

fn access(config: &ServeConfig) -> Access {
    let said = &config.said;
    let permit = |(what, _, permits): (&'static str, &str, crate::host::sockets::Permits)| Permit {
        what,
        mode: permits.mode,
        refused: permits
            .group
            .as_deref()
            .and_then(|name| group_of(name).err())
            .map(|e| e.to_string()),
    };
    Access {
        tls: match said.has_tls() && said.requires_tls() {
            false => Tls::NotNeeded,
            true if said.tls.proves_clients() => Tls::Known,
            true => Tls::Anyone,
        },
        credentials: said.has_tls().then(|| {
            let read = Acceptor::new(&said.tls.credentials()).map_err(|e| e.to_string())?;
            let now = unix_now();
            let ends = read.validity().iter().filter(|file| file.ends_soon(now));
            Ok(ends.map(|file| (file.path.clone(), file.until - now)).collect())
        }),
        permits: config.permits().map(permit).collect(),
    }
}

fn token_state(config: &ServeConfig) -> TokenState {
    let http = &config.said.http;
    let Some(path) = &http.token_file else { return TokenState::None };
    if http.make_token && !path.exists() {
        return TokenState::IsMade;
    }
    token::read(path).map_or_else(|e| TokenState::Bad(e.to_string()), |_| TokenState::Good)
}

fn state(path: &Path, unix: &str) -> SocketState {
    match path.symlink_metadata() {
        Err(_) => SocketState::Free,
        Ok(meta) if !meta.file_type().is_socket() => SocketState::InTheWay,
        Ok(_) if listens(path, unix) || answers(path) => SocketState::Listening,
        Ok(_) => SocketState::Stale,
    }
}

/// Whether somebody takes a connection at a path. Where the kernel's list is not there, or is that
/// of other namespaces, nothing else says it.
fn answers(path: &Path) -> bool {
    UnixStream::connect(path).is_ok()
}

/// Whether somebody listens at a path. The kernel has the paths as they were said, which may be
/// relative to the directory of that process.
fn listens(path: &Path, unix: &str) -> bool {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    unix.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace();
        let flags = fields.nth(3).and_then(|flags| u32::from_str_radix(flags, 16).ok());
        // Num RefCount Protocol Flags Type St Inode Path; a path may have blanks.
        let said = fields.nth(2).and_then(|inode| line.split_once(&format!(" {inode} ")));
        let Some((_, said)) = said else { return false };
        let said = Path::new(said.trim_start());
        let plain = said.strip_prefix(".").unwrap_or(said);
        let is_it = if said.is_absolute() { said == whole } else { whole.ends_with(plain) };
        is_it && flags.is_some_and(|flags| flags & LISTENS != 0)
    })
}

fn directory(path: &Path) -> Directory {
    let some = |dir: &Path| match dir.as_os_str().is_empty() {
        true => Path::new(".").to_owned(),
        false => dir.to_owned(),
    };
    let Some(dir) = path.parent().map(some) else { return Directory::Usable };
    // The one that is there decides about those below it.
    let missing = |e: &std::io::Error| e.kind() == ErrorKind::NotFound;
    let mut levels = dir.ancestors().map(|level| look::may_make(&some(level)));
    match levels.next() {
        None | Some(Ok(())) => return Directory::Usable,
        Some(Err(e)) if !missing(&e) => return Directory::Refused(e.to_string()),
        Some(Err(_)) => {}
    }
    match levels.find(|may| !may.as_ref().is_err_and(missing)) {
        Some(Err(e)) => Directory::Refused(e.to_string()),
        Some(Ok(())) | None => Directory::IsMade,
    }
}

/// The addresses of listening sockets in `/proc/net/tcp` or `tcp6`.
fn ports(text: &str) -> Vec<SocketAddr> {
    let one = |line: &str| {
        let mut fields = line.split_whitespace();
        let (local, state) = (fields.nth(1)?, fields.nth(1)?);
        let (ip, port) = local.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        // Words of 32 bits in the order of the machine.
        let words: Option<Vec<u8>> = (0..ip.len() / 8)
            .map(|i| u32::from_str_radix(ip.get(8 * i..8 * i + 8)?, 16).ok())
            .map(|word| word.map(u32::to_ne_bytes))
            .collect::<Option<Vec<_>>>()
            .map(|words| words.concat());
        let words = words?;
        let ip = match <[u8; 4]>::try_from(words.as_slice()) {
            Ok(four) => IpAddr::V4(Ipv4Addr::from(four)),
            Err(_) => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(words).ok()?)),
        };
        (state == TCP_LISTENS).then_some(SocketAddr::new(ip, port))
    };
    text.lines().skip(1).filter_map(one).collect()
}

/// Whether two sockets of these addresses cannot listen on the same port.
fn overlap(a: IpAddr, b: IpAddr) -> bool {
    a == b || a.is_unspecified() || b.is_unspecified()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn sockets_are_told_from_what_is_in_the_way() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a b.sock");
        let now = || state(&path, &read_to_string("/proc/net/unix").unwrap());
        assert_eq!(now(), SocketState::Free);
        let listener = UnixListener::bind(&path).unwrap();
        assert_eq!(now(), SocketState::Listening);
        drop(listener);
        assert_eq!(now(), SocketState::Stale);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        assert_eq!(now(), SocketState::InTheWay);
    }

    #[test]
    fn a_relative_path_is_found() {
        let unix = "Num RefCount Protocol Flags Type St Inode Path\n\
                    0000: 00000002 00000000 00010000 0001 01 7 ./data/nbd.sock\n\
                    0000: 00000002 00000000 00000000 0001 01 8 /x/open.sock\n";
        assert!(listens(Path::new("/somewhere/data/nbd.sock"), unix));
        assert!(!listens(Path::new("/somewhere/else/nbd.sock"), unix));
        assert!(!listens(Path::new("/x/open.sock"), unix), "it is connected, and does not listen");
    }

    #[test]
    fn directories() {
        let dir = tempfile::tempdir().unwrap();
        let of = |name: &str| directory(&dir.path().join(name));
        assert_eq!(of("s"), Directory::Usable);
        assert_eq!(of("new/s"), Directory::IsMade);
        assert_eq!(of("a/b/c/s"), Directory::IsMade);
        assert_eq!(directory(Path::new("not-there/below/s")), Directory::IsMade);
        std::fs::write(dir.path().join("f"), "").unwrap();
        assert!(matches!(of("f/s/t"), Directory::Refused(_)));
    }

    #[test]
    fn a_port_that_is_taken() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let text = read_to_string("/proc/net/tcp").unwrap();
        assert!(ports(&text).contains(&address), "{address} is not in {text}");
        assert!(overlap(address.ip(), Ipv4Addr::UNSPECIFIED.into()));
        assert!(!overlap(address.ip(), Ipv4Addr::new(10, 0, 0, 1).into()));
    }
}
