//! Pins of buckets: of those that are read, and of blocks that were taken to be written.

use std::ops::Deref;

use base::CacheAddr;
use smallvec::SmallVec;

use super::handle::Core;
use crate::store::taken::TakenRun;

/// The bucket of a block is not used anew while it is pinned.
pub(crate) struct BucketPin {
    core: Core,
    addr: CacheAddr,
}

impl Drop for BucketPin {
    fn drop(&mut self) {
        self.core.state_mut().buckets.unpin(self.addr);
    }
}

/// Blocks that were taken to be written. Their buckets are pinned until it is dropped.
#[must_use = "blocks that are dropped are wasted"]
pub(crate) struct TakenBlocks {
    core: Core,
    all: SmallVec<[TakenRun; 1]>,
    /// A write to them is in flight.
    in_flight: bool,
}

impl Deref for TakenBlocks {
    type Target = [TakenRun];

    fn deref(&self) -> &[TakenRun] {
        &self.all
    }
}

impl Drop for TakenBlocks {
    fn drop(&mut self) {
        // A write whose task was dropped may reach the device at any time. So its buckets stay
        // pinned until the next open.
        if !self.in_flight && !self.all.is_empty() {
            let mut st = self.core.state_mut();
            self.all.iter().for_each(|t| st.buckets.unpin(t.addr));
        }
    }
}

impl Core {
    /// Takes over a pin that was set by a step.
    pub(crate) fn pinned(&self, addr: CacheAddr) -> BucketPin {
        BucketPin { core: self.clone(), addr }
    }
}

impl TakenBlocks {
    /// No blocks.
    pub fn none(core: &Core) -> TakenBlocks {
        TakenBlocks { core: core.clone(), all: SmallVec::new(), in_flight: false }
    }

    /// Adds blocks, which are pinned.
    pub fn add(&mut self, taken: TakenRun) {
        self.all.push(taken);
    }

    /// Has the blocks written. If the task is dropped meanwhile, they stay pinned.
    pub async fn write<T>(&mut self, write: impl AsyncFnOnce(&[TakenRun]) -> T) -> T {
        self.in_flight = true;
        let outcome = write(&self.all).await;
        self.in_flight = false;
        outcome
    }

    /// The number of blocks that were taken.
    pub fn blocks(&self) -> u32 {
        self.all.iter().map(|t| t.len).sum()
    }
}
