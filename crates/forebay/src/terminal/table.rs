//! Tables that fit a line.

use super::look::{Look, Tone};
use super::text::{LongWord, shortened, visible, width, wrapped};

/// Columns between two cells.
const GAP: usize = 2;
/// A last cell that wraps has at least so many columns, if it needs them.
const LEAST_WRAPPED: usize = 12;

/// A text in a table.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// A text in a colour. Control characters of it are shown as such.
    pub fn new(tone: Tone, text: impl AsRef<str>) -> Cell {
        Cell { text: visible(text.as_ref()), tone }
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell::new(Tone::Plain, text)
    }
}

/// The treatment of cells that need more room than there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fit {
    /// Cells stay as they are.
    Whole,
    /// Cells lose their middles, down to this width in columns.
    Shortened(usize),
    /// Cells go on in further lines. For the last column only.
    Wrapped,
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    head: &'static str,
    fit: Fit,
    right: bool,
}

impl Column {
    /// Cells that stay as they are.
    pub const fn new(head: &'static str) -> Column {
        Column { head, fit: Fit::Whole, right: false }
    }

    /// Cells that lose their middles where they are too long, down to this width.
    pub const fn shortened(head: &'static str, least: usize) -> Column {
        Column { head, fit: Fit::Shortened(least), right: false }
    }

    /// Cells that go on in further lines; the last column.
    pub const fn wrapped(head: &'static str) -> Column {
        Column { head, fit: Fit::Wrapped, right: false }
    }

    /// Figures, that end below each other.
    pub const fn figures(head: &'static str) -> Column {
        Column { head, fit: Fit::Whole, right: true }
    }
}

