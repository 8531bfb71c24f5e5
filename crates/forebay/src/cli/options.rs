//! Options that several commands have.

use std::path::{Path, PathBuf};

use cache::CacheFile;
use clap::Args;
use model::Verb;
use pool::DeviceFile;

use crate::config::CacheSection;
use crate::control::client::{ask, usual_socket};
use crate::control::words::doing;
use crate::error::{CommandError, Result};
use crate::host::cache_file;
use crate::host::devices::DeviceChoice;
use crate::host::home::Home;
use crate::host::logs;
use crate::host::roles;
use crate::host::world::{IoChoice, OpenedDevices, World, check_distinct};
use crate::terminal::progress::waiting;
use crate::units::parse_size;

/// The directory where `forebay up` keeps everything, and commands look for a server.
pub const DEFAULT_HOME: &str = "./forebay-data";

/// A size of something that is not empty.
pub fn positive_size(text: &str) -> std::result::Result<u64, String> {
    match parse_size(text)? {
        0 => Err("it cannot be 0".into()),
        n => Ok(n),
    }
}

/// A size of a volume.
pub fn volume_size(text: &str) -> std::result::Result<u64, String> {
    match positive_size(text)? {
        n if n % 512 != 0 => {
            Err("a volume's size is a multiple of its sectors of 512 bytes".into())
        }
        n if n > format::MAX_VOLUME_BYTES => Err("a volume has at most 1P".into()),
        n => Ok(n),
    }
}

/// A name of a pool or a volume.
pub fn name(text: &str) -> std::result::Result<String, String> {
    match pool::is_name(text) {
        true => Ok(text.to_owned()),
        false => Err(format!("a name is {}", pool::NAME_RULE)),
    }
}

/// For commands that work on devices without a server: only what goes wrong is logged.
pub fn log_warnings() -> Result<()> {
    let level = std::env::var(logs::LEVEL_VARIABLE).unwrap_or_else(|_| "warn".into());
    let level = logs::parse_level(&level)
        .map_err(|e| CommandError::Usage(format!("{}: {e}", logs::LEVEL_VARIABLE)))?;
    logs::start(&level);
    Ok(())
}

/// Options that say where to find a running server.
#[derive(Args, Debug)]
pub struct ClientOptions {
    /// Control socket of the server [default: what FOREBAY_SOCKET in the environment says; without
    /// it ./forebay-data/control.sock, or if that is not there /run/forebay/control.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl ClientOptions {
    /// The socket where the server is looked for. A variable that is empty says nothing.
    pub fn socket(&self) -> PathBuf {
        let of_variable = || std::env::var_os("FOREBAY_SOCKET").filter(|path| !path.is_empty());
        let said = self.socket.clone().or_else(|| of_variable().map(PathBuf::from));
        said.unwrap_or_else(|| usual_socket().to_owned())
    }

    /// Asks the server. Where its answer takes long, a terminal says what is waited for.
    pub fn ask<R: Verb + Clone>(&self, request: R) -> Result<R::Answer> {
        let what = doing(&request.clone().into());
        waiting(what, || ask(&self.socket(), request))
    }
}

/// Options that say where to find a pool that is not being served.
#[derive(Args, Debug)]
pub struct OfflineOptions {
    /// A file or block device of the pool, instead of a directory (repeatable)
    #[arg(
        long = "device",
        value_name = "PATH[,emulate=hdd|ssd]",
        value_parser = DeviceChoice::parser(),
        num_args = 1..
    )]
    devices: Vec<DeviceChoice>,
    /// File or block device of the pool's cache [default with a directory: DIR/cache.img, if it is
    /// there]
    #[arg(long, value_name = "PATH")]
    cache: Option<PathBuf>,
    /// Backend for I/O
    #[arg(long, value_enum, value_name = "BACKEND", default_value_t)]
    io: IoChoice,
}

impl OfflineOptions {
    /// Opens the devices that are named, or else those of the directory, for reading.
    pub fn open(&self, dir: &Path) -> Result<(World, Vec<DeviceFile>)> {
        let (world, opened) = self.open_for(dir, false)?;
        Ok((world, opened.go_on()))
    }

    /// Opens the devices like `open`, for writing too if `write` says so; and says why those are
    /// missing that are.
    pub fn open_for(&self, dir: &Path, write: bool) -> Result<(World, OpenedDevices)> {
        let devices = match self.devices.is_empty() {
            true => Home::devices(dir)?.into_iter().map(DeviceChoice::from).collect(),
            false => self.devices.clone(),
        };
        check_distinct(devices.iter().map(|d| d.path.as_path()).chain(self.cache.as_deref()))?;
        let world = World::new(self.io, &devices)?;
        if write && self.devices.is_empty() {
            Home::check_place_of(dir, devices.iter().map(|d| d.path.as_path()))?;
        }
        let opened = world.open_devices(&devices, write)?;
        let named = CacheSection { path: self.cache.clone(), ..CacheSection::default() };
        roles::check(&named, opened.files.iter().map(|f| Path::new(&f.path)))?;
        Ok((world, opened))
    }

    /// Whether a cache is named.
    pub fn names_cache(&self) -> bool {
        self.cache.is_some()
    }

    /// Opens the cache that is named, or else that of the directory if it is there, for reading.
    pub fn open_cache(&self, world: &World, dir: &Path) -> Result<Option<CacheFile>> {
        self.open_cache_for(world, dir, false)
    }

    /// Opens the cache like `open_cache`, for writing too if `write` says so.
    pub fn open_cache_for(
        &self,
        world: &World,
        dir: &Path,
        write: bool,
    ) -> Result<Option<CacheFile>> {
        let path = match &self.cache {
            Some(path) => Some(path.clone()),
            None if self.devices.is_empty() => Some(Home::cache(dir)?).filter(|path| path.exists()),
            None => None,
        };
        let Some(path) = path else { return Ok(None) };
        if write && self.cache.is_none() {
            Home::check_place_of(dir, std::iter::once(path.as_path()))?;
        }
        let opened = cache_file::open_for(&world.handles, &path, write);
        opened.map(Some).map_err(|e| CommandError::Failed(e.to_string()))
    }

    /// Opens the cache alone.
    pub fn open_only_cache(&self, dir: &Path) -> Result<(World, CacheFile)> {
        let world = World::new(self.io, &[])?;
        let file = self.open_cache(&world, dir)?;
        let Some(file) = file else {
            return Err(CommandError::Failed(format!(
                "there is no {}: name the cache with --cache",
                Home::cache(dir)?.display()
            )));
        };
        Ok((world, file))
    }
}
