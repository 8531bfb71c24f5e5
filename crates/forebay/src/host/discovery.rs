//! Finds the devices of a pool, and its cache, where they are: a configuration says where to begin,
//! and every device says itself what it is.
//!
//! What was named is looked at first. What the pool has and nothing named is looked for
//!
//! 1. at the places of all that was named, in whatever role,
//! 2. where the record of places on the devices says that it was last ([`format::places`]),
//! 3. beside these, in the directories of `pool.search`, and among the block devices of the
//!    machine.
//!
//! A device counts by the uuids in its superblock alone. But a copy, made by `cp` or a snapshot,
//! says what the original says. So what was not named is taken only if nothing speaks against it
//! ([`Search::choose`]):
//!
//! | the device | is taken |
//! | --- | --- |
//! | is where the devices that are served have it on record, or, where they have nothing, where it has itself | yes |
//! | is elsewhere; at that place there is nothing any more; and it has everything that the pool has, or is a disk and the first that is taken | yes: it was moved |
//! | is elsewhere and lacks something, or the place cannot be looked at | no: it may be an older copy |
//! | has on record that a served device is elsewhere, and that one is there | no: it belongs to that one |
//! | one of several that say the same, none of which is where it was | no |
//!
//! Of a cache nothing tells whether it has everything. It is taken from its recorded place, and, if
//! it is a block device, from elsewhere when nothing is there any more.
//!
//! What was named and is no device of the pool is left alone once all others are there. If a named
//! device is a copy whose original is still where it was, nothing is looked for: all that would be
//! found belongs to the original.
//!
//! Fault model: a place that does not answer holds up nothing for longer than [`PATIENCE`].
#![allow(
    clippy::disallowed_methods,
    reason = "before the engine begins: a thread, so that no place that hangs is waited for"
)]

mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use format::places::{Place, PlaceKind};
use format::superblock::Superblock;
use uuid::Uuid;

use crate::config::Sections;
use crate::error::{CommandError, Result};
use crate::host::candidates::{block_devices, of_directory};
use crate::host::device_list::ListedDevice;
use crate::host::devices::DeviceChoice;
use crate::host::sighting::{SeenCache, SeenDevice, Sighting, Sightings, look_at_all};
use crate::host::world::{GoneDevice, identity, is_block_device};
use rules::{
    home_of, is_at_home, is_vacant, is_whole, known_paths, newest_of, next_choice, original_of,
    path_of, record_of, rows, why_not,
};

/// For so long the places of one step are waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// For so long the whole search is waited for.
const ALL_PATIENCE: Duration = Duration::from_secs(15);

/// The outcome of a search for a pool that is to be served.
#[derive(Default, Debug)]
pub struct Discovery {
    /// Sentences that the user should hear.
    pub notes: Vec<String>,
    /// The last places of the devices, also those that are missing.
    pub last: Vec<ListedDevice>,
    /// The user took the cache out, and none is to be made.
    pub no_cache: bool,
    /// Devices that could not be opened.
    pub gone: Vec<GoneDevice>,
}

/// Finds what the pool has, and says it in `said` instead of what was named. Without a pool that
/// can be told, everything stays as it was named. Waits for [`ALL_PATIENCE`] at most.
///
/// # Errors
///
/// `pool.name` is said, and no pool, or several, have that name; or nothing was named, and which
/// devices are the pool's cannot be told.
pub fn find(said: &mut Sections) -> Result<Discovery> {
    let (sender, answer) = mpsc::channel();
    let mut looked = said.clone();
    std::thread::spawn(move || {
        let found = find_now(&mut looked);
        // The caller does not wait any more where it took too long.
        _ = sender.send((found, looked));
    });
    match answer.recv_timeout(ALL_PATIENCE) {
        Ok((found, looked)) => {
            *said = looked;
            found
        }
        Err(_) if said.devices.is_empty() => Err(CommandError::Failed(format!(
            "looking for the devices of the pool has taken {} seconds: a file system or a disk \
             does not answer. Name the devices with --device",
            ALL_PATIENCE.as_secs()
        ))),
        Err(_) => {
            let text = "a file system or a disk does not answer: nothing was looked for, and only \
                        what is named is served";
            Ok(Discovery { notes: vec![text.into()], ..Discovery::default() })
        }
    }
}

