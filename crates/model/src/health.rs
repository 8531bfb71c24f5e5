//! The problems of a server.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::words::words;

words! {
    /// Whether something is wrong.
    HealthState {
        /// All is well.
        Ok = "ok",
        /// Something is wrong.
        Problems = "problems",
    }
}

words! {
    /// An action that a problem calls for, and that needs no further decision.
    ProblemAction {
        /// The paused scrub goes on.
        ScrubResume = "scrub-resume",
        /// A scrub of all devices begins.
        ScrubStart = "scrub-start",
        /// The paused moves go on.
        MovesResume = "moves-resume",
        /// The device of the problem is taken into use again.
        DeviceOnline = "device-online",
    }
}

/// Something that an operator should know of.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// The section of docs/operations.md.
    pub page: Cow<'static, str>,
    /// The problem, in words.
    pub what: String,
    /// Advice on what to do, in words.
    pub todo: String,
    /// The uuid of the device that has the problem; absent if it is not of one device of the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The action that can be taken at once; absent if there is none, or something has to be
    /// decided or mended before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<ProblemAction>,
}

/// The health of a server.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// Whether something is wrong.
    pub state: HealthState,
    /// Sections of docs/operations.md.
    pub pages: Vec<Cow<'static, str>>,
    /// All problems, the worst first; absent for clients without a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problems: Option<Vec<Problem>>,
}
