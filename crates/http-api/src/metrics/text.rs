//! The text of metrics, in both formats.
//!
//! The formats differ in the names in the lines before the samples: OpenMetrics leaves `_total` and
//! `_info` to the samples, and names the unit.

use std::fmt::Write;

use axum::http::{HeaderMap, header};

use super::family::{Family, Kind};

/// A format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Prometheus text 0.0.4.
    Plain,
    /// OpenMetrics 1.0.
    Open,
}

impl Format {
    /// The one that a client can read.
    pub fn accepted(headers: &HeaderMap) -> Format {
        let accepts = headers.get_all(header::ACCEPT).iter().filter_map(|v| v.to_str().ok());
        let open = |text: &str| text.contains("application/openmetrics-text");
        if accepts.into_iter().any(open) { Format::Open } else { Format::Plain }
    }

    /// The media type.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Plain => "text/plain; version=0.0.4; charset=utf-8",
            Format::Open => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Labels of a sample.
pub type Labels<'a> = [(&'a str, &'a str)];

/// A text that grows.
pub struct Text {
    format: Format,
    out: String,
}

impl Text {
    /// An empty one.
    pub fn new(format: Format) -> Text {
        Text { format, out: String::new() }
    }

    /// The lines before the samples of a family.
    pub fn begin(&mut self, family: &Family) {
        let bare = match family.kind {
            Kind::Counter => family.name.trim_end_matches("_total"),
            Kind::Info => family.name.trim_end_matches("_info"),
            _ => family.name,
        };
        let (name, kind) = match (self.format, family.kind) {
            (Format::Plain, Kind::Info) => (family.name, "gauge"),
            (Format::Plain, kind) => (family.name, kind.word()),
            (Format::Open, kind) => (bare, kind.word()),
        };
        let help = family.help;
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        let unit = ["seconds", "bytes"].into_iter().find(|unit| bare.ends_with(unit));
        if let (Format::Open, Some(unit)) = (self.format, unit) {
            let _ = writeln!(self.out, "# UNIT {name} {unit}");
        }
    }

    /// A sample.
    pub fn sample(&mut self, name: &str, suffix: &str, labels: &Labels<'_>, value: f64) {
        self.out.push_str(name);
        self.out.push_str(suffix);
        for (at, (label, text)) in labels.iter().enumerate() {
            let _ = write!(self.out, "{}{label}=\"", if at == 0 { '{' } else { ',' });
            for c in text.chars() {
                match c {
                    '\\' => self.out.push_str("\\\\"),
                    '"' => self.out.push_str("\\\""),
                    '\n' => self.out.push_str("\\n"),
                    c => self.out.push(c),
                }
            }
            self.out.push('"');
        }
        if !labels.is_empty() {
            self.out.push('}');
        }
        let _ = writeln!(self.out, " {value}");
    }

    /// The whole.
    pub fn end(mut self) -> String {
        if self.format == Format::Open {
            self.out.push_str("# EOF\n");
        }
        self.out
    }
}
