//! Moves of chunks between devices, and how far they are.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::words::words;

words! {
    /// The state of the moves between devices.
    MovesState {
        /// Nothing is to be moved.
        None = "none",
        /// Chunks are copied.
        Running = "running",
        /// Moves rest until a command resumes them.
        Paused = "paused",
        /// Moves wait for what trouble says.
        Waiting = "waiting",
    }
}

words! {
    /// The outcome of moves.
    MovesOutcome {
        /// Everything was moved.
        Done = "done",
        /// A command ended them.
        Cancelled = "cancelled",
    }
}

/// The end of the moves of a command, or of a device that came back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct MovesEnd {
    /// Whether everything was moved.
    pub outcome: MovesOutcome,
    /// When the moves ended, in seconds since 1970.
    pub ended_at: u32,
    /// Bytes that were copied.
    pub copied_bytes: u64,
}

/// The moves between devices, and their progress.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Moves")]
pub struct MovesStatus {
    /// The state of the moves.
    pub state: MovesState,
    /// Chunks are spread evenly over the devices.
    pub balancing: bool,
    /// Devices that leave the pool, by their paths, or their uuids if they are missing.
    pub leaving: Vec<String>,
    /// Devices that are back, or are coming back, and still lack something.
    pub behind: Vec<String>,
    /// Block groups of which these devices lack something.
    pub behind_groups: u64,
    /// If block groups are to get copies: how many copies the group with the fewest has. With that
    /// number of copies nothing is to be copied for them.
    pub fewest_copies: Option<u8>,
    /// Bytes that are yet to be copied. Of what the devices in behind lack this is an upper bound:
    /// what is in use of all that has changed while they were away, or near that.
    pub left_bytes: u64,
    /// Bytes that were copied since the last command, or since the pool was opened. Of a block
    /// group whose copy failed or was given up none count: all is copied again.
    pub copied_bytes: u64,
    /// Bytes a second over the last seconds.
    pub rate: u64,
    /// Seconds that are left at this rate; as left_bytes, at most, if something is behind.
    pub left_s: Option<u64>,
    /// The thing that the moves wait for, or the last error.
    pub trouble: Option<String>,
    /// The end of the last moves since the server was started.
    pub ended: Option<MovesEnd>,
}

/// The moves, after a command that moves something.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct MovesAnswer {
    /// The moves between devices, and their progress.
    #[serde(flatten)]
    pub moves: MovesStatus,
    /// Text that says what the next start of the server has to be told of devices; null or absent:
    /// nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_start: Option<String>,
}

/// The moves, after a command for a device that is done or has begun.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct DeviceMoves {
    /// The moves between devices, and their progress.
    #[serde(flatten)]
    pub moves: MovesStatus,
    /// The device: its path, or its uuid if it is missing.
    pub device: String,
    /// The device whose place this one takes; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
    /// Text that says what the next start of the server has to be told of devices; absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_start: Option<String>,
}
