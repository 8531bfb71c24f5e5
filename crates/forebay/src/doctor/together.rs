//! Checks of all devices together: which of them fail at the same time, and whether their files
//! have room to grow.

use super::finding::{Finding, Level};
use super::found::{Device, DeviceTable, MountPoint, Role, State};
use crate::units::human_bytes;

/// Checks the devices together. `table` is what the pool itself says of its devices.
pub fn check(devices: &[Device], table: Option<&DeviceTable>) -> Vec<Finding> {
    let pool: Vec<&Device> = devices.iter().filter(|one| one.role == Role::Pool).collect();
    let cache = devices.iter().find(|one| one.role != Role::Pool);
    let mut all = Vec::new();
    all.extend(table.and_then(|table| not_named(pool.len(), table)));
    all.extend(one_copy(&pool, table));
    all.extend(same_disk(&pool));
    if let Some(cache) = cache {
        if let Some((one, disk)) = pool.iter().find_map(|one| Some((one, shared(one, cache)?))) {
            all.push(Finding::new(
                Level::Warning,
                "cache",
                format!("{} is on the same disk as {} ({disk})", cache.name(), one.name()),
                "put the cache on a disk of its own, a faster one: here it takes time from \
                 the pool",
            ));
        }
    }
    all.extend(room(devices));
    all
}

/// Devices that the pool has, and that are not among those that were looked at.
fn not_named(named: usize, table: &DeviceTable) -> Option<Finding> {
    (table.devices > named).then(|| {
        let found = format!(
            "the pool has {} devices, and {named} of them {} named; these are not there: {}",
            table.devices,
            if named == 1 { "is" } else { "are" },
            table.missing.join(", ")
        );
        let todo = "name all of them (--device, or devices in the configuration); where one is \
                    lost, serve the pool without it and type forebay device replace ID NEW";
        Finding::new(Level::Problem, "copies", found, todo)
    })
}

/// A pool of which every block is there once.
fn one_copy(pool: &[&Device], table: Option<&DeviceTable>) -> Option<Finding> {
    let note = |found: String, todo: &str| Some(Finding::new(Level::Note, "copies", found, todo));
    match (pool, table) {
        (_, Some(table)) if table.copies > 1 => None,
        (_, Some(table)) if table.devices > 1 => note(
            "the pool has one copy of every block: nothing heals what is bad there".into(),
            "have it keep two, if there is room: forebay pool set copies=2",
        ),
        ([one], _) => note(
            format!("the pool has one device, {}: nothing heals what is bad there", one.name()),
            "give it a second one, on another disk: forebay device add, then forebay pool set \
             copies=2",
        ),
        _ => None,
    }
}

/// A disk that is below both.
fn shared(a: &Device, b: &Device) -> Option<String> {
    let (a, b) = (a.properties()?, b.properties()?);
    a.disks.iter().find(|disk| b.disks.contains(disk)).cloned()
}

fn same_disk(pool: &[&Device]) -> Option<Finding> {
    let pairs =
        pool.iter().enumerate().flat_map(|(i, a)| pool[i + 1..].iter().map(move |b| (a, b)));
    let (a, b, disk) = pairs.into_iter().find_map(|(a, b)| Some((a, b, shared(a, b)?)))?;
    Some(Finding::new(
        Level::Warning,
        "copies",
        format!(
            "{} and {} are on the same disk ({disk}): it takes both copies along",
            a.name(),
            b.name()
        ),
        "put them on different disks: forebay device replace PATH NEW does it under load",
    ))
}

