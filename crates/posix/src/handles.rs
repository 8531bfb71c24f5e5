//! The files and sockets of a backend, by number.
//!
//! A clone is the same table, so that set-up code can open files and add listeners while the backend belongs to a runtime. A socket
//! that is closed while operations hold its number keeps its descriptor until the last of them has let go: a descriptor that
//! the kernel has given to somebody else can never be reached by an old number.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::rc::Rc;

use base::IoError;
use rt::{FileId, OpId, SocketId};

use crate::open::{FileInfo, OpenFile, Opened, open};
use crate::sys::{self, NO_SUCH};

/// Bytes that a local socket may hold for its peer; the kernel takes less if its administrator says so.
const LOCAL_SEND_BYTES: i32 = 512 << 10;

/// A peer over TCP that says nothing for so many seconds is asked whether it is still there,
const KEEPALIVE_IDLE: i32 = 60;
/// again after so many,
const KEEPALIVE_PAUSE: i32 = 10;
/// and is gone when it has not answered so often.
const KEEPALIVE_PROBES: i32 = 6;

/// The table. Files stay open until the last clone is gone.
#[derive(Clone)]
pub struct Handles(Rc<RefCell<Tables>>);

struct Tables {
    files: Vec<File>,
    sockets: Vec<Option<Socket>>,
    free: Vec<u32>,
    /// Calls on sockets wait (the kernel's ring waits in our stead) or do not (we poll).
    blocking: bool,
}

struct File {
    fd: OwnedFd,
    in_memory: bool,
}

struct Socket {
    fd: OwnedFd,
    /// Operations in flight.
    held: u32,
    /// The close that waits for them.
    closing: Option<OpId>,
}

/// A file to do I/O on.
#[derive(Clone, Copy, Debug)]
pub struct FileHandle {
    /// Open as long as the table is there.
    pub fd: RawFd,
    /// Transfers only copy memory, and are best done at once.
    pub in_memory: bool,
}

/// What became of a close.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closing {
    /// It is closed.
    Done,
    /// Operations hold the number; the last [`Handles::release`] closes it.
    Waiting,
}

impl Handles {
    /// An empty table. `blocking` says what mode the backend wants its sockets in.
    pub fn new(blocking: bool) -> Handles {
        let tables = Tables { files: Vec::new(), sockets: Vec::new(), free: Vec::new(), blocking };
        Handles(Rc::new(RefCell::new(tables)))
    }

    /// Opens and locks a file or a block device. Somebody else's lock is an error of kind [`io::ErrorKind::ResourceBusy`], after
    /// a second of trying.
    pub fn open_file(
        &self,
        path: impl AsRef<Path>,
        how: &OpenFile,
    ) -> io::Result<(FileId, FileInfo)> {
        let opened = open(path.as_ref(), how)?;
        let info = opened.info;
        Ok((self.adopt_file(opened), info))
    }

    /// Takes over a file that was opened elsewhere.
    pub fn adopt_file(&self, opened: Opened) -> FileId {
        let files = &mut self.0.borrow_mut().files;
        files.push(File { fd: opened.fd, in_memory: opened.in_memory });
        FileId(files.len() as u32 - 1)
    }

    /// Closes a file, and so unlocks it. Its number stays taken, and so does the descriptor's: an operation that comes too late fails with EBADF and
    /// never reaches another file.
    pub fn close_file(&self, file: FileId) -> io::Result<()> {
        let t = self.0.borrow();
        let f =
            t.files.get(file.0 as usize).ok_or_else(|| io::Error::from_raw_os_error(NO_SUCH.0))?;
        sys::close_in_place(f.fd.as_raw_fd())
    }

    /// Takes over a listening socket.
    pub fn adopt_listener(&self, fd: OwnedFd) -> io::Result<SocketId> {
        self.adopt(fd)
    }

