//! The devices of a pool in a directory of `forebay up`, as its servers keep them there.
//!
//! The list is written by the server that runs, whenever devices come, go or are found elsewhere.
//! The pool's own table of devices has no paths: it says which devices there are, and this list
//! where.
//!
//! Fault model: the list is replaced at once or not at all. A new device is entered before it
//! joins the pool, and one that has left is taken off afterwards. So after a crash the list may
//! have too much: a device that the pool does not have, and that holds nothing of it, is passed
//! over.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use format::superblock::Superblock;
use serde::{Deserialize, Serialize};

use crate::error::{CommandError, Result};
use crate::host::cache_file::newest_superblock;
use crate::host::device_names::KnownDevice;
use crate::host::rights;
use crate::host::whole_file::{self, SHARED};
use crate::host::world::identity;

const NAME: &str = "devices.json";

/// The list of a directory.
#[derive(Clone, Debug)]
pub struct DeviceList {
    dir: PathBuf,
}

/// A device on the list.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ListedDevice {
    /// The uuid of the device; empty if it is not known, as the device was not there yet.
    pub id: String,
    /// The path of the device; in the file, relative to the directory if the device is in there.
    pub path: PathBuf,
}

/// Returns the entries of the list while the pool has the devices `known`, and one `joins`;
/// `before` was the list. No place is on the list twice, however its path is spelled: the device
/// that is there now counts, and not one that was there. May block.
pub fn together(
    known: Vec<KnownDevice>,
    joins: Option<ListedDevice>,
    before: &[ListedDevice],
) -> Vec<ListedDevice> {
    let any_is_lost = known.iter().any(|one| one.path.is_empty());
    let (open, away): (Vec<_>, Vec<_>) = known.into_iter().partition(|one| one.is_open);
    let listed = |one: KnownDevice| ListedDevice { id: one.id, path: one.path.into() };
    let all: Vec<ListedDevice> = open.into_iter().map(listed).chain(joins).collect();
    let away = away.into_iter().filter(|one| !one.path.is_empty()).map(listed);
    // Which device was to be there is not known, only that one was.
    let unknown = before.iter().filter(|one| one.id.is_empty() && any_is_lost).cloned();
    once(all.into_iter().chain(away).chain(unknown))
}

/// Leaves out what is at a place that was named before. May block.
fn once(all: impl IntoIterator<Item = ListedDevice>) -> Vec<ListedDevice> {
    let (mut seen, mut kept) = (Vec::new(), Vec::new());
    for one in all {
        let place = identity(&one.path);
        if !seen.contains(&place) {
            seen.push(place);
            kept.push(one);
        }
    }
    kept
}

impl DeviceList {
    /// That of this directory.
    pub fn of(dir: &Path) -> DeviceList {
        DeviceList { dir: dir.to_owned() }
    }

    /// The path of the list.
    pub fn path(&self) -> PathBuf {
        self.dir.join(NAME)
    }

