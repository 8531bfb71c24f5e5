//! The devices of a configuration, as they are.

use std::fs::{File, OpenOptions, metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use emulate::Emulate;
use format::superblock::{DeviceState, Superblock};
use posix::{look, sys};
use rt::DeviceKind;

use super::mounts::{self, Mounted};
use super::sysfs;
use crate::doctor::found::{Device, DeviceTable, MountPoint, Properties, Role, State};
use crate::host::cache_file::newest_superblock;

const SYSFS: &str = "/sys";
/// Disks that are files in memory.
const IN_MEMORY: [&str; 2] = ["tmpfs", "ramfs"];

/// Looks at a path. Files and devices are opened for reading at most, and not locked.
pub fn look(path: &Path, role: Role, emulate: Option<Emulate>) -> Device {
    let all = mounts::all();
    let meta = metadata(path);
    let state = match &meta {
        Err(e) => State::Missing(e.to_string()),
        Ok(meta) if meta.file_type().is_block_device() => {
            State::There(block(path, meta.rdev(), &all))
        }
        Ok(meta) if meta.is_file() => State::There(file(path, meta, &all)),
        Ok(_) => State::Odd,
    };
    let is_block = meta.is_ok_and(|meta| meta.file_type().is_block_device());
    let mount = if is_block { None } else { mount_of(path, &all) };
    Device { path: path.to_owned(), role, emulate, state, mount }
}

/// The pool's own table of its devices; `None` if no device holds one.
pub fn table<'a>(paths: impl Iterator<Item = &'a Path>) -> Option<DeviceTable> {
    let found: Vec<Superblock> = paths.filter_map(newest_superblock).collect();
    let newest = pool::raw::newest_superblock(found.iter())?;
    let is_there = |row: usize| {
        let mut of_pool = found.iter().filter(|sb| sb.pool_uuid == newest.pool_uuid);
        of_pool.any(|sb| usize::from(sb.device) == row)
    };
    let rows = newest.devices.iter().enumerate();
    let rows: Vec<_> = rows.filter(|(_, d)| d.state != DeviceState::Removed).collect();
    let missing = rows.iter().filter(|(row, _)| !is_there(*row));
    Some(DeviceTable {
        copies: newest.copies,
        devices: rows.len(),
        missing: missing.map(|(_, d)| uuid::Uuid::from_bytes(d.uuid).to_string()).collect(),
    })
}

/// The path without links; of a file that is not there, that of its directory.
fn real(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok().or_else(|| {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        dir.unwrap_or(Path::new(".")).canonicalize().ok()
    })
}

fn mount_of(path: &Path, all: &[Mounted]) -> Option<MountPoint> {
    let real = real(path)?;
    let mounted = mounts::of(all, &real)?;
    Some(MountPoint {
        point: mounted.point.clone(),
        kind: mounted.kind.clone(),
        free_bytes: sys::free_bytes(&real).ok()?,
    })
}

fn numbered(device: u64) -> String {
    format!("{}:{}", libc::major(device), libc::minor(device))
}

fn block(path: &Path, number: u64, all: &[Mounted]) -> Properties {
    let dir = sysfs::directory(Path::new(SYSFS), &numbered(number));
    let dir = dir.as_deref();
    let mut users = Vec::new();
    if let Some(dir) = dir {
        let numbers = sysfs::numbers(dir);
        let mounted = all.iter().filter(|one| numbers.contains(&one.number));
        users.extend(mounted.map(|one| format!("mounted at {}", one.point.display())));
        users.extend(sysfs::holders(dir).into_iter().map(|name| format!("part of {name}")));
        users.sort();
        users.dedup();
    }
    let refused = look::may_write(path).err();
    Properties {
        block: true,
        refused: refused.as_ref().map(ToString::to_string),
        read_only: refused.is_some_and(|e| e.kind() == ErrorKind::ReadOnlyFilesystem),
        size_bytes: dir.and_then(sysfs::size_bytes).unwrap_or(0),
        allocated_bytes: 0,
        kind: posix::disk_kind(Path::new(SYSFS), number),
        disks: dir.map_or_else(Vec::new, sysfs::disks),
        direct: direct(path),
        no_cow: None,
        queue: dir.and_then(sysfs::queue),
        users,
    }
}

fn file(path: &Path, meta: &std::fs::Metadata, all: &[Mounted]) -> Properties {
    let real = real(path);
    let mounted = real.as_deref().and_then(|path| mounts::of(all, path));
    // File systems such as btrfs number themselves; what they are mounted from is a device.
    let source = mounted.and_then(|one| metadata(&one.source).ok());
    let source = source.filter(|m| m.file_type().is_block_device()).map(|m| m.rdev());
    let dir_of = |number| sysfs::directory(Path::new(SYSFS), &numbered(number));
    let dir = dir_of(meta.dev()).or_else(|| source.and_then(dir_of));
    let in_memory = mounted.is_some_and(|one| IN_MEMORY.contains(&one.kind.as_str()));
    let kind = match dir.is_some() || in_memory {
        _ if in_memory => DeviceKind::Memory,
        true if dir_of(meta.dev()).is_some() => posix::disk_kind(Path::new(SYSFS), meta.dev()),
        _ => source.map_or(DeviceKind::Unknown, |d| posix::disk_kind(Path::new(SYSFS), d)),
    };
    let disks = match &dir {
        Some(dir) => sysfs::disks(dir),
        None => vec![format!("file system {}", numbered(meta.dev()))],
    };
    let opened = File::open(path).ok();
    let refused = look::may_write(path).err();
    Properties {
        block: false,
        refused: refused.as_ref().map(ToString::to_string),
        read_only: refused.is_some_and(|e| e.kind() == ErrorKind::ReadOnlyFilesystem),
        size_bytes: meta.len(),
        allocated_bytes: meta.blocks() * 512,
        kind,
        disks,
        direct: direct(path),
        no_cow: opened.and_then(|file| look::is_no_cow(&file).ok()),
        queue: dir.as_deref().and_then(sysfs::queue),
        users: Vec::new(),
    }
}

/// Whether `O_DIRECT` works; `None` where that cannot be tried.
fn direct(path: &Path) -> Option<bool> {
    let open = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
    match open {
        Ok(file) => Some(sys::direct_io_by_blocks(&file)),
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Some(false),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparse_file_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.img");
        let device = look(&path, Role::Pool, None);
        assert!(matches!(&device.state, State::Missing(_)), "{device:?}");
        let mount = device.mount.expect("the directory is on a file system");
        assert!(mount.free_bytes > 0 && !mount.kind.is_empty(), "{mount:?}");
        File::create(&path).unwrap().set_len(1 << 30).unwrap();
        let device = look(&path, Role::Pool, None);
        let properties = device.properties().unwrap();
        assert!(
            properties.size_bytes == 1 << 30 && properties.allocated_bytes < 1 << 20,
            "{properties:?}"
        );
        assert!(
            !properties.block && properties.refused.is_none() && properties.disks.len() == 1,
            "{properties:?}"
        );
        assert!(matches!(look(dir.path(), Role::Pool, None).state, State::Odd));
    }
}
