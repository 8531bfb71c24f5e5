//! The world of a shard: which backend it runs on, and how its devices are opened.
//!
//! Fault model: a device that is not there, or is but does not answer, is reported as
//! [`OpenError::Gone`], so that the pool can go on without it. One on a file system that has become
//! read-only counts as gone, too. One that somebody else uses, or that this user may not write,
//! ends the command before anything was changed: a `chown` that was forgotten must not cost a copy.

use std::fmt;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use emulate::Emulations;
use model::status::IoBackend;
use pool::DeviceFile;
use posix::names::{holder, shown_by};
use posix::{FileInfo, Handles, OpenFile, Posix, sys};
use rt::{Backend, FileId, Order, Rt};
use uring::Uring;

use crate::error::{CommandError, Result};
use crate::host::devices::DeviceChoice;

/// Entries of the submission queue; what exceeds them waits inside the backend.
const RING_ENTRIES: u32 = 512;
/// Operations in flight: devices by their depth, connections by two.
const SLOTS: usize = 16 << 10;
/// Threads of each file where there is no io_uring.
const FILE_THREADS: usize = 16;

/// The choice of the I/O backend.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IoChoice {
    /// io_uring where it is permitted, else epoll and threads
    #[default]
    Auto,
    /// io_uring, or fail
    Uring,
    /// Epoll and threads, for where io_uring is not permitted
    Posix,
}

impl IoChoice {
    /// The name of the choice.
    pub fn name(self) -> &'static str {
        match self {
            IoChoice::Auto => "auto",
            IoChoice::Uring => "uring",
            IoChoice::Posix => "posix",
        }
    }
}

/// A runtime and what it can open.
pub struct World {
    /// The runtime.
    pub rt: Rt,
    /// The files and sockets of the runtime.
    pub handles: Handles,
    /// `io_uring` or `posix`.
    pub backend: IoBackend,
    /// Devices that are slow on purpose; absent if there is to be none.
    emulations: Option<Emulations>,
}

impl World {
    /// A runtime on the backend of choice, for a pool on these devices.
    pub fn new(choice: IoChoice, devices: &[DeviceChoice]) -> Result<World> {
        sys::survive_the_limit_of_file_sizes();
        let emulates = devices.iter().any(|d| d.emulate.is_some());
        match choice {
            IoChoice::Posix => World::posix(emulates),
            IoChoice::Uring => World::uring(emulates)
                .map_err(|e| CommandError::failed("io_uring cannot be used", e)),
            IoChoice::Auto => World::uring(emulates).or_else(|e| {
                tracing::warn!(
                    "io_uring cannot be used here ({e}): using epoll and threads, \
                     which costs more CPU"
                );
                World::posix(emulates)
            }),
        }
    }

    fn uring(emulates: bool) -> io::Result<World> {
        let backend = Uring::new(RING_ENTRIES)?;
        let handles = backend.handles();
        Ok(World::over(Box::new(backend), emulates, handles, IoBackend::IoUring))
    }

    fn posix(emulates: bool) -> Result<World> {
        let backend = Posix::new(FILE_THREADS)
            .map_err(|e| CommandError::failed("setting up I/O without io_uring", e))?;
        let handles = backend.handles();
        Ok(World::over(Box::new(backend), emulates, handles, IoBackend::Posix))
    }

    fn over(
        mut io: Box<dyn Backend>,
        emulates: bool,
        handles: Handles,
        backend: IoBackend,
    ) -> World {
        // Without an emulated device nothing stands between the runtime and its backend.
        let emulations = emulates.then(Emulations::default);
        if let Some(emulations) = &emulations {
            io = emulations.over(io);
        }
        World { rt: Rt::new(io, Order::Live(entropy()), SLOTS), handles, backend, emulations }
    }

    /// Devices that are slow on purpose, if there is to be any.
    pub fn emulations(&self) -> Option<Emulations> {
        self.emulations.clone()
    }

    /// A device of the pool, now that it is open. Says so if it is not as fast as it could be.
    pub fn device(&self, choice: &DeviceChoice, file: FileId, info: &FileInfo) -> DeviceFile {
        choice.warn();
        if let Some(what) = choice.emulate {
            match &self.emulations {
                Some(emulations) => emulations.add(file, what, info.size_bytes),
                None => unreachable!("the world was made for other devices"),
            }
        }
        DeviceFile { path: choice.path.display().to_string(), file, size_bytes: info.size_bytes }
    }

    /// Opens and locks one file or block device.
    pub fn open(
        &self,
        path: &Path,
        how: &OpenFile,
    ) -> std::result::Result<(FileId, FileInfo), OpenError> {
        open(&self.handles, path, how)
    }

    /// Opens the devices of a pool, for reading alone or for writing too. Those that are gone are
    /// left out, as long as one is left.
    pub fn open_devices(&self, devices: &[DeviceChoice], write: bool) -> Result<OpenedDevices> {
        let how = OpenFile { write, create: None, direct: true };
        self.open_each(devices, |path| self.open(path, &how))
    }

