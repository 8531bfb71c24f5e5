//! The nodes of trees: the mapping tree of each volume, the checksum tree of each group.
//!
//! Inner nodes are needed in memory, as they say where others are; of all nodes every copy is read
//! and verified as blocks of data are, in the order of addresses.

use base::{GroupId, VolumeId};
use btree::Key;
use format::superblock::scrub::ScrubStage;
use queue::Class;

use super::run::{Went, Window};
use crate::error::Step;
use crate::pool::Pool;
use crate::state::State;
use crate::transfer::walk::{of_nodes, runs};
use crate::txn::Kind;

/// Nodes of a tree that are looked up in one step.
const NODES: usize = 512;
/// Nodes with so many other blocks between them are read by one request.
const NODE_GAP: u32 = 4;

/// Which tree.
#[derive(Clone, Copy)]
enum Which {
    Mapping(VolumeId),
    Sums(GroupId),
}

impl Pool {
    /// The mapping trees of volumes with this number or a higher one.
    pub(super) async fn scrub_volumes(&self, window: &mut Window, from: u32) -> Went {
        let mut next = from;
        loop {
            let id = self.state().forest.volume_from(VolumeId(next));
            let Some(id) = id else { return Ok(()) };
            self.scrub_tree(window, Which::Mapping(id)).await?;
            next = id.0 + 1;
            window.reach(ScrubStage::Volumes, next, 0).await?;
        }
    }

    /// The checksum tree of a group.
    pub(super) async fn scrub_sums(&self, window: &mut Window, id: GroupId) -> Went {
        self.scrub_tree(window, Which::Sums(id)).await
    }

    async fn scrub_tree(&self, window: &mut Window, which: Which) -> Went {
        let mut from = Key::EMPTY;
        loop {
            let step = |st: &mut State| nodes_from(st, which, &from);
            let (blocks, group_blocks, next, pin) = match self.resident(Class::Scrub, step).await {
                Ok(found) => found,
                Err(e) => {
                    tracing::error!("scrub: the rest of a tree is passed over: {e}");
                    return self.pass_over();
                }
            };
            window.verify(runs(blocks, group_blocks, NODE_GAP), &pin).await?;
            match next {
                Some(next) => from = next,
                None => return Ok(()),
            }
            self.rt().yield_now().await;
        }
    }
}

type Nodes = (Vec<crate::transfer::walk::Expected>, u32, Option<Key>, crate::space::Pin);

/// The next nodes of a tree that stand on devices.
fn nodes_from(st: &mut State, which: Which, from: &Key) -> Step<Nodes> {
    let (pin, group_blocks) = (st.space.pin(), st.space.geometry().group_blocks);
    let tree = match which {
        Which::Mapping(id) => st.forest.mapping_of(Kind::Direct, id),
        Which::Sums(id) => Some(st.forest.sums_tree(id)),
    };
    let Some(tree) = tree else { return Ok((Vec::new(), group_blocks, None, pin)) };
    let (nodes, next) = tree.pointers(st.forest.store(), from, NODES)?;
    Ok((of_nodes(tree.id(), nodes), group_blocks, next, pin))
}
