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

/// Writers at the door.
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

    /// Writers wait.
    pub fn has_line(&self) -> bool {
        !self.line.borrow().is_empty()
    }

    /// Writers that wait.
    pub fn waiting(&self) -> u64 {
        self.line.borrow().waiting()
    }

    /// So many blocks were carried to the pool.
    pub fn carried(&self, blocks: u64) {
        self.line.borrow_mut().carried(blocks);
    }

    /// From now on writers are slowed by these settings, those in line too.
    pub fn set(&self, settings: &Settings) {
        self.line.borrow_mut().set_curve(Curve::until(settings.dirty_limit_percent));
        self.wake();
    }

    /// Has those in line looked at anew: the cache is closed, or the settings have changed.
    pub fn wake(&self) {
        self.arrived.notify();
    }

    /// Blocks that were reserved to requests which have passed, and are not taken yet.
    pub fn held(&self) -> u64 {
        self.held.get()
    }

    /// Lets a request of so many blocks in.
    pub fn hold(self: &Rc<Admission>, blocks: u64) -> Held {
        self.held.set(self.held.get() + blocks);
        Held { of: self.clone(), blocks }
    }

    /// How a request of so many blocks that waits is let in: it gets its room.
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
