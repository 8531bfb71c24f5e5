//! The change of the cache or of a mode that is under way, and whether it can still be given up.
//!
//! A change writes back first, for as long as that takes, while clients go on. It can be given up
//! until that has ended. Then the change goes through, and holds requests for a moment.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{ErrorKind, Result, StorageError, VolumeId};
use rt::sync::{Event, Permit, Semaphore, within};

/// The stage of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// The change waits for another one to end.
    Waits,
    WritesBack,
    GivenUp,
    GoesThrough,
}

/// The outcome of the wish to give a change up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GiveUpOutcome {
    /// The change ends as soon as the pass of write-back has that is under way, or at once if it
    /// had not begun; nothing is changed.
    Yes,
    /// There is no such change.
    NoneRuns,
    /// The dirty data is in the pool already, and the change goes through.
    TooLate,
}

/// A change that was asked for.
struct AskedChange {
    /// The volume whose mode changes, or none if it is the cache that leaves.
    of: Option<VolumeId>,
    stage: Cell<Stage>,
    given_up: Event,
}

/// One change at a time.
pub(crate) struct ChangeLock {
    one: Semaphore,
    /// All that have not ended.
    asked: RefCell<Vec<Rc<AskedChange>>>,
}

/// A change, until it is dropped.
pub(crate) struct Change<'a> {
    all: &'a ChangeLock,
    this: Rc<AskedChange>,
    alone: Option<Permit>,
}

impl ChangeLock {
    pub fn new() -> ChangeLock {
        ChangeLock { one: Semaphore::new(1), asked: RefCell::default() }
    }

    /// Waits until no other change is under way.
    pub async fn alone(&self) -> Permit {
        self.one.acquire(1).await
    }

    /// Begins one that writes back first: of the mode of a volume, or else a detach. Errors: it was
    /// given up while it waited for another one to end.
    pub async fn begin(&self, volume: Option<VolumeId>) -> Result<Change<'_>> {
        let stage = Cell::new(Stage::Waits);
        let this = Rc::new(AskedChange { of: volume, stage, given_up: Event::new() });
        self.asked.borrow_mut().push(this.clone());
        let mut change = Change { all: self, this, alone: None };
        let given_up = change.this.given_up.wait();
        change.alone = within(&mut Box::pin(self.alone()), given_up).await;
        change.go_on()?;
        change.this.stage.set(Stage::WritesBack);
        Ok(change)
    }

    /// Has the changes of this volume's mode given up, or the detach.
    pub fn give_up(&self, volume: Option<VolumeId>) -> GiveUpOutcome {
        let mut outcome = GiveUpOutcome::NoneRuns;
        for one in self.asked.borrow().iter().filter(|one| one.of == volume) {
            if one.stage.get() != Stage::GoesThrough {
                one.stage.set(Stage::GivenUp);
                one.given_up.notify();
                outcome = GiveUpOutcome::Yes;
            } else if outcome == GiveUpOutcome::NoneRuns {
                outcome = GiveUpOutcome::TooLate;
            }
        }
        outcome
    }
}

impl Change<'_> {
    /// An error if it was given up.
    pub fn go_on(&self) -> Result<()> {
        if self.this.stage.get() == Stage::GivenUp {
            let text = "it was cancelled before it took effect: nothing is changed";
            return Err(StorageError::new(ErrorKind::GivenUp, text));
        }
        Ok(())
    }

    /// From now on it cannot be given up. Errors: it was.
    pub fn go_through(&self) -> Result<()> {
        self.go_on()?;
        self.this.stage.set(Stage::GoesThrough);
        Ok(())
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.all.asked.borrow_mut().retain(|one| !Rc::ptr_eq(one, &self.this));
    }
}
