//! The nodes of a pass: they are written when it is published, and before that whenever there are
//! many of them. So a pass takes a bounded amount of memory, however much it carries.
//!
//! A *spill* freezes the trees of the pass as a commit freezes those of a direct transaction: what
//! is changed from then on belongs to a newer generation. The generation of a pass's edits is below
//! that of the open direct transaction, so that one is committed first. Then the frozen nodes are
//! written, and from there on they can be read from the devices like any clean node. An edit that
//! needs one again copies it, and frees its block with all that the pass frees.
//!
//! A spill that fails leaves its trees here: the next one, or the one at the end, writes them
//! again, before newer ones. One that finds no room is no failure of the pass, as the blocks that
//! a spill writes twice are not reserved: more nodes stay in memory then.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{ErrorKind, Generation, GroupId, Result, VolumeId};
use btree::{Tree, UnneededTrees};
use rt::sync::Semaphore;

use crate::commit::commit_requests::Commits;
use crate::core::Core;
use crate::state::State;
use crate::transfer::Writes;
use crate::transfer::node_writer::NodeWrites;
use crate::txn::{Kind, Txn, not_open};

/// A tree that a pass edits.
#[derive(Clone, Copy)]
enum EditedTree {
    /// The mapping of a volume.
    Volume(VolumeId),
    /// The checksums of a group.
    Group(GroupId),
}

/// A frozen tree, and the generation of the changes in it that are to be written.
struct FrozenTree {
    of: EditedTree,
    tree: Tree,
    generation: Generation,
}

/// Writes the nodes of passes.
pub(crate) struct Spiller {
    core: Core,
    commits: Rc<Commits>,
    nodes: Rc<NodeWrites>,
}

impl Spiller {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core, commits: &Rc<Commits>, nodes: &Rc<NodeWrites>) -> Rc<Spiller> {
        Rc::new(Spiller { core: core.clone(), commits: commits.clone(), nodes: nodes.clone() })
    }
}

/// The state of the spills of a pass.
pub(super) struct Spill {
    /// One at a time.
    turn: Semaphore,
    /// Trees of spills that failed, oldest first.
    unwritten: RefCell<Vec<FrozenTree>>,
    /// After a spill that found no room: so many nodes in memory are not much.
    enough: Cell<u64>,
    /// The last nodes were to be written, and could not be: nothing is edited any more.
    over: Cell<bool>,
}

impl Default for Spill {
    fn default() -> Spill {
        Spill {
            turn: Semaphore::new(1),
            unwritten: RefCell::default(),
            enough: Cell::new(0),
            over: Cell::new(false),
        }
    }
}

impl Spill {
    /// The trees that were not written, of a pass that is given up.
    pub fn take(&self) -> Vec<Tree> {
        self.unwritten.take().into_iter().map(|frozen| frozen.tree).collect()
    }

    /// Writes the nodes that the pass has in memory, if they are many.
    pub async fn if_much(&self, flow: &Spiller) -> Result<()> {
        if self.over.get() {
            return Err(not_open());
        }
        let most = flow.core.settings().dirty_nodes;
        let dirty = || flow.core.state().txns.pass().map_or(0, Txn::dirty_nodes);
        let is_much = || dirty() >= most.max(self.enough.get());
        if !is_much() {
            return Ok(());
        }
        let _turn = self.turn.acquire(1).await;
        if !is_much() {
            return Ok(());
        }
        // Trees that join the pass from now on have a newer generation than those it has.
        flow.commits.commit_direct().await?;
        let frozen = freeze_pass(&mut flow.core.state_mut())?;
        match self.write_trees(flow, frozen).await {
            // Nodes that a spill writes twice have no room of their own. At the end all have.
            Err(e) if e.kind == ErrorKind::NoSpace => {
                self.enough.set(dirty() + most);
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Writes the nodes that the pass still has in memory. It is not edited any more.
    pub async fn rest(&self, flow: &Spiller) -> Result<()> {
        let trees = pass_trees(&flow.core.state())?;
        let outcome = self.write_trees(flow, trees).await;
        self.over.set(outcome.is_err());
        outcome
    }

    async fn write_trees(&self, flow: &Spiller, newer: Vec<FrozenTree>) -> Result<()> {
        let mut trees = self.unwritten.take();
        trees.extend(newer);
        let (mut blocks, mut writes) = (Vec::new(), Writes::of_pass());
        let mut writer = flow.nodes.writer(Kind::Pass, &mut blocks, &mut writes);
        let mut sent = Ok(());
        for FrozenTree { tree, generation, .. } in &trees {
            sent = writer.tree(tree, *generation).await.map(drop);
            if sent.is_err() {
                break;
            }
        }
        writer.finish().await;
        // Also after a failure: the blocks are the pass's, and writes under way must end first.
        let written = writes.finish().await;
        let outcome = sent.and(written.map(drop));
        {
            let mut st = flow.core.state_mut();
            let group_blocks = st.space.geometry().group_blocks;
            let txn = st.txns.txn_mut(Kind::Pass)?;
            txn.nodes_placed(blocks.iter().map(|run| u64::from(run.len)).sum());
            blocks.into_iter().for_each(|run| txn.note_alloc(run, group_blocks));
        }
        if outcome.is_err() {
            *self.unwritten.borrow_mut() = trees;
            return outcome;
        }
        {
            let mut st = flow.core.state_mut();
            for FrozenTree { of, tree, .. } in &trees {
                match *of {
                    EditedTree::Volume(id) => st.forest.settle_pass_mapping(id, tree),
                    EditedTree::Group(id) => st.forest.settle_pass_sums(id, tree),
                }
            }
        }
        // Settled trees have their nodes by addresses: these are the last that hold them.
        let trees = trees.into_iter().map(|frozen| frozen.tree);
        flow.core.take_apart(UnneededTrees::of(trees)).await;
        Ok(())
    }
}

/// All trees of the pass, and the generation of its edits of each.
fn pass_trees(st: &State) -> Result<Vec<FrozenTree>> {
    let txn = st.txns.pass().ok_or_else(not_open)?;
    let volumes = txn.volumes().into_iter().map(|(id, j)| (EditedTree::Volume(id), j.generation));
    let groups = txn.groups().into_iter().map(|(id, g)| (EditedTree::Group(id), g));
    let tree = |of| match of {
        EditedTree::Volume(id) => st.forest.mapping_of(Kind::Pass, id),
        EditedTree::Group(id) => st.forest.sums_of(Kind::Pass, id),
    };
    let frozen = |(of, generation)| Some(FrozenTree { of, tree: tree(of)?.clone(), generation });
    Ok(volumes.chain(groups).filter_map(frozen).collect())
}

/// The trees of the pass that it has edited in an older generation than trees would now. What
/// it changes in them from now on is of that newer one.
fn freeze_pass(st: &mut State) -> Result<Vec<FrozenTree>> {
    let now = st.txns.generations().of_pass();
    let mut frozen = pass_trees(st)?;
    frozen.retain(|f| f.generation < now);
    let txn = st.txns.txn_mut(Kind::Pass)?;
    for f in &frozen {
        match f.of {
            EditedTree::Volume(id) => txn.rejoin_volume(id, now),
            EditedTree::Group(id) => txn.rejoin_sums(id, now),
        }
    }
    Ok(frozen)
}
