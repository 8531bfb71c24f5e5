//! Rounds: a second transaction, of write-back, open beside the direct one and published at once.
//!
//! A round writes into free space and edits private clones of trees: of the mapping trees of its volumes, and of the checksum trees of the groups that
//! it allocates from. Nobody else edits those meanwhile: direct writes take no block of its groups (nor does it take groups of which they have taken some), its volumes
//! write back, and what a shrink left of them is freed when it has ended. Readers and direct commits see the published trees. So a direct commit contains nothing of the round, and a crash leaves nothing of it but free space.
//!
//! To publish it, its nodes are written first; then, in one step, its trees take the place of the published ones and its lists join the open transaction,
//! whose commit makes all of it durable, together with the epoch, in one superblock.
//!
//! **Generations.** Commits use every other number. A tree joins a round with the number before the open transaction's, and the round's edits of it have
//! that one. So they are newer than all that the tree has, older than all that direct transactions will change in it, and no node of a round is taken for
//! one of a transaction.
//!
//! **Space** is promised ahead ([`Pool::reserve`]): what direct writes may take is what is left. A round lives on promises alone.

use std::rc::Rc;

use base::{BLOCK, Crc, Epoch, Generation, GroupId, Instant, Lba, SliceList, VolumeId};
use btree::{Changes, WriteOut};
use format::page::GroupKind;
use queue::Class;
use smallvec::SmallVec;

use crate::alloc::Alloc;
use crate::error::{ErrorKind, PoolError, Result, Step};
use crate::extents::{Run, push_run};
use crate::reservation::Reservation;
use crate::standing::Permit;
use crate::state::State;
use crate::txn::Merged;
use crate::{Pool, checksums, mapping};

/// Nodes that are serialised, or runs that are given back, before other tasks get a turn.
const SLICE: usize = 64;
/// What a round has changed.
pub(crate) struct RoundTxn {
    pub allocs: Vec<Run>,
    pub frees: Vec<Run>,
    /// In its trees, each of which has its own generation.
    pub nodes: Changes,
    /// Its volumes.
    pub volumes: std::collections::BTreeMap<VolumeId, Joined>,
    /// The groups whose checksum trees it edits, and the generation of its edits.
    pub groups: std::collections::BTreeMap<GroupId, Generation>,
    pub cursor: Option<(GroupId, u32)>,
    /// A group that it has begun to write to, until that was noted.
    pub joined: Option<GroupId>,
    /// Room for the blocks that it has yet to write.
    pub room: Reservation,
}

/// The cut of a cache that the pool's image is.
#[derive(Clone, Copy)]
pub(crate) struct Published {
    pub epoch: Epoch,
    /// In seconds of Unix time; 0: not known.
    pub taken_at: u32,
}

/// A volume in a round.
pub(crate) struct Joined {
    /// Of the round's edits of its mapping.
    pub generation: Generation,
    /// By how many blocks it grew.
    pub grown: i64,
}

/// An open round; clones are the same.
#[derive(Clone)]
pub struct Round(Rc<Pool>);

impl Pool {
    /// The epoch of the last published cut; 0: none.
    pub fn published(&self) -> Epoch {
        self.state().published.epoch
    }

    /// When that cut was taken, or the cache attached if none was published yet, in seconds of Unix time; `None`: not known.
    pub fn published_at(&self) -> Option<u64> {
        let at = self.state().published.taken_at;
        (at > 0).then_some(u64::from(at))
    }

    /// In seconds of Unix time; 0: not known.
    pub(crate) fn unix_time(&self, at: Instant) -> u32 {
        match self.settings().unix_time_at_zero {
            0 => 0,
            zero => u32::try_from(zero + at.since(Instant(0)).as_secs()).unwrap_or(0),
        }
    }

    /// Opens the round; there is one at a time. It takes all of `room`, and writes no more blocks
    /// than that.
    pub fn begin_round(&self, room: &mut Reservation) -> Result<Round> {
        let mut st = self.state_mut();
        st.standing.permit()?;
        if st.round.is_some() {
            return Err(PoolError::new(ErrorKind::Invalid, "a round is open already"));
        }
        st.round = Some(RoundTxn {
            allocs: Vec::new(),
            frees: Vec::new(),
            nodes: Changes::new(Generation(0)),
            volumes: Default::default(),
            groups: Default::default(),
            cursor: None,
            joined: None,
            room: room.split_all(),
        });
        Ok(Round(Rc::new(self.clone())))
    }
}

