//! The gate that all requests of a volume go through, so that what lies below them can be changed
//! while they are held back for a moment.

use std::cell::Cell;
use std::rc::Rc;

use pool::CacheMode;
use rt::sync::Event;
use rt::{Reason, Rt};

/// Counts the requests of a volume that are in flight, and freezes them; clones are the same.
#[derive(Clone)]
pub(crate) struct Quiesce(Rc<Inner>);

struct Inner {
    mode: Cell<CacheMode>,
    in_flight: Cell<u64>,
    /// Why it is frozen, if it is.
    frozen: Cell<Option<Reason>>,
    /// The volume was deleted.
    gone: Cell<bool>,
    /// None is in flight any more, or the volume is not frozen any more.
    changed: Event,
}

/// A request that is in flight.
pub(crate) struct InFlightGuard(Quiesce);

/// No request begins until it is dropped.
pub(crate) struct FreezeGuard(Quiesce);

impl Quiesce {
    pub fn new(mode: CacheMode) -> Quiesce {
        let (in_flight, frozen, gone) = (Cell::new(0), Cell::new(None), Cell::new(false));
        Quiesce(Rc::new(Inner {
            mode: Cell::new(mode),
            in_flight,
            frozen,
            gone,
            changed: Event::new(),
        }))
    }

    /// The mode of the cache for the volume. To be read by a request in flight.
    pub fn mode(&self) -> CacheMode {
        self.0.mode.get()
    }

    /// Sets the mode. To be done while the volume is frozen.
    pub fn set_mode(&self, mode: CacheMode) {
        self.0.mode.set(mode);
    }

    /// No request begins any more. To be done while the volume is frozen.
    pub fn set_gone(&self) {
        self.0.gone.set(true);
    }

    /// Begins a request; waits while the volume is frozen. `None`: the volume was deleted.
    pub async fn enter(&self, rt: &Rt) -> Option<InFlightGuard> {
        while let Some(why) = self.0.frozen.get() {
            rt.waits(why, self.0.changed.wait()).await;
        }
        if self.0.gone.get() {
            return None;
        }
        self.0.in_flight.set(self.0.in_flight.get() + 1);
        Some(InFlightGuard(self.clone()))
    }

    /// Freezes a volume that was not used yet.
    pub fn born_frozen(&self, why: Reason) -> FreezeGuard {
        self.0.frozen.set(Some(why));
        FreezeGuard(self.clone())
    }

    /// Freezes the volume: no request begins any more, and those that are in flight go on. A second
    /// caller waits until it is not frozen any more.
    pub async fn begin_freeze(&self, why: Reason) -> FreezeGuard {
        while self.0.frozen.get().is_some() {
            self.0.changed.wait().await;
        }
        self.0.frozen.set(Some(why));
        FreezeGuard(self.clone())
    }

    /// Freezes the volume, and waits until no request is in flight.
    pub async fn freeze(&self, why: Reason) -> FreezeGuard {
        let frozen = self.begin_freeze(why).await;
        frozen.settled().await;
        frozen
    }
}

impl FreezeGuard {
    /// Waits until no request is in flight.
    pub async fn settled(&self) {
        while self.0.0.in_flight.get() > 0 {
            self.0.0.changed.wait().await;
        }
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        let in_flight = self.0.0.in_flight.get() - 1;
        self.0.0.in_flight.set(in_flight);
        if in_flight == 0 && self.0.0.frozen.get().is_some() {
            self.0.0.changed.notify();
        }
    }
}

impl Drop for FreezeGuard {
    fn drop(&mut self) {
        self.0.0.frozen.set(None);
        self.0.0.changed.notify();
    }
}
