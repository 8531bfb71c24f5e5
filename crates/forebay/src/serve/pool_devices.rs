//! Devices that a served pool gets and gives up: opened, looked at, locked, closed.
//!
//! Fault model: a device that holds something is refused before anything is changed, unless the
//! user says otherwise; one that does not join is closed again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};

use base::{Duration, ErrorKind, shell_word};
use emulate::{Emulate, Emulations};
use model::device::{DeviceSize, DeviceStatus};
use model::moves::DeviceMoves;
use model::status::ConfigurationDrift;
use model::{Failure, FailureKind};
use pool::{DeviceFile, Pool};
use posix::names::is_same;
use posix::{Handles, OpenFile};
use rt::Rt;
use rt::sync::{Semaphore, within};

use crate::config::places::NamedPlaces;
use crate::error::CommandError;
use crate::host::device_list::{DeviceList, ListedDevice, together};
use crate::host::device_names::{KnownDevice, by_last_part, exact, same_file};
use crate::host::devices::DeviceChoice;
use crate::host::discovery::Discovery;
use crate::host::emptiness::InspectedDevice;
use crate::host::world::{GoneDevice, open_unowned};
use crate::serve::device_places::{DevicePlaces, KeptCache, drift_of, name, on_record, rows};
use crate::serve::mailbox::{close_file, spawn_blocking};

/// For so long the places that a configuration names are looked at.
const PATIENCE: Duration = Duration::from_secs(5);

/// The purpose of a new device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewDeviceRole<'a> {
    /// The device serves like the others.
    Serves,
    /// The device takes the place of one that stays out of use.
    Spare,
    /// The device takes all that this one holds.
    Replaces(&'a str),
}

/// The means to open and close devices of the pool while it is served.
pub struct PoolDevices {
    rt: Rt,
    handles: Handles,
    emulations: Option<Emulations>,
    /// The behaviour that devices are made to have, by their paths.
    emulated: RefCell<BTreeMap<String, Emulate>>,
    /// The list that keeps the places of the devices for the next start.
    list: Option<DeviceList>,
    /// The places of all devices, with devices that are joining.
    listed: RefCell<Vec<ListedDevice>>,
    cache: RefCell<KeptCache>,
    /// Devices that could not be opened at the start.
    gone: Vec<GoneDevice>,
    /// Whether the next start finds what nothing names.
    finds: bool,
    /// The places that the configuration names.
    named: RefCell<NamedPlaces>,
    /// The difference between that and what the pool has.
    drift: RefCell<Option<ConfigurationDrift>>,
    one_change: Semaphore,
}

impl PoolDevices {
    /// Opens nothing yet. `devices`: those that are open already; `named`: what the configuration
    /// names.
    pub fn new(
        rt: &Rt,
        handles: &Handles,
        emulations: Option<Emulations>,
        devices: &[DeviceChoice],
        places: DevicePlaces,
        named: NamedPlaces,
    ) -> Result<PoolDevices, CommandError> {
        let emulated = devices.iter().filter_map(|d| Some((name(&d.path), d.emulate?)));
        let (list, found, finds) = match places {
            DevicePlaces::Named(found) => (None, found, false),
            DevicePlaces::OnDevices(found) => (None, found, true),
            DevicePlaces::Listed(list, gone) => {
                (Some(list), Discovery { gone, ..Discovery::default() }, true)
            }
        };
        let listed = list.as_ref().map(DeviceList::read).transpose()?.flatten();
        let listed = listed.or_else(|| (!found.last.is_empty()).then_some(found.last));
        let choice = |d: &DeviceChoice| ListedDevice { id: String::new(), path: d.path.clone() };
        Ok(PoolDevices {
            rt: rt.clone(),
            handles: handles.clone(),
            emulations,
            emulated: RefCell::new(emulated.collect()),
            list,
            listed: RefCell::new(listed.unwrap_or_else(|| devices.iter().map(choice).collect())),
            cache: RefCell::new(match found.no_cache {
                true => KeptCache::TakenOut,
                false => KeptCache::Usual,
            }),
            finds,
            named: RefCell::new(named),
            drift: RefCell::default(),
            gone: found.gone,
            one_change: Semaphore::new(1),
        })
    }

    /// How the configuration differs from what the pool has.
    pub fn drift(&self) -> Option<ConfigurationDrift> {
        self.drift.borrow().clone()
    }

