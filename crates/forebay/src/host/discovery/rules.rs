//! The rules by which a device that was not named is taken, or not.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use std::ffi::OsStr;

use format::places::{Place, PlaceKind, Places};
use format::superblock::{DeviceState, Superblock};
use uuid::Uuid;

use crate::host::sighting::{SeenDevice, Sighting};
use crate::host::world::{identity, is_block_device};

pub(super) fn path_of(row: &Place) -> &Path {
    Path::new(OsStr::from_bytes(&row.path))
}

/// The uuids of all devices of a pool.
pub(super) fn rows(newest: &Superblock) -> impl Iterator<Item = [u8; 16]> + '_ {
    newest.devices.iter().filter(|row| row.state != DeviceState::Removed).map(|row| row.uuid)
}

pub(super) fn newest_of(devices: &[SeenDevice]) -> Option<&Superblock> {
    pool::raw::newest_superblock(devices.iter().map(|one| &one.superblock))
}

/// The newest record of places that devices of one pool have.
pub(super) fn record_of(devices: &[SeenDevice]) -> Option<Places> {
    let pool = newest_of(devices)?.pool_uuid;
    let all = devices.iter().filter_map(|one| one.places.as_ref());
    all.filter(|record| record.pool_uuid == pool).max_by_key(|record| record.sequence).cloned()
}

/// The path that a record has of a device.
pub(super) fn place_in(record: Option<&Places>, uuid: [u8; 16]) -> Option<&Path> {
    let mut rows = record?.rows.iter();
    rows.find(|row| row.kind == PlaceKind::Device && row.uuid == uuid).map(path_of)
}

/// Whether all devices of the pool are there.
pub(super) fn is_whole(chosen: &[SeenDevice]) -> bool {
    newest_of(chosen).is_some_and(|newest| {
        rows(newest).all(|uuid| chosen.iter().any(|one| one.uuid() == Some(uuid)))
    })
}

/// The paths of devices, and those that they have on record of the others.
pub(super) fn known_paths(chosen: &[SeenDevice]) -> Vec<PathBuf> {
    let record = record_of(chosen);
    let rows = record.iter().flat_map(|record| &record.rows);
    let kept = rows.filter(|row| !row.path.is_empty()).map(|row| path_of(row).to_owned());
    kept.chain(chosen.iter().map(|one| one.path.clone())).collect()
}

/// The next device that is taken beside those that are; first those of which there is no doubt.
pub(super) fn next_choice(chosen: &[SeenDevice], others: &[SeenDevice]) -> Option<SeenDevice> {
    let is_free = |one: &&SeenDevice| {
        one.uuid().is_some_and(|uuid| chosen.iter().all(|own| own.uuid() != Some(uuid)))
            && belongs_to_another(one, chosen).is_none()
    };
    let free: Vec<&SeenDevice> = others.iter().filter(is_free).collect();
    let record = record_of(chosen);
    let on_record = |one: &SeenDevice| {
        let place = one.uuid().and_then(|uuid| place_in(record.as_ref(), uuid));
        place.map(|place| identity(place) == one.place)
    };
    let is_only = |one: &SeenDevice, all: &dyn Fn(&SeenDevice) -> bool| {
        free.iter().filter(|other| other.uuid() == one.uuid() && all(other)).count() == 1
    };
    let recorded = |one: &SeenDevice| on_record(one) == Some(true);
    let at_home = |one: &SeenDevice| on_record(one).is_none() && is_at_home(one);
    let moved = |one: &SeenDevice| has_moved(one, chosen, record.as_ref());
    let rules: [&dyn Fn(&SeenDevice) -> bool; 3] = [&recorded, &at_home, &moved];
    // A copy that was served alone once is at home, too: first those that say it alone.
    let sure = free.iter().find(|one| at_home(one) && is_only(one, &|_| true));
    let by_rule =
        || rules.iter().find_map(|rule| free.iter().find(|one| rule(one) && is_only(one, rule)));
    free.iter().find(|one| recorded(one)).or(sure).or_else(by_rule).map(|one| (*one).clone())
}

