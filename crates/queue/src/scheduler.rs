//! The scheduler of one device: requests come in, decisions which go to the device come out. It
//! does no I/O, and time is passed in.
//!
//! Two lines wait for a device. In one are the foreground and the journal and commits, as clients
//! wait for both: on a device that does not rotate they go in one order of arrival. In the other is
//! the background. [`crate::share`] says when the background has a turn, [`crate::feedback`] how
//! much it may have, [`crate::write_gate`] which writes a rotating device has beside reads,
//! [`crate::tags`] when a free tag is handed over, [`crate::line`] which request of a line goes
//! first.
//!
//! No class starves. The lines have an order in which each request comes to its turn, one of nine
//! turns is the background's if it waits (of a scrub that is alone there, see `share.rs`), and all
//! classes of the background are in one line.

use base::{ByteRange, Instant};
use rt::DeviceKind;

use crate::feedback::{Feedback, Pace};
use crate::limits::{Limits, Targets};
use crate::line::Line;
use crate::request::{MergedRequest, Request, RunLimits};
use crate::share::{LEAST, Share};
use crate::stats::{Class, DeviceStats};
use crate::tags::Tags;
use crate::write_gate::{WriteAllowance, WriteGate};

/// Requests to a file in memory are merged up to this size.
const MEMORY_REQUEST_BYTES: usize = 128 << 10;
/// The number of bytes of a file in memory that are copied before they are used. More would push
/// them out of the processor's cache again.
const MEMORY_BYTES: usize = 256 << 10;
/// Requests in flight on a rotating device: as many as such disks choose from.
const ROTATING_DEPTH: usize = 32;
/// Reads of a rotating device with up to so many bytes between them become one: it takes no longer
/// to read these bytes than to let them pass.
const READ_GAP: u64 = 64 << 10;

/// A request to the device that is in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket(u32);

/// A request that is in flight by a ticket.
struct Flight {
    class: Class,
    write: bool,
    /// The bytes on the device that the request moves.
    place: ByteRange,
    /// When the oldest of its requests came, and when it began.
    since: Instant,
    began: Instant,
    bytes: usize,
    requests: u32,
}

/// The scheduler of one device. The work of a request is not looked at.
pub struct Scheduler<W> {
    limits: RunLimits,
    /// Bytes in flight from which on no further request starts.
    max_bytes: usize,
    targets: Targets,
    kind: DeviceKind,
    urgent: Line<W>,
    background: Line<W>,
    share: Share,
    gate: WriteGate,
    feedback: Feedback,
    tags: Tags,
    /// By ticket.
    flights: Vec<Option<Flight>>,
    free: Vec<u32>,
    bytes_in_flight: usize,
    by_class: [usize; Class::ALL.len()],
    /// Requests of the background that wait and are not of a scrub.
    hurried: usize,
    /// When a request of the background was in flight last.
    background_at: Option<Instant>,
    stats: DeviceStats,
}

impl<W> Scheduler<W> {
    /// Of a device of this kind.
    pub fn new(limits: Limits, kind: DeviceKind) -> Scheduler<W> {
        assert!(limits.depth > 0 && limits.max_segments > 0);
        let (rotating, memory) = (kind == DeviceKind::Rotating, kind == DeviceKind::Memory);
        let depth = if rotating { limits.depth.min(ROTATING_DEPTH) } else { limits.depth };
        let most_bytes = if memory { MEMORY_REQUEST_BYTES } else { usize::MAX };
        let share = Share::new(depth, kind);
        Scheduler {
            limits: RunLimits {
                bytes: limits.max_request_bytes.min(most_bytes),
                segments: limits.max_segments,
                gap: if rotating { READ_GAP } else { 0 },
            },
            max_bytes: if memory { MEMORY_BYTES } else { usize::MAX },
            targets: Targets::default().or_of_kind(kind),
            kind,
            urgent: Line::new(rotating),
            background: Line::new(rotating),
            feedback: Feedback::new(LEAST, share.full()),
            share,
            gate: WriteGate::new(rotating),
            tags: Tags::new(depth, rotating),
            flights: Vec::new(),
            free: Vec::new(),
            bytes_in_flight: 0,
            by_class: [0; Class::ALL.len()],
            hurried: 0,
            background_at: None,
            stats: DeviceStats::default(),
        }
    }

    /// From now on foreground requests should take so long at most.
    pub fn set_targets(&mut self, targets: Targets) {
        self.targets = targets.or_of_kind(self.kind);
    }

    /// The background has time, or not. True if it may go on faster than before.
    pub fn set_background_patient(&mut self, patient: bool) -> bool {
        self.share.set_patient(patient)
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.urgent.len() + self.background.len()
    }

    /// Requests to the device in flight.
    pub fn in_flight(&self) -> usize {
        self.tags.taken()
    }

    /// When the oldest of the requests in flight went to the device.
    pub fn oldest(&self) -> Option<Instant> {
        self.flights.iter().flatten().map(|flight| flight.began).min()
    }

    /// The class that has most bytes in flight.
    pub fn busiest(&self) -> Option<Class> {
        let most = Class::ALL.into_iter().max_by_key(|c| self.by_class[c.index()]);
        most.filter(|c| self.by_class[c.index()] > 0)
    }

    /// The counters.
    pub fn stats(&self) -> DeviceStats {
        let mut stats = self.stats.clone();
        stats.background_most = self.feedback.most();
        (stats.waiting, stats.background_waiting) = (self.urgent.len(), self.background.len());
        for flight in self.flights.iter().flatten() {
            stats.of_mut(flight.class).in_flight += flight.requests as usize;
        }
        stats
    }

