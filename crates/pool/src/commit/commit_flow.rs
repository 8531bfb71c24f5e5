//! Commit: makes a transaction durable, in the background.
//!
//! 1. *Freeze*, in O(1): the open transaction is taken, the next one opens. Other tasks wait for no
//!    other step.
//! 2. The changed nodes of its trees get addresses and are written; nothing refers to them yet, so
//!    their order does not matter.
//! 3. Bitmaps take in what was allocated and freed; pages whose content changed are written to
//!    their other slot, on every device, while the nodes may still be on their way.
//! 4. When all that is written, all devices are flushed; then the superblocks are written and
//!    flushed. From now on this state is the pool.
//! 5. What the commit freed may be used again as soon as no read uses it any more. All tasks that
//!    waited for the commit are woken.
//!
//! A commit that fails before the flush keeps its frozen transaction. The next request tries the
//! whole commit again. No change of the commit counts until an attempt succeeds. Attempts may write
//! different table pages, so each table page has the number of its attempt.
//!
//! The flush and the superblocks ([`superblocks`](super::superblocks)) have no second try. They
//! succeed, if need be without a device, or the pool's [standing](crate::devices::standing) ends.
//! The standing also ends if the commit frees a block that is not allocated. This error is found
//! before the bitmaps are changed.

use std::collections::BTreeSet;
use std::rc::Rc;

use base::{GroupId, Result};
use btree::{NodePtr, UnneededTrees};
use format::node::RootPtr;
use format::page::VOLUMES_PER_PAGE;
use format::superblock::scrub::LostExtent;

use super::deadlists::{Deadlists, roots_after};
use super::frozen::{FrozenTxn, RUNS, SLICE};
use super::superblocks::Durable;
use crate::commit::commit_requests::Commits;
use crate::commit::pages::PageWriter;
use crate::commit::superblocks::Superblocks;
use crate::commit::take_snapshots::take_snapshots;
use crate::core::Core;
use crate::devices::standing::Permit;
use crate::findings::lost_blocks::overlap;
use crate::space::{PlannedBitmaps, Run, UnloadProgress, push_run};
use crate::transfer::Writes;
use crate::transfer::load::NodeLoader;
use crate::transfer::node_writer::NodeWrites;
use crate::transfer::writer_watch::WriterWatch;
use crate::txn::Kind;

/// The steps of a commit.
pub(crate) struct CommitRun {
    pub(super) core: Core,
    watch: Rc<WriterWatch>,
    loader: Rc<NodeLoader>,
    pub(super) commits: Rc<Commits>,
    pages: Rc<PageWriter>,
    superblocks: Rc<Superblocks>,
    nodes: Rc<NodeWrites>,
    deadlists: Rc<Deadlists>,
}

impl CommitRun {
    /// Makes the flow out of the core and the flows that it calls.
    #[allow(clippy::too_many_arguments, reason = "a flow names each flow that it calls")]
    pub(crate) fn new(
        core: &Core,
        watch: &Rc<WriterWatch>,
        loader: &Rc<NodeLoader>,
        commits: &Rc<Commits>,
        pages: &Rc<PageWriter>,
        superblocks: &Rc<Superblocks>,
        nodes: &Rc<NodeWrites>,
        deadlists: &Rc<Deadlists>,
    ) -> Rc<CommitRun> {
        Rc::new(CommitRun {
            core: core.clone(),
            watch: watch.clone(),
            loader: loader.clone(),
            commits: commits.clone(),
            pages: pages.clone(),
            superblocks: superblocks.clone(),
            nodes: nodes.clone(),
            deadlists: deadlists.clone(),
        })
    }

