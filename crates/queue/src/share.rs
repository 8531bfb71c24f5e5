//! The requests that the background may have in flight on a device: a pure rule, without time.
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
//! The owner of the device may say that the background has time. Then it has one request in flight,
//! and while others are, that one begins after [`OVERTAKEN`] of them have. So it costs them a ninth
//! of the device, however fast that is, and moves on in each gap that they leave.
//!
//! A scrub always has time, where nothing else of the background waits. What its requests are like
//! depends on what a request costs a device of this kind ([`ScrubReads`]). Where no other is there
//! it has as much in flight as a quarter ([`IN_FLIGHT`]) of what it has read since the last of
//! them, and so all of the device after a moment. A client that comes then waits for a quarter of
//! the time at most that no other came.
//!
//! The least is never taken away, as clients may wait for room that only the background makes: of
//! requests that wait for the device, one of the background goes after [`OVERTAKEN`] others, and
//! one of a scrub after [`ScrubReads::after`].

use rt::DeviceKind;

use crate::stats::Class;

/// Requests of the background in flight while others are.
pub(crate) const LEAST: u32 = 4;
/// Bytes of each of them, unless a single one is larger.
pub(crate) const LEAST_BYTES: usize = 128 << 10;
/// The device is quiet after so many requests of the background, with no other.
pub(crate) const QUIET: u32 = 16;
/// The number of other requests that may begin while one of the background waits and may go.
pub(crate) const OVERTAKEN: u32 = 8;
/// On a rotating device, so many requests of the background may begin until one of the others ends.
pub(crate) const CREDIT: u32 = 4;
/// A scrub that is alone has this share in flight of the bytes that it has read alone.
pub(crate) const IN_FLIGHT: usize = 4;

/// The way in which a scrub reads a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScrubReads {
    /// Bytes of a request beside others, or in a gap that they leave.
    pub bytes: usize,
    /// Such requests in flight at the begin of a gap.
    pub in_gap: usize,
    /// While others are in flight, a request begins after so many of them have.
    pub after: u32,
}

impl ScrubReads {
    /// On a device of this kind. A rotating one takes as long to come to the place as to read a MiB
    /// or two there, so requests are large and rare. On others a client's request waits for as long
    /// as the link moves the scrub's bytes, so they are small; on a virtual device, which takes
    /// longer for each request, they are larger. The figures are those with which P99 of clients is
    /// lowest for the speed of the scrub, in models and on a virtual disk
    /// (`docs/decisions/0044-a-scrubs-turn.md`).
    pub fn of(kind: DeviceKind) -> ScrubReads {
        match kind {
            DeviceKind::Rotating => ScrubReads { bytes: 1 << 20, in_gap: 2, after: 32 },
            DeviceKind::Ssd | DeviceKind::Nvme => {
                ScrubReads { bytes: 32 << 10, in_gap: 1, after: 8 }
            }
            DeviceKind::Unknown | DeviceKind::Memory => {
                ScrubReads { bytes: 64 << 10, in_gap: 1, after: 16 }
            }
        }
    }
}

pub(crate) struct Share {
    /// Requests of the background that may be in flight on a quiet device when nothing is late.
    full: u32,
    /// The largest of them then.
    full_bytes: usize,
    /// The value that `credit` begins with, and has again whenever one of the others has ended.
    credits: u32,
    scrub: ScrubReads,
    /// The background has time.
    patient: bool,
    /// Requests in flight of other classes.
    urgent: u32,
    background: u32,
    /// Requests of the background that may begin before one of the others ends.
    credit: u32,
    /// Bytes of the background in flight.
    bytes: usize,
    /// Requests of the background that have ended since one of the others was in flight, and their
    /// bytes.
    alone: u32,
    alone_bytes: usize,
    /// Other requests that have begun since one of the background did.
    overtaken: u32,
}