    /// Why a device could not be opened at the start, that was last at this path. Of one of which
    /// nothing is known: the only one that could not be opened is it.
    pub fn why_gone(&self, last_path: Option<&str>) -> Option<String> {
        let Some(last_path) = last_path else {
            let [one] = self.gone.as_slice() else { return None };
            return Some(one.why.clone());
        };
        let path = std::path::absolute(last_path).ok()?;
        let is_it =
            |one: &&GoneDevice| std::path::absolute(&one.path).is_ok_and(|named| named == path);
        self.gone.iter().find(is_it).map(|one| one.why.clone())
    }

    /// The configuration names this from now on.
    pub async fn compare_with(&self, pool: &Pool, named: NamedPlaces) {
        *self.named.borrow_mut() = named;
        self.remember(pool).await;
    }

    /// Whether a list in the server's own directory says where they are.
    pub fn keep_a_list(&self) -> bool {
        self.list.is_some()
    }

    /// Whether the next start finds the devices and the cache by itself.
    pub fn are_found(&self) -> bool {
        self.finds
    }

    /// Where the next start looks for the cache, as it is kept now.
    pub fn kept_cache(&self) -> KeptCache {
        self.cache.borrow().clone()
    }

    /// Keeps for the next start where the cache is.
    pub async fn keep_cache(&self, pool: &Pool, cache: KeptCache) {
        self.cache.replace(cache);
        self.remember(pool).await;
    }

    /// Where a device was last that is not open, if that is known.
    pub fn last_path(&self, id: &str) -> Option<String> {
        let listed = self.listed.borrow();
        listed.iter().find(|one| one.id == id).map(|one| name(&one.path))
    }

    /// Keeps for the next start where the devices of the pool are.
    pub async fn remember(&self, pool: &Pool) {
        if let Err(e) = self.keep(pool, None).await {
            tracing::warn!("{e}");
        }
        self.compare(pool).await;
    }

    /// The same, with a device that is about to join.
    async fn keep(&self, pool: &Pool, joins: Option<ListedDevice>) -> Result<(), Failure> {
        let _alone = self.one_change.acquire(1).await;
        let (known, before) = (self.known(pool), self.listed.borrow().clone());
        let cache = self.cache.borrow().clone();
        let failed = |text: String| Failure::new(FailureKind::Failed, text);
        let all = match self.list.clone() {
            Some(list) => {
                let writing = move || {
                    let all = together(known, joins, &before);
                    if all != before {
                        list.write(&all).map_err(|e| {
                            let at = list.path();
                            format!("{}: the list of devices cannot be written: {e}", at.display())
                        })?;
                    }
                    Ok(all)
                };
                let written = spawn_blocking(&self.rt, &self.handles, writing).await;
                written.map_err(|e| failed(e.to_string()))?.map_err(failed)?
            }
            None => on_record(known, joins),
        };
        let rows = rows(&all, &cache);
        *self.listed.borrow_mut() = all;
        Ok(pool.places().keep(rows).await?)
    }

    /// Compares the configuration with the pool. A place that does not answer ends that.
    async fn compare(&self, pool: &Pool) {
        if self.list.is_some() {
            return;
        }
        let (named, known) = (self.named.borrow().clone(), self.known(pool));
        let cache = self.cache.borrow().clone();
        let looking = move || drift_of(&named, &known, &cache);
        let mut looking = std::pin::pin!(spawn_blocking(&self.rt, &self.handles, looking));
        let drift = within(&mut looking, self.rt.sleep(PATIENCE)).await;
        *self.drift.borrow_mut() = drift.and_then(|drift| drift.ok().flatten());
    }

    /// The devices of the pool, and where they are or were.
    fn known(&self, pool: &Pool) -> Vec<KnownDevice> {
        let (devices, listed) = (pool.status().pool.devices, self.listed.borrow());
        // However the paths are spelled.
        let place = |path: &str| std::path::absolute(path).unwrap_or_else(|_| path.into());
        let is_taken = |path: &str| {
            devices.iter().any(|d| !d.path.is_empty() && place(&d.path) == place(path))
        };
        let before = |id: &str| listed.iter().find(|one| one.id == id).map(|one| name(&one.path));
        let known = |d: &DeviceStatus| {
            let is_open = !d.path.is_empty();
            let before = || before(&d.id).filter(|path| !is_taken(path)).unwrap_or_default();
            let path = if is_open { d.path.clone() } else { before() };
            KnownDevice { path, id: d.id.clone(), is_open }
        };
        devices.iter().map(known).collect()
    }

