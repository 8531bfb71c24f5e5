//! The model of one emulated device, of whichever kind.

use base::Instant;

use crate::request::{Access, Ticket};
use crate::{hdd, ssd};

pub use model::device::Emulate;

/// An emulated device: when its requests are done. Time that is passed in never goes back.
pub struct Emulation {
    model: Model,
    next_ticket: u64,
}

enum Model {
    Hdd(hdd::Hdd),
    Ssd(ssd::Ssd),
}

impl Emulation {
    /// One of `size_bytes`, at rest.
    pub fn new(what: Emulate, size_bytes: u64) -> Emulation {
        let model = match what {
            Emulate::Hdd => Model::Hdd(hdd::Hdd::new(size_bytes)),
            Emulate::Ssd => Model::Ssd(ssd::Ssd::new()),
        };
        Emulation { model, next_ticket: 0 }
    }

    /// A request that arrives `now`.
    pub fn submit(&mut self, now: Instant, access: Access, offset: u64, len: usize) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        match &mut self.model {
            Model::Hdd(m) => m.submit(now, ticket, access, offset, len),
            Model::Ssd(m) => m.submit(now, ticket, access, len),
        }
        ticket
    }

    /// When a request will be done next, as far as is known without further ones.
    pub fn next_at(&self) -> Option<Instant> {
        match &self.model {
            Model::Hdd(m) => m.next_at(),
            Model::Ssd(m) => m.next_at(),
        }
    }

    /// Adds those that are done by `now` to `done`, in the order in which they are.
    pub fn take_done(&mut self, now: Instant, done: &mut Vec<Ticket>) {
        match &mut self.model {
            Model::Hdd(m) => m.take_done(now, done),
            Model::Ssd(m) => m.take_done(now, done),
        }
    }
}
