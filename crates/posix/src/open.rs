//! Opens regular files and block devices, and finds out what they support.
//!
//! A file is locked while it is open: exclusively for writing, shared for reading. The lock is
//! `flock`. On block devices that are opened for writing it is also `O_EXCL`, which mounts, md and
//! dm respect. What has other names is locked by them too ([`names`](crate::names)): the file that
//! a loop device shows, say. If somebody else holds a lock, the error has the kind
//! [`io::ErrorKind::ResourceBusy`], and nothing was changed. A killed process holds its locks until
//! its last I/O has ended. This protects readers from writes that are still under way. Opening
//! therefore retries to get the lock for up to a second.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use base::{Duration, IoError};
use rt::DeviceKind;

use crate::kind::disk_kind;
use crate::look::is_write_protected;
use crate::names::{NameLocks, lock_names, try_flock};
use crate::start::Start;
use crate::sys;

const LOCK_TRIES: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// A file that is to be made, of so many bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewFile {
    /// The file takes space as it is written.
    Sparse(u64),
    /// The file has its space at once, and no write to it finds its file system full. A file system
    /// that copies what is overwritten promises that for the first write alone; where the file
    /// system cannot reserve space, the file is sparse.
    Reserved(u64),
}

/// The way to open a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenFile {
    /// Open for writing too.
    pub write: bool,
    /// With `write`: if the file does not exist or is empty, make this of it. Files with content
    /// and block devices are opened as they are.
    pub create: Option<NewFile>,
    /// Bypass the page cache (`O_DIRECT`) if possible. Then offsets, lengths and memory must be
    /// multiples of 4096.
    pub direct: bool,
}

/// The properties of an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileInfo {
    /// The size in bytes.
    pub size_bytes: u64,
    /// I/O bypasses the page cache.
    pub direct: bool,
    /// The file is a block device and not a regular file.
    pub block_device: bool,
    /// The kind of the device, or of the disk below the file.
    pub kind: DeviceKind,
    /// The file or device supports discards.
    pub discard: bool,
    /// The block device takes no writes: of a switch on it, or since somebody has set it so.
    pub write_protected: bool,
}

/// An open file, locked until it is closed.
pub struct LockedFile {
    pub(crate) fd: OwnedFd,
    pub(crate) start: Start,
    /// The locks of its other names.
    pub(crate) names: NameLocks,
    /// The properties of the file.
    pub info: FileInfo,
}

impl LockedFile {
    /// The same open file, for reads and writes that block. Where `info.direct` is set, offsets,
    /// lengths and memory must be multiples of 4096. The file is locked until this is closed too.
    pub fn file(&self) -> io::Result<File> {
        Ok(self.fd.try_clone()?.into())
    }

    /// The file below a loop device that could not be locked, and why.
    pub fn unlocked(&self) -> Option<&str> {
        self.names.unlocked.as_deref()
    }

    /// Takes the space of the first `len` bytes of a regular file, which keeps its length, if the
    /// file system can. Blocks, for seconds if need be.
    pub fn reserve(&self, len: u64) -> io::Result<()> {
        if self.info.block_device { Ok(()) } else { allocate(&self.fd, len) }
    }

    /// Makes a regular file anew, of `len` bytes and with their space: nothing of it stays. Blocks
    /// likewise.
    pub fn renew(&mut self, len: u64) -> io::Result<()> {
        let file = self.file()?;
        file.set_len(0)?;
        make(&file, NewFile::Reserved(len))?;
        self.info.size_bytes = len;
        Ok(())
    }
}

/// Opens and locks a file. Blocks for up to a second if somebody else holds the lock.
pub fn open(path: &Path, how: &OpenFile) -> io::Result<LockedFile> {
    for _ in 1..LOCK_TRIES {
        match open_now(path, how) {
            Err(e) if e.kind() == ErrorKind::ResourceBusy => {
                #[allow(
                    clippy::disallowed_methods,
                    reason = "set-up, outside of the engine's time"
                )]
                std::thread::sleep(LOCK_PAUSE);
            }
            other => return other,
        }
    }
    open_now(path, how)
}

