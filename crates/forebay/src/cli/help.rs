//! `forebay help`: what a command does, or what a problem means and what to do.

use clap::{Args, Command};
use model::operations::{self, Advice, Block};

use crate::error::{CommandError, Result};
use crate::output::print;
use crate::terminal::text::paragraph;
use crate::terminal::{Column, Look, Table, Tone};

/// The word for a list of all problems.
const PROBLEMS: &str = "problems";

/// Show what a command does, or what a problem means and what to do
///
/// A problem has the name that forebay status gives it, such as pool-full. forebay help problems
/// lists all of them.
#[derive(Args, Debug)]
pub struct Help {
    /// A command, the name of a problem, or problems
    #[arg(value_name = "COMMAND|PROBLEM", add = crate::cli::candidates::problems())]
    words: Vec<String>,
}

impl Help {
    /// `command`: the whole command line.
    pub fn run(self, mut command: Command) -> Result<()> {
        let look = Look::of_stdout();
        if let [word] = &self.words[..] {
            if word == PROBLEMS {
                return print(&list(&look));
            }
            if let Some(advice) = operations::advice(word) {
                return print(&text(&advice, &look));
            }
        }
        command.build();
        let mut found = &mut command;
        for word in &self.words {
            found = found.find_subcommand_mut(word).ok_or_else(|| unknown(&self.words))?;
        }
        let help = found.render_long_help();
        print(&if look.colour { help.ansi().to_string() } else { help.to_string() })
    }
}

fn unknown(words: &[String]) -> CommandError {
    CommandError::Usage(format!(
        "{}: neither a command nor the name of a problem; forebay help lists the commands, and \
         forebay help {PROBLEMS} the problems",
        words.join(" ")
    ))
}

/// All problems, each with what one sees of it.
fn list(look: &Look) -> String {
    let mut table = Table::new(&[Column::new("PROBLEM"), Column::wrapped("YOU SEE")]);
    for advice in operations::all() {
        let blocks = advice.blocks();
        let Some(Block::Paragraph(seen)) = blocks.first() else { continue };
        let seen = plain(seen);
        table.add([advice.page.into(), seen.trim_start_matches("You see ").to_owned().into()]);
    }
    table.text(look)
}

/// The advice on a problem, in lines that fit.
fn text(advice: &Advice, look: &Look) -> String {
    let mut out = format!("{}\n", look.paint(Tone::Warn, &advice.page));
    for block in advice.blocks() {
        out += &match block {
            Block::Paragraph(text) => {
                format!("\n{}", paragraph(Tone::Plain, "", &plain(&text), look))
            }
            Block::Item(text) => paragraph(Tone::Plain, "- ", &plain(&text), look),
            Block::Code(lines) => lines.lines().map(|line| format!("  {line}\n")).collect(),
        };
    }
    out
}

/// The text without the marks of strong words.
fn plain(text: &str) -> String {
    text.replace("**", "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::text::width;

    const LOOK: Look = Look { columns: 80, colour: false };

    #[test]
    fn all_advice_fits_and_says_what_to_do() {
        for advice in operations::all() {
            let text = text(&advice, &LOOK);
            assert!(text.contains("\nTo do"), "{text}");
            assert!(!text.contains("**") && !text.contains("```"), "{text}");
            let is_long = |line: &&str| width(line) > 80 && !line.starts_with("  ");
            assert_eq!(text.lines().find(is_long), None, "{}", advice.page);
        }
        let list = list(&LOOK);
        assert!(list.contains("pool-full") && list.lines().all(|line| width(line) <= 80), "{list}");
    }

    #[test]
    fn what_is_neither_a_command_nor_a_problem_is_refused() {
        let command = Command::new("forebay").subcommand(Command::new("volume"));
        let help = |words: &[&str]| {
            let words = words.iter().map(ToString::to_string).collect();
            Help { words }.run(command.clone())
        };
        assert!(help(&["volume"]).is_ok() && help(&[]).is_ok());
        let e = help(&["volume", "fly"]).unwrap_err();
        assert!(e.to_string().contains("volume fly: neither a command nor"), "{e}");
    }
}
