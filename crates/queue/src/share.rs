//! What the background may have in flight on a device: a pure rule, without time.
//!
//! While the device works for those who wait, the background has up to [`LEAST`] requests of at
//! most [`LEAST_BYTES`] in flight: enough to go on at a good part of the speed of a fast device,
//! and few enough that a request behind them waits for a fraction of a millisecond. It has the
//! whole device when [`QUIET`] of its own requests in a row began and ended with no other there.
//!
//! Who owns the device may say that the background has time. Then it has one request in flight, and
//! while others are, that one begins after [`OVERTAKEN`] of them have. So it costs them a ninth of
//! the device, however fast that is, and moves on in each gap that they leave.
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

#[derive(Clone, Copy, Default)]
pub(crate) struct Share {
    /// The background has time.
    patient: bool,
    /// Requests in flight that somebody waits for.
    urgent: u32,
    background: u32,
    /// Requests of the background that have ended since somebody else's was in flight.
    alone: u32,
    /// Other requests that have begun since one of the background did.
    overtaken: u32,
}

impl Share {
    /// The background has time, or not. True if it may go on faster than before.
    pub fn set_patient(&mut self, patient: bool) -> bool {
        std::mem::replace(&mut self.patient, patient) && !patient
    }

    /// How large the next request of the background may be, when `others` wait or not; `None`: it
    /// is not its turn.
    pub fn next_bytes(&self, others: bool) -> Option<usize> {
        if others && self.overtaken < OVERTAKEN {
            return None;
        }
        if !others && self.urgent == 0 && self.alone >= QUIET {
            return Some(usize::MAX);
        }
        let beside_others = self.urgent > 0 && self.overtaken < OVERTAKEN;
        let most = match (self.patient, beside_others) {
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_background_has_its_least_beside_others_and_all_of_a_quiet_device() {
        let mut share = Share::default();
        share.begin(Class::Foreground, true);
        for _ in 0..LEAST {
            assert_eq!(share.next_bytes(false), Some(LEAST_BYTES));
            share.begin(Class::WriteBack, true);
        }
        assert_eq!(share.next_bytes(false), None);
        share.end(Class::Foreground);
        assert_eq!(share.next_bytes(false), None, "it is not quiet yet");
        for _ in 0..QUIET {
            share.end(Class::WriteBack);
            assert_eq!(
                share.next_bytes(false),
                if share.alone < QUIET { Some(LEAST_BYTES) } else { Some(usize::MAX) }
            );
            share.begin(Class::WriteBack, true);
        }
        share.begin(Class::Commit, true);
        assert_eq!(share.next_bytes(false), None);
    }

    #[test]
    fn a_background_that_has_time_has_one_request_after_so_many_others() {
        let mut share = Share::default();
        assert!(!share.set_patient(true));
        for _ in 0..3 {
            for _ in 0..OVERTAKEN {
                share.begin(Class::Foreground, true);
                assert_eq!(share.next_bytes(false).is_some(), share.overtaken == OVERTAKEN);
            }
            share.begin(Class::WriteBack, true);
            assert_eq!(share.next_bytes(false), None);
            share.end(Class::WriteBack);
        }
        // No other is there: it need not wait for them, and has the device in the end.
        (0..3 * OVERTAKEN).for_each(|_| share.end(Class::Foreground));
        for _ in 0..QUIET {
            assert_eq!(share.next_bytes(false), Some(LEAST_BYTES));
            share.begin(Class::WriteBack, true);
            assert_eq!(share.next_bytes(false), None);
            share.end(Class::WriteBack);
        }
        assert_eq!(share.next_bytes(false), Some(usize::MAX));
        // It has no time any more.
        share.begin(Class::Foreground, true);
        assert_eq!(share.next_bytes(false), None);
        assert!(share.set_patient(false) && !share.set_patient(false));
        assert_eq!(share.next_bytes(false), Some(LEAST_BYTES));
    }

    #[test]
    fn the_background_is_overtaken_so_often_and_no_more() {
        let mut share = Share::default();
        for _ in 0..3 {
            for _ in 0..OVERTAKEN {
                assert_eq!(share.next_bytes(true), None);
                share.begin(Class::Foreground, true);
            }
            assert_eq!(share.next_bytes(true), Some(LEAST_BYTES));
            share.begin(Class::Collection, true);
        }
        share.begin(Class::Promotion, true);
        (0..OVERTAKEN).for_each(|_| share.begin(Class::Foreground, true));
        assert_eq!(share.next_bytes(true), None, "its least is in flight");
        // None was overtaken while nothing of the background waited.
        let mut share = Share::default();
        (0..99).for_each(|_| share.begin(Class::Foreground, false));
        assert_eq!(share.next_bytes(true), None);
    }
}
