//! The change of the cache or of a mode that is under way, and whether it can still be given up.
//!
//! A change writes back first, for as long as that takes, while clients go on. It can be given up
//! until that has ended. Then the change goes through, and holds requests for a moment.

use std::cell::Cell;

use base::{ErrorKind, Result, StorageError, VolumeId};
use rt::sync::{Permit, Semaphore};

/// How far a change is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    WritesBack,
    GivenUp,
    GoesThrough,
}

/// What comes of the wish to give a change up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GivenUp {
    /// The change ends as soon as the pass of write-back has that is under way; nothing is changed.
    Yes,
    /// There is no such change.
    NoneRuns,
    /// What is dirty is in the pool, and the change goes through.
    TooLate,
}

/// One change at a time.
pub(crate) struct Changing {
    one: Semaphore,
    /// The volume whose mode changes, or none if it is the cache that leaves.
    now: Cell<Option<(Option<VolumeId>, Stage)>>,
}

/// A change, until it is dropped.
pub(crate) struct Change<'a> {
    all: &'a Changing,
    _alone: Permit,
}

impl Changing {
    pub fn new() -> Changing {
        Changing { one: Semaphore::new(1), now: Cell::new(None) }
    }

    /// Waits until no other change is under way.
    pub async fn alone(&self) -> Permit {
        self.one.acquire(1).await
    }

    /// Begins one that writes back first: of the mode of a volume, or else a detach.
    pub async fn begin(&self, volume: Option<VolumeId>) -> Change<'_> {
        let alone = self.alone().await;
        self.now.set(Some((volume, Stage::WritesBack)));
        Change { all: self, _alone: alone }
    }

    /// Has the change of this volume's mode given up, or the detach.
    pub fn give_up(&self, volume: Option<VolumeId>) -> GivenUp {
        match self.now.get() {
            Some((of, stage)) if of == volume => match stage {
                Stage::GoesThrough => GivenUp::TooLate,
                Stage::WritesBack | Stage::GivenUp => {
                    self.now.set(Some((of, Stage::GivenUp)));
                    GivenUp::Yes
                }
            },
            _ => GivenUp::NoneRuns,
        }
    }
}

impl Change<'_> {
    /// An error if it was given up.
    pub fn go_on(&self) -> Result<()> {
        match self.all.now.get() {
            Some((_, Stage::GivenUp)) => Err(StorageError::new(
                ErrorKind::GivenUp,
                "it was cancelled while it wrote back: nothing is changed",
            )),
            _ => Ok(()),
        }
    }

    /// From now on it cannot be given up. Errors: it was.
    pub fn go_through(&self) -> Result<()> {
        self.go_on()?;
        let through = |(of, _)| (of, Stage::GoesThrough);
        self.all.now.set(self.all.now.get().map(through));
        Ok(())
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.all.now.set(None);
    }
}
