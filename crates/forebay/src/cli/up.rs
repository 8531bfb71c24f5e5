//! `forebay up`: everything in one directory.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::Args;
use emulate::Emulate;
use posix::sys;

use crate::cli::options::{DEFAULT_HOME, positive_size, volume_size};
use crate::config::{Complete, ConfigFile, HttpPlace, Sections, ServeConfig};
use crate::error::{CommandError, Result};
use crate::host::device_list::DeviceList;
use crate::host::devices::DeviceChoice;
use crate::host::home::{CachePlace, Home, UnfinishedHome, not_emptied};
use crate::host::logs;
use crate::host::preflight;
use crate::host::world::{World, check_distinct};
use crate::serve::cache_life::preflight_made;
use crate::serve::device_places::DevicePlaces;
use crate::serve::shard::{NewPool, Source, serve};

const POOL_NAME: &str = "forebay";
const POOL_FILE_BYTES: u64 = 16 << 30;
const VOLUME_BYTES: u64 = 8 << 30;
const CACHE_BYTES: u64 = 2 << 30;
const LEAST_CACHE_BYTES: u64 = 64 << 20;
const PART_OF_FREE: u64 = 4;
const VOLUME_NAME: &str = "vol0";
const COPIES: u8 = 2;
const HTTP_ADDRESS: HttpPlace =
    HttpPlace::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10810));

/// Serve from a directory; the first run makes a pool and a volume in it
///
/// The first run makes a pool of two sparse files, DIR/pool0.img and DIR/pool1.img, that keeps two
/// copies of every block, a volume `vol0`, and a write-back cache, DIR/cache.img: best on a faster
/// disk than the pool (--cache PATH). Devices that are added, replaced or removed later, and a
/// cache that is attached elsewhere, are found again by DIR/devices.json and DIR/cache.path; a
/// cache that was taken out stays out. Every run serves all volumes of the pool on DIR/nbd.sock and
/// prints their addresses. The HTTP API and metrics are on DIR/http.sock, and on 127.0.0.1:10810 if
/// that is free, where the token in DIR/http.token is needed. Ctrl-C ends it cleanly; nothing that
/// a client has flushed is lost however it ends.
#[derive(Args, Debug)]
pub struct Up {
    /// The directory
    #[arg(default_value = DEFAULT_HOME)]
    dir: PathBuf,
    /// Size of each of the two pool files; they are sparse. Only in the first run [default: 16G]
    #[arg(long, value_name = "SIZE", value_parser = positive_size)]
    size: Option<u64>,
    /// Size of the volume; it takes space as it is written. Only in the first run [default: 8G]
    #[arg(long, value_name = "SIZE", value_parser = volume_size)]
    volume_size: Option<u64>,
    /// Make the pool files as slow as a rotating disk (hdd), or as an SSD on SATA (ssd), in this
    /// run: for benchmarks and demonstrations
    #[arg(long, value_name = "hdd|ssd")]
    emulate: Option<Emulate>,
    #[command(flatten)]
    options: Sections,
}

/// The size of a cache at this path that was not asked for. Its space is reserved, and the pool's
/// files, which may lie beside it, need some.
fn cache_bytes(path: &Path) -> u64 {
    if let Ok(len) = path.metadata().map(|meta| meta.len())
        && len > 0
    {
        // A start before may have ended before it was a cache.
        return len;
    }
    let or_here = |dir| if dir == Path::new("") { Path::new(".") } else { dir };
    // The directory may have to be made.
    let free = path.ancestors().skip(1).find_map(|dir| sys::free_bytes(or_here(dir)).ok());
    let part = free.map_or(CACHE_BYTES, |free| free / PART_OF_FREE);
    part.clamp(LEAST_CACHE_BYTES, CACHE_BYTES) >> 20 << 20
}

