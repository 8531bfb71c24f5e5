//! A policy that permits a ring and not its use, as seccomp of a container may: it is known before
//! anything waits for the ring.
#![allow(unsafe_code, reason = "a test that has the kernel refuse a call")]
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test")]

use base::{BufList, BufPool, Duration};
use posix::sys;
use rt::{Backend, Op, OpId};
use uring::Uring;

/// From now on `io_uring_enter` fails with EPERM in this thread. Other calls are permitted.
fn refuse_enter() {
    let filter = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let call = libc::SYS_io_uring_enter as u32;
    let mut program = [
        // The number of the call is the first field of `struct seccomp_data`.
        filter(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        filter(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program lives until the calls return, and they concern this thread alone.
    let outcomes = unsafe {
        [
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1_usize, 0_usize, 0_usize, 0_usize),
            libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER as usize,
                &raw const program,
            ),
        ]
    };
    assert_eq!(outcomes, [0, 0], "{}", std::io::Error::last_os_error());
}

/// True if there is io_uring here, as long as nothing is refused.
fn is_there() -> bool {
    match Uring::new(8) {
        Ok(_) => true,
        Err(e) => {
            println!("skipped: io_uring is refused here: {e}");
            false
        }
    }
}

#[test]
fn a_ring_that_may_not_be_used_is_refused_at_once() {
    if !is_there() {
        return;
    }
    let refused = std::thread::spawn(|| {
        refuse_enter();
        Uring::new(8).err().and_then(|e| e.raw_os_error())
    });
    assert_eq!(refused.join().unwrap(), Some(libc::EPERM));
}

#[test]
fn a_ring_that_may_not_be_used_any_more_ends_the_thread_and_says_why() {
    if !is_there() {
        return;
    }
    let ended = std::thread::spawn(|| {
        let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut uring = Uring::new(8).unwrap();
        let near = uring.handles().adopt_socket(near.into()).unwrap();
        let buf = BufList::from_iter([BufPool::new(0).take(4096)]);
        uring.submit(OpId(0), Op::Recv { socket: near, buf, start: 0, fill: false });
        uring.wait(Some(sys::now()), &mut Vec::new());
        refuse_enter();
        // It must neither turn for ever nor take the operation for one that goes on.
        uring.wait(Some(sys::now().after(Duration::from_secs(5))), &mut Vec::new());
    });
    let why = ended.join().unwrap_err();
    let why = why.downcast_ref::<String>().unwrap();
    assert!(why.contains("io_uring_enter"), "{why}");
}
