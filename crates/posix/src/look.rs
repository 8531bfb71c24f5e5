//! Properties of a file that can be told without using it: nothing here locks, writes or waits.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `FS_NOCOW_FL` of the kernel's `linux/fs.h`.
const NO_COW: libc::c_long = 0x0080_0000;
/// `BLKROGET` of the kernel's `linux/fs.h`.
const BLKROGET: libc::Ioctl = 0x125e;

/// Whether this process may read and write what is at `path`; the error says why not. A device is
/// not opened for it.
pub fn may_write(path: &Path) -> io::Result<()> {
    may(path, libc::R_OK | libc::W_OK)
}

/// Whether this process may make files in the directory `path`.
pub fn may_make(path: &Path) -> io::Result<()> {
    may(path, libc::W_OK | libc::X_OK)
}

fn may(path: &Path, how: i32) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path ends in a zero byte and lives until the call returns.
    let r = unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), how, libc::AT_EACCESS) };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether a block device takes no writes of any process: by a switch on it, or `blockdev
/// --setro`.
pub fn is_write_protected(device: &File) -> io::Result<bool> {
    let mut read_only: libc::c_int = 0;
    // SAFETY: the kernel writes an `int` to `read_only`, which is live, and the descriptor is open.
    let r = unsafe { libc::ioctl(device.as_raw_fd(), BLKROGET, &raw mut read_only) };
    if r == 0 { Ok(read_only != 0) } else { Err(io::Error::last_os_error()) }
}

/// Whether a file is written in place on a file system that copies on write otherwise (`chattr
/// +C`). Fails where the file system has no such attributes.
pub fn is_no_cow(file: &File) -> io::Result<bool> {
    let mut flags: libc::c_long = 0;
    // SAFETY: the kernel writes at most a `long` to `flags`, which is live, and the descriptor is
    // open.
    let r = unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_GETFLAGS, &raw mut flags) };
    if r == 0 { Ok(flags & NO_COW != 0) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_may_not_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        assert_eq!(may_write(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::write(&path, "").unwrap();
        may_write(&path).unwrap();
        may_make(dir.path()).unwrap();
        // Not every file system has attributes; a plain file never has this one.
        assert!(!is_no_cow(&File::open(&path).unwrap()).unwrap_or(false));
    }
}
