//! All experiments, shortened: they run, and twice they say the same, to the digit.

use experiments::{ALL, Report, Scale, document};

fn short() -> Vec<(String, String)> {
    let reports: Vec<Report> = ALL.iter().map(|run| run(Scale::Short)).collect();
    document::files(&reports)
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
}
