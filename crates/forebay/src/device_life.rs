//! Devices that a served pool gets and gives up: opened, looked at, locked, closed.
//!
//! Fault model: a device that holds something is refused before anything is changed, unless the
//! user says otherwise; one that does not join is closed again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};

use base::ErrorKind;
use emulate::{Emulate, Emulations};
use pool::{DeviceFile, Pool};
use posix::{Handles, OpenFile};
use rt::Rt;
use serde_json::{Value, json};

use crate::control::{Answer, RequestError};
use crate::devices::DeviceChoice;
use crate::mailbox::spawn_blocking;
use crate::signatures;
use crate::world::open_unowned;

/// What a new device is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role<'a> {
    /// To be one like the others.
    Serves,
    /// To take the place of one that stays out of use.
    Spare,
    /// To take all that this one holds.
    Replaces(&'a str),
}

/// What is needed to open and close devices of the pool while it is served.
pub struct PoolDevices {
    rt: Rt,
    handles: Handles,
    emulations: Option<Emulations>,
    /// What devices, by their paths, are made to behave like.
    emulated: RefCell<BTreeMap<String, Emulate>>,
}

impl PoolDevices {
    /// Opens nothing yet. `devices`: those that are open already.
    pub fn new(
        rt: &Rt,
        handles: &Handles,
        emulations: Option<Emulations>,
        devices: &[DeviceChoice],
    ) -> PoolDevices {
        let emulated = devices.iter().filter_map(|d| Some((name(&d.path), d.emulate?)));
        PoolDevices {
            rt: rt.clone(),
            handles: handles.clone(),
            emulations,
            emulated: RefCell::new(emulated.collect()),
        }
    }

    /// What a device is made to behave like.
    pub fn emulated(&self, path: &str) -> Option<&'static str> {
        self.emulated.borrow().get(path).map(|what| what.name())
    }

    /// A device that is open, as a configuration names it.
    pub fn choice(&self, path: &str) -> DeviceChoice {
        let emulate = self.emulated.borrow().get(path).copied();
        DeviceChoice { path: path.into(), emulate }
    }

    /// Closes those that are no devices of the pool any more, so that others can have them.
    pub fn close_unused(&self, pool: &Pool, files: &[DeviceFile]) {
        for left in files.iter().filter(|f| !pool.uses_file(f.file)) {
            if let Err(e) = self.handles.close_file(left.file) {
                tracing::warn!(path = left.path, "closing a device that is left alone: {e}");
            }
        }
    }

    /// Adds a device to the pool, as on a command line: `PATH[,emulate=hdd|ssd]`. `force`: what it
    /// holds may be overwritten. A spare of the pool is used at once as `role` says.
    pub async fn add(&self, pool: &Pool, device: &str, role: Role<'_>, force: bool) -> Answer {
        let replaces = match role {
            Role::Replaces(old) => Some(old),
            Role::Serves | Role::Spare => None,
        };
        if role != Role::Spare && pool.use_spare(device, replaces).await? {
            tracing::info!(device, "the spare is used");
            return Ok(self.moves(pool));
        }
        let choice = DeviceChoice::parse(OsStr::new(device)).map_err(RequestError::invalid)?;
        if choice.emulate.is_some() && self.emulations.is_none() {
            let text = "this server emulates nothing: start it with a device that is emulated";
            return Err(RequestError::invalid(text));
        }
        let path = choice.path.clone();
        if pool.path_of_device(&name(&path)).is_ok() {
            let text = format!("{} is in use already, as a device of this pool", path.display());
            return Err(RequestError::invalid(text));
        }
        let opening =
            spawn_blocking(&self.rt, &self.handles, move || open_empty(&path, force)).await;
        let failed = |e: std::io::Error| RequestError::new("failed", e.to_string());
        let opened = opening.map_err(failed)?.map_err(|text| RequestError::new("refused", text))?;
        let size_bytes = opened.info.size_bytes;
        let file = self.handles.adopt_file(opened);
        choice.warn();
        if let (Some(what), Some(emulations)) = (choice.emulate, &self.emulations) {
            emulations.add(file, what, size_bytes);
        }
        let path = name(&choice.path);
        let device = DeviceFile { path: path.clone(), file, size_bytes };
        let uuid = uuid::Uuid::new_v4().into_bytes();
        let joined = match role {
            Role::Replaces(old) => pool.replace_device(old, device, uuid).await,
            Role::Serves => pool.add_device(device, uuid).await,
            Role::Spare => pool.add_spare(device, uuid).await,
        };
        if !pool.uses_file(file) {
            let _ = self.handles.close_file(file);
        } else if let Some(what) = choice.emulate {
            self.emulated.borrow_mut().insert(path, what);
        }
        joined?;
        Ok(self.moves(pool))
    }

    /// Gives the pool all that a device has, by its path or id. Its file grows to `size_bytes`
    /// before that, if it is given.
    pub async fn resize(&self, pool: &Pool, device: &str, size_bytes: Option<u64>) -> Answer {
        let path = pool.path_of_device(device)?;
        let file = PathBuf::from(&path);
        let growing = spawn_blocking(&self.rt, &self.handles, move || grown(&file, size_bytes));
        let failed = |e: std::io::Error| RequestError::new("failed", e.to_string());
        let size = growing.await.map_err(failed)?.map_err(RequestError::invalid)?;
        let usable = pool.grow_device(&path, size).await?;
        tracing::info!(device = %path, size, "the pool uses all of the device");
        Ok(json!({ "device": path, "size_bytes": size, "usable_bytes": usable }))
    }

    /// Takes a device out of use, by its path or id.
    pub async fn offline(&self, pool: &Pool, device: &str) -> Answer {
        pool.offline_device(device).await?;
        tracing::info!(device, "device taken out of use");
        Ok(self.moves(pool))
    }

    /// Takes a device into use again that was away, by its path or id; or by the path where it is
    /// now.
    pub async fn online(&self, pool: &Pool, device: &str) -> Answer {
        match pool.online_device(device).await {
            Ok(true) => return Ok(self.moves(pool)),
            // Not there when the pool was opened; or its file is of a device that was unplugged.
            Ok(false) => {}
            Err(e) if matches!(e.kind, ErrorKind::NotFound | ErrorKind::Io) => {}
            Err(e) => return Err(e.into()),
        }
        let path = PathBuf::from(device);
        let how = OpenFile { write: true, create_len: None, direct: true };
        let opening =
            spawn_blocking(&self.rt, &self.handles, move || open_unowned(&path, &how)).await;
        let failed = |e: std::io::Error| RequestError::new("failed", e.to_string());
        let opened = opening.map_err(failed)?;
        let opened = opened.map_err(|e| {
            let text = format!("{e}; say by which path the server finds the device now");
            RequestError::new("refused", text)
        })?;
        let size_bytes = opened.info.size_bytes;
        let file = self.handles.adopt_file(opened);
        let returned =
            pool.return_device(DeviceFile { path: device.to_owned(), file, size_bytes }).await;
        if !pool.uses_file(file) {
            let _ = self.handles.close_file(file);
        }
        returned?;
        Ok(self.moves(pool))
    }

    /// Closes the files of devices that leave the pool, for as long as it is served.
    pub async fn close_removed(&self, pool: Pool) {
        loop {
            for file in pool.removed_device().await {
                if let Err(e) = self.handles.close_file(file) {
                    tracing::warn!("closing the file of a device that was removed: {e}");
                }
            }
        }
    }

    /// What is moved, and how far that is.
    pub fn moves(&self, pool: &Pool) -> Value {
        json!(pool.moves_status())
    }
}

