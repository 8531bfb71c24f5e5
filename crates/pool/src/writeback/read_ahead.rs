//! Reading ahead for a pass: the nodes that its writes will need are brought into memory before
//! they begin, so that a pass stays one sweep over a disk.
//!
//! A pass is carried in batches, in the order of addresses. While one is carried, the nodes of the
//! next are read ([`Pass::read_ahead`]): the leaves of the mappings that it will change, and those
//! of the checksums of the blocks that it will take. Together they are read in the order of their
//! places. The store *holds* them until they are edited, so nothing puts them out of memory before,
//! however few nodes it keeps. That needs no memory that the pass would not need anyway: what it
//! has changed stays in memory until it is published, and these are about to be changed.

use base::{Lba, VolumeId};
use queue::Class;

use super::pass::Pass;
use crate::forest::Missing;
use crate::pool::Pool;
use crate::state::State;

/// A node that was read may lead to others. This is the most rounds in which they are looked for.
const ROUNDS: usize = 8;
/// Ranges that are looked at before other tasks get a turn.
const SLICE: usize = 64;
/// Leaves of checksums that are read ahead at once.
const SUMS: usize = 128;
/// Blocks whose checksums are read ahead where the pass begins to take blocks of a group.
const FIRST_BLOCKS: u64 = 2048;

/// Parts of which the inner nodes are found before their leaves are looked for.
const STEP: usize = 512;
/// Nodes that the parts of a batch may lack, but for what these lead to. It is half of what the
/// store holds: while one batch is carried the next one is read.
const NODES: usize = 2048;

/// A part of a volume that a pass will write to. Nothing is read for an empty one.
pub type Part = (VolumeId, Lba, Lba);

impl Pass {
    /// Brings into memory what writes of these parts need, and holds it there: of the mappings, and
    /// of the checksums of `blocks` blocks that the pass will take. So a slow disk reads it in few
    /// sweeps, and then writes in one; a writer that faults after its write sends the head there
    /// and back. An error is left to the write. Returns how many of the parts, from the first on,
    /// it was done for: as many as the store can hold nodes of. At least one, if there is one.
    pub async fn read_ahead(&self, parts: &[Part], blocks: u64) -> usize {
        let pool = self.pool();
        pool.state_mut().forest.store_mut().next_turn();
        let mut wanted = Missing::default();
        let (mut done, mut lacking) = (0, Vec::new());
        while done < parts.len() && wanted.len() + STEP <= NODES {
            let step = &parts[done..parts.len().min(done + STEP)];
            lacking.extend(pool.lacking_leaves(step, &mut wanted).await);
            done += step.len();
        }
        for _ in 0..ROUNDS {
            let pin = pool.state().space.pin();
            missing_sums(&pool.state(), blocks, &mut wanted);
            if wanted.is_empty()
                || !pool.load_nodes(Class::Commit, wanted.into_faults(), pin, true).await
            {
                break;
            }
            wanted = Missing::default();
            lacking = pool.lacking(&lacking, &mut wanted).await;
        }
        done
    }
}

impl Pool {
    /// As [`Pool::lacking`], once the inner nodes above the leaves are resident.
    async fn lacking_leaves(&self, parts: &[Part], wanted: &mut Missing) -> Vec<Part> {
        for _ in 0..ROUNDS {
            let pin = self.state().space.pin();
            let mut missing = Missing::default();
            let lacking = self.lacking(parts, &mut missing).await;
            let (leaves, inner): (Vec<_>, Vec<_>) =
                missing.into_faults().partition(|fault| fault.level == 0);
            if inner.is_empty() || !self.load_nodes(Class::Commit, inner, pin, true).await {
                wanted.add(leaves);
                return lacking;
            }
        }
        Vec::new()
    }

    /// The parts that cannot be written to without a node that is not resident, which is added to
    /// `wanted`.
    async fn lacking(&self, parts: &[Part], wanted: &mut Missing) -> Vec<Part> {
        let mut lacking = Vec::new();
        for slice in parts.chunks(SLICE) {
            {
                let mut st = self.state_mut();
                for &(volume, lba, end) in slice.iter().filter(|(_, lba, end)| lba < end) {
                    if let Err(fault) = st.forest.ready_mapping(volume, (lba, end)) {
                        wanted.add([fault]);
                        lacking.push((volume, lba, end));
                    }
                }
            }
            self.rt().yield_now().await;
        }
        lacking
    }

    /// The pass begins to take blocks of a group: reads what it needs first of the checksums.
    pub(crate) async fn warm_checksums(&self) {
        for _ in 0..ROUNDS {
            let pin = self.state().space.pin();
            let mut wanted = Missing::default();
            missing_sums(&self.state(), FIRST_BLOCKS, &mut wanted);
            if wanted.is_empty()
                || !self.load_nodes(Class::Commit, wanted.into_faults(), pin, true).await
            {
                return;
            }
        }
    }
}

/// Adds nodes to `wanted` that are not resident, of checksums of blocks that the pass will take.
fn missing_sums(st: &State, blocks: u64, wanted: &mut Missing) {
    if let Some((id, part)) = st.space.next_of_pass(blocks) {
        wanted.add(st.forest.missing_sums(id, part, SUMS));
    }
}