impl Up {
    pub fn run(self) -> Result<()> {
        Home::check_owner(&self.dir)?;
        let devices = Home::devices(&self.dir)?
            .into_iter()
            .map(|path| DeviceChoice { path, emulate: self.emulate });
        let mut options = Sections { devices: devices.collect(), ..self.options };
        let cache = &mut options.cache;
        let (found, optional) = (cache.path.is_none(), cache.size.is_none());
        let mut taken_out = false;
        if found {
            let kept = Home::cache_place(&self.dir)?;
            taken_out = optional && kept == CachePlace::None;
            cache.path = Some(kept.path(&self.dir));
        }
        let owned = found && cache.path.as_ref() == Some(&Home::own_cache(&self.dir));
        if !taken_out {
            let at = cache.path.clone().unwrap_or_default();
            cache.size.get_or_insert_with(|| cache_bytes(&at));
        }
        (cache.owned, cache.optional) = (owned, optional);
        cache.kept_in = Some(self.dir.clone());
        let mut config = usual(&self.dir, options)?;
        config.places.by_default("devices");
        if found {
            config.places.by_default("cache.path");
        }
        if optional {
            config.places.by_default("cache.size");
        }
        preflight::check(&config)?;
        let said = &mut config.said;
        logs::start_server(*said.log.format.said(), said.log.level.said())?;
        let world = World::new(*said.io.backend.said(), &said.devices)?;
        let home = Home::open(&world, &self.dir)?;
        // A path of the command line is meant.
        let cache = said.cache.path.as_deref().filter(|_| found);
        let used = said.devices.iter().map(|d| d.path.as_path()).chain(cache);
        said.cache.place = home.check_place(used)?;
        let mut places = DevicePlaces::Listed(DeviceList::of(&self.dir), Vec::new());
        let source = if home.has_pool()? {
            note_ignored(self.size.is_some(), self.volume_size.is_some());
            let opened = world.open_devices(&said.devices, true)?;
            places = places.without(&opened.gone);
            let files = opened.go_on();
            if DeviceList::of(&self.dir).path().exists() {
                not_emptied(&files)?;
            }
            Source::Devices(files)
        } else {
            tracing::info!(dir = %self.dir.display(), "making a pool");
            let unmade = UnfinishedHome::new(home);
            preflight_made(&said.cache)?;
            let size = self.size.unwrap_or(POOL_FILE_BYTES);
            let staged = unmade.home().stage(&world, size, self.emulate)?;
            let options =
                pool::CreateOptions { name: POOL_NAME.into(), copies: COPIES, group_bytes: None };
            pool::check_create(&staged.files, &options)
                .map_err(|e| CommandError::Usage(format!("--size: {e}")))?;
            let volume = (VOLUME_NAME.into(), self.volume_size.unwrap_or(VOLUME_BYTES));
            Source::New(NewPool { unmade, staged, options, volume })
        };
        serve(world, config, source, places, None)
    }
}

/// Tells of options that count in the first run only, and were given in another one.
fn note_ignored(size: bool, volume_size: bool) {
    let told = [
        ("--size", size, "forebay device resize PATH SIZE"),
        ("--volume-size", volume_size, "forebay volume resize NAME --size SIZE"),
    ];
    for (option, _, instead) in told.into_iter().filter(|one| one.1) {
        tracing::info!("{option} counts in the first run only; what changes it now: {instead}");
    }
}

/// The configuration of a server of this directory, where nothing else is said. The cache is left
/// to the caller.
pub(super) fn usual(dir: &Path, mut options: Sections) -> Result<ServeConfig> {
    let devices = options.devices.iter().map(|one| one.path.as_path());
    check_distinct(devices.chain(options.cache.path.as_deref())).map_err(|e| {
        let list = DeviceList::of(dir).path();
        match list.exists() {
            true => CommandError::Usage(format!("{e}; {} lists the devices", list.display())),
            false => e,
        }
    })?;
    let http = &mut options.http;
    // Addresses and a token file that are not given are chosen here.
    (http.optional, http.make_token) = (http.listen.is_empty(), http.token_file.is_none());
    let (listen, token_file) = (http.optional, http.make_token);
    if listen {
        http.listen = vec![HttpPlace::Unix(Home::http_socket(dir)), HTTP_ADDRESS];
    }
    http.token_file.get_or_insert_with(|| Home::http_token(dir));
    let mut config = ServeConfig::new(options, ConfigFile::default(), dir)?;
    if listen {
        config.places.by_default("http.listen");
    }
    if token_file {
        config.places.by_default("http.token_file");
    }
    Ok(config)
}
