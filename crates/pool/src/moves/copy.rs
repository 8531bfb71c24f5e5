//! Copying what a closed group holds: every block is read from a good copy, verified, and written
//! to the new chunks in the order of addresses.

use std::collections::VecDeque;
use std::rc::Rc;

use base::checksum::block_crcs;
use base::{
    BLOCK, BLOCK_U64, Crc, Generation, GroupId, PoolAddr, Result, SliceList, StorageError, VolumeId,
};
use btree::Key;
use format::page::{Chunk, GroupKind};
use queue::Class;
use rt::JoinHandle;

use super::in_order::{Line, Turn, write_all};
use crate::core::Core;
use crate::space::{Pin, Run, Space};
use crate::state::State;
use crate::transfer::copies::CopyReader;
use crate::transfer::load::NodeLoader;
use crate::transfer::walk::{
    ExpectedBlock, Leaf, Owner, ReadRun, TreeId, Walk, nodes_from, pinned, runs,
};
use crate::transfer::write_copies::CopyWriter;

/// Bytes in flight.
const WINDOW_BYTES: u64 = 8 << 20;
/// Leaves of a checksum tree that are read ahead at once.
const AHEAD: usize = 16;

/// The outcome of copying the blocks of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CopyOutcome {
    Complete,
    /// Moves are to rest, or there was another command.
    Interrupted,
}

/// The chunks to which the copies of a group go.
pub(super) enum CopyTarget {
    /// To chunks that hold nothing of it.
    New(Vec<Chunk>),
    /// To chunks that are copies already. The group gives up its other chunks, which may hold the
    /// only good copy of a block.
    Kept(Vec<Chunk>),
    /// To chunks of the group that are behind. The group is not closed, so it may become empty and
    /// be given up meanwhile. Then these chunks are free, or another group's.
    Behind(Vec<Chunk>),
}

impl CopyTarget {
    fn chunks(&self) -> &[Chunk] {
        match self {
            CopyTarget::New(chunks) | CopyTarget::Kept(chunks) | CopyTarget::Behind(chunks) => {
                chunks
            }
        }
    }

    /// The rows of the devices of these chunks.
    pub fn rows(&self) -> Vec<usize> {
        self.chunks().iter().map(|c| usize::from(c.device)).collect()
    }

    /// True if blocks of a group may still be written there. It stays so while one of its blocks is
    /// pinned: only an empty group is given up.
    fn is_for(&self, space: &Space, id: GroupId) -> bool {
        let has = |c: &Chunk| space.groups().chunks(id).iter().any(|had| had.is_at(c));
        match self {
            CopyTarget::New(_) | CopyTarget::Kept(_) => true,
            CopyTarget::Behind(chunks) => chunks.iter().all(has),
        }
    }
}

/// Runs that are being copied, in order.
struct Flights {
    flow: Rc<ChunkCopier>,
    to: Rc<CopyTarget>,
    line: Line,
    flights: VecDeque<(JoinHandle<Result<()>>, u64)>,
    bytes: u64,
    outcome: Result<()>,
    /// The number of commands at the time when it was found that the group should have other
    /// chunks; `None`: no command ends this copy.
    commands: Option<u64>,
    /// True if the copy was ended before all runs were copied.
    stopped: bool,
}

impl Flights {
    /// True if nothing more is to be copied.
    fn is_over(&self) -> bool {
        let changed = |commands| self.flow.core.state().moves.commands() != commands;
        self.flow.moves_rest() || self.commands.is_some_and(changed)
    }

    /// Copies runs as soon as there is room, until the copy is ended. Each has a pin, as of when it
    /// was looked up.
    async fn copy(&mut self, runs: Vec<(ReadRun, Pin)>) -> Result<()> {
        for (run, pin) in runs {
            let bytes = u64::from(run.len()) * BLOCK_U64;
            while self.bytes > 0 && self.bytes + bytes > WINDOW_BYTES {
                self.end_first().await;
            }
            self.outcome.clone()?;
            if self.is_over() {
                self.stopped = true;
                return Ok(());
            }
            let (flow, to) = (self.flow.clone(), self.to.clone());
            let turn = self.line.next();
            let flight =
                self.flow.core.rt().spawn(async move { flow.copy_run(run, &to, &pin, turn).await });
            self.flights.push_back((flight, bytes));
            self.bytes += bytes;
        }
        Ok(())
    }

