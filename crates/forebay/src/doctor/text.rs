//! Findings for people: the worst first, in 80 columns.

use super::finding::{Finding, Level};

const COLUMNS: usize = 80;
/// Columns of the level and of what was looked at, with the space behind them.
const LEVEL: usize = 9;
const CHECK: usize = 10;

/// All findings, and how many there are of each level.
pub fn text(all: &[Finding]) -> String {
    let mut out = String::new();
    for level in Level::ALL {
        for one in all.iter().filter(|one| one.level == level) {
            let head = format!("{:LEVEL$}{:CHECK$}", level.word(), one.check);
            out += &wrapped(&head, &one.found);
            if let Some(todo) = &one.todo {
                out += &wrapped(&format!("{:1$}-> ", "", LEVEL + CHECK), todo);
            }
        }
    }
    out + &format!("{}\n", summary(all))
}

fn summary(all: &[Finding]) -> String {
    let count = |level| all.iter().filter(|one| one.level == level).count();
    let many = |n, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
    format!(
        "{}, {}, {}; {} fine",
        many(count(Level::Problem), "problem"),
        many(count(Level::Warning), "warning"),
        many(count(Level::Note), "note"),
        count(Level::Ok),
    )
}

/// A text behind a head, in lines below each other. A word that is longer than a line stays whole:
/// it is a path, which is to be copied.
fn wrapped(head: &str, text: &str) -> String {
    let indent = head.chars().count();
    let (mut out, mut column) = (head.to_owned(), indent);
    for word in text.split_whitespace() {
        let len = word.chars().count();
        if column > indent && column + 1 + len > COLUMNS {
            out += &format!("\n{:indent$}", "");
            column = indent;
        } else if column > indent {
            out.push(' ');
            column += 1;
        }
        out += word;
        column += len;
    }
    out + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_is_first_and_lines_fit() {
        let long = "word ".repeat(60);
        let all = [
            Finding::ok("kernel", "6.1"),
            Finding::new(Level::Problem, "device", long.as_str(), long.as_str()),
            Finding::new(Level::Note, "settings", "short", "do it"),
        ];
        let text = text(&all);
        assert!(text.starts_with("problem  device    word word"), "{text}");
        assert!(text.contains("\nnote     settings  short\n"), "{text}");
        assert!(text.contains("-> do it\nok       kernel    6.1\n"), "{text}");
        assert!(text.ends_with("1 problem, 0 warnings, 1 note; 1 fine\n"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
        assert_eq!(text.matches("word").count(), 120);
    }

    #[test]
    fn a_long_path_stays_whole() {
        let path = format!("/{}", "p".repeat(100));
        assert!(wrapped("head ", &format!("{path} is missing")).contains(&path));
    }
}
