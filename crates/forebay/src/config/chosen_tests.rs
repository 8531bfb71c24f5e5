//! The table holds together, and with the documents.

use super::*;
use crate::config::values::Kind;

#[test]
fn every_setting_is_written_to_a_place_of_its_own() {
    for key in KEYS {
        let default = ChosenSettings::default();
        let values: Vec<Value> = match key.kind {
            Kind::Word(words) => words.iter().map(|word| Value::Word(word)).collect(),
            Kind::TimeOfDay => [None, Some(0), Some(1439)].map(Value::TimeOfDay).into(),
            _ => {
                let (least, most) = key.kind.ends().unwrap();
                vec![least, most]
            }
        };
        for value in values {
            let mut chosen = default.clone();
            chosen.put(key, value, Source::Set).unwrap();
            assert_eq!(key.get(chosen.settings()), value, "{}", key.full_name());
            assert_eq!(chosen.source(key), Source::Set);
            for other in KEYS.iter().filter(|other| !std::ptr::eq(*other, key)) {
                let name = other.full_name();
                assert_eq!(other.get(chosen.settings()), other.get(default.settings()), "{name}");
                assert_eq!(chosen.source(other), Source::Default);
            }
        }
    }
}

#[test]
fn defaults_are_in_their_ranges_and_agree() {
    let default = ChosenSettings::default();
    for (key, value, source) in default.iter() {
        assert!(key.kind.has(value) && source == Source::Default, "{}", key.full_name());
    }
    default.check(None).unwrap();
}

#[test]
fn what_is_out_of_its_range_changes_nothing() {
    let mut chosen = ChosenSettings::default();
    let key = known("cache.dirty_target");
    for value in [0, 91] {
        let e = chosen.put(key, Value::Number(value), Source::Set).unwrap_err();
        assert!(e.contains("cache.dirty_target") && e.contains("1 to 90"), "{e}");
    }
    assert_eq!(
        (key.get(chosen.settings()), chosen.source(key)),
        (Value::Number(40), Source::Default)
    );
}

#[test]
fn settings_that_contradict_each_other_are_named() {
    let (low, high) = (known("cache.dirty_target"), known("cache.dirty_limit"));
    let mut chosen = ChosenSettings::default();
    chosen.put(low, Value::Number(50), Source::Set).unwrap();
    chosen.put(high, Value::Number(50), Source::Set).unwrap();
    let of_low = chosen.check(Some(low)).unwrap_err();
    assert_eq!(of_low, "cache.dirty_target is 50; it has to be below cache.dirty_limit, 50");
    let of_high = chosen.check(Some(high)).unwrap_err();
    assert_eq!(of_high, "cache.dirty_limit is 50; it has to be above cache.dirty_target, 50");
    chosen.put(high, Value::Number(51), Source::Set).unwrap();
    chosen.check(None).unwrap();
    let (low, high) = (known("cache.writeback_rate_min"), known("cache.writeback_rate_max"));
    chosen.put(low, Value::Size(1 << 20), Source::Set).unwrap();
    chosen.put(high, Value::Size(1 << 20), Source::Set).unwrap();
    chosen.check(None).unwrap();
    chosen.put(high, Value::Size((1 << 20) - 1), Source::Set).unwrap();
    assert!(chosen.check(Some(high)).unwrap_err().contains("at least"));
}

#[test]
fn names_are_found_with_their_section_or_without() {
    for key in KEYS {
        assert!(std::ptr::eq(find(&key.full_name()).unwrap(), key));
        assert!(std::ptr::eq(find_in(key.section, key.name).unwrap(), key));
    }
    assert_eq!(find("max_lag").unwrap().full_name(), "cache.max_lag");
    let Err(NotFound::Refused(text)) = find("dirty_nodes") else { panic!("there are two") };
    assert!(text.contains("pool.dirty_nodes or cache.dirty_nodes"), "{text}");
    let Err(NotFound::Refused(text)) = find("nbd.socket") else { panic!("it is a place") };
    assert!(text.contains("starts"), "{text}");
}

#[test]
fn the_nearest_names_are_proposed() {
    for (name, near) in [
        ("max_leg", "cache.max_lag"),
        ("cache.maxlag", "cache.max_lag"),
        ("writeback_rate", "cache.writeback_rate_min"),
        ("comit_interval", "pool.commit_interval"),
        ("nbd.soket", "nbd.socket"),
    ] {
        let Err(NotFound::Unknown(text)) = find(name) else { panic!("{name} is there") };
        assert!(text.contains(near), "{text}");
        assert_eq!(text.contains("nearest are"), text.contains(", "), "{text}");
    }
    let Err(NotFound::Unknown(text)) = find("colour") else { panic!("it is there") };
    assert!(text.contains("forebay set lists"), "{text}");
    let text = find_in("cache", "commit_interval").unwrap_err();
    assert!(!text.contains("pool."), "{text}");
}

/// Each row of the documents begins as the table says.
#[test]
fn documents_have_the_table() {
    let text = include_str!("../../../../docs/configuration.md");
    let default = ChosenSettings::default();
    let mut rows = 0;
    for (key, value, _) in default.iter() {
        let (_, section) = text.split_once(&format!("\n## `[{}]`", key.section)).unwrap();
        let section = section.split("\n## ").next().unwrap();
        let quoted = |text: &str| match text {
            "" => String::new(),
            text => format!("`{text}`"),
        };
        let value = match (key.kind, value) {
            (Kind::Number(..), _) | (_, Value::Size(0)) => value.to_string(),
            _ => format!("`\"{value}\"`"),
        };
        let (name, option, range) = (quoted(key.name), quoted(key.option), key.kind.range());
        let option = if option.is_empty() { " ".to_owned() } else { format!(" {option} ") };
        let live = if key.live { "at once" } else { "restart" };
        let row = format!("| {name} |{option}| {value} | {range} | {live} | {}", key.what);
        assert!(section.contains(&row), "docs/configuration.md has no row that begins with\n{row}");
        rows += 1;
    }
    // And no other rows of this form.
    let all =
        text.lines().filter(|line| line.contains("| at once |") || line.contains("| restart |"));
    assert_eq!(all.count(), rows);
}