/// Rows below heads. Without heads if all of them are empty.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// A table without rows.
    pub fn new(columns: &[Column]) -> Table {
        Table { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row: a cell for each column.
    pub fn add(&mut self, row: impl IntoIterator<Item = Cell>) {
        self.rows.push(row.into_iter().collect());
    }

    /// The number of columns that the table takes where it is not made to fit.
    pub fn natural_width(&self) -> usize {
        total(&self.widths())
    }

    /// The table in lines that end with a line feed.
    pub fn text(&self, look: &Look) -> String {
        let lines: Vec<String> = self.lines(look).into_iter().flatten().collect();
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    /// The lines of the heads, if there are any, and of each row.
    pub fn lines(&self, look: &Look) -> Vec<Vec<String>> {
        let widths = self.fitted(look.columns);
        let heads = self.heads().map(|heads| self.row(&heads, &widths, look));
        heads.into_iter().chain(self.rows.iter().map(|row| self.row(row, &widths, look))).collect()
    }

    fn heads(&self) -> Option<Vec<Cell>> {
        let heads = self.columns.iter().map(|c| Cell::new(Tone::Head, c.head));
        self.columns.iter().any(|c| !c.head.is_empty()).then(|| heads.collect())
    }

    /// The width that each column needs.
    fn widths(&self) -> Vec<usize> {
        let of = |(i, column): (usize, &Column)| {
            let cells = self.rows.iter().filter_map(|row| row.get(i));
            cells.map(|cell| width(&cell.text)).max().unwrap_or(0).max(width(column.head))
        };
        self.columns.iter().enumerate().map(of).collect()
    }

    /// The width that each column gets. Columns that can be shortened give room, the widest first.
    fn fitted(&self, columns: usize) -> Vec<usize> {
        let mut widths = self.widths();
        let natural = widths.last().copied().unwrap_or(0);
        let wraps = self.columns.last().is_some_and(|c| c.fit == Fit::Wrapped);
        if let Some(last) = widths.last_mut().filter(|_| wraps) {
            *last = natural.min(LEAST_WRAPPED);
        }
        let can_give = |(i, width): &(usize, usize)| match self.columns[*i].fit {
            Fit::Shortened(least) => *width > least,
            _ => false,
        };
        while total(&widths) > columns {
            let givers = widths.iter().copied().enumerate().filter(can_give);
            let Some((widest, _)) = givers.max_by_key(|(_, width)| *width) else { break };
            widths[widest] -= 1;
        }
        let left = columns.saturating_sub(total(&widths));
        if let Some(last) = widths.last_mut().filter(|_| wraps) {
            *last = natural.min(*last + left);
        }
        widths
    }

    fn row(&self, row: &[Cell], widths: &[usize], look: &Look) -> Vec<String> {
        let cells = row.iter().zip(widths).zip(&self.columns);
        let (mut before, mut indent) = (String::new(), 0);
        let mut lines = Vec::new();
        for (i, ((cell, &room), column)) in cells.enumerate() {
            let is_last = i + 1 == self.columns.len();
            if i > 0 {
                before += &" ".repeat(GAP);
                indent += GAP;
            }
            if is_last && column.fit == Fit::Wrapped {
                let texts = wrapped(&cell.text, room.max(1), LongWord::Shortened);
                lines.extend(texts.iter().map(|text| look.paint(cell.tone, text)));
                break;
            }
            let text = match column.fit {
                Fit::Shortened(_) => shortened(&cell.text, room),
                _ => cell.text.clone(),
            };
            let pad = " ".repeat(room.saturating_sub(width(&text)));
            let text = look.paint(cell.tone, &text);
            before += &if column.right { pad + &text } else { text + &pad };
            indent += room;
        }
        let mut out: Vec<String> = Vec::new();
        let first = lines.first().map_or("", String::as_str);
        out.push(format!("{before}{first}").trim_end().to_owned());
        out.extend(lines.iter().skip(1).map(|line| format!("{:indent$}{line}", "")));
        out
    }
}

fn total(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1)
}

/// Facts, each behind its name.
pub fn summary<C: Into<Cell>>(
    rows: impl IntoIterator<Item = (&'static str, C)>,
    look: &Look,
) -> String {
    let mut table = Table::new(&[Column::new(""), Column::wrapped("")]);
    for (name, fact) in rows {
        table.add([name.into(), fact.into()]);
    }
    table.text(look)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(columns: usize) -> Look {
        Look { columns, colour: false }
    }

    fn volumes(names: &[&str]) -> Table {
        let columns =
            [Column::shortened("NAME", 6), Column::figures("SIZE"), Column::wrapped("LIMIT")];
        let mut table = Table::new(&columns);
        for name in names {
            table.add([name.into(), "16 GiB".into(), "500 IOPS, 50 MiB/s, burst 1s".into()]);
        }
        table
    }

    #[test]
    fn columns_stand_below_each_other() {
        let mut table =
            Table::new(&[Column::new("NAME"), Column::figures("N"), Column::new("LAST")]);
        table.add(["a".into(), "1".into(), "x".into()]);
        table.add(["bbbbü".into(), "22".into(), "".into()]);
        assert_eq!(table.text(&look(80)), "NAME    N  LAST\na       1  x\nbbbbü  22\n");
        assert_eq!(table.natural_width(), 15);
        assert_eq!(Table::new(&[Column::new("")]).text(&look(80)), "");
    }

    #[test]
    fn long_names_give_room_and_the_last_column_wraps() {
        let long = "a-name-of-sixty-characters-that-is-longer-than-a-line-can-hold";
        let table = volumes(&[long, "b"]);
        let wide = table.text(&look(120));
        assert!(wide.contains(long) && wide.lines().count() == 3, "{wide}");
        let narrow = table.text(&look(60));
        assert!(narrow.lines().all(|line| width(line) <= 60), "{narrow}");
        assert!(narrow.contains('…') && narrow.contains("50 MiB/s"), "{narrow}");
        let least = table.text(&look(10));
        assert!(least.contains("a-n…ld"), "{least}");
    }

    #[test]
    fn facts_go_on_below_themselves() {
        let text = summary([("state", "one two three four five six"), ("x", "y")], &look(25));
        assert_eq!(text, "state  one two three four\n       five six\nx      y\n");
    }

    #[test]
    fn colours_take_no_room() {
        let mut table = Table::new(&[Column::new("A"), Column::new("B")]);
        table.add([Cell::new(Tone::Bad, "x"), "y".into()]);
        let text = table.text(&Look { columns: 80, colour: true });
        assert!(text.contains("\u{1b}[0m  y\n"), "{text:?}");
        let hostile = Cell::new(Tone::Plain, "\u{1b}[31m");
        assert!(!hostile.text.contains('\u{1b}'));
    }
}