/// Whether a device that is not where it was has been moved: nothing is there any more, and the
/// device has everything that the pool has. The first of all may be a disk, and no file: a file may
/// be a backup of one whose file system is not there yet.
pub(super) fn has_moved(one: &SeenDevice, chosen: &[SeenDevice], record: Option<&Places>) -> bool {
    let Some(uuid) = one.uuid() else { return false };
    let mut homes = place_in(record, uuid).into_iter().chain(home_of(one));
    let has_all = match newest_of(chosen) {
        Some(newest) => pool::raw::is_up_to_date(&one.superblock, newest),
        None => is_block_device(&one.path),
    };
    has_all && homes.all(|home| identity(home) != one.place && is_vacant(home, uuid))
}

/// Whether what was at a place is there no more. A place that cannot be looked at may have it.
pub(super) fn is_vacant(home: &Path, uuid: [u8; 16]) -> bool {
    match home.metadata() {
        Err(e) => e.kind() == ErrorKind::NotFound,
        Ok(meta) if !meta.is_file() && !is_block_device(home) => true,
        Ok(_) => match (File::open(home), Sighting::at(home)) {
            (Err(_), _) => false,
            (Ok(_), None) => true,
            (Ok(_), Some(Sighting::Device(there))) => there.uuid() != Some(uuid),
            (Ok(_), Some(Sighting::Cache(there))) => there.superblock.uuid != uuid,
        },
    }
}

/// The place of another device of the same uuid as one that is taken, to which this one belongs, by
/// its own record.
pub(super) fn belongs_to_another(one: &SeenDevice, chosen: &[SeenDevice]) -> Option<PathBuf> {
    chosen.iter().find_map(|own| {
        let uuid = own.uuid()?;
        let place = place_in(one.places.as_ref(), uuid)?;
        let there = SeenDevice::at(place)?;
        (there.place != own.place && there.uuid() == Some(uuid)).then(|| place.to_owned())
    })
}

/// Why a device that was found is not taken, in words.
pub(super) fn why_not(
    one: &SeenDevice,
    chosen: &[SeenDevice],
    others: &[SeenDevice],
) -> Option<String> {
    let uuid = one.uuid()?;
    let name = Uuid::from_bytes(uuid);
    let is_known = newest_of(chosen).is_none_or(|newest| rows(newest).any(|own| own == uuid));
    if !is_known {
        return None;
    }
    if let Some(place) = belongs_to_another(one, chosen) {
        return Some(format!(
            "it belongs to {}, which is still there; what is served is a copy of that",
            place.display()
        ));
    }
    let same = others.iter().filter(|other| other.uuid() == Some(uuid)).count();
    Some(match same > 1 {
        true => format!(
            "it says that it is the device {name}, as others do: which is the right one cannot be \
             told. Name that with --device"
        ),
        false => format!(
            "it says that it is the device {name}, but is not where that was last, and may be an \
             older copy. If it is the device: forebay device online PATH"
        ),
    })
}

/// The path where a device was last, by its own record.
pub(super) fn home_of(one: &SeenDevice) -> Option<&Path> {
    place_in(one.places.as_ref(), one.uuid()?)
}

/// Whether a device is where it was last. A device without a record is at home if its pool was
/// never opened since it was made; else the device may be a copy of before there were records.
pub(super) fn is_at_home(one: &SeenDevice) -> bool {
    match home_of(one) {
        Some(home) => identity(home) == one.place,
        None => !one.superblock.lineage.is_known(),
    }
}

/// The device of which this one is a copy: that of the same uuid, where this one was last.
pub(super) fn original_of(one: &SeenDevice) -> Option<PathBuf> {
    let home = home_of(one)?;
    let there = SeenDevice::at(home)?;
    (there.place != one.place && there.uuid() == one.uuid()).then(|| home.to_owned())
}
