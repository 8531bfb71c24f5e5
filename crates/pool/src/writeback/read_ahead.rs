//! Reading ahead for a pass: the nodes that its writes will need are brought into memory before
//! they begin, so that a pass stays one sweep over a disk.
//!
//! A pass is carried in batches, in the order of addresses. While one is carried, the nodes of the
//! next are read ([`Pass::read_ahead`]): the leaves of the mappings that it will change, and those
//! of the checksums of the blocks that it will take. Together they are read in the order of their
//! places. The store *holds* them until they are edited, so nothing puts them out of memory before,
//! however few nodes it keeps. That needs the memory of one batch, and these nodes are about to be
//! changed.

use base::{BlockRange, VolumeId};
use queue::Class;

use super::pass::Pass;
use crate::forest::MissingNodes;
use crate::transfer::sums_ahead::{PinnedFault, ROUNDS};

/// Ranges that are looked at before other tasks get a turn.
const SLICE: usize = 64;

/// Parts of which the inner nodes are found before their leaves are looked for.
const STEP: usize = 512;
/// Nodes that the parts of a batch may lack, but for what these lead to. It is half of what the
/// store holds: while one batch is carried the next one is read.
const NODES: usize = 2048;

/// A part of a volume that a pass will write to. Nothing is read for an empty one.
#[derive(Clone, Copy, Debug)]
pub struct PassPart {
    /// The volume that the part belongs to.
    pub volume: VolumeId,
    /// The blocks that will be written.
    pub range: BlockRange,
}

impl Pass {
    /// Brings into memory what writes of these parts need, and holds it there: of the mappings, and
    /// of the checksums of `blocks` blocks that the pass will take. So a slow disk reads it in few
    /// sweeps, and then writes in one; a writer that faults after its write sends the head there
    /// and back. An error is left to the write. Returns how many of the parts, from the first on,
    /// it was done for: as many as the store can hold nodes of. At least one, if there is one.
    pub async fn read_ahead(&self, parts: &[PassPart], blocks: u64) -> usize {
        self.passes.core.state_mut().forest.store_mut().next_turn();
        let (mut done, mut lacking, mut wanted) = (0, Vec::new(), Vec::new());
        while done < parts.len() && wanted.len() + STEP <= NODES {
            let step = &parts[done..parts.len().min(done + STEP)];
            let (without, leaves) = self.lacking_leaves(step).await;
            lacking.extend(without);
            wanted.extend(leaves);
            done += step.len();
        }
        for _ in 0..ROUNDS {
            let sums = self.passes.sums.missing_sums(blocks).into_iter();
            wanted.extend(sums.filter(|(fault, _)| self.lost().why(fault).is_none()));
            if wanted.is_empty() {
                break;
            }
            self.load(in_order(wanted)).await;
            (lacking, wanted) = self.lacking(&lacking).await;
        }
        done
    }

    /// As [`Pass::lacking`], once the inner nodes above the leaves are resident.
    async fn lacking_leaves(&self, parts: &[PassPart]) -> (Vec<PassPart>, Vec<PinnedFault>) {
        for _ in 0..ROUNDS {
            let (lacking, missing) = self.lacking(parts).await;
            let (leaves, inner): (Vec<_>, Vec<_>) =
                missing.into_iter().partition(|(fault, _)| fault.level == 0);
            if inner.is_empty() {
                return (lacking, leaves);
            }
            self.load(inner).await;
        }
        Default::default()
    }

    /// The parts that cannot be written to without a node that is not resident, and these nodes.
    /// Those that the pass could not read are left out.
    async fn lacking(&self, parts: &[PassPart]) -> (Vec<PassPart>, Vec<PinnedFault>) {
        let pin = self.passes.core.state().space.limbo().pin();
        let (mut lacking, mut wanted) = (Vec::new(), MissingNodes::default());
        for slice in parts.chunks(SLICE) {
            {
                let mut st = self.passes.core.state_mut();
                for part in slice.iter().filter(|part| !part.range.is_empty()) {
                    if let Err(fault) = st.forest.ready_mapping(part.volume, part.range)
                        && self.lost().why(&fault).is_none()
                    {
                        wanted.add([fault]);
                        lacking.push(*part);
                    }
                }
            }
            self.passes.core.rt().yield_now().await;
        }
        (lacking, self.passes.loader.pin_nodes(wanted.into_faults(), pin))
    }

    async fn load(&self, nodes: Vec<PinnedFault>) {
        let lost = self.passes.loader.load_nodes(Class::Commit, nodes, true).await;
        lost.into_iter().for_each(|(fault, why)| self.lost().note(&fault, why));
    }
}

/// Nodes in the order of their addresses, each once.
fn in_order(mut nodes: Vec<PinnedFault>) -> Vec<PinnedFault> {
    nodes.sort_unstable_by_key(|(fault, _)| fault.ptr.addr);
    nodes.dedup_by_key(|(fault, _)| fault.ptr.addr);
    nodes
}
