//! The files and sockets of a backend, by number.
//!
//! A clone refers to the same table. So set-up code can open files and add listeners while a
//! runtime owns the backend. If a socket is closed while operations hold its number, its descriptor
//! stays open until the last of them has released it. So an old number never reaches a descriptor
//! that the kernel has reused.

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::rc::Rc;

use base::IoError;
use rt::{DeviceKind, FileId, OpId, SocketId};

use crate::names::NameLocks;
use crate::open::{FileInfo, LockedFile, OpenFile, open};
use crate::start::Start;
use crate::sys::{self, NO_SUCH};

/// Bytes that a local socket may buffer for its peer. The kernel's limit may be lower.
const LOCAL_SEND_BYTES: i32 = 512 << 10;

/// Seconds of silence after which TCP asks the peer whether it is still there.
const KEEPALIVE_IDLE: i32 = 60;
/// Seconds between such probes.
const KEEPALIVE_PAUSE: i32 = 10;
/// Number of unanswered probes after which the connection is given up.
const KEEPALIVE_PROBES: i32 = 6;

/// The table of files and sockets. Files stay open until the last clone is dropped.
#[derive(Clone)]
pub struct Handles(Rc<RefCell<Tables>>);

struct Tables {
    files: Vec<File>,
    sockets: Vec<Option<Socket>>,
    free: Vec<u32>,
    /// Whether calls on sockets block. They block for io_uring, where the kernel waits, and do not
    /// for epoll.
    blocking: bool,
}

struct File {
    fd: OwnedFd,
    start: Start,
    kind: DeviceKind,
    /// Held for as long as the file is open.
    names: Option<NameLocks>,
}

struct Socket {
    /// The socket accepts connections. A shutdown would end that in all processes that have it.
    listens: bool,
    fd: OwnedFd,
    /// Number of operations in flight.
    held: u32,
    /// The close operation that waits for them.
    closing: Option<OpId>,
}

/// A file, for a backend.
#[derive(Clone, Copy, Debug)]
pub struct FileHandle {
    /// The descriptor, which is open while the table exists.
    pub fd: RawFd,
    /// The place where the operations of the file are started.
    pub start: Start,
}

/// The outcome of a close.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseOutcome {
    /// The socket is closed.
    Done,
    /// Operations hold the socket; the last [`Handles::release`] closes it.
    Waiting,
}

impl Handles {
    /// Creates an empty table. `blocking` is the mode that the backend wants for its sockets.
    pub fn new(blocking: bool) -> Handles {
        let tables = Tables { files: Vec::new(), sockets: Vec::new(), free: Vec::new(), blocking };
        Handles(Rc::new(RefCell::new(tables)))
    }

    /// Opens and locks a file or a block device. If somebody else holds the lock for more than a
    /// second, the error has the kind [`io::ErrorKind::ResourceBusy`].
    pub fn open_file(
        &self,
        path: impl AsRef<Path>,
        how: &OpenFile,
    ) -> io::Result<(FileId, FileInfo)> {
        let opened = open(path.as_ref(), how)?;
        let info = opened.info;
        Ok((self.adopt_file(opened), info))
    }

    /// Adds a file that was opened elsewhere.
    pub fn adopt_file(&self, opened: LockedFile) -> FileId {
        let files = &mut self.0.borrow_mut().files;
        let LockedFile { fd, start, names, info } = opened;
        files.push(File { fd, start, kind: info.kind, names: Some(names) });
        FileId(files.len() as u32 - 1)
    }

    /// Another descriptor of an open file, for what is asked of it in other threads: it is the file
    /// that was opened, whatever is at its path by now.
    pub fn descriptor(&self, file: FileId) -> io::Result<std::fs::File> {
        let t = self.0.borrow();
        let no_such = || io::Error::from_raw_os_error(NO_SUCH.0);
        Ok(t.files.get(file.0 as usize).ok_or_else(no_such)?.fd.try_clone()?.into())
    }

    /// Closes a file, which unlocks it. Its number and its descriptor stay reserved. So an
    /// operation that comes too late fails with EBADF and never reaches another file.
    pub fn close_file(&self, file: FileId) -> io::Result<()> {
        self.closing(file)?()
    }

    /// Closes a file as [`Handles::close_file`] does, but when it is called, in any thread: the
    /// file system may take long for it. The table must be there until then.
    pub fn closing(
        &self,
        file: FileId,
    ) -> io::Result<impl FnOnce() -> io::Result<()> + Send + use<>> {
        let no_such = || io::Error::from_raw_os_error(NO_SUCH.0);
        let f = &mut self.0.borrow_mut().files;
        let f = f.get_mut(file.0 as usize).ok_or_else(no_such)?;
        let (fd, names) = (f.fd.as_raw_fd(), f.names.take());
        Ok(move || {
            let closed = sys::close_in_place(fd);
            drop(names);
            closed
        })
    }

