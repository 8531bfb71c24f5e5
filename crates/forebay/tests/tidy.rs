//! Rules of the house that no lint knows. See also `clippy.toml`, the workspace's lints, and
//! `tests/rooms` for what uses what inside of a crate.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::{Path, PathBuf};

const MAX_LINES: usize = 600;
const MAX_COLUMNS: usize = 100;

/// Words that stand where a noun belongs, or that no other system's documentation has.
const RIDDLES: &[&str] = &["whoever", "who waits", "nobody", "befall", "befalls"];

/// Crates for tests: all others may have them as dev-dependencies, whatever their layer, and in no
/// other way.
const FOR_TESTS: &[&str] = &["testkit"];

/// Crates that the tests of all others may use too, whatever their layer.
const IN_TESTS: &[&str] = &["offline"];

/// Crates by layer: each may depend on those before it, and on those in its own layer.
const LAYERS: &[&[&str]] = &[
    &["base"],
    &["model"],
    &["format", "ledger", "tls"],
    &["rt"],
    &["uring", "posix", "sim", "conformance", "emulate"],
    &["queue"],
    &["btree"],
    &["pool"],
    &["cache"],
    &["volume", "offline"],
    &["testkit"],
    &["nbd", "nbd-client"],
    &["export", "http-api"],
    &["torture", "experiments"],
    &["forebay"],
    &["fuzzing"],
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All files below `dir` with this extension, or with none if it is empty, but for what is built.
fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(files(&path, extension));
        } else if path.extension().unwrap_or_default() == extension {
            found.push(path);
        }
    }
    found
}

/// Names within the repository, and texts.
fn read(found: Vec<PathBuf>) -> Vec<(String, String)> {
    let root = root();
    let name = |path: &Path| path.strip_prefix(&root).unwrap().display().to_string();
    found.into_iter().map(|path| (name(&path), std::fs::read_to_string(path).unwrap())).collect()
}

fn sources() -> Vec<(String, String)> {
    let found = files(&root().join("crates"), "rs");
    assert!(found.len() > 50, "where are the sources?");
    read(found)
}

/// Python, and programs without an extension that name their interpreter.
fn scripts() -> Vec<(String, String)> {
    let below = |extension| {
        ["bench", "tests", "packaging"].map(|dir| files(&root().join(dir), extension)).concat()
    };
    let is_script =
        |path: &PathBuf| std::fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"#!"));
    let mut found = below("py");
    found.extend(below("").into_iter().filter(is_script));
    assert!(found.len() > 50, "where are the scripts?");
    read(found)
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

/// Unit tests stand at the end of their file, or beside it: those of `pass.rs` in `pass_tests.rs`.
#[test]
fn unit_tests_stand_in_their_file_or_beside_it() {
    let all = sources();
    let mut found = Vec::new();
    for (name, _) in all.iter().filter(|(name, _)| name.contains("/src/")) {
        let (folder, file) = name.rsplit_once('/').unwrap();
        if file == "tests.rs" || folder.ends_with("/tests") {
            found.push(format!("{name}: tests of a file are in a file beside it, FILE_tests.rs"));
        }
        let Some(of) = file.strip_suffix("_tests.rs") else { continue };
        let theirs = format!("{folder}/{of}.rs");
        let names_it = |text: &str| {
            let after = text.split_once(&format!("#[path = \"{file}\"]\n")).map(|(_, after)| after);
            after.is_some_and(|a| a.trim_start_matches("pub(crate) ").starts_with("mod tests;"))
        };
        if !all.iter().any(|(name, text)| *name == theirs && names_it(text)) {
            found.push(format!("{name}: {theirs} does not say that these are its tests"));
        }
    }
    fail_if_any("unit tests in odd places", &found);
}

#[test]
fn nothing_is_left_to_do() {
    // Put together here, so that this file does not find itself.
    let marks = [
        ["TO", "DO"],
        ["FIX", "ME"],
        ["XX", "X"],
        ["unimplemented", "!"],
        ["todo", "!"],
        ["dbg", "!("],
    ];
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
        name.starts_with("crates/uring/")
            || name.starts_with("crates/posix/")
            || name == "crates/base/src/buf.rs"
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
            found.push(format!(
                "{name} has no layer: add it to this test and to docs/architecture.md"
            ));
            continue;
        };
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let dependencies =
                manifest.get(section).and_then(toml::Value::as_table).into_iter().flatten();
            for (dependency, _) in dependencies {
                let for_tests = FOR_TESTS.contains(&dependency.as_str());
                if for_tests && section != "dev-dependencies" {
                    found.push(format!("{name} has {dependency}, which is for tests only"));
                    continue;
                }
                let in_tests = for_tests
                    || section == "dev-dependencies" && IN_TESTS.contains(&dependency.as_str());
                if !in_tests && layer(dependency).is_some_and(|l| l > own) {
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
        let text =
            std::fs::read_to_string(root().join("crates").join(layer).join("Cargo.toml")).unwrap();
        let manifest: toml::Table = text.parse().unwrap();
        let inherits =
            manifest.get("lints").and_then(|l| l.get("workspace")).and_then(toml::Value::as_bool);
        if inherits != Some(true) {
            found.push(format!("{layer} does not inherit the workspace's lints"));
        }
    }
    fail_if_any("no lints", &found);
}

