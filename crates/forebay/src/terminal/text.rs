//! Texts as a terminal shows them: how wide they are, and how they are made to fit.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::look::{Look, Tone};

/// Stands between words that stay in one line; it is printed as a space.
pub const KEEP: char = '\u{a0}';
/// Stands for what is left out.
const ELLIPSIS: char = '…';

/// Columns that a text takes.
pub fn width(text: &str) -> usize {
    text.width()
}

fn width_of(c: char) -> usize {
    c.width().unwrap_or(0)
}

/// The text without characters that would do something to a terminal: a name may hold any.
pub fn visible(text: &str) -> String {
    let odd =
        |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if !text.contains(odd) {
        return text.to_owned();
    }
    let mut out = String::new();
    for c in text.chars() {
        match odd(c) {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    out
}

/// The text in at most so many columns: what is too long loses its middle.
pub fn shortened(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let Some(room) = columns.checked_sub(1) else { return String::new() };
    let (mut head, mut tail) = (String::new(), Vec::new());
    let mut left = room.div_ceil(2);
    for c in text.chars() {
        match left.checked_sub(width_of(c)) {
            Some(rest) => left = rest,
            None => break,
        }
        head.push(c);
    }
    let mut left = room - width(&head);
    for c in text.chars().rev() {
        match left.checked_sub(width_of(c)) {
            Some(rest) => left = rest,
            None => break,
        }
        tail.push(c);
    }
    head.push(ELLIPSIS);
    head.extend(tail.iter().rev());
    head
}

/// The treatment of a word that is longer than a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LongWord {
    /// The word stays as it is: it may be typed, or copied.
    Whole,
    /// The word loses its middle.
    Shortened,
}

/// The text in lines of at most so many columns. A number stays with the word behind it.
pub fn wrapped(text: &str, columns: usize, long: LongWord) -> Vec<String> {
    let mut lines = vec![String::new()];
    for piece in pieces(text) {
        let piece = match long {
            LongWord::Whole => piece,
            LongWord::Shortened => shortened(&piece, columns),
        };
        let Some(line) = lines.last_mut() else { break };
        if line.is_empty() {
            *line = piece;
        } else if width(line) + 1 + width(&piece) <= columns {
            line.push(' ');
            line.push_str(&piece);
        } else {
            lines.push(piece);
        }
    }
    lines.iter().map(|line| line.replace(KEEP, " ")).collect()
}

/// A paragraph behind a head: its lines below each other, its long words whole.
pub fn paragraph(tone: Tone, head: &str, text: &str, look: &Look) -> String {
    let indent = width(head);
    let room = look.columns.saturating_sub(indent).max(1);
    let lines = wrapped(&visible(text), room, LongWord::Whole);
    look.paint(tone, head) + &lines.join(&format!("\n{:indent$}", "")) + "\n"
}

/// Words, a number together with the word behind it.
fn pieces(text: &str) -> Vec<String> {
    let is_number = |word: &str| {
        let digits = word.trim_start_matches(['(', '+', '-']);
        !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit() || c == '.')
    };
    let mut out: Vec<String> = Vec::new();
    let mut joins = false;
    for word in text.split([' ', '\n', '\t']).filter(|word| !word.is_empty()) {
        match out.last_mut().filter(|_| joins) {
            Some(last) => *last = format!("{last} {word}"),
            None => out.push(word.to_owned()),
        }
        joins = is_number(word);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_loses_its_middle() {
        for (text, columns, want) in [
            ("short", 5, "short"),
            ("abcdefghij", 5, "ab…ij"),
            ("abcdefghij", 4, "ab…j"),
            ("abcdefghij", 1, "…"),
            ("abcdefghij", 0, ""),
            ("äöüäöüäöü", 5, "äö…öü"),
            ("漢字漢字漢字", 7, "漢…漢字"),
        ] {
            let got = shortened(text, columns);
            assert!(width(&got) <= columns, "{got}");
            assert_eq!(got, want, "{text} in {columns}");
        }
    }

    #[test]
    fn a_name_does_nothing_to_the_terminal() {
        assert_eq!(visible("a b/ü"), "a b/ü");
        assert_eq!(visible("\u{1b}[2J\n"), "\\u{1b}[2J\\n");
        assert_eq!(visible("a\u{202e}b"), "a\\u{202e}b");
    }

    #[test]
    fn lines_break_between_words_but_not_behind_numbers() {
        let text = "it holds 50 MiB of data, (3 of 4) blocks";
        assert_eq!(
            wrapped(text, 12, LongWord::Whole),
            ["it holds", "50 MiB of", "data, (3 of", "4) blocks"]
        );
        let kept = format!("see BLOCKS{KEEP}ARE{KEEP}LOST now");
        assert_eq!(wrapped(&kept, 10, LongWord::Whole), ["see", "BLOCKS ARE LOST", "now"]);
        assert_eq!(wrapped("", 10, LongWord::Whole), [""]);
    }

    #[test]
    fn a_long_word_stays_whole_where_it_may_be_typed() {
        let path = format!("/{}", "p".repeat(100));
        let text = format!("{path} is missing");
        let look = Look { columns: 40, colour: false };
        let shown = paragraph(Tone::Bad, "head ", &text, &look);
        assert_eq!(shown, format!("head {path}\n     is missing\n"));
        let lines = wrapped(&text, 40, LongWord::Shortened);
        assert!(lines[0].contains('…') && lines.iter().all(|line| width(line) <= 40), "{lines:?}");
    }
}
