//! Rules of the house that no lint knows. See also `clippy.toml` and the workspace's lints.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::{Path, PathBuf};

const MAX_LINES: usize = 600;

/// Crates by layer: each may depend on those before it, and on those in its own layer.
const LAYERS: &[&[&str]] = &[
    &["base"],
    &["format"],
    &["rt"],
    &["uring", "posix", "sim", "conformance"],
    &["queue"],
    &["btree"],
    &["pool"],
    &["cache"],
    &["volume"],
    &["nbd"],
    &["torture"],
    &["forebay"],
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All files below `dir` that end in `extension`, but for what is built.
fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found
}

fn sources() -> Vec<(String, String)> {
    let root = root();
    let found = files(&root.join("crates"), "rs");
    assert!(found.len() > 50, "where are the sources?");
    let name = |path: &Path| path.strip_prefix(&root).unwrap().display().to_string();
    found.into_iter().map(|path| (name(&path), std::fs::read_to_string(path).unwrap())).collect()
}

fn fail_if_any(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n{}", found.join("\n"));
}

#[test]
fn files_are_short() {
    let long: Vec<String> = sources()
        .into_iter()
        .map(|(name, text)| (name, text.lines().count()))
        .filter(|(_, lines)| *lines > MAX_LINES)
        .map(|(name, lines)| format!("{name}: {lines} lines"))
        .collect();
    fail_if_any("too long", &long);
}

#[test]
fn nothing_is_left_to_do() {
    // Put together here, so that this file does not find itself.
    let marks = [["TO", "DO"], ["FIX", "ME"], ["XX", "X"], ["unimplemented", "!"], ["todo", "!"], ["dbg", "!("]];
    let marks = marks.map(|m| m.concat());
    let mut found = Vec::new();
    for (name, text) in sources() {
        for (number, line) in text.lines().enumerate() {
            if marks.iter().any(|m| line.contains(m)) {
                found.push(format!("{name}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    fail_if_any("unfinished", &found);
}

#[test]
fn unsafe_stays_where_it_belongs() {
    let allowed = |name: &str| {
        name.starts_with("crates/uring/") || name.starts_with("crates/posix/") || name == "crates/base/src/buf.rs"
    };
    let word = ["un", "safe"].concat();
    let begins = [" {", " fn", " impl", "_code)]"].map(|after| word.clone() + after);
    let mut found = Vec::new();
    for (name, text) in sources().into_iter().filter(|(name, _)| !allowed(name)) {
        for (number, line) in text.lines().enumerate() {
            if begins.iter().any(|b| line.contains(b)) {
                found.push(format!("{name}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    fail_if_any("not here", &found);
}

#[test]
fn layers_depend_downwards() {
    let layer = |name: &str| LAYERS.iter().position(|l| l.contains(&name));
    let mut found = Vec::new();
    for path in files(&root().join("crates"), "toml") {
        if path.file_name().is_none_or(|n| n != "Cargo.toml") {
            continue;
        }
        let manifest: toml::Table = std::fs::read_to_string(&path).unwrap().parse().unwrap();
        let name = manifest["package"]["name"].as_str().unwrap().to_owned();
        let Some(own) = layer(&name) else {
            found.push(format!("{name} has no layer: add it to this test and to docs/architecture.md"));
            continue;
        };
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let dependencies = manifest.get(section).and_then(toml::Value::as_table).into_iter().flatten();
            for (dependency, _) in dependencies {
                if layer(dependency).is_some_and(|l| l > own) {
                    found.push(format!("{name} depends on {dependency}, which is above it"));
                }
            }
        }
    }
    fail_if_any("upwards", &found);
}

#[test]
fn every_crate_obeys_the_lints() {
    let mut found = Vec::new();
    for layer in LAYERS.iter().copied().flatten() {
        let text = std::fs::read_to_string(root().join("crates").join(layer).join("Cargo.toml")).unwrap();
        let manifest: toml::Table = text.parse().unwrap();
        let inherits = manifest.get("lints").and_then(|l| l.get("workspace")).and_then(toml::Value::as_bool);
        if inherits != Some(true) {
            found.push(format!("{layer} does not inherit the workspace's lints"));
        }
    }
    fail_if_any("no lints", &found);
}
