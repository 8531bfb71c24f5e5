//! `docs/experiments.md`: the chapters of all experiments, and their pictures beside it.

use crate::report::{Report, wrapped};

/// The document, below the folder of documents.
pub const FILE: &str = "experiments.md";
/// The folder of its pictures.
pub const FOLDER: &str = "experiments";

/// The text before the chapters.
const PREFACE: &[&str] = &[
    "Six problems of storage stacks were discussed in public with numbers: collecting the garbage \
     of a cache's index, choosing victims, handing out request tags, writing block groups at a \
     commit, controlling write-back, scrubbing. This page repeats each of them in a model, with \
     the policy that had the problem, the one that was proposed instead where there was one, and \
     Forebay's.",
    "`make experiments` writes this page and its pictures again; `make experiments ARGS=--check` \
     compares. All time is virtual, and each chapter says which costs are modelled, so the digits \
     are the same each time. What is *ours* is the code of the product, driven by the \
     experiment; the old policies are written anew in `crates/experiments`, from how they are \
     described in public. The figures say how policies compare in a model. They are no \
     measurements of any system: those are in [benchmarks.md](benchmarks.md).",
];

/// The files of the document: their names below the folder of documents, and their text.
pub fn files(reports: &[Report]) -> Vec<(String, String)> {
    let mut text = "# Experiments\n".to_string();
    for paragraph in PREFACE {
        text.push('\n');
        text.push_str(&wrapped(paragraph));
    }
    let mut files = Vec::new();
    for report in reports {
        text.push('\n');
        text.push_str(&report.markdown(FOLDER));
        let pictures = report.pictures();
        files.extend(pictures.map(|p| (format!("{FOLDER}/{}", p.file), p.svg.clone())));
    }
    files.push((FILE.to_string(), text));
    files
}