    /// The device that a user names, by its path however that is spelled, or by its id, or by the
    /// last part of its path.
    pub async fn find(&self, pool: &Pool, name: &str) -> Option<KnownDevice> {
        let all = self.known(pool);
        match exact(&all, name) {
            Some(one) => Some(one.clone()),
            None => self.in_file(&all, name).await.or_else(|| by_last_part(&all, name).cloned()),
        }
    }

    /// Returns the pool's name of the device that a user names; the user's own if the pool has no
    /// such device.
    pub async fn name_of(&self, pool: &Pool, name: &str) -> String {
        self.find(pool, name).await.map_or_else(|| name.to_owned(), |one| one.name().to_owned())
    }

    async fn in_file(&self, all: &[KnownDevice], name: &str) -> Option<KnownDevice> {
        let (all, name) = (all.to_vec(), name.to_owned());
        let looking = move || same_file(&all, &name).cloned();
        spawn_blocking(&self.rt, &self.handles, looking).await.ok().flatten()
    }

    /// Returns the behaviour that a device is made to have.
    pub fn emulated(&self, path: &str) -> Option<Emulate> {
        self.emulated.borrow().get(path).copied()
    }

    /// A device that is open, as a configuration names it.
    pub fn choice(&self, path: &str) -> DeviceChoice {
        let emulate = self.emulated.borrow().get(path).copied();
        DeviceChoice { path: path.into(), emulate }
    }

    /// Closes those that are no devices of the pool any more, so that others can have them.
    pub fn close_unused(&self, pool: &Pool, files: &[DeviceFile]) {
        for left in files.iter().filter(|f| !pool.moves().uses_file(f.file)) {
            if let Err(e) = self.handles.close_file(left.file) {
                tracing::warn!(path = left.path, "closing a device that is left alone: {e}");
            }
        }
    }

    /// Adds a device to the pool, as on a command line: `PATH[,emulate=hdd|ssd]`. `force`: what it
    /// holds may be overwritten. A spare of the pool is used at once as `role` says.
    pub async fn add(
        &self,
        pool: &Pool,
        device: &str,
        role: NewDeviceRole<'_>,
        force: bool,
    ) -> Result<DeviceMoves, Failure> {
        let old = match role {
            NewDeviceRole::Replaces(old) => Some(self.name_of(pool, old).await),
            NewDeviceRole::Serves | NewDeviceRole::Spare => None,
        };
        let choice = DeviceChoice::parse(OsStr::new(device)).map_err(Failure::invalid)?;
        let all = self.known(pool);
        let own = match exact(&all, device) {
            Some(one) => Some(one.clone()),
            None => self.in_file(&all, &name(&choice.path)).await,
        };
        if role != NewDeviceRole::Spare
            && let Some(spare) = &own
            && pool.spares().use_spare(spare.name(), old.as_deref()).await?
        {
            tracing::info!(device, "the spare is used");
            return Ok(self.replaced(pool, spare.name(), old.as_deref()));
        }
        if choice.emulate.is_some() && self.emulations.is_none() {
            let text = "this server emulates nothing: start it with a device that is emulated";
            return Err(Failure::invalid(text));
        }
        let path = choice.path.clone();
        // A device that is out of use, at the place of the new one.
        let before = own.filter(|one| one.is_open);
        before.as_ref().map_or(Ok(()), |one| pool.returns().check_out_of_use(&one.id))?;
        let opening =
            spawn_blocking(&self.rt, &self.handles, move || open_empty(&path, force)).await;
        let failed = |e: std::io::Error| Failure::new(FailureKind::Failed, e.to_string());
        let refused = |text: String| {
            let text = match &before {
                Some(one) => format!(
                    "{text}; if it is the device of this pool that is out of use: forebay device \
                     online {} takes it into use again",
                    shell_word(&one.path)
                ),
                None => text,
            };
            Failure::new(FailureKind::Refused, text)
        };
        let (opened, looked) = opening.map_err(failed)?.map_err(refused)?;
        let size_bytes = opened.info.size_bytes;
        // The content of the device is cleared only once the device is known to be fit.
        pool.moves().check_new_device(&name(&choice.path), size_bytes, old.as_deref())?;
        let old = self.old_at_place(pool, before, old).await?;
        let clearing = move || cleared(&looked);
        let cleared = spawn_blocking(&self.rt, &self.handles, clearing).await.map_err(failed)?;
        cleared.map_err(|text| Failure::new(FailureKind::Failed, text))?;
        let file = self.handles.adopt_file(opened);
        choice.warn();
        if let (Some(what), Some(emulations)) = (choice.emulate, &self.emulations) {
            emulations.add(file, what, size_bytes);
        }
        let path = name(&choice.path);
        let device = DeviceFile { path: path.clone(), file, size_bytes };
        let uuid = uuid::Uuid::new_v4();
        let joins = ListedDevice { id: uuid.to_string(), path: path.clone().into() };
        // Before it joins: what the next start does not find could not be read.
        let joined = match self.keep(pool, Some(joins)).await {
            Ok(()) => self.join(pool, device, uuid.into_bytes(), role, old.as_deref()).await,
            Err(e) => Err(e),
        };
        if !pool.moves().uses_file(file) {
            let _ = close_file(&self.rt, &self.handles, file).await;
        } else if let Some(what) = choice.emulate {
            self.emulated.borrow_mut().insert(path.clone(), what);
        }
        self.remember(pool).await;
        joined?;
        Ok(self.replaced(pool, &path, old.as_deref()))
    }

