//! The report of an experiment: a chapter of text, tables and pictures.

use std::fmt::Write;

/// The width of text in the document.
const COLUMNS: usize = 100;

/// The size of an experiment's run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// All of it, as in the document.
    Full,
    /// The same with less of everything: seconds, for tests.
    Short,
}

impl Scale {
    /// One of two numbers.
    pub fn pick<T>(self, full: T, short: T) -> T {
        match self {
            Scale::Full => full,
            Scale::Short => short,
        }
    }
}

/// A table: the first columns are text, the others are numbers.
pub struct Table {
    head: Vec<String>,
    /// The number of columns that are text.
    texts: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table, of whose columns the first `texts` are text.
    pub fn new(texts: usize, head: &[&str]) -> Table {
        Table { head: head.iter().map(ToString::to_string).collect(), texts, rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.head.len(), "a row has a cell for each column: {cells:?}");
        self.rows.push(cells);
    }

    fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rule = |i| if i < self.texts { "---" } else { "---:" }.to_string();
        let rules: Vec<String> = (0..self.head.len()).map(rule).collect();
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        format!("{}{}{rows}", line(&self.head), line(&rules))
    }
}

/// A picture.
pub struct Picture {
    /// The name of its file.
    pub file: String,
    /// The title: what the picture shows, for readers that do not see it.
    pub title: String,
    /// The content of the file, in SVG.
    pub svg: String,
}

enum Part {
    Text(String),
    Table(Table),
    Picture(Picture),
}

/// A chapter of the document.
pub struct Report {
    title: &'static str,
    parts: Vec<Part>,
}

impl Report {
    /// An empty chapter.
    pub fn new(title: &'static str) -> Report {
        Report { title, parts: Vec::new() }
    }

    /// Returns the title of the chapter.
    pub fn title(&self) -> &'static str {
        self.title
    }

    /// Adds a paragraph, or an item of a list. Spaces and ends of lines count as one space.
    pub fn text(&mut self, text: &str) {
        self.parts.push(Part::Text(wrapped(text)));
    }

    /// Adds a table.
    pub fn table(&mut self, table: Table) {
        self.parts.push(Part::Table(table));
    }

    /// Adds a picture.
    pub fn picture(&mut self, picture: Picture) {
        self.parts.push(Part::Picture(picture));
    }

    /// Returns the pictures of the chapter.
    pub fn pictures(&self) -> impl Iterator<Item = &Picture> {
        self.parts.iter().filter_map(|part| match part {
            Part::Picture(picture) => Some(picture),
            _ => None,
        })
    }

    /// The chapter in Markdown; pictures are in `folder`.
    pub fn markdown(&self, folder: &str) -> String {
        let mut out = format!("## {}\n", self.title);
        for part in &self.parts {
            out.push('\n');
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Table(table) => out.push_str(&table.markdown()),
                Part::Picture(p) => {
                    // A String takes everything.
                    _ = writeln!(out, "![{}]({folder}/{})", p.title, p.file);
                }
            }
        }
        out
    }
}

/// The words of `text` in lines that fit into the document.
pub(crate) fn wrapped(text: &str) -> String {
    let (mut out, mut column) = (String::new(), 0);
    // The further lines of an item of a list stand below its first word.
    let indent = if text.trim_start().starts_with("- ") { "  " } else { "" };
    for word in text.split_whitespace() {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > COLUMNS {
            out.push('\n');
            out.push_str(indent);
            column = indent.len();
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += width;
    }
    out.push('\n');
    out
}

/// A whole number with a comma before each group of three digits.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number with three digits that count, or all that stand before the point.
pub fn short(x: f64) -> String {
    match x.abs() {
        a if a >= 1000.0 => grouped(x.round() as u64),
        a if a >= 100.0 => format!("{x:.0}"),
        a if a >= 10.0 => format!("{x:.1}"),
        0.0 => "0".to_string(),
        _ => format!("{x:.2}"),
    }
}

/// Nanoseconds in the unit that suits them.
pub fn time(ns: u64) -> String {
    let x = ns as f64;
    match ns {
        0 => "0".to_string(),
        1..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} us", short(x / 1e3)),
        1_000_000..1_000_000_000 => format!("{} ms", short(x / 1e6)),
        _ => format!("{} s", short(x / 1e9)),
    }
}

/// Nanoseconds in milliseconds.
pub fn ms(ns: u64) -> String {
    short(ns as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 0.123, 1.0, 12.34, 123.4, 1234.5, 1_234_567.0].map(short);
        assert_eq!(shown, ["0", "0.12", "1.00", "12.3", "123", "1,235", "1,234,567"]);
        let times = [0, 12, 1_500, 2_000_000, 61_000_000_000].map(time);
        assert_eq!(times, ["0", "12 ns", "1.50 us", "2.00 ms", "61.0 s"]);
    }

    #[test]
    fn a_chapter_is_markdown() {
        let mut report = Report::new("A title");
        report.text("One\n   two.");
        let mut table = Table::new(1, &["policy", "ms"]);
        table.row(vec!["old".into(), "1".into()]);
        report.table(table);
        let (file, title, svg) = ("a.svg".into(), "rates".into(), String::new());
        report.picture(Picture { file, title, svg });
        let expected = "## A title\n\nOne two.\n\n| policy | ms |\n| --- | ---: |\n| old | 1 |\n\n\
                        ![rates](experiments/a.svg)\n";
        assert_eq!(report.markdown("experiments"), expected);
    }

    #[test]
    fn text_fits_into_the_columns() {
        let text = wrapped(&format!("- {}", "word ".repeat(100)));
        assert!(text.lines().all(|line| line.len() <= COLUMNS));
        assert!(text.lines().skip(1).all(|line| line.starts_with("  word")));
        assert_eq!(text.split_whitespace().count(), 101);
    }
}
