//! The number of requests that the background may have in flight at most, by the latency of
//! foreground requests.
//!
//! Each device has a target for foreground reads and one for writes. A window begins when a request
//! was late. When it ends, and more than one in [`TOLERATED`] of its foreground requests was late,
//! the background's most is lowered by a quarter, and by half if so many took twice the target. A
//! good window raises it: by two requests if none was late, by one else. Windows follow each other
//! until the background has again all that it can have. It never has less than its least.
//!
//! A foreground request that is late and still waits or is in flight counts as late now: a device
//! that holds a read back for a second is noticed before that second has passed. Requests that met
//! no background say nothing of it, and do not count.

use base::{Duration, Instant};

/// The length of a window.
const WINDOW: Duration = Duration::from_millis(100);
/// One late request in so many is tolerated: devices have pauses of their own.
const TOLERATED: u32 = 10;
/// The number of times in a window that requests in flight are looked at.
const LOOKS: u32 = 8;

/// The time of a request, compared with its target.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Pace {
    InTime,
    Late,
    /// The request took twice the target, or more.
    Twofold,
}

impl Pace {
    pub fn of(took: Duration, target: Duration) -> Pace {
        if took <= target {
            Pace::InTime
        } else if took < 2 * target {
            Pace::Late
        } else {
            Pace::Twofold
        }
    }
}

struct Window {
    ends: Instant,
    requests: u32,
    late: u32,
    twofold: u32,
    /// The slowest of those that had not ended when they were looked at.
    unfinished: Pace,
}

impl Window {
    fn new(now: Instant) -> Window {
        let ends = now.after(WINDOW);
        Window { ends, requests: 0, late: 0, twofold: 0, unfinished: Pace::InTime }
    }

    fn verdict(&self) -> Pace {
        let many = |n: u32| n * TOLERATED > self.requests;
        if many(self.twofold) || self.unfinished == Pace::Twofold {
            Pace::Twofold
        } else if many(self.late) || self.unfinished == Pace::Late {
            Pace::Late
        } else {
            Pace::InTime
        }
    }
}

pub(crate) struct Feedback {
    least: u32,
    full: u32,
    most: u32,
    window: Option<Window>,
    /// When to look at what is in flight again.
    look_at: Instant,
}

impl Feedback {
    pub fn new(least: u32, full: u32) -> Feedback {
        assert!(least <= full);
        Feedback { least, full, most: full, window: None, look_at: Instant(0) }
    }

    /// The number of requests that the background may have in flight on a quiet device.
    pub fn most(&self) -> u32 {
        self.most
    }

    /// A foreground request that met the background has ended.
    pub fn ended(&mut self, now: Instant, pace: Pace) {
        self.close(now);
        if self.window.is_none() && pace == Pace::InTime {
            return;
        }
        let window = self.window.get_or_insert_with(|| Window::new(now));
        window.requests += 1;
        window.late += u32::from(pace >= Pace::Late);
        window.twofold += u32::from(pace == Pace::Twofold);
    }

    /// Called before the background takes a turn: `unfinished` says the pace of the slowest
    /// foreground request that has not ended, and is asked a few times in a window only.
    pub fn look(&mut self, now: Instant, unfinished: impl FnOnce() -> Pace) {
        self.close(now);
        if now < self.look_at {
            return;
        }
        self.look_at = now.after(WINDOW / LOOKS);
        let pace = unfinished();
        if pace >= Pace::Late {
            let window = self.window.get_or_insert_with(|| Window::new(now));
            window.unfinished = window.unfinished.max(pace);
        }
    }

    /// Ends the windows that are over.
    fn close(&mut self, now: Instant) {
        let Some(window) = self.window.as_ref().filter(|window| window.ends <= now) else { return };
        self.most = match window.verdict() {
            Pace::InTime => self.most + if window.late == 0 { 2 } else { 1 },
            Pace::Late => self.most - (self.most / 4).max(1),
            Pace::Twofold => self.most / 2,
        };
        // In the windows that have passed since, no request that counts has ended.
        let passed = now.since(window.ends).as_nanos() / WINDOW.as_nanos();
        let raised = u32::try_from(2 * passed).unwrap_or(self.full).min(self.full);
        self.most = (self.most.max(self.least) + raised).min(self.full);
        self.window = (self.most < self.full).then(|| Window::new(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Duration = Duration::from_millis(10);

    fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    fn pace(took_ms: u64) -> Pace {
        Pace::of(Duration::from_millis(took_ms), TARGET)
    }

    #[test]
    fn a_missed_target_lowers_the_most_and_good_windows_raise_it() {
        assert_eq!([10, 11, 19, 20].map(pace), {
            use Pace::*;
            [InTime, Late, Late, Twofold]
        });
        let mut f = Feedback::new(4, 64);
        f.ended(at(0), pace(10));
        f.ended(at(500), pace(11));
        assert_eq!(f.most(), 64, "the window has begun only now");
        f.ended(at(600), pace(11));
        assert_eq!(f.most(), 48, "a quarter less");
        f.ended(at(700), pace(25));
        assert_eq!(f.most(), 36);
        f.ended(at(800), pace(1));
        assert_eq!(f.most(), 18, "half, as the window was missed twofold");
        f.look(at(900), || Pace::InTime);
        assert_eq!(f.most(), 20, "two more after a good one");
        // One of eleven is tolerated.
        (0..10).for_each(|_| f.ended(at(901), pace(1)));
        f.ended(at(902), pace(11));
        f.look(at(1000), || Pace::InTime);
        assert_eq!(f.most(), 21, "one more, as one was late");
        f.look(at(60_000), || Pace::InTime);
        assert_eq!(f.most(), 64);
        f.ended(at(60_001), pace(10));
        f.ended(at(90_000), pace(11));
        assert_eq!(f.most(), 64, "no window was open");
    }

    #[test]
    fn the_least_is_never_taken_away() {
        let mut f = Feedback::new(4, 32);
        for i in 0..100 {
            f.ended(at(i * 100), pace(1000));
            assert!(f.most() >= 4);
        }
        assert_eq!(f.most(), 4);
    }

    #[test]
    fn what_is_late_and_in_flight_is_late_now() {
        let mut f = Feedback::new(4, 32);
        f.look(at(0), || Pace::InTime);
        f.look(at(1), || unreachable!("it was just looked at"));
        f.look(at(50), || Pace::Twofold);
        for ms in 51..151 {
            f.look(at(ms), || Pace::Twofold);
        }
        assert_eq!(f.most(), 16, "though no request has ended");
    }
}