    /// To count what does not wait here.
    pub fn stats_mut(&mut self) -> &mut DeviceStats {
        &mut self.stats
    }

    fn line(&mut self, class: Class) -> &mut Line<W> {
        if class.is_background() { &mut self.background } else { &mut self.urgent }
    }

    /// A request waits from now on.
    pub fn add(&mut self, request: Request<W>) {
        self.hurried += usize::from(request.class.is_hurried());
        self.line(request.class).push(request);
    }

    /// A request of one that is in flight, which failed, is asked for again, before all others. The
    /// first is the last that was put back.
    pub fn add_again(&mut self, request: Request<W>) {
        self.hurried += usize::from(request.class.is_hurried());
        self.line(request.class).push_again(request);
    }

    /// Takes the requests that go to the device now, if there is room for them.
    pub fn next(&mut self, now: Instant) -> Option<(Ticket, MergedRequest<W>)> {
        let (begun, late) = (self.urgent.owes(), self.is_read_late(now));
        if self.bytes_in_flight >= self.max_bytes || !self.tags.may_take(begun) {
            return None;
        }
        let turn = if begun || !self.background.is_ready(WriteAllowance::ALL) {
            None
        } else {
            self.turn(now, late)
        };
        let run = match turn {
            Some(bytes) => {
                let limits = RunLimits { bytes: self.limits.bytes.min(bytes), ..self.limits };
                self.background.take(now, &limits, WriteAllowance::ALL)
            }
            None => self.urgent.take(now, &self.limits, self.gate.may_write(late)),
        }?;
        let ticket = self.begin(now, &run);
        Some((ticket, run))
    }

    /// The size that the next request of the background may have, in bytes; `None`: it is not its
    /// turn. While a read is `late`, it is as if others waited.
    fn turn(&mut self, now: Instant, late: bool) -> Option<usize> {
        let (flights, urgent, targets) = (&self.flights, &self.urgent, &self.targets);
        self.feedback.look(now, || {
            let pace = |class: Class, write: bool, since: Instant| match class {
                Class::Foreground => Pace::of(now.since(since), targets.of(write)),
                _ => Pace::InTime,
            };
            let flying = flights.iter().flatten().map(|f| pace(f.class, f.write, f.since));
            let waiting = urgent.oldest().map(|r| pace(r.class, r.write, r.since));
            flying.chain(waiting).max().unwrap_or(Pace::InTime)
        });
        let others = late || self.urgent.is_ready(self.gate.may_write(late));
        self.share.next_bytes(others, self.feedback.most(), self.hurried == 0)
    }

    /// True if the device is rotating, and has passed a read over that is not of the background:
    /// half of its target is behind it.
    fn is_read_late(&self, now: Instant) -> bool {
        let reads = self.flights.iter().flatten();
        let mut reads = reads.filter(|f| !f.write && !f.class.is_background());
        self.gate.minds_late_reads() && reads.any(|f| now.since(f.began) >= self.targets.read / 2)
    }

    fn begin(&mut self, now: Instant, run: &MergedRequest<W>) -> Ticket {
        let (first, parts) = (run.first(), run.parts());
        let (class, place) = (first.class, run.place());
        let (mut since, mut waited_ns, mut bytes) = (now, 0, 0);
        for part in parts {
            since = since.min(part.since);
            waited_ns += now.0.saturating_sub(part.since.0);
            bytes += part.len;
            self.hurried -= usize::from(part.class.is_hurried());
        }
        let counters = self.stats.of_mut(class);
        counters.merged += parts.len() as u64 - 1;
        counters.gap_bytes += (run.bytes() - bytes) as u64;
        counters.waited_ns += waited_ns;
        self.share.begin(class, run.bytes(), self.background.len() > 0);
        if !class.is_background() {
            self.gate.begin(first.write, run.bytes());
        }
        self.tags.take();
        self.bytes_in_flight += run.bytes();
        self.by_class[class.index()] += run.bytes();
        let flight = Flight {
            class,
            write: first.write,
            place,
            since,
            began: now,
            bytes: run.bytes(),
            requests: parts.len() as u32,
        };
        match self.free.pop() {
            Some(ticket) => {
                self.flights[ticket as usize] = Some(flight);
                Ticket(ticket)
            }
            None => {
                self.flights.push(Some(flight));
                Ticket(self.flights.len() as u32 - 1)
            }
        }
    }

    /// A request to the device has ended, well or not.
    pub fn end(&mut self, now: Instant, ticket: Ticket) {
        let Some(flight) = self.flights[ticket.0 as usize].take() else {
            unreachable!("a ticket ends once")
        };
        self.free.push(ticket.0);
        self.tags.give_back();
        self.bytes_in_flight -= flight.bytes;
        self.by_class[flight.class.index()] -= flight.bytes;
        let counters = self.stats.of_mut(flight.class);
        let took_ns = now.0.saturating_sub(flight.began.0);
        counters.in_service_ns += took_ns * u64::from(flight.requests);
        if flight.write {
            self.line(flight.class).write_ended(flight.place);
        }
        if flight.class.is_background() {
            self.background_at = Some(now);
        } else if flight.class == Class::Foreground {
            let pace = Pace::of(now.since(flight.since), self.targets.of(flight.write));
            self.stats.of_mut(flight.class).late += u64::from(pace >= Pace::Late);
            let met = self.share.background() > 0
                || self.background_at.is_some_and(|at| at >= flight.since);
            if met {
                self.feedback.ended(now, pace);
            }
        }
        self.share.end(flight.class, flight.bytes);
        if !flight.class.is_background() {
            self.gate.end(flight.write, flight.bytes);
        }
    }
}

#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
