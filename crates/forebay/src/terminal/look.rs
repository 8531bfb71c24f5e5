//! The width of lines, and whether there are colours.

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::sync::OnceLock;

use clap::ValueEnum;
use clap::builder::styling::{AnsiColor, Style};

/// The least width of a line in columns: what is printed fits into that.
pub const COLUMNS: usize = 80;
/// The greatest width of a line in columns: no screen is wider.
const MOST_COLUMNS: usize = 1000;

/// When there are colours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Colour {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// The choice on the command line.
static CHOSEN: OnceLock<Colour> = OnceLock::new();

/// Says for the whole process when there are colours. The first call counts.
pub fn choose(colour: Colour) {
    let _ = CHOSEN.set(colour);
}

/// Whether standard error has colours.
pub fn is_stderr_coloured() -> bool {
    is_coloured(std::io::stderr().is_terminal())
}

fn is_coloured(is_terminal: bool) -> bool {
    let chosen = CHOSEN.get().copied().unwrap_or_default();
    let of = |name| std::env::var_os(name);
    decide(chosen, is_terminal, of("NO_COLOR").as_deref(), of("TERM").as_deref())
}

/// See <https://no-color.org>: a variable that is empty counts as none.
fn decide(
    chosen: Colour,
    is_terminal: bool,
    no_color: Option<&OsStr>,
    term: Option<&OsStr>,
) -> bool {
    match chosen {
        Colour::Always => true,
        Colour::Never => false,
        Colour::Auto => {
            let forbidden = no_color.is_some_and(|value| !value.is_empty());
            is_terminal && !forbidden && term.is_none_or(|name| name != "dumb")
        }
    }
}

/// The meaning of a text that its colour shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tone {
    /// No particular meaning.
    #[default]
    Plain,
    /// A heading, above what it names.
    Head,
    /// All is well.
    Good,
    /// Something that may matter.
    Warn,
    /// Something that is wrong.
    Bad,
    /// Something that matters less.
    Faint,
}

impl Tone {
    fn style(self) -> Style {
        match self {
            Tone::Plain => Style::new(),
            Tone::Head => Style::new().bold(),
            Tone::Good => AnsiColor::Green.on_default(),
            Tone::Warn => AnsiColor::Yellow.on_default(),
            Tone::Bad => AnsiColor::Red.on_default().bold(),
            Tone::Faint => Style::new().dimmed(),
        }
    }
}

/// The width and the colours of what is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Look {
    /// The width of a line.
    pub columns: usize,
    /// Whether there are colours.
    pub colour: bool,
}

/// Whether standard output goes to a program or a file: a list for those has all of it.
pub fn is_piped() -> bool {
    !std::io::stdout().is_terminal()
}

impl Look {
    /// The look of standard output: lines as wide as `COLUMNS` says, or its terminal is, and no
    /// narrower than 80 columns. Where it is no terminal and `COLUMNS` says nothing, nothing is
    /// shortened, so that a search finds all of it.
    pub fn of_stdout() -> Look {
        let out = std::io::stdout();
        let is_terminal = out.is_terminal();
        let size = terminal_size::terminal_size_of(&out).filter(|_| is_terminal);
        let said = std::env::var("COLUMNS").ok();
        Look {
            columns: width(said.as_deref(), size.map(|(width, _)| width.0)),
            colour: is_coloured(is_terminal),
        }
    }

    /// The text in its colour.
    pub fn paint(&self, tone: Tone, text: &str) -> String {
        if !self.colour || tone == Tone::Plain || text.is_empty() {
            return text.to_owned();
        }
        let style = tone.style();
        format!("{style}{text}{style:#}")
    }
}

fn width(said: Option<&str>, of_terminal: Option<u16>) -> usize {
    let said = said.and_then(|text| text.trim().parse().ok());
    said.or(of_terminal.map(usize::from)).unwrap_or(MOST_COLUMNS).clamp(COLUMNS, MOST_COLUMNS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_that_want_them() {
        let set = Some(OsStr::new("1"));
        let auto = |terminal, no_color, term| decide(Colour::Auto, terminal, no_color, term);
        assert!(auto(true, None, Some(OsStr::new("xterm"))) && auto(true, None, None));
        assert!(auto(true, Some(OsStr::new("")), None), "an empty NO_COLOR says nothing");
        assert!(!auto(false, None, None) && !auto(true, set, None));
        assert!(!auto(true, None, Some(OsStr::new("dumb"))));
        assert!(
            decide(Colour::Always, false, set, None) && !decide(Colour::Never, true, None, None)
        );
    }

    #[test]
    fn lines_are_no_narrower_than_eighty_columns() {
        for (said, of_terminal, columns) in [
            (None, None, 1000),
            (None, Some(132), 132),
            (None, Some(40), 80),
            (Some("120"), Some(200), 120),
            (Some("20"), None, 80),
            (Some("wide"), Some(100), 100),
            (Some("99999999"), None, 1000),
        ] {
            assert_eq!(width(said, of_terminal), columns, "{said:?} {of_terminal:?}");
        }
    }

    #[test]
    fn only_coloured_text_has_escapes() {
        let [plain, coloured] = [false, true].map(|colour| Look { columns: 80, colour });
        assert_eq!(plain.paint(Tone::Bad, "lost"), "lost");
        assert_eq!(coloured.paint(Tone::Plain, "x"), "x");
        let red = coloured.paint(Tone::Bad, "lost");
        assert!(red.starts_with('\u{1b}') && red.contains("lost") && red.ends_with("\u{1b}[0m"));
    }
}
