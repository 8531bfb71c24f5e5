//! The configuration of a server, validated: from command-line options, from a configuration file,
//! from defaults, in this order. Plain data; nothing has been opened yet.
//!
//! * [`table`]: all settings; [`values`]: what they can be; [`chosen`]: their values, and where
//!   each comes from
//! * [`Sections`]: what else file and options say, by which a server goes; [`places`]: what each of
//!   these values is, for people, and how they are put together
//! * [`check`]: whether what is said can be; [`shown`]: all of it, for people and programs
//! * [`example`]: a file that explains itself
//! * [`file`](mod@file): the configuration file; [`saving`]: a setting that is written to it;
//!   [`origin`]: the file and the options of a server that runs
//!
//! `docs/configuration.md` describes every key of the file.

mod check;
pub mod chosen;
pub mod example;
mod file;
mod http;
pub mod origin;
mod permits;
pub mod places;
pub mod saving;
mod sections;
pub mod shown;
pub mod table;
mod tls;
pub mod values;

use std::path::{Path, PathBuf};

use crate::error::{CommandError, Result};
use crate::host::sockets::{Permits, group_of};

use chosen::{ChosenSettings, Source};
pub use file::ConfigFile;
pub use http::HttpPlace;
use places::Places;
pub use places::{place_of_devices, place_of_path};
pub use sections::{CacheSection, Complete, HttpSection, PoolSection, Sections};

/// Everything that a server needs to know.
#[derive(Debug)]
pub struct ServeConfig {
    /// All that options, the file and defaults say.
    pub said: Sections,
    /// The directory of the server's sockets.
    pub home: PathBuf,
    /// The settings of pool and cache, and the limits of clients.
    pub settings: ChosenSettings,
    /// All values but the settings, each with where it comes from.
    pub places: Places,
    /// The configuration file, if there is one.
    pub file: Option<PathBuf>,
    /// Lines of the file that have no effect any more, and why.
    pub needless: Vec<String>,
}

impl ServeConfig {
    /// Tells the log of lines of the file that have no effect any more.
    pub fn tell_needless(&self) {
        for line in &self.needless {
            tracing::warn!("the configuration file, {line}; remove the line");
        }
    }

    /// Puts together what was said, with sockets in `home` where nothing was said about them, and
    /// checks it.
    pub fn new(options: Sections, file: ConfigFile, home: &Path) -> Result<ServeConfig> {
        let settings = choose(&options, &file.sections).map_err(CommandError::Usage)?;
        let ConfigFile { sections, cache_size_line, path, needless } = file;
        // The place that says the size, if the file says it.
        let line = cache_size_line.filter(|_| options.cache.size.is_none()).map(|line| {
            let path = path.as_ref().map_or_else(String::new, |p| format!("{}: ", p.display()));
            format!("{path}line {line}: ")
        });
        let (mut said, places) = options.merge(sections, home);
        said.check(&line.unwrap_or_default())?;
        Ok(ServeConfig { said, home: home.to_owned(), settings, places, file: path, needless })
    }

    /// Returns who may connect to each unix socket: the kind of clients, the section of the
    /// configuration that says it, and the permits.
    pub fn permits(&self) -> impl Iterator<Item = (&'static str, &'static str, Permits)> {
        let Sections { nbd, control, http, .. } = &self.said;
        let is_unix = http.listen.iter().any(|place| matches!(place, HttpPlace::Unix(_)));
        let own = [("NBD", "nbd", nbd.permits()), ("control", "control", control.permits())];
        own.into_iter().chain(is_unix.then(|| ("HTTP", "http", http.permits())))
    }

    /// Fails if a socket is to have a group that this machine does not know. To be called before a
    /// server touches anything.
    pub fn check_groups(&self) -> Result<()> {
        for (_, section, permits) in self.permits() {
            let Some(name) = &permits.group else { continue };
            group_of(name).map_err(|e| e.within(format_args!("{section}.socket_group")))?;
        }
        Ok(())
    }
}

fn choose(options: &Sections, file: &Sections) -> std::result::Result<ChosenSettings, String> {
    let mut chosen = ChosenSettings::default();
    for (said, source) in [(file, Source::File), (options, Source::Option)] {
        said.settings().try_for_each(|(key, value)| chosen.put(key, value, source))?;
    }
    chosen.check(None)?;
    Ok(chosen)
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
