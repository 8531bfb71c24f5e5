//! Claims: the room that was set aside for what has begun.

use rt::sync::Event;

use super::reservation::{Reservation, SetAsideBlocks};

/// Nodes that one change of trees may add at most: two trees, a path and splits in each, several
/// records.
pub(super) const NODES_PER_CHANGE: u64 = 48;

/// Blocks that are reserved for data, and nodes that the changes of trees under way may add.
///
/// Each block and each node belongs to one [`Reservation`], and returns when that is dropped. So
/// both numbers are the sums of what their holders have. A flow that claims has found room before
/// ([`Room`](super::Room)), in the same step.
#[derive(Default)]
pub(crate) struct Claims {
    reserved: SetAsideBlocks,
    nodes: SetAsideBlocks,
    /// Rung when one of these changes was made, or given up.
    changes_ended: Event,
}

/// Room for the nodes that a change of the trees will add. A change holds it until it is made, or
/// given up, and waits for no other room meanwhile.
#[must_use = "the room is given back when this is dropped"]
pub(crate) struct NodeRoom {
    room: Option<Reservation>,
    ended: Event,
}

impl NodeRoom {
    /// Gives it back in the step in which it was reserved: no other change has seen it, and none is
    /// woken. Changes that find no room would wake each other for ever.
    pub fn forgo(mut self) {
        self.room = None;
    }
}

impl Drop for NodeRoom {
    fn drop(&mut self) {
        if self.room.take().is_some() {
            self.ended.notify();
        }
    }
}

impl Claims {
    /// Reserves room for the nodes of a change that is admitted, until it is made.
    pub fn reserve_nodes(&self) -> NodeRoom {
        let room = self.nodes.reserve(NODES_PER_CHANGE);
        NodeRoom { room: Some(room), ended: self.changes_ended.clone() }
    }

    /// Nodes that the changes under way may add.
    pub(super) fn nodes(&self) -> u64 {
        self.nodes.blocks()
    }

    /// Waits until a change that is under way was made, or given up.
    pub fn changes_ended(&self) -> impl Future<Output = ()> + use<> {
        self.changes_ended.wait()
    }

    /// Reserves `blocks` blocks that were left free for this.
    pub fn take_over(&self, blocks: u64) -> Reservation {
        self.reserved.reserve(blocks)
    }

    /// Blocks that are reserved.
    pub fn reserved(&self) -> u64 {
        self.reserved.blocks()
    }
}