fn open_now(path: &Path, how: &OpenFile) -> io::Result<LockedFile> {
    let file_type = match path.metadata() {
        Ok(m) => Some(m.file_type()),
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Err(e) => return Err(e),
    };
    // Do not open a pipe: that would wait for its other end.
    if file_type.is_some_and(|k| !k.is_file() && !k.is_block_device()) {
        return Err(io::Error::new(
            ErrorKind::InvalidInput,
            "neither a regular file nor a block device",
        ));
    }
    let block_device = file_type.is_some_and(|k| k.is_block_device());
    let flags = if block_device && how.write { libc::O_EXCL } else { 0 };
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(how.write)
        .create(how.write && how.create.is_some() && !block_device)
        .mode(0o600);
    let opened = if how.direct {
        options.custom_flags(flags | libc::O_DIRECT).open(path)
    } else {
        Err(invalid())
    };
    let (mut file, mut direct) = match opened {
        Ok(file) => (file, true),
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            (options.custom_flags(flags).open(path)?, false)
        }
        Err(e) => return Err(e),
    };
    if !try_flock(&file, how.write)? {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    let names = lock_names(&file, how.write)?;
    // For a device node this would be the file system that holds the node, not the device.
    let start = if block_device { Start::Queue } else { Start::of(sys::file_system(&file)?) };
    let in_memory = start == Start::Here;
    if direct && (in_memory || !sys::direct_io_by_blocks(&file)) {
        sys::clear_direct(&file)?;
        direct = false;
    }
    if !direct && !in_memory {
        // After a failed flush in an earlier run, the page cache may hold data that the device
        // lacks, and call it clean.
        sys::drop_cached(&file)?;
    }
    let mut size_bytes = file.seek(SeekFrom::End(0))?;
    if let (true, false, 0, Some(new)) = (how.write, block_device, size_bytes, how.create) {
        let (NewFile::Sparse(len) | NewFile::Reserved(len)) = new;
        if let Err(e) = make(&file, new) {
            // Nothing is left of what was made here.
            if file_type.is_none() {
                let _ = std::fs::remove_file(path);
            }
            return Err(e);
        }
        size_bytes = len;
    }
    let meta = file.metadata()?;
    let disk = if block_device { meta.rdev() } else { meta.dev() };
    let discard = if block_device {
        queue_limit(disk, "write_zeroes_max_bytes").is_some_and(|max| max > 0)
    } else {
        how.write && punches_holes(&file, size_bytes)
    };
    let kind = if in_memory { DeviceKind::Memory } else { disk_kind(Path::new("/sys"), disk) };
    let write_protected = block_device && is_write_protected(&file)?;
    let info = FileInfo { size_bytes, direct, block_device, kind, discard, write_protected };
    Ok(LockedFile { fd: file.into(), start, names, info })
}

/// Gives an empty file its length. Blocks, for seconds if need be.
fn make(file: &File, new: NewFile) -> io::Result<()> {
    let (NewFile::Sparse(len) | NewFile::Reserved(len)) = new;
    file.set_len(len)?;
    if let NewFile::Sparse(_) = new {
        return Ok(());
    }
    allocate(file, len).or_else(|e| file.set_len(0).and(Err(e)))
}

fn allocate(file: &impl AsRawFd, len: u64) -> io::Result<()> {
    match sys::allocate(file.as_raw_fd(), len) {
        Ok(_) | Err(IoError::UNSUPPORTED) => Ok(()),
        Err(e) => Err(io::Error::from_raw_os_error(e.0)),
    }
}

fn invalid() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}

/// A limit of the request queue of the disk with this device number. For a partition it is the
/// limit of its disk.
fn queue_limit(device: u64, name: &str) -> Option<u64> {
    let dir = format!("/sys/dev/block/{}:{}", libc::major(device), libc::minor(device));
    [format!("{dir}/queue/{name}"), format!("{dir}/../queue/{name}")]
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok())
        .and_then(|text| text.trim().parse().ok())
}

