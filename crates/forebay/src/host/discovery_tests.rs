//! Pools of files, and what is taken of what lies beside them.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

use format::places::{Places, SLOT_BYTES};
use pool::Pool;
use posix::{NewFile, OpenFile};
use tempfile::TempDir;

use super::*;
use crate::host::world::{IoChoice, World};

const POOL: [u8; 16] = [1; 16];
const A: [u8; 16] = [2; 16];
const B: [u8; 16] = [3; 16];

/// A directory with the mirror of the files `a` and `b`, which was served once.
struct Bench {
    tmp: TempDir,
}

impl Bench {
    fn new() -> Bench {
        let bench = Bench { tmp: tempfile::tempdir().expect("a directory") };
        let world = World::new(IoChoice::Posix, &[]).expect("a world");
        let how = OpenFile { write: true, create: Some(NewFile::Sparse(96 << 20)), direct: true };
        let files = ["a", "b"].map(|name| {
            let path = bench.at(name);
            let (file, info) = world.open(&path, &how).expect("opened");
            world.device(&path.into(), file, &info)
        });
        let ids = [files[0].file, files[1].file];
        let options = pool::CreateOptions { name: "tank".into(), copies: 2, group_bytes: None };
        let rt = world.rt.clone();
        let made = world
            .rt
            .block_on(async move { pool::create(&rt, &files, &options, &[POOL, A, B]).await });
        made.expect("alive").expect("made");
        ids.into_iter().for_each(|file| world.handles.close_file(file).expect("closed"));
        bench.serve(&["a", "b"]);
        bench
    }

    fn at(&self, name: &str) -> PathBuf {
        self.tmp.path().join(name)
    }

    /// Opens the pool on these files, closes it, and has it on record where they are.
    fn serve(&self, names: &[&str]) {
        let world = World::new(IoChoice::Posix, &[]).expect("a world");
        let named: Vec<DeviceChoice> = names.iter().map(|name| self.at(name).into()).collect();
        let files = world.open_devices(&named, true).expect("opened").files;
        let ids: Vec<_> = files.iter().map(|file| file.file).collect();
        let rt = world.rt.clone();
        let served = world.rt.block_on(async move {
            let settings = pool::Settings::default();
            let (pool, _) = Pool::open(&rt, files, settings).await.expect("opened");
            pool.close().await
        });
        served.expect("alive").expect("closed");
        ids.into_iter().for_each(|file| world.handles.close_file(file).expect("closed"));
        let places: Vec<(&str, [u8; 16])> = names
            .iter()
            .map(|name| (*name, SeenDevice::at(&self.at(name)).and_then(|one| one.uuid())))
            .map(|(name, uuid)| (name, uuid.expect("a device")))
            .collect();
        names.iter().for_each(|name| self.record(name, &places));
    }

    /// Writes the record of places to a file.
    fn record(&self, name: &str, places: &[(&str, [u8; 16])]) {
        let path = self.at(name);
        let before = SeenDevice::at(&path).and_then(|one| one.places);
        let row = |(name, uuid): &(&str, [u8; 16])| Place {
            kind: PlaceKind::Device,
            uuid: *uuid,
            path: self.at(name).as_os_str().as_bytes().to_vec(),
        };
        let sequence = before.map_or(1, |record| record.sequence + 1);
        let record = Places { pool_uuid: POOL, sequence, rows: places.iter().map(row).collect() };
        let mut bytes = vec![0; SLOT_BYTES];
        record.encode(&mut bytes);
        let file = File::options().write(true).open(path).expect("opened");
        file.write_all_at(&bytes, Places::offset_of(sequence)).expect("written");
    }

    fn copy(&self, from: &str, to: &str) {
        fs::create_dir_all(self.at(to).parent().expect("a directory")).expect("made");
        fs::copy(self.at(from), self.at(to)).expect("copied");
    }

    fn rename(&self, from: &str, to: &str) {
        fs::create_dir_all(self.at(to).parent().expect("a directory")).expect("made");
        fs::rename(self.at(from), self.at(to)).expect("renamed");
    }

    /// The devices that are found where these are named, and what the user hears.
    fn found(&self, named: &[&str], more: impl FnOnce(&mut Sections)) -> (Vec<String>, String) {
        let mut said = Sections {
            devices: named.iter().map(|name| self.at(name).into()).collect(),
            ..Sections::default()
        };
        more(&mut said);
        let notes = match find(&mut said) {
            Ok(found) => found.notes.join("\n"),
            Err(e) => e.to_string(),
        };
        let name = |one: &DeviceChoice| {
            let path = one.path.strip_prefix(self.tmp.path()).expect("inside");
            path.display().to_string()
        };
        (said.devices.iter().map(name).collect(), notes)
    }

    fn found_in(&self, named: &[&str], dirs: &[&str]) -> (Vec<String>, String) {
        let dirs: Vec<PathBuf> = dirs.iter().map(|dir| self.at(dir)).collect();
        self.found(named, |said| said.pool.search = Some(dirs))
    }

