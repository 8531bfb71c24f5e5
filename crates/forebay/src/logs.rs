//! Logs: on standard error, for people or as JSON, a line for each event.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// The environment's variable for the level.
pub const LEVEL_VARIABLE: &str = "FOREBAY_LOG";

/// The level if nothing is said.
pub const DEFAULT_LEVEL: &str = "info";

/// What a line of log looks like.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people
    #[default]
    Human,
    /// JSON objects
    Json,
}

impl LogFormat {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            LogFormat::Human => "human",
            LogFormat::Json => "json",
        }
    }
}

/// Checks a level such as `info`, or a list of directives such as `warn,nbd=debug`.
pub fn parse_level(text: &str) -> Result<String, String> {
    let checked: Result<EnvFilter, ParseError> = EnvFilter::builder().parse(text);
    match checked {
        Ok(_) => Ok(text.to_owned()),
        Err(e) => Err(format!("{text:?} is not a level like error, warn, info, debug, trace: {e}")),
    }
}

/// Begins to log.
pub fn start(format: LogFormat, level: &str) {
    let filter = EnvFilter::builder().parse_lossy(level);
    // A line that cannot be written is lost; a complaint about it would go the same way, and end
    // the thread.
    let logs = tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Human => {
            logs.with_ansi(std::io::stderr().is_terminal()).with_target(false).init()
        }
        LogFormat::Json => logs.json().flatten_event(true).init(),
    }
}
