//! A configuration file that explains itself: every key with what it says, its range and its
//! default. All but the devices is commented out, so that a default may change with a new version.

use super::chosen::ChosenSettings;
use super::places::{PLACES, PlaceKey};
use super::shown::{in_toml, keys, shown};
use super::table::{KEYS, Key};

/// Columns of a comment.
const COLUMNS: usize = 100;

const HEAD: &str = "\
# The configuration of a Forebay server: forebay serve --config forebay.toml
#
# Lines with a # before a key show its default, or an example where there is none. Options of the
# command line take precedence over this file. Relative paths are relative to its directory. Sizes
# are bytes, or text such as \"512M\" (powers of 1024); times are text such as \"500ms\" or \"5s\".
# forebay config shows what a running server goes by. docs/configuration.md says more.
";

/// A key as it is explained.
pub struct Entry {
    /// The section of the key, or an empty text.
    pub section: &'static str,
    /// The name of the key in that section.
    pub name: &'static str,
    /// The default of the key or an example, as the file has it.
    pub value: String,
    /// The meaning of the key, for people.
    pub what: &'static str,
    /// The range or default of the key, when it changes, and its option.
    pub says: String,
}

/// All keys in the order of the file.
pub fn entries() -> Vec<Entry> {
    let default = ChosenSettings::default();
    let explain = |full: String| {
        let place = PLACES.iter().find(|place| place.field.name == full).map(of_place);
        let key = || KEYS.iter().find(|key| key.full_name() == full);
        place.or_else(|| key().map(|key| of_setting(key, &default)))
    };
    keys().into_iter().filter_map(explain).collect()
}

/// The text of the file.
pub fn example() -> String {
    let mut out = HEAD.to_owned();
    let mut before = "";
    for Entry { section, name, value, what, says } in entries() {
        if section != before {
            out += &format!("\n[{section}]\n");
            before = section;
        }
        let mark = if name == "devices" { "" } else { "#" };
        out += &format!("\n{}{}{mark}{name} = {value}\n", comment(what), comment(&says));
    }
    out
}

fn of_place(place: &PlaceKey) -> Entry {
    let (section, name) = place.field.name.split_once('.').unwrap_or(("", place.field.name));
    let says = format!("Default: {}.{}", place.default, of_option(place.option));
    Entry { section, name, value: place.example.to_owned(), what: place.what, says }
}

fn of_setting(key: &Key, default: &ChosenSettings) -> Entry {
    let when = if key.live { "at once" } else { "with a restart" };
    let range = key.kind.range();
    let says = format!("Range: {range}. Changes {when}.{}", of_option(key.option));
    let value = in_toml(&shown(key.get(default.settings()))).unwrap_or_default();
    Entry { section: key.section, name: key.name, value, what: key.what, says }
}

fn of_option(option: &str) -> String {
    if option.is_empty() { String::new() } else { format!(" Option: {option}.") }
}

/// A comment that fits into the columns.
fn comment(text: &str) -> String {
    let mut out = String::new();
    let mut line = String::from("#");
    for word in text.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > COLUMNS {
            out += &format!("{line}\n");
            line = String::from("#");
        }
        line += &format!(" {word}");
    }
    out + &line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file::ConfigFile;

    #[test]
    fn the_file_in_contrib_is_the_example() {
        let file = include_str!("../../../../contrib/forebay.toml");
        assert!(file == example(), "make it anew: forebay config --example > contrib/forebay.toml");
    }

    #[test]
    fn the_example_can_be_read_and_changes_nothing() {
        let file = ConfigFile::parse(&example()).unwrap();
        assert_eq!((file.sections.devices.len(), file.sections.in_file.len()), (2, 0));
    }

    /// What is commented out is a key with its default, too.
    #[test]
    fn every_default_of_the_example_holds() {
        let key = |line: &str| line.starts_with('#') && !line.starts_with("# ") && line != "#";
        let lines = example();
        let lines = lines.lines().map(|line| if key(line) { &line[1..] } else { line });
        let text = lines.map(|line| format!("{line}\n")).collect::<String>();
        let file = ConfigFile::parse(&text).expect(&text).sections;
        assert_eq!(file.in_file.len(), KEYS.len());
        let default = ChosenSettings::default();
        for (key, value) in &file.in_file {
            assert_eq!(key.get(default.settings()), *value, "{}", key.full_name());
        }
        assert!(
            file.nbd.socket.is_some() && file.cache.size.is_some() && file.io.backend.is_some()
        );
    }

    #[test]
    fn lines_fit() {
        assert!(example().lines().all(|line| line.chars().count() <= COLUMNS));
    }
}
