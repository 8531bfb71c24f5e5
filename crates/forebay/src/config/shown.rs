//! What holds, and where it comes from: as JSON for programs, and as a configuration file with
//! comments for people.

use std::path::Path;

use serde_json::{Value as Json, json};

use super::chosen::Chosen;
use super::places::{Given, PLACES, Places};
use super::table::{KEYS, Key};
use super::values::{Kind, Value};

/// Columns of a line before its comment.
const COMMENT_AT: usize = 44;

/// The sections of the configuration file in their order; one that is not here follows them.
const SECTIONS: &[&str] =
    &["", "nbd", "tls", "control", "http", "pool", "scrub", "cache", "io", "log"];

/// All that a server goes by, for programs.
pub fn all(places: &Places, chosen: &Chosen, file: Option<&Path>) -> Json {
    let mut entries: Vec<Json> = places.iter().map(place).collect();
    entries.extend(chosen.iter().map(|(key, ..)| setting(chosen, key)));
    entries.sort_by_key(|one| order_of(one["key"].as_str().unwrap_or_default()));
    let file = file.map(|path| path.display().to_string());
    json!({ "file": file, "settings": entries })
}

/// A setting for programs, its value as the configuration file has it.
pub fn setting(chosen: &Chosen, key: &Key) -> Json {
    let default = Chosen::default();
    let range = match key.kind {
        Kind::Word(words) => json!({ "one_of": words }),
        kind => {
            let ends = kind.ends();
            json!({ "least": ends.map(|e| to_json(e.0)), "most": ends.map(|e| to_json(e.1)) })
        }
    };
    json!({
        "key": key.full_name(),
        "value": to_json(key.get(chosen.settings())),
        "default": to_json(key.get(default.settings())),
        "from": chosen.source(key).to_string(),
        "range": range,
        "range_text": key.kind.range(),
        "changes": if key.live { "at once" } else { "restart" },
        "what": key.what,
    })
}

fn place(given: &Given) -> Json {
    let place = PLACES.iter().find(|place| place.name == given.name);
    json!({
        "key": given.name,
        "value": given.value,
        "default": place.map(|p| p.default),
        "from": given.source.to_string(),
        "changes": "restart",
        "what": place.map(|p| p.what),
    })
}

/// A value as JSON has it.
pub fn to_json(value: Value) -> Json {
    match value {
        Value::Number(n) => json!(n),
        _ => json!(value.to_string()),
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
    let mut all: Vec<String> = PLACES.iter().map(|place| place.name.to_owned()).collect();
    all.extend(KEYS.iter().map(Key::full_name));
    all.sort_by_key(|key| order_of(key));
    all
}

/// What [`all`] tells, as a configuration file: behind each value a comment says where it comes
/// from.
pub fn toml(all: &Json, head: &str) -> String {
    let mut out = head.to_owned();
    let mut before = "";
    for one in all["settings"].as_array().into_iter().flatten() {
        let (section, name) = parts(one["key"].as_str().unwrap_or_default());
        if section != before {
            out += &format!("\n[{section}]\n");
            before = section;
        }
        let from = one["from"].as_str().unwrap_or_default();
        let line = match toml_value(&one["value"]) {
            Some(value) => format!("{name} = {value}"),
            None => format!("# {name}: none"),
        };
        let from = if one["value"].is_null() { String::new() } else { format!("  # {from}") };
        out += format!("{line:<COMMENT_AT$}{from}").trim_end();
        out.push('\n');
    }
    out
}

/// A value as it stands in a configuration file. Nothing where there is none.
fn toml_value(value: &Json) -> Option<String> {
    let value = toml::Value::try_from(value).ok()?;
    Some(value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::chosen::{Source, known};
    use crate::config::file::ConfigFile;

    fn shown() -> Json {
        let mut places = Places::default();
        let devices = json!(["/a \"b\"", { "path": "/c", "emulate": "hdd" }]);
        places.choose("devices", [Some(()), None, None], |()| devices);
        places.choose::<()>("cache.path", [None; 3], |()| Json::Null);
        places.choose("nbd.socket", [None, Some(()), None], |()| json!("/n.sock"));
        let mut chosen = Chosen::default();
        chosen.put(known("scrub.at"), Value::TimeOfDay(Some(150)), Source::Set).unwrap();
        chosen.put(known("cache.dirty_limit"), Value::Number(90), Source::File).unwrap();
        all(&places, &chosen, Some(Path::new("/f.toml")))
    }

    #[test]
    fn what_is_shown_can_be_read_as_a_file() {
        let text = toml(&shown(), "# A head.\n");
        let file = ConfigFile::parse(&text).expect(&text);
        assert_eq!(file.settings().len(), KEYS.len(), "{text}");
        assert_eq!((file.devices.len(), file.cache_path), (2, None));
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
        let shown = shown();
        assert_eq!(shown["file"], "/f.toml");
        let one = |key: &str| {
            let all = shown["settings"].as_array().unwrap();
            all.iter().find(|one| one["key"] == key).unwrap().clone()
        };
        assert_eq!(
            (&one("devices")["from"], &one("scrub.at")["value"]),
            (&json!("option"), &json!("02:30"))
        );
        assert_eq!(
            (&one("cache.path")["value"], &one("nbd.socket")["changes"]),
            (&Json::Null, &json!("restart"))
        );
    }

    #[test]
    fn every_place_is_described() {
        use crate::config::table;
        let described: Vec<&str> = PLACES.iter().map(|place| place.name).collect();
        let mut listed = table::PLACES.to_vec();
        listed.retain(|name| !described.contains(name));
        assert!(listed.is_empty(), "config/places.rs does not describe {listed:?}");
        assert_eq!(described.len(), table::PLACES.len());
        let keys = keys();
        assert!(keys.iter().all(|key| order_of(key) < SECTIONS.len()), "a section has no place");
    }
}
