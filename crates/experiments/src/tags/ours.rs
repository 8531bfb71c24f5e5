//! Ours: the scheduler of the crate `queue`, as a device's queue drives it.

use std::collections::BTreeMap;

use base::Instant;
use queue::{Class, Limits, Request, Scheduler, Ticket};
use rt::DeviceKind;

use super::lab::{Front, PIECE, Piece};

pub(super) struct ForebayTags {
    scheduler: Scheduler<Piece>,
    /// Pieces of a read that has not been handed in as a whole.
    gathered: Vec<(usize, Piece)>,
    in_flight: BTreeMap<u64, Ticket>,
}

impl ForebayTags {
    pub fn new(kind: DeviceKind, depth: usize) -> ForebayTags {
        let limits = Limits { depth, max_request_bytes: PIECE as usize, ..Limits::default() };
        ForebayTags {
            scheduler: Scheduler::new(limits, kind),
            gathered: Vec::new(),
            in_flight: BTreeMap::new(),
        }
    }
}

impl Front for ForebayTags {
    /// No task waits for a tag. The pieces of a read go to the scheduler together.
    fn ask(&mut self, now: Instant, task: usize, piece: Piece) -> bool {
        self.gathered.push((task, piece));
        if piece.more > 0 {
            return true;
        }
        let (whole, others) = self.gathered.drain(..).partition(|(of, _)| *of == task);
        self.gathered = others;
        let whole: Vec<(usize, Piece)> = whole;
        for (_, work) in whole {
            self.scheduler.add(Request {
                class: Class::Foreground,
                write: false,
                durable: false,
                offset: work.offset,
                len: PIECE as usize,
                segments: 1,
                since: now,
                alone: false,
                more: work.more,
                work,
            });
        }
        true
    }

    fn rests(&mut self, _task: usize) {}

    fn done(&mut self, now: Instant, piece: u64) {
        if let Some(ticket) = self.in_flight.remove(&piece) {
            self.scheduler.end(now, ticket);
        }
    }

    fn next(&mut self, now: Instant) -> Option<Piece> {
        let (ticket, run) = self.scheduler.next(now)?;
        assert_eq!(run.parts().len(), 1, "a piece is as large as the device takes");
        let piece = run.first().work;
        self.in_flight.insert(piece.id, ticket);
        Some(piece)
    }

    fn woken(&mut self) -> Option<usize> {
        None
    }
}