    fn by_name(&self, dirs: &[&str]) -> (Vec<String>, String) {
        let dirs: Vec<PathBuf> = dirs.iter().map(|dir| self.at(dir)).collect();
        self.found(&[], |said| {
            said.pool.name = Some("tank".into());
            said.pool.search = Some(dirs);
        })
    }
}

#[test]
fn what_was_moved_is_found() {
    let bench = Bench::new();
    assert_eq!(bench.found(&["a"], |_| ()).0, ["a", "b"]);
    bench.rename("b", "elsewhere/x");
    assert_eq!(bench.found(&["a", "b"], |_| ()).0, ["a", "b"], "not beside the others");
    assert_eq!(bench.found_in(&["a", "b"], &["elsewhere"]).0, ["a", "elsewhere/x"]);
    // The record leads there from then on.
    bench.serve(&["a", "elsewhere/x"]);
    assert_eq!(bench.found(&["a", "b"], |_| ()).0, ["a", "elsewhere/x"]);
}

#[test]
fn a_device_that_lacks_something_is_not_taken_from_elsewhere() {
    let bench = Bench::new();
    bench.copy("b", "backup");
    bench.rename("b", "away/b");
    bench.serve(&["a"]);
    bench.record("a", &[("a", A), ("b", B)]);
    let (devices, notes) = bench.found(&["a"], |_| ());
    assert_eq!(devices, ["a"], "{notes}");
    assert!(notes.contains("not taken") && notes.contains("may be an older copy"), "{notes}");
    // At its own place it is: what it lacks it gets.
    bench.rename("away/b", "b");
    assert_eq!(bench.found(&["a"], |_| ()).0, ["a", "b"]);
}

#[test]
fn a_copy_that_was_served_does_not_get_the_other_half() {
    let bench = Bench::new();
    bench.copy("a", "copies/a");
    let (devices, notes) = bench.found_in(&["copies/a"], &["."]);
    assert_eq!(devices, ["copies/a"]);
    assert!(notes.contains("is a copy of"), "{notes}");
    bench.serve(&["copies/a"]);
    let (devices, notes) = bench.found_in(&["copies/a"], &["."]);
    assert_eq!(devices, ["copies/a"]);
    assert!(notes.contains("belongs to"), "{notes}");
    // By name both halves of the original are taken: they have each other on record.
    assert_eq!(bench.by_name(&["copies", "."]).0, ["b", "a"]);
}

#[test]
fn a_copy_of_before_there_were_records_is_not_taken() {
    let bench = Bench::new();
    bench.serve(&["a", "b"]);
    bench.copy("b", "backup");
    bench.serve(&["a", "b"]);
    bench.serve(&["a"]);
    bench.rename("b", "away/b");
    for name in ["a", "backup"] {
        let file = File::options().write(true).open(bench.at(name)).expect("opened");
        for slot in 0..format::places::SLOTS {
            file.write_all_at(&[0; 4096], Places::offset_of(slot)).expect("written");
        }
    }
    let (devices, notes) = bench.found(&["a"], |_| ());
    assert_eq!(devices, ["a"], "{notes}");
}

#[test]
fn one_of_several_is_not_taken() {
    let bench = Bench::new();
    bench.copy("b", "x/b1");
    bench.copy("b", "x/b2");
    fs::remove_file(bench.at("b")).expect("removed");
    let (devices, notes) = bench.found_in(&["a"], &["x"]);
    assert_eq!(devices, ["a"]);
    assert!(notes.contains("as others do"), "{notes}");
}

#[test]
fn a_file_that_is_elsewhere_is_no_start() {
    let bench = Bench::new();
    bench.rename("a", "x/a");
    bench.rename("b", "x/b");
    let (devices, notes) = bench.by_name(&["x"]);
    assert_eq!(devices, [""; 0]);
    assert!(notes.contains("cannot be told"), "{notes}");
    bench.rename("x/a", "a");
    assert_eq!(bench.by_name(&["x", "."]).0, ["a", "x/b"], "it was moved, by the other one");
}

#[test]
fn what_is_none_of_the_pool_is_left_alone() {
    let bench = Bench::new();
    fs::write(bench.at("blank"), vec![0; 2 << 20]).expect("written");
    let (devices, notes) = bench.found(&["a", "blank"], |_| ());
    assert_eq!(devices, ["a", "b"]);
    assert!(notes.contains("is left alone"), "{notes}");
    // While one is missing it may be that one: the open decides.
    bench.rename("b", "away/b");
    assert_eq!(bench.found(&["a", "blank"], |_| ()).0, ["a", "blank"]);
}

#[test]
fn a_name_can_be_a_uuid() {
    let bench = Bench::new();
    let uuid = Uuid::from_bytes(POOL).to_string().to_uppercase();
    let (mut devices, notes) = bench.found(&[], |said| {
        said.pool.name = Some(uuid);
        said.pool.search = Some(vec![bench.at(".")]);
    });
    devices.sort();
    assert_eq!(devices, ["a", "b"], "{notes}");
    let (_, notes) = bench.found(&[], |said| said.pool.name = Some("other".into()));
    assert!(notes.contains("no pool \"other\""), "{notes}");
}
