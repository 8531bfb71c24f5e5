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

/// Checks a level such as `info`, or a list of directives such as `warn,nbd=debug`.
pub fn parse_level(text: &str) -> Result<String, String> {
    let checked: Result<EnvFilter, ParseError> = EnvFilter::builder().parse(text);
    match checked {
        Ok(_) => Ok(text.to_owned()),
        Err(e) => Err(format!("{text:?} is not a level like error, warn, info, debug, trace: {e}")),
    }
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
