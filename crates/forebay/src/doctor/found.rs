//! What was found of the devices of a pool and of its cache: plain data.

use std::path::PathBuf;

use emulate::Emulate;
use rt::DeviceKind;

/// What a device is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It is one of the pool.
    Pool,
    /// It is the cache. If there is none, one of this size is made there.
    Cache(Option<u64>),
}

/// A device that a configuration names.
#[derive(Clone, Debug)]
pub struct Device {
    /// As it is named.
    pub path: PathBuf,
    /// What it is for.
    pub role: Role,
    /// What it is made to behave like.
    pub emulate: Option<Emulate>,
    /// What is there.
    pub state: State,
    /// The file system of a file, or of the directory in which a file is to be made.
    pub mount: Option<Mount>,
}

/// What the newest superblock of the pool says of its devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table {
    /// Copies of every block.
    pub copies: u8,
    /// Devices of the pool, whether they are there or not.
    pub devices: usize,
    /// The ids of those that are on none of the devices that were looked at.
    pub missing: Vec<String>,
}

/// What is at a path.
#[derive(Clone, Debug)]
pub enum State {
    /// Nothing that can be looked at, and why.
    Missing(String),
    /// Neither a file nor a block device.
    Odd,
    /// A file or a block device.
    There(Properties),
}

/// What a file or a block device is.
#[derive(Clone, Debug)]
pub struct Properties {
    /// It is a block device.
    pub block: bool,
    /// Why this user may not read and write it.
    pub refused: Option<String>,
    /// The reason is that its file system takes no writes.
    pub read_only: bool,
    /// Its size.
    pub size_bytes: u64,
    /// Of a file: what the file system has given it. It may be less, and then grows.
    pub allocated_bytes: u64,
    /// The kind of disk.
    pub kind: DeviceKind,
    /// The disks below it; the file system, where these are not known.
    pub disks: Vec<String>,
    /// Reads and writes bypass the page cache.
    pub direct: Option<bool>,
    /// It is written in place, also where others are copied on write.
    pub no_cow: Option<bool>,
    /// What the kernel says of a block device, or of the disk below a file.
    pub queue: Option<Queue>,
    /// Of a block device: what else uses it.
    pub users: Vec<String>,
}

/// What the kernel says of a block device.
#[derive(Clone, Default, Debug)]
pub struct Queue {
    /// Bytes of a sector, as it is addressed.
    pub logical_bytes: u64,
    /// Bytes of a sector, as it is written.
    pub physical_bytes: u64,
    /// By how many bytes it lies beside the physical sectors of its disk.
    pub misaligned_bytes: u64,
    /// `write back` or `write through`.
    pub write_cache: String,
}

/// A file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mount {
    /// Where it is mounted.
    pub point: PathBuf,
    /// Its kind, such as `ext4`.
    pub kind: String,
    /// Bytes that are free.
    pub free_bytes: u64,
}

impl Device {
    /// Of what is there.
    pub fn properties(&self) -> Option<&Properties> {
        match &self.state {
            State::There(properties) => Some(properties),
            _ => None,
        }
    }

    /// Its path, with what it is for.
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
        mount: Some(Mount { point: "/srv".into(), kind: "ext4".into(), free_bytes: 1 << 40 }),
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
