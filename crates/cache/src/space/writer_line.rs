//! Writers that wait until they may go on.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{Instant, VolumeId};
use rt::sync::{Event, OneShot, OneShotSender, oneshot};

use crate::policy::writer_delay::{Curve, Line, Load, NextStep};
use crate::settings::Settings;

/// When a wait for room began, and how many passes had ended by then.
#[derive(Clone, Copy)]
pub(crate) struct WaitStart {
    pub since: Instant,
    pub passes: u64,
}

/// The writers that wait, and the room that is reserved for those let in.
pub(crate) struct Admission {
    line: RefCell<Line<OneShotSender<AdmittedRoom>>>,
    reserved: Cell<u64>,
    arrived: Event,
}

impl Admission {
    /// No writer waits.
    pub fn new(settings: &Settings) -> Admission {
        let line = Line::new(Curve::until(settings.dirty_limit_percent));
        Admission { line: RefCell::new(line), reserved: Cell::new(0), arrived: Event::new() }
    }

    /// True if writers wait.
    pub fn has_line(&self) -> bool {
        !self.line.borrow().is_empty()
    }

    /// The number of writers that wait.
    pub fn waiting(&self) -> u64 {
        self.line.borrow().waiting()
    }

    /// The share of the room that is gone when writers begin to be slowed.
    pub fn begin(&self) -> f64 {
        self.line.borrow().curve().begin()
    }

    /// Notes that `blocks` blocks were carried to the pool.
    pub fn carried(&self, blocks: u64) {
        self.line.borrow_mut().carried(blocks);
    }

    /// Slows writers by these settings from now on, also those in line.
    pub fn set(&self, settings: &Settings) {
        self.line.borrow_mut().set_curve(Curve::until(settings.dirty_limit_percent));
        self.wake();
    }

    /// Has the line looked at again: the cache is closed, or the settings have changed.
    pub fn wake(&self) {
        self.arrived.notify();
    }

    /// Waits until the line is to be looked at again: a request has come, or has taken its room.
    pub fn arrived(&self) -> impl Future<Output = ()> + use<> {
        self.arrived.wait()
    }

    /// Blocks that are reserved for requests which were let in, and which they have not taken yet.
    pub fn reserved(&self) -> u64 {
        self.reserved.get()
    }

    /// Lets a request of `blocks` blocks in, if it need not stand in line.
    pub fn pass_at_once(
        self: &Rc<Admission>,
        now: Instant,
        blocks: u64,
        load: &Load,
    ) -> Option<AdmittedRoom> {
        let passes = self.line.borrow_mut().pass_at_once(now, blocks, load);
        passes.then(|| self.reserve(blocks))
    }

    /// Adds a request of `blocks` blocks to the line of its volume. It gets its room when it is let
    /// in, and `None` if it is refused.
    pub fn line_up(&self, volume: VolumeId, blocks: u64) -> OneShot<AdmittedRoom> {
        let (tx, rx) = oneshot();
        self.line.borrow_mut().push(volume, blocks, tx);
        self.arrived.notify();
        rx
    }

    /// Decides what happens next with the line. A request that passes is removed from it, and is to
    /// be [let in](Admission::let_in).
    pub fn next(&self, now: Instant, load: &Load) -> NextStep<OneShotSender<AdmittedRoom>> {
        self.line.borrow_mut().next(now, load)
    }

    /// Lets a request of `blocks` blocks in that has waited: sends it its room.
    pub fn let_in(self: &Rc<Admission>, to: OneShotSender<AdmittedRoom>, blocks: u64) {
        to.send(self.reserve(blocks));
    }

    /// Lets all in that wait, whatever the room.
    pub fn let_all_in(self: &Rc<Admission>) {
        self.take_line().into_iter().for_each(|(to, blocks)| self.let_in(to, blocks));
    }

    /// Refuses all that wait.
    pub fn refuse_all(&self) {
        drop(self.take_line());
    }

    fn take_line(&self) -> Vec<(OneShotSender<AdmittedRoom>, u64)> {
        self.line.borrow_mut().drain().collect()
    }

    fn reserve(self: &Rc<Admission>, blocks: u64) -> AdmittedRoom {
        self.reserved.set(self.reserved.get() + blocks);
        AdmittedRoom { of: self.clone(), blocks }
    }
}

/// Room for a request that was let in; given back when it is dropped.
pub(crate) struct AdmittedRoom {
    of: Rc<Admission>,
    blocks: u64,
}

impl Drop for AdmittedRoom {
    fn drop(&mut self) {
        self.of.reserved.set(self.of.reserved.get() - self.blocks);
        if self.of.has_line() {
            self.of.arrived.notify();
        }
    }
}
