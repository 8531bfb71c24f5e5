//! Memory of the host that outlives the process: files of a directory, mapped shared.
//!
//! The directory is best on a file system in memory (`/dev/shm`): the pages are then the host's,
//! and cost no device anything. On another file system the kernel writes the pages back now and
//! then; the kernel keeps what a process has stored all the same.
//!
//! **Fault model.** A file counts for the devices of the process that made it: a copy of a device
//! has the same owner, and nothing of what was recorded. A file counts for the boot of the host
//! that made it: after a loss of power a file on a disk may have any of its pages. A file must
//! belong to this user, and no other user may write to it. Space is taken before a page is touched,
//! so a store does not find the file system full.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{HOST_MEMORY_MAX, HostMemory, HostMemoryId, HostPlace, IoError};

/// Bytes at the beginning of a file that say of which boot of the host it is.
const HEAD: usize = 4096;
const MAGIC: &str = "forebay host memory 1";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A directory with such files.
pub struct HostDir {
    path: PathBuf,
    boot: String,
    /// The devices of this process, by what is the same for all names of one.
    devices: RefCell<Vec<String>>,
    /// The files that this process has made.
    made: RefCell<Vec<PathBuf>>,
}

impl HostDir {
    /// The files of `path`, which is made if it is not there. Error: it cannot be, files cannot be
    /// made in it, or the host does not say which boot this is.
    pub fn open(path: &Path) -> io::Result<HostDir> {
        let boot = fs::read_to_string(BOOT_ID)
            .map_err(|e| io::Error::new(e.kind(), format!("{BOOT_ID}: {e}")))?;
        match fs::DirBuilder::new().mode(0o700).create(path) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        if !path.is_dir() {
            return Err(io::Error::from(ErrorKind::NotADirectory));
        }
        let boot = boot.trim().to_owned();
        let (devices, made) = (RefCell::default(), RefCell::default());
        Ok(HostDir { path: path.to_owned(), boot, devices, made })
    }

    /// This process uses a device: `identity` is the same for all names of that, and of no copy of
    /// it. To be called for all that are in use before anything is looked for.
    pub fn add_device(&self, identity: &str) {
        if self.devices.borrow().iter().any(|device| device == identity) {
            return;
        }
        self.devices.borrow_mut().push(identity.to_owned());
        for path in &*self.made.borrow() {
            let opened = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(path);
            if let Err(e) = opened.and_then(|file| file.write_all_at(&self.head(), 0)) {
                tracing::warn!("{}: {e}", path.display());
            }
        }
    }

    /// A file that a process with one of these devices has left in this boot, or has in use.
    pub fn any_left(&self) -> Option<PathBuf> {
        let paths = fs::read_dir(&self.path).into_iter().flatten().flatten().map(|e| e.path());
        let mut files = paths.filter(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("forebay-"))
        });
        files.find(|path| read_head(path).is_ok_and(|head| self.counts(&head)))
    }

    fn prefix(owner: [u8; 16]) -> String {
        let hex: String = owner.iter().map(|b| format!("{b:02x}")).collect();
        format!("forebay-{hex}-")
    }

    fn name_of(owner: [u8; 16], id: HostMemoryId) -> String {
        format!("{}{}-{:016x}", HostDir::prefix(owner), id.incarnation, id.open.0)
    }

    fn file_of(&self, owner: [u8; 16], id: HostMemoryId) -> PathBuf {
        self.path.join(HostDir::name_of(owner, id))
    }

    /// The first bytes of a file: lines that say of which boot it is, and of which devices.
    fn head(&self) -> Vec<u8> {
        let mut head = format!("{MAGIC}\n{}\n", self.boot).into_bytes();
        for device in &*self.devices.borrow() {
            if head.len() + device.len() < HEAD {
                head.extend_from_slice(device.as_bytes());
                head.push(b'\n');
            }
        }
        head.resize(HEAD, 0);
        head
    }

    /// Whether a file that begins like this is of this boot, and of one of these devices.
    fn counts(&self, head: &[u8]) -> bool {
        let text = String::from_utf8_lossy(head);
        let mut lines = text.trim_end_matches('\0').lines();
        let of_boot = lines.next() == Some(MAGIC) && lines.next() == Some(&*self.boot);
        let devices = self.devices.borrow();
        of_boot && (devices.is_empty() || lines.any(|line| devices.iter().any(|d| d == line)))
    }

    /// True of a file that this process has made, or an earlier one with its devices. What another
    /// boot has left counts for no process.
    fn is_own(&self, path: &Path) -> bool {
        let boot = format!("{MAGIC}\n{}\n", self.boot);
        let of_others = |head: [u8; HEAD]| head.starts_with(boot.as_bytes()) && !self.counts(&head);
        !read_head(path).is_ok_and(of_others)
    }
}

