//! Reading the checksum trees ahead of a pass, for the blocks that it will take.

use std::rc::Rc;

use btree::Fault;
use queue::Class;

use crate::core::Core;
use crate::forest::MissingNodes;
use crate::space::Pin;
use crate::transfer::load::NodeLoader;

/// A node that was read may lead to others. This is the most rounds in which they are looked for.
pub(crate) const ROUNDS: usize = 8;
/// Leaves of checksums that are read ahead at once.
const SUMS: usize = 128;
/// Blocks whose checksums are read ahead where the pass begins to take blocks of a group.
const FIRST_BLOCKS: u64 = 2048;

/// A node that is not resident, and its pin.
pub(crate) type PinnedFault = (Fault, Pin);

/// Reads the checksum trees ahead of a pass.
pub(crate) struct SumReadAhead {
    core: Core,
    loader: Rc<NodeLoader>,
}

impl SumReadAhead {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core, loader: &Rc<NodeLoader>) -> Rc<SumReadAhead> {
        Rc::new(SumReadAhead { core: core.clone(), loader: loader.clone() })
    }

    /// The pass begins to take blocks of a group: reads what it needs first of the checksums.
    pub(crate) async fn warm_checksums(&self) {
        for _ in 0..ROUNDS {
            let wanted = self.missing_sums(FIRST_BLOCKS);
            if wanted.is_empty()
                || !self.loader.load_nodes(Class::Commit, wanted, true).await.is_empty()
            {
                return;
            }
        }
    }

    /// Nodes that are not resident, of checksums of blocks that the pass will take.
    pub(crate) fn missing_sums(&self, blocks: u64) -> Vec<PinnedFault> {
        let (mut missing, pin) = (MissingNodes::default(), self.core.state().space.limbo().pin());
        let next = self.core.state().space.supply().next_of_pass(blocks);
        if let Some((id, (from, to))) = next {
            missing.add(self.core.state().forest.missing_sums(id, from, to, SUMS));
        }
        self.loader.pin_nodes(missing.into_faults(), pin)
    }
}
