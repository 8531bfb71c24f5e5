//! The properties of block devices in sysfs.

use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};

use crate::doctor::found::QueueLimits;

/// The greatest number of levels: devices that are made of others may be made of such again.
const MAX_LEVELS: u32 = 8;

/// The directory of a device with this number (`8:1`), if it has one.
pub fn directory(sysfs: &Path, number: &str) -> Option<PathBuf> {
    sysfs.join("dev/block").join(number).canonicalize().ok()
}

fn number(path: &Path) -> Option<u64> {
    read_to_string(path).ok()?.trim().parse().ok()
}

/// The directory of the whole disk: a partition has no queue of its own.
fn disk(dir: &Path) -> PathBuf {
    match (dir.join("partition").exists(), dir.parent()) {
        (true, Some(disk)) => disk.to_owned(),
        _ => dir.to_owned(),
    }
}

/// The size of a device in bytes.
pub fn size_bytes(dir: &Path) -> Option<u64> {
    number(&dir.join("size")).map(|sectors| sectors * 512)
}

/// The sectors of a device, its place on the disk and its write cache.
pub fn queue(dir: &Path) -> Option<QueueLimits> {
    let queue = disk(dir).join("queue");
    let physical_bytes = number(&queue.join("physical_block_size"))?;
    // The place of a partition begins at its number of sectors of 512 bytes.
    let start = number(&dir.join("start")).unwrap_or(0).wrapping_mul(512);
    let beside = number(&dir.join("alignment_offset")).unwrap_or(0);
    let misaligned_bytes = if beside > 0 { beside } else { start % physical_bytes.max(512) };
    let write_cache = read_to_string(queue.join("write_cache")).unwrap_or_default();
    Some(QueueLimits {
        logical_bytes: number(&queue.join("logical_block_size"))?,
        physical_bytes,
        misaligned_bytes,
        write_cache: write_cache.trim().to_owned(),
    })
}

/// The names of the disks below a device.
pub fn disks(dir: &Path) -> Vec<String> {
    let mut all = Vec::new();
    below(dir, MAX_LEVELS, &mut all);
    all.sort();
    all.dedup();
    all
}

fn below(dir: &Path, levels: u32, all: &mut Vec<String>) {
    let dir = disk(dir);
    let slaves = entries(&dir.join("slaves"));
    if levels == 0 || slaves.is_empty() {
        all.extend(dir.file_name().map(|name| name.to_string_lossy().into_owned()));
    }
    for slave in slaves.iter().filter(|_| levels > 0) {
        below(slave, levels - 1, all);
    }
}

/// Devices that are made of this one, or of a part of it: their names.
pub fn holders(dir: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for one in parts(dir) {
        let names = entries(&one.join("holders")).into_iter();
        all.extend(names.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())));
    }
    all
}

/// Numbers (`8:1`) of a device and of its partitions.
pub fn numbers(dir: &Path) -> Vec<String> {
    let text = |path: PathBuf| read_to_string(path.join("dev")).ok();
    parts(dir).into_iter().filter_map(text).map(|text| text.trim().to_owned()).collect()
}

/// A device and its partitions.
fn parts(dir: &Path) -> Vec<PathBuf> {
    let inner = entries(dir).into_iter().filter(|path| path.join("partition").exists());
    [dir.to_owned()].into_iter().chain(inner).collect()
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let all = read_dir(dir).into_iter().flatten();
    all.filter_map(|entry| entry.ok()?.path().canonicalize().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A disk with a partition in a sysfs of the test's own.
    fn disk_with_part(sysfs: &Path, name: &str, number: u32, start: u64) {
        let disk = sysfs.join("devices").join(name);
        let part = disk.join(format!("{name}1"));
        fs::create_dir_all(disk.join("queue")).unwrap();
        fs::create_dir_all(disk.join("holders")).unwrap();
        fs::create_dir_all(part.join("holders")).unwrap();
        fs::create_dir_all(sysfs.join("dev/block")).unwrap();
        for (file, text) in [
            ("queue/physical_block_size", "4096\n"),
            ("queue/logical_block_size", "512\n"),
            ("queue/write_cache", "write back\n"),
            ("size", "16\n"),
        ] {
            fs::write(disk.join(file), text).unwrap();
        }
        fs::write(part.join("partition"), "1\n").unwrap();
        fs::write(part.join("start"), format!("{start}\n")).unwrap();
        fs::write(disk.join("dev"), format!("8:{number}\n")).unwrap();
        fs::write(part.join("dev"), format!("8:{}\n", number + 1)).unwrap();
        symlink(&disk, sysfs.join(format!("dev/block/8:{number}"))).unwrap();
        symlink(&part, sysfs.join(format!("dev/block/8:{}", number + 1))).unwrap();
    }

    #[test]
    fn a_partition_has_the_queue_of_its_disk_and_a_place() {
        let tmp = tempfile::tempdir().unwrap();
        disk_with_part(tmp.path(), "sda", 0, 63);
        let (disk, part) =
            (directory(tmp.path(), "8:0").unwrap(), directory(tmp.path(), "8:1").unwrap());
        let queue = queue(&part).unwrap();
        assert_eq!((queue.logical_bytes, queue.misaligned_bytes), (512, 63 * 512 % 4096));
        assert_eq!(queue.write_cache, "write back");
        assert_eq!(super::queue(&disk).unwrap().misaligned_bytes, 0);
        assert_eq!((disks(&part), size_bytes(&disk)), (vec!["sda".to_owned()], Some(8192)));
        assert_eq!(numbers(&disk), ["8:0", "8:1"]);
        assert_eq!(directory(tmp.path(), "8:99"), None);
    }

    #[test]
    fn devices_are_made_of_others() {
        let tmp = tempfile::tempdir().unwrap();
        disk_with_part(tmp.path(), "sda", 0, 2048);
        disk_with_part(tmp.path(), "sdb", 16, 2048);
        disk_with_part(tmp.path(), "md0", 32, 2048);
        let devices = tmp.path().join("devices");
        fs::create_dir_all(devices.join("md0/slaves")).unwrap();
        symlink(devices.join("sda/sda1"), devices.join("md0/slaves/sda1")).unwrap();
        symlink(devices.join("sdb"), devices.join("md0/slaves/sdb")).unwrap();
        symlink(devices.join("md0"), devices.join("sda/sda1/holders/md0")).unwrap();
        let of = |number| directory(tmp.path(), number).unwrap();
        assert_eq!(disks(&of("8:33")), ["sda", "sdb"]);
        assert_eq!((holders(&of("8:0")), holders(&of("8:16"))), (vec!["md0".to_owned()], vec![]));
    }
}
