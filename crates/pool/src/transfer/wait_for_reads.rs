//! Waiting for the reads that use blocks or chunks which others want.

use std::rc::Rc;

use crate::core::Core;
use crate::space::{Era, Space};

/// Freed runs that become available before other tasks get a turn.
const DRAIN: usize = 256;

/// The end of a wait for pinned blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PinnedWait {
    Freed,
    /// No pinned block can become free any more: what had begun before has ended.
    NoneLeft,
}

/// Waits for reads that are under way.
pub(crate) struct ReadDrain {
    core: Core,
}

impl ReadDrain {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core) -> Rc<ReadDrain> {
        Rc::new(ReadDrain { core: core.clone() })
    }

    /// Waits until the reads and direct writes of this era, and of those before, have ended. Makes
    /// the blocks available that waited for them.
    pub(crate) async fn wait_for_reads(&self, until: Era) {
        self.drain_until(|space| space.limbo().has_passed(until)).await;
    }

    /// Makes the blocks available that commits have freed by now. Waits for reads of clients, but
    /// not for what background work has pinned.
    pub(crate) async fn wait_for_freed(&self) {
        let newest = self.core.state().space.limbo().newest();
        self.drain_until(|space| newest.is_none_or(|era| space.limbo().has_freed(era))).await;
    }

    /// Waits until a block has become free that background work has pinned, or others.
    pub(crate) async fn wait_for_pinned(&self, until: Era) -> PinnedWait {
        let before = self.core.state().space.limbo().freed();
        let is_over =
            |space: &Space| !space.limbo().any_pinned() || space.limbo().has_passed(until);
        self.drain_until(|space| space.limbo().freed() > before || is_over(space)).await;
        if self.core.state().space.limbo().freed() > before {
            PinnedWait::Freed
        } else {
            PinnedWait::NoneLeft
        }
    }

    async fn drain_until(&self, is_over: impl Fn(&Space) -> bool) {
        loop {
            let ended = self.core.state().space.limbo().reads_ended();
            let may_be_more = self.core.state_mut().space.drain(DRAIN);
            if !may_be_more && is_over(&self.core.state().space) {
                return;
            }
            if may_be_more {
                self.core.rt().yield_now().await;
            } else {
                ended.await;
            }
        }
    }
}
