//! The kind of disk below a file or a block device, as the kernel tells it in sysfs.
//!
//! The flag `queue/rotational` of virtual disks says nothing of the device that is below them: for
//! some of them it is always 1, for others always 0. So they are unknown, and used as devices that
//! do not rotate. Of a device that is made of others (device mapper, md), the others are asked.

use std::fs::read_to_string;
use std::path::Path;

use rt::DeviceKind;

/// Names of disks that a virtual machine or the kernel provides.
const VIRTUAL: [&str; 7] = ["vd", "xvd", "zram", "loop", "ram", "nbd", "rbd"];
/// Vendors of disks that a virtual machine provides by the name of a real one.
const VIRTUAL_VENDORS: [&str; 5] = ["QEMU", "VIRTIO", "VMWARE", "MSFT", "VBOX"];
/// Devices that are made of others may be made of such again, so often.
const MAX_LEVELS: u32 = 8;

/// The kind of the disk with this device number, or of the one that this partition is of. `sysfs`
/// is where sysfs is mounted.
pub fn disk_kind(sysfs: &Path, device: u64) -> DeviceKind {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let entry = sysfs.join(format!("dev/block/{major}:{minor}"));
    entry.canonicalize().map_or(DeviceKind::Unknown, |dir| kind_of(&dir, MAX_LEVELS))
}

fn kind_of(dir: &Path, levels: u32) -> DeviceKind {
    if let (true, Some(disk)) = (dir.join("partition").exists(), dir.parent()) {
        return kind_of(disk, levels);
    }
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let vendor = read_to_string(dir.join("device/vendor")).unwrap_or_default().to_uppercase();
    if VIRTUAL.iter().any(|one| is_numbered(&name, one))
        || VIRTUAL_VENDORS.iter().any(|one| vendor.trim().starts_with(one))
    {
        return DeviceKind::Unknown;
    }
    let below: Vec<_> = std::fs::read_dir(dir.join("slaves"))
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.path().canonicalize().ok())
        .collect();
    if !below.is_empty() {
        return if levels > 0 { common(&below, levels - 1) } else { DeviceKind::Unknown };
    }
    match read_to_string(dir.join("queue/rotational")).as_deref().map(str::trim) {
        Ok("1") => DeviceKind::Rotating,
        Ok("0") if name.starts_with("nvme") => DeviceKind::Nvme,
        Ok("0") => DeviceKind::Ssd,
        _ => DeviceKind::Unknown,
    }
}

/// The kind of a device that is made of these.
fn common(dirs: &[impl AsRef<Path>], levels: u32) -> DeviceKind {
    let mut kinds = dirs.iter().map(|dir| kind_of(dir.as_ref(), levels));
    let first = kinds.next().unwrap_or(DeviceKind::Unknown);
    if kinds.all(|kind| kind == first) { first } else { DeviceKind::Unknown }
}

/// True if the name is the prefix with a number or the letters of a disk: `loop7`, `vda`.
fn is_numbered(name: &str, prefix: &str) -> bool {
    let Some(rest) = name.strip_prefix(prefix) else { return false };
    rest.bytes().all(|b| b.is_ascii_digit())
        || rest.len() <= 3 && rest.bytes().all(|b| b.is_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A disk in a sysfs of the test's own.
    fn disk(sysfs: &Path, number: &str, name: &str, rotational: &str, vendor: Option<&str>) {
        let dir = sysfs.join("devices").join(name);
        fs::create_dir_all(dir.join("queue")).unwrap();
        fs::create_dir_all(dir.join("slaves")).unwrap();
        fs::create_dir_all(sysfs.join("dev/block")).unwrap();
        fs::write(dir.join("queue/rotational"), rotational).unwrap();
        if let Some(vendor) = vendor {
            fs::create_dir_all(dir.join("device")).unwrap();
            fs::write(dir.join("device/vendor"), vendor).unwrap();
        }
        symlink(&dir, sysfs.join("dev/block").join(number)).unwrap();
    }

    fn kind(sysfs: &Path, major: u32, minor: u32) -> DeviceKind {
        disk_kind(sysfs, libc::makedev(major, minor))
    }

    #[test]
    fn disks_are_what_the_kernel_says_but_for_virtual_ones() {
        let tmp = tempfile::tempdir().unwrap();
        let sysfs = tmp.path();
        for (minor, (name, flag, vendor, is)) in [
            ("sda", "1\n", Some("ATA     \n"), DeviceKind::Rotating),
            ("sdb", "0\n", Some("ATA     \n"), DeviceKind::Ssd),
            ("nvme0n1", "0\n", None, DeviceKind::Nvme),
            ("vda", "1\n", None, DeviceKind::Unknown),
            ("xvdb", "0\n", None, DeviceKind::Unknown),
            ("loop7", "1\n", None, DeviceKind::Unknown),
            ("zram0", "0\n", None, DeviceKind::Unknown),
            ("sdc", "1\n", Some("QEMU    \n"), DeviceKind::Unknown),
            ("sdd", "1\n", Some("VMware  \n"), DeviceKind::Unknown),
            ("sde", "\n", None, DeviceKind::Unknown),
        ]
        .into_iter()
        .enumerate()
        {
            disk(sysfs, &format!("8:{minor}"), name, flag, vendor);
            assert_eq!(kind(sysfs, 8, minor as u32), is, "{name}");
        }
        assert_eq!(kind(sysfs, 0, 40), DeviceKind::Unknown, "not there, as of btrfs");
    }

    #[test]
    fn partitions_and_devices_made_of_others_are_what_is_below() {
        let tmp = tempfile::tempdir().unwrap();
        let sysfs = tmp.path();
        disk(sysfs, "8:0", "sda", "1", None);
        disk(sysfs, "8:16", "sdb", "1", None);
        disk(sysfs, "8:32", "sdc", "0", None);
        let part = sysfs.join("devices/sda/sda1");
        fs::create_dir_all(&part).unwrap();
        fs::write(part.join("partition"), "1").unwrap();
        symlink(&part, sysfs.join("dev/block/8:1")).unwrap();
        assert_eq!(kind(sysfs, 8, 1), DeviceKind::Rotating);
        for (number, name, of, is) in [
            ("9:0", "md0", &["sda/sda1", "sdb"][..], DeviceKind::Rotating),
            ("9:1", "dm-0", &["md0"], DeviceKind::Rotating),
            ("9:2", "md1", &["sda", "sdc"], DeviceKind::Unknown),
        ] {
            disk(sysfs, number, name, "0", None);
            for below in of {
                let from = sysfs.join("devices").join(name).join("slaves");
                let to = sysfs.join("devices").join(below);
                symlink(&to, from.join(below.replace('/', "-"))).unwrap();
            }
            let minor = number[2..].parse().unwrap();
            assert_eq!(kind(sysfs, 9, minor), is, "{name}");
        }
    }
}
