//! Ours: runs and a window as the pool's scrub has them, and the scheduler of the crate `queue`.

use std::collections::{BTreeMap, VecDeque};

use base::{BLOCK_U64, Duration, Instant};
use queue::{Class, Limits, Request, Scheduler, ScrubReads, Ticket};

use super::plant::{Read, ScrubPolicy, Step, VERIFY, stripes};
use crate::tags::device::Kind;

/// Bytes of a run of neighbours, at most.
pub(super) fn run_bytes() -> u64 {
    u64::from(pool::SCRUB_RUN_BLOCKS) * BLOCK_U64
}

/// Bytes under way of each copy.
pub(super) fn window_bytes() -> u64 {
    pool::SCRUB_WINDOW_BYTES
}

pub(super) struct ForebayScrub {
    look_up: Duration,
    scheduler: Scheduler<u64>,
    /// Bytes of a read.
    piece: u64,
    /// Runs that are under way, and the bytes of each that are yet to be read.
    window: VecDeque<(Read, u64)>,
    bytes: u64,
    /// Requests to the device by offset, with the reads that each is made of.
    tickets: BTreeMap<u64, (Ticket, Vec<(u64, u64)>)>,
    verified: u64,
}

impl ForebayScrub {
    pub fn new(kind: Kind, look_up: Duration) -> ForebayScrub {
        ForebayScrub {
            look_up,
            scheduler: Scheduler::new(Limits::default(), kind.device_kind()),
            piece: ScrubReads::of(kind.device_kind()).bytes as u64,
            window: VecDeque::new(),
            bytes: 0,
            tickets: BTreeMap::new(),
            verified: 0,
        }
    }

    /// The oldest run, if it is read.
    fn take_read(&mut self) -> Option<Read> {
        self.window.front().is_some_and(|(_, left)| *left == 0).then_some(())?;
        let (read, _) = self.window.pop_front()?;
        Some(read)
    }
}

impl ScrubPolicy for ForebayScrub {
    fn step(&mut self, next: u64, bytes: u64) -> Step {
        let len = run_bytes().min(bytes - next);
        if len > 0 && (self.bytes == 0 || self.bytes + len <= window_bytes()) {
            // Before it is asked for: the thread has decided.
            self.bytes += len;
            let takes = self.look_up * stripes(len);
            return Step::Ask(takes, Read { offset: next, len });
        }
        match self.take_read() {
            Some(read) => {
                self.bytes -= read.len;
                self.verified += read.len;
                Step::Work(VERIFY * stripes(read.len))
            }
            None => Step::Sleep,
        }
    }

    fn ask(&mut self, now: Instant, read: Read) {
        self.window.push_back((read, read.len));
        let end = read.offset + read.len;
        for offset in (read.offset..end).step_by(self.piece as usize) {
            let len = self.piece.min(end - offset);
            self.scheduler.add(Request {
                class: Class::Scrub,
                write: false,
                durable: false,
                offset,
                len: len as usize,
                segments: 1,
                since: now,
                alone: false,
                more: 0,
                work: len,
            });
        }
    }

    fn next(&mut self, now: Instant) -> Option<Read> {
        let (ticket, run) = self.scheduler.next(now)?;
        let read = Read { offset: run.first().offset, len: run.bytes() as u64 };
        let parts = run.parts().iter().map(|part| (part.offset, part.work)).collect();
        self.tickets.insert(read.offset, (ticket, parts));
        Some(read)
    }

    fn done(&mut self, now: Instant, read: Read) {
        let Some((ticket, parts)) = self.tickets.remove(&read.offset) else { return };
        self.scheduler.end(now, ticket);
        for (offset, len) in parts {
            let of = |run: &Read| (run.offset..run.offset + run.len).contains(&offset);
            if let Some((_, left)) = self.window.iter_mut().find(|(run, _)| of(run)) {
                *left -= len;
            }
        }
    }

    fn verified(&self) -> u64 {
        self.verified
    }
}