    async fn end_first(&mut self) {
        if let Some((flight, bytes)) = self.flights.pop_front() {
            let outcome = flight.await.unwrap_or_else(|| Err(StorageError::ended()));
            self.bytes -= bytes;
            if self.outcome.is_ok() {
                self.outcome = outcome;
            }
        }
    }

    /// Waits for all copies under way, and gives the outcome of the whole copy.
    async fn finish(mut self, outcome: Result<()>) -> Result<CopyOutcome> {
        while !self.flights.is_empty() {
            self.end_first().await;
        }
        outcome.and(self.outcome)?;
        Ok(if self.stopped { CopyOutcome::Interrupted } else { CopyOutcome::Complete })
    }
}

/// Copies chunks from one device to another.
pub(crate) struct ChunkCopier {
    core: Core,
    copy_writer: Rc<CopyWriter>,
    copies: Rc<CopyReader>,
    loader: Rc<NodeLoader>,
}

impl ChunkCopier {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        copy_writer: &Rc<CopyWriter>,
        copies: &Rc<CopyReader>,
        loader: &Rc<NodeLoader>,
    ) -> Rc<ChunkCopier> {
        Rc::new(ChunkCopier {
            core: core.clone(),
            copy_writer: copy_writer.clone(),
            copies: copies.clone(),
            loader: loader.clone(),
        })
    }

    /// Copies the blocks of a group that were written in generation `since` or later to these
    /// chunks, and some older ones with them. The group must be closed, or new blocks must be
    /// written to these chunks too. The copy is given up if moves are to rest, or if there have
    /// been more than so many `commands`: the group may not need it any more.
    pub(super) async fn copy_group(
        self: &Rc<Self>,
        id: GroupId,
        to: CopyTarget,
        since: Generation,
        commands: Option<u64>,
    ) -> Result<CopyOutcome> {
        self.core.state_mut().moves.begin_group();
        let mut flights = Flights {
            flow: self.clone(),
            to: Rc::new(to),
            line: Line::default(),
            flights: VecDeque::new(),
            bytes: 0,
            outcome: Ok(()),
            commands,
            stopped: false,
        };
        let kind = self.core.state().space.groups().kind(id);
        let outcome = match kind {
            GroupKind::Data => self.copy_data(id, since, &mut flights).await,
            GroupKind::Metadata => self.copy_nodes(id, since, &mut flights).await,
            GroupKind::Free => Ok(()),
        };
        // Also after an error: the chunks are given back.
        let ended = flights.finish(outcome).await;
        if !matches!(ended, Ok(CopyOutcome::Complete)) {
            self.core.state_mut().moves.give_up_group();
        }
        ended
    }

    async fn copy_data(&self, id: GroupId, since: Generation, flights: &mut Flights) -> Result<()> {
        let group_blocks = self.core.state().space.geometry().group_blocks;
        let (mut walk, mut at) = (Walk::new(id, 0, group_blocks).since(since), 0);
        while !flights.stopped {
            let (missing, pin) = {
                let st = self.core.state();
                (walk.ahead(&st, AHEAD), st.space.limbo().pin())
            };
            self.loader.load_nodes(Class::Move, self.loader.pin_nodes(missing, pin), false).await;
            let to = &flights.to;
            let step = |st: &mut State| {
                let goes_on = to.is_for(&st.space, id);
                let leaf = if goes_on { walk.next_leaf(st, at)? } else { Leaf::End };
                Ok((leaf, st.space.limbo().pin()))
            };
            let (leaf, pin) = self.loader.resident(Class::Move, step).await?;
            match leaf {
                Leaf::End => return Ok(()),
                Leaf::NoMaps => {
                    drop(pin);
                    self.loader.load_maps(id).await?;
                }
                Leaf::Blocks(blocks, upto) => {
                    let runs = pinned(&self.core.state(), runs(blocks, group_blocks, 0), pin);
                    flights.copy(runs).await?;
                    at = upto;
                    self.core.rt().yield_now().await;
                }
            }
        }
        Ok(())
    }

    /// The checksum of a node is in the reference to it, not in a checksum tree. So all trees are
    /// walked to find the nodes that stand in this group.
    async fn copy_nodes(
        &self,
        id: GroupId,
        since: Generation,
        flights: &mut Flights,
    ) -> Result<()> {
        // To walk all trees may take minutes.
        let pin = {
            let st = self.core.state();
            let geometry = st.space.geometry();
            let group = Run { addr: geometry.join(id, 0), len: geometry.group_blocks };
            st.space.limbo().pin_blocks([group], &st.space.limbo().pin())
        };
        let mut nodes = Vec::new();
        // What a snapshot shares with the one before is looked at there, unless that is deleted
        // meanwhile.
        let deletions = self.core.state().forest.deletions();
        self.nodes_of_volumes(TreeId::MappingSince, since, id, &mut nodes).await?;
        if self.core.state().forest.deletions() != deletions {
            self.nodes_of_volumes(TreeId::Mapping, since, id, &mut nodes).await?;
        }
        let (group_blocks, groups) = {
            let geometry = self.core.state().space.geometry();
            (geometry.group_blocks, geometry.group_capacity)
        };
        for group in (0..groups).map(GroupId) {
            self.nodes_of(TreeId::Sums(group), since, id, &mut nodes).await?;
        }
        if !flights.to.is_for(&self.core.state().space, id) {
            return Ok(());
        }
        nodes.sort_unstable_by_key(|e: &ExpectedBlock| e.addr);
        nodes.dedup_by_key(|e| e.addr);
        let runs = runs(nodes, group_blocks, 0).into_iter().map(|run| (run, pin.clone()));
        flights.copy(runs.collect()).await
    }

    /// The same of all volumes and snapshots, of their mappings and deadlists.
    async fn nodes_of_volumes(
        &self,
        mapping: impl Fn(VolumeId) -> TreeId,
        since: Generation,
        id: GroupId,
        into: &mut Vec<ExpectedBlock>,
    ) -> Result<()> {
        let mut next = 0;
        loop {
            let volume = self.core.state().forest.volume_from(VolumeId(next));
            let Some(volume) = volume else { return Ok(()) };
            self.nodes_of(mapping(volume), since, id, into).await?;
            self.nodes_of(TreeId::Deadlist(volume), since, id, into).await?;
            next = volume.0 + 1;
        }
    }

    /// Appends the nodes of a tree, of `since` and later generations, that stand in a group.
    async fn nodes_of(
        &self,
        which: TreeId,
        since: Generation,
        id: GroupId,
        into: &mut Vec<ExpectedBlock>,
    ) -> Result<()> {
        let mut from = Key::EMPTY;
        loop {
            let (found, next) =
                self.loader.resident(Class::Move, |st| nodes_from(st, which, since, &from)).await?;
            {
                let geometry = self.core.state().space.geometry();
                into.extend(found.into_iter().filter(|e| geometry.split(e.addr).0 == id));
            }
            self.core.rt().yield_now().await;
            match next {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }

    /// Copies a run of neighbours when its turn comes. A block that is lost is left out: reads of
    /// it fail.
    async fn copy_run(&self, run: ReadRun, to: &CopyTarget, pin: &Pin, turn: Turn) -> Result<()> {
        let crcs: Vec<Crc> = run.blocks.iter().map(|e| e.crc).collect();
        let targets = to.chunks();
        if matches!(to, CopyTarget::Kept(_))
            && self.chunks_are_good(targets, run.first(), &crcs).await
        {
            return Ok(());
        }
        if let Ok(data) = self.copies.read_verified(run.first(), &crcs, Class::Move, pin).await {
            turn.comes().await;
            let data = SliceList::from_iter([data]);
            return self.write_to(targets, run.first(), data, Some(turn)).await;
        }
        for e in &run.blocks {
            match self.copies.read_verified(e.addr, &[e.crc], Class::Move, pin).await {
                Ok(data) => {
                    turn.comes().await;
                    self.write_to(targets, e.addr, SliceList::from_iter([data]), None).await?;
                }
                Err(why) => self.no_copy_read(e, why, pin).await?,
            }
        }
        Ok(())
    }

    /// To be called when no copy of a block could be read. If it is lost, the move goes on without
    /// it. If a device that is away or does not answer may have it, or it is a node, this returns
    /// the error and the move ends.
    async fn no_copy_read(&self, e: &ExpectedBlock, why: StorageError, pin: &Pin) -> Result<()> {
        let is_node = matches!(e.owner, Owner::Node(_));
        if is_node || !self.copies.is_lost(e.addr, e.crc, Class::Move, pin).await {
            return Err(why);
        }
        self.core.permit()?;
        let mut st = self.core.state_mut();
        if e.extent().is_some_and(|extent| st.scrub.enter_lost(extent)) {
            st.need_superblock();
            tracing::error!(block = e.addr.0, "a block that moves has no good copy: {why}");
        }
        Ok(())
    }

    /// True if these blocks are good in all of these chunks.
    async fn chunks_are_good(&self, chunks: &[Chunk], addr: PoolAddr, crcs: &[Crc]) -> bool {
        for &c in chunks {
            let (row, offset) = self.core.place(c, addr);
            let Some(disk) = self.core.disk(row) else { return false };
            let (outcome, buf) = disk.read_new(Class::Move, offset, crcs.len() * BLOCK).await;
            if outcome.is_err() || !block_crcs(&buf).eq(crcs.iter().copied()) {
                return false;
            }
        }
        true
    }

    /// Writes blocks to chunks. `last_of`: a turn that ends when the writes have been handed to the
    /// devices.
    async fn write_to(
        &self,
        targets: &[Chunk],
        addr: PoolAddr,
        data: SliceList,
        last_of: Option<Turn>,
    ) -> Result<()> {
        let bytes: usize = data.iter().map(|s| s.len()).sum();
        let write = |&c: &Chunk| {
            let (row, offset) = self.core.place(c, addr);
            self.copy_writer.write_lacking(row, offset, data.clone(), Class::Move)
        };
        write_all(targets.iter().map(write), last_of).await?;
        let now = self.core.now();
        self.core.state_mut().moves.copied(now, bytes as u64 / BLOCK as u64 * targets.len() as u64);
        Ok(())
    }

    /// True if no chunk may be moved now: moves are paused, or the pool is closed.
    pub(crate) fn moves_rest(&self) -> bool {
        self.core.state().moves.is_paused() || self.core.is_closed()
    }
}

#[cfg(test)]
mod tests {
    use base::Duration;
    use model::moves::{MovesOutcome, MovesState};
    use rt::{Order, Rt};
    use sim::{DiskModel, World};

    use super::*;
    use crate::Pool;
    use crate::{CreateOptions, DeviceFile, Settings};

    const MIB: u64 = 1 << 20;

    async fn put(pool: &Pool, blocks: u64) {
        let data = pool.bufs().zeroed(blocks as usize * BLOCK).freeze();
        pool.write(VolumeId(1), base::Lba(0), &data).await.expect("write");
        pool.commit().await.expect("commit");
    }

    /// A pool of one copy on two devices of so many MiB, with groups of so many, and `blocks`
    /// blocks of a volume.
    fn run<F: Future<Output = ()> + 'static>(
        (size, group): (u64, u64),
        blocks: u64,
        body: impl FnOnce(Rt, Pool) -> F + 'static,
    ) {
        let world = World::new(1);
        let disk = |path: &str| {
            let file = world.add_disk(DiskModel::nvme(size * MIB));
            DeviceFile { path: path.into(), file, size_bytes: size * MIB }
        };
        let files = vec![disk("a"), disk("b")];
        let rt = Rt::new(world.backend(), Order::Seeded(1), 256);
        let r = rt.clone();
        let ended = rt.block_on(async move {
            let group_bytes = Some(group * MIB);
            let options = CreateOptions { name: "t".into(), copies: 1, group_bytes };
            crate::create(&r, &files, &options, &[[1; 16], [2; 16], [3; 16]])
                .await
                .expect("create");
            let (pool, _) = Pool::open(&r, files, Settings::default()).await.expect("open");
            pool.create_volume("v", 1 << 30, 4096).await.expect("volume");
            put(&pool, blocks).await;
            body(r, pool).await;
        });
        rt.kill();
        ended.expect("alive");
    }

    /// Blocks that a resync of the group of block 0 copies to these chunks.
    async fn resynced(pool: &Pool, to: &[Chunk]) -> u64 {
        let copied = || pool.moves().moves_status().copied_bytes / BLOCK_U64;
        let (before, id) = (copied(), group_of_first(pool));
        let to = CopyTarget::Behind(to.to_vec());
        let outcome = pool.flows().copier.copy_group(id, to, Generation(1), None).await;
        assert_eq!(outcome.expect("copied"), CopyOutcome::Complete);
        copied() - before
    }

    fn group_of_first(pool: &Pool) -> GroupId {
        let range = base::BlockRange::of(base::Lba(0), 1);
        let st = pool.core().state_mut();
        let at = st.forest.extents(VolumeId(1), range, 1).expect("resident")[0].addr;
        st.space.geometry().split(at).0
    }

    fn written(pool: &Pool) -> u64 {
        pool.core().state().moves.written()
    }

    /// Waits until something was copied.
    async fn begun(rt: &Rt, pool: &Pool) {
        while written(pool) == 0 {
            rt.sleep(Duration::from_micros(100)).await;
        }
    }

    /// A resync found that a chunk of a group is behind. Before it comes to the blocks, the group
    /// was given up and formed again, and the chunk is another group's.
    #[test]
    fn a_resync_writes_to_no_chunk_that_is_not_the_groups_any_more() {
        run((16, 1), 100, |_, pool| async move {
            let id = group_of_first(&pool);
            let had = pool.core().state().space.groups().chunks(id).to_vec();
            assert_eq!(resynced(&pool, &had).await, 100);

            pool.discard(VolumeId(1), base::Lba(0), base::Lba(100)).await.expect("discard");
            pool.commit().await.expect("commit");
            pool.flows().room.empty_limbo().await;
            assert_eq!(pool.core().state().space.groups().kind(id), GroupKind::Free);
            // Others take the chunk.
            let row = had[0].device.into();
            let take =
                || pool.core().state_mut().devices.take_chunk_of(row).expect("it has chunks");
            while !take().is_at(&had[0]) {}
            put(&pool, 100).await;
            assert_eq!(group_of_first(&pool), id, "it has the same number");
            let has = pool.core().state().space.groups().chunks(id).to_vec();
            assert!(!has[0].is_at(&had[0]));
            assert_eq!(resynced(&pool, &had).await, 0);
            assert_eq!(resynced(&pool, &has).await, 100);
        });
    }

    /// A group is large, and a pause takes effect within it. What is copied again does not count.
    #[test]
    fn a_pause_does_not_wait_for_the_end_of_a_group() {
        run((128, 32), 8_000, |r, pool| async move {
            let id = group_of_first(&pool);
            let has = pool.core().state().space.groups().chunks(id).to_vec();
            let p = pool.clone();
            let copy = async move {
                p.flows().copier.copy_group(id, CopyTarget::Behind(has), Generation(1), None).await
            };
            let copy = r.spawn(copy);
            begun(&r, &pool).await;
            pool.moves().pause_moves(true);
            assert_eq!(copy.await.expect("alive").expect("no error"), CopyOutcome::Interrupted);
            assert!(written(&pool) <= 3 * WINDOW_BYTES, "{}", written(&pool));
            assert_eq!(pool.moves().moves_status().copied_bytes, 0);
        });
    }

    /// The same for a cancel: the group keeps the chunks that it has.
    #[test]
    fn a_cancel_does_not_wait_for_the_end_of_a_group() {
        run((128, 32), 8_000, |r, pool| async move {
            let id = group_of_first(&pool);
            let had = pool.core().state().space.groups().chunks(id).to_vec();
            let name = pool.core().state().devices.path(had[0].device.into()).to_owned();
            pool.moves().pause_moves(true);
            pool.moves().remove_device(&name).await.expect("remove");
            pool.moves().pause_moves(false);
            begun(&r, &pool).await;
            pool.moves().cancel_moves().await.expect("cancel");
            while pool.moves().moves_status().ended.is_none() {
                r.sleep(Duration::from_millis(1)).await;
            }
            assert!(written(&pool) <= 3 * WINDOW_BYTES, "{}", written(&pool));
            let status = pool.moves().moves_status();
            assert_eq!((status.state, status.copied_bytes), (MovesState::None, 0), "{status:?}");
            assert_eq!(status.ended.map(|end| end.outcome), Some(MovesOutcome::Cancelled));
            assert_eq!(pool.core().state().space.groups().chunks(id), had);
        });
    }
}
