//! Every target stands its seeds and some changes of them: the same ones each time, and new ones.
#![allow(clippy::disallowed_methods, reason = "new seeds come from the clock")]

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use fuzzing::TARGETS;
use fuzzing::run::{note_panics, run};

const FIXED: u64 = 1;

#[test]
fn all_targets_stand_their_seeds_and_changes_of_them() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    note_panics();
    let mut found = Vec::new();
    for target in TARGETS {
        for seed in [FIXED, now] {
            let enough = |inputs| inputs >= u64::from(target.smoke);
            if let Err(finding) = run(target, seed, enough) {
                let hex: String = finding.input.iter().map(|b| format!("{b:02x}")).collect();
                let why = finding.panics.join("\n");
                found.push(format!("{} with seed {seed}: {why}\ninput: {hex}", target.name));
            }
        }
    }
    drop(std::panic::take_hook());
    assert!(found.is_empty(), "{}", found.join("\n\n"));
}

#[test]
fn libfuzzer_has_the_same_targets() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/targets");
    let entries = std::fs::read_dir(dir).expect("the crate for libFuzzer");
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.expect("an entry").path();
        path.file_stem().expect("a name").to_string_lossy().into_owned()
    };
    let programs: BTreeSet<String> = entries.map(name).collect();
    let targets: BTreeSet<String> = TARGETS.iter().map(|t| t.name.to_owned()).collect();
    assert_eq!(programs, targets);
}