/// The outcome of a step of a round.
pub(crate) enum Entered {
    /// It is done.
    Done,
    /// What it needs is in the direct transaction: that has to be committed first.
    Busy,
}

impl Round {
    pub(crate) fn pool(&self) -> &Pool {
        &self.0
    }

    /// Writes whole blocks, of these checksums, into free space; they become the content of the volume from `lba` on when the round is published.
    pub async fn write(&self, volume: VolumeId, lba: Lba, data: SliceList, crcs: &[Crc]) -> Result<()> {
        let bytes: usize = data.iter().map(|s| s.len()).sum();
        assert_eq!(bytes, crcs.len() * BLOCK);
        let runs = self.take_blocks(crcs.len() as u32).await?;
        let outcome = match self.write_runs(&runs, data).await {
            Ok(()) => self.enter(|st| map(st, volume, lba, &runs, crcs)).await,
            Err(e) => Err(e),
        };
        if outcome.is_err() {
            let mut st = self.0.state_mut();
            runs.iter().for_each(|r| st.unalloc(r.addr, r.len));
        }
        outcome
    }

    /// Unmaps `[lba, end)` when the round is published.
    pub async fn discard(&self, volume: VolumeId, lba: Lba, end: Lba) -> Result<()> {
        let mut at = lba;
        while at < end {
            let mut next = end;
            self.enter(|st| unmap(st, volume, (at, end), &mut next)).await?;
            at = next;
            self.0.rt().yield_now().await;
        }
        Ok(())
    }

    /// Runs a step until it is done.
    pub(crate) async fn enter(&self, mut step: impl FnMut(&mut State) -> Step<Entered>) -> Result<()> {
        loop {
            match self.0.resident(Class::Commit, &mut step).await? {
                Entered::Done => return Ok(()),
                Entered::Busy => self.commit_direct().await?,
            }
        }
    }

    /// Commits the direct transaction, whatever is in it.
    async fn commit_direct(&self) -> Result<()> {
        self.0.state_mut().open.superblock = true;
        self.0.commit().await
    }

    async fn take_blocks(&self, blocks: u32) -> Result<SmallVec<[Run; 1]>> {
        let mut runs: SmallVec<[Run; 1]> = SmallVec::new();
        let mut missing = blocks;
        let mut commits = 0;
        while missing > 0 {
            let (got, joined) = {
                let mut st = self.0.state_mut();
                (st.alloc_round(missing), st.round.as_mut().and_then(|r| r.joined.take()))
            };
            joined.into_iter().for_each(|id| self.warm_checksums(id));
            let outcome = match got {
                Alloc::Got(run) => {
                    missing -= run.len;
                    runs.push(run);
                    Ok(())
                }
                Alloc::NeedMaps(id) => {
                    self.0.load_maps_to_take(id).await;
                    Ok(())
                }
                Alloc::Full if commits < 3 => {
                    commits += 1;
                    self.commit_direct().await
                }
                Alloc::Full => Err(self.0.state().no_room("write-back: the pool is full")),
            };
            if let Err(e) = outcome {
                let mut st = self.0.state_mut();
                runs.iter().for_each(|r| st.unalloc(r.addr, r.len));
                return Err(e);
            }
        }
        Ok(runs)
    }

    async fn write_runs(&self, runs: &[Run], data: SliceList) -> Result<()> {
        if let [run] = runs {
            return self.0.write_copies(run.addr, data, Class::Commit).await;
        }
        let mut tasks = Vec::with_capacity(runs.len());
        let mut at = 0;
        for run in runs {
            let len = run.len as usize * BLOCK;
            let (pool, part, addr) = (self.0.clone(), cut(&data, at, len), run.addr);
            at += len;
            tasks.push(self.0.rt().spawn(async move { pool.write_copies(addr, part, Class::Commit).await }));
        }
        let mut outcome = Ok(());
        for t in tasks {
            outcome = outcome.and(t.await.unwrap_or_else(|| Err(PoolError::ended())));
        }
        outcome
    }

    /// Makes everything of the round durable and visible, and `epoch`, cut at `taken_at`, the published one, at once. After an error nothing was published,
    /// unless it says that the commit failed: that is tried again by the pool, and then publishes all of it. Staging volumes of `epoch` and those before it
    /// end with it.
    pub async fn publish(&self, epoch: Epoch, taken_at: Instant) -> Result<()> {
        let cut = Published { epoch, taken_at: self.0.unix_time(taken_at) };
        self.write_nodes().await?;
        let ended = {
            let mut st = self.0.state_mut();
            let permit = st.standing.permit()?;
            st.merge_round(permit, cut)?;
            st.end_stagings(|s| s.epoch <= epoch)
        };
        self.0.round_ended();
        // Also if the commit fails: what it publishes is what counts from now on.
        self.0.reap_each(ended);
        self.0.commit().await
    }