impl Share {
    /// On a device of this kind with so many tags.
    pub fn new(depth: usize, kind: DeviceKind) -> Share {
        let rotating = kind == DeviceKind::Rotating;
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        // If a request takes milliseconds, the next read finds a tag that is free, and few bytes
        // before it.
        let (full, full_bytes, credits) = if rotating {
            (depth - depth / 4, LEAST_BYTES, CREDIT)
        } else {
            (depth, usize::MAX, u32::MAX)
        };
        Share {
            full: full.max(LEAST),
            full_bytes,
            credits,
            scrub: ScrubReads::of(kind),
            patient: false,
            urgent: 0,
            background: 0,
            credit: credits,
            bytes: 0,
            alone: 0,
            alone_bytes: 0,
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

    /// The size that the next request of the background may have, in bytes, when `others` wait or
    /// not, and it may have `most` requests in flight; `None`: it is not its turn. `scrub`: all of
    /// it that waits is of a scrub.
    pub fn next_bytes(&self, others: bool, most: u32, scrub: bool) -> Option<usize> {
        let (after, bytes) = match scrub {
            true => (self.scrub.after, self.scrub.bytes),
            false => (OVERTAKEN, LEAST_BYTES),
        };
        let overtaken = self.overtaken >= after;
        if others && !overtaken {
            return None;
        }
        if !others && self.urgent == 0 && scrub {
            let in_flight = (bytes * self.scrub.in_gap).max(self.alone_bytes / IN_FLIGHT);
            // Several, so that the device always has one.
            let bytes = bytes.max(in_flight / IN_FLIGHT);
            let fits = self.background < most && self.bytes + bytes <= in_flight;
            return fits.then_some(bytes);
        }
        if !others && self.urgent == 0 && self.alone >= QUIET {
            let bytes = if most >= self.full { self.full_bytes } else { bytes };
            return (self.background < most).then_some(bytes);
        }
        if self.urgent > 0 && self.credit == 0 {
            return None;
        }
        let most = match (self.patient || scrub, self.urgent > 0 && !overtaken) {
            (true, true) => 0,
            (true, false) => 1,
            (false, _) => LEAST,
        };
        (self.background < most).then_some(bytes)
    }

    /// A request of so many bytes begins; background requests wait or not.
    pub fn begin(&mut self, class: Class, bytes: usize, background_waits: bool) {
        if class.is_background() {
            self.background += 1;
            self.bytes += bytes;
            self.overtaken = 0;
            if self.urgent > 0 {
                self.credit = self.credit.saturating_sub(1);
            }
            return;
        }
        self.urgent += 1;
        (self.alone, self.alone_bytes) = (0, 0);
        self.overtaken = if background_waits { self.overtaken.saturating_add(1) } else { 0 };
    }

    /// A request of so many bytes has ended.
    pub fn end(&mut self, class: Class, bytes: usize) {
        if class.is_background() {
            self.background -= 1;
            self.bytes -= bytes;
            if self.urgent == 0 {
                self.alone = (self.alone + 1).min(QUIET);
                self.alone_bytes = self.alone_bytes.saturating_add(bytes);
            }
        } else {
            self.urgent -= 1;
            self.credit = self.credits;
        }
    }
}

#[cfg(test)]
mod tests {
    use base::BLOCK;

    use super::*;

    #[test]
    fn the_background_has_its_least_beside_others_and_all_of_a_quiet_device() {
        let mut share = Share::new(128, DeviceKind::Nvme);
        share.begin(Class::Foreground, LEAST_BYTES, true);
        for _ in 0..LEAST {
            assert_eq!(share.next_bytes(false, 128, false), Some(LEAST_BYTES));
            share.begin(Class::WriteBack, LEAST_BYTES, true);
        }
        assert_eq!(share.next_bytes(false, 128, false), None);
        share.end(Class::Foreground, LEAST_BYTES);
        assert_eq!(share.next_bytes(false, 128, false), None, "it is not quiet yet");
        for _ in 0..QUIET {
            share.end(Class::WriteBack, LEAST_BYTES);
            assert_eq!(
                share.next_bytes(false, 128, false),
                if share.alone < QUIET { Some(LEAST_BYTES) } else { Some(usize::MAX) }
            );
            share.begin(Class::WriteBack, LEAST_BYTES, true);
        }
        share.begin(Class::Commit, LEAST_BYTES, true);
        assert_eq!(share.next_bytes(false, 128, false), None);
    }

    #[test]
    fn a_background_that_has_time_has_one_request_after_so_many_others() {
        let mut share = Share::new(128, DeviceKind::Nvme);
        assert!(!share.set_patient(true));
        for _ in 0..3 {
            for _ in 0..OVERTAKEN {
                share.begin(Class::Foreground, LEAST_BYTES, true);
                assert_eq!(
                    share.next_bytes(false, 128, false).is_some(),
                    share.overtaken == OVERTAKEN
                );
            }
            share.begin(Class::WriteBack, LEAST_BYTES, true);
            assert_eq!(share.next_bytes(false, 128, false), None);
            share.end(Class::WriteBack, LEAST_BYTES);
        }
        // No other is there: it need not wait for them, and has the device in the end.
        (0..3 * OVERTAKEN).for_each(|_| share.end(Class::Foreground, LEAST_BYTES));
        for _ in 0..QUIET {
            assert_eq!(share.next_bytes(false, 128, false), Some(LEAST_BYTES));
            share.begin(Class::WriteBack, LEAST_BYTES, true);
            assert_eq!(share.next_bytes(false, 128, false), None);
            share.end(Class::WriteBack, LEAST_BYTES);
        }
        assert_eq!(share.next_bytes(false, 128, false), Some(usize::MAX));
        // It has no time any more.
        share.begin(Class::Foreground, LEAST_BYTES, true);
        assert_eq!(share.next_bytes(false, 128, false), None);
        assert!(share.set_patient(false) && !share.set_patient(false));
        assert_eq!(share.next_bytes(false, 128, false), Some(LEAST_BYTES));
    }

    #[test]
    fn a_scrub_has_time_where_other_work_of_the_background_has_none() {
        for kind in DeviceKind::ALL {
            let (mut share, of) = (Share::new(32, kind), ScrubReads::of(kind));
            let client = |share: &mut Share| share.begin(Class::Foreground, BLOCK, true);
            client(&mut share);
            assert_eq!(share.next_bytes(false, 24, false), Some(LEAST_BYTES));
            for _ in 1..of.after {
                assert_eq!(share.next_bytes(false, 24, true), None);
                client(&mut share);
            }
            assert_eq!(share.next_bytes(true, 24, true), Some(of.bytes));
            share.begin(Class::Scrub, of.bytes, true);
            assert_eq!(share.next_bytes(true, 24, true), None, "one is in flight");
            (0..of.after).for_each(|_| share.end(Class::Foreground, BLOCK));
            share.end(Class::Scrub, of.bytes);
            for _ in 0..of.in_gap {
                assert_eq!(share.next_bytes(false, 24, true), Some(of.bytes), "there is a gap");
                share.begin(Class::Scrub, of.bytes, true);
            }
            assert_eq!(share.next_bytes(false, 24, true), None);
        }
    }

    #[test]
    fn what_a_scrub_has_in_flight_follows_what_it_has_read_alone() {
        for kind in DeviceKind::ALL {
            let (mut share, of) = (Share::new(32, kind), ScrubReads::of(kind));
            let (mut read, mut in_flight) = (0, std::collections::VecDeque::new());
            while read < 64 * of.bytes {
                while let Some(bytes) = share.next_bytes(false, 24, true) {
                    assert!(bytes >= of.bytes);
                    share.begin(Class::Scrub, bytes, true);
                    in_flight.push_back(bytes);
                }
                let sum: usize = in_flight.iter().sum();
                let most = (of.bytes * of.in_gap).max(read / IN_FLIGHT);
                let next = of.bytes.max(most / IN_FLIGHT);
                assert!(sum <= most && sum + next > most, "{kind:?}: {sum} of {most}");
                let ended = in_flight.pop_front().expect("one is in flight");
                share.end(Class::Scrub, ended);
                read += ended;
            }
            // A client comes and goes: it begins anew.
            share.begin(Class::Foreground, BLOCK, true);
            in_flight.drain(..).for_each(|bytes| share.end(Class::Scrub, bytes));
            share.end(Class::Foreground, BLOCK);
            for _ in 0..of.in_gap {
                assert_eq!(share.next_bytes(false, 24, true), Some(of.bytes));
                share.begin(Class::Scrub, of.bytes, true);
            }
            assert_eq!(share.next_bytes(false, 24, true), None);
        }
    }

    #[test]
    fn the_background_is_overtaken_so_often_and_no_more() {
        let mut share = Share::new(128, DeviceKind::Nvme);
        for _ in 0..3 {
            for _ in 0..OVERTAKEN {
                assert_eq!(share.next_bytes(true, 128, false), None);
                share.begin(Class::Foreground, LEAST_BYTES, true);
            }
            assert_eq!(share.next_bytes(true, 128, false), Some(LEAST_BYTES));
            share.begin(Class::Collection, LEAST_BYTES, true);
        }
        share.begin(Class::Promotion, LEAST_BYTES, true);
        (0..OVERTAKEN).for_each(|_| share.begin(Class::Foreground, LEAST_BYTES, true));
        assert_eq!(share.next_bytes(true, 128, false), None, "its least is in flight");
        // None was overtaken while nothing of the background waited.
        let mut share = Share::new(128, DeviceKind::Nvme);
        (0..99).for_each(|_| share.begin(Class::Foreground, LEAST_BYTES, false));
        assert_eq!(share.next_bytes(true, 128, false), None);
    }

    #[test]
    fn on_a_rotating_device_the_background_pauses_until_another_request_ends() {
        let mut share = Share::new(32, DeviceKind::Rotating);
        share.begin(Class::Foreground, LEAST_BYTES, true);
        for _ in 0..CREDIT {
            assert_eq!(share.next_bytes(false, 24, false), Some(LEAST_BYTES));
            share.begin(Class::WriteBack, LEAST_BYTES, true);
            share.end(Class::WriteBack, LEAST_BYTES);
        }
        assert_eq!(
            share.next_bytes(false, 24, false),
            None,
            "none is in flight, but its credit is spent"
        );
        share.begin(Class::Foreground, LEAST_BYTES, true);
        share.end(Class::Foreground, LEAST_BYTES);
        assert_eq!(share.next_bytes(false, 24, false), Some(LEAST_BYTES));
    }

    #[test]
    fn on_a_quiet_device_the_background_has_its_most() {
        for (kind, full, bytes) in
            [(DeviceKind::Nvme, 32, usize::MAX), (DeviceKind::Rotating, 24, LEAST_BYTES)]
        {
            let mut share = Share::new(32, kind);
            assert_eq!(share.full(), full);
            for _ in 0..QUIET {
                share.begin(Class::WriteBack, LEAST_BYTES, true);
                share.end(Class::WriteBack, LEAST_BYTES);
            }
            assert_eq!(share.next_bytes(false, full, false), Some(bytes));
            (0..9).for_each(|_| share.begin(Class::WriteBack, LEAST_BYTES, true));
            assert_eq!(share.next_bytes(false, 10, false), Some(LEAST_BYTES));
            assert_eq!(share.next_bytes(false, 9, false), None);
        }
    }
}
