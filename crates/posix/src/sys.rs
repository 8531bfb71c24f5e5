//! System calls on descriptors, with the results that the seam wants. The io_uring backend uses
//! them for operations that it executes at once.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use base::{BufList, Duration, Instant, IoError, SliceList};

/// The largest number of pieces in a system call. Of a longer list, a transfer uses the first ones.
pub const MAX_PIECES: usize = 1024;

/// EBADF: there is no such file or socket, or it was closed.
pub const NO_SUCH: IoError = IoError(libc::EBADF);

/// The time since the host was booted, also that in which it was suspended: a process that was
/// suspended with its host must know that it stood still.
pub fn now() -> Instant {
    let mut t = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: `t` is valid for writing. CLOCK_BOOTTIME always exists, so the call initialises `t`.
    let t = unsafe {
        libc::clock_gettime(libc::CLOCK_BOOTTIME, t.as_mut_ptr());
        t.assume_init()
    };
    Instant(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

/// A write beyond the limit of the process for the size of a file fails from now on (EFBIG). By
/// default the signal SIGXFSZ ends the process.
pub fn survive_the_limit_of_file_sizes() {
    // SAFETY: no handler is installed, and the arguments are plain numbers. The call fails only for
    // a signal that cannot be ignored, which this is not.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// The processor time that the calling thread has used.
pub fn processor_time() -> Duration {
    let mut t = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: `t` is valid for writing. The clock exists for every thread, so the call initialises
    // `t`.
    let t = unsafe {
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, t.as_mut_ptr());
        t.assume_init()
    };
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// The pieces for a read into `bufs`. They are valid while the buffers are neither used nor
/// dropped.
pub fn pieces_of_bufs(bufs: &mut BufList, pieces: &mut Vec<libc::iovec>) {
    pieces.clear();
    pieces.extend(bufs.iter_mut().take(MAX_PIECES).map(|b| libc::iovec {
        iov_base: b.as_mut_ptr().cast::<libc::c_void>(),
        iov_len: b.len(),
    }));
}

/// The pieces for a write of `data`, which are only read. They are valid while the slices are not
/// dropped.
pub fn pieces_of_data(data: &SliceList, pieces: &mut Vec<libc::iovec>) {
    pieces.clear();
    pieces.extend(data.iter().take(MAX_PIECES).map(|s| libc::iovec {
        iov_base: s.as_ptr().cast_mut().cast::<libc::c_void>(),
        iov_len: s.len(),
    }));
}

/// Number of bytes in all pieces.
pub fn total(pieces: &[libc::iovec]) -> usize {
    pieces.iter().map(|p| p.iov_len).sum()
}

/// Converts an offset or length to the kernel's signed type. Fails with EINVAL if it is too large.
pub fn signed(n: u64) -> Result<i64, IoError> {
    i64::try_from(n).map_err(|_| IoError::INVALID)
}

/// Repeats a call while signals interrupt it. `call` returns a count, or -1 and sets errno.
pub fn retry(mut call: impl FnMut() -> isize) -> Result<u64, IoError> {
    loop {
        let n = call();
        if n >= 0 {
            return Ok(n as u64);
        }
        let e = io::Error::last_os_error();
        if e.kind() != io::ErrorKind::Interrupted {
            return Err(e.into());
        }
    }
}

/// Reads at `offset`. Returns the number of bytes read.
///
/// # Safety
/// All of `pieces` must be valid for writing.
pub unsafe fn read(
    fd: RawFd,
    pieces: &[libc::iovec],
    offset: u64,
    flags: i32,
) -> Result<u64, IoError> {
    let offset = signed(offset)?;
    // SAFETY: the caller promised that the pieces are valid. The kernel checks everything else.
    retry(|| unsafe { libc::preadv2(fd, pieces.as_ptr(), pieces.len() as i32, offset, flags) })
}

/// Writes at `offset`, durably if `fua`. Returns the number of bytes written.
///
/// # Safety
/// All of `pieces` must be valid for reading.
pub unsafe fn write(
    fd: RawFd,
    pieces: &[libc::iovec],
    offset: u64,
    fua: bool,
) -> Result<u64, IoError> {
    let offset = signed(offset)?;
    let flags = if fua { libc::RWF_DSYNC } else { 0 };
    // SAFETY: as in `read`.
    retry(|| unsafe { libc::pwritev2(fd, pieces.as_ptr(), pieces.len() as i32, offset, flags) })
}

/// Makes completed writes durable.
pub fn flush(fd: RawFd) -> Result<u64, IoError> {
    // SAFETY: the argument is a plain number.
    retry(|| unsafe { libc::fdatasync(fd) } as isize)
}

/// Drops the clean pages of a file from the page cache, so that they are read from the device
/// again. Dirty pages stay for the next flush.
pub fn drop_cached(file: &File) -> io::Result<()> {
    // SAFETY: the arguments are plain numbers, and the descriptor is open.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        e => Err(io::Error::from_raw_os_error(e)),
    }
}

/// The mode of `fallocate` that discards content.
pub const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

/// Allocates the first `len` bytes of a file, which read as before; it keeps its length.
pub fn allocate(fd: RawFd, len: u64) -> Result<u64, IoError> {
    let len = signed(len)?;
    // SAFETY: the arguments are plain numbers.
    retry(|| unsafe { libc::fallocate(fd, libc::FALLOC_FL_KEEP_SIZE, 0, len) } as isize)
        .map_err(unsupported)
}

/// Discards the content of a range.
pub fn punch_hole(fd: RawFd, offset: u64, len: u64) -> Result<u64, IoError> {
    let (offset, len) = (signed(offset)?, signed(len)?);
    // SAFETY: the arguments are plain numbers.
    retry(|| unsafe { libc::fallocate(fd, PUNCH_HOLE, offset, len) } as isize).map_err(unsupported)
}

/// Maps all errors that mean "not supported" to EOPNOTSUPP.
pub fn unsupported(e: IoError) -> IoError {
    if matches!(e.0, libc::ENOTTY | libc::ENOSYS | libc::EOPNOTSUPP) {
        IoError::UNSUPPORTED
    } else {
        e
    }
}

/// Shuts a socket down in both directions, which completes the operations that wait on it.
pub fn shutdown(fd: RawFd) {
    // SAFETY: the arguments are plain numbers. The call fails only if there is no connection to
    // shut down.
    let _ = unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
}

/// Sets a socket option that is a number.
pub fn set_option(fd: RawFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    let at = (&raw const value).cast::<libc::c_void>();
    // SAFETY: `at` points to a live number of the given size.
    let r = unsafe { libc::setsockopt(fd, level, name, at, size_of::<i32>() as u32) };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The process and the user of the peer of a unix socket, when it connected.
pub fn peer_credentials(fd: RawFd) -> io::Result<(u32, u32)> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let (at, mut len) = ((&raw mut found).cast::<libc::c_void>(), size_of_val(&found) as u32);
    // SAFETY: `at` points to a live value of the given size, and `len` is live too.
    let r = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, at, &raw mut len) };
    match r {
        // The process is 0 where it is in another namespace.
        0 => Ok((found.pid.unsigned_abs(), found.uid)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads a socket option that is a number.
#[cfg(test)]
pub(crate) fn option(fd: RawFd, level: i32, name: i32) -> io::Result<i32> {
    let (mut value, mut len) = (0i32, size_of::<i32>() as u32);
    // SAFETY: `value` is a live number of the given size, and `len` is live too.
    let r = unsafe {
        libc::getsockopt(fd, level, name, (&raw mut value).cast::<libc::c_void>(), &raw mut len)
    };
    if r == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Raises the limit of open files to the largest value that is permitted. Returns the limit.
pub fn raise_open_files() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is live and has the right type in both calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) != 0 {
            return Err(io::Error::last_os_error());
        }
        let soft = limit.rlim_cur;
        limit.rlim_cur = limit.rlim_max;
        // If the limit cannot be raised, keep the current one.
        if soft < limit.rlim_max && libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) != 0 {
            limit.rlim_cur = soft;
        }
    }
    Ok(limit.rlim_cur)
}

