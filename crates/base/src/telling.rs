//! Texts for people: which of many like events are told, and numbers of things.

use std::cell::Cell;

use crate::{Duration, Instant};

/// True for the first few of `n` like events, then for ever fewer, so that a device that goes bad
/// does not fill the log. All of them are counted somewhere.
pub fn worth_telling(n: u64) -> bool {
    n <= 8 || n.is_power_of_two()
}

/// Bounds the lines of a log about events that others cause, such as wrong passwords: so many a
/// minute, and then how many there were besides.
#[derive(Default, Debug)]
pub struct TellingQuota {
    /// When the minute began, and the lines in it.
    minute: Cell<Option<(Instant, u32)>>,
    untold: Cell<u64>,
}

impl TellingQuota {
    const LINES: u32 = 10;
    const MINUTE: Duration = Duration::from_secs(60);

    /// Counts an event. Returns whether it is told, and then how many before it were not.
    pub fn take(&self, now: Instant) -> Option<u64> {
        let minute = self.minute.get().filter(|(began, _)| now.since(*began) < Self::MINUTE);
        let (began, lines) = minute.unwrap_or((now, 0));
        if lines >= Self::LINES {
            self.untold.set(self.untold.get() + 1);
            return None;
        }
        self.minute.set(Some((began, lines + 1)));
        Some(self.untold.take())
    }
}

/// A number of things in words: `1 copy`, `2 copies`.
pub fn counted(n: u64, one: &str, more: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { more })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_a_minute_are_told_and_the_others_counted() {
        let (quota, at) = (TellingQuota::default(), |s| Instant(0).after(Duration::from_secs(s)));
        let told = |s, n: u32| (0..n).filter_map(|_| quota.take(at(s))).collect::<Vec<_>>();
        assert_eq!(told(1, 8), [0; 8]);
        assert_eq!(told(30, 10), [0; 2]);
        assert_eq!(told(60, 1), []);
        assert_eq!(told(61, 11), [9, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn one_is_not_many() {
        let copies = |n| counted(n, "copy", "copies");
        assert_eq!([copies(0), copies(1), copies(2)], ["0 copies", "1 copy", "2 copies"]);
    }
}
