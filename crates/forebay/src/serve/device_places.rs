//! Where the devices of a pool and its cache are, as the next start is to find them; and how that
//! differs from what the configuration names.

use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use format::places::{Place, PlaceKind};
use model::status::ConfigurationDrift;
use uuid::Uuid;

use crate::config::places::NamedPlaces;
use crate::host::device_list::{DeviceList, ListedDevice};
use crate::host::device_names::KnownDevice;
use crate::host::discovery::Discovery;
use crate::host::world::{GoneDevice, identity};

/// Where a server knows from where the devices of its pool are.
#[derive(Debug)]
pub enum DevicePlaces {
    /// From the command line, which names all of them.
    Named(Discovery),
    /// From the devices themselves.
    OnDevices(Discovery),
    /// From the list of a directory of `forebay up`; with devices that could not be opened.
    Listed(DeviceList, Vec<GoneDevice>),
}

impl DevicePlaces {
    /// The same, where these devices could not be opened.
    pub fn without(mut self, devices: &[GoneDevice]) -> DevicePlaces {
        let gone = match &mut self {
            DevicePlaces::Named(found) | DevicePlaces::OnDevices(found) => &mut found.gone,
            DevicePlaces::Listed(_, gone) => gone,
        };
        *gone = devices.to_vec();
        self
    }

    /// Tells the log what was found.
    pub fn tell(&self) {
        let (DevicePlaces::Named(found) | DevicePlaces::OnDevices(found)) = self else { return };
        found.notes.iter().for_each(|note| tracing::warn!("{note}"));
    }
}

/// Where the cache of the pool is, as it is kept for the next start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeptCache {
    /// There is none, and one may be made.
    Usual,
    /// At this path.
    At(PathBuf),
    /// At this path, and about to be taken out.
    Leaving(PathBuf),
    /// The user took it out.
    TakenOut,
}

/// The places of devices that are open, of one that joins, and of others where nothing else is by
/// now. Blocks nothing: places are told apart by their paths.
pub(super) fn on_record(known: Vec<KnownDevice>, joins: Option<ListedDevice>) -> Vec<ListedDevice> {
    let (open, away): (Vec<_>, Vec<_>) = known.into_iter().partition(|one| one.is_open);
    let listed = |one: KnownDevice| ListedDevice { id: one.id, path: one.path.into() };
    let away = away.into_iter().filter(|one| !one.path.is_empty());
    let mut kept: Vec<ListedDevice> = Vec::new();
    let whole = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for one in open.into_iter().map(listed).chain(joins).chain(away.map(listed)) {
        if kept.iter().all(|other| whole(&other.path) != whole(&one.path)) {
            kept.push(one);
        }
    }
    kept
}

/// The record of places that says where these are.
pub(super) fn rows(all: &[ListedDevice], cache: &KeptCache) -> Vec<Place> {
    let bytes = |path: &Path| {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        path.into_os_string().into_vec()
    };
    let device = |one: &ListedDevice| {
        let uuid = Uuid::parse_str(&one.id).ok()?.into_bytes();
        Some(Place { kind: PlaceKind::Device, uuid, path: bytes(&one.path) })
    };
    let at = |path: &PathBuf| Place { kind: PlaceKind::Cache, uuid: [0; 16], path: bytes(path) };
    let none = || Place { kind: PlaceKind::NoCache, uuid: [0; 16], path: Vec::new() };
    let cache = match cache {
        KeptCache::Usual => Vec::new(),
        KeptCache::At(path) => vec![at(path)],
        KeptCache::Leaving(path) => vec![at(path), none()],
        KeptCache::TakenOut => vec![none()],
    };
    all.iter().filter_map(device).chain(cache).collect()
}

/// How what a configuration names differs from the devices that the pool has, and from its cache.
/// May block.
pub(super) fn drift_of(
    named: &NamedPlaces,
    known: &[KnownDevice],
    cache: &KeptCache,
) -> Option<ConfigurationDrift> {
    let mut drift = ConfigurationDrift { is_found: true, ..ConfigurationDrift::default() };
    if !named.devices.is_empty() {
        let place = |one: &KnownDevice| identity(Path::new(&one.path));
        let open: Vec<_> = known.iter().filter(|one| one.is_open).map(|d| (d, place(d))).collect();
        let names: Vec<PathBuf> = named.devices.iter().map(|path| identity(path)).collect();
        // One that is missing is told as that.
        let unnamed = open.iter().filter(|(_, place)| !names.contains(place));
        drift.unnamed_devices = unnamed.map(|(one, _)| one.path.clone()).collect();
        // A start begins with what is named, unless the pool itself is.
        drift.is_found = named.pool || drift.unnamed_devices.len() < open.len();
        // A device whose last place is not known may be what is named; one that is away is named by
        // the path at which it was.
        if known.iter().all(|one| !one.path.is_empty()) {
            let away = |path: &Path| {
                let is_it = |one: &&KnownDevice| {
                    std::path::absolute(&one.path).ok() == std::path::absolute(path).ok()
                };
                known.iter().filter(|one| !one.is_open).any(|one| is_it(&one))
            };
            let unused =
                named.devices.iter().zip(&names).filter(|(path, place)| {
                    !open.iter().any(|(_, own)| own == *place) && !away(path)
                });
            drift.needless_devices = unused.map(|(path, _)| name(path)).collect();
        }
    }
    match (cache, &named.cache) {
        (KeptCache::At(is), Some(named)) if identity(is) != identity(named) => {
            drift.unnamed_cache = Some(name(is));
            drift.needless_cache = Some(name(named));
        }
        (KeptCache::At(is), None) if !named.devices.is_empty() => {
            drift.unnamed_cache = Some(name(is));
        }
        (KeptCache::TakenOut | KeptCache::Leaving(_), Some(named_cache)) if !named.no_cache => {
            drift.needless_cache = Some(name(named_cache));
        }
        _ => {}
    }
    let none = ConfigurationDrift { is_found: drift.is_found, ..ConfigurationDrift::default() };
    (drift != none).then_some(drift)
}

pub(super) fn name(path: &Path) -> String {
    path.display().to_string()
}
