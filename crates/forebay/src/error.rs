//! The failure of a command: a text for people, and an exit status for scripts.

use std::fmt::Display;

/// The exit status of `forebay check` and `forebay scrub` where something is lost: no copy of it is
/// good.
pub const LOST: u8 = 3;
/// The exit status of `forebay doctor` where there is a problem.
pub const PROBLEM: u8 = LOST;
/// The exit status of `forebay check` and `forebay scrub` where copies are damaged, and a good one
/// of each is there.
pub const DAMAGED: u8 = 4;

/// The exit status of `forebay check` and `forebay scrub` where what was checked is good, and not
/// everything was.
pub const PARTIAL: u8 = 5;

/// All exit statuses and what they mean, for people.
pub const EXIT_STATUSES: &[(u8, &str)] = &[
    (
        0,
        "Done; a check, or a scrub that was waited for, found nothing lost or damaged, or a repair \
         left nothing so.",
    ),
    (
        1,
        "It was tried and did not work, or the server refused it, or moves of data that --wait \
         waits for are paused or do not get on. The last line says why.",
    ),
    (2, "The arguments or the configuration make no sense. Nothing was touched."),
    (
        LOST,
        "forebay check, or a scrub with --wait: something is wrong, and no copy of it is good; \
         forebay doctor: there is a problem.",
    ),
    (
        DAMAGED,
        "forebay check, or a scrub with --wait that could not write them again: copies are \
         damaged; a good one of each is there, and heals it.",
    ),
    (
        PARTIAL,
        "forebay check, or a scrub with --wait: what was checked is good, and not everything was, \
         as a device or the cache was not there, or the scrub was paused or cancelled.",
    ),
];

/// Why a command did not do what it was asked.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum CommandError {
    /// The arguments or the configuration make no sense; nothing was touched.
    #[error("{0}")]
    Usage(String),
    /// The command was tried and did not work.
    #[error("{0}")]
    Failed(String),
}

/// The result of a command.
pub type Result<T> = std::result::Result<T, CommandError>;

impl CommandError {
    /// A failure that reads `context: cause`.
    pub fn failed(context: impl Display, cause: impl Display) -> CommandError {
        CommandError::Failed(format!("{context}: {cause}"))
    }

    /// The same, with the context before its text.
    pub fn within(self, context: impl Display) -> CommandError {
        match self {
            CommandError::Usage(text) => CommandError::Usage(format!("{context}: {text}")),
            CommandError::Failed(text) => CommandError::Failed(format!("{context}: {text}")),
        }
    }

    /// Adds what to type next, unless the text says that already.
    pub fn or_next(self, next: &str) -> CommandError {
        let told = |text: String| match says_what_to_type(&text) {
            true => text,
            false => match text.trim_end() {
                // A quote of a file, with a mark below it.
                lines if lines.contains('\n') => format!("{lines}\n{next}"),
                line => format!("{line}; {next}"),
            },
        };
        match self {
            CommandError::Usage(text) => CommandError::Usage(told(text)),
            CommandError::Failed(text) => CommandError::Failed(told(text)),
        }
    }

    /// The process's exit status.
    pub fn exit_status(&self) -> u8 {
        match self {
            // As clap does.
            CommandError::Usage(_) => 2,
            CommandError::Failed(_) => 1,
        }
    }
}

/// Whether a text names a command or an option.
fn says_what_to_type(text: &str) -> bool {
    text.contains("forebay ") || text.contains(" --") || text.contains("(--")
}

impl From<base::StorageError> for CommandError {
    fn from(e: base::StorageError) -> Self {
        CommandError::Failed(e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_type_next_is_said_once() {
        let failed = |text: &str| CommandError::Failed(text.to_owned());
        assert_eq!(failed("no disk").or_next("forebay doctor"), failed("no disk; forebay doctor"));
        for text in ["no volume: forebay volume list", "it holds data (--force overwrites it)"] {
            assert_eq!(failed(text).or_next("forebay doctor"), failed(text));
        }
        assert_eq!(failed("1 | x\n  | ^\n").or_next("forebay"), failed("1 | x\n  | ^\nforebay"));
        let usage = CommandError::Usage("3 copies".into()).or_next("see forebay create --help");
        assert_eq!(usage.exit_status(), 2);
    }

    #[test]
    fn exit_statuses_are_documented() {
        let text = include_str!("../../../docs/operations.md");
        for (status, what) in EXIT_STATUSES {
            let row = format!("| {status} | {what} |");
            assert!(text.contains(&row), "docs/operations.md has no row {row}");
        }
        let known = |status: u8| EXIT_STATUSES.iter().any(|one| one.0 == status);
        let errors = [CommandError::Usage(String::new()), CommandError::Failed(String::new())];
        assert!(errors.iter().all(|e| known(e.exit_status())));
    }
}