    /// Adds a listening socket. Another process may have it too: closing it here leaves it as it is
    /// there, with those who wait to be accepted.
    pub fn adopt_listener(&self, fd: OwnedFd) -> io::Result<SocketId> {
        self.adopt(fd, true)
    }

    /// Adds a connected socket, and sets its options.
    pub fn adopt_socket(&self, fd: OwnedFd) -> io::Result<SocketId> {
        // A reply is sent as a whole, so delaying it to fill a packet is useless. If the option
        // fails, the socket is local. The kernel does not adapt the buffer of a local socket, and
        // with a small one a large reply would wait for the client again and again.
        let set = |level, name, value| sys::set_option(fd.as_raw_fd(), level, name, value);
        if set(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).is_ok() {
            // Without keepalive, a client whose machine or network is gone would keep its
            // connection for ever.
            for (level, name, value) in [
                (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, KEEPALIVE_IDLE),
                (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, KEEPALIVE_PAUSE),
                (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, KEEPALIVE_PROBES),
                (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
            ] {
                if let Err(e) = set(level, name, value) {
                    tracing::debug!(
                        "TCP keepalive cannot be set, so a lost peer may go unnoticed: {e}"
                    );
                }
            }
        } else {
            let _ = set(libc::SOL_SOCKET, libc::SO_SNDBUF, LOCAL_SEND_BYTES);
        }
        self.adopt(fd, false)
    }

    /// The address of the peer of a connected TCP socket. An IPv4 peer of an IPv6 socket has its
    /// IPv4 address.
    pub fn peer(&self, socket: SocketId) -> Option<SocketAddr> {
        let t = self.0.borrow();
        let fd = t.sockets.get(socket.0 as usize)?.as_ref()?.fd.try_clone().ok()?;
        let peer = TcpStream::from(fd).peer_addr().ok()?;
        Some(SocketAddr::new(peer.ip().to_canonical(), peer.port()))
    }

    /// The process and the user of the peer of a connected unix socket, at the time at which it
    /// connected.
    pub fn peer_process(&self, socket: SocketId) -> Option<(u32, u32)> {
        let t = self.0.borrow();
        let fd = t.sockets.get(socket.0 as usize)?.as_ref()?.fd.as_raw_fd();
        sys::peer_credentials(fd).ok()
    }

    fn adopt(&self, fd: OwnedFd, listens: bool) -> io::Result<SocketId> {
        let mut t = self.0.borrow_mut();
        sys::set_blocking(fd.as_raw_fd(), t.blocking)?;
        let socket = Some(Socket { fd, listens, held: 0, closing: None });
        let n = match t.free.pop() {
            Some(n) => {
                t.sockets[n as usize] = socket;
                n
            }
            None => {
                t.sockets.push(socket);
                t.sockets.len() as u32 - 1
            }
        };
        Ok(SocketId(n))
    }

    /// Looks up a file, for a backend.
    pub fn file(&self, file: FileId) -> Result<FileHandle, IoError> {
        let t = self.0.borrow();
        let f = t.files.get(file.0 as usize).ok_or(NO_SUCH)?;
        Ok(FileHandle { fd: f.fd.as_raw_fd(), start: f.start })
    }

    /// The kind of a file, or of the device below it, for a backend.
    pub fn kind(&self, file: FileId) -> DeviceKind {
        let t = self.0.borrow();
        t.files.get(file.0 as usize).map_or(DeviceKind::Unknown, |f| f.kind)
    }

    /// Begins an operation on a socket, for a backend. The descriptor stays open until
    /// [`Handles::release`].
    pub fn hold(&self, socket: SocketId) -> Result<RawFd, IoError> {
        let mut t = self.0.borrow_mut();
        match t.sockets.get_mut(socket.0 as usize) {
            Some(Some(s)) if s.closing.is_none() => {
                s.held += 1;
                Ok(s.fd.as_raw_fd())
            }
            _ => Err(NO_SUCH),
        }
    }

    /// The descriptor of a socket that an operation holds, even if the socket is closing.
    pub fn held(&self, socket: SocketId) -> Result<RawFd, IoError> {
        match self.0.borrow().sockets.get(socket.0 as usize) {
            Some(Some(s)) => Ok(s.fd.as_raw_fd()),
            _ => Err(NO_SUCH),
        }
    }

    /// Whether a socket waits for operations to end, to be closed. For a backend.
    pub fn is_closing(&self, socket: SocketId) -> bool {
        let t = self.0.borrow();
        matches!(t.sockets.get(socket.0 as usize), Some(Some(s)) if s.closing.is_some())
    }

    /// Ends an operation on a socket, for a backend. Returns the close operation that waited for
    /// this one, if any; it is complete now.
    pub fn release(&self, socket: SocketId) -> Option<OpId> {
        let mut t = self.0.borrow_mut();
        let Some(Some(s)) = t.sockets.get_mut(socket.0 as usize) else {
            unreachable!("the socket is not held")
        };
        s.held -= 1;
        if s.held > 0 {
            return None;
        }
        let closer = s.closing?;
        t.remove(socket);
        Some(closer)
    }

    /// Shuts a connection down, and closes it as soon as no operation holds it. A listener is not
    /// shut down, so the backend has to cancel what holds it. For a backend.
    pub fn close(&self, socket: SocketId, closer: OpId) -> Result<CloseOutcome, IoError> {
        let mut t = self.0.borrow_mut();
        match t.sockets.get_mut(socket.0 as usize) {
            Some(Some(s)) if s.closing.is_none() => {
                if !s.listens {
                    sys::shutdown(s.fd.as_raw_fd());
                }
                if s.held > 0 {
                    s.closing = Some(closer);
                    return Ok(CloseOutcome::Waiting);
                }
                t.remove(socket);
                Ok(CloseOutcome::Done)
            }
            _ => Err(NO_SUCH),
        }
    }
}

impl Tables {
    fn remove(&mut self, socket: SocketId) {
        self.sockets[socket.0 as usize] = None;
        self.free.push(socket.0);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::open::NewFile;

    #[test]
    fn a_closed_file_is_unlocked_and_its_number_stays_reserved() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let how = OpenFile { write: true, create: Some(NewFile::Sparse(8192)), direct: false };
        let (one, other) = (Handles::new(true), Handles::new(true));
        let (file, _) = one.open_file(&path, &how).unwrap();
        assert_eq!(
            other.open_file(&path, &how).err().map(|e| e.kind()),
            Some(io::ErrorKind::ResourceBusy)
        );
        let fd = one.file(file).unwrap().fd;
        one.close_file(file).unwrap();
        assert_eq!(sys::flush(fd), Err(NO_SUCH));
        let (again, _) = one.open_file(&path, &how).unwrap();
        assert!(again != file && one.file(again).unwrap().fd != fd);
        assert!(one.close_file(FileId(9)).is_err());
    }

