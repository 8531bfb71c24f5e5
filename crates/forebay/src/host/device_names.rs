//! By which name the pool knows a device that a user names: its path, however it is spelled, its
//! id, or the last part of its path.

use std::path::Path;

use crate::host::world::identity;

/// A device of the pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownDevice {
    /// The path at which the device is, or was when it was there last; empty if that is not known.
    pub path: String,
    /// The uuid of the device.
    pub id: String,
    /// True if the pool has the file of the device open.
    pub is_open: bool,
}

impl KnownDevice {
    /// The name of the device in the pool.
    pub fn name(&self) -> &str {
        if self.is_open { &self.path } else { &self.id }
    }
}

/// The device that is named by its path as the pool has it, or by its id.
pub fn exact<'a>(all: &'a [KnownDevice], name: &str) -> Option<&'a KnownDevice> {
    all.iter().find(|one| one.id == name || one.is_open && one.path == name)
}

/// The device in this file, whatever it is called. May block.
pub fn same_file<'a>(all: &'a [KnownDevice], name: &str) -> Option<&'a KnownDevice> {
    let wanted = identity(Path::new(name));
    let placed = all.iter().filter(|one| !one.path.is_empty());
    placed.into_iter().find(|one| identity(Path::new(&one.path)) == wanted)
}

/// The only device of which the path ends so.
pub fn by_last_part<'a>(all: &'a [KnownDevice], name: &str) -> Option<&'a KnownDevice> {
    let ends = |one: &&KnownDevice| Path::new(&one.path).file_name().is_some_and(|end| end == name);
    let mut found = all.iter().filter(ends);
    found.next().filter(|_| found.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_found_by_any_of_its_names() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(at("a.img"), "").unwrap();
        std::fs::create_dir(at("d")).unwrap();
        std::os::unix::fs::symlink(at("a.img"), at("link")).unwrap();
        let one =
            |path: &str, id: &str, is_open| KnownDevice { path: at(path), id: id.into(), is_open };
        let all = [one("a.img", "1", true), one("gone.img", "2", false), one("d/x", "3", true)];
        let none = KnownDevice { path: String::new(), id: "4".into(), is_open: false };
        let all = [&all[..], &[none]].concat();
        assert_eq!(exact(&all, &at("a.img")), Some(&all[0]));
        assert_eq!(exact(&all, "2").map(KnownDevice::name), Some("2"));
        assert_eq!((exact(&all, &at("gone.img")), exact(&all, "")), (None, None));
        for name in ["link", "./a.img", "d/../a.img"] {
            assert_eq!(same_file(&all, &at(name)), Some(&all[0]), "{name}");
        }
        assert_eq!(same_file(&all, &at("gone.img")), Some(&all[1]));
        assert_eq!((same_file(&all, &at("b")), same_file(&all, "")), (None, None));
        assert_eq!(by_last_part(&all, "x"), Some(&all[2]));
        assert_eq!(by_last_part(&[one("d/x", "5", true), one("x", "6", true)], "x"), None);
    }
}
