//! All experiments, shortened: they run, and twice they say the same, to the digit.

use std::path::Path;

use experiments::{ALL, Report, Scale, document};

fn short() -> Vec<(String, String)> {
    let reports: Vec<Report> = ALL.iter().map(|run| run(Scale::Short)).collect();
    document::files(&reports)
}

/// The titles of chapters, and the first rows of tables.
fn heads(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().collect();
    let tables = lines.windows(2).filter(|pair| pair[1].starts_with("| ---")).map(|pair| pair[0]);
    lines.iter().copied().filter(|line| line.starts_with("## ")).chain(tables).collect()
}

/// The document in the tree is of these experiments. Whether its digits are those of today, `make
/// experiments ARGS=--check` says, which takes longer.
fn is_in_the_tree(name: &str, text: &str) {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let there = std::fs::read_to_string(docs.join(name)).expect("run make experiments");
    if name == document::FILE {
        assert_eq!(heads(&there), heads(text), "run make experiments");
    } else {
        assert!(there.starts_with("<svg "), "{name}");
    }
}

#[test]
fn two_runs_have_the_same_digits() {
    let (first, second) = (short(), short());
    assert_eq!(first.len(), second.len());
    for (a, b) in first.iter().zip(&second) {
        assert_eq!(a, b);
    }
    let (_, text) = first.iter().find(|(name, _)| name == document::FILE).expect("the document");
    for (name, svg) in first.iter().filter(|(name, _)| name != document::FILE) {
        assert!(text.contains(&format!("]({name})")), "{name} is in the document");
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{name}");
    }
    first.iter().for_each(|(name, text)| is_in_the_tree(name, text));
}