    pub(super) async fn write_frozen(self: &Rc<Self>, frozen: &mut FrozenTxn) -> Result<Durable> {
        let mut writes = Writes::new();
        let link = self.core.state().attached.link().clone();
        let this = self.clone();
        let marked = async move {
            // Without a new mark the last one of the cache stays.
            if let Some(mark) = link.make_durable().await? {
                this.core.state_mut().attached.set_mark(mark);
            }
            Ok(())
        };
        writes.add(self.core.rt().spawn(marked)).await;
        let (this, next) = (self.clone(), self.core.state().txns.sequence() + 1);
        writes.add(self.core.rt().spawn(async move { this.watch.look_before(next).await })).await;
        let sent = self.send_frozen(frozen, &mut writes).await;
        // Also after a failure: writes under way must end before anything is tried again.
        let written = writes.finish().await;
        let flushed = self.superblocks.flush_devices(sent.and(written)?).await?;
        let digest = self.core.state().tables.digest_with(&frozen.table_pages, frozen.version());
        if frozen.changes || !frozen.bitmap_pages.is_empty() {
            self.core.state_mut().note_change(frozen.generation);
        }
        self.superblocks.write_superblocks(flushed, frozen.generation, digest).await
    }

    /// Steps 2 and 3, up to all writes being under way.
    async fn send_frozen(&self, frozen: &mut FrozenTxn, writes: &mut Writes) -> Result<()> {
        self.capture(frozen).await;
        let roots = self.write_nodes(frozen, writes).await?;
        self.deadlists.write(frozen, writes).await?;
        self.apply(frozen).await?;
        self.enter_roots(frozen, &roots).await;
        self.pages.plan_pages(frozen).await;
        self.pages.write_pages(frozen, writes).await;
        Ok(())
    }

    /// Takes the trees as they were at the freeze. From here on edits of the open transaction need
    /// not keep snapshots of them.
    async fn capture(&self, frozen: &mut FrozenTxn) {
        if frozen.captured {
            return;
        }
        let g = frozen.generation;
        for part in frozen.txn.volumes().chunks(SLICE) {
            {
                let mut st = self.core.state_mut();
                frozen
                    .volumes
                    .extend(part.iter().filter_map(|&(id, _)| st.forest.take_frozen_volume(id, g)));
            }
            self.core.breathe(part.len()).await;
        }
        for part in frozen.txn.groups().chunks(SLICE) {
            {
                let mut st = self.core.state_mut();
                frozen
                    .sums
                    .extend(part.iter().map(|&(id, _)| (id, st.forest.take_frozen_sums(id, g))));
            }
            self.core.breathe(part.len()).await;
        }
        frozen.captured = true;
    }

    /// Sends the changed nodes of all trees; returns the new roots, in the order of
    /// `frozen.volumes`, then of `frozen.sums`.
    async fn write_nodes(
        &self,
        frozen: &mut FrozenTxn,
        writes: &mut Writes,
    ) -> Result<Vec<Option<RootPtr>>> {
        let trees =
            frozen.volumes.iter().map(|v| &v.mapping).chain(frozen.sums.iter().map(|c| &c.1));
        let mut roots = Vec::with_capacity(frozen.volumes.len() + frozen.sums.len());
        let mut writer = self.nodes.writer(Kind::Direct, &mut frozen.node_blocks, writes);
        let mut outcome = Ok(());
        for tree in trees {
            match writer.tree(tree, frozen.generation).await {
                Ok(root) => roots.push(root),
                Err(e) => {
                    outcome = Err(e);
                    break;
                }
            }
        }
        writer.finish().await;
        outcome.map(|()| roots)
    }

