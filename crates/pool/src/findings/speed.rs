//! The speed at which a counter has grown in the last seconds.

use base::Instant;

/// The time between two marks.
const MEASURED_S: u64 = 5;

/// The speed of something that is counted.
#[derive(Clone, Copy, Default)]
pub(super) struct Speed {
    /// The last two times at which the count was noted, and the count then. A time of zero: nothing
    /// was noted yet.
    marks: [(Instant, u64); 2],
    per_second: u64,
}

impl Speed {
    /// Notes the count at this moment, which never falls.
    pub fn count(&mut self, now: Instant, all: u64) {
        if self.marks[0].0 == Instant::default() {
            self.marks = [(now, all); 2];
        }
        if now.since(self.marks[1].0).as_secs() >= MEASURED_S {
            self.marks = [self.marks[1], (now, all)];
        }
        let (since, before) = self.marks[0];
        let time = now.since(since).as_secs_f64();
        if time > 0.1 {
            self.per_second = (all.saturating_sub(before) as f64 / time) as u64;
        }
    }

    /// The growth a second; 0 if nothing was counted for long.
    pub fn now(&self, now: Instant) -> u64 {
        let stale = now.since(self.marks[1].0).as_secs() > 4 * MEASURED_S;
        if stale { 0 } else { self.per_second }
    }
}
