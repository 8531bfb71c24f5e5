//! The values of a configuration, each with where it comes from: as JSON for programs, and as a
//! configuration file with comments for people.

use std::path::Path;

use model::setting::{
    Changes, Config, ConfigEntry, Place, Setting, SettingRange, SettingValue, SettingValues,
    SettingWords,
};
use serde::Serialize;

use super::chosen::ChosenSettings;
use super::places::{GivenPlace, PLACES, Places};
use super::table::{KEYS, Key};
use super::values::{Kind, Value};

/// Columns of a line before its comment.
const COMMENT_AT: usize = 44;

/// The sections of the configuration file in their order; one that is not here follows them.
const SECTIONS: &[&str] =
    &["", "nbd", "tls", "control", "http", "pool", "scrub", "cache", "io", "log"];

/// Keys that follow the others of their section but the settings.
const LAST: &[&str] = &["socket_group", "socket_mode", "hosts"];

/// All that a server goes by, for programs.
pub fn all(places: &Places, chosen: &ChosenSettings, file: Option<&Path>) -> Config {
    let mut settings: Vec<ConfigEntry> = places.iter().map(place).collect();
    settings.sort_by_key(|one| LAST.iter().position(|name| *name == parts(one.key()).1));
    settings.extend(chosen.iter().map(|(key, ..)| ConfigEntry::Setting(setting(chosen, key))));
    settings.sort_by_key(|one| order_of(one.key()));
    Config { file: file.map(|path| path.display().to_string()), settings }
}

/// A setting for programs, its value as the configuration file has it.
pub fn setting(chosen: &ChosenSettings, key: &Key) -> Setting {
    let default = ChosenSettings::default();
    let range = match key.kind {
        Kind::Word(words) => SettingValues::Words(SettingWords {
            one_of: words.iter().map(|word| (*word).to_owned()).collect(),
        }),
        kind => {
            let ends = kind.ends();
            SettingValues::Range(SettingRange {
                least: ends.map(|ends| shown(ends.0)),
                most: ends.map(|ends| shown(ends.1)),
            })
        }
    };
    Setting {
        key: key.full_name(),
        value: shown(key.get(chosen.settings())),
        default: shown(key.get(default.settings())),
        from: chosen.source(key),
        range,
        range_text: key.kind.range(),
        changes: if key.live { Changes::AtOnce } else { Changes::Restart },
        what: key.what.to_owned(),
    }
}

fn place(given: &GivenPlace) -> ConfigEntry {
    let place = PLACES.iter().find(|place| place.field.name == given.name);
    ConfigEntry::Place(Place {
        key: given.name.to_owned(),
        value: given.value.clone(),
        default: place.map(|p| p.default).unwrap_or_default().to_owned(),
        from: given.source,
        changes: Changes::Restart,
        what: place.map(|p| p.what).unwrap_or_default().to_owned(),
    })
}

/// A value as the configuration file has it.
pub fn shown(value: Value) -> SettingValue {
    match value {
        Value::Number(n) => SettingValue::Number(n),
        _ => SettingValue::Text(value.to_string()),
    }
}

/// Section and name of a key.
fn parts(key: &str) -> (&str, &str) {
    key.split_once('.').unwrap_or(("", key))
}

fn order_of(key: &str) -> usize {
    let section = parts(key).0;
    SECTIONS.iter().position(|one| *one == section).unwrap_or(SECTIONS.len())
}

/// All keys of the configuration file with their sections, in its order.
pub fn keys() -> Vec<String> {
    let mut all: Vec<String> = PLACES.iter().map(|place| place.field.name.to_owned()).collect();
    all.extend(KEYS.iter().map(Key::full_name));
    all.sort_by_key(|key| order_of(key));
    all
}

/// Returns the values that [`all`] tells, as a configuration file: behind each value a comment says
/// where it comes from.
pub fn toml(all: &Config, head: &str) -> String {
    let mut out = head.to_owned();
    let mut before = "";
    for one in &all.settings {
        let (section, name) = parts(one.key());
        if section != before {
            out += &format!("\n[{section}]\n");
            before = section;
        }
        let value = match one {
            ConfigEntry::Setting(setting) => in_toml(&setting.value),
            ConfigEntry::Place(place) => in_toml(&place.value),
        };
        let (line, from) = match value {
            Some(value) => (format!("{name} = {value}"), format!("  # {}", one.from())),
            None => (format!("# {name}: none"), String::new()),
        };
        out += format!("{line:<COMMENT_AT$}{from}").trim_end();
        out.push('\n');
    }
    out
}

/// A value as it stands in a configuration file. Nothing where there is none.
pub fn in_toml(value: &impl Serialize) -> Option<String> {
    let value = toml::Value::try_from(value).ok()?;
    Some(value.to_string())
}

#[cfg(test)]
mod tests {
    use model::device::Emulate;
    use model::setting::{NamedDevice, PlaceItem, PlaceValue};

    use super::*;
    use crate::config::chosen::{Source, known};
    use crate::config::file::ConfigFile;

    fn some() -> Config {
        let mut places = Places::default();
        let emulated = NamedDevice { path: "/c".into(), emulate: Emulate::Hdd };
        let devices =
            PlaceValue::List(vec![PlaceItem::Text("/a \"b\"".into()), PlaceItem::Device(emulated)]);
        places.put("devices", devices, Source::Option);
        places.put("cache.path", PlaceValue::None, Source::Default);
        places.put("nbd.socket", "/n.sock".into(), Source::File);
        let mut chosen = ChosenSettings::default();
        chosen.put(known("scrub.at"), Value::TimeOfDay(Some(150)), Source::Set).unwrap();
        chosen.put(known("cache.dirty_limit"), Value::Number(90), Source::File).unwrap();
        all(&places, &chosen, Some(Path::new("/f.toml")))
    }

    #[test]
    fn what_is_shown_can_be_read_as_a_file() {
        let text = toml(&some(), "# A head.\n");
        let file = ConfigFile::parse(&text).expect(&text);
        assert_eq!(file.sections.in_file.len(), KEYS.len(), "{text}");
        assert_eq!((file.sections.devices.len(), file.sections.cache.path), (2, None));
        let has = |line: &str, from: &str| {
            let found = text.lines().find(|l| l.split("  #").next().unwrap().trim_end() == line);
            let found = found.unwrap_or_else(|| panic!("{line}\n{text}"));
            assert!(found.ends_with(&format!("# {from}")), "{found}");
        };
        has(r#"devices = ['/a "b"', { emulate = "hdd", path = "/c" }]"#, "option");
        has(r#"socket = "/n.sock""#, "configuration");
        has(r#"at = "02:30""#, "set");
        has("dirty_limit = 90", "configuration");
        has("max_lag = \"30s\"", "default");
        assert!(text.contains("\n# path: none\n"), "{text}");
    }

    #[test]
    fn programs_get_the_same() {
        let shown = some();
        assert_eq!(shown.file.as_deref(), Some("/f.toml"));
        let one = |key: &str| shown.settings.iter().find(|one| one.key() == key).unwrap();
        assert_eq!(one("devices").from(), Source::Option);
        let ConfigEntry::Setting(at) = one("scrub.at") else { panic!("no setting") };
        assert_eq!(at.value, SettingValue::Text("02:30".into()));
        let ConfigEntry::Place(path) = one("cache.path") else { panic!("no place") };
        assert_eq!((&path.value, path.changes), (&PlaceValue::None, Changes::Restart));
    }

    #[test]
    fn every_section_has_its_place() {
        let keys = keys();
        assert!(keys.iter().all(|key| order_of(key) < SECTIONS.len()), "a section has no place");
    }
}
