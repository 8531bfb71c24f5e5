//! `forebay create`: a new pool.

use std::path::PathBuf;

use base::shell_word;
use clap::Args;
use pool::{CreateOptions, DeviceFile, Pool};
use posix::{NewFile, OpenFile};
use rt::Rt;
use serde_json::json;

use crate::cli::options::{log_warnings, name, positive_size};
use crate::error::{CommandError, Result};
use crate::host::cache_file::check_room;
use crate::host::calendar::unix_time_at_zero;
use crate::host::devices::DeviceChoice;
use crate::host::emptiness::InspectedDevice;
use crate::host::world::{IoChoice, OpenError, World, check_distinct, open_unowned};
use crate::output::{is_json, print, print_json};
use crate::terminal::progress::waiting;
use crate::units::human_bytes;

/// Make a pool on files or block devices
///
/// Everything on the devices is lost. A device that is not zeros in its first 8 MiB and its last 8
/// MiB is refused, whatever it holds, unless --force is given. Serve the new pool with `forebay
/// serve --device ...`, then make volumes with `forebay volume create`.
#[derive(Args, Debug)]
pub struct Create {
    /// A file or block device (repeatable). A file that does not exist is made, with the size that
    /// --size says. With emulate it is as slow as a rotating disk, or as an SSD on SATA, while the
    /// pool is made. A comma of the path itself is written twice
    #[arg(
        long = "device",
        value_name = "PATH[,emulate=hdd|ssd]",
        value_parser = DeviceChoice::parser(),
        num_args = 1..,
        required = true
    )]
    devices: Vec<DeviceChoice>,
    /// Copies of every block, each on another device [default: 2, or 1 on a single device]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=3))]
    copies: Option<u8>,
    /// The pool's name
    #[arg(long, default_value = "forebay", value_parser = name)]
    name: String,
    /// Size of files that do not exist yet, or are empty; they are sparse
    #[arg(long, value_parser = positive_size)]
    size: Option<u64>,
    /// A file or block device, on a fast disk, for a write-back cache in front of the pool
    #[arg(long, value_name = "PATH")]
    cache: Option<PathBuf>,
    /// Size of the cache's file if it does not exist yet
    #[arg(long, value_name = "SIZE", value_parser = positive_size, requires = "cache")]
    cache_size: Option<u64>,
    /// Go ahead on devices that hold something
    #[arg(long)]
    force: bool,
    /// Backend for I/O
    #[arg(long, value_enum, value_name = "BACKEND", default_value_t)]
    io: IoChoice,
}

impl Create {
    pub fn run(self) -> Result<()> {
        check_distinct(self.devices.iter().map(|d| d.path.as_path()).chain(self.cache.as_deref()))?;
        let copies = self.copies.unwrap_or(if self.devices.len() > 1 { 2 } else { 1 });
        if usize::from(copies) > self.devices.len() {
            let text = format!("{copies} copies need as many devices, not {}", self.devices.len());
            return Err(CommandError::Usage(text));
        }
        log_warnings()?;
        let world = World::new(self.io, &self.devices)?;
        let mut made = Vec::new();
        let outcome = waiting("making the pool", || self.make(world, copies, &mut made));
        if outcome.is_err() {
            for path in made {
                let _ = std::fs::remove_file(path);
            }
        }
        outcome
    }

    /// Makes the pool, and names in `made` the files that this has made.
    fn make(&self, world: World, copies: u8, made: &mut Vec<PathBuf>) -> Result<()> {
        let mut looked = Vec::new();
        let mut files = Vec::new();
        for device in &self.devices {
            let new = self.size.map(NewFile::Sparse);
            files.push(self.open(&world, device, new, made, &mut looked)?);
        }
        let cache = match &self.cache {
            Some(path) => {
                let meta = path.metadata().ok();
                let is_to_be_made = meta.as_ref().is_none_or(|m| m.is_file() && m.len() == 0);
                if let Some(size) = self.cache_size.filter(|_| is_to_be_made) {
                    check_room(path, size, meta.as_ref())?;
                }
                let new = self.cache_size.map(NewFile::Reserved);
                Some(self.open(&world, &path.clone().into(), new, made, &mut looked)?)
            }
            None => None,
        };
        // Only when all of them are known to be fit is anything overwritten.
        self.judge(&looked)?;
        let options = CreateOptions { name: self.name.clone(), copies, group_bytes: None };
        pool::check_create(&files, &options)?;
        if let Some(f) = &cache {
            let fits = cache::check_create(f.size_bytes, &cache::CreateOptions::default());
            fits.map_err(|e| CommandError::failed(&f.path, e))?;
        }
        for one in looked {
            one.clear().map_err(|e| CommandError::failed(&one.path, e))?;
        }
        let ids: Vec<[u8; 16]> =
            (0..=files.len()).map(|_| uuid::Uuid::new_v4().into_bytes()).collect();
        let uuid = uuid::Uuid::from_bytes(ids[0]).to_string();
        let (rt, on, on_cache) = (world.rt.clone(), files.clone(), cache.clone());
        let created = world.rt.block_on(async move {
            pool::create(&rt, &on, &options, &ids).await?;
            match on_cache {
                Some(file) => make_cache(&rt, on, file).await,
                None => Ok(()),
            }
        });
        // Nothing kills this runtime, so there is a result.
        created.unwrap_or(Ok(()))?;
        self.report(&files, cache.as_ref(), copies, &uuid)
    }

