//! Findings for people: the worst first.

use super::finding::{Finding, Level};
use crate::terminal::text::paragraph;
use crate::terminal::{Look, Tone};

/// Columns of the level and of what was looked at, with the space behind them.
const LEVEL: usize = 9;
const CHECK: usize = 10;

/// All findings, and how many there are of each level.
pub fn text(all: &[Finding], look: &Look) -> String {
    let mut out = String::new();
    for level in Level::ALL {
        for one in all.iter().filter(|one| one.level == level) {
            let head = format!("{:LEVEL$}{:CHECK$}", level.word(), one.check);
            out += &paragraph(tone(level), &head, &one.found, look);
            if let Some(todo) = &one.todo {
                let head = format!("{:1$}-> ", "", LEVEL + CHECK);
                out += &paragraph(Tone::Plain, &head, todo, look);
            }
        }
    }
    out + &format!("{}\n", summary(all))
}

fn tone(level: Level) -> Tone {
    match level {
        Level::Problem => Tone::Bad,
        Level::Warning => Tone::Warn,
        Level::Note => Tone::Plain,
        Level::Ok => Tone::Good,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Look = Look { columns: 80, colour: false };

    #[test]
    fn the_worst_is_first_and_lines_fit() {
        let long = "word ".repeat(60);
        let all = [
            Finding::ok("kernel", "6.1"),
            Finding::new(Level::Problem, "device", long.as_str(), long.as_str()),
            Finding::new(Level::Note, "settings", "short", "do it"),
        ];
        let text = text(&all, &LOOK);
        assert!(text.starts_with("problem  device    word word"), "{text}");
        assert!(text.contains("\nnote     settings  short\n"), "{text}");
        assert!(text.contains("-> do it\nok       kernel    6.1\n"), "{text}");
        assert!(text.ends_with("1 problem, 0 warnings, 1 note; 1 fine\n"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert_eq!(text.matches("word").count(), 120);
    }
}
