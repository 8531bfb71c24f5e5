//! Emulation of slow devices, for experiments, demonstrations and benchmarks: a request to the real file is answered no sooner than the
//! device that is emulated would have answered it.
//!
//! [`Emulation`] is the model: plain and deterministic. It is told of requests ([`Emulation::submit`]), says when the next one is
//! done ([`Emulation::next_at`]) and which are ([`Emulation::take_done`]). [`Emulated`] runs it by the runtime's clock beside a device's real
//! requests; the later of the two counts. The content of the file, its durability and its errors are the real file's.
//!
//! * [`hdd`]: a disk of 7200 revolutions a minute, without a write cache
//! * [`ssd`]: an SSD on a SATA link
//!
//! Each says at its top what it computes, and what it leaves out. Discards are not modelled: they take what they really take.

mod hdd;
mod ssd;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::str::FromStr;

use base::Instant;
use rt::Rt;
use rt::sync::{OneShot, OneShotSender, oneshot};

/// What a device can be made to behave like.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Emulate {
    /// A rotating disk.
    Hdd,
    /// An SSD on a SATA link.
    Ssd,
}

impl Emulate {
    /// As it is written in options.
    pub fn name(self) -> &'static str {
        match self {
            Emulate::Hdd => "hdd",
            Emulate::Ssd => "ssd",
        }
    }
}

impl fmt::Display for Emulate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Emulate {
    type Err = String;
    fn from_str(text: &str) -> Result<Emulate, String> {
        match text {
            "hdd" => Ok(Emulate::Hdd),
            "ssd" => Ok(Emulate::Ssd),
            other => Err(format!("emulate is {other:?}; it can be hdd or ssd")),
        }
    }
}

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Writes, and is durable when it is done.
    DurableWrite,
    /// Makes durable what was written.
    Flush,
}

/// A request of an emulation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket(u64);

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

/// An emulation that runs by a runtime's clock.
pub(crate) struct Emulated {
    rt: Rt,
    what: Emulate,
    model: RefCell<Emulation>,
    waiting: RefCell<BTreeMap<Ticket, OneShotSender<()>>>,
    /// The earliest timer that is set.
    armed: Cell<Option<Instant>>,
}

impl Emulated {
    pub(crate) fn new(rt: &Rt, what: Emulate, size_bytes: u64) -> Rc<Emulated> {
        Rc::new(Emulated {
            rt: rt.clone(),
            what,
            model: RefCell::new(Emulation::new(what, size_bytes)),
            waiting: RefCell::new(BTreeMap::new()),
            armed: Cell::new(None),
        })
    }

    pub(crate) fn what(&self) -> Emulate {
        self.what
    }

    /// A request that arrives now; what is returned completes when it is done.
    pub(crate) fn begin(self: &Rc<Self>, access: Access, offset: u64, len: usize) -> OneShot<()> {
        let (done, rx) = oneshot();
        let ticket = self.model.borrow_mut().submit(self.rt.now(), access, offset, len);
        self.waiting.borrow_mut().insert(ticket, done);
        self.arm();
        rx
    }

    /// Sets a timer for the next request that will be done, unless there is one.
    fn arm(self: &Rc<Self>) {
        let Some(at) = self.model.borrow().next_at() else { return };
        if self.armed.get().is_some_and(|armed| armed <= at) {
            return;
        }
        self.armed.set(Some(at));
        let this = self.clone();
        self.rt.detach(async move {
            this.rt.sleep_until(at).await;
            if this.armed.get() == Some(at) {
                this.armed.set(None);
            }
            this.settle();
            this.arm();
        });
    }

    fn settle(&self) {
        let mut done = Vec::new();
        self.model.borrow_mut().take_done(self.rt.now(), &mut done);
        for ticket in done {
            let waiting = self.waiting.borrow_mut().remove(&ticket);
            if let Some(waiting) = waiting {
                waiting.send(());
            }
        }
    }
}
