//! Findings of checks.

use serde::Serialize;

/// The severity of a finding. The worst is the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// A server does not start, loses data, or cannot do what it is told.
    Problem,
    /// A server works until something else happens, or works badly.
    Warning,
    /// A state that may be meant so.
    Note,
    /// A state that is as it should be.
    Ok,
}

impl Level {
    /// All levels, the worst first.
    pub const ALL: [Level; 4] = [Level::Problem, Level::Warning, Level::Note, Level::Ok];

    /// The name of the level.
    pub fn word(self) -> &'static str {
        match self {
            Level::Problem => "problem",
            Level::Warning => "warning",
            Level::Note => "note",
            Level::Ok => "ok",
        }
    }
}

/// A finding of a check.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct Finding {
    /// The severity of the finding.
    pub level: Level,
    /// The name of what was looked at, such as `device`.
    pub check: &'static str,
    /// The text that says what is there.
    pub found: String,
    /// The text that says what to do about it; `None` where nothing is wrong.
    pub todo: Option<String>,
}

impl Finding {
    /// A finding that nothing is wrong.
    pub fn ok(check: &'static str, found: impl Into<String>) -> Finding {
        Finding { level: Level::Ok, check, found: found.into(), todo: None }
    }

    /// A finding about which something should be done, or known.
    pub fn new(
        level: Level,
        check: &'static str,
        found: impl Into<String>,
        todo: impl Into<String>,
    ) -> Finding {
        Finding { level, check, found: found.into(), todo: Some(todo.into()) }
    }
}

/// Looks for a finding of this level that has all of these words.
#[cfg(test)]
pub fn has(all: &[Finding], level: Level, words: &[&str]) -> bool {
    all.iter().any(|one| {
        let text = format!("{} {} {}", one.check, one.found, one.todo.as_deref().unwrap_or(""));
        one.level == level && words.iter().all(|word| text.contains(word))
    })
}