fn find_now(said: &mut Sections) -> Result<Discovery> {
    let mut search = Search::of(said);
    let Some(pool) = search.pool(said.pool.name.as_deref())? else {
        return Ok(Discovery::default());
    };
    let is_copy = search.is_copy(pool);
    let chosen = search.gather(pool, is_copy);
    let Some(newest) = newest_of(&chosen).cloned() else {
        return match said.devices.is_empty() {
            true => Err(CommandError::Failed(search.no_choice())),
            false => Ok(Discovery { notes: search.notes, ..Discovery::default() }),
        };
    };
    said.devices = search.choices(&said.devices, &chosen, &newest);
    if let Some(uuid) = newest.cache_uuid
        && !said.cache.forget
    {
        search.find_cache(uuid, &chosen, is_copy, &mut said.cache.path);
    }
    let record = record_of(&chosen);
    let rows = || record.iter().flat_map(|record| &record.rows);
    let no_cache = newest.cache_uuid.is_none() && rows().any(|row| row.kind == PlaceKind::NoCache);
    if no_cache && said.cache.kept_in.is_none() && said.cache.size.is_some_and(|size| size > 0) {
        said.cache.size = None;
        search.notes.push(
            "the pool has no cache, as forebay cache detach took it out: none is made, whatever \
             the configuration says; forebay cache attach makes one"
                .into(),
        );
    }
    // What a copy has on record is where the devices of the original are.
    let last = if is_copy { Vec::new() } else { last_places(rows()) };
    Ok(Discovery { notes: search.notes, last, no_cache, gone: Vec::new() })
}

/// The last places of the devices, by a record.
fn last_places<'a>(rows: impl Iterator<Item = &'a Place>) -> Vec<ListedDevice> {
    let devices = rows.filter(|row| row.kind == PlaceKind::Device);
    devices
        .map(|row| ListedDevice {
            id: Uuid::from_bytes(row.uuid).to_string(),
            path: path_of(row).to_owned(),
        })
        .collect()
}

/// The last place of the cache, by a device's record. A copy of a device has none: the cache
/// belongs to the original. May block.
pub fn cache_beside(device: &SeenDevice) -> Option<PathBuf> {
    let mut rows = device.places.iter().flat_map(|record| &record.rows);
    let cache = rows.find(|row| row.kind == PlaceKind::Cache)?;
    original_of(device).is_none().then(|| path_of(cache).to_owned())
}

/// What devices that are named say of the places of all devices of their pool. For a start that
/// takes only what is named. May block.
pub fn last_known(devices: &[DeviceChoice]) -> Discovery {
    let seen: Vec<SeenDevice> =
        devices.iter().filter_map(|one| SeenDevice::at(&one.path)).collect();
    if seen.iter().any(|one| original_of(one).is_some()) {
        return Discovery::default();
    }
    let record = record_of(&seen);
    let rows = || record.iter().flat_map(|record| &record.rows);
    let no_cache = rows().any(|row| row.kind == PlaceKind::NoCache);
    Discovery { last: last_places(rows()), no_cache, ..Discovery::default() }
}

/// Something that was seen.
struct SeenPlace {
    what: Sighting,
    is_named: bool,
}

/// What has been seen so far.
struct Search {
    seen: Vec<SeenPlace>,
    /// The places that were looked at, whatever was there.
    looked: BTreeSet<PathBuf>,
    /// Directories that the configuration names.
    dirs: Vec<PathBuf>,
    silent: Vec<PathBuf>,
    notes: Vec<String>,
    /// Why devices that were found were not taken.
    refused: Vec<String>,
}