fn name(path: &Path) -> String {
    path.display().to_string()
}

/// The size of a device in bytes; of a file, after it has grown to `wanted`. That is durable: a
/// superblock is to rely on it.
fn grown(path: &Path, wanted: Option<u64>) -> Result<u64, String> {
    let failed = |e: std::io::Error| format!("{}: {e}", path.display());
    let mut file = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
    let size = file.seek(SeekFrom::End(0)).map_err(failed)?;
    let Some(wanted) = wanted else { return Ok(size) };
    let is_file = file.metadata().map_err(failed)?.is_file();
    if wanted < size {
        return Err(format!(
            "{} has {size} bytes already; a device does not shrink: replace it with a smaller one",
            path.display()
        ));
    }
    if wanted > size && !is_file {
        return Err(format!(
            "{} is no file: make the block device larger by its own means, then leave out the size",
            path.display()
        ));
    }
    if wanted > size {
        file.set_len(wanted).map_err(failed)?;
        file.sync_all().map_err(failed)?;
    }
    Ok(wanted)
}

/// Opens a device that holds nothing, or of which that does not matter.
fn open_empty(path: &Path, force: bool) -> Result<posix::Opened, String> {
    let failed = |e: std::io::Error| format!("{}: {e}", path.display());
    let how = OpenFile { write: true, create_len: None, direct: true };
    let opened = open_unowned(path, &how).map_err(|e| e.to_string())?;
    let file = File::open(path).map_err(failed)?;
    let found = signatures::find(&file, opened.info.size_bytes);
    if found.is_empty() {
        return Ok(opened);
    }
    let what = format!("{} holds {}", path.display(), signatures::describe(&found));
    if !force {
        return Err(format!("{what}; nothing was changed (--force overwrites it)"));
    }
    tracing::warn!("{what}: overwritten, as --force says");
    let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
    signatures::wipe(&file, &found).map_err(failed)?;
    Ok(opened)
}
