//! The door of all volumes: a request of a client begins when the limit of its volume allows it,
//! and where several volumes are in use, when its volume has a part of the window left
//! ([`shares`] decides, this lets them wait).
//!
//! A request waits here before it takes memory, a lock or a place among the requests of its volume
//! that are in flight. So it holds up neither a change of its volume, nor the background, nor
//! another volume. FLUSH does not come here.

mod limit;
mod shares;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{Instant, VolumeId};
use pool::VolumeLimit;
use rt::sync::{OneShotSender, oneshot};
use rt::{Reason, Rt};

use shares::{NextStep, Shares};

pub(crate) use shares::Size;
pub use shares::WaitCounts;

/// The door; clones are the same.
#[derive(Clone)]
pub(crate) struct Admission(Rc<Inner>);

struct Inner {
    rt: Rt,
    shares: RefCell<Shares<OneShotSender<Ticket>>>,
    /// Requests are being let in: what changes meanwhile is seen before that ends.
    letting_in: Cell<bool>,
    /// When a task looks at the lines again.
    next_look: Cell<Option<Instant>>,
}

/// A request that may be carried out; it ends when this is dropped.
#[must_use = "a request has ended when its ticket is dropped"]
pub struct Ticket {
    of: Admission,
    volume: VolumeId,
    size: Size,
    ended: Cell<bool>,
}

impl Ticket {
    /// The request has ended as far as other requests go: it waits for its FLUSH, say, as all may,
    /// or for its client, and does nothing until its turn comes [again](Ticket::again).
    pub fn end(&self) {
        if !self.ended.replace(true) {
            let inner = &self.of.0;
            inner.shares.borrow_mut().leave(self.volume, self.size);
            if inner.shares.borrow().has_line() {
                self.of.let_in();
            }
        }
    }
}

impl Ticket {
    /// Lets others go on, and waits for the next turn of this request.
    pub async fn again(&self) {
        self.end();
        let (door, volume, size) = (&self.of.0, self.volume, self.size);
        let now = door.rt.now();
        let passes = door.shares.borrow_mut().again_at_once(now, volume, size);
        if !passes {
            let (tx, rx) = oneshot();
            door.shares.borrow_mut().push_again(now, volume, size, tx);
            self.of.let_in();
            match door.rt.waits(Reason::Share, rx).await {
                // This ticket is in its place.
                Some(ticket) => ticket.ended.set(true),
                None => unreachable!("a request in line is told when it may go on"),
            }
        }
        self.ended.set(false);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.end();
    }
}

impl Admission {
    /// A door through which no request has gone.
    pub fn new(rt: &Rt) -> Admission {
        Admission(Rc::new(Inner {
            rt: rt.clone(),
            shares: RefCell::new(Shares::new()),
            letting_in: Cell::new(false),
            next_look: Cell::new(None),
        }))
    }

    /// Waits until a request of a client that moves so much may be carried out.
    pub async fn admit(&self, volume: VolumeId, size: Size) -> Ticket {
        let now = self.0.rt.now();
        let passes = self.0.shares.borrow_mut().pass_at_once(now, volume, size);
        if passes {
            return self.ticket(volume, size);
        }
        let (tx, rx) = oneshot();
        let limited = self.0.shares.borrow_mut().push(now, volume, size, tx);
        self.let_in();
        let reason = if limited { Reason::Limit } else { Reason::Share };
        match self.0.rt.waits(reason, rx).await {
            Some(ticket) => ticket,
            None => unreachable!("a request in line is told when it may begin"),
        }
    }

    /// Of a volume that is opened: the limit that its record says.
    pub fn know(&self, volume: VolumeId, limit: &VolumeLimit) {
        self.0.shares.borrow_mut().know(self.0.rt.now(), volume, limit);
    }

    /// From now on a volume has this limit, or none; also for requests that wait.
    pub fn set_limit(&self, volume: VolumeId, limit: Option<&VolumeLimit>) {
        self.0.shares.borrow_mut().set_limit(self.0.rt.now(), volume, limit);
        self.let_in();
    }

    /// From now on nothing waits here, and what waits goes on.
    pub fn open(&self) {
        self.0.shares.borrow_mut().open();
        self.let_in();
    }

    /// The numbers of requests that had to wait.
    pub fn waits(&self) -> WaitCounts {
        self.0.shares.borrow().waits()
    }

    fn ticket(&self, volume: VolumeId, size: Size) -> Ticket {
        Ticket { of: self.clone(), volume, size, ended: Cell::new(false) }
    }

    /// Tells all requests that may begin now.
    fn let_in(&self) {
        // A ticket for a task that is gone ends at once, which leads here again.
        if self.0.letting_in.replace(true) {
            return;
        }
        let next = loop {
            let next = self.0.shares.borrow_mut().next(self.0.rt.now());
            match next {
                NextStep::Pass(to, volume, size) => to.send(self.ticket(volume, size)),
                NextStep::At(when) => break Some(when),
                NextStep::Nothing => break None,
            }
        };
        self.0.letting_in.set(false);
        if let Some(when) = next {
            self.look_at(when);
        }
    }

    /// Has a task look at the lines at this time, unless one does so before.
    fn look_at(&self, when: Instant) {
        if self.0.next_look.get().is_some_and(|next| next <= when) {
            return;
        }
        self.0.next_look.set(Some(when));
        let door = self.clone();
        self.0.rt.detach(async move {
            door.0.rt.sleep_until(when).await;
            if door.0.next_look.get() == Some(when) {
                door.0.next_look.set(None);
            }
            door.let_in();
        });
    }
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
