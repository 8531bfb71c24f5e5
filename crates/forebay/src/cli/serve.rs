//! `forebay serve`: a pool on devices that are named.

use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};

use crate::cli::options::DEFAULT_HOME;
use crate::config::origin::Origin;
use crate::config::{Complete, ConfigFile, PoolSection, Sections, ServeConfig};
use crate::error::Result;
use crate::host::devices::DeviceChoice;
use crate::host::discovery;
use crate::host::logs;
use crate::host::world::World;
use crate::serve::device_places::DevicePlaces;
use crate::serve::shard::{Source, serve};

/// Serve the volumes of a pool
///
/// With --pool or --config the devices of the pool and its cache are found wherever they are: where
/// they were last, beside that, in the directories of --search, and among the block devices of the
/// machine. With --device only what is named is taken, in any order; a pool that has a cache is
/// served with --cache then. Where a device is missing the pool is served without it as long as
/// every block has a copy elsewhere. Sockets are ./forebay-data/nbd.sock and
/// ./forebay-data/control.sock if nothing else is said.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("pool").required(true).args(["devices", "config", "name"])))]
pub struct Serve {
    /// A file or block device of the pool (repeatable). With emulate it is as slow as a rotating
    /// disk, or as an SSD on SATA, for benchmarks and demonstrations. A comma of the path itself is
    /// written twice
    #[arg(
        long = "device",
        value_name = "PATH[,emulate=hdd|ssd]",
        value_parser = DeviceChoice::parser(),
        num_args = 1..
    )]
    devices: Vec<DeviceChoice>,
    /// The pool, by its name or uuid
    #[arg(id = "name", long = "pool", value_name = "NAME|UUID")]
    name: Option<String>,
    /// Configuration file; options on the command line take precedence
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Sections,
}

impl Serve {
    pub fn run(self) -> Result<()> {
        let file = self.config.as_deref().map(ConfigFile::read).transpose()?.unwrap_or_default();
        let finds = self.devices.is_empty();
        let pool = PoolSection { name: self.name, ..self.options.pool.clone() };
        let options = Sections { devices: self.devices, pool, ..self.options };
        let home = Path::new(DEFAULT_HOME);
        let origin = Origin::of(&file, &options, home);
        let mut config = ServeConfig::new(options, file, home)?;
        config.check_groups()?;
        let said = &config.said;
        logs::start_server(*said.log.format.said(), said.log.level.said())?;
        config.tell_needless();
        let places = match finds {
            true => DevicePlaces::OnDevices(discovery::find(&mut config.said)?),
            false => DevicePlaces::Named(discovery::last_known(&config.said.devices)),
        };
        places.tell();
        let said = &config.said;
        let world = World::new(*said.io.backend.said(), &said.devices)?;
        let opened = world.open_devices(&said.devices, true)?;
        let places = places.without(&opened.gone);
        serve(world, config, Source::Devices(opened.go_on()), places, origin)
    }
}