    /// Writes the nodes of the round's trees.
    async fn write_nodes(&self) -> Result<()> {
        let (volumes, groups) = {
            let st = self.0.state();
            let Some(r) = &st.round else { return Err(not_open()) };
            let volumes: Vec<_> = r.volumes.iter().map(|(&id, joined)| (id, joined.generation)).collect();
            (volumes, r.groups.iter().map(|(&id, &generation)| (id, generation)).collect::<Vec<_>>())
        };
        for (id, generation) in volumes {
            let tree = self.0.state().volumes.get(&id).and_then(|v| v.round.clone());
            if let Some(tree) = tree {
                self.write_tree(WriteOut::new(&tree, generation)).await?;
                if let Some(live) = self.0.state_mut().volumes.get_mut(&id).and_then(|v| v.round.as_mut()) {
                    live.settle(&tree);
                }
            }
        }
        for (id, generation) in groups {
            let tree = self.0.state().group(id).round.clone();
            if let Some(tree) = tree {
                self.write_tree(WriteOut::new(&tree, generation)).await?;
                if let Some(live) = &mut self.0.state_mut().group_mut(id).round {
                    live.settle(&tree);
                }
            }
        }
        Ok(())
    }

    async fn write_tree(&self, mut out: WriteOut) -> Result<()> {
        loop {
            let run = self.take_metadata().await?;
            let mut buf = self.0.bufs().take(run.len as usize * BLOCK);
            let (mut filled, mut done) = (0u32, false);
            while filled < run.len && !done {
                let next = run.addr.plus(u64::from(filled));
                let from = filled as usize * BLOCK;
                let place = &mut buf[from..from + BLOCK];
                let written = out.next(&mut self.0.state_mut().store, &mut || Some(next), place);
                match written {
                    Ok(None) => done = true,
                    Ok(Some(addr)) if addr == next => filled += 1,
                    Ok(Some(addr)) => {
                        // It has its address from an earlier try.
                        let again = SliceList::from_iter([self.0.bufs().copy_of(place).freeze()]);
                        self.0.write_copies(addr, again, Class::Commit).await?;
                    }
                    Err(btree::OutOfSpace) => unreachable!("an address was offered"),
                }
            }
            {
                let mut st = self.0.state_mut();
                if filled < run.len {
                    st.unalloc(run.addr.plus(u64::from(filled)), run.len - filled);
                }
                let blocks = st.geometry.group_blocks;
                if let Some(r) = st.round.as_mut().filter(|_| filled > 0) {
                    push_run(&mut r.allocs, Run { addr: run.addr, len: filled }, blocks);
                }
            }
            if filled > 0 {
                buf.truncate(filled as usize * BLOCK);
                self.0.write_copies(run.addr, SliceList::from_iter([buf.freeze()]), Class::Commit).await?;
            }
            if done {
                return Ok(());
            }
            self.0.rt().yield_now().await;
        }
    }

    async fn take_metadata(&self) -> Result<Run> {
        loop {
            let got = self.0.state_mut().alloc(GroupKind::Metadata, SLICE as u32);
            match got {
                Alloc::Got(run) => return Ok(run),
                Alloc::NeedMaps(id) => self.0.load_maps_to_take(id).await,
                Alloc::Full => {
                    return Err(self.0.state().no_room("write-back: no room for metadata in the pool"));
                }
            }
        }
    }

    /// Gives everything back: nothing of it was ever there. Returns the room that it had; `None`,
    /// and nothing is done, after it was published.
    pub async fn abort(self) -> Option<Reservation> {
        let mut round = self.0.state_mut().round.take()?;
        {
            let mut st = self.0.state_mut();
            for id in round.volumes.keys() {
                if let Some(v) = st.volumes.get_mut(id) {
                    v.round = None;
                }
            }
            for &id in round.groups.keys() {
                st.group_mut(id).round = None;
                st.maybe_empty.insert(id);
            }
        }
        self.0.round_ended();
        for part in round.allocs.chunks(SLICE) {
            {
                let mut st = self.0.state_mut();
                for r in part {
                    if st.group(st.geometry.split(r.addr).0).record.kind == GroupKind::Data {
                        round.room.restore(u64::from(r.len));
                    }
                    st.unalloc(r.addr, r.len);
                }
            }
            self.0.rt().yield_now().await;
        }
        Some(round.room)
    }
}