    /// As [`World::open_devices`] for writing, by what may be written, but opens for reading alone.
    pub fn look_at_devices(&self, devices: &[DeviceChoice]) -> Result<OpenedDevices> {
        let how = OpenFile { write: false, create: None, direct: true };
        self.open_each(devices, |path| {
            posix::look::may_write(path).map_err(|e| OpenError::of(path, &e))?;
            let (file, info) = self.open(path, &how)?;
            if info.write_protected {
                _ = self.handles.close_file(file);
                return Err(write_protected(path));
            }
            Ok((file, info))
        })
    }

    fn open_each(
        &self,
        devices: &[DeviceChoice],
        open: impl Fn(&Path) -> std::result::Result<(FileId, FileInfo), OpenError>,
    ) -> Result<OpenedDevices> {
        let mut opened = OpenedDevices::default();
        for device in devices {
            match open(&device.path) {
                Ok((file, info)) => opened.files.push(self.device(device, file, &info)),
                Err(OpenError::Gone(why) | OpenError::ReadOnly(why)) => {
                    opened.gone.push(GoneDevice { path: device.path.clone(), why });
                }
                Err(OpenError::Refused(e)) => return Err(e),
            }
        }
        if opened.files.is_empty() {
            return Err(CommandError::Failed(format!(
                "no device can be opened: {}",
                opened.gone.iter().map(|one| one.why.as_str()).collect::<Vec<_>>().join("; ")
            )));
        }
        Ok(opened)
    }
}

/// Opens and locks one file or block device.
pub fn open(
    handles: &Handles,
    path: &Path,
    how: &OpenFile,
) -> std::result::Result<(FileId, FileInfo), OpenError> {
    let opened = open_unowned(path, how)?;
    let info = opened.info;
    Ok((handles.adopt_file(opened), info))
}

/// The same for a shard that takes it over later; in any thread.
pub fn open_unowned(
    path: &Path,
    how: &OpenFile,
) -> std::result::Result<posix::LockedFile, OpenError> {
    if how.create.is_some() && !path.exists() && is_place_of_devices(path) {
        return Err(OpenError::Refused(CommandError::Failed(format!(
            "{} is not there: a file is not made in its place, as it would be in memory, and gone \
             after a restart of the machine",
            path.display()
        ))));
    }
    let opened = posix::open::open(path, how).map_err(|e| OpenError::of(path, &e))?;
    if let Some(below) = opened.unlocked() {
        tracing::warn!(
            "{}: what the loop device shows cannot be locked ({below}): see that nothing else uses \
             that",
            path.display()
        );
    }
    let info = &opened.info;
    if how.write && info.write_protected {
        return Err(write_protected(path));
    }
    let (size_bytes, direct) = (info.size_bytes, info.direct);
    tracing::debug!(path = %path.display(), size_bytes, direct, "opened");
    Ok(opened)
}

/// The error of a device that takes no writes.
fn write_protected(path: &Path) -> OpenError {
    let path = path.display();
    OpenError::ReadOnly(format!(
        "{path} is write-protected, by a switch on it or by blockdev --setro: blockdev --setrw \
         {path} lets it take writes, where no switch is set"
    ))
}

/// Whether a file at `path` would be among the nodes of devices.
fn is_place_of_devices(path: &Path) -> bool {
    let Ok(path) = std::path::absolute(path) else { return false };
    let there = path.ancestors().skip(1).find_map(|dir| dir.canonicalize().ok());
    there.is_some_and(|dir| dir.starts_with("/dev") && !dir.starts_with("/dev/shm"))
}

/// The devices of a pool, as far as they are there.
#[derive(Default)]
pub struct OpenedDevices {
    /// The devices that are there.
    pub files: Vec<DeviceFile>,
    /// The others.
    pub gone: Vec<GoneDevice>,
}

/// A device that is not there, or cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GoneDevice {
    /// The path by which it was named.
    pub path: PathBuf,
    /// Why that is so, with the path.
    pub why: String,
}

impl OpenedDevices {
    /// The files; a warning tells of those that are gone.
    pub fn go_on(self) -> Vec<DeviceFile> {
        for one in &self.gone {
            tracing::warn!("{}: going on without this device", one.why);
        }
        self.files
    }
}

/// Why a device could not be opened.
#[derive(Debug)]
pub enum OpenError {
    /// The device is not there, or does not answer.
    Gone(String),
    /// The file system of the device takes no writes.
    ReadOnly(String),
    /// The device is there and must not be used.
    Refused(CommandError),
}

