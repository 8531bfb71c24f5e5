//! Facts go to standard output.

use std::io::{ErrorKind, Write};

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
    let text = serde_json::to_string_pretty(value).map_err(|e| CommandError::failed("printing", e))?;
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
