//! What all requests of a volume go through, so that what lies below them can be changed while they
//! are held back for a moment.

use std::cell::Cell;
use std::rc::Rc;

use pool::CacheMode;
use rt::sync::Event;

/// A volume's gate; clones are the same.
#[derive(Clone)]
pub(crate) struct Gate(Rc<Inner>);

struct Inner {
    mode: Cell<CacheMode>,
    inside: Cell<u64>,
    shut: Cell<bool>,
    /// The volume was deleted.
    gone: Cell<bool>,
    /// None is inside any more, or the gate is open again.
    changed: Event,
}

/// A request that has gone in.
pub(crate) struct Inside(Gate);

/// The gate stays shut until it is dropped.
pub(crate) struct Shut(Gate);

impl Gate {
    pub fn new(mode: CacheMode) -> Gate {
        let (inside, shut, gone) = (Cell::new(0), Cell::new(false), Cell::new(false));
        Gate(Rc::new(Inner { mode: Cell::new(mode), inside, shut, gone, changed: Event::new() }))
    }

    /// What a cache does for the volume. Read it inside.
    pub fn mode(&self) -> CacheMode {
        self.0.mode.get()
    }

    /// Sets it. To be done while the gate is shut.
    pub fn set_mode(&self, mode: CacheMode) {
        self.0.mode.set(mode);
    }

    /// None goes in any more. To be done while the gate is shut.
    pub fn set_gone(&self) {
        self.0.gone.set(true);
    }

    /// Goes in; waits while the gate is shut. `None`: the volume was deleted.
    pub async fn enter(&self) -> Option<Inside> {
        while self.0.shut.get() {
            self.0.changed.wait().await;
        }
        if self.0.gone.get() {
            return None;
        }
        self.0.inside.set(self.0.inside.get() + 1);
        Some(Inside(self.clone()))
    }

    /// Shuts a gate that was not used yet.
    pub fn born_shut(&self) -> Shut {
        self.0.shut.set(true);
        Shut(self.clone())
    }

    /// Shuts it, and waits until none is inside. One at a time: the second waits until it
    /// is open again.
    pub async fn shut(&self) -> Shut {
        while self.0.shut.get() {
            self.0.changed.wait().await;
        }
        self.0.shut.set(true);
        let shut = Shut(self.clone());
        while self.0.inside.get() > 0 {
            self.0.changed.wait().await;
        }
        shut
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let inside = self.0.0.inside.get() - 1;
        self.0.0.inside.set(inside);
        if inside == 0 && self.0.0.shut.get() {
            self.0.0.changed.notify();
        }
    }
}

impl Drop for Shut {
    fn drop(&mut self) {
        self.0.0.shut.set(false);
        self.0.0.changed.notify();
    }
}
