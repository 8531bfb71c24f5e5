//! `forebay up`: everything in one directory.

use std::path::{Path, PathBuf};

use clap::Args;
use posix::OpenFile;
use queue::Emulate;

use crate::cli::options::{DEFAULT_HOME, LogOptions, ServerOptions, positive_size, volume_size};
use crate::config::{ConfigFile, LogSection, ServeConfig};
use crate::devices::DeviceChoice;
use crate::error::{CommandError, Result};
use crate::home::Home;
use crate::shard::{CacheChoice, NewPool, Source, serve};
use crate::world::World;

const POOL_NAME: &str = "forebay";
const CACHE_NAME: &str = "cache.img";
const VOLUME_NAME: &str = "vol0";
const COPIES: u8 = 2;

/// Serve from a directory; the first run makes a pool and a volume in it
///
/// The first run makes a pool of two sparse files, DIR/pool0.img and DIR/pool1.img, that keeps two copies of every block, and a
/// volume `vol0`. Every run serves all volumes of the pool on DIR/nbd.sock and prints their addresses. Ctrl-C ends it cleanly; nothing that
/// a client has flushed is lost however it ends.
#[derive(Args, Debug)]
pub struct Up {
    /// The directory
    #[arg(default_value = DEFAULT_HOME)]
    dir: PathBuf,
    /// Size of each of the two pool files; they are sparse. Only in the first run
    #[arg(long, value_name = "SIZE", default_value = "16G", value_parser = positive_size)]
    size: u64,
    /// Size of the volume; it takes space as it is written. Only in the first run
    #[arg(long, value_name = "SIZE", default_value = "8G", value_parser = volume_size)]
    volume_size: u64,
    /// Make the pool files as slow as a rotating disk (hdd), or as an SSD on SATA (ssd), in this run: for benchmarks and demonstrations
    #[arg(long, value_name = "hdd|ssd")]
    emulate: Option<Emulate>,
    /// Put a write-back cache of this size, DIR/cache.img, in front of the pool: experimental. It stays until `--cache-size 0`, which writes everything
    /// back and detaches it
    #[arg(long, value_name = "SIZE", value_parser = crate::units::parse_size)]
    cache_size: Option<u64>,
    /// The cache is lost: go on with the pool's image, which is older
    #[arg(long)]
    forget_cache: bool,
    #[command(flatten)]
    server: ServerOptions,
    #[command(flatten)]
    log: LogOptions,
}

impl Up {
    pub fn run(self) -> Result<()> {
        let devices = Home::devices(&self.dir).into_iter().map(|path| DeviceChoice { path, emulate: self.emulate });
        let overrides = self.server.overrides(devices.collect());
        let config = ServeConfig::new(overrides, ConfigFile::default(), &self.dir)?;
        self.log.start(LogSection::default());
        let world = World::new(config.io)?;
        let home = Home::open(&world, &self.dir)?;
        let source = if home.has_pool()? {
            Source::Devices(world.open_devices(&config.devices, true)?.files)
        } else {
            tracing::info!(dir = %self.dir.display(), "making a pool");
            match home.stage(&world, self.size, self.emulate) {
                Ok(staged) => {
                    let options = pool::CreateOptions { name: POOL_NAME.into(), copies: COPIES, group_bytes: None };
                    Source::New(NewPool { home, staged, options, volume: (VOLUME_NAME.into(), self.volume_size) })
                }
                Err(e) => {
                    home.unstage();
                    return Err(e);
                }
            }
        };
        let cache = cache_choice(&world, &self.dir, self.cache_size, self.forget_cache)?;
        serve(world, &config, source, cache)
    }
}

/// The cache, as it was asked for or is there already.
fn cache_choice(world: &World, dir: &Path, size: Option<u64>, forget: bool) -> Result<CacheChoice> {
    let path = dir.join(CACHE_NAME);
    let wanted = size.is_some_and(|size| size > 0);
    if forget || (!wanted && !path.exists()) {
        return Ok(CacheChoice { forget, ..CacheChoice::default() });
    }
    let create_len = size.filter(|&size| size > 0 && !path.exists());
    let how = OpenFile { write: true, create_len, direct: true };
    let (file, info) = world.open(&path, &how).map_err(|e| CommandError::Failed(e.to_string()))?;
    let file = cache::CacheFile { path: path.display().to_string(), file, size_bytes: info.size_bytes };
    Ok(CacheChoice { file: Some(file), make: size != Some(0), forget: false })
}