/// Closes the file of a descriptor but keeps the descriptor's number reserved. The number then
/// refers to a file that cannot be read or written.
pub(crate) fn close_in_place(fd: RawFd) -> io::Result<()> {
    let nothing = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open("/")?;
    // SAFETY: the arguments are plain numbers, and both descriptors are open.
    let r = unsafe { libc::dup3(nothing.as_raw_fd(), fd, libc::O_CLOEXEC) };
    if r == fd { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Number of bytes that an unprivileged user can still write to the file system that holds `path`.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut fs = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends in a zero byte. `fs` is valid for writing, and is read only if the call
    // has filled it.
    let fs = unsafe {
        if libc::statvfs(path.as_ptr(), fs.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        fs.assume_init()
    };
    Ok(fs.f_bavail.saturating_mul(fs.f_frsize))
}

/// The file system that a file is in, by its number in `linux/magic.h`.
pub(crate) fn file_system(file: &File) -> io::Result<u64> {
    let mut fs = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: `fs` is valid for writing, and is read only if the call has filled it.
    unsafe {
        if libc::fstatfs(file.as_raw_fd(), fs.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(fs.assume_init().f_type as u64)
    }
}

/// Whether direct I/O works in units of 4096 bytes. Kernels before 6.1 do not say; then the answer
/// is yes.
pub fn direct_io_by_blocks(file: &File) -> bool {
    let mut s = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path is an empty string. `s` is valid for writing, and all zeros is a valid value
    // of it.
    let s = unsafe {
        let path = c"".as_ptr();
        libc::statx(
            file.as_raw_fd(),
            path,
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            s.as_mut_ptr(),
        );
        s.assume_init()
    };
    s.stx_mask & libc::STATX_DIOALIGN == 0 || (1..=4096).contains(&s.stx_dio_offset_align)
}

/// Clears `O_DIRECT`, so that I/O uses the page cache.
pub(crate) fn clear_direct(file: &File) -> io::Result<()> {
    // SAFETY: the arguments are plain numbers.
    let r = unsafe {
        let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
        if flags < 0 {
            flags
        } else {
            libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags & !libc::O_DIRECT)
        }
    };
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sets whether calls on a descriptor block.
pub(crate) fn set_blocking(fd: RawFd, blocking: bool) -> io::Result<()> {
    // SAFETY: the arguments are plain numbers.
    let r = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        let wanted = if blocking { flags & !libc::O_NONBLOCK } else { flags | libc::O_NONBLOCK };
        if flags < 0 || flags == wanted { flags } else { libc::fcntl(fd, libc::F_SETFL, wanted) }
    };
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