    fn open(
        &self,
        world: &World,
        device: &DeviceChoice,
        new: Option<NewFile>,
        made: &mut Vec<PathBuf>,
        looked: &mut Vec<InspectedDevice>,
    ) -> Result<DeviceFile> {
        let path = device.path.as_path();
        let is_new = path.symlink_metadata().is_err();
        let how = OpenFile { write: true, create: new, direct: true };
        let opened = open_unowned(path, &how).map_err(|e| match e {
            OpenError::Gone(_) if is_new && new.is_none() => CommandError::Failed(format!(
                "{} does not exist; to make it, say how large with {}",
                path.display(),
                if self.cache.as_deref() == Some(path) { "--cache-size" } else { "--size" }
            )),
            OpenError::Gone(text) | OpenError::ReadOnly(text) => CommandError::Failed(text),
            OpenError::Refused(e) => e,
        })?;
        if is_new {
            made.push(path.to_owned());
        }
        let look = InspectedDevice::at(path, &opened);
        looked.push(look.map_err(|e| CommandError::failed(path.display(), e))?);
        let info = opened.info;
        Ok(world.device(device, world.handles.adopt_file(opened), &info))
    }

    /// Refuses devices that hold something, unless that may be overwritten.
    fn judge(&self, looked: &[InspectedDevice]) -> Result<()> {
        let held: Vec<String> = looked.iter().filter_map(InspectedDevice::held).collect();
        if held.is_empty() || self.force {
            held.iter().for_each(|text| tracing::warn!("{text}: overwritten, as --force says"));
            return Ok(());
        }
        Err(CommandError::Failed(format!(
            "{}; nothing was changed (--force overwrites it)",
            held.join("; ")
        )))
    }

    fn report(
        &self,
        files: &[DeviceFile],
        cache: Option<&DeviceFile>,
        copies: u8,
        uuid: &str,
    ) -> Result<()> {
        if is_json() {
            let devices: Vec<_> = files
                .iter()
                .map(|f| json!({ "path": f.path, "size_bytes": f.size_bytes }))
                .collect();
            let cache = cache.map(|f| json!({ "path": f.path, "size_bytes": f.size_bytes }));
            return print_json(&json!({
                "name": self.name, "uuid": uuid, "copies": copies,
                "devices": devices, "cache": cache,
            }));
        }
        let mut text =
            format!("made the pool {:?} ({uuid}), copies of every block: {copies}\n", self.name);
        let mut serve = String::from("serve it: forebay serve");
        for (f, device) in files.iter().zip(&self.devices) {
            text += &format!("  {}  {}\n", f.path, human_bytes(f.size_bytes));
            serve += &format!(" --device {}", shell_word(&device.to_string()));
        }
        if let Some(f) = cache {
            text += &format!("  {}  {}, write-back cache\n", f.path, human_bytes(f.size_bytes));
            serve += &format!(" --cache {}", shell_word(&f.path));
        }
        print(&format!("{text}{serve}\n"))
    }
}

/// Opens the new pool and puts a cache in front of it.
async fn make_cache(rt: &Rt, devices: Vec<DeviceFile>, on: DeviceFile) -> base::Result<()> {
    let settings =
        pool::Settings { unix_time_at_zero: unix_time_at_zero(rt), ..Default::default() };
    let (pool, _) = Pool::open(rt, devices, settings).await?;
    let file = cache::CacheFile { path: on.path, file: on.file, size_bytes: on.size_bytes };
    let uuid = uuid::Uuid::new_v4().into_bytes();
    cache::create(rt, &file, &pool, &cache::CreateOptions::default(), uuid).await?;
    pool.close().await
}