    #[test]
    fn tcp_sockets_have_keepalive() {
        let handles = Handles::new(true);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = handles.adopt_socket(listener.accept().unwrap().0.into()).unwrap();
        let fd = handles.hold(socket).unwrap();
        let get = |level, name| sys::option(fd, level, name).unwrap();
        assert_eq!(get(libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1);
        assert_eq!(get(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE), KEEPALIVE_IDLE);
        assert_eq!(get(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL), KEEPALIVE_PAUSE);
        assert_eq!(get(libc::IPPROTO_TCP, libc::TCP_KEEPCNT), KEEPALIVE_PROBES);
        let (local, _peer) = UnixStream::pair().unwrap();
        let local = handles.adopt_socket(local.into()).unwrap();
        assert_eq!(
            sys::option(handles.hold(local).unwrap(), libc::SOL_SOCKET, libc::SO_KEEPALIVE)
                .unwrap(),
            0
        );
    }

    #[test]
    fn a_held_socket_is_closed_by_its_last_release() {
        let handles = Handles::new(true);
        let (a, b) = UnixStream::pair().unwrap();
        let (a, b) =
            (handles.adopt_socket(a.into()).unwrap(), handles.adopt_socket(b.into()).unwrap());
        let fd = handles.hold(a).unwrap();
        assert_eq!(handles.held(a), Ok(fd));
        assert_eq!(handles.close(a, OpId(7)), Ok(CloseOutcome::Waiting));
        assert_eq!(handles.hold(a), Err(NO_SUCH), "a closing socket takes no new operations");
        assert_eq!(handles.close(a, OpId(8)), Err(NO_SUCH));
        let (c, _peer) = UnixStream::pair().unwrap();
        let c = handles.adopt_socket(c.into()).unwrap();
        assert!(c != a && c != b, "the number is still reserved");
        assert_eq!(handles.release(a), Some(OpId(7)));
        assert_eq!(handles.held(a), Err(NO_SUCH));
        assert_eq!(handles.close(b, OpId(9)), Ok(CloseOutcome::Done));
    }
}