    /// The device that was at the place of a new one, and is out of use, counts as missing from
    /// now on. Returns what the pool calls `old` then.
    async fn old_at_place(
        &self,
        pool: &Pool,
        before: Option<KnownDevice>,
        old: Option<String>,
    ) -> Result<Option<String>, Failure> {
        let Some(one) = before else { return Ok(old) };
        if let Some(file) = pool.returns().give_up_place(&one.id)? {
            let _ = close_file(&self.rt, &self.handles, file).await;
        }
        tracing::warn!(device = one.path, id = one.id, "another device is at its place now");
        Ok(old.map(|old| if old == one.path { one.id } else { old }))
    }

    async fn join(
        &self,
        pool: &Pool,
        device: DeviceFile,
        uuid: [u8; 16],
        role: NewDeviceRole<'_>,
        old: Option<&str>,
    ) -> Result<(), Failure> {
        match (role, old) {
            (NewDeviceRole::Spare, _) => pool.moves().add_spare(device, uuid).await?,
            (_, Some(old)) => pool.moves().replace_device(old, device, uuid).await?,
            (_, None) => pool.moves().add_device(device, uuid).await?,
        }
        Ok(())
    }

    /// Gives the pool all that a device has, by its path or id. Its file grows to `size_bytes`
    /// before that, if it is given.
    pub async fn resize(
        &self,
        pool: &Pool,
        device: &str,
        size_bytes: Option<u64>,
    ) -> Result<DeviceSize, Failure> {
        let failed = |e: std::io::Error| Failure::new(FailureKind::Failed, e.to_string());
        let (path, file) = pool.moves().file_of_device(&self.name_of(pool, device).await)?;
        let (at, open) = (PathBuf::from(&path), self.handles.descriptor(file).map_err(failed)?);
        let growing = move || grown(&at, &open, size_bytes);
        let growing = spawn_blocking(&self.rt, &self.handles, growing);
        let size = growing.await.map_err(failed)?.map_err(Failure::invalid)?;
        if pool.moves().file_of_device(&path)?.1 != file {
            let text = format!("{path} is another device by now; try again");
            return Err(Failure::new(FailureKind::Refused, text));
        }
        let usable = pool.moves().grow_device(&path, size).await?;
        tracing::info!(device = %path, size, "the pool uses all of the device");
        Ok(DeviceSize { device: path, size_bytes: size, usable_bytes: usable })
    }

    /// Begins to move everything from a device to the others; then it leaves the pool.
    pub async fn remove(&self, pool: &Pool, device: &str) -> Result<DeviceMoves, Failure> {
        let device = self.name_of(pool, device).await;
        pool.moves().remove_device(&device).await?;
        tracing::info!(device, "device leaves the pool");
        Ok(self.told(pool, &device))
    }

    /// Takes a device out of use.
    pub async fn offline(&self, pool: &Pool, device: &str) -> Result<DeviceMoves, Failure> {
        let device = self.name_of(pool, device).await;
        pool.returns().offline_device(&device).await?;
        tracing::info!(device, "device taken out of use");
        Ok(self.told(pool, &device))
    }