fn read_head(path: &Path) -> io::Result<[u8; HEAD]> {
    let mut head = [0; HEAD];
    open_to_read(path)?.read_exact_at(&mut head, 0)?;
    Ok(head)
}

/// Opens a file, and follows no symbolic link and waits for no pipe.
fn open_to_read(path: &Path) -> io::Result<File> {
    let mut how = OpenOptions::new();
    how.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

/// A file that is this user's alone.
fn check(file: &File) -> io::Result<()> {
    let meta = file.metadata()?;
    // SAFETY: the call takes no argument, and cannot fail.
    let user = unsafe { libc::geteuid() };
    let mine = meta.is_file() && meta.uid() == user && meta.nlink() == 1;
    if mine && meta.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::new(
        ErrorKind::PermissionDenied,
        "the file is another user's, or may be changed by one",
    ))
}

impl HostPlace for HostDir {
    fn find(&self, owner: [u8; 16], id: HostMemoryId) -> Result<Option<Vec<u8>>, IoError> {
        let path = self.file_of(owner, id);
        let file = match open_to_read(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        check(&file)?;
        let mut bytes = Vec::new();
        file.take((HEAD + HOST_MEMORY_MAX) as u64).read_to_end(&mut bytes)?;
        if bytes.len() < HEAD || !self.counts(&bytes[..HEAD]) {
            return Ok(None);
        }
        bytes.drain(..HEAD);
        Ok(Some(bytes))
    }

    fn create(&self, owner: [u8; 16], id: HostMemoryId) -> Result<Box<dyn HostMemory>, IoError> {
        let path = self.file_of(owner, id);
        if self.made.borrow().contains(&path) {
            match fs::remove_file(&path) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e.into()),
                _ => self.made.borrow_mut().retain(|made| *made != path),
            }
        }
        let mut how = OpenOptions::new();
        how.read(true).write(true).create_new(true).mode(0o600);
        let mut file = how.custom_flags(libc::O_NOFOLLOW).open(&path)?;
        check(&file)?;
        file.write_all(&self.head())?;
        self.made.borrow_mut().push(path);
        Ok(Box::new(MappedFile::new(file)?))
    }

    fn remove_others(&self, owner: [u8; 16], keep: Option<HostMemoryId>) {
        let prefix = HostDir::prefix(owner);
        let kept = keep.map(|id| HostDir::name_of(owner, id));
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(&prefix)
                && kept.as_deref() != Some(&*name)
                && self.is_own(&entry.path())
                && let Err(e) = fs::remove_file(entry.path())
                && e.kind() != ErrorKind::NotFound
            {
                tracing::warn!("{}: {e}", entry.path().display());
            }
        }
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }
}

/// A mapped file.
struct MappedFile {
    file: File,
    /// The mapping, of [`HEAD`] + [`HOST_MEMORY_MAX`] bytes.
    at: NonNull<u8>,
    backed: usize,
}

impl MappedFile {
    const BYTES: usize = HEAD + HOST_MEMORY_MAX;

    fn new(file: File) -> io::Result<MappedFile> {
        // SAFETY: a new mapping of a file that this struct keeps, where the kernel chooses. Bytes
        // behind the end of the file are mapped too, and not touched before `back` has extended it.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                MappedFile::BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(at.cast::<u8>()).filter(|_| at != libc::MAP_FAILED) {
            Some(at) => Ok(MappedFile { file, at, backed: 0 }),
            None => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, which nothing else uses.
        unsafe { libc::munmap(self.at.as_ptr().cast(), MappedFile::BYTES) };
    }
}

impl HostMemory for MappedFile {
    fn backed(&self) -> usize {
        self.backed
    }

