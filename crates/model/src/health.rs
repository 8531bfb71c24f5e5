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

/// Something that somebody should know of.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// The section of docs/operations.md.
    pub page: Cow<'static, str>,
    /// The problem, in words.
    pub what: String,
    /// Advice on what to do, in words.
    pub todo: String,
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