impl Search {
    /// Looks at what is named, in whatever role.
    fn of(said: &Sections) -> Search {
        let named = said.devices.iter().map(|one| one.path.as_path());
        let named: Vec<&Path> = named.chain(said.cache.path.as_deref()).collect();
        let seen = named.iter().filter_map(|path| Sighting::at(path));
        Search {
            seen: seen.map(|what| SeenPlace { what, is_named: true }).collect(),
            looked: named.iter().map(|path| identity(path)).collect(),
            dirs: said.pool.search.clone().unwrap_or_default(),
            silent: Vec::new(),
            notes: Vec::new(),
            refused: Vec::new(),
        }
    }

    fn all_devices(&self) -> impl Iterator<Item = (&SeenDevice, bool)> + Clone {
        self.seen.iter().filter_map(|one| match &one.what {
            Sighting::Device(seen) => Some((&**seen, one.is_named)),
            Sighting::Cache(_) => None,
        })
    }

    fn caches(&self, uuid: [u8; 16]) -> impl Iterator<Item = (&SeenCache, bool)> {
        self.seen.iter().filter_map(move |one| match &one.what {
            Sighting::Cache(seen) if seen.superblock.uuid == uuid => Some((&**seen, one.is_named)),
            _ => None,
        })
    }

    /// The pool that is meant: that of this uuid or name, or that of all devices that are named.
    fn pool(&mut self, name: Option<&str>) -> Result<Option<[u8; 16]>> {
        let Some(name) = name else {
            let mut pools = self.all_devices().map(|(one, _)| one.superblock.pool_uuid);
            let first = pools.next();
            return Ok(first.filter(|first| pools.all(|other| other == *first)));
        };
        if self.pools_called(name).is_empty() {
            self.look_everywhere(&[]);
        }
        let pools = self.pools_called(name);
        if pools.len() > 1 {
            let one = |(uuid, paths): (&[u8; 16], &Vec<String>)| {
                format!("{} on {}", Uuid::from_bytes(*uuid), paths.join(", "))
            };
            let all = pools.iter().map(one).collect::<Vec<_>>().join("; ");
            return Err(CommandError::Failed(format!(
                "there are several pools of the name {name:?}: {all}. Say the uuid of the one that \
                 is meant instead of the name"
            )));
        }
        match pools.into_keys().next() {
            Some(pool) => Ok(Some(pool)),
            None => Err(CommandError::Failed(self.no_pool(name))),
        }
    }

    /// The pools of this uuid or, if there is none, of this name; with the paths of their devices.
    fn pools_called(&self, name: &str) -> BTreeMap<[u8; 16], Vec<String>> {
        let uuid = Uuid::parse_str(name).ok().map(Uuid::into_bytes);
        let by_uuid = |one: &SeenDevice| Some(one.superblock.pool_uuid) == uuid;
        let is_uuid = self.all_devices().any(|(one, _)| by_uuid(one));
        let mut pools: BTreeMap<[u8; 16], Vec<String>> = BTreeMap::new();
        for (one, _) in self.all_devices() {
            if if is_uuid { by_uuid(one) } else { one.superblock.name == name } {
                let paths = pools.entry(one.superblock.pool_uuid).or_default();
                paths.push(one.path.display().to_string());
            }
        }
        pools
    }

