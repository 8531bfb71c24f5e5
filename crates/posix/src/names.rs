//! One disk by several names: a loop device and the file that it shows, a loop device over another
//! device, a disk that is part of a mapping or is mounted.
//!
//! The lock of a file and the exclusive open of a device do not meet by themselves. They meet here,
//! in the file or device at the bottom:
//!
//! | opened | holds at the bottom | so it cannot be opened together with |
//! | --- | --- | --- |
//! | the bottom itself, to write | `flock`, exclusively | anything over it |
//! | the bottom itself, to read | `flock`, shared, and a read lock of all bytes | what writes by way of a loop device |
//! | a loop device or a partition of one, to write | `flock`, shared, and a write lock of the bytes that it shows | the bottom to write, readers, other loop devices that show some of these bytes |
//! | the same, to read | `flock`, shared, and a read lock of these bytes | the bottom to write, and other writers of these bytes |
//!
//! The locks of bytes are those of an open file (`F_OFD_SETLK`). Programs that are not Forebay do
//! not take them. So what is opened to be written must not have a loop device over it at that
//! moment, whatever uses it.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions, read_dir, read_to_string};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Loop devices over loop devices are followed so far.
const MAX_LEVELS: usize = 8;
/// The sectors in which sysfs counts.
const SECTOR: u64 = 512;
/// `LOOP_GET_STATUS64` of the kernel's `linux/loop.h`.
const LOOP_GET_STATUS64: u32 = 0x4c05;

/// The bytes of a file or of another device that a loop device shows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoopBacking {
    /// The file or device.
    pub of: PathBuf,
    /// The first byte that is shown.
    pub from: u64,
    /// The number of bytes.
    pub len: u64,
}

/// The number of a block device; `None`: it is something else.
fn number(meta: &Metadata) -> Option<u64> {
    meta.file_type().is_block_device().then(|| meta.rdev())
}

/// The directory of a block device in sysfs.
fn entry(device: u64) -> Option<PathBuf> {
    let (major, minor) = (libc::major(device), libc::minor(device));
    PathBuf::from(format!("/sys/dev/block/{major}:{minor}")).canonicalize().ok()
}

fn count(file: PathBuf) -> Option<u64> {
    read_to_string(file).ok()?.trim().parse().ok()
}

/// The path that a loop device says it is over; `None`: it is over nothing, or no loop device.
fn backing_path(dir: &Path) -> Option<PathBuf> {
    let path = std::fs::read(dir.join("loop/backing_file")).ok()?;
    let path = path.strip_suffix(b"\n").unwrap_or(&path);
    Some(OsStr::from_bytes(path).into())
}

/// The file or device that the block device `meta` shows, if it is a loop device or a partition of
/// one.
fn shown(meta: &Metadata) -> Option<LoopBacking> {
    let dir = entry(number(meta)?)?;
    let (disk, start) = match dir.join("partition").exists() {
        true => (dir.parent()?, count(dir.join("start"))? * SECTOR),
        false => (dir.as_path(), 0),
    };
    let of = backing_path(disk)?;
    let from = count(disk.join("loop/offset"))? + start;
    Some(LoopBacking { of, from, len: count(dir.join("size"))? * SECTOR })
}

/// The file or device that the block device at `path` shows, if it is a loop device or a partition
/// of one. May block.
pub fn shown_by(path: &Path) -> Option<LoopBacking> {
    shown(&path.metadata().ok()?)
}

