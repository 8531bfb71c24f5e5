//! Clients beside a scrub: a device, requests of 4 KiB that come at times of their own, a scrub.

use std::collections::BTreeMap;

use base::{BLOCK_U64, Duration, Instant, Prng};
use emulate::{Access, Emulate, Emulation};
use queue::{Class, Limits, Request, Scheduler, ScrubReads, Ticket};
use rt::DeviceKind;

/// The devices, their names, and bytes: a disk of which a part is used, one that is full, an SSD.
pub(super) const DEVICES: [(Emulate, &str, u64); 3] = [
    (Emulate::Hdd, "disk of 4 TB", 4_000_000_000_000),
    (Emulate::Hdd, "disk of 2 GiB", 2 << 30),
    (Emulate::Ssd, "SSD", 1 << 40),
];

/// The clients' requests of each device are all over so many bytes; the scrub reads what follows.
const CLIENTS_BYTES: u64 = 1 << 30;
/// Of ten requests of clients so many are reads.
const READS: u64 = 7;
/// Bytes of a read of a scrub that knows no other requests, and such reads in flight.
const LARGE: u64 = 1 << 20;
const MANY: usize = 8;
/// Requests in flight of clients that show what the device can do.
const DEPTH: usize = 4;

/// The way in which requests come to the device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Queueing {
    /// At once, all of them.
    None,
    /// As the scheduler of the crate `queue` says.
    Scheduled,
}

/// The clients beside the scrub.
#[derive(Clone, Copy)]
pub(super) enum Clients {
    None,
    /// As many requests at a time as show what the device can do.
    Closed,
    /// Requests at random times, at this mean rate a second.
    Open(f64),
}

/// The measurements of a run.
#[derive(Clone, Debug)]
pub(super) struct ScrubMeasurements {
    /// The times of clients' requests, from the shortest on.
    pub times: Vec<Duration>,
    /// Bytes that the scrub has read.
    pub scrubbed: u64,
    pub took: Duration,
}

impl ScrubMeasurements {
    /// The time of the request that so many of a thousand are faster than.
    pub fn per_mille(&self, n: usize) -> Duration {
        let at = self.times.len() * n / 1000;
        self.times.get(at).or(self.times.last()).copied().unwrap_or(Duration::ZERO)
    }

    /// Requests of clients a second.
    pub fn rate(&self) -> f64 {
        self.times.len() as f64 / self.took.as_secs_f64()
    }

    /// MB/s of the scrub.
    pub fn speed(&self) -> f64 {
        self.scrubbed as f64 / self.took.as_secs_f64() / 1e6
    }
}

/// A request at the device: its ticket at the scheduler, and the parts that it is made of.
struct Flight {
    ticket: Option<Ticket>,
    parts: Vec<(Class, Instant, u64)>,
}

pub(super) struct Bench {
    now: Instant,
    model: Emulation,
    /// `None`: all goes to the device at once.
    scheduler: Option<Scheduler<()>>,
    clients: Clients,
    rng: Prng,
    /// The next request of a client.
    due: Option<Instant>,
    /// Bytes of the scrub that are asked for, and where the next read is; `None`: there is none.
    scrub: Option<(u64, u64)>,
    /// Bytes of the device, and of a read of a scrub by the scheduler.
    bytes: u64,
    piece: u64,
    flights: BTreeMap<emulate::Ticket, Flight>,
    seen: ScrubMeasurements,
}

impl Bench {
    pub fn new(
        what: Emulate,
        bytes: u64,
        queueing: Queueing,
        clients: Clients,
        scrubs: bool,
    ) -> Bench {
        let kind = match what {
            Emulate::Hdd => DeviceKind::Rotating,
            Emulate::Ssd => DeviceKind::Ssd,
        };
        let scheduled = queueing == Queueing::Scheduled;
        let seen = ScrubMeasurements { times: Vec::new(), scrubbed: 0, took: Duration::ZERO };
        Bench {
            now: Instant(0),
            model: Emulation::new(what, bytes),
            scheduler: scheduled.then(|| Scheduler::new(Limits::default(), kind)),
            clients,
            rng: Prng::new(16),
            due: None,
            scrub: scrubs.then_some((0, CLIENTS_BYTES)),
            bytes,
            piece: ScrubReads::of(kind).bytes as u64,
            flights: BTreeMap::new(),
            seen,
        }
    }