    /// Takes over a connected socket.
    pub fn adopt_socket(&self, fd: OwnedFd) -> io::Result<SocketId> {
        // A reply is sent whole: waiting for more to send with it would only delay it. Where there is no such option it is a local socket, whose
        // room the kernel does not adapt: with little of it a large reply waits for the client again and again.
        let set = |level, name, value| sys::set_option(fd.as_raw_fd(), level, name, value);
        if set(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).is_ok() {
            // A client whose machine or network went away says nothing any more, and would keep its place for ever.
            for (level, name, value) in [
                (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, KEEPALIVE_IDLE),
                (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, KEEPALIVE_PAUSE),
                (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, KEEPALIVE_PROBES),
                (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
            ] {
                if let Err(e) = set(level, name, value) {
                    tracing::debug!("a TCP connection without a watch for lost peers: {e}");
                }
            }
        } else {
            let _ = set(libc::SOL_SOCKET, libc::SO_SNDBUF, LOCAL_SEND_BYTES);
        }
        self.adopt(fd)
    }

    fn adopt(&self, fd: OwnedFd) -> io::Result<SocketId> {
        let mut t = self.0.borrow_mut();
        sys::set_blocking(fd.as_raw_fd(), t.blocking)?;
        let socket = Some(Socket { fd, held: 0, closing: None });
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

    /// A file, for a backend.
    pub fn file(&self, file: FileId) -> Result<FileHandle, IoError> {
        let t = self.0.borrow();
        let f = t.files.get(file.0 as usize).ok_or(NO_SUCH)?;
        Ok(FileHandle { fd: f.fd.as_raw_fd(), in_memory: f.in_memory })
    }

    /// Begins an operation on a socket, for a backend: its descriptor stays open until [`Handles::release`].
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

    /// The descriptor of a socket that an operation holds, closing or not.
    pub fn held(&self, socket: SocketId) -> Result<RawFd, IoError> {
        match self.0.borrow().sockets.get(socket.0 as usize) {
            Some(Some(s)) => Ok(s.fd.as_raw_fd()),
            _ => Err(NO_SUCH),
        }
    }

    /// Ends an operation on a socket, for a backend. The close that waited for this one, if any, is now done.
    pub fn release(&self, socket: SocketId) -> Option<OpId> {
        let mut t = self.0.borrow_mut();
        let Some(Some(s)) = t.sockets.get_mut(socket.0 as usize) else {
            unreachable!("released but not held")
        };
        s.held -= 1;
        if s.held > 0 {
            return None;
        }
        let closer = s.closing?;
        t.remove(socket);
        Some(closer)
    }

    /// Shuts a socket down and closes it as soon as nothing holds it, for a backend.
    pub fn close(&self, socket: SocketId, closer: OpId) -> Result<Closing, IoError> {
        let mut t = self.0.borrow_mut();
        match t.sockets.get_mut(socket.0 as usize) {
            Some(Some(s)) if s.closing.is_none() => {
                sys::shutdown(s.fd.as_raw_fd());
                if s.held > 0 {
                    s.closing = Some(closer);
                    return Ok(Closing::Waiting);
                }
                t.remove(socket);
                Ok(Closing::Done)
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

    #[test]
    fn a_closed_file_is_free_for_others_and_out_of_reach() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let how = OpenFile { write: true, create_len: Some(8192), direct: false };
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
    fn a_lost_peer_is_noticed_over_tcp() {
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
    fn a_held_socket_closes_when_it_is_let_go() {
        let handles = Handles::new(true);
        let (a, b) = UnixStream::pair().unwrap();
        let (a, b) =
            (handles.adopt_socket(a.into()).unwrap(), handles.adopt_socket(b.into()).unwrap());
        let fd = handles.hold(a).unwrap();
        assert_eq!(handles.held(a), Ok(fd));
        assert_eq!(handles.close(a, OpId(7)), Ok(Closing::Waiting));
        assert_eq!(handles.hold(a), Err(NO_SUCH), "nothing new on what is closing");
        assert_eq!(handles.close(a, OpId(8)), Err(NO_SUCH));
        let (c, _peer) = UnixStream::pair().unwrap();
        let c = handles.adopt_socket(c.into()).unwrap();
        assert!(c != a && c != b, "the number is still taken");
        assert_eq!(handles.release(a), Some(OpId(7)));
        assert_eq!(handles.held(a), Err(NO_SUCH));
        assert_eq!(handles.close(b, OpId(9)), Ok(Closing::Done));
    }
}