    fn back(&mut self, bytes: usize) -> Result<(), IoError> {
        if bytes > HOST_MEMORY_MAX {
            return Err(IoError::NO_SPACE);
        }
        // SAFETY: a call on a descriptor that is open, with plain numbers.
        let code = unsafe {
            libc::posix_fallocate(self.file.as_raw_fd(), 0, (HEAD + bytes) as libc::off_t)
        };
        if code != 0 {
            return Err(IoError(code));
        }
        self.backed = self.backed.max(bytes);
        Ok(())
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(bytes.len() <= self.backed && at <= self.backed - bytes.len(), "not backed");
        // SAFETY: the range was just seen to be within what is backed, so within the mapping and
        // the file; `bytes` is no part of the mapping, which nothing else refers to.
        unsafe {
            let to = self.at.as_ptr().add(HEAD + at);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    fn publish(&mut self, at: usize, value: u64) {
        assert!(at % 8 == 0 && self.backed >= 8 && at <= self.backed - 8, "not backed");
        // SAFETY: within the mapping, as above, and aligned, as the mapping is aligned to a page.
        let word = unsafe { AtomicU64::from_ptr(self.at.as_ptr().add(HEAD + at).cast()) };
        word.store(value.to_le(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use base::OpenId;

    use super::*;

    const OWNER: [u8; 16] = [3; 16];

    fn id(incarnation: u32) -> HostMemoryId {
        HostMemoryId { incarnation, open: OpenId(5) }
    }

    #[test]
    fn what_was_stored_is_found_by_its_owner_and_number_only() {
        let dir = tempfile::tempdir().unwrap();
        let place = HostDir::open(&dir.path().join("logs")).unwrap();
        let mut memory = place.create(OWNER, id(7)).unwrap();
        memory.back(8192).unwrap();
        memory.write(100, b"answered");
        memory.publish(64, 9);
        // The process dies: nothing is dropped.
        std::mem::forget(memory);
        let found = place.find(OWNER, id(7)).unwrap().unwrap();
        assert_eq!((found.len(), &found[100..108], found[64]), (8192, &b"answered"[..], 9));
        assert!(place.find(OWNER, id(8)).unwrap().is_none());
        assert!(place.find([4; 16], id(7)).unwrap().is_none());
        place.create(OWNER, id(8)).unwrap();
        place.create([4; 16], id(7)).unwrap();
        place.remove_others(OWNER, Some(id(8)));
        assert!(place.find(OWNER, id(7)).unwrap().is_none());
        assert!(
            place.find(OWNER, id(8)).unwrap().is_some()
                && place.find([4; 16], id(7)).unwrap().is_some()
        );
    }

    #[test]
    fn a_file_of_another_boot_or_user_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let mut place = HostDir::open(dir.path()).unwrap();
        place.create(OWNER, id(1)).unwrap();
        let path = place.file_of(OWNER, id(1));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(place.find(OWNER, id(1)).is_err());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        symlink(&path, place.file_of(OWNER, id(2))).unwrap();
        assert!(place.find(OWNER, id(2)).is_err());
        place.boot = "another boot".into();
        assert!(place.find(OWNER, id(1)).unwrap().is_none());
        place.remove_others(OWNER, None);
        assert!(!path.exists(), "what another boot has left is of no use");
    }

    #[test]
    fn a_copy_of_the_devices_neither_finds_nor_removes_it() {
        let dir = tempfile::tempdir().unwrap();
        let of = |devices: &[&str]| {
            let place = HostDir::open(dir.path()).unwrap();
            devices.iter().for_each(|device| place.add_device(device));
            place
        };
        let first = of(&["file 1 10", "file 1 11"]);
        first.create(OWNER, id(1)).unwrap();
        let copy = of(&["file 1 12", "file 1 1"]);
        assert!(copy.find(OWNER, id(1)).unwrap().is_none());
        // Each was opened once more: both are in the same incarnation.
        let other = HostMemoryId { incarnation: 1, open: OpenId(6) };
        copy.create(OWNER, other).unwrap();
        assert!(copy.create(OWNER, id(1)).is_err(), "it is the first one's");
        copy.remove_others(OWNER, None);
        assert!(of(&["file 1 11"]).find(OWNER, id(1)).unwrap().is_some(), "one half of a mirror");
        assert_eq!(copy.any_left(), None, "its own was removed");
        assert!(of(&["file 1 10"]).any_left().is_some());
        first.add_device("file 1 13");
        assert!(of(&["file 1 13"]).find(OWNER, id(1)).unwrap().is_some(), "its successor");
        of(&["file 1 10"]).remove_others(OWNER, None);
        assert!(first.find(OWNER, id(1)).unwrap().is_none());
    }

    #[test]
    fn there_is_an_end_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut memory = HostDir::open(dir.path()).unwrap().create(OWNER, id(1)).unwrap();
        assert_eq!(memory.back(HOST_MEMORY_MAX + 1), Err(IoError::NO_SPACE));
        assert!(HostDir::open(&dir.path().join("a/b")).is_err());
    }
}