impl State {
    /// As [`State::alloc`], of data for the round: from groups whose checksums nobody else is changing.
    pub fn alloc_round(&mut self, want: u32) -> Alloc {
        self.drain_limbo(SLICE);
        loop {
            let cursor = self.round.as_ref().and_then(|r| r.cursor);
            if let Some((id, at)) = cursor {
                let Some(maps) = &mut self.groups[id.0 as usize].maps else { return Alloc::NeedMaps(id) };
                if let Some((start, len)) = maps.busy.find_free_run(at as usize, want as usize) {
                    maps.busy.assign(start, len, true);
                    let busy = self.group(id).busy_count + len as u32;
                    self.set_busy(id, busy);
                    if let Some(r) = &mut self.round {
                        r.cursor = Some((id, (start + len) as u32));
                    }
                    return Alloc::Got(Run { addr: self.geometry.join(id, start as u32), len: len as u32 });
                }
                if let Some(r) = &mut self.round {
                    r.cursor = None;
                }
            }
            let committed = self.committed;
            let free = |id: GroupId| self.geometry.group_blocks - self.group(id).busy_count;
            let usable = |id: GroupId| {
                let g = self.group(id);
                g.round.is_some() || g.writing == 0 && g.checksums.edited() <= committed
            };
            let best = self.space.by_free[0].iter().rev().map(|&(_, id)| id).find(|&id| usable(id));
            let roomy = best.filter(|&id| free(id) >= self.geometry.group_blocks / 4);
            let next = roomy.or_else(|| self.form_group(GroupKind::Data)).or(best);
            let Some(id) = next else { return Alloc::Full };
            if self.space.cursor[0].is_some_and(|c| c.0 == id) {
                self.space.cursor[0] = None;
            }
            let g = self.group_mut(id);
            if g.round.is_none() {
                g.round = Some(g.checksums.tree.clone());
            }
            let generation = Generation(self.open.generation().0 - 1);
            if let Some(r) = &mut self.round {
                r.groups.entry(id).or_insert(generation);
                r.cursor = Some((id, 0));
                r.joined = Some(id);
            }
        }
    }

    /// The round's trees take the place of the published ones, in the open transaction.
    fn merge_round(&mut self, _: Permit, cut: Published) -> Result<()> {
        let Some(round) = self.round.take() else { return Err(not_open()) };
        let (open, committing) = (self.open.generation(), self.committing);
        for (id, joined) in &round.volumes {
            let Some(v) = self.volumes.get_mut(id) else { continue };
            v.begin_edit(open, committing);
            if let Some(tree) = v.round.take() {
                v.mapping.tree = tree;
                let blocks = v.record.allocated_blocks.saturating_add_signed(joined.grown);
                self.held.change(v, |v| v.record.allocated_blocks = blocks);
            }
            self.open.volumes.insert(*id);
        }
        for &id in round.groups.keys() {
            let g = &mut self.groups[id.0 as usize];
            g.checksums.begin_edit(open, committing);
            if let Some(tree) = g.round.take() {
                g.checksums.tree = tree;
            }
            self.open.checksums.insert(id);
            self.maybe_empty.insert(id);
        }
        let RoundTxn { allocs, frees, mut nodes, .. } = round;
        self.open.rounds.push(Merged { allocs, frees, freed_nodes: nodes.take_freed() });
        self.open.published = Some(cut);
        self.open.superblock = true;
        Ok(())
    }
}

pub(crate) fn not_open() -> PoolError {
    PoolError::new(ErrorKind::Invalid, "the round is not open any more")
}

/// Makes a volume one of the round's; `Busy` if the direct transaction has changed it.
pub(crate) fn join(st: &mut State, volume: VolumeId) -> Result<Entered> {
    let (committed, generation) = (st.committed, Generation(st.open.generation().0 - 1));
    let Some(v) = st.volumes.get_mut(&volume).filter(|v| v.is_live()) else {
        return Err(crate::state::no_such_volume(volume));
    };
    if v.round.is_none() {
        if v.mapping.edited() > committed {
            return Ok(Entered::Busy);
        }
        v.round = Some(v.mapping.tree.clone());
    }
    let Some(r) = &mut st.round else { return Err(not_open()) };
    r.volumes.entry(volume).or_insert(Joined { generation, grown: 0 });
    Ok(Entered::Done)
}

