//! Findings about the devices of a pool and its cache: plain data.

use std::path::PathBuf;

use emulate::Emulate;
use rt::DeviceKind;

/// The purpose of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A device of the pool.
    Pool,
    /// The cache. If there is none, one of this size in bytes is made there; `None`: none is made.
    Cache(Option<u64>),
}

/// A device that a configuration names.
#[derive(Clone, Debug)]
pub struct Device {
    /// The path, as the configuration names it.
    pub path: PathBuf,
    /// The purpose of the device.
    pub role: Role,
    /// The kind of disk that the device is made to behave like.
    pub emulate: Option<Emulate>,
    /// The file or block device at the path, if there is one.
    pub state: State,
    /// The file system of a file, or of the directory in which a file is to be made.
    pub mount: Option<MountPoint>,
}

/// The devices of the pool, as its newest superblock lists them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceTable {
    /// The number of copies of every block.
    pub copies: u8,
    /// The number of devices of the pool, whether they are there or not.
    pub devices: usize,
    /// The ids of those that are on none of the devices that were looked at.
    pub missing: Vec<String>,
}

/// The thing at a path.
#[derive(Clone, Debug)]
pub enum State {
    /// Nothing that can be looked at; the text says why.
    Missing(String),
    /// Neither a file nor a block device.
    Odd,
    /// A file or a block device.
    There(Properties),
}

/// The properties of a file or a block device.
#[derive(Clone, Debug)]
pub struct Properties {
    /// True for a block device, false for a file.
    pub block: bool,
    /// The reason why this user may not read and write it, if that is so.
    pub refused: Option<String>,
    /// True if the reason is that its file system takes no writes.
    pub read_only: bool,
    pub size_bytes: u64,
    /// The number of bytes that the file system has given to a file. It may be less than the size,
    /// and then grows.
    pub allocated_bytes: u64,
    /// The kind of disk.
    pub kind: DeviceKind,
    /// The disks below it; the file system, where these are not known.
    pub disks: Vec<String>,
    /// True if reads and writes bypass the page cache; `None` where that cannot be tried.
    pub direct: Option<bool>,
    /// True if the file is written in place, also where others are copied on write.
    pub no_cow: Option<bool>,
    /// The properties that the kernel reports of a block device, or of the disk below a file.
    pub queue: Option<QueueLimits>,
    /// The other users of a block device.
    pub users: Vec<String>,
}

/// The properties that the kernel reports of a block device.
#[derive(Clone, Default, Debug)]
pub struct QueueLimits {
    /// Bytes of a sector, as it is addressed.
    pub logical_bytes: u64,
    /// Bytes of a sector, as it is written.
    pub physical_bytes: u64,
    /// The number of bytes by which the device lies beside the physical sectors of its disk.
    pub misaligned_bytes: u64,
    /// `write back` or `write through`.
    pub write_cache: String,
}

/// A file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountPoint {
    /// The directory where the file system is mounted.
    pub point: PathBuf,
    /// The type of the file system, such as `ext4`.
    pub kind: String,
    /// The number of bytes that are free.
    pub free_bytes: u64,
}

impl Device {
    /// The properties of the file or block device, if there is one.
    pub fn properties(&self) -> Option<&Properties> {
        match &self.state {
            State::There(properties) => Some(properties),
            _ => None,
        }
    }

    /// The path of the device, with its purpose if that is the cache.
    pub fn name(&self) -> String {
        let what = if self.role == Role::Pool { "" } else { "the cache " };
        format!("{what}{}", self.path.display())
    }
}

/// A device for tests: a file on a disk of its own, of which there is nothing to be said.
#[cfg(test)]
pub fn plain(path: &str, role: Role) -> Device {
    Device {
        path: path.into(),
        role,
        emulate: None,
        state: State::There(Properties {
            block: false,
            refused: None,
            read_only: false,
            size_bytes: 1 << 30,
            allocated_bytes: 1 << 30,
            kind: DeviceKind::Ssd,
            disks: vec![format!("disk of {path}")],
            direct: Some(true),
            no_cow: None,
            queue: None,
            users: Vec::new(),
        }),
        mount: Some(MountPoint { point: "/srv".into(), kind: "ext4".into(), free_bytes: 1 << 40 }),
    }
}

/// Changes the properties of a device, in a test.
#[cfg(test)]
pub fn with(mut device: Device, change: impl FnOnce(&mut Properties)) -> Device {
    match &mut device.state {
        State::There(properties) => change(properties),
        _ => unreachable!("a test changes what is there"),
    }
    device
}