    pub fn run(mut self, time: Duration) -> ScrubMeasurements {
        let end = Instant(0).after(time);
        match self.clients {
            Clients::None => {}
            Clients::Closed => (0..DEPTH).for_each(|_| self.client()),
            Clients::Open(rate) => self.due = Some(self.later(rate)),
        }
        let mut done = Vec::new();
        loop {
            self.ask();
            self.submit();
            let Some(next) = self.due.into_iter().chain(self.model.next_at()).min() else { break };
            if next > end {
                break;
            }
            self.now = self.now.max(next);
            if let (Some(_), Clients::Open(rate)) =
                (self.due.take_if(|due| *due <= self.now), self.clients)
            {
                self.client();
                self.due = Some(self.later(rate));
            }
            self.model.take_done(self.now, &mut done);
            done.drain(..).for_each(|ticket| self.ended(ticket));
        }
        self.seen.took = time;
        self.seen.times.sort_unstable();
        self.seen
    }

    /// When the next request comes of those that come at random.
    fn later(&mut self, rate: f64) -> Instant {
        let share = (self.rng.below(1 << 32) + 1) as f64 / (1u64 << 32) as f64;
        self.now.after(Duration::from_nanos((-share.ln() / rate * 1e9) as u64))
    }

    fn client(&mut self) {
        let offset = self.rng.below(CLIENTS_BYTES / BLOCK_U64) * BLOCK_U64;
        let write = self.rng.below(10) >= READS;
        self.add(Class::Foreground, write, offset, BLOCK_U64);
    }

    /// The scrub asks for what it may have under way.
    fn ask(&mut self) {
        let (len, most) = match self.scheduler {
            None => (LARGE, MANY as u64 * LARGE),
            Some(_) => (self.piece, pool::SCRUB_WINDOW_BYTES),
        };
        while let Some((asked, at)) = self.scrub.filter(|(asked, _)| asked + len <= most) {
            let next = if at + 2 * len > self.bytes { CLIENTS_BYTES } else { at + len };
            self.scrub = Some((asked + len, next));
            self.add(Class::Scrub, false, at, len);
        }
    }

    fn add(&mut self, class: Class, write: bool, offset: u64, len: u64) {
        let since = self.now;
        match &mut self.scheduler {
            None => {
                let access = if write { Access::Write } else { Access::Read };
                let ticket = self.model.submit(self.now, access, offset, len as usize);
                let parts = vec![(class, since, len)];
                self.flights.insert(ticket, Flight { ticket: None, parts });
            }
            Some(scheduler) => scheduler.add(Request {
                class,
                write,
                durable: false,
                offset,
                len: len as usize,
                segments: 1,
                since,
                alone: false,
                more: 0,
                work: (),
            }),
        }
    }

    fn submit(&mut self) {
        let Some(scheduler) = &mut self.scheduler else { return };
        while let Some((ticket, run)) = scheduler.next(self.now) {
            let access = if run.first().write { Access::Write } else { Access::Read };
            let id = self.model.submit(self.now, access, run.first().offset, run.bytes());
            let parts = run.parts().iter().map(|p| (p.class, p.since, p.len as u64)).collect();
            self.flights.insert(id, Flight { ticket: Some(ticket), parts });
        }
    }

    fn ended(&mut self, id: emulate::Ticket) {
        let Some(flight) = self.flights.remove(&id) else { return };
        if let (Some(scheduler), Some(ticket)) = (&mut self.scheduler, flight.ticket) {
            scheduler.end(self.now, ticket);
        }
        for (class, since, len) in flight.parts {
            if class == Class::Scrub {
                self.seen.scrubbed += len;
                self.scrub = self.scrub.map(|(asked, at)| (asked - len, at));
                continue;
            }
            self.seen.times.push(self.now.since(since));
            if matches!(self.clients, Clients::Closed) {
                self.client();
            }
        }
    }
}
