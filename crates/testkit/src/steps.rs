//! How long the engine's thread works between two looks at the world.
//!
//! Whatever comes meanwhile has to wait for so long. It is measured in time of the processor, which
//! other programs do not change, and without the work of the backend itself.

use std::cell::Cell;
use std::rc::Rc;

use base::{Duration, Instant};
use posix::sys::processor_time;
use rt::{Backend, Completion, DeviceKind, FileId, Op, OpId};

/// The longest step since it was asked for. Clones are the same.
#[derive(Clone, Default)]
pub struct Steps(Rc<Cell<Duration>>);

impl Steps {
    /// The longest step until now; it is begun anew.
    pub fn take(&self) -> Duration {
        self.0.take()
    }

    /// A backend over `inner` that measures the steps of the engine above it.
    pub fn over(&self, inner: Box<dyn Backend>) -> Box<dyn Backend> {
        let now = processor_time();
        Box::new(Measured { inner, longest: self.clone(), began: now, below: Duration::ZERO })
    }
}

struct Measured {
    inner: Box<dyn Backend>,
    longest: Steps,
    /// When the step began that is under way, in time of the processor.
    began: Duration,
    /// How long the backend below has worked in it.
    below: Duration,
}

impl Backend for Measured {
    fn submit(&mut self, id: OpId, op: Op) {
        let before = processor_time();
        self.inner.submit(id, op);
        self.below += processor_time() - before;
    }

    fn wait(&mut self, until: Option<Instant>, done: &mut Vec<Completion>) -> Instant {
        let took = (processor_time() - self.began).saturating_sub(self.below);
        self.longest.0.set(self.longest.0.get().max(took));
        let now = self.inner.wait(until, done);
        (self.began, self.below) = (processor_time(), Duration::ZERO);
        now
    }

    fn kind(&self, file: FileId) -> DeviceKind {
        self.inner.kind(file)
    }

    fn now(&self) -> Instant {
        self.inner.now()
    }
}