fn is_wide(line: &str) -> bool {
    line.chars().count() > MAX_COLUMNS
}

/// A row of a table in a comment cannot be wrapped.
fn is_row(line: &str) -> bool {
    line.trim_start().starts_with("//") && line.trim_start_matches([' ', '/', '!']).starts_with('|')
}

#[test]
fn sources_fit_into_the_columns() {
    let mut found = Vec::new();
    for (name, text) in sources().into_iter().chain(scripts()) {
        let wide = text.lines().enumerate().filter(|(_, line)| is_wide(line) && !is_row(line));
        found.extend(
            wide.map(|(n, line)| format!("{name}:{}: {} columns", n + 1, line.chars().count())),
        );
    }
    fail_if_any("too wide", &found);
}

/// The documents, by their path.
fn documents() -> Vec<(String, String)> {
    let root = root();
    let mut found = files(&root.join("docs"), "md");
    found.push(root.join("README.md"));
    read(found)
}

#[test]
fn documents_fit_into_the_columns() {
    let mut found = Vec::new();
    // The tables of measurements are written by `bench/`.
    let by_hand = |name: &str| !name.starts_with("docs/benchmarks/");
    for (name, text) in documents().into_iter().filter(|(name, _)| by_hand(name)) {
        let mut code = false;
        for (number, line) in text.lines().enumerate() {
            code ^= line.trim_start().starts_with("```");
            let table = line.trim_start().starts_with('|');
            // A line of one word is a link that cannot be wrapped.
            let link = line.trim_start_matches([' ', '-', '*']).split(' ').count() == 1;
            if is_wide(line) && !code && !table && !link && !line.starts_with("    ") {
                found.push(format!("{name}:{}: {} columns", number + 1, line.chars().count()));
            }
        }
    }
    fail_if_any("too wide", &found);
}

/// True if `text` has `word` as a whole word.
fn has_word(text: &str, word: &str) -> bool {
    let of_word = |c: char| c == '_' || c.is_alphanumeric();
    text.match_indices(word).any(|(at, _)| {
        !text[..at].ends_with(of_word) && !text[at + word.len()..].starts_with(of_word)
    })
}

#[test]
fn comments_and_documents_have_no_riddles() {
    let mut found = Vec::new();
    let mut check = |name: &str, number: usize, prose: &str| {
        let prose = prose.to_lowercase();
        for word in RIDDLES.iter().filter(|word| has_word(&prose, word)) {
            found.push(format!("{name}:{}: \"{word}\"", number + 1));
        }
    };
    for (name, text) in sources() {
        for (number, line) in text.lines().enumerate() {
            if let Some((_, comment)) = line.split_once("//") {
                check(&name, number, comment);
            }
        }
    }
    for (name, text) in documents() {
        text.lines().enumerate().for_each(|(number, line)| check(&name, number, line));
    }
    fail_if_any("say it in plain English", &found);
}

/// Old names whose renaming is done, from the last table of the glossary.
fn old_names() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(root().join("docs/glossary.md")).unwrap();
    let (_, table) =
        text.split_once("## Old names").expect("the glossary has a table of old names");
    let mut done = Vec::new();
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with('|')).skip(2).collect();
    assert!(rows.len() > 10, "where are the rows of docs/glossary.md?");
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [old, new, state] = cells[..] else { panic!("a row of docs/glossary.md: {row}") };
        assert!(["open", "done", "reused"].contains(&state), "{old} is {state}: what is that?");
        if state == "done" {
            let name = old.split(" (").next().unwrap().trim_matches('`');
            done.push((name.to_owned(), new.to_owned()));
        }
    }
    done
}

#[test]
fn old_names_do_not_come_back() {
    let mut found = Vec::new();
    let old = old_names();
    let texts = sources().into_iter().chain(documents());
    for (name, text) in texts.filter(|(name, _)| name != "docs/glossary.md") {
        for (number, line) in text.lines().enumerate() {
            for (old, new) in old.iter().filter(|(old, _)| has_word(line, old)) {
                found.push(format!("{name}:{}: {old} is now {new}", number + 1));
            }
        }
    }
    fail_if_any("old names", &found);
}