    /// The entries of the list; `None` if none was written yet.
    pub fn read(&self) -> Result<Option<Vec<ListedDevice>>> {
        let path = self.path();
        let failed = |e: &dyn std::fmt::Display| {
            CommandError::Failed(format!(
                "{}: {e}; it lists the devices of the pool. If it is damaged, remove it, and name \
                 them to forebay serve with --device",
                path.display()
            ))
        };
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            // The list is as good as it was: only this user may not read it.
            Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                return Err(rights::failed(&path, &e));
            }
            Err(e) => return Err(failed(&e)),
        };
        let mut all: Vec<ListedDevice> = serde_json::from_str(&text).map_err(|e| failed(&e))?;
        all.iter_mut().for_each(|one| one.path = self.dir.join(&one.path));
        Ok(Some(all))
    }

    /// The paths of the devices of the pool; `None` if no list was written yet. May block.
    pub fn devices(&self) -> Result<Option<Vec<PathBuf>>> {
        let Some(all) = self.read()? else { return Ok(None) };
        // Servers before this one listed a device that was replaced at its own path beside the new
        // one. Both rows name the same file, so one of them is enough.
        let all = once(all);
        let own: Vec<_> = all.iter().map(|one| newest_superblock(&one.path)).collect();
        // A device that was removed may be one of another pool by now, if the list could not be
        // written then: only what says itself that it is what is listed tells of this pool.
        let says_so = |(one, sb): (&ListedDevice, &Option<Superblock>)| -> bool {
            let own = |sb: &Superblock| sb.devices.get(usize::from(sb.device)).map(|d| d.uuid);
            let own = sb.as_ref().and_then(own).map(|own| uuid::Uuid::from_bytes(own).to_string());
            own.is_some_and(|own| own == one.id)
        };
        let ours = || {
            all.iter().zip(&own).filter(|&pair| says_so(pair)).filter_map(|pair| pair.1.as_ref())
        };
        let key = |sb: &&Superblock| (sb.generation, sb.sequence);
        let pool = ours().max_by_key(key).map(|sb| sb.pool_uuid);
        let of_pool = |sb: &&Superblock| pool.is_none_or(|pool| pool == sb.pool_uuid);
        let newest = pool::raw::newest_superblock(own.iter().flatten().filter(of_pool));
        let is_of_pool = |id: &str| {
            let mut ids = newest.into_iter().flat_map(|sb| &sb.devices);
            let is_known = ids.any(|d| uuid::Uuid::from_bytes(d.uuid).to_string() == id);
            newest.is_none() || id.is_empty() || is_known
        };
        let is_own = |sb: &Superblock| newest.is_none_or(|n| n.pool_uuid == sb.pool_uuid);
        let counts = all
            .iter()
            .zip(&own)
            .filter(|(one, own)| own.as_ref().is_some_and(is_own) || is_of_pool(&one.id));
        Ok(Some(counts.map(|(one, _)| one.path.clone()).collect()))
    }

    /// Writes it anew, durably. Blocks.
    pub fn write(&self, all: &[ListedDevice]) -> std::io::Result<()> {
        let home = std::path::absolute(&self.dir)?;
        let inside = |one: &ListedDevice| -> std::io::Result<ListedDevice> {
            let path = std::path::absolute(&one.path)?;
            let path = path.strip_prefix(&home).map(Path::to_owned).unwrap_or(path);
            Ok(ListedDevice { id: one.id.clone(), path })
        };
        let all: Vec<ListedDevice> = all.iter().map(inside).collect::<std::io::Result<_>>()?;
        let text = serde_json::to_string_pretty(&all)? + "\n";
        whole_file::write(&self.path(), text.as_bytes(), SHARED)
    }
}

#[cfg(test)]
mod tests {
    use posix::{NewFile, OpenFile};

    use super::*;
    use crate::host::world::{IoChoice, World};

    #[test]
    fn no_path_is_listed_twice_and_none_is_forgotten() {
        let known = |id: &str, path: &str, is_open| KnownDevice {
            id: id.into(),
            path: path.into(),
            is_open,
        };
        let listed = |id: &str, path: &str| ListedDevice { id: id.into(), path: path.into() };
        // One that is missing keeps its path, until another device is there.
        let all = || vec![known("1", "/a", true), known("2", "/b", false)];
        let both = vec![listed("1", "/a"), listed("2", "/b")];
        assert_eq!(together(all(), None, &both), both);
        let joined = vec![listed("1", "/a"), listed("3", "/b")];
        assert_eq!(together(all(), Some(listed("3", "/b")), &both), joined);
        // One that was named and was never there is listed for as long as one is missing.
        let named = [listed("", "/a"), listed("", "/b")];
        let lost = vec![known("1", "/a", true), known("2", "", false)];
        assert_eq!(together(lost, None, &named), [listed("1", "/a"), listed("", "/b")]);
        assert_eq!(together(vec![known("1", "/a", true)], None, &named), [listed("1", "/a")]);
    }