    /// Enters allocations and frees into the durable bitmaps: all of them, or none.
    async fn apply(&self, frozen: &mut FrozenTxn) -> Result<()> {
        if frozen.applied {
            return Ok(());
        }
        self.gather_frees(frozen).await;
        let mut groups: BTreeSet<GroupId> = BTreeSet::new();
        let geometry = self.core.state().space.geometry();
        for (part, _) in frozen.changes() {
            groups.extend(part.iter().map(|r| geometry.split(r.addr).0));
            self.core.breathe(part.len()).await;
        }
        for (n, &id) in (1..).zip(&groups) {
            self.loader.load_maps(id).await?;
            self.core.breathe_each(n).await;
        }
        let mut planned = PlannedBitmaps::default();
        for (part, set) in frozen.changes() {
            for &run in part {
                let mut st = self.core.state_mut();
                st.space.bitmaps().plan(&mut planned, run, set).map_err(|e| st.end_standing(e))?;
            }
            self.core.breathe(part.len()).await;
        }
        while planned.len() > 0 {
            let left = planned.len();
            {
                let mut st = self.core.state_mut();
                for _ in 0..SLICE {
                    let Some((place, bits)) = planned.pop() else { break };
                    frozen.before.insert(place, st.space.bitmaps_mut().install(place, &bits));
                }
            }
            self.core.breathe(left).await;
        }
        frozen.touched_groups = groups;
        frozen.applied = true;
        Ok(())
    }

    /// Gathers what is freed: data, and the blocks of replaced nodes.
    async fn gather_frees(&self, frozen: &mut FrozenTxn) {
        let blocks = self.core.state().space.geometry().group_blocks;
        for (mut frees, nodes) in frozen.txn.take_frees() {
            let mut nodes = nodes.resolve();
            loop {
                let mut done = 0;
                {
                    let mut st = self.core.state_mut();
                    for NodePtr { addr, .. } in nodes.by_ref().take(RUNS) {
                        st.forest.store_mut().forget(addr);
                        push_run(&mut frees, Run { addr, len: 1 }, blocks);
                        done += 1;
                    }
                }
                if done < RUNS {
                    break;
                }
                self.core.rt().yield_now().await;
            }
            if !frees.is_empty() {
                frozen.frees.push(frees);
            }
        }
    }

    /// Puts the new roots into the records that the table pages will say.
    async fn enter_roots(&self, frozen: &mut FrozenTxn, roots: &[Option<RootPtr>]) {
        let (volume_roots, sum_roots) = roots.split_at(frozen.volumes.len());
        let deadlists = roots_after(frozen, |id| self.core.state().forest.deadlist(id));
        for (n, (v, root)) in (1..).zip(frozen.volumes.iter().zip(volume_roots)) {
            let place = {
                let mut st = self.core.state_mut();
                let deadlist = deadlists.get(&v.id).copied();
                let deadlist = deadlist.unwrap_or_else(|| st.forest.deadlist(v.id));
                let taken = frozen.snapshots.iter().find(|taken| taken.of == v.id);
                let snapshot = taken.and_then(|taken| {
                    let deadlist = deadlists.get(&taken.id).copied().flatten();
                    st.forest.enter_snapshot(taken.id, *root, deadlist)
                });
                frozen.table_pages.extend(snapshot.map(|place| place / VOLUMES_PER_PAGE));
                st.forest.enter_root(v, *root, deadlist)
            };
            frozen.table_pages.extend(place.map(|place| place / VOLUMES_PER_PAGE));
            self.core.breathe_each(n).await;
        }
        for (n, ((id, _), root)) in (1..).zip(frozen.sums.iter().zip(sum_roots)) {
            self.core.state_mut().space.groups_mut().set_checksums(*id, *root);
            frozen.touched_groups.insert(*id);
            self.core.breathe_each(n).await;
        }
    }

