//! A backend that is dropped with operations in flight frees its buffers, sockets and locks.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::os::unix::net::{UnixListener, UnixStream};

use base::{BufList, BufPool, SliceList};
use posix::{NewFile, OpenFile};
use rt::{Backend, Op, OpId};
use uring::Uring;

#[test]
fn drop_frees_buffers_sockets_and_locks() {
    let mut uring = match Uring::new(8) {
        Ok(uring) => uring,
        Err(e) => return println!("skipped: io_uring is refused here: {e}"),
    };
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let handles = uring.handles();
    let how = OpenFile { write: true, create: Some(NewFile::Sparse(8 << 20)), direct: true };
    let (file, _) = handles.open_file(dir.path().join("disk"), &how).unwrap();
    let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
    let listener = handles.adopt_listener(listener.into()).unwrap();
    let (near, mut far) = UnixStream::pair().unwrap();
    let near = handles.adopt_socket(near.into()).unwrap();
    drop(handles);

    let bufs = BufPool::new(0);
    let mut ids = (0..).map(OpId);
    let mut submit = |uring: &mut Uring, op| uring.submit(ids.next().unwrap(), op);
    for offset in (0..8).map(|i| i << 20) {
        let data = SliceList::from_iter([bufs.zeroed(1 << 20).freeze()]);
        submit(&mut uring, Op::Write { file, offset, data, fua: true });
    }
    submit(&mut uring, Op::Accept { listener });
    for fill in [true, false] {
        submit(
            &mut uring,
            Op::Recv { socket: near, buf: BufList::from_iter([bufs.take(4096)]), start: 0, fill },
        );
    }
    // One turn without waiting submits all operations to the kernel.
    let mut done = Vec::new();
    let now = uring.now();
    uring.wait(Some(now), &mut done);
    // This operation is only queued.
    submit(
        &mut uring,
        Op::Recv { socket: near, buf: BufList::from_iter([bufs.take(4096)]), start: 0, fill: true },
    );
    drop(done);
    assert!(bufs.outstanding() >= 3 * 4096);
    let start = posix::sys::now();
    drop(uring);
    assert!(posix::sys::now().since(start).as_secs() < 5, "all operations ended");
    assert_eq!(bufs.outstanding(), 0, "nothing was leaked");
    assert_eq!(
        std::io::Read::read(&mut far, &mut [0]).unwrap(),
        0,
        "the peer sees the end of the stream"
    );
    let again = Uring::new(8).unwrap();
    assert!(
        again.handles().open_file(dir.path().join("disk"), &how).is_ok(),
        "the lock is released"
    );
}
