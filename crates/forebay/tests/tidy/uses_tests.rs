//! The rules of the graph, each on a small crate.

use super::*;

fn graph(sources: &[(&str, &str)]) -> Vec<String> {
    let sources: Vec<_> =
        sources.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect();
    let g = Graph::new(&sources);
    let name = |i: usize| g.files[i].trim_end_matches(".rs");
    let pairs = (0..g.files.len()).flat_map(|i| g.arrows[i].iter().map(move |&j| (i, j)));
    pairs.map(|(i, j)| format!("{} {}", name(i), name(j))).collect()
}

#[test]
fn arrows_lead_to_the_file_of_an_item() {
    let found = graph(&[
        ("lib.rs", "mod a; mod b; pub struct Cache; pub use a::Deep; pub use crate::b::*;"),
        ("a.rs", "mod inner; pub(crate) use inner::{Deep, Kind as Sort}; use crate::Cache;"),
        ("a/inner.rs", "use super::super::b::{self, Item}; pub struct Deep; pub enum Kind { A }"),
        ("b.rs", "use crate::{Deep, a::Sort}; pub struct Item; fn f() { crate::a::g(); }"),
        ("c.rs", "use crate::Item; use base::b::X; /* crate::a */ const T: &str = \"crate::a\";"),
        ("d.rs", "fn f<'a>(x: &'a str) { let q = ['\"', '\\'']; super::c::f(); r#\"crate::a\"#; }"),
    ]);
    assert_eq!(found, ["a lib", "a/inner b", "b a", "b a/inner", "c b", "d c"]);
}

#[test]
fn arrows_to_a_later_folder_are_upward() {
    let sources = [
        ("a/c.rs", "use crate::{b::X, e::Z};"),
        ("b.rs", "use crate::a::c::Y;"),
        ("d.rs", ""),
        ("e.rs", ""),
    ];
    let sources = sources.map(|(name, text)| (name.to_owned(), text.to_owned()));
    let found = Graph::new(&sources).upward(&["a", "b"], &["e"]);
    assert_eq!(found, ["a/c.rs -> b.rs", "d.rs is in no folder of the order"]);
}

#[test]
fn a_file_that_uses_its_own_re_export_has_an_arrow() {
    let found = graph(&[
        ("lib.rs", "mod a; mod b; pub use a::A; pub use b::B; fn f(x: A) { b::g(); }"),
        ("a.rs", "pub struct A;"),
        ("b.rs", "pub struct B;"),
    ]);
    assert_eq!(found, ["lib a", "lib b"]);
}

#[test]
fn tests_are_left_out() {
    let found = graph(&[
        (
            "lib.rs",
            "mod a; #[cfg(test)] use a::A; #[cfg(test)] #[path = \"x/a_tests.rs\"] mod tests; \
             #[cfg(test)] mod lab; #[cfg(test)] mod here { use crate::a::A; } fn f() {}",
        ),
        ("a.rs", "pub struct A;"),
        ("x/a_tests.rs", "use crate::a::A;"),
        ("lab.rs", "use crate::a::A;"),
        ("lab/deep.rs", "use crate::a::A;"),
        ("all.rs", "#![cfg(test)] use crate::a::A;"),
    ]);
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn a_cycle_is_found_with_its_arrows() {
    let text = |name: &str| format!("use crate::{name}::X;");
    let sources =
        [("a.rs", text("b")), ("b.rs", text("c")), ("c.rs", text("a")), ("d.rs", text("a"))];
    let graph = Graph::new(&sources.map(|(name, text)| (name.to_owned(), text)));
    let (files, arrows) = graph.largest_cycle();
    assert_eq!(files, ["a.rs", "b.rs", "c.rs"]);
    assert_eq!(arrows, ["a.rs -> b.rs", "b.rs -> c.rs", "c.rs -> a.rs"]);
}
