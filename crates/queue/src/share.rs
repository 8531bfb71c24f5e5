//! What the background may have in flight on a device: a pure rule, without time.
//!
//! While the device works for other classes, the background has up to [`LEAST`] requests of at most
//! [`LEAST_BYTES`] in flight, all of its classes together: enough to go on at a good part of the
//! speed of a fast device, and few enough that a request behind them waits for a fraction of a
//! millisecond. When [`QUIET`] of its own requests in a row began and ended with no other there, it
//! has its most: the whole device, or as much as the latency of foreground requests allows
//! ([`crate::feedback`]).
//!
//! Some disks serve a sequential stream first, for as long as it goes on, and a random read behind
//! it waits. A low depth does not help there: the stream has to pause. So on a rotating device the
//! background may begin [`CREDIT`] requests while others are in flight, and the next when one of
//! the others has ended.
//!
//! The owner of the device may say that the background has time, and a scrub always has. Then it
//! has one request in flight, and while others are, that one begins after [`OVERTAKEN`] of them
//! have. So it costs them a ninth of the device, however fast that is, and moves on in each gap
//! that they leave.
//!
//! The least is never taken away, as clients may wait for room that only the background makes: of
//! requests that wait for the device, one of the background goes after [`OVERTAKEN`] others.

use crate::stats::Class;

/// Requests of the background in flight while others are.
pub(crate) const LEAST: u32 = 4;
/// Bytes of each of them, unless a single one is larger.
pub(crate) const LEAST_BYTES: usize = 128 << 10;
/// The device is quiet after so many requests of the background, with no other.
pub(crate) const QUIET: u32 = 16;
/// So many other requests may begin while one of the background waits and may go.
pub(crate) const OVERTAKEN: u32 = 8;
/// On a rotating device, so many requests of the background may begin until one of the others ends.
pub(crate) const CREDIT: u32 = 4;

pub(crate) struct Share {
    /// Requests of the background that may be in flight on a quiet device when nothing is late.
    full: u32,
    /// The largest of them then.
    full_bytes: usize,
    /// What the credit begins with.
    credits: u32,
    /// The background has time.
    patient: bool,
    /// Requests in flight of other classes.
    urgent: u32,
    background: u32,
    /// Requests of the background that may begin before one of the others ends.
    credit: u32,
    /// Requests of the background that have ended since one of the others was in flight.
    alone: u32,
    /// Other requests that have begun since one of the background did.
    overtaken: u32,
}

impl Share {
    /// On a device of so many tags.
    pub fn new(depth: usize, rotating: bool) -> Share {
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        // Where a request takes milliseconds, the next read finds a tag that is free, and few
        // bytes before it.
        let (full, full_bytes, credits) = if rotating {
            (depth - depth / 4, LEAST_BYTES, CREDIT)
        } else {
            (depth, usize::MAX, u32::MAX)
        };
        Share {
            full: full.max(LEAST),
            full_bytes,
            credits,
            patient: false,
            urgent: 0,
            background: 0,
            credit: credits,
            alone: 0,
            overtaken: 0,
        }
    }

    /// The most that the background can have.
    pub fn full(&self) -> u32 {
        self.full
    }

    /// Requests of the background in flight.
    pub fn background(&self) -> u32 {
        self.background
    }

    /// The background has time, or not. True if it may go on faster than before.
    pub fn set_patient(&mut self, patient: bool) -> bool {
        std::mem::replace(&mut self.patient, patient) && !patient
    }

    /// How large the next request of the background may be, when `others` wait or not, and it may
    /// have `most` requests in flight; `None`: it is not its turn. `patient`: all of it that waits
    /// has time.
    pub fn next_bytes(&self, others: bool, most: u32, patient: bool) -> Option<usize> {
        if others && self.overtaken < OVERTAKEN {
            return None;
        }
        if !others && self.urgent == 0 && self.alone >= QUIET {
            let bytes = if most >= self.full { self.full_bytes } else { LEAST_BYTES };
            return (self.background < most).then_some(bytes);
        }
        if self.urgent > 0 && self.credit == 0 {
            return None;
        }
        let beside_others = self.urgent > 0 && self.overtaken < OVERTAKEN;
        let most = match (self.patient || patient, beside_others) {
            (true, true) => 0,
            (true, false) => 1,
            (false, _) => LEAST,
        };
        (self.background < most).then_some(LEAST_BYTES)
    }

    /// A request begins; background requests wait or not.
    pub fn begin(&mut self, class: Class, background_waits: bool) {
        if class.is_background() {
            self.background += 1;
            self.overtaken = 0;
            if self.urgent > 0 {
                self.credit = self.credit.saturating_sub(1);
            }
            return;
        }
        self.urgent += 1;
        self.alone = 0;
        self.overtaken = if background_waits { self.overtaken + 1 } else { 0 };
    }

