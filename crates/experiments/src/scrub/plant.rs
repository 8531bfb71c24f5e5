//! The device, the thread that scrubs, and time.

use std::collections::BTreeMap;

use base::{Duration, Instant};

use crate::tags::device::{Device, Kind};

/// The number of bytes that are looked up at once.
pub(super) const STRIPE: u64 = 64 << 10;
/// The time to verify a stripe.
pub(super) const VERIFY: Duration = Duration::from_micros(6);
/// The time from the end of a read until a thread that slept runs.
pub(super) const WAKING: Duration = Duration::from_micros(20);
/// Points of a curve.
const POINTS: u64 = 100;

/// Returns the time that the thread takes to look up a stripe and submit it.
pub(super) fn look_up(cursor: bool) -> Duration {
    let tree = if cursor { Duration::ZERO } else { TREE };
    Duration::from_micros(22) + tree
}

/// Stripes of so many bytes.
pub(super) fn stripes(bytes: u64) -> u32 {
    bytes.div_ceil(STRIPE) as u32
}

/// A search in the tree of checksums.
const TREE: Duration = Duration::from_micros(9);

/// As [`look_up`], for ours.
pub(super) fn look_up_of_ours(cursor: bool) -> Duration {
    Duration::from_micros(1) + if cursor { Duration::ZERO } else { look_up(false) }
}

/// A read of the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    pub offset: u64,
    pub len: u64,
}

/// The next step of the thread.
pub(super) enum Step {
    /// The thread works for this time, and then asks for this read.
    Ask(Duration, Read),
    /// The thread works for this time.
    Work(Duration),
    /// The thread sleeps until a read ends.
    Sleep,
}

/// A policy.
pub(super) trait ScrubPolicy {
    /// Returns the next step of the thread. Of the `bytes` of the scrub, `next` is the first one
    /// that was not asked for.
    fn step(&mut self, next: u64, bytes: u64) -> Step;
    /// The thread has asked for this.
    fn ask(&mut self, now: Instant, read: Read);
    /// A read that is to go to the device.
    fn next(&mut self, now: Instant) -> Option<Read>;
    /// The device has done a read.
    fn done(&mut self, now: Instant, read: Read);
    /// Bytes that were verified.
    fn verified(&self) -> u64;
}

/// The counters of a scrub.
#[derive(Clone, PartialEq, Default, Debug)]
pub(super) struct ScrubCounts {
    pub bytes: u64,
    pub took: Duration,
    /// Reads of the device, and the sum of their times.
    pub reads: u64,
    pub busy: Duration,
    /// GiB that were verified, by second.
    pub progress: Vec<(f64, f64)>,
}

pub(super) struct ScrubPlant<P> {
    now: Instant,
    device: Device,
    policy: P,
    bytes: u64,
    next: u64,
    /// When the thread goes on, and what it asks for then; `None`: it sleeps.
    awake: Option<(Instant, Option<Read>)>,
    in_flight: BTreeMap<u64, (Instant, Read)>,
    counts: ScrubCounts,
}

impl<P: ScrubPolicy> ScrubPlant<P> {
    pub fn new(kind: Kind, bytes: u64, policy: P) -> ScrubPlant<P> {
        ScrubPlant {
            now: Instant(0),
            device: kind.device(),
            policy,
            bytes,
            next: 0,
            awake: Some((Instant(0), None)),
            in_flight: BTreeMap::new(),
            counts: ScrubCounts { bytes, progress: vec![(0.0, 0.0)], ..ScrubCounts::default() },
        }
    }

    /// To the end of the scrub.
    pub fn run(mut self) -> ScrubCounts {
        let mut done = Vec::new();
        while self.policy.verified() < self.bytes {
            self.act();
            let thread = self.awake.as_ref().map(|(at, _)| *at);
            let Some(next) = thread.into_iter().chain(self.device.next_at()).min() else { break };
            self.now = self.now.max(next);
            self.device.take_done(self.now, &mut done);
            for id in done.drain(..) {
                self.ended(id);
            }
        }
        self.counts.took = self.now.since(Instant(0));
        self.note(true);
        self.counts
    }

    /// Lets the thread take all steps that are due now.
    fn act(&mut self) {
        while let Some((at, ask)) = self.awake.take_if(|(at, _)| *at <= self.now) {
            debug_assert!(at <= self.now);
            if let Some(read) = ask {
                self.policy.ask(self.now, read);
                self.submit();
            }
            self.awake = match self.policy.step(self.next, self.bytes) {
                Step::Ask(takes, read) => {
                    self.next = read.offset + read.len;
                    Some((self.now.after(takes), Some(read)))
                }
                Step::Work(takes) => Some((self.now.after(takes), None)),
                Step::Sleep => None,
            };
            if self.awake.is_none() {
                break;
            }
        }
        self.note(false);
    }

    fn submit(&mut self) {
        while let Some(read) = self.policy.next(self.now) {
            let id = self.counts.reads;
            self.counts.reads += 1;
            self.in_flight.insert(id, (self.now, read));
            self.device.submit(self.now, id, read.offset, read.len as usize);
        }
    }

    fn ended(&mut self, id: u64) {
        let Some((since, read)) = self.in_flight.remove(&id) else { return };
        self.counts.busy += self.now.since(since);
        self.policy.done(self.now, read);
        self.submit();
        if self.awake.is_none() {
            self.awake = Some((self.now.after(WAKING), None));
        }
    }

    /// A point of the curve, if it is time for one.
    fn note(&mut self, last: bool) {
        let verified = self.policy.verified();
        let due = self.counts.progress.len() as u64 * self.bytes / POINTS;
        if last || verified >= due && verified < self.bytes {
            let second = self.now.since(Instant(0)).as_secs_f64();
            self.counts.progress.push((second, verified as f64 / (1u64 << 30) as f64));
        }
    }
}
