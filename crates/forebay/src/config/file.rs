//! The configuration file. A key that it cannot have is an error that names it, and the line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::{Spanned, Table, Value as Toml};

use super::chosen::{ChosenSettings, Source, find_in, why_gone};
use super::places::is_place;
use super::sections::{
    CacheSection, ControlSection, HttpSection, IoSection, LogSection, NbdSection, PoolSection,
    Sections, TlsSection,
};
use super::tls::AccessRow;
use crate::error::{CommandError, Result};
use crate::host::devices::DeviceChoice;

/// The content of a configuration file.
#[derive(Default, Debug)]
pub struct ConfigFile {
    /// All that it says.
    pub sections: Sections,
    /// The number of the line that says the size of the cache.
    pub cache_size_line: Option<usize>,
    /// The file itself, if there is one.
    pub path: Option<PathBuf>,
    /// Lines that have no effect any more, and why.
    pub needless: Vec<String>,
}

/// As it stands there.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    #[serde(default)]
    devices: Vec<DeviceChoice>,
    access: Option<Vec<AccessRow>>,
    #[serde(default)]
    nbd: Keys,
    #[serde(default)]
    tls: TlsSection,
    #[serde(default)]
    control: ControlSection,
    #[serde(default)]
    http: HttpSection,
    #[serde(default)]
    pool: Keys,
    #[serde(default)]
    scrub: Keys,
    #[serde(default)]
    cache: Keys,
    #[serde(default)]
    io: IoSection,
    #[serde(default)]
    log: LogSection,
}

/// A section with settings of the table, and where their values stand.
type Keys = BTreeMap<String, Spanned<Toml>>;

/// A fault: the byte of the file at which it stands, and what is wrong.
type Fault = (usize, String);

impl ConfigFile {
    /// Reads a file. Relative paths in it are relative to the directory that it is in.
    pub fn read(path: &Path) -> Result<ConfigFile> {
        let at = path.display();
        let wrong = |e: &dyn std::fmt::Display| {
            let e = CommandError::Usage(format!("{at}: {e}"));
            e.or_next("forebay config --example shows every key")
        };
        let text = std::fs::read_to_string(path).map_err(|e| wrong(&e))?;
        let mut file = ConfigFile::parse(&text).map_err(|e| wrong(&e))?;
        file.sections.rebase(path.parent().unwrap_or(Path::new("")));
        file.path = Some(path.to_owned());
        Ok(file)
    }

    /// Reads the text of a file.
    pub fn parse(text: &str) -> std::result::Result<ConfigFile, String> {
        let read: Text = toml::from_str(text).map_err(|e| e.to_string())?;
        let line = |at: usize| text.get(..at).map_or(1, |before| before.matches('\n').count() + 1);
        let cache_size_line = read.cache.get("size").map(|value| line(value.span().start));
        let told = |(at, text): Fault| format!("line {}: {text}", line(at));
        let (sections, needless) = read.sections().map_err(told)?;
        let needless = needless.into_iter().map(told).collect();
        Ok(ConfigFile { sections, cache_size_line, path: None, needless })
    }
}

impl Text {
    /// Also returns what of it has no effect any more.
    fn sections(self) -> std::result::Result<(Sections, Vec<Fault>), Fault> {
        let Text {
            devices,
            access,
            mut nbd,
            tls,
            control,
            http,
            mut pool,
            scrub,
            mut cache,
            io,
            log,
        } = self;
        let mut sections = Sections {
            devices,
            access: access.map(|rows| rows.into_iter().map(Into::into).collect()),
            pool: places_of::<PoolSection>("pool", &mut pool)?,
            nbd: places_of::<NbdSection>("nbd", &mut nbd)?,
            tls,
            control,
            http,
            cache: places_of::<CacheSection>("cache", &mut cache)?,
            io,
            log,
            ..Sections::default()
        };
        let mut needless = Vec::new();
        for (section, keys) in [("nbd", nbd), ("pool", pool), ("scrub", scrub), ("cache", cache)] {
            for (name, value) in keys {
                let at = value.span().start;
                if let Some(why) = why_gone(section, &name) {
                    let text = format!("{section}.{name} has no effect any more: {why}");
                    needless.push((at, text));
                    continue;
                }
                let key = find_in(section, &name).map_err(|e| (at, e))?;
                let read = key.kind.read(value.get_ref());
                let read = read.map_err(|e| (at, format!("{}: {e}", key.full_name())))?;
                // The range is named with the line, too.
                ChosenSettings::default().put(key, read, Source::File).map_err(|e| (at, e))?;
                sections.in_file.push((key, read));
            }
        }
        Ok((sections, needless))
    }
}

/// Takes the keys that are no settings out of a section, and reads them.
fn places_of<T: DeserializeOwned>(section: &str, keys: &mut Keys) -> std::result::Result<T, Fault> {
    let mut all = Table::new();
    let mut rest = Keys::new();
    for (name, value) in std::mem::take(keys) {
        if !is_place(&format!("{section}.{name}")) {
            rest.insert(name, value);
            continue;
        }
        let (at, told) = (value.span().start, name.clone());
        let one = Table::from_iter([(name, value.into_inner())]);
        // Each alone, as an error does not say where it is.
        let read = one.clone().try_into::<T>();
        read.map_err(|e| (at, format!("{told}: {}", e.message())))?;
        all.extend(one);
    }
    *keys = rest;
    all.try_into().map_err(|e| (0, e.message().to_owned()))
}
