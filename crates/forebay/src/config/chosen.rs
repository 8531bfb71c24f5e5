//! The settings that were chosen, and where each comes from.

pub use model::setting::Source;

use super::places::{PLACES, is_place};
pub use super::table::known;
use super::table::{GONE, KEYS, Key, ORDER, Settings};
use super::values::Value;

/// The number of names that are proposed for one that is not known.
const PROPOSED: usize = 3;
/// The least similarity, 0 to 1, of a name that is proposed for an unknown one.
const ALIKE: f64 = 0.6;

/// Values of all settings.
#[derive(Clone, Debug)]
pub struct ChosenSettings {
    settings: Settings,
    /// In the order of the table.
    sources: Vec<Source>,
}

impl Default for ChosenSettings {
    fn default() -> ChosenSettings {
        ChosenSettings { settings: Settings::default(), sources: vec![Source::Default; KEYS.len()] }
    }
}

impl ChosenSettings {
    /// The values.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// All settings, with where their values come from.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Key, Value, Source)> {
        KEYS.iter().zip(&self.sources).map(|(key, source)| (key, key.get(&self.settings), *source))
    }

    /// The origin of a value.
    pub fn source(&self, key: &Key) -> Source {
        self.sources[place(key)]
    }

    /// Gives a setting a value. Fails, and changes nothing, where that is out of its range.
    pub fn put(&mut self, key: &Key, value: Value, source: Source) -> Result<(), String> {
        if !key.kind.has(value) {
            let (name, range) = (key.full_name(), key.kind.range());
            return Err(format!("{name} is {value}; it can be {range}"));
        }
        key.put(&mut self.settings, value);
        self.sources[place(key)] = source;
        Ok(())
    }

    /// Fails if two settings contradict each other. `changed` is the one that is to be named first.
    pub fn check(&self, changed: Option<&Key>) -> Result<(), String> {
        for &(low_name, high_name, below) in ORDER {
            let (low, high) = (known(low_name), known(high_name));
            let (less, more) = (low.get(&self.settings), high.get(&self.settings));
            if less < more || less == more && !below {
                continue;
            }
            let relation = if below { ["above", "below"] } else { ["at least", "at most"] };
            let changed_low = changed.is_some_and(|key| std::ptr::eq(key, low));
            return Err(if changed_low {
                format!("{low_name} is {less}; it has to be {} {high_name}, {more}", relation[1])
            } else {
                format!("{high_name} is {more}; it has to be {} {low_name}, {less}", relation[0])
            });
        }
        Ok(())
    }
}

fn place(key: &Key) -> usize {
    let at = KEYS.iter().position(|one| std::ptr::eq(one, key));
    at.unwrap_or_else(|| unreachable!("all keys are in the table"))
}

/// Why there is no setting of a name.
#[derive(Debug, PartialEq, Eq)]
pub enum NotFound {
    /// The name is not one of a setting; the text names those that are like it.
    Unknown(String),
    /// Several settings have the name, or the setting is read at the start only.
    Refused(String),
}

/// The setting of a name, with its section or without.
pub fn find(name: &str) -> Result<&'static Key, NotFound> {
    let found: Vec<_> =
        KEYS.iter().filter(|key| key.full_name() == name || key.name == name).collect();
    match found[..] {
        [key] => Ok(key),
        [] if is_place(name) => Err(NotFound::Refused(format!(
            "{name} is read when the server starts: change it in the configuration file or on the \
             command line, and start the server again"
        ))),
        [] => Err(NotFound::Unknown(unknown(name, None))),
        _ => {
            let names: Vec<String> = found.iter().map(|key| key.full_name()).collect();
            Err(NotFound::Refused(format!(
                "{name} is the name of several settings: say {}",
                names.join(" or ")
            )))
        }
    }
}

/// The setting of a section and a name.
pub fn find_in(section: &str, name: &str) -> Result<&'static Key, String> {
    let found = KEYS.iter().find(|key| key.section == section && key.name == name);
    found.ok_or_else(|| unknown(name, Some(section)))
}

/// Why a setting of an older version has no effect any more; `None`: there never was one.
pub fn why_gone(section: &str, name: &str) -> Option<&'static str> {
    let is_its = |full: &str| full.split_once('.') == Some((section, name));
    GONE.iter().find(|(full, _)| is_its(full)).map(|(_, why)| *why)
}

/// Says that there is no such key, and what may have been meant.
fn unknown(name: &str, section: Option<&str>) -> String {
    let gone = |full: &str| full == name || full.split('.').next_back() == Some(name);
    if let Some((full, why)) = GONE.iter().find(|(full, _)| gone(full)) {
        return format!("there is no setting {full} any more: {why}");
    }
    let here = |full: &String| section.is_none_or(|s| full.split('.').next() == Some(s));
    let like = |other: &str| strsim::normalized_damerau_levenshtein(name, other);
    let alike = |full: &str| {
        let bare = full.split_once('.').map_or(full, |(_, bare)| bare);
        if name.contains('.') { like(full).max(like(bare)) } else { like(bare) }
    };
    let all = KEYS.iter().map(Key::full_name).chain(PLACES.iter().map(|p| p.field.name.to_owned()));
    let mut near: Vec<(f64, String)> =
        all.filter(here).map(|full| (alike(&full), full)).filter(|n| n.0 >= ALIKE).collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    let near: Vec<String> = near.into_iter().take(PROPOSED).map(|(_, full)| full).collect();
    let full = section.map_or(name.to_owned(), |section| format!("{section}.{name}"));
    match &near[..] {
        [] => format!("there is no setting {full:?}; forebay set lists all"),
        [one] => format!("there is no setting {full:?}; the nearest is {one}"),
        _ => format!("there is no setting {full:?}; the nearest are {}", near.join(", ")),
    }
}

#[cfg(test)]
#[path = "chosen_tests.rs"]
mod tests;
