//! The nodes of trees: mapping and deadlist of each volume, the checksum tree of each group.
//!
//! Inner nodes must be in memory, as they say where other nodes are. Every copy of every node is
//! read and verified as blocks of data are, in the order of addresses.

use std::rc::Rc;

use base::{Generation, GroupId, VolumeId};
use btree::Key;
use format::superblock::scrub::ScrubStage;
use format::tree::{checksum_tree_id, deadlist_tree_id, mapping_tree_id};
use queue::Class;

use super::window::{PartResult, Window};
use crate::core::Core;
use crate::scrub::load::ScrubLoader;
use crate::state::State;
use crate::transfer::load::NodeLoader;
use crate::transfer::walk::{TreeId, nodes_from, pinned, runs};

/// The most other blocks between two nodes that are read by one request.
const NODE_GAP: u32 = 4;

/// Scrubs the nodes of trees.
pub(crate) struct TreeScrub {
    core: Core,
    loader: Rc<NodeLoader>,
    scrub_loader: Rc<ScrubLoader>,
}

impl TreeScrub {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        loader: &Rc<NodeLoader>,
        scrub_loader: &Rc<ScrubLoader>,
    ) -> Rc<TreeScrub> {
        Rc::new(TreeScrub {
            core: core.clone(),
            loader: loader.clone(),
            scrub_loader: scrub_loader.clone(),
        })
    }

    /// Scrubs the mapping trees of the volumes from this number on.
    pub(super) async fn scrub_volumes(&self, window: &mut Window, from: u32) -> PartResult {
        let mut next = from;
        loop {
            let id = self.core.state().forest.volume_from(VolumeId(next));
            let Some(id) = id else { return Ok(()) };
            self.scrub_tree(window, self.mapping(id)).await?;
            self.scrub_tree(window, TreeId::Deadlist(id)).await?;
            next = id.0 + 1;
            window.reach(ScrubStage::Volumes, next, 0).await?;
        }
    }

    /// A volume has all of its nodes looked at: the newest snapshot may be deleted before its turn.
    /// Snapshots come in the order in which they were taken, so of each it is enough to look at
    /// what the one before does not have.
    fn mapping(&self, id: VolumeId) -> TreeId {
        let is_snapshot = self.core.state().forest.volume(id).is_some_and(|v| v.is_snapshot());
        if is_snapshot { TreeId::MappingSince(id) } else { TreeId::Mapping(id) }
    }

    /// Scrubs the checksum tree of a group.
    pub(super) async fn scrub_sums(&self, window: &mut Window, id: GroupId) -> PartResult {
        self.scrub_tree(window, TreeId::Sums(id)).await
    }

    async fn scrub_tree(&self, window: &mut Window, which: TreeId) -> PartResult {
        let mut from = Key::EMPTY;
        loop {
            window.rest().await?;
            let mut step = |st: &mut State| {
                let pin = st.space.limbo().pin();
                Ok((nodes_from(st, which, Generation(0), &from)?, pin))
            };
            let found = self
                .scrub_loader
                .surely(async || self.loader.resident(Class::Scrub, &mut step).await)
                .await?;
            let ((blocks, next), pin) = match found {
                Ok(found) => found,
                Err(e) => {
                    let tree = match which {
                        TreeId::Mapping(id) | TreeId::MappingSince(id) => mapping_tree_id(id),
                        TreeId::Sums(id) => checksum_tree_id(id),
                        TreeId::Deadlist(id) => deadlist_tree_id(id),
                    };
                    let tree = self.core.state().tree_name(tree);
                    tracing::error!(%tree, "scrub: the rest of a tree is passed over: {e}");
                    self.core.state_mut().scrub.lost(None);
                    return Ok(());
                }
            };
            let group_blocks = self.core.state().space.geometry().group_blocks;
            let runs = pinned(&self.core.state(), runs(blocks, group_blocks, NODE_GAP), pin);
            window.verify(runs).await?;
            match next {
                Some(next) => from = next,
                None => return Ok(()),
            }
            self.core.rt().yield_now().await;
        }
    }
}
