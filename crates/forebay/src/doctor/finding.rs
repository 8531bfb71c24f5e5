//! What a check has found.

use serde::Serialize;

/// How much it hurts. The worst is the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// A server does not start, loses data, or cannot do what it is told.
    Problem,
    /// It works until something else happens, or works badly.
    Warning,
    /// It may be meant so.
    Note,
    /// Nothing is wrong with it.
    Ok,
}

impl Level {
    /// All of them, the worst first.
    pub const ALL: [Level; 4] = [Level::Problem, Level::Warning, Level::Note, Level::Ok];

    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            Level::Problem => "problem",
            Level::Warning => "warning",
            Level::Note => "note",
            Level::Ok => "ok",
        }
    }
}

/// What a check has found.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct Finding {
    /// How much it hurts.
    pub level: Level,
    /// What was looked at.
    pub check: &'static str,
    /// What is there.
    pub found: String,
    /// What to do about it; none where nothing is wrong.
    pub todo: Option<String>,
}

impl Finding {
    /// Nothing is wrong.
    pub fn ok(check: &'static str, found: impl Into<String>) -> Finding {
        Finding { level: Level::Ok, check, found: found.into(), todo: None }
    }

    /// Something should be done, or known.
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
