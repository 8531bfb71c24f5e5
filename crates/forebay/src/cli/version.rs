//! `forebay version`: what this program is, and what it can read.

use clap::Args;
use serde::Serialize;

use crate::control;
use crate::error::Result;
use crate::output::{is_json, print, print_json};

/// The commit that this program was built from; `make build` says it.
const COMMIT: Option<&str> = option_env!("FOREBAY_COMMIT");

/// Print the version, the formats that it reads and writes, and what it was built with
#[derive(Args, Debug)]
pub struct Version {}

impl Version {
    pub fn run(self) -> Result<()> {
        let told = version();
        if is_json() { print_json(&told) } else { print(&text(&told)) }
    }
}

/// All that the command tells.
#[derive(Serialize)]
struct VersionReport {
    version: &'static str,
    /// The commit that this program was built from, if it is known.
    commit: Option<&'static str>,
    formats: Formats,
    control_protocol: u64,
    features: &'static [&'static str],
    target: String,
    assertions: bool,
}

/// The formats on devices.
#[derive(Serialize)]
struct Formats {
    pool: Format,
    cache: Format,
}

/// The versions of a format that this program reads and writes.
#[derive(Serialize)]
struct Format {
    reads: Vec<u32>,
    writes: u32,
    features: &'static [&'static str],
}

fn version() -> VersionReport {
    let format = |newest: u32, features: &'static [&'static str]| Format {
        reads: (1..=newest).collect(),
        writes: newest,
        features,
    };
    let cache = format::cache::superblock::VERSION;
    VersionReport {
        version: env!("CARGO_PKG_VERSION"),
        commit: COMMIT.filter(|commit| !commit.is_empty()),
        formats: Formats {
            pool: format(format::superblock::VERSION, &[]),
            cache: format(cache, format::cache::superblock::FEATURES),
        },
        control_protocol: control::VERSION,
        features: &["io_uring", "posix", "emulate"],
        target: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
        assertions: cfg!(debug_assertions),
    }
}

fn text(told: &VersionReport) -> String {
    let mut out = format!("forebay {}\n", told.version);
    out += &format!("commit: {}\n", told.commit.unwrap_or("unknown"));
    for (name, format) in [("pool", &told.formats.pool), ("cache", &told.formats.cache)] {
        let reads: Vec<String> = format.reads.iter().map(u32::to_string).collect();
        out += &format!("{name} format: reads {}, writes {}", reads.join(", "), format.writes);
        if !format.features.is_empty() {
            out += &format!(", features {}", format.features.join(", "));
        }
        out.push('\n');
    }
    out += &format!("control protocol: {}\n", told.control_protocol);
    out + &format!("built with: {} ({})\n", told.features.join(", "), told.target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_tells_what_it_reads() {
        let told = version();
        assert_eq!(told.formats.pool.writes, format::superblock::VERSION);
        let text = text(&told);
        assert!(text.starts_with(concat!("forebay ", env!("CARGO_PKG_VERSION"), "\n")), "{text}");
        assert!(text.contains("pool format: reads 1, writes 1\n"), "{text}");
        assert!(text.contains("two-rings"), "{text}");
    }

    #[test]
    fn the_changes_of_this_version_are_told() {
        let changes = include_str!("../../../../CHANGELOG.md");
        assert!(changes.contains(concat!("\n## ", env!("CARGO_PKG_VERSION"))));
    }
}
