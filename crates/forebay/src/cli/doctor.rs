//! `forebay doctor`: what of this machine and of a configuration would hurt.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use base::shell_word;
use clap::Args;

use crate::cli::options::DEFAULT_HOME;
use crate::cli::up;
use crate::config::{CacheSection, ConfigFile, Sections, ServeConfig};
use crate::doctor::finding::{Finding, Level};
use crate::doctor::{
    differs, not_found, nothing, of_config, of_machine, text, unreadable, unreadable_directory,
};
use crate::error::{PROBLEM, Result};
use crate::host::device_list::DeviceList;
use crate::host::devices::DeviceChoice;
use crate::host::discovery;
use crate::host::home::Home;
use crate::output::{is_json, print, print_json};
use crate::terminal::Look;

/// Look at this machine and a configuration, and say what would hurt a server
///
/// Looks at io_uring, limits, memory, devices and the file systems below them, settings that fight
/// each other, sockets. Where no server runs it also looks at pool and cache as a start does, and
/// says why that would be refused. Changes nothing, so a server may run meanwhile. It looks as the
/// user that runs it: run it as the server's user. The exit status is 0 if there is no
/// problem, and 3 if there is one; warnings and notes do not count.
#[derive(Args, Debug)]
pub struct Doctor {
    /// A directory of `forebay up`
    #[arg(default_value = DEFAULT_HOME, conflicts_with_all = ["config", "devices"])]
    dir: PathBuf,
    /// A configuration file of `forebay serve`, instead of a directory
    #[arg(long, value_name = "FILE", conflicts_with = "devices")]
    config: Option<PathBuf>,
    /// A file or block device of a pool, instead of a directory (repeatable)
    #[arg(
        long = "device",
        value_name = "PATH[,emulate=hdd|ssd]",
        value_parser = DeviceChoice::parser(),
        num_args = 1..
    )]
    devices: Vec<DeviceChoice>,
    /// File or block device of the pool's cache [default with a directory: DIR/cache.img, if it is
    /// there]
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    cache: Option<PathBuf>,
}

impl Doctor {
    /// The exit status.
    pub fn run(self) -> Result<u8> {
        let all = self.findings();
        if is_json() {
            print_json(&all)?
        } else {
            print(&text(&all, &Look::of_stdout()))?
        }
        Ok(if all.iter().any(|one| one.level == Level::Problem) { PROBLEM } else { 0 })
    }

    fn findings(&self) -> Vec<Finding> {
        let in_directory = self.config.is_none() && self.devices.is_empty();
        let config = match (&self.config, self.devices.is_empty()) {
            (Some(path), _) => of_file(path),
            (None, false) => self.of_devices(),
            (None, true) => match self.of_directory() {
                Some(config) => config,
                None => {
                    let mut all = of_machine();
                    let dir = self.dir.display();
                    all.push(nothing(
                        format!("there is no pool in {dir}: the machine alone was looked at"),
                        "name another directory, --config FILE or --device PATH; or begin with \
                         forebay up",
                    ));
                    return all;
                }
            },
        };
        match config {
            Ok(mut config) => {
                let own = match in_directory.then(|| Home::cache(&self.dir)).transpose() {
                    Ok(own) => own,
                    Err(e) => return vec![unreadable_directory(&e.to_string())],
                };
                // A server of this directory has listed its devices.
                let is_used = in_directory && DeviceList::of(&self.dir).path().exists();
                // As a start by a file does.
                let found = match self.config.is_some().then(|| discovery::find(&mut config.said)) {
                    Some(Ok(found)) => found.notes,
                    Some(Err(e)) => {
                        let all = of_machine().into_iter();
                        return all.chain([not_found(&e.to_string())]).collect();
                    }
                    None => Vec::new(),
                };
                let all = of_config(&mut config, own, is_used);
                let all = all.into_iter().chain(found.into_iter().map(differs));
                all.chain(needless(&config)).chain(as_root(&config)).collect()
            }
            Err(e) => {
                let unreadable = if in_directory { unreadable_directory } else { unreadable };
                of_machine().into_iter().chain([unreadable(&e.to_string())]).collect()
            }
        }
    }

    fn of_devices(&self) -> Result<ServeConfig> {
        let cache = CacheSection { path: self.cache.clone(), ..CacheSection::default() };
        let devices = self.devices.clone();
        let overrides = Sections { devices, cache, ..Sections::default() };
        ServeConfig::new(overrides, ConfigFile::default(), Path::new(DEFAULT_HOME))
    }

    /// The configuration of `forebay up`; `None` if there is no pool.
    fn of_directory(&self) -> Option<Result<ServeConfig>> {
        let devices = match Home::devices(&self.dir) {
            Ok(devices) => devices,
            Err(e) => return Some(Err(e)),
        };
        if devices.iter().all(|path| path.symlink_metadata().is_err()) {
            return None;
        }
        let own = match Home::cache(&self.dir) {
            Ok(path) => Some(path).filter(|path| path.exists()),
            Err(e) => return Some(Err(e)),
        };
        let cache = CacheSection { path: self.cache.clone().or(own), ..CacheSection::default() };
        let devices = devices.into_iter().map(DeviceChoice::from).collect();
        Some(up::usual(&self.dir, Sections { devices, cache, ..Sections::default() }))
    }
}

fn of_file(path: &Path) -> Result<ServeConfig> {
    let file = ConfigFile::read(path)?;
    ServeConfig::new(Sections::default(), file, Path::new(DEFAULT_HOME))
}

/// Lines of the configuration file that have no effect any more.
fn needless(config: &ServeConfig) -> impl Iterator<Item = Finding> {
    config.needless.iter().map(|line| {
        Finding::new(Level::Note, "settings", format!("the file, {line}"), "remove the line")
    })
}

/// Root may do what the user of a service may not.
fn as_root(config: &ServeConfig) -> Option<Finding> {
    let file = config.file.as_ref()?;
    let is_root = Path::new("/proc/self").metadata().is_ok_and(|meta| meta.uid() == 0);
    is_root.then(|| {
        Finding::new(
            Level::Note,
            "user",
            "this was looked at as root, which may read and write everything",
            format!(
                "if the server has a user of its own: sudo -u forebay forebay doctor --config {}",
                shell_word(&file.display().to_string())
            ),
        )
    })
}
