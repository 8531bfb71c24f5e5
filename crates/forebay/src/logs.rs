//! Logs: on standard error, for people or as JSON, a line for each event; or in systemd's journal,
//! with the fields of each event.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

use crate::terminal::look::is_stderr_coloured;

/// The environment's variable for the level.
pub const LEVEL_VARIABLE: &str = "FOREBAY_LOG";

/// The level if nothing is said.
pub const DEFAULT_LEVEL: &str = "info";

/// What a line of log looks like.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people
    Human,
    /// JSON objects
    Json,
    /// In systemd's journal, with fields
    Journal,
}

impl LogFormat {
    /// The one if nothing is said: the journal if it reads standard error, as it does in a unit,
    /// else for people.
    pub fn of_environment() -> LogFormat {
        match std::env::var("JOURNAL_STREAM") {
            Ok(place) if Some(&place) == place_of_stderr().as_ref() => LogFormat::Journal,
            _ => LogFormat::Human,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            LogFormat::Human => "human",
            LogFormat::Json => "json",
            LogFormat::Journal => "journal",
        }
    }
}

/// Device and inode, as `JOURNAL_STREAM` has them.
fn place_of_stderr() -> Option<String> {
    let file = File::from(std::io::stderr().as_fd().try_clone_to_owned().ok()?);
    let meta = file.metadata().ok()?;
    Some(format!("{}:{}", meta.dev(), meta.ino()))
}

/// The levels, and what logs nothing.
const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
/// The parts that log: crates of the workspace.
const PARTS: [&str; 8] =
    ["cache", "export", "forebay", "http_api", "nbd", "pool", "posix", "uring"];

/// Checks a level such as `info`, or a list of directives such as `warn,nbd=debug`. A word that is
/// neither a level nor a part would be a filter that nothing passes.
pub fn parse_level(text: &str) -> Result<String, String> {
    for directive in text.split(',').map(str::trim).filter(|one| !one.is_empty()) {
        check_directive(directive)?;
    }
    let checked: Result<EnvFilter, ParseError> = EnvFilter::builder().parse(text);
    match checked {
        Ok(_) => Ok(text.to_owned()),
        Err(e) => Err(format!("{text:?} is not a level like {}: {e}", LEVELS.join(", "))),
    }
}

/// One of a list: `LEVEL`, `PART=LEVEL` or `PART`, where a part may go on with `::`.
fn check_directive(directive: &str) -> Result<(), String> {
    let is_level = |word: &str| LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
    let (part, level) = match directive.split_once('=') {
        Some((part, level)) => (part, Some(level)),
        None => (directive, None),
    };
    if let Some(level) = level.filter(|level| !is_level(level)) {
        return Err(format!("{level:?} is not a level: those are {}", LEVELS.join(", ")));
    }
    let root = part.split("::").next().unwrap_or_default();
    if PARTS.contains(&root) || (level.is_none() && is_level(part)) {
        return Ok(());
    }
    let parts = PARTS.join(", ");
    Err(match level {
        Some(_) => format!("{part:?} is no part that logs: those are {parts}"),
        None => format!(
            "{part:?} is neither a level ({}) nor a part that logs ({parts})",
            LEVELS.join(", ")
        ),
    })
}

/// Begins to log. Where the journal cannot be reached, standard error gets what is for it.
pub fn start(format: LogFormat, level: &str) {
    let filter = EnvFilter::builder().parse_lossy(level);
    if format == LogFormat::Journal {
        match tracing_journald::layer() {
            Ok(journal) => {
                let priorities = PriorityMappings {
                    info: Priority::Informational,
                    debug: Priority::Debug,
                    ..PriorityMappings::new()
                };
                let journal = journal
                    .with_priority_mappings(priorities)
                    .with_field_prefix(Some("FOREBAY".into()));
                tracing_subscriber::registry().with(filter).with(journal).init();
            }
            Err(e) => {
                on_standard_error(LogFormat::Human, filter);
                tracing::warn!("the log is on standard error: the journal cannot be reached: {e}");
            }
        }
    } else {
        on_standard_error(format, filter);
    }
}

fn on_standard_error(format: LogFormat, filter: EnvFilter) {
    // A line that cannot be written is lost; a complaint about it would go the same way, and end
    // the thread.
    let logs = tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    if format == LogFormat::Json {
        logs.json().flatten_event(true).init()
    } else {
        logs.with_ansi(is_stderr_coloured()).with_target(false).init()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_parts_are_known() {
        for right in ["info", "WARN", "off", "warn,nbd=debug", "cache::io=trace,error", "pool", ""]
        {
            assert_eq!(parse_level(right), Ok(right.to_owned()));
        }
        for (wrong, word) in [
            ("wran", "error, warn"),
            ("verbose", "error, warn"),
            ("cahce=debug", "cache"),
            ("info,cahce", "cache"),
            ("nbd=foo", "\"foo\" is not a level"),
            ("=debug", "no part"),
            ("tokio=debug", "no part"),
        ] {
            let e = parse_level(wrong).unwrap_err();
            assert!(e.contains(word), "{wrong}: {e}");
        }
    }

    /// What logs is a part, and the other way round.
    #[test]
    fn all_that_logs_can_be_named() {
        let logs = |dir: &std::path::Path| {
            let mut dirs = vec![dir.join("src")];
            while let Some(dir) = dirs.pop() {
                for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
                    let path = entry.path();
                    if path.is_dir() {
                        dirs.push(path);
                    } else if std::fs::read_to_string(&path).unwrap().contains("tracing::") {
                        return true;
                    }
                }
            }
            false
        };
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let all = std::fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path());
        let name =
            |dir: std::path::PathBuf| dir.file_name().unwrap().to_string_lossy().replace('-', "_");
        let mut found: Vec<String> = all.filter(|dir| logs(dir)).map(name).collect();
        found.sort();
        assert_eq!(found, PARTS);
    }
}
