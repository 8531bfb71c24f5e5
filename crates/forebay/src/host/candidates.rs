//! The places where a device of a pool may be: the files of directories, and the block devices of
//! the machine.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A file is not looked at unless it is so large: smaller ones are no devices.
const LEAST_BYTES: u64 = 1 << 20;
/// The most files of a directory that are looked at.
const MOST_FILES: usize = 10_000;
/// Names that do not move when a disk is plugged in elsewhere.
const BY_ID: &str = "/dev/disk/by-id";
/// The block devices that the kernel has.
const BLOCK_DEVICES: &str = "/sys/class/block";
/// Block devices that are none to look at: they are in memory, have removable media, or may be
/// served by this very server.
const LEFT_OUT: [&str; 6] = ["ram", "zram", "fd", "sr", "nbd", "ublk"];

/// The files and links of a directory that may be devices, in the order of their names. May block.
pub fn of_directory(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    all.sort();
    all.truncate(MOST_FILES);
    all.retain(|path| match path.metadata() {
        Ok(meta) if meta.is_file() => meta.len() >= LEAST_BYTES,
        _ => crate::host::world::is_block_device(path),
    });
    all
}

/// All block devices of the machine, by names that stay where there are such. May block.
pub fn block_devices() -> Vec<PathBuf> {
    let lasting = by_id();
    let entries = fs::read_dir(BLOCK_DEVICES).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| !LEFT_OUT.iter().any(|left| is_kind(name, left)));
    names.retain(|name| {
        let size = fs::read_to_string(Path::new(BLOCK_DEVICES).join(name).join("size"));
        size.is_ok_and(|size| size.trim() != "0")
    });
    // Parts of other devices are left out: paths of a multipath device, disks of a volume group.
    names.retain(|name| {
        let holders = fs::read_dir(Path::new(BLOCK_DEVICES).join(name).join("holders"));
        holders.is_ok_and(|mut holders| holders.next().is_none())
    });
    names.sort();
    let node = |name: &String| Path::new("/dev").join(name.replace('!', "/"));
    names.iter().map(node).map(|node| lasting.get(&node).cloned().unwrap_or(node)).collect()
}

/// Whether a name is a kind of devices and a number.
fn is_kind(name: &str, kind: &str) -> bool {
    name.strip_prefix(kind).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// The lasting names, by what they lead to.
fn by_id() -> BTreeMap<PathBuf, PathBuf> {
    let entries = fs::read_dir(BY_ID).into_iter().flatten().flatten();
    let mut links: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    links.sort_by(|a, b| b.cmp(a));
    links.into_iter().filter_map(|link| Some((link.canonicalize().ok()?, link))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_files_are_candidates_and_others_are_not() {
        let tmp = tempfile::tempdir().expect("a directory");
        let at = |name: &str| tmp.path().join(name);
        for (name, len) in [("b", LEAST_BYTES), ("a", LEAST_BYTES + 1), ("small", 4096)] {
            fs::File::create(at(name)).and_then(|f| f.set_len(len)).expect("made");
        }
        fs::create_dir(at("dir")).expect("made");
        std::os::unix::fs::symlink(at("a"), at("link")).expect("made");
        std::os::unix::fs::symlink(at("gone"), at("dangling")).expect("made");
        assert_eq!(of_directory(tmp.path()), [at("a"), at("b"), at("link")]);
        assert_eq!(of_directory(&at("none")), Vec::<PathBuf>::new());
    }

    #[test]
    fn kinds_are_told_by_the_whole_name() {
        assert!(is_kind("nbd0", "nbd") && is_kind("ram12", "ram") && is_kind("sr0", "sr"));
        assert!(!is_kind("sdb", "sr") && !is_kind("ramdisk", "ram") && !is_kind("loop0", "fd"));
    }
}