    /// Takes a device into use again that was away; it may be named by the path where it is now.
    pub async fn online(&self, pool: &Pool, device: &str) -> Result<DeviceMoves, Failure> {
        let (known, mut tried) = (self.find(pool, device).await, None);
        if let Some(known) = &known {
            match pool.returns().online_device(known.name()).await {
                Ok(true) => return Ok(self.told(pool, known.name())),
                // Not there when the pool was opened; or its file is of a device that was
                // unplugged.
                Ok(false) => {}
                Err(e) if e.kind == ErrorKind::Io => tried = Some(e),
                Err(e) => return Err(e.into()),
            }
        }
        let path = known.map(|one| one.path).filter(|path| !path.is_empty());
        let path = path.unwrap_or_else(|| device.to_owned());
        let how = OpenFile { write: true, create: None, direct: true };
        let at = PathBuf::from(&path);
        let opening =
            spawn_blocking(&self.rt, &self.handles, move || open_unowned(&at, &how)).await;
        let failed = |e: std::io::Error| Failure::new(FailureKind::Failed, e.to_string());
        let opened = opening.map_err(failed)?;
        let opened = opened.map_err(|e| {
            let text = match tried {
                // The server itself has it open.
                Some(why) => format!(
                    "{path} cannot be used yet: {why}; mend that, or say by which path the server \
                     finds the device now"
                ),
                None => format!("{e}; say by which path the server finds the device now"),
            };
            Failure::new(FailureKind::Refused, text)
        })?;
        let size_bytes = opened.info.size_bytes;
        let file = self.handles.adopt_file(opened);
        let returned =
            pool.returns().return_device(DeviceFile { path: path.clone(), file, size_bytes }).await;
        if !pool.moves().uses_file(file) {
            let _ = close_file(&self.rt, &self.handles, file).await;
        }
        self.remember(pool).await;
        returned?;
        Ok(self.told(pool, &path))
    }

    /// Closes the files of devices that leave the pool, for as long as it is served.
    pub async fn close_removed(&self, pool: Pool) {
        loop {
            for file in pool.moves().removed_device().await {
                if let Err(e) = close_file(&self.rt, &self.handles, file).await {
                    tracing::warn!("closing the file of a device that was removed: {e}");
                }
            }
            self.remember(&pool).await;
        }
    }

    /// Returns the answer to a command whose work is done, or has begun: the device, and what is
    /// moved.
    fn told(&self, pool: &Pool, device: &str) -> DeviceMoves {
        let device = device.to_owned();
        DeviceMoves { moves: pool.moves().moves_status(), device, replaces: None, next_start: None }
    }

    /// The same of a device that takes the place of `old`, if there is one.
    fn replaced(&self, pool: &Pool, device: &str, old: Option<&str>) -> DeviceMoves {
        DeviceMoves { replaces: old.map(str::to_owned), ..self.told(pool, device) }
    }
}

/// The size in bytes of a device that is `open`; of a file, after it has grown to `wanted`. That is
/// durable: a superblock is to rely on it. Fails if something else is at its path by now: it is not
/// known then which of the two is meant.
fn grown(path: &Path, mut open: &File, wanted: Option<u64>) -> Result<u64, String> {
    let failed = |e: std::io::Error| format!("{}: {e}", path.display());
    let meta = open.metadata().map_err(failed)?;
    if path.metadata().is_ok_and(|there| !is_same(&there, &meta)) {
        return Err(format!(
            "{} is not what the server has open: something else has taken that place since. \
             Nothing was changed; put the device back there, or take it out of use (forebay device \
             offline) and into use again by the path where it is now (forebay device online PATH)",
            path.display()
        ));
    }
    let size = open.seek(SeekFrom::End(0)).map_err(failed)?;
    let Some(wanted) = wanted else { return Ok(size) };
    if wanted < size {
        return Err(format!(
            "{} has {size} bytes already; a device does not shrink: replace it with a smaller one",
            path.display()
        ));
    }
    if wanted > size && !meta.is_file() {
        return Err(format!(
            "{} is no file: make the block device larger by its own means, then leave out the size",
            path.display()
        ));
    }
    if wanted > size {
        open.set_len(wanted).map_err(failed)?;
        open.sync_all().map_err(failed)?;
    }
    Ok(wanted)
}

/// Opens a device that holds nothing, or of which that does not matter; and what it holds.
fn open_empty(path: &Path, force: bool) -> Result<(posix::LockedFile, InspectedDevice), String> {
    let failed = |e: std::io::Error| format!("{}: {e}", path.display());
    let how = OpenFile { write: true, create: None, direct: true };
    let opened = open_unowned(path, &how).map_err(|e| e.to_string())?;
    let looked = InspectedDevice::at(path, &opened).map_err(failed)?;
    match looked.held() {
        Some(held) if !force => Err(format!("{held}; nothing was changed (--force overwrites it)")),
        _ => Ok((opened, looked)),
    }
}

/// Makes a device empty, whose content may be lost.
fn cleared(looked: &InspectedDevice) -> Result<(), String> {
    if let Some(held) = looked.held() {
        tracing::warn!("{held}: overwritten, as --force says");
    }
    looked.clear().map_err(|e| format!("{}: {e}", looked.path))
}
