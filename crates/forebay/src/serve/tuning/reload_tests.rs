use std::fs::write;
use std::path::Path;

use super::*;
use crate::config::chosen::known;
use crate::config::{ConfigFile, Sections, ServeConfig};

const HEAD: &str = "devices = [\"a\"]\n";

/// A file, and what a server goes by that was started with it and an option.
fn started(dir: &Path, text: &str) -> (Origin, ChosenSettings, Places) {
    let path = dir.join("f.toml");
    write(&path, format!("{HEAD}{text}")).unwrap();
    let commit_interval = Some(std::time::Duration::from_secs(2));
    let options = Sections { commit_interval, ..Default::default() };
    let file = ConfigFile::read(&path).unwrap();
    let origin = Origin::of(&file, &options, dir).unwrap();
    let config = ServeConfig::new(options, file, dir).unwrap();
    (origin, config.settings, config.places)
}

fn again(origin: &Origin, text: &str, before: &ChosenSettings) -> Result<ReloadPlan, String> {
    write(origin.file(), format!("{HEAD}{text}")).unwrap();
    let read = origin.read().map_err(|e| one_line(&e.to_string()))?;
    plan(origin, origin.said(), &read, before)
}

#[test]
fn what_the_file_changes_wins_and_what_was_set_else_stays() {
    let dir = tempfile::tempdir().unwrap();
    let first = "[cache]\nmax_lag = \"8s\"\ndirty_target = 30\npromote = \"second\"\n";
    let (origin, mut before, _) = started(dir.path(), first);
    let set = |chosen: &mut ChosenSettings, name: &str, text: &str| {
        let key = known(name);
        chosen.put(key, key.kind.parse(text).unwrap(), Source::Set).unwrap();
    };
    set(&mut before, "cache.max_lag", "1s");
    set(&mut before, "cache.dirty_target", "20");
    set(&mut before, "scrub.rate", "1M");
    let same = again(&origin, first, &before).unwrap();
    assert_eq!(told(&same.changes), "nothing changed");
    // One value is another, one line is gone, and an option hides one.
    let second = "[cache]\nmax_lag = \"9s\"\ndirty_target = 30\n[pool]\ncommit_interval = \"7s\"\n";
    let plan = again(&origin, second, &before).unwrap();
    assert_eq!(
        told(&plan.changes),
        "cache.max_lag = 9s (it was 1s), cache.promote = first (it was second)"
    );
    let of = |name: &str| (known(name).get(plan.new.settings()), plan.new.source(known(name)));
    assert_eq!(of("cache.dirty_target"), (Value::Number(20), Source::Set));
    assert_eq!(of("scrub.rate"), (Value::Size(1 << 20), Source::Set));
    assert_eq!((of("cache.max_lag").1, of("cache.promote").1), (Source::File, Source::Default));
    assert!(
        plan.notes.len() == 1 && plan.notes[0].contains("--commit-interval"),
        "{:?}",
        plan.notes
    );
    // It fits no more to what was set.
    set(&mut before, "cache.dirty_limit", "40");
    let Err(e) = again(&origin, "[cache]\ndirty_target = 50\n", &before) else { panic!("taken") };
    assert!(e.contains("cache.dirty_limit is 40") && e.contains("set while"), "{e}");
}

#[test]
fn errors_take_one_line_and_say_where() {
    let dir = tempfile::tempdir().unwrap();
    let (origin, before, _) = started(dir.path(), "");
    for (text, words) in [
        ("[cache\n", ["line 2", "f.toml"]),
        ("[cache]\nmax_leg = 1\n", ["line 3", "max_leg"]),
        ("[cache]\nmax_lag = \"1ms\"\n", ["line 3", "100ms to 1h"]),
        ("[cache]\ndirty_target = 96\n", ["line 3", "1 to 90"]),
        ("[nbd]\nsocket_group = \"no such group\"\n", ["nbd.socket_group", "no such group"]),
    ] {
        let Err(e) = again(&origin, text, &before) else { panic!("{text}") };
        assert!(!e.contains('\n') && words.iter().all(|word| e.contains(word)), "{e}");
    }
}

#[test]
fn what_needs_a_restart_is_told_until_it_holds() {
    let dir = tempfile::tempdir().unwrap();
    let (origin, before, places) = started(dir.path(), "[nbd]\nmax_connections = 7\n");
    let text = "[nbd]\nmax_connections = 8\nsocket = \"n.sock\"\n[log]\nlevel = \"info\"\n";
    write(origin.file(), format!("devices = [\"a\", \"b\"]\n{text}")).unwrap();
    let read = origin.read().unwrap();
    let told = |now: &Places| -> Vec<String> {
        let names = waiting(&read, &before, &places, now);
        names.map(|text| text.split(' ').next().unwrap().to_owned()).collect()
    };
    assert_eq!(told(&places), ["devices", "nbd.socket", "nbd.max_connections"]);
    // A command has added the device already.
    let mut now = places.clone();
    now.now("devices", read.places.get("devices").unwrap().clone());
    assert_eq!(told(&now), ["nbd.socket", "nbd.max_connections"]);
}