impl OpenError {
    fn of(path: &Path, e: &io::Error) -> OpenError {
        let path_text = path.display();
        if e.kind() == ErrorKind::ResourceBusy {
            // The system's own text says nothing more.
            let by = match e.get_ref() {
                Some(told) => Some(told.to_string()),
                None => holder(path),
            };
            let text = match by {
                Some(by) => format!("{path_text} is in use: {by}"),
                None => format!(
                    "{path_text} is in use by another process (is a server running? forebay status \
                     asks it)"
                ),
            };
            return OpenError::Refused(CommandError::Failed(text));
        }
        let gone = [base::IoError::IO, base::IoError::GONE, base::IoError::NO_DEVICE];
        if e.kind() == ErrorKind::NotFound || gone.iter().any(|g| e.raw_os_error() == Some(g.0)) {
            return OpenError::Gone(format!("{path_text}: {e}"));
        }
        if e.kind() == ErrorKind::ReadOnlyFilesystem {
            return OpenError::ReadOnly(format!("{path_text}: {e}"));
        }
        let refused = CommandError::failed(path_text, e);
        OpenError::Refused(match e.raw_os_error() {
            Some(libc::EACCES) => refused.or_next("the user of the server must own it (chown)"),
            Some(libc::EPERM) => refused.or_next("is it immutable? lsattr shows it (chattr -i)"),
            _ => refused,
        })
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Gone(text) | OpenError::ReadOnly(text) => f.write_str(text),
            OpenError::Refused(e) => e.fmt(f),
        }
    }
}

/// Returns whether a path is a block device, as far as one can tell.
pub fn is_block_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| m.file_type().is_block_device())
}

/// Returns the same identity for all names of one file or block device, also for that of a loop
/// device that shows it. May block.
pub fn identity(path: &Path) -> PathBuf {
    if let Some(shown) = shown_by(path) {
        let of = identity(&shown.of);
        let is_all = shown.from == 0 && shown.of.metadata().is_ok_and(|m| m.len() == shown.len);
        return match is_all {
            true => of,
            false => PathBuf::from(format!("{} from {}", of.display(), shown.from)),
        };
    }
    match path.metadata() {
        Ok(m) if m.file_type().is_block_device() => {
            PathBuf::from(format!("block device {}", m.rdev()))
        }
        Ok(m) => PathBuf::from(format!("file {} {}", m.dev(), m.ino())),
        Err(_) => std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
    }
}

/// Refuses a list of devices in which one is named twice, by whatever names.
pub fn check_distinct<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<()> {
    let mut seen: Vec<(PathBuf, &Path)> = Vec::new();
    for path in paths {
        let identity = identity(path);
        if let Some((_, other)) = seen.iter().find(|(i, _)| *i == identity) {
            let text = match path == *other {
                true => format!("{} is named twice", path.display()),
                false => format!("{} and {} are the same device", other.display(), path.display()),
            };
            return Err(CommandError::Usage(text));
        }
        seen.push((identity, path));
    }
    Ok(())
}

/// Bits from the operating system's source of randomness: what an open of a pool is called by must
/// not be drawn twice, by this machine or another.
fn entropy() -> u64 {
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    high.rotate_left(32) ^ low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_by_two_names_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&a, "").unwrap();
        std::os::unix::fs::symlink(&a, &b).unwrap();
        let check = |first: &Path, second: &Path| check_distinct([first, second]);
        let text = check(&a, &b).unwrap_err().to_string();
        assert!(text.contains("same device"), "{text}");
        assert!(check(&a, &a).is_err());
        let none = dir.path().join("none");
        assert!(check(&none, &none).is_err());
        std::fs::write(dir.path().join("c"), "").unwrap();
        assert!(check(&a, &dir.path().join("c")).is_ok());
    }

    #[test]
    fn what_takes_no_writes_is_as_good_as_gone_and_what_may_not_be_written_is_refused() {
        let path = Path::new("/dev/some");
        let of = |code| OpenError::of(path, &io::Error::from_raw_os_error(code));
        assert!(matches!(of(libc::EROFS), OpenError::ReadOnly(_)));
        assert!(matches!(of(libc::EIO), OpenError::Gone(_)));
        for (code, word) in [(libc::EACCES, "chown"), (libc::EPERM, "chattr -i")] {
            let OpenError::Refused(e) = of(code) else { panic!("errno {code} is a lost copy") };
            assert!(e.to_string().contains(word), "{e}");
        }
    }

    #[test]
    fn what_is_gone_is_told_from_what_is_busy() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&a, [0; 8192]).unwrap();
        let world = World::new(IoChoice::Posix, &[]).unwrap();
        let opened = world.open_devices(&[a.clone().into(), b.clone().into()], true).unwrap();
        assert_eq!((opened.files.len(), opened.gone.len()), (1, 1));
        assert!(world.open_devices(&[b.into()], true).is_err());
        let other = World::new(IoChoice::Posix, &[]).unwrap();
        let Err(e) = other.open_devices(&[a.clone().into()], true) else { panic!("opened twice") };
        assert_eq!(
            e.to_string(),
            format!(
                "{} is in use by another process (is a server running? forebay status asks it)",
                a.display()
            )
        );
    }
}
