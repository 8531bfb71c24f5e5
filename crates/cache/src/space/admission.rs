//! Writers that wait until they may go on.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::Instant;
use rt::sync::{Event, OneShotSender};

use crate::policy::delay::{Curve, Line};
use crate::settings::Settings;

/// When a wait for room began, and how many passes had ended by then.
#[derive(Clone, Copy)]
pub(crate) struct Waiting {
    pub since: Instant,
    pub passes: u64,
}

/// The writers that wait, and the room that those let in still hold.
pub(crate) struct Admission {
    pub line: RefCell<Line<OneShotSender<Held>>>,
    held: Cell<u64>,
    pub arrived: Event,
}

impl Admission {
    pub fn new(settings: &Settings) -> Admission {
        let line = Line::new(Curve::until(settings.dirty_limit_percent));
        Admission { line: RefCell::new(line), held: Cell::new(0), arrived: Event::new() }
    }

    /// True if writers wait.
    pub fn has_line(&self) -> bool {
        !self.line.borrow().is_empty()
    }

    /// How many writers wait.
    pub fn waiting(&self) -> u64 {
        self.line.borrow().waiting()
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

    /// Blocks that are reserved for requests which were let in, and which they have not taken yet.
    pub fn held(&self) -> u64 {
        self.held.get()
    }

    /// Lets a request of `blocks` blocks in.
    pub fn hold(self: &Rc<Admission>, blocks: u64) -> Held {
        self.held.set(self.held.get() + blocks);
        Held { of: self.clone(), blocks }
    }

    /// Lets a waiting request of `blocks` blocks in: sends it its room.
    pub fn let_in(self: &Rc<Admission>, to: OneShotSender<Held>, blocks: u64) {
        to.send(self.hold(blocks));
    }
}

/// Room for a request that was let in; given back when it is dropped.
pub(crate) struct Held {
    of: Rc<Admission>,
    blocks: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.of.held.set(self.of.held.get() - self.blocks);
        if self.of.has_line() {
            self.of.arrived.notify();
        }
    }
}
