//! What is linked into Forebay, and where it comes from: the lists of `deny.toml`, checked without
//! cargo-deny, which takes longer to build than all of Forebay.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value as Json;
use toml::{Table, Value};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(name: &str) -> Table {
    std::fs::read_to_string(root().join(name)).unwrap().parse().unwrap()
}

fn texts<'a>(rules: &'a Table, section: &str, key: &str) -> Vec<&'a str> {
    rules[section][key].as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect()
}

/// What cargo knows of the packages for this platform: they were downloaded for this build.
fn packages() -> Vec<Json> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let words = ["metadata", "--format-version", "1", "--locked", "--offline"];
    let words = words.into_iter().chain(["--filter-platform", &platform]);
    let done = Command::new(cargo).args(words).current_dir(root()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let all: Json = serde_json::from_slice(&done.stdout).unwrap();
    all["packages"].as_array().unwrap().clone()
}

/// Whether the licences of `allowed` are enough for an SPDX expression: `OR` and `/` leave a
/// choice, `AND` does not and binds closer. Nothing that it does not understand is allowed.
fn fits(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    any_of(&words, &mut at, allowed) && at == words.len()
}

fn any_of(words: &[&str], at: &mut usize, allowed: &BTreeSet<&str>) -> bool {
    let mut fits = all_of(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        fits |= all_of(words, at, allowed);
    }
    fits
}

fn all_of(words: &[&str], at: &mut usize, allowed: &BTreeSet<&str>) -> bool {
    let mut fits = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        fits &= one(words, at, allowed);
    }
    fits
}

fn one(words: &[&str], at: &mut usize, allowed: &BTreeSet<&str>) -> bool {
    let Some(&word) = words.get(*at) else { return false };
    *at += 1;
    if word == "(" {
        let fits = any_of(words, at, allowed);
        let closed = words.get(*at) == Some(&")");
        *at += 1;
        return fits && closed;
    }
    if words.get(*at) == Some(&"WITH") {
        let whole = format!("{word} WITH {}", words.get(*at + 1).unwrap_or(&""));
        *at += 2;
        return allowed.contains(whole.as_str());
    }
    allowed.contains(word)
}

#[test]
fn expressions_of_licences() {
    let allowed = BTreeSet::from(["MIT", "ISC", "A WITH b"]);
    for good in [
        "MIT",
        "GPL-3.0 OR MIT",
        "MIT/Apache-2.0",
        "MIT AND ISC",
        "(GPL OR MIT) AND ISC",
        "A WITH b OR GPL",
        "GPL AND X OR MIT",
    ] {
        assert!(fits(good, &allowed), "{good}");
    }
    for bad in [
        "",
        "GPL-3.0",
        "MIT AND GPL",
        "A",
        "A WITH c",
        "(MIT",
        "MIT ISC",
        "GPL OR",
        "MIT AND (GPL)",
    ] {
        assert!(!fits(bad, &allowed), "{bad}");
    }
}

#[test]
fn licences_are_allowed() {
    let rules = read("deny.toml");
    let allowed: BTreeSet<&str> = texts(&rules, "licenses", "allow").into_iter().collect();
    let packages = packages();
    assert!(packages.len() > 50, "where are the dependencies?");
    let of = |package: &Json| package["license"].as_str().unwrap_or_default().to_owned();
    let bad: Vec<String> = packages
        .iter()
        .filter(|package| !fits(&of(package), &allowed))
        .map(|package| format!("{}: {:?}", package["name"], of(package)))
        .collect();
    assert!(bad.is_empty(), "not in deny.toml:\n{}", bad.join("\n"));
}

/// The packages of the lock file that are not of this workspace: name, version, source, checksum.
fn locked() -> Vec<(String, String, String, bool)> {
    locked_in("Cargo.lock")
}

fn locked_in(name: &str) -> Vec<(String, String, String, bool)> {
    let lock = read(name);
    let text = |package: &Value, key: &str| {
        package.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let all = lock["package"].as_array().unwrap().iter();
    all.filter(|package| package.get("source").is_some())
        .map(|p| {
            (text(p, "name"), text(p, "version"), text(p, "source"), p.get("checksum").is_some())
        })
        .collect()
}

#[test]
fn sources_are_known() {
    let rules = read("deny.toml");
    let known = texts(&rules, "sources", "allow-registry");
    let from = |source: &str| source.strip_prefix("registry+").unwrap_or(source).to_owned();
    let bad: Vec<String> = locked()
        .into_iter()
        .filter(|(_, _, source, sum)| !known.contains(&from(source).as_str()) || !sum)
        .map(|(name, version, source, _)| format!("{name} {version} from {source}"))
        .collect();
    assert!(bad.is_empty(), "not in deny.toml, or without a checksum:\n{}", bad.join("\n"));
}

#[test]
fn each_library_is_there_once() {
    let rules = read("deny.toml");
    let skips = rules["bans"]["skip"].as_array().unwrap();
    let skip = |row: &Value| {
        assert!(!row["reason"].as_str().unwrap().is_empty(), "{row} has no reason");
        let (name, version) = row["crate"].as_str().unwrap().split_once('@').unwrap();
        (name.to_owned(), format!("{version}."))
    };
    let skips: Vec<(String, String)> = skips.iter().map(skip).collect();
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut used = BTreeSet::new();
    for (name, version, ..) in locked() {
        match skips.iter().position(|(n, v)| *n == name && version.starts_with(v)) {
            Some(row) => drop(used.insert(row)),
            None => versions.entry(name).or_default().push(version),
        }
    }
    versions.retain(|_, all| all.len() > 1);
    assert!(versions.is_empty(), "several versions, and no reason in deny.toml: {versions:?}");
    let idle: Vec<_> = (0..skips.len()).filter(|row| !used.contains(row)).collect();
    assert!(idle.is_empty(), "rows of skip in deny.toml that nothing needs: {idle:?}");
}

/// What the fuzzer feeds is what users get: where the targets have a library of the product, it is
/// of a version that the product has.
#[test]
fn fuzz_targets_have_the_versions_of_the_product() {
    let of = |name: &str| {
        let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (name, version, ..) in locked_in(name) {
            versions.entry(name).or_default().insert(version);
        }
        versions
    };
    let (ours, fuzz) = (of("Cargo.lock"), of("fuzz/Cargo.lock"));
    let both: Vec<&String> = fuzz.keys().filter(|name| ours.contains_key(*name)).collect();
    assert!(both.len() > 50, "{both:?}");
    let other: Vec<String> = both
        .iter()
        .filter(|name| !fuzz[**name].is_subset(&ours[**name]))
        .map(|name| format!("{name}: {:?}, and {:?} in Cargo.lock", fuzz[*name], ours[*name]))
        .collect();
    let next = "cargo update --manifest-path fuzz/Cargo.toml -p NAME --precise VERSION";
    assert!(other.is_empty(), "fuzz/Cargo.lock; {next}:\n{}", other.join("\n"));
}