    /// A request has ended.
    pub fn end(&mut self, class: Class) {
        if class.is_background() {
            self.background -= 1;
            self.alone = if self.urgent == 0 { (self.alone + 1).min(QUIET) } else { 0 };
        } else {
            self.urgent -= 1;
            self.credit = self.credits;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_background_has_its_least_beside_others_and_all_of_a_quiet_device() {
        let mut share = Share::new(128, false);
        share.begin(Class::Foreground, true);
        for _ in 0..LEAST {
            assert_eq!(share.next_bytes(false, 128, false), Some(LEAST_BYTES));
            share.begin(Class::WriteBack, true);
        }
        assert_eq!(share.next_bytes(false, 128, false), None);
        share.end(Class::Foreground);
        assert_eq!(share.next_bytes(false, 128, false), None, "it is not quiet yet");
        for _ in 0..QUIET {
            share.end(Class::WriteBack);
            assert_eq!(
                share.next_bytes(false, 128, false),
                if share.alone < QUIET { Some(LEAST_BYTES) } else { Some(usize::MAX) }
            );
            share.begin(Class::WriteBack, true);
        }
        share.begin(Class::Commit, true);
        assert_eq!(share.next_bytes(false, 128, false), None);
    }

    #[test]
    fn a_background_that_has_time_has_one_request_after_so_many_others() {
        let mut share = Share::new(128, false);
        assert!(!share.set_patient(true));
        for _ in 0..3 {
            for _ in 0..OVERTAKEN {
                share.begin(Class::Foreground, true);
                assert_eq!(
                    share.next_bytes(false, 128, false).is_some(),
                    share.overtaken == OVERTAKEN
                );
            }
            share.begin(Class::WriteBack, true);
            assert_eq!(share.next_bytes(false, 128, false), None);
            share.end(Class::WriteBack);
        }
        // No other is there: it need not wait for them, and has the device in the end.
        (0..3 * OVERTAKEN).for_each(|_| share.end(Class::Foreground));
        for _ in 0..QUIET {
            assert_eq!(share.next_bytes(false, 128, false), Some(LEAST_BYTES));
            share.begin(Class::WriteBack, true);
            assert_eq!(share.next_bytes(false, 128, false), None);
            share.end(Class::WriteBack);
        }
        assert_eq!(share.next_bytes(false, 128, false), Some(usize::MAX));
        // It has no time any more.
        share.begin(Class::Foreground, true);
        assert_eq!(share.next_bytes(false, 128, false), None);
        assert!(share.set_patient(false) && !share.set_patient(false));
        assert_eq!(share.next_bytes(false, 128, false), Some(LEAST_BYTES));
    }

    #[test]
    fn a_scrub_has_time_where_other_work_of_the_background_has_none() {
        let mut share = Share::new(32, true);
        share.begin(Class::Foreground, true);
        assert_eq!(share.next_bytes(false, 24, false), Some(LEAST_BYTES));
        for _ in 1..OVERTAKEN {
            assert_eq!(share.next_bytes(false, 24, true), None);
            share.begin(Class::Foreground, true);
        }
        assert_eq!(share.next_bytes(true, 24, true), Some(LEAST_BYTES));
        share.begin(Class::Scrub, true);
        (0..OVERTAKEN).for_each(|_| share.end(Class::Foreground));
        assert_eq!(share.next_bytes(false, 24, true), None, "one is in flight");
        share.end(Class::Scrub);
        assert_eq!(share.next_bytes(false, 24, true), Some(LEAST_BYTES), "clients leave a gap");
    }

    #[test]
    fn the_background_is_overtaken_so_often_and_no_more() {
        let mut share = Share::new(128, false);
        for _ in 0..3 {
            for _ in 0..OVERTAKEN {
                assert_eq!(share.next_bytes(true, 128, false), None);
                share.begin(Class::Foreground, true);
            }
            assert_eq!(share.next_bytes(true, 128, false), Some(LEAST_BYTES));
            share.begin(Class::Collection, true);
        }
        share.begin(Class::Promotion, true);
        (0..OVERTAKEN).for_each(|_| share.begin(Class::Foreground, true));
        assert_eq!(share.next_bytes(true, 128, false), None, "its least is in flight");
        // None was overtaken while nothing of the background waited.
        let mut share = Share::new(128, false);
        (0..99).for_each(|_| share.begin(Class::Foreground, false));
        assert_eq!(share.next_bytes(true, 128, false), None);
    }

    #[test]
    fn on_a_rotating_device_the_background_pauses_until_another_request_ends() {
        let mut share = Share::new(32, true);
        share.begin(Class::Foreground, true);
        for _ in 0..CREDIT {
            assert_eq!(share.next_bytes(false, 24, false), Some(LEAST_BYTES));
            share.begin(Class::WriteBack, true);
            share.end(Class::WriteBack);
        }
        assert_eq!(
            share.next_bytes(false, 24, false),
            None,
            "none is in flight, but its credit is spent"
        );
        share.begin(Class::Foreground, true);
        share.end(Class::Foreground);
        assert_eq!(share.next_bytes(false, 24, false), Some(LEAST_BYTES));
    }

    #[test]
    fn on_a_quiet_device_the_background_has_its_most() {
        for (rotating, bytes) in [(false, usize::MAX), (true, LEAST_BYTES)] {
            let mut share = Share::new(32, rotating);
            let full = share.full();
            assert_eq!(full, if rotating { 24 } else { 32 });
            for _ in 0..QUIET {
                share.begin(Class::WriteBack, true);
                share.end(Class::WriteBack);
            }
            assert_eq!(share.next_bytes(false, full, false), Some(bytes));
            (0..9).for_each(|_| share.begin(Class::WriteBack, true));
            assert_eq!(share.next_bytes(false, 10, false), Some(LEAST_BYTES));
            assert_eq!(share.next_bytes(false, 9, false), None);
        }
    }
}
