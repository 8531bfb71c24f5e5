//! Cuts, and what volumes held when they were taken.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::lag::{EngineView, Lag};
use super::volume::Blocks;

/// The function that asks the engine for its state.
pub(crate) type Gauge = Box<dyn Fn() -> EngineView>;

/// The content of a volume at a moment.
#[derive(Clone)]
pub(crate) struct Image {
    pub blocks: Rc<Blocks>,
    pub tick: u64,
    pub era: u32,
}

/// A moment at which a cut, or several in a row, were taken.
pub(crate) struct Cut {
    /// The epochs that were closed.
    pub first: u32,
    pub last: u32,
    pub tick: u64,
    pub images: BTreeMap<u32, Image>,
}

impl Cut {
    pub fn is_of(&self, epoch: u32) -> bool {
        (self.first..=self.last).contains(&epoch)
    }
}

#[derive(Default)]
pub(crate) struct Cuts {
    pub gauge: Option<Gauge>,
    /// There is a cache in front of the pool.
    pub attached: bool,
    pub open: u32,
    pub published: u32,
    /// The last published, and what came after it.
    pub kept: Vec<Cut>,
    pub taken: u64,
    pub lag: Lag,
}
