//! The settings of a running server: shown, and changed while it serves.
//!
//! A change is checked by the table that the configuration file is read by, applied at once, and
//! forgotten at the end of the server unless it was saved. One change goes after the other.
//!
//! * `reload`: the configuration file, read again

mod reload;

use std::cell::RefCell;
use std::path::Path;

use model::setting::{Config, PlaceValue, Setting, SettingChange};
use model::{Failure, FailureKind};
use posix::Handles;
use rt::Rt;
use rt::sync::Semaphore;
use volume::Volumes;

use crate::config::chosen::{ChosenSettings, NotFound, Source, find};
use crate::config::origin::{FileSettings, Origin};
use crate::config::places::Places;
use crate::config::saving::save;
use crate::config::shown::{self, in_toml, setting, shown};
use crate::config::table::Key;
use crate::config::values::Value;
use crate::serve::mailbox::spawn_blocking;

/// The settings of a running server.
pub struct Tuning {
    rt: Rt,
    handles: Handles,
    chosen: RefCell<ChosenSettings>,
    places: Places,
    /// The configuration file that it was started with.
    origin: Option<Origin>,
    /// The settings that this said when it was last read or written.
    said: RefCell<FileSettings>,
    one_change: Semaphore,
}

impl From<NotFound> for Failure {
    fn from(why: NotFound) -> Failure {
        match why {
            NotFound::Unknown(text) => Failure::new(FailureKind::NotFound, text),
            NotFound::Refused(text) => Failure::invalid(text),
        }
    }
}

impl Tuning {
    /// Of a server that is to start with these settings.
    pub fn new(
        rt: &Rt,
        handles: &Handles,
        chosen: ChosenSettings,
        places: Places,
        origin: Option<Origin>,
    ) -> Tuning {
        let said = origin.as_ref().map(|origin| origin.said().clone()).unwrap_or_default();
        Tuning {
            rt: rt.clone(),
            handles: handles.clone(),
            chosen: RefCell::new(chosen),
            places,
            origin,
            said: RefCell::new(said),
            one_change: Semaphore::new(1),
        }
    }

    /// The settings of a pool that is opened now.
    pub fn pool(&self) -> pool::Settings {
        self.chosen.borrow().settings().pool.clone()
    }

    /// The settings of a cache that is opened now.
    pub fn cache(&self) -> cache::Settings {
        self.chosen.borrow().settings().cache.clone()
    }

    /// The limits of clients.
    pub fn limits(&self) -> nbd::Limits {
        self.chosen.borrow().settings().limits
    }

    /// All settings, or the one of this name.
    pub fn show(&self, name: Option<&str>) -> Result<Vec<Setting>, Failure> {
        let wanted = name.map(find).transpose()?;
        let chosen = self.chosen.borrow();
        let all = chosen.iter().map(|(key, ..)| key);
        let wanted = all.filter(|key| wanted.is_none_or(|one| std::ptr::eq(one, *key)));
        Ok(wanted.map(|key| setting(&chosen, key)).collect())
    }

    /// All that the server goes by. `devices` and `cache` are those that it has now.
    pub fn config(&self, devices: PlaceValue, cache: PlaceValue) -> Config {
        let places = self.places_now(devices, cache);
        shown::all(&places, &self.chosen.borrow(), self.file())
    }

    fn places_now(&self, devices: PlaceValue, cache: PlaceValue) -> Places {
        let mut places = self.places.clone();
        places.now("devices", devices);
        places.now("cache.path", cache);
        places
    }

    /// Returns the value of a place as it was said at the start.
    pub fn place(&self, name: &str) -> PlaceValue {
        self.places.get(name).cloned().unwrap_or_default()
    }

    /// The configuration file that the server was started with.
    pub fn file(&self) -> Option<&Path> {
        self.origin.as_ref().map(Origin::file)
    }

