//! Facts go to standard output.

use std::io::{ErrorKind, IsTerminal, Write};

use serde::Serialize;

use crate::error::{CommandError, Result};

/// Prints a text. A reader that has had enough (`| head`) is no failure.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(CommandError::failed("printing", e)),
        _ => Ok(()),
    }
}

/// Prints a value as JSON over several lines.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    let text =
        serde_json::to_string_pretty(value).map_err(|e| CommandError::failed("printing", e))?;
    print(&(text + "\n"))
}

/// Lines with aligned columns; the last column is as long as it is.
pub fn table(rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        for (i, cell) in row.iter().enumerate() {
            let width = cell.chars().count();
            match widths.get_mut(i) {
                Some(w) => *w = width.max(*w),
                None => widths.push(width),
            }
        }
    }
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// Shows on standard error how far something is: on a terminal in one line that changes.
pub struct Meter {
    on: bool,
    lines: bool,
    shown: String,
}

impl Meter {
    /// Shows it on a terminal only.
    pub fn new() -> Meter {
        Meter { on: std::io::stderr().is_terminal(), lines: false, shown: String::new() }
    }

    /// Elsewhere a line for each change.
    pub fn with_lines() -> Meter {
        Meter { lines: true, ..Meter::new() }
    }

    /// Whether it shows on a terminal.
    pub fn is_live(&self) -> bool {
        self.on
    }

    /// Shows this instead of what it showed before.
    pub fn show(&mut self, text: &str) {
        if text == self.shown {
            return;
        }
        match (self.on, self.lines) {
            (true, _) => self.write(&format!("\r\x1b[K{text}")),
            (false, true) => self.write(&format!("{text}\n")),
            (false, false) => return,
        }
        self.shown = text.to_owned();
    }

    /// Shows nothing again.
    pub fn clear(&mut self) {
        if self.on && !self.shown.is_empty() {
            self.write("\r\x1b[K");
        }
    }

    /// Whether anybody sees it makes no difference to the command.
    fn write(&self, text: &str) {
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_each_other() {
        let row = |a: &str, b: &str| vec![a.to_owned(), b.to_owned()];
        assert_eq!(table(&[row("a", "1"), row("bbü", "22"), row("c", "")]), "a    1\nbbü  22\nc\n");
        assert_eq!(table(&[]), "");
    }
}