/// Enters written blocks into the round's trees; all or nothing.
fn map(st: &mut State, volume: VolumeId, lba: Lba, runs: &[Run], crcs: &[Crc]) -> Step<Entered> {
    if let Entered::Busy = join(st, volume)? {
        return Ok(Entered::Busy);
    }
    let range = (lba, lba.plus(crcs.len() as u64));
    let State { store, groups, volumes, geometry, round, .. } = st;
    let tree = volumes.get_mut(&volume).and_then(|v| v.round.as_mut()).ok_or_else(not_open)?;
    let txn = round.as_mut().ok_or_else(not_open)?;
    let joined = txn.volumes.get_mut(&volume).ok_or_else(not_open)?;
    let sums = runs.iter().map(|run| {
        let (group, offset) = geometry.split(run.addr);
        let tree = groups[group.0 as usize].round.as_ref()?;
        txn.groups.get(&group).map(|_| checksums::range(tree, offset, run.len))
    });
    if sums.clone().any(|range| range.is_none()) {
        return Err(not_open().into());
    }
    // A malformed record is found now, before anything is changed.
    mapping::overlapping(tree, store, geometry, range, usize::MAX)?;
    let mut ready = store.ready([mapping::range(tree, range)].into_iter().chain(sums.flatten()))?;
    let mut freed = Vec::new();
    let mut at = 0u64;
    for run in runs {
        let (group, offset) = geometry.split(run.addr);
        let from = lba.plus(at);
        let part = &crcs[at as usize..at as usize + run.len as usize];
        if let (Some(sums), Some(generation)) = (&mut groups[group.0 as usize].round, txn.groups.get(&group)) {
            checksums::record(&mut ready.edit(sums, txn.nodes.at(*generation)), offset, volume, from, part);
        }
        let mut edit = ready.edit(tree, txn.nodes.at(joined.generation));
        let range = (from, from.plus(u64::from(run.len)));
        let unmapped = mapping::replace(&mut edit, range, Some(run.addr), geometry, &mut freed);
        joined.grown += i64::from(run.len) - i64::from(unmapped);
        push_run(&mut txn.allocs, *run, geometry.group_blocks);
        at += u64::from(run.len);
    }
    txn.room.spend(at);
    freed.into_iter().for_each(|r| push_run(&mut txn.frees, r, geometry.group_blocks));
    Ok(Entered::Done)
}

/// Extents that one step unmaps.
const STEP_EXTENTS: usize = 128;

/// Unmaps a bounded part of `[lba, end)`; says in `next` where it stopped.
fn unmap(st: &mut State, volume: VolumeId, (lba, end): (Lba, Lba), next: &mut Lba) -> Step<Entered> {
    if let Entered::Busy = join(st, volume)? {
        return Ok(Entered::Busy);
    }
    let State { store, volumes, geometry, round, .. } = st;
    let tree = volumes.get_mut(&volume).and_then(|v| v.round.as_mut()).ok_or_else(not_open)?;
    let txn = round.as_mut().ok_or_else(not_open)?;
    let joined = txn.volumes.get_mut(&volume).ok_or_else(not_open)?;
    let old = mapping::overlapping(tree, store, geometry, (lba, end), STEP_EXTENTS)?;
    *next = end;
    let (Some(first), Some(last)) = (old.first(), old.last()) else { return Ok(Entered::Done) };
    let (from, upto) = (first.lba.max(lba), Lba(last.end().min(end.0)));
    if old.len() >= STEP_EXTENTS {
        *next = upto;
    }
    let mut ready = store.ready([mapping::range(tree, (from, upto))])?;
    let mut edit = ready.edit(tree, txn.nodes.at(joined.generation));
    let mut freed = Vec::new();
    joined.grown -= i64::from(mapping::replace(&mut edit, (from, upto), None, geometry, &mut freed));
    freed.into_iter().for_each(|r| push_run(&mut txn.frees, r, geometry.group_blocks));
    Ok(Entered::Done)
}

/// `len` bytes of `data` from `from` on.
fn cut(data: &SliceList, from: usize, len: usize) -> SliceList {
    let mut out = SliceList::new();
    let (mut at, end) = (0, from + len);
    for s in data {
        let (a, b) = (from.max(at), end.min(at + s.len()));
        if a < b {
            out.push(s.cut(a - at, b - a));
        }
        at += s.len();
    }
    out
}