    #[test]
    fn a_device_that_took_the_place_of_another_is_listed_once() {
        let tmp = tempfile::tempdir().unwrap();
        let (a, link) = (tmp.path().join("a"), tmp.path().join("link"));
        fs::write(&a, "").unwrap();
        std::os::unix::fs::symlink(&a, &link).unwrap();
        let row = |id: &str, path: &Path| ListedDevice { id: id.into(), path: path.to_owned() };
        let here = Path::new("none.img");
        for (old, new) in [(&*a, &*link), (Path::new("./none.img"), here)] {
            let away =
                KnownDevice { id: "1".into(), path: old.display().to_string(), is_open: false };
            let all = together(vec![away], Some(row("2", new)), &[row("1", old)]);
            assert_eq!(all, [row("2", new)]);
        }
        // What an older server has written so is read.
        let list = DeviceList::of(tmp.path());
        list.write(&[row("2", &a), row("1", &a), row("3", &link)]).unwrap();
        assert_eq!(list.devices(), Ok(Some(vec![a])));
    }

    /// A whole superblock of the only device of a pool, at its place in a file.
    fn device_of(path: &Path, pool: u8, device: u8) {
        let world = World::new(IoChoice::Posix, &[]).unwrap();
        let how = OpenFile { write: true, create: Some(NewFile::Sparse(96 << 20)), direct: true };
        let (file, info) = world.open(path, &how).unwrap();
        let on = [world.device(&path.to_owned().into(), file, &info)];
        let options = pool::CreateOptions { name: "p".into(), copies: 1, group_bytes: None };
        let (rt, ids) = (world.rt.clone(), [[pool; 16], [device; 16]]);
        let made = world.rt.block_on(async move { pool::create(&rt, &on, &options, &ids).await });
        made.unwrap().unwrap();
    }

    #[test]
    fn a_device_that_is_of_another_pool_by_now_is_passed_over() {
        let tmp = tempfile::tempdir().unwrap();
        let (own, other) = (tmp.path().join("own"), tmp.path().join("other"));
        device_of(&own, 1, 2);
        device_of(&other, 3, 4);
        let row = |id: u8, path: &Path| ListedDevice {
            id: uuid::Uuid::from_bytes([id; 16]).to_string(),
            path: path.to_owned(),
        };
        let list = DeviceList::of(tmp.path());
        for rows in [[row(2, &own), row(9, &other)], [row(9, &other), row(2, &own)]] {
            list.write(&rows).unwrap();
            assert_eq!(list.devices(), Ok(Some(vec![own.clone()])));
        }
        // One of which nothing says that it has left is not passed over.
        list.write(&[row(2, &own), row(2, &other)]).unwrap();
        assert_eq!(list.devices(), Ok(Some(vec![own.clone(), other.clone()])));
    }

    #[test]
    fn a_list_is_found_again_also_elsewhere() {
        let tmp = tempfile::tempdir().unwrap();
        let (dir, moved) = (tmp.path().join("a"), tmp.path().join("b"));
        fs::create_dir(&dir).unwrap();
        let list = DeviceList::of(&dir);
        assert_eq!(list.read(), Ok(None));
        let one = |id: &str, path: PathBuf| ListedDevice { id: id.into(), path };
        let outside = PathBuf::from("/dev/none");
        list.write(&[one("1", dir.join("x")), one("2", outside.clone())]).unwrap();
        fs::rename(&dir, &moved).unwrap();
        let list = DeviceList::of(&moved);
        let want = vec![one("1", moved.join("x")), one("2", outside.clone())];
        assert_eq!(list.read(), Ok(Some(want)));
        assert_eq!(list.devices(), Ok(Some(vec![moved.join("x"), outside])));
        fs::write(list.path(), "[{").unwrap();
        assert!(list.read().unwrap_err().to_string().contains("devices.json"));
    }
}
