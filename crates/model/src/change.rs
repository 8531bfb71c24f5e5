//! The changes between two looks at a server.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::words::words;

words! {
    /// The subjects that are compared, in the order in which changes are told.
    Subject {
        /// A problem; the name is the page in docs/operations.md.
        Problem = "problem",
        /// State of the pool.
        Pool = "pool",
        /// State of a device of the pool; null: it is none.
        Device = "device",
        /// State of the cache; null: the pool has none.
        Cache = "cache",
        /// State of the scrub.
        Scrub = "scrub",
        /// State of the moves between devices.
        Moves = "moves",
        /// State of the job of this number.
        Job = "job",
        /// Size of a volume in bytes; null: it is not there.
        Volume = "volume",
        /// The mode of the cache for a volume.
        VolumeMode = "volume-mode",
        /// Whether clients may change nothing of a volume.
        VolumeReadOnly = "volume-read-only",
    }
}

/// The value that a subject had or has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Fact {
    /// Whether it is so.
    Flag(bool),
    /// A number.
    Number(u64),
    /// A word or a sentence.
    Text(String),
}

/// Something has changed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// The subject that has changed.
    pub what: Subject,
    /// The name of the device, volume, job or page.
    pub name: String,
    /// The value before; null: the subject was not there.
    pub from: Option<Fact>,
    /// The value now; null: the subject is not there any more.
    pub to: Option<Fact>,
    /// When the change was seen, in seconds of Unix time.
    pub at: f64,
}

/// The last changes that a server has seen since it was started.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct LastChanges {
    /// The value to send as from, for later changes.
    pub next: u64,
    /// When the server began to look for changes, in seconds of Unix time; 0: it has not yet.
    pub since: f64,
    /// The changes, the oldest first; at most 200.
    pub changes: Vec<Change>,
}
