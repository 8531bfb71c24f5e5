//! `forebay serve`: a pool on devices that are named.

use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};

use crate::cli::options::DEFAULT_HOME;
use crate::config::origin::Origin;
use crate::config::{Complete, ConfigFile, Sections, ServeConfig};
use crate::error::Result;
use crate::host::devices::DeviceChoice;
use crate::host::logs;
use crate::host::world::World;
use crate::serve::shard::{Source, serve};

/// Serve the volumes of a pool on the devices that are named
///
/// Devices can be named in any order. Where one is missing the pool is served without it as long as
/// every block has a copy elsewhere. A pool that has a cache is not served without it: name it with
/// --cache. Sockets are ./forebay-data/nbd.sock and ./forebay-data/control.sock if nothing else is
/// said.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("pool").required(true).args(["devices", "config"])))]
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
    /// Configuration file; options on the command line take precedence
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Sections,
}

impl Serve {
    pub fn run(self) -> Result<()> {
        let file = self.config.as_deref().map(ConfigFile::read).transpose()?.unwrap_or_default();
        let options = Sections { devices: self.devices, ..self.options };
        let home = Path::new(DEFAULT_HOME);
        let origin = Origin::of(&file, &options, home);
        let config = ServeConfig::new(options, file, home)?;
        config.check_groups()?;
        let said = &config.said;
        logs::start_server(*said.log.format.said(), said.log.level.said())?;
        config.tell_needless();
        let world = World::new(*said.io.backend.said(), &said.devices)?;
        let files = world.open_devices(&said.devices, true)?.go_on();
        serve(world, config, Source::Devices(files), None, origin)
    }
}
