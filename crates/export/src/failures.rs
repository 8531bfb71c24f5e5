//! The lines of the log about requests that failed: a line for each reason, and once a minute the
//! number of further ones. Clients that try again at once would fill the log in seconds.

use std::cell::RefCell;
use std::collections::VecDeque;

use base::{Duration, Instant, StorageError, counted};

/// A reason that was told is told again after this time, if it is still there.
const TELL_AGAIN: Duration = Duration::from_secs(60);
/// The number of reasons that are remembered.
const MOST_REASONS: usize = 32;

/// The reasons that the log has.
#[derive(Default)]
pub struct Failures(RefCell<VecDeque<LoggedFailure>>);

/// A reason that the log has.
struct LoggedFailure {
    /// The text of the error without its numbers: the same failure has many addresses.
    reason: String,
    at: Instant,
    /// The number of requests that have failed for the reason since then.
    more: u64,
}

impl Failures {
    /// Notes that a request failed now.
    pub fn note(&self, e: &StorageError, now: Instant) {
        if let Some(line) = self.line(&e.to_string(), now) {
            tracing::error!("{line}");
        }
    }

    /// Returns the line for the log about a request that failed; `None`: the log has said so not
    /// long ago.
    fn line(&self, text: &str, now: Instant) -> Option<String> {
        let reason: String = text.chars().filter(|c| !c.is_ascii_digit()).collect();
        let mut all = self.0.borrow_mut();
        let Some(told) = all.iter_mut().find(|told| told.reason == reason) else {
            if all.len() == MOST_REASONS {
                all.pop_front();
            }
            all.push_back(LoggedFailure { reason, at: now, more: 0 });
            return Some(format!("a request failed: {text}"));
        };
        if now.since(told.at) < TELL_AGAIN {
            told.more += 1;
            return None;
        }
        let since = now.since(told.at).as_secs();
        let others = match told.more {
            0 => String::new(),
            n => format!(" ({} like it in the last {since} s)", counted(n, "other", "others")),
        };
        (told.at, told.more) = (now, 0);
        Some(format!("a request failed: {text}{others}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant(0).after(Duration::from_secs(seconds))
    }

    #[test]
    fn many_like_failures_are_a_line_a_minute() {
        let failures = Failures::default();
        let line =
            |block: u64, seconds| failures.line(&format!("block {block} is bad"), at(seconds));
        assert_eq!(line(1, 1).as_deref(), Some("a request failed: block 1 is bad"));
        assert!((0..50_000).all(|block| line(block, 1 + block / 1000).is_none()));
        assert_eq!(
            failures.line("no device", at(51)).as_deref(),
            Some("a request failed: no device")
        );
        assert_eq!(
            line(7, 61).as_deref(),
            Some("a request failed: block 7 is bad (50000 others like it in the last 60 s)")
        );
        assert_eq!(line(8, 62), None);
        assert!(line(9, 200).is_some_and(|line| line.contains("(1 other like it")));
        assert_eq!(line(7, 900).as_deref(), Some("a request failed: block 7 is bad"));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let failures = Failures::default();
        for n in 0..1000_u32 {
            let name: String = n.to_string().bytes().map(|b| char::from(b + 49)).collect();
            assert!(failures.line(&name, at(1)).is_some());
        }
        assert_eq!(failures.0.borrow().len(), MOST_REASONS);
    }
}