    /// Gives a setting a value, and writes it to the configuration file if it is to be saved.
    pub async fn set(
        &self,
        volumes: &Volumes,
        name: &str,
        value: &str,
        saved: bool,
    ) -> Result<SettingChange, Failure> {
        let key = find(name)?;
        let name = key.full_name();
        if !key.live {
            return Err(Failure::invalid(format!(
                "{name} changes with a restart only: change it in the configuration file{}, and \
                 start the server again",
                or_option(key)
            )));
        }
        let value = key.kind.parse(value).map_err(|e| Failure::invalid(format!("{name}: {e}")))?;
        let _alone = self.one_change.acquire(1).await;
        let mut new = self.chosen.borrow().clone();
        let (before, from) = (key.get(new.settings()), new.source(key));
        let source = if saved { Source::File } else { Source::Set };
        new.put(key, value, source).map_err(Failure::invalid)?;
        new.check(Some(key)).map_err(Failure::invalid)?;
        let of_file = if saved { self.save(key, value).await? } else { None };
        apply(volumes, key, &new)?;
        let setting = setting(&new, key);
        *self.chosen.borrow_mut() = new;
        tracing::info!(key = name, %value, %before, saved, "setting changed");
        let hidden = saved && from == Source::Option;
        let hidden = hidden.then(|| {
            format!(
                "the server was started with {}, which takes precedence over the file: start it \
                 without from now on",
                key.option
            )
        });
        let notes: Vec<String> = hidden.into_iter().chain(of_file).collect();
        let note = (!notes.is_empty()).then(|| notes.join("; "));
        Ok(SettingChange { setting, before: shown(before), saved, note })
    }

    /// Returns what else is to be said of the file.
    async fn save(&self, key: &'static Key, value: Value) -> Result<Option<String>, Failure> {
        let Some(file) = self.file().map(Path::to_owned) else {
            return Err(Failure::invalid(format!(
                "nothing was changed: the server was started without a configuration file, so \
                 there is none to save to. Set it without --save, which holds until the server \
                 ends; {}or start it by forebay serve --config FILE, with a file that says [{}] {} \
                 = {}",
                if key.option.is_empty() {
                    String::new()
                } else {
                    format!("start it with {} {value}; ", key.option)
                },
                key.section,
                key.name,
                in_toml(&shown(value)).unwrap_or_default(),
            )));
        };
        let work = move || save(&file, key, value);
        let outcome = spawn_blocking(&self.rt, &self.handles, work).await;
        let outcome = outcome.map_err(|e| e.to_string()).and_then(|saved| saved);
        let note = outcome.map_err(|e| {
            Failure::new(
                FailureKind::Failed,
                format!("nothing was changed, as it cannot be saved: {e}"),
            )
        })?;
        let mut said = self.said.borrow_mut();
        said.retain(|one| !std::ptr::eq(one.0, key));
        said.push((key, value));
        Ok(note)
    }

    /// A cache that was attached while a setting changed may have been opened with the old one.
    pub fn settle(&self, cache: &cache::Cache) -> base::Result<()> {
        cache.set(self.cache())
    }
}

fn or_option(key: &Key) -> String {
    match key.option {
        "" => String::new(),
        option => format!(" or with {option}"),
    }
}

/// Whether it is the pool that goes by a setting, and not the cache.
fn in_pool(key: &Key) -> bool {
    matches!(key.section, "pool" | "scrub")
}

/// Tells pool or cache.
fn apply(volumes: &Volumes, key: &Key, new: &ChosenSettings) -> Result<(), Failure> {
    let settings = new.settings();
    if in_pool(key) {
        let pool = volumes.pool();
        let unix_time_at_zero = pool.current_settings().unix_time_at_zero;
        pool.set(pool::Settings { unix_time_at_zero, ..settings.pool.clone() })?;
    } else if let Some(cache) = volumes.cache() {
        cache.set(settings.cache.clone())?;
    }
    Ok(())
}
