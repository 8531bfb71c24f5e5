//! Advice on problems, their meaning and what to do about them: the sections of docs/operations.md,
//! which the commands, the manual page and the dashboard show where no copy of the document is at
//! hand.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const DOCUMENT: &str = include_str!("../../../docs/operations.md");

/// The line before and after what is to be typed.
const FENCE: &str = "```";
/// The beginning of an item of a list.
const ITEM: &str = "- ";

/// The meaning of a problem and what to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Advice {
    /// The name of the problem.
    pub page: String,
    /// Signs, meaning and remedy of the problem: paragraphs with an empty line between them.
    /// Words between two stars are strong, and those between back quotes are to be typed.
    pub text: String,
}

/// A piece of a text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Block {
    /// A paragraph, in one line.
    Paragraph(String),
    /// An item of a list, in one line.
    Item(String),
    /// Lines to be typed.
    Code(String),
}

impl Advice {
    /// The text in its pieces.
    pub fn blocks(&self) -> Vec<Block> {
        let mut all = Vec::new();
        let mut lines = self.text.lines().peekable();
        while let Some(line) = lines.next() {
            if line.starts_with(FENCE) {
                let code: Vec<&str> =
                    lines.by_ref().take_while(|l| !l.starts_with(FENCE)).collect();
                all.push(Block::Code(code.join("\n")));
            } else if !line.is_empty() {
                let mut whole = line.to_owned();
                while let Some(next) = lines.next_if(|next| !begins_anew(next)) {
                    whole.push(' ');
                    whole += next.trim_start();
                }
                all.push(match whole.strip_prefix(ITEM) {
                    Some(item) => Block::Item(item.to_owned()),
                    None => Block::Paragraph(whole),
                });
            }
        }
        all
    }
}

/// True if a line does not go on with the paragraph before it.
fn begins_anew(line: &str) -> bool {
    line.is_empty() || line.starts_with(FENCE) || line.starts_with(ITEM)
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

/// The text before the first link, its words, and the text after it.
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
    fn a_text_is_taken_to_pieces() {
        let text = "**You see** a\nline.\n\n```sh\none\ntwo\n```\n\n- an\n  item\n- another";
        let advice = Advice { page: "p".into(), text: text.into() };
        let expected = [
            Block::Paragraph("**You see** a line.".into()),
            Block::Code("one\ntwo".into()),
            Block::Item("an item".into()),
            Block::Item("another".into()),
        ];
        assert_eq!(advice.blocks(), expected);
    }

    #[test]
    fn of_a_link_its_words_are_left() {
        let text = "as [said](a.md) there ([why](b.md#c)).";
        assert_eq!(without_links(text), "as said there (why).");
    }
}
