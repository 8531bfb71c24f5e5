//! The world of the conformance suite on a real system. The tests of both backends use it.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use conformance::{Harness, SLOTS};
use posix::{Handles, NewFile, OpenFile};
use rt::{Backend, FileId, Op, Order, Rt, SocketId};

enum Address {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// The kind of files and sockets to use.
#[derive(Clone, Copy)]
pub struct Kind<'a> {
    pub dir: &'a Path,
    pub tcp: bool,
    pub direct: bool,
}

/// A directory of the build, which is on a disk, as far as we can tell.
pub fn on_disk() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// A directory in memory, if there is one.
pub fn in_memory() -> Option<&'static Path> {
    Some(Path::new("/dev/shm")).filter(|dir| dir.is_dir())
}

pub struct World {
    // The runtime is dropped before the directory that holds its files.
    rt: Rt,
    handles: Handles,
    listeners: BTreeMap<SocketId, Address>,
    tcp: bool,
    direct: bool,
    files: u32,
    dir: tempfile::TempDir,
}

impl World {
    pub fn boxed(backend: Box<dyn Backend>, handles: Handles, kind: Kind<'_>) -> Box<dyn Harness> {
        let rt = Rt::new(backend, Order::Fifo, SLOTS);
        let dir = tempfile::tempdir_in(kind.dir).expect("a directory");
        let listeners = BTreeMap::new();
        Box::new(World {
            rt,
            handles,
            listeners,
            tcp: kind.tcp,
            direct: kind.direct,
            files: 0,
            dir,
        })
    }
}

impl Harness for World {
    fn rt(&self) -> Rt {
        self.rt.clone()
    }

    fn file(&mut self, len: u64) -> FileId {
        self.files += 1;
        let path = self.dir.path().join(format!("file{}", self.files));
        let how = OpenFile { write: true, create: Some(NewFile::Sparse(len)), direct: self.direct };
        self.handles.open_file(path, &how).expect("a file").0
    }

    fn listener(&mut self) -> SocketId {
        let path = self.dir.path().join(format!("socket{}", self.listeners.len()));
        let (fd, address) = if self.tcp {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
            let address = listener.local_addr().expect("its address");
            (listener.into(), Address::Tcp(address))
        } else {
            (UnixListener::bind(&path).expect("a listener").into(), Address::Unix(path))
        };
        let id = self.handles.adopt_listener(fd).expect("a number");
        self.listeners.insert(id, address);
        id
    }

    fn connect(&mut self, listener: SocketId) -> SocketId {
        let fd = match &self.listeners[&listener] {
            Address::Unix(path) => UnixStream::connect(path).expect("a connection").into(),
            Address::Tcp(address) => TcpStream::connect(address).expect("a connection").into(),
        };
        self.handles.adopt_socket(fd).expect("a number")
    }
}

/// A listener that two processes have: closing one of the two ends its accept, and those who
/// connect then are accepted by the other.
pub fn a_shared_listener(backend: Box<dyn Backend>, handles: &Handles) {
    let rt = Rt::new(backend, Order::Fifo, SLOTS);
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let path = dir.path().join("socket");
    let other = UnixListener::bind(&path).expect("a listener");
    let ours = handles.adopt_listener(other.try_clone().expect("a clone").into()).expect("adopted");
    let closed = rt.clone().block_on({
        let rt = rt.clone();
        async move {
            let accept = rt.spawn({
                let rt = rt.clone();
                async move { rt.op(Op::Accept { listener: ours }).await.result }
            });
            rt.sleep(base::Duration::from_millis(10)).await;
            let closed = rt.op(Op::Close { socket: ours }).await.result;
            (accept.await, closed)
        }
    });
    assert_eq!(closed, Some((Some(Err(base::IoError::CANCELED)), Ok(0))));
    let _client = UnixStream::connect(&path).expect("it still listens");
    other.set_nonblocking(true).expect("its mode");
    other.accept().expect("it waits to be accepted");
}
