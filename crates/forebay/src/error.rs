//! How a command fails: a text for people, and an exit status for scripts.

use std::fmt::Display;

/// Why a command did not do what it was asked.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum CommandError {
    /// The arguments or the configuration make no sense; nothing was touched.
    #[error("{0}")]
    Usage(String),
    /// It was tried and did not work.
    #[error("{0}")]
    Failed(String),
}

/// What commands return.
pub type Result<T> = std::result::Result<T, CommandError>;

impl CommandError {
    /// A failure that reads `context: cause`.
    pub fn failed(context: impl Display, cause: impl Display) -> CommandError {
        CommandError::Failed(format!("{context}: {cause}"))
    }

    /// The process's exit status.
    pub fn exit_status(&self) -> u8 {
        match self {
            CommandError::Usage(_) => 2,
            CommandError::Failed(_) => 1,
        }
    }
}

impl From<base::StorageError> for CommandError {
    fn from(e: base::StorageError) -> Self {
        CommandError::Failed(e.to_string())
    }
}