/// Files that may still grow, by file system.
fn room(devices: &[Device]) -> Vec<Finding> {
    let mut systems: Vec<(&MountPoint, u64, Vec<String>)> = Vec::new();
    for device in devices {
        let Some(mount) = &device.mount else { continue };
        let grows = match (&device.state, device.role) {
            (State::There(properties), _) if properties.block => continue,
            (State::There(properties), _) => {
                properties.size_bytes.saturating_sub(properties.allocated_bytes)
            }
            (State::Missing(_), Role::Cache(Some(size))) => size,
            _ => 0,
        };
        if grows == 0 {
            continue;
        }
        match systems.iter_mut().find(|one| one.0.point == mount.point) {
            Some((_, sum, names)) => {
                *sum += grows;
                names.push(device.name());
            }
            None => systems.push((mount, grows, vec![device.name()])),
        }
    }
    let finding = |(mount, grows, names): (&MountPoint, u64, Vec<String>)| {
        let (point, free) = (mount.point.display(), human_bytes(mount.free_bytes));
        let grows_text = human_bytes(grows);
        let (names, verb) = (names.join(", "), if names.len() > 1 { "take" } else { "takes" });
        if grows <= mount.free_bytes {
            let found = format!("{names} {verb} up to {grows_text} more; {point} has {free} free");
            return Finding::ok("room", found);
        }
        Finding::new(
            Level::Warning,
            "room",
            format!("{names} {verb} up to {grows_text} more, and {point} has only {free} free"),
            "make room there before it runs out: writes fail then. Or make the volumes smaller, or \
             move a device (forebay device replace)",
        )
    };
    systems.into_iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::super::finding::has;
    use super::super::found::{plain, with};
    use super::*;

    #[test]
    fn devices_of_their_own_are_fine() {
        let all =
            [plain("/a", Role::Pool), plain("/b", Role::Pool), plain("/c", Role::Cache(None))];
        assert_eq!(check(&all, None), []);
    }

    #[test]
    fn what_shares_a_disk() {
        let on = |device: Device| with(device, |properties| properties.disks = vec!["sda".into()]);
        let (a, b) = (plain("/a", Role::Pool), plain("/b", Role::Pool));
        let cache = plain("/c", Role::Cache(None));
        let all = check(&[on(a.clone()), on(b.clone()), cache.clone()], None);
        assert!(has(&all, Level::Warning, &["/a and /b are on the same disk (sda)"]), "{all:?}");
        let all = check(&[a.clone(), on(b), on(cache)], None);
        assert!(has(&all, Level::Warning, &["the cache /c is on the same disk as /b"]), "{all:?}");
        assert!(has(&check(&[a], None), Level::Note, &["one device", "copies=2"]));
    }

    #[test]
    fn the_pool_says_which_devices_it_has() {
        let one = [plain("/a", Role::Pool)];
        let table = |copies, devices, missing: &[&str]| DeviceTable {
            copies,
            devices,
            missing: missing.iter().map(|id| (*id).to_owned()).collect(),
        };
        let all = check(&one, Some(&table(2, 2, &["id-2"])));
        assert!(has(&all, Level::Problem, &["2 devices", "1 of them is named", "id-2"]), "{all:?}");
        assert!(!has(&all, Level::Note, &["copies"]), "it has two copies: {all:?}");
        assert!(has(&check(&one, Some(&table(1, 1, &[]))), Level::Note, &["one device"]));
        let two = [plain("/a", Role::Pool), plain("/b", Role::Pool)];
        assert!(has(&check(&two, Some(&table(1, 2, &[]))), Level::Note, &["one copy"]));
        // One that is named and missing is told where it is named.
        assert_eq!(check(&two, Some(&table(2, 2, &["id-2"]))), []);
    }

    #[test]
    fn files_that_grow_need_room() {
        let sparse =
            |path: &str| with(plain(path, Role::Pool), |properties| properties.allocated_bytes = 0);
        let free = |mut device: Device, free_bytes| {
            device.mount = Some(MountPoint { point: "/m".into(), kind: "xfs".into(), free_bytes });
            device
        };
        let (a, b) = (sparse("/m/a"), sparse("/m/b"));
        let all = check(&[free(a.clone(), 3 << 30), free(b.clone(), 3 << 30)], None);
        assert!(has(&all, Level::Ok, &["/m/a, /m/b take up to 2 GiB more", "3 GiB"]), "{all:?}");
        let all = check(&[free(a, 1 << 30), free(b, 1 << 30)], None);
        assert!(has(&all, Level::Warning, &["up to 2 GiB more", "only 1 GiB free"]), "{all:?}");
        // A cache that is still to be made counts, too.
        let mut cache = free(plain("/m/c", Role::Cache(Some(2 << 30))), 1 << 30);
        cache.state = State::Missing("none".into());
        let whole = [plain("/a", Role::Pool), plain("/b", Role::Pool), cache];
        assert!(has(
            &check(&whole, None),
            Level::Warning,
            &["the cache /m/c takes up to 2 GiB more"]
        ));
    }
}