    fn no_pool(&self, name: &str) -> String {
        let mut names: Vec<&str> =
            self.all_devices().map(|(one, _)| one.superblock.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let others = match names.is_empty() {
            true => String::new(),
            false => format!(" (pools that are there: {})", names.join(", ")),
        };
        let dirs: Vec<String> = self.dirs.iter().map(|dir| dir.display().to_string()).collect();
        let dirs = match dirs.is_empty() {
            true => String::new(),
            false => format!(", and the files in {}", dirs.join(", ")),
        };
        format!(
            "no pool {name:?} was found{others}; looked at: the block devices that this user may \
             read{dirs}. Where its devices are files, name their directory: --search DIR, or \
             search in [pool]{}",
            self.told_silent()
        )
    }

    /// Nothing of the pool was taken, and nothing was named.
    fn no_choice(&self) -> String {
        format!(
            "which devices are those of the pool cannot be told: {}. Name the right ones with \
             --device; then they are known{}",
            self.refused.join("; "),
            self.told_silent()
        )
    }

    fn told_silent(&self) -> String {
        match self.silent.is_empty() {
            true => String::new(),
            false => {
                let all: Vec<String> =
                    self.silent.iter().map(|path| path.display().to_string()).collect();
                format!("; did not answer: {}", all.join(", "))
            }
        }
    }

    /// Whether a named device of the pool is a copy whose original is still where it was.
    fn is_copy(&mut self, pool: [u8; 16]) -> bool {
        let named = self
            .all_devices()
            .filter(|(one, is_named)| *is_named && one.superblock.pool_uuid == pool);
        let found = named.filter_map(|(one, _)| Some((one.path.clone(), original_of(one)?)));
        let Some((copy, original)) = found.collect::<Vec<_>>().into_iter().next() else {
            return false;
        };
        self.notes.push(format!(
            "{} is a copy of {}, which is still there: only what is named is served, and nothing \
             else is looked for",
            copy.display(),
            original.display()
        ));
        true
    }

    /// Looks for devices of the pool until all are there, or there is no place left. Returns those
    /// that are taken.
    fn gather(&mut self, pool: [u8; 16], is_copy: bool) -> Vec<SeenDevice> {
        let mut chosen = self.choose(pool);
        if is_copy {
            return chosen;
        }
        // What is found may have a newer record, which leads to others.
        while !is_whole(&chosen) && self.look_at(known_paths(&chosen)) {
            chosen = self.choose(pool);
        }
        if !is_whole(&chosen) && self.look_everywhere(&known_paths(&chosen)) {
            chosen = self.choose(pool);
        }
        chosen
    }

    /// The devices that are taken of all that was seen: those that are named, and those against
    /// which nothing speaks.
    fn choose(&mut self, pool: [u8; 16]) -> Vec<SeenDevice> {
        let of_pool = |(one, _): &(&SeenDevice, bool)| one.superblock.pool_uuid == pool;
        let (named, others): (Vec<_>, Vec<_>) =
            self.all_devices().filter(of_pool).partition(|(_, is_named)| *is_named);
        let clone = |all: Vec<(&SeenDevice, bool)>| -> Vec<SeenDevice> {
            all.into_iter().map(|(one, _)| one.clone()).collect()
        };
        let (mut chosen, others) = (clone(named), clone(others));
        self.refused.clear();
        while let Some(next) = next_choice(&chosen, &others) {
            chosen.push(next);
        }
        let is_chosen = |uuid| chosen.iter().any(|one| one.uuid() == uuid);
        for one in others.iter().filter(|one| !is_chosen(one.uuid())) {
            if let Some(why) = why_not(one, &chosen, &others) {
                self.refused.push(format!("{}: {why}", one.path.display()));
            }
        }
        chosen
    }

    /// Looks beside `known`, in the directories that are named, and at all block devices. Returns
    /// whether anything new was seen.
    fn look_everywhere(&mut self, known: &[PathBuf]) -> bool {
        let beside = known.iter().filter_map(|path| path.parent()).filter(|dir| {
            // The nodes of devices are looked at anyway, by better names.
            !dir.starts_with("/dev") || dir.starts_with("/dev/shm")
        });
        let mut dirs: Vec<PathBuf> = beside.map(Path::to_owned).collect();
        dirs.extend(self.dirs.iter().cloned());
        dirs.sort();
        dirs.dedup();
        let mut paths: Vec<PathBuf> = dirs.iter().flat_map(|dir| of_directory(dir)).collect();
        paths.extend(block_devices());
        self.look_at(paths)
    }

    /// Looks at places that were not looked at yet. Returns whether anything was there.
    fn look_at(&mut self, paths: Vec<PathBuf>) -> bool {
        let fresh = paths.into_iter().filter(|path| self.looked.insert(identity(path))).collect();
        let Sightings { seen, silent } = look_at_all(fresh, PATIENCE);
        self.silent.extend(silent);
        let any = !seen.is_empty();
        self.seen.extend(seen.into_iter().map(|what| SeenPlace { what, is_named: false }));
        any
    }

    /// What is to be opened: devices that are named and of the pool, those that were found, and,
    /// where some are missing, also what is named and may be one of them.
    fn choices(
        &mut self,
        named: &[DeviceChoice],
        chosen: &[SeenDevice],
        newest: &Superblock,
    ) -> Vec<DeviceChoice> {
        let whole = is_whole(chosen);
        let known: Vec<[u8; 16]> = rows(newest).collect();
        let other = |place: &PathBuf| {
            // A device of another pool, or a cache.
            self.seen.iter().any(|one| match &one.what {
                Sighting::Device(seen) => {
                    seen.place == *place && seen.superblock.pool_uuid != newest.pool_uuid
                }
                Sighting::Cache(seen) => identity(&seen.path) == *place,
            })
        };
        let (mut choices, mut taken, mut notes) = (Vec::new(), Vec::new(), Vec::new());
        for choice in named {
            let place = identity(&choice.path);
            let is_one = chosen.iter().any(|one| {
                one.place == place && one.uuid().is_some_and(|uuid| known.contains(&uuid))
            });
            if !is_one && (whole || other(&place)) {
                notes.push(format!(
                    "{} is no device of the pool, and is left alone; the configuration names it",
                    choice.path.display()
                ));
                continue;
            }
            taken.push(place);
            choices.push(choice.clone());
        }
        for one in chosen.iter().filter(|one| !taken.contains(&one.place)) {
            if !one.uuid().is_some_and(|uuid| known.contains(&uuid)) {
                continue;
            }
            let path = one.path.display();
            if !named.is_empty() {
                notes.push(format!(
                    "{path} is a device of the pool, and was found; the configuration does not \
                     name it"
                ));
            } else if !is_at_home(one)
                && let Some(home) = home_of(one)
            {
                notes.push(format!(
                    "{path} is a device of the pool, and was found; it was last at {}",
                    home.display()
                ));
            }
            choices.push(DeviceChoice::from(one.path.clone()));
        }
        notes.extend(self.refused.drain(..).map(|why| format!("not taken: {why}")));
        self.notes.extend(notes);
        choices
    }

    /// Finds the cache of this uuid, if it is not at the place that is named.
    fn find_cache(
        &mut self,
        uuid: [u8; 16],
        chosen: &[SeenDevice],
        is_copy: bool,
        named: &mut Option<PathBuf>,
    ) {
        let at_named =
            |path: &Path| named.as_deref().is_some_and(|n| identity(n) == identity(path));
        if self.caches(uuid).any(|(seen, _)| at_named(&seen.path)) {
            return;
        }
        let mut found =
            self.caches(uuid).find(|(_, is_named)| *is_named).map(|(seen, _)| seen.path.clone());
        let record = record_of(chosen);
        let rows = record.iter().flat_map(|record| &record.rows);
        let home = rows.filter(|row| row.kind == PlaceKind::Cache).map(path_of).next();
        if found.is_none()
            && !is_copy
            && let Some(home) = home
        {
            self.look_at(vec![home.to_owned()]);
            let at_home = |path: &Path| identity(path) == identity(home);
            found = self
                .caches(uuid)
                .find(|(seen, _)| at_home(&seen.path))
                .map(|(seen, _)| seen.path.clone());
            if found.is_none() {
                self.look_everywhere(&known_paths(chosen));
                let places: Vec<PathBuf> =
                    self.caches(uuid).map(|(seen, _)| seen.path.clone()).collect();
                match places.as_slice() {
                    [one] if is_block_device(one) && is_vacant(home, uuid) => {
                        found = Some(one.clone());
                    }
                    [] => {}
                    several => {
                        let all: Vec<String> =
                            several.iter().map(|path| path.display().to_string()).collect();
                        self.notes.push(format!(
                            "{} says that it is the cache of the pool, which was last at {}: it is \
                             not taken unless it is named, as it may be an older copy",
                            all.join(", "),
                            home.display()
                        ));
                    }
                }
            }
        }
        let Some(path) = found else { return };
        if let Some(named) = named {
            self.notes.push(format!(
                "the cache of the pool is {}, and was found; the configuration names {}",
                path.display(),
                named.display()
            ));
        }
        *named = Some(path);
    }
}

#[cfg(test)]
#[path = "discovery_tests.rs"]
mod tests;