/// Tries to punch a hole behind the end of the file, where there is nothing to lose.
fn punches_holes(file: &File, size_bytes: u64) -> bool {
    sys::punch_hole(file.as_raw_fd(), size_bytes.next_multiple_of(4096), 4096).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: OpenFile = OpenFile { write: true, create: None, direct: true };
    const READ: OpenFile = OpenFile { write: false, create: None, direct: false };

    #[test]
    fn a_new_file_gets_its_length_and_an_old_one_keeps_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        assert_eq!(open(&path, &WRITE).err().map(|e| e.kind()), Some(ErrorKind::NotFound));
        let create = |len| OpenFile { create: Some(NewFile::Sparse(len)), ..WRITE };
        assert_eq!(open(&path, &create(1 << 20)).unwrap().info.size_bytes, 1 << 20);
        let again = open(&path, &create(2 << 20)).unwrap().info;
        assert_eq!(again.size_bytes, 1 << 20);
        assert!(!again.block_device);
    }

    #[test]
    fn a_new_file_that_cannot_have_its_length_is_not_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let (new, old) = (dir.path().join("new"), dir.path().join("old"));
        std::fs::write(&old, "").unwrap();
        // More than a file may have, and more than any file system here has.
        for too_large in [NewFile::Sparse(u64::MAX), NewFile::Reserved(1 << 52)] {
            let how = OpenFile { create: Some(too_large), ..WRITE };
            for path in [&new, &old] {
                assert!(open(path, &how).is_err());
            }
            assert!(!new.exists() && old.metadata().unwrap().len() == 0);
        }
    }

    #[test]
    fn a_reserved_file_has_its_space() {
        let dir = tempfile::tempdir().unwrap();
        for (new, has_it) in [(NewFile::Sparse(1 << 20), false), (NewFile::Reserved(1 << 20), true)]
        {
            let path = dir.path().join(format!("{new:?}"));
            let opened = open(&path, &OpenFile { create: Some(new), ..WRITE }).unwrap();
            assert_eq!(opened.info.size_bytes, 1 << 20);
            assert_eq!(path.metadata().unwrap().blocks() * 512 >= 1 << 20, has_it);
        }
    }

    #[test]
    fn a_file_in_use_is_busy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        std::fs::write(&path, [0; 4096]).unwrap();
        let busy = |how| open(&path, &how).err().map(|e| e.kind()) == Some(ErrorKind::ResourceBusy);
        let writer = open(&path, &WRITE).unwrap();
        assert!(busy(WRITE) && busy(READ));
        drop(writer);
        let reader = open(&path, &READ).unwrap();
        assert!(busy(WRITE) && !busy(READ));
        drop(reader);
        assert!(!busy(WRITE));
    }

    #[test]
    fn open_waits_for_a_lock_that_is_released_soon() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        std::fs::write(&path, [0; 4096]).unwrap();
        let writer = open(&path, &WRITE).unwrap();
        let last_io = std::thread::Builder::new().spawn(move || {
            #[allow(clippy::disallowed_methods, reason = "a test")]
            std::thread::sleep(5 * LOCK_PAUSE);
            drop(writer);
        });
        assert!(open(&path, &WRITE).is_ok());
        last_io.unwrap().join().unwrap();
    }

    #[test]
    fn directories_and_character_devices_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(open(dir.path(), &READ).err().map(|e| e.kind()), Some(ErrorKind::InvalidInput));
        assert_eq!(
            open(Path::new("/dev/null"), &READ).err().map(|e| e.kind()),
            Some(ErrorKind::InvalidInput)
        );
    }

    #[test]
    fn a_file_in_memory_is_recognised_and_not_direct() {
        if !Path::new("/dev/shm").is_dir() {
            return;
        }
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let opened = open(
            &dir.path().join("disk"),
            &OpenFile { create: Some(NewFile::Sparse(8192)), ..WRITE },
        )
        .unwrap();
        assert!(!opened.info.direct && opened.info.discard);
        assert_eq!(opened.info.kind, DeviceKind::Memory);
    }
}
