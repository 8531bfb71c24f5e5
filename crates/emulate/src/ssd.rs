//! An SSD on a SATA link.
//!
//! 32 requests are worked on at a time, further ones wait in their order. A request first takes its
//! share of the link, which moves 500 MB/s and serves one after the other, then its latency: 80
//! microseconds for a read, 30 for a write (into a buffer), 1 ms for a flush, 1.03 ms for a durable
//! write. A flush moves no data and waits for the writes before it.
//!
//! Left out: garbage collection and everything else that makes writes slower after a while,
//! endurance, dependence on addresses.

use std::collections::BTreeSet;

use base::{Duration, Instant};

use crate::request::{Access, Ticket};

pub(super) const PARALLEL: usize = 32;
pub(super) const BYTES_A_SECOND: u64 = 500_000_000;
pub(super) const READ: Duration = Duration::from_micros(80);
pub(super) const WRITE: Duration = Duration::from_micros(30);
pub(super) const FLUSH: Duration = Duration::from_millis(1);

pub(super) struct Ssd {
    /// When each of the places for requests is free.
    places: [Instant; PARALLEL],
    link_free: Instant,
    /// When all writes so far are done.
    written: Instant,
    pending: BTreeSet<(Instant, Ticket)>,
}

impl Ssd {
    pub(super) fn new() -> Ssd {
        let start = Instant(0);
        Ssd {
            places: [start; PARALLEL],
            link_free: start,
            written: start,
            pending: BTreeSet::new(),
        }
    }

    pub(super) fn submit(&mut self, now: Instant, ticket: Ticket, access: Access, len: usize) {
        let first = (1..PARALLEL)
            .fold(0, |best, i| if self.places[i] < self.places[best] { i } else { best });
        let start = now.max(self.places[first]);
        let done = match access {
            Access::Flush => start.max(self.written).after(FLUSH),
            Access::Read => self.moved(start, len).after(READ),
            Access::Write => self.moved(start, len).after(WRITE),
            Access::DurableWrite => self.moved(start, len).after(WRITE + FLUSH),
        };
        if matches!(access, Access::Write | Access::DurableWrite) {
            self.written = self.written.max(done);
        }
        self.places[first] = done;
        self.pending.insert((done, ticket));
    }

    /// When the link has moved `len` bytes that it is given at `start`.
    fn moved(&mut self, start: Instant, len: usize) -> Instant {
        let ns = (len as u64).saturating_mul(1_000_000_000).div_ceil(BYTES_A_SECOND);
        self.link_free = start.max(self.link_free).after(Duration::from_nanos(ns));
        self.link_free
    }

    pub(super) fn next_at(&self) -> Option<Instant> {
        self.pending.first().map(|(at, _)| *at)
    }

    pub(super) fn take_done(&mut self, now: Instant, done: &mut Vec<Ticket>) {
        while let Some(&(at, ticket)) = self.pending.first().filter(|(at, _)| *at <= now) {
            self.pending.remove(&(at, ticket));
            done.push(ticket);
        }
    }
}
