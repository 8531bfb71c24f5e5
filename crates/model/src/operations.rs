//! What problems mean and what to do about them: the sections of docs/operations.md, which the
//! commands, the manual page and the dashboard show where no copy of the document is at hand.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const DOCUMENT: &str = include_str!("../../../docs/operations.md");

/// What a problem means and what to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Advice {
    /// The name of the problem.
    pub page: String,
    /// What one sees, what it means and what to do: paragraphs with an empty line between them.
    /// Words between two stars are strong, and those between back quotes are to be typed.
    pub text: String,
}

/// The advice on each problem, in the order of the document.
pub fn all() -> impl Iterator<Item = Advice> {
    let sections = DOCUMENT.split("\n## ").skip(1);
    sections.filter_map(|section| {
        let (title, text) = section.split_once('\n')?;
        let page = title.trim().strip_prefix('`')?.strip_suffix('`')?;
        Some(Advice { page: page.to_owned(), text: without_links(text.trim()) })
    })
}

/// The advice on the problem of this name.
pub fn advice(page: &str) -> Option<Advice> {
    all().find(|advice| advice.page == page)
}

/// The text with the words of each link alone: what a link leads to is not there.
fn without_links(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut left = text;
    while let Some((before, words, after)) = next_link(left) {
        plain.push_str(before);
        plain.push_str(words);
        left = after;
    }
    plain.push_str(left);
    plain
}

/// What is before the first link, its words, and what is after it.
fn next_link(text: &str) -> Option<(&str, &str, &str)> {
    let middle = text.find("](")?;
    let begin = text[..middle].rfind('[')?;
    let end = middle + text[middle..].find(')')?;
    Some((&text[..begin], &text[begin + 1..middle], &text[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_section_of_a_problem_says_what_to_do() {
        let names: Vec<String> = all().map(|one| one.page).collect();
        assert!(names.len() > 30 && names.contains(&"pool-full".to_owned()), "{names:?}");
        for one in all() {
            assert!(one.text.contains("**To do"), "{}: {}", one.page, one.text);
            assert!(!one.text.contains("]("), "{}: {}", one.page, one.text);
        }
        assert_eq!(advice("The terminal"), None);
    }

    #[test]
    fn of_a_link_its_words_are_left() {
        let text = "as [said](a.md) there ([why](b.md#c)).";
        assert_eq!(without_links(text), "as said there (why).");
    }
}