/// True if both are the same file, or the same block device.
pub fn is_same(a: &Metadata, b: &Metadata) -> bool {
    match (number(a), number(b)) {
        (Some(a), Some(b)) => a == b,
        (None, None) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

/// The device number and the inode of what a loop device is over, as the kernel has them.
fn backing_inode(device: &File) -> Option<(u64, u64)> {
    // A `loop_info64`, which begins with these two numbers.
    let mut info = [0u64; 29];
    // SAFETY: the kernel writes a `loop_info64` of 232 bytes to `info`, which is live and as long,
    // and the descriptor is open.
    let r = unsafe {
        libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64 as libc::Ioctl, info.as_mut_ptr())
    };
    (r == 0).then_some((info[0], info[1]))
}

/// The loop devices that show something of the file or block device `meta`.
fn loops_over(meta: &Metadata) -> Vec<PathBuf> {
    let is_over = |disk: &Path, node: &Path| {
        let Some(path) = backing_path(disk) else { return false };
        match path.metadata() {
            Ok(below) => is_same(&below, meta),
            // The name is gone, or is of another mount namespace.
            Err(_) => File::open(node)
                .ok()
                .and_then(|device| backing_inode(&device))
                .is_some_and(|found| found == (meta.dev(), meta.ino())),
        }
    };
    let disks = read_dir("/sys/block").into_iter().flatten().flatten();
    disks
        .filter(|disk| disk.file_name().as_encoded_bytes().starts_with(b"loop"))
        .map(|disk| (disk.path(), Path::new("/dev").join(disk.file_name())))
        .filter(|(disk, node)| is_over(disk, node))
        .map(|(_, node)| node)
        .collect()
}

/// Locks at the bottom, held until they are dropped.
#[derive(Default)]
pub(crate) struct NameLocks {
    held: Vec<File>,
    /// The file that could not be locked, and why.
    pub unlocked: Option<String>,
}

/// Sees to the other names of the open and locked `file`, which is to be written to or not. The
/// error is of the kind [`ErrorKind::ResourceBusy`] if it is in use by one of them.
pub(crate) fn lock_names(file: &File, write: bool) -> io::Result<NameLocks> {
    let meta = file.metadata()?;
    if write && let Some(over) = loops_over(&meta).first() {
        let over = over.display();
        return Err(busy(format!(
            "the loop device {over} is over it: detach that (losetup --detach {over}), or name it \
             in its stead"
        )));
    }
    let mut names = NameLocks::default();
    let Some(shown) = shown(&meta) else {
        if !write {
            lock_bytes(file, false, 0, 0)?;
        }
        return Ok(names);
    };
    names.unlocked = lock_below(file, shown, write, &mut names.held)?;
    Ok(names)
}

/// Locks all that is below an open loop device. Returns what cannot be locked, and why.
fn lock_below(
    device: &File,
    mut shown: LoopBacking,
    write: bool,
    held: &mut Vec<File>,
) -> io::Result<Option<String>> {
    for level in 0..MAX_LEVELS {
        let LoopBacking { of, from, len } = shown;
        let path = of.display();
        let opened = OpenOptions::new().read(true).write(write).open(&of);
        let file = match opened {
            Ok(file) => file,
            Err(e) => return Ok(Some(format!("{path}: {e}"))),
        };
        let meta = file.metadata()?;
        let is_it = level > 0
            || backing_inode(device).is_none_or(|found| found == (meta.dev(), meta.ino()));
        if !is_it {
            return Ok(Some(format!("{path} is another file here than for the kernel")));
        }
        if !try_flock(&file, false)? || !try_lock_bytes(&file, write, from, len)? {
            return Err(busy(format!("what it shows of {path} is in use by another name")));
        }
        held.push(file);
        match self::shown(&meta) {
            Some(below) => shown = LoopBacking { from: below.from + from, len, ..below },
            None => return Ok(None),
        }
    }
    Ok(Some("too many loop devices are over each other".to_owned()))
}

fn busy(text: String) -> io::Error {
    io::Error::new(ErrorKind::ResourceBusy, text)
}

/// Takes the `flock` of a file, if no other opener has it.
pub(crate) fn try_flock(file: &File, exclusive: bool) -> io::Result<bool> {
    let how = if exclusive { libc::LOCK_EX } else { libc::LOCK_SH };
    // SAFETY: all arguments are plain numbers, and the descriptor is open.
    was_taken(unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) })
}

/// Takes the lock of bytes of a file for as long as it is open, if no other opener has one that is
/// against it. A length of zero: all that follow.
fn try_lock_bytes(file: &File, write: bool, from: u64, len: u64) -> io::Result<bool> {
    let signed = |n| crate::sys::signed(n).map_err(|e| io::Error::from_raw_os_error(e.0));
    let lock = libc::flock {
        l_type: if write { libc::F_WRLCK } else { libc::F_RDLCK } as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: signed(from)?,
        l_len: signed(len)?,
        l_pid: 0,
    };
    // SAFETY: the kernel reads a `flock` from `lock`, which is live, and the descriptor is open.
    was_taken(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) })
}

fn lock_bytes(file: &File, write: bool, from: u64, len: u64) -> io::Result<()> {
    match try_lock_bytes(file, write, from, len)? {
        true => Ok(()),
        false => Err(busy("a loop device that is over it is in use".to_owned())),
    }
}

fn was_taken(result: libc::c_int) -> io::Result<bool> {
    if result == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        e if e.kind() == ErrorKind::WouldBlock || e.raw_os_error() == Some(libc::EACCES) => {
            Ok(false)
        }
        e => Err(e),
    }
}

/// The part of the kernel that has the block device at `path`, as far as sysfs and the table of
/// mounts tell: in words for people. May block.
pub fn holder(path: &Path) -> Option<String> {
    let dir = entry(number(&path.metadata().ok()?)?)?;
    let disk = if dir.join("partition").exists() { dir.parent() } else { None };
    let parts = read_dir(&dir).into_iter().flatten().flatten().map(|one| one.path());
    let parts = parts.filter(|part| part.join("partition").exists());
    [dir.clone()].into_iter().chain(disk.map(Path::to_owned)).chain(parts).find_map(|one| {
        let what = holder_of(&one)?;
        let name = |dir: &Path| Path::new("/dev").join(dir.file_name().unwrap_or_default());
        Some(match one == dir {
            true => what,
            false => format!("{}: {what}", name(&one).display()),
        })
    })
}

fn holder_of(dir: &Path) -> Option<String> {
    if let Some(Ok(above)) = read_dir(dir.join("holders")).ok().and_then(|mut all| all.next()) {
        let node = Path::new("/dev").join(above.file_name());
        let mapped = read_to_string(above.path().join("dm/name")).ok();
        let mapped = mapped.map_or_else(String::new, |name| format!(" ({})", name.trim()));
        return Some(format!("it is a part of {}{mapped}", node.display()));
    }
    let device = read_to_string(dir.join("dev")).ok()?;
    let mounts = read_to_string("/proc/self/mountinfo").ok()?;
    let mut fields = mounts.lines().map(|line| line.split(' '));
    let at = fields.find_map(|mut f| (f.nth(2)? == device.trim()).then(|| f.nth(1)).flatten())?;
    Some(format!("it is mounted at {at}"))
}

#[cfg(test)]
#[path = "names_tests.rs"]
mod tests;
