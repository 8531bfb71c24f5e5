//! Why a request was not carried out.

use base::{ErrorKind, StorageError};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::words::words;

words! {
    /// Why something was not done, for programs.
    FailureKind {
        /// Something went wrong: the message says what.
        Failed = "failed",
        /// The request makes no sense.
        Invalid = "invalid",
        /// The client has not proved that it may ask.
        Unauthorized = "unauthorized",
        /// The client may not ask this.
        Forbidden = "forbidden",
        /// The thing that the request names is not there.
        NotFound = "not-found",
        /// The path does not have this method.
        NoMethod = "no-method",
        /// The request did not come in time.
        Timeout = "timeout",
        /// The thing that the request is to make is there already.
        Exists = "exists",
        /// The request would do harm, or does not fit the state of things.
        Refused = "refused",
        /// Another request ended this one.
        Cancelled = "cancelled",
        /// The body of the request is too large.
        TooLarge = "too-large",
        /// The body of the request is not JSON.
        NoJson = "no-json",
        /// The server is about to end.
        Stopping = "stopping",
        /// The server has too much to do.
        Busy = "busy",
        /// There is no room.
        NoSpace = "no-space",
    }
}

/// Why something was not done.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// The kind of the failure, for programs.
    #[serde(deserialize_with = "kind_or_failed")]
    #[schemars(with = "FailureKind")]
    pub kind: FailureKind,
    /// A message that says what went wrong, for people.
    pub message: String,
}

/// Reads a kind. A server of a later version may know kinds that this one does not: they read as
/// [`FailureKind::Failed`], and the message says what went wrong.
fn kind_or_failed<'de, D: Deserializer<'de>>(d: D) -> Result<FailureKind, D::Error> {
    Ok(String::deserialize(d)?.parse().unwrap_or(FailureKind::Failed))
}

impl Failure {
    /// A failure of `kind` that reads `message`.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Failure {
        Failure { kind, message: message.into() }
    }

    /// The request makes no sense.
    pub fn invalid(message: impl Into<String>) -> Failure {
        Failure::new(FailureKind::Invalid, message)
    }

    /// The server is about to end.
    pub fn stopping() -> Failure {
        Failure::new(FailureKind::Stopping, "the server is stopping")
    }

    /// Somebody has given the job up.
    pub fn cancelled() -> Failure {
        Failure::new(FailureKind::Cancelled, "the job was cancelled")
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<StorageError> for Failure {
    fn from(e: StorageError) -> Failure {
        let kind = match e.kind {
            ErrorKind::Invalid => FailureKind::Invalid,
            ErrorKind::NotFound => FailureKind::NotFound,
            ErrorKind::Exists => FailureKind::Exists,
            ErrorKind::NoSpace => FailureKind::NoSpace,
            ErrorKind::Limit
            | ErrorKind::Foreign
            | ErrorKind::Stale
            | ErrorKind::Newer
            | ErrorKind::Loses => FailureKind::Refused,
            ErrorKind::GivenUp => FailureKind::Cancelled,
            _ => FailureKind::Failed,
        };
        Failure::new(kind, e.context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_that_is_not_known_is_a_failure() {
        let read = |kind: &str| {
            let text = format!(r#"{{"kind":"{kind}","message":"no"}}"#);
            serde_json::from_str::<Failure>(&text).unwrap().kind
        };
        assert_eq!(read("not-found"), FailureKind::NotFound);
        assert_eq!(read("of-a-later-version"), FailureKind::Failed);
    }
}