    /// Enters the durable commit into the state: page slots flip, tree roots settle, freed blocks
    /// wait for reads, and freed blocks leave the list of lost blocks. Returns the trees of the
    /// commit. The caller takes these trees apart.
    pub(super) async fn complete(&self, _: Durable, frozen: FrozenTxn) -> UnneededTrees {
        for (n, &place) in (1..).zip(&frozen.bitmap_pages) {
            self.core.state_mut().space.bitmaps_mut().flip_slot(place);
            self.core.breathe_each(n).await;
        }
        for (n, v) in (1..).zip(&frozen.volumes) {
            self.core.state_mut().forest.settle_volume(v);
            self.core.breathe_each(n).await;
        }
        self.settle_snapshots(&frozen);
        for (n, (id, tree)) in (1..).zip(&frozen.sums) {
            self.core.state_mut().forest.settle_sums(*id, tree);
            self.core.breathe_each(n).await;
        }
        let (lost, mut st) = loop {
            let known = self.core.state().scrub.extents().to_vec();
            let lost = self.lost_of(&known, &frozen.frees).await;
            let st = self.core.state_mut();
            // A read may have found more meanwhile.
            if st.scrub.extents() == known {
                break (lost, st);
            }
        };
        st.tables.complete(&frozen.table_pages, frozen.version());
        st.txns.complete(frozen.generation);
        st.host_log.note_durable(frozen.generation.0);
        st.histories.complete();
        st.attached.end_publishing();
        if st.scrub.freed(&lost) {
            st.note_in_superblock();
        }
        st.space.limbo_mut().free_after_reads(frozen.frees);
        drop(st);
        let mappings = frozen.volumes.into_iter().map(|v| v.mapping);
        let deadlists = frozen.deadlists.into_iter().flat_map(|all| all.lists);
        let mappings = mappings.chain(deadlists.map(|list| list.tree));
        UnneededTrees::of(mappings.chain(frozen.sums.into_iter().map(|(_, tree)| tree)))
    }

    /// Enters the deadlists and the snapshots of a durable commit into the state.
    fn settle_snapshots(&self, frozen: &FrozenTxn) {
        let mut st = self.core.state_mut();
        for (id, root) in roots_after(frozen, |id| st.forest.deadlist(id)) {
            st.forest.set_deadlist(id, root);
        }
        frozen.snapshots.iter().for_each(|taken| st.forest.settle_snapshot(taken.id));
        let drained = frozen.deadlists.iter().flat_map(|all| &all.drained);
        drained.for_each(|&id| st.forest.note_drained(id));
    }

    /// The runs of `frees` that overlap an extent of `extents`, which lists lost blocks.
    async fn lost_of(&self, extents: &[LostExtent], frees: &[Vec<Run>]) -> Vec<Run> {
        let mut found = Vec::new();
        if extents.is_empty() {
            return found;
        }
        for part in frees.iter().flat_map(|list| list.chunks(RUNS)) {
            let is_lost = |run: &&Run| extents.iter().any(|e| overlap(e, run).is_some());
            found.extend(part.iter().filter(is_lost));
            self.core.breathe(part.len()).await;
        }
        found
    }

    /// Does the work that follows a commit, in slices: takes groups into use whose time out of use
    /// is over, frees blocks of limbo that no read uses, dissolves empty groups, and drops idle
    /// bitmaps.
    pub(super) async fn tidy_up(&self) {
        let now = self.core.now();
        self.core.state_mut().space.supply_mut().use_again(now);
        while self.core.state_mut().space.drain(4 * SLICE) {
            self.core.rt().yield_now().await;
        }
        let mut left = self.core.state().space.bitmaps().loaded();
        loop {
            {
                let mut st = self.core.state_mut();
                let st = &mut *st;
                st.space.dissolve_empty(&mut st.devices, SLICE);
                left = left.saturating_sub(SLICE);
                let keep = self.core.settings().loaded_groups;
                if st.space.unload_idle(keep, SLICE) == UnloadProgress::Done || left == 0 {
                    return;
                }
            }
            self.core.rt().yield_now().await;
        }
    }

    /// Takes the open transaction, and opens the next one. Other tasks wait for no other part of a
    /// commit.
    pub(super) fn freeze(&self, _: Permit) -> FrozenTxn {
        let from = self.core.rt().precise_now();
        let frozen = {
            let mut st = self.core.state_mut();
            let now = u64::from(self.core.unix_time(self.core.now()));
            let snapshots = take_snapshots(&mut st, now);
            let txn = st.txns.freeze();
            st.attached.begin_publishing(txn.published());
            FrozenTxn::new(txn, st.space.groups_mut().take_changed(), snapshots)
        };
        let took = self.core.rt().precise_now().since(from);
        self.core.metrics_mut().note_frozen(took);
        frozen
    }
}
