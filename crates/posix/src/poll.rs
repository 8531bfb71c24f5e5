//! Waits for sockets and for the workers' eventfd, and makes non-blocking calls on sockets.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use base::{Duration, IoError};
use rt::Op;

use crate::sys;

const EVENTS: usize = 128;

/// An epoll instance. It watches every descriptor in both directions and reports each change once
/// (edge-triggered).
pub(crate) struct Poll {
    epoll: OwnedFd,
    events: Box<[libc::epoll_event; EVENTS]>,
    /// Whether `epoll_pwait2`, which has a timeout in nanoseconds, exists and is permitted.
    fine: bool,
}

impl Poll {
    pub fn new() -> io::Result<Poll> {
        // SAFETY: the argument is a plain number.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just created, and nothing else owns it.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Poll {
            epoll,
            events: Box::new([libc::epoll_event { events: 0, u64: 0 }; EVENTS]),
            fine: true,
        })
    }

    /// Watches `fd` until it is closed. If it is ready now, `wait` reports that too.
    pub fn watch(&self, fd: RawFd, name: u64) -> io::Result<()> {
        let events = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET) as u32;
        let mut event = libc::epoll_event { events, u64: name };
        // SAFETY: the event lives until the call returns.
        let r = unsafe {
            libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event)
        };
        if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Waits for changes, at most for `limit`, or without a limit if that is `None`. May return
    /// early. Returns the names of the descriptors that changed.
    pub fn wait(&mut self, limit: Option<Duration>) -> impl Iterator<Item = u64> + use<> {
        let (epoll, at, max) = (self.epoll.as_raw_fd(), self.events.as_mut_ptr(), EVENTS as i32);
        let mut n = -1;
        if self.fine {
            let t = limit.map(|d| libc::timespec {
                tv_sec: libc::time_t::try_from(d.as_secs()).unwrap_or(libc::time_t::MAX),
                tv_nsec: d.subsec_nanos().into(),
            });
            let timeout = t.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            let mask = std::ptr::null::<libc::sigset_t>();
            // SAFETY: there is room for `max` events, and the timeout lives until the call returns.
            n = unsafe {
                libc::syscall(libc::SYS_epoll_pwait2, epoll, at, max, timeout, mask, 0usize)
            };
            self.fine = n >= 0 || io::Error::last_os_error().kind() == io::ErrorKind::Interrupted;
        }
        if !self.fine {
            // Round up: a timeout that is too short costs a second wait.
            let ms = limit.map_or(-1, |d| {
                i32::try_from(d.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
            });
            // SAFETY: there is room for `max` events.
            n = unsafe { libc::epoll_wait(epoll, at, max, ms) }.into();
        }
        // Copy the events, because their handler needs the whole backend mutably.
        let events = *self.events;
        (0..usize::try_from(n).unwrap_or(0)).map(move |i| events[i].u64)
    }
}

/// Tries an operation on a socket without blocking. Returns `None` if it would block. `moved`
/// counts the bytes that a filling receive already has. The result of an accept is the new
/// descriptor.
pub(crate) fn attempt(
    fd: RawFd,
    op: &mut Op,
    moved: &mut usize,
    pieces: &mut Vec<libc::iovec>,
) -> Option<Result<u64, IoError>> {
    let result = match op {
        Op::Recv { buf, start, fill, .. } => receive(fd, buf, *start, *fill, moved),
        Op::Send { data, .. } => {
            sys::pieces_of_data(data, pieces);
            // SAFETY: all zeros is a valid message without address, pieces and control data.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_iov = pieces.as_mut_ptr();
            message.msg_iovlen = pieces.len() as _;
            // SAFETY: the pieces are views that the operation owns, and they are only read.
            sys::retry(|| unsafe { libc::sendmsg(fd, &raw const message, libc::MSG_NOSIGNAL) })
        }
        Op::Accept { .. } => {
            let (no_address, no_len) = (std::ptr::null_mut(), std::ptr::null_mut());
            let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            // SAFETY: no address is asked for.
            sys::retry(|| unsafe { libc::accept4(fd, no_address, no_len, flags) } as isize)
        }
        _ => unreachable!("not an operation on a socket"),
    };
    if result == Err(IoError::AGAIN) { None } else { Some(result) }
}

fn receive(
    fd: RawFd,
    buf: &mut base::BufList,
    start: usize,
    fill: bool,
    moved: &mut usize,
) -> Result<u64, IoError> {
    let [buf] = &mut buf[..] else { return Err(IoError::INVALID) };
    loop {
        let rest = buf.get_mut(start + *moved..).ok_or(IoError::INVALID)?;
        if rest.is_empty() {
            return Ok(*moved as u64);
        }
        let (at, len) = (rest.as_mut_ptr().cast::<libc::c_void>(), rest.len());
        // SAFETY: `rest` is memory that the operation owns, borrowed here.
        match sys::retry(|| unsafe { libc::recv(fd, at, len, 0) }) {
            Ok(n) => {
                *moved += n as usize;
                if n == 0 || !fill {
                    return Ok(*moved as u64);
                }
            }
            // Report the bytes that came before the error. The next call will report the error
            // again.
            Err(e) if e != IoError::AGAIN && *moved > 0 => return Ok(*moved as u64),
            Err(e) => return Err(e),
        }
    }
}
