//! The origin of the configuration of a running server, so that its file can be read again.
//!
//! The file is put together with the options of the start, and checked as at a start: what would
//! not be accepted then is refused as a whole.

use std::path::{Path, PathBuf};

use super::chosen::ChosenSettings;
use super::places::Places;
use super::table::Key;
use super::values::Value;
use super::{ConfigFile, Sections, ServeConfig};
use crate::error::Result;

/// Settings that a file says.
pub type FileSettings = Vec<(&'static Key, Value)>;

/// A configuration file, and the options that take precedence over it.
#[derive(Clone, Debug)]
pub struct Origin {
    file: PathBuf,
    options: Sections,
    home: PathBuf,
    said: FileSettings,
}

/// A configuration file that was read again.
pub struct Reading {
    /// The settings that it says.
    pub said: FileSettings,
    /// All settings that a server has which starts now.
    pub chosen: ChosenSettings,
    /// All else that it goes by.
    pub places: Places,
}

impl Origin {
    /// Of a configuration that comes from this file and these options. Nothing if there is no file.
    pub fn of(file: &ConfigFile, options: &Sections, home: &Path) -> Option<Origin> {
        let file_path = file.path.as_ref()?;
        Some(Origin {
            file: std::path::absolute(file_path).unwrap_or_else(|_| file_path.clone()),
            options: options.clone(),
            home: home.to_owned(),
            said: file.sections.in_file.clone(),
        })
    }

    /// The path of the file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The settings that the file said at the start.
    pub fn said(&self) -> &FileSettings {
        &self.said
    }

    /// Whether an option takes precedence over what the file says of a setting.
    pub fn hides(&self, key: &Key) -> bool {
        self.options.settings().any(|(one, _)| std::ptr::eq(one, key))
    }

    /// Reads the file again. Blocks.
    pub fn read(&self) -> Result<Reading> {
        let file = ConfigFile::read(&self.file)?;
        let said = file.sections.in_file.clone();
        let config = ServeConfig::new(self.options.clone(), file, &self.home)?;
        config.check_groups()?;
        config.tell_needless();
        Ok(Reading { said, chosen: config.settings, places: config.places })
    }
}
