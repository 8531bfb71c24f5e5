//! Logs: on standard error, for people or as JSON, a line for each event; or in systemd's journal,
//! with the fields of each event.
//!
//! Commands write theirs at once. Those of a server go through a [`queue`], so that no thread of it
//! waits for their reader.

mod queue;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use tracing::{Dispatch, Subscriber};
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

use crate::error::CommandError;
use crate::output;
use crate::output::{failure_as_json, is_json};
use crate::terminal::look::is_stderr_coloured;
use queue::{Events, Queue};

/// The environment's variable for the level.
pub const LEVEL_VARIABLE: &str = "FOREBAY_LOG";

/// The level if nothing is said.
pub const DEFAULT_LEVEL: &str = "info";

/// The format of a line of the log.
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

    /// The name of the format.
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
const PARTS: [&str; 9] =
    ["cache", "export", "forebay", "http_api", "nbd", "pool", "posix", "uring", "volume"];

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

/// The queue that takes the lines of a server's log; empty in a command.
static QUEUE: OnceLock<Queue> = OnceLock::new();

/// Begins to log for people, as a command does: a line waits for its reader.
pub fn start(level: &str) {
    for_people(level, io::stderr).init();
}

/// Begins to log as a server does: no line waits for its reader. Where the journal cannot be
/// reached, standard error gets what is for it.
pub fn start_server(format: LogFormat, level: &str) -> Result<(), CommandError> {
    let (queue, reader) = Queue::new();
    let mut unreached = None;
    // The writer in the queue's thread goes by the same level: events that it let through as well
    // would cost time where they are not wanted.
    let direct = match format {
        LogFormat::Human => Dispatch::new(for_people(level, io::stderr)),
        LogFormat::Json => Dispatch::new(as_json(level, io::stderr)),
        LogFormat::Journal => match in_journal(level) {
            Ok(journal) => journal,
            Err(e) => {
                unreached = Some(e);
                Dispatch::new(for_people(level, io::stderr))
            }
        },
    };
    std::thread::Builder::new()
        .name("log".into())
        .spawn(move || reader.run(&direct))
        .map_err(|e| CommandError::failed("starting to log", e))?;
    match format {
        LogFormat::Journal if unreached.is_none() => {
            let events = Events(queue.clone());
            tracing_subscriber::registry().with(filter(level)).with(events).init();
        }
        LogFormat::Json => as_json(level, queue.clone()).init(),
        _ => for_people(level, queue.clone()).init(),
    }
    let panics = queue.clone();
    std::panic::set_hook(Box::new(move |info| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed").to_owned();
        let trace = Backtrace::capture();
        let trace = match trace.status() {
            BacktraceStatus::Captured => format!("{trace}\n"),
            _ => String::new(),
        };
        panics.tell(&format!("thread '{name}' {info}\n{trace}"));
    }));
    let _ = QUEUE.set(queue);
    if let Some(e) = unreached {
        tracing::warn!("the log is on standard error: the journal cannot be reached: {e}");
    }
    Ok(())
}

/// Prints a text on standard output, in its place among the lines of the log.
pub fn print(text: &str) -> Result<(), CommandError> {
    match QUEUE.get() {
        Some(queue) => {
            queue.print(text);
            Ok(())
        }
        None => output::print(text),
    }
}

/// Tells of the error that ends the process.
pub fn last_word(e: &CommandError) {
    let text = match is_json() {
        true => format!("{}\n", failure_as_json(&e.to_string(), e.exit_status())),
        false => format!("forebay: {e}\n"),
    };
    match QUEUE.get() {
        Some(queue) => queue.tell(&text),
        // The reader of standard error may have gone.
        None => drop(io::stderr().write_all(text.as_bytes())),
    }
}

/// The guard of the queue: while it lives, lines are taken. Its drop, at the end of the process,
/// waits for those that a reader has not taken yet, though not for long.
pub struct LogGuard;

impl Drop for LogGuard {
    fn drop(&mut self) {
        if let Some(queue) = QUEUE.get() {
            queue.end();
        }
    }
}

fn filter(level: &str) -> EnvFilter {
    EnvFilter::builder().parse_lossy(level)
}

fn in_journal(level: &str) -> io::Result<Dispatch> {
    let priorities = PriorityMappings {
        info: Priority::Informational,
        debug: Priority::Debug,
        ..PriorityMappings::new()
    };
    let journal = tracing_journald::layer()?
        .with_priority_mappings(priorities)
        .with_field_prefix(Some("FOREBAY".into()));
    Ok(Dispatch::new(tracing_subscriber::registry().with(filter(level)).with(journal)))
}

// A line that cannot be written is lost; a complaint about it would go the same way, and end the
// thread.

fn for_people(level: &str, to: impl Writes) -> impl Subscriber + Send + Sync {
    tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_env_filter(filter(level))
        .with_ansi(is_stderr_coloured())
        .with_target(false)
        .with_writer(to)
        .finish()
}

fn as_json(level: &str, to: impl Writes) -> impl Subscriber + Send + Sync {
    tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_env_filter(filter(level))
        .with_writer(to)
        .json()
        .flatten_event(true)
        .finish()
}

/// A writer of log lines.
trait Writes: for<'a> MakeWriter<'a> + Send + Sync + 'static {}

impl<T: for<'a> MakeWriter<'a> + Send + Sync + 'static> Writes for T {}

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
