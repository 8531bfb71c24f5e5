//! The way of a read, a write and a discard through the pool, in blocks of a volume.
//!
//! A write allocates, writes all copies, and only then changes the trees, in one step: what a reader or a commit sees is the old block or
//! the new one. A read looks up addresses and checksums in one step, and pins them, before it waits for a device.
//!
//! These futures must run to their end (in a task that is not dropped), or the blocks they took stay taken until the pool is opened again.

use base::checksum::block_crcs;
use base::{BLOCK, BLOCK_U64, Crc, Epoch, Lba, PoolAddr, Slice, SliceList, VolumeId};
use format::page::GroupKind;
use queue::Class;
use smallvec::SmallVec;

use crate::Pool;
use crate::alloc::{Alloc, Purpose};
use crate::error::{ErrorKind, PoolError, Result, Step};
use crate::extents::{Run, push_run};
use crate::state::{Pin, State, no_such_volume};
use crate::{checksums, mapping};

/// Blocks that are read, written or mapped in one step.
const STEP_BLOCKS: u64 = 256;
/// No volume has a block at or behind this.
pub(crate) const END_OF_SPACE: Lba = Lba(format::MAX_VOLUME_BYTES / BLOCK_U64);
/// Extents that a discard unmaps in one step.
const STEP_EXTENTS: usize = 128;
/// Freed runs that become available before other tasks get a turn.
const DRAIN: usize = 256;
/// What reads are still about is looked at so often, and so many times, before the pool is full.
const AFTER_READ: base::Duration = base::Duration::from_millis(10);
const READ_LOOKS: u32 = 5;
/// What must wait for a round's end looks for it so often.
const AFTER_ROUND: base::Duration = base::Duration::from_millis(10);

/// A part of a read: a hole, or blocks with their checksums.
struct Piece {
    len: u32,
    /// First block, and where in the list of checksums its own begin.
    place: Option<(PoolAddr, usize)>,
}

/// What is read: a volume, or the staging volume that it has for an epoch, if it has.
type Origin = (VolumeId, Option<Epoch>);

/// What is read, and for whom.
type Asked = (Origin, Class);

struct Plan {
    pieces: SmallVec<[Piece; 1]>,
    crcs: SmallVec<[Crc; 8]>,
    pin: Pin,
}

impl Pool {
    /// Reads `blocks` blocks of `volume` from `lba` on; what was never written is zeros. The slices are in order and whole blocks each.
    pub async fn read(&self, volume: VolumeId, lba: Lba, blocks: u64) -> Result<SliceList> {
        self.read_for(Class::Foreground, volume, lba, blocks).await
    }

    /// As [`Pool::read`], for requests of this class.
    pub async fn read_for(&self, class: Class, volume: VolumeId, lba: Lba, blocks: u64) -> Result<SliceList> {
        self.read_from(((volume, None), class), lba, blocks).await
    }

    /// As [`Pool::read`] of the staging volume of `volume` for `epoch`, or of `volume` itself where that has been published meanwhile; which of them is
    /// decided together with the look at the mapping.
    pub async fn read_staged(&self, volume: VolumeId, epoch: Epoch, lba: Lba, blocks: u64) -> Result<SliceList> {
        self.read_from(((volume, Some(epoch)), Class::Foreground), lba, blocks).await
    }

    async fn read_from(&self, from: Asked, lba: Lba, blocks: u64) -> Result<SliceList> {
        if blocks <= STEP_BLOCKS {
            return self.read_step(from, lba, blocks).await;
        }
        Box::pin(self.read_steps(from, lba, blocks)).await
    }

    async fn read_steps(&self, asked: Asked, lba: Lba, blocks: u64) -> Result<SliceList> {
        let mut tasks = Vec::new();
        let mut at = 0;
        while at < blocks {
            let (n, pool) = ((blocks - at).min(STEP_BLOCKS), self.clone());
            let from = lba.plus(at);
            tasks.push(self.rt().spawn(async move { pool.read_step(asked, from, n).await }));
            at += n;
        }
        let mut all = SliceList::new();
        for t in tasks {
            all.extend(t.await.unwrap_or_else(|| Err(PoolError::ended()))?);
        }
        Ok(all)
    }

    async fn read_step(&self, (from, class): Asked, lba: Lba, blocks: u64) -> Result<SliceList> {
        let plan = self.resident(class, |st| plan_read(st, from, lba, blocks)).await?;
        let mut out = SliceList::new();
        if let [Piece { len, place: Some((addr, _)) }] = plan.pieces[..] {
            debug_assert_eq!(u64::from(len), blocks);
            out.push(self.read_verified(addr, &plan.crcs, class, &plan.pin).await?);
            return Ok(out);
        }
        Box::pin(self.read_pieces(&plan, class)).await
    }

    async fn read_pieces(&self, plan: &Plan, class: Class) -> Result<SliceList> {
        let mut out = SliceList::new();
        let mut tasks: Vec<_> = Vec::with_capacity(plan.pieces.len());
        for p in &plan.pieces {
            tasks.push(p.place.map(|(addr, at)| {
                let crcs: SmallVec<[Crc; 8]> = SmallVec::from_slice(&plan.crcs[at..at + p.len as usize]);
                let (pool, pin) = (self.clone(), plan.pin.clone());
                self.rt().spawn(async move { pool.read_verified(addr, &crcs, class, &pin).await })
            }));
        }
        for (p, t) in plan.pieces.iter().zip(tasks) {
            out.push(match t {
                Some(t) => t.await.unwrap_or_else(|| Err(PoolError::ended()))?,
                None => self.zero_block(p.len as usize * BLOCK),
            });
        }
        Ok(out)
    }

    /// Loads the nodes that reads of `[lba, end)` will need.
    pub async fn prefetch(&self, volume: VolumeId, lba: Lba, end: Lba) -> Result<()> {
        let mut at = lba;
        while at < end {
            let n = (end.0 - at.0).min(STEP_BLOCKS);
            self.resident(Class::Foreground, |st| plan_read(st, (volume, None), at, n)).await?;
            at = at.plus(n);
            self.rt().yield_now().await;
        }
        Ok(())
    }

    /// The checksums that the pool has for the blocks of `[lba, lba + blocks)`; `None` where nothing is mapped. No data is read.
    pub async fn checksums(&self, volume: VolumeId, lba: Lba, blocks: u64) -> Result<Vec<Option<Crc>>> {
        let mut out = Vec::new();
        let mut at = 0;
        while at < blocks {
            let n = (blocks - at).min(STEP_BLOCKS);
            let from = lba.plus(at);
            let plan = self.resident(Class::Foreground, |st| plan_read(st, (volume, None), from, n)).await?;
            for p in &plan.pieces {
                match p.place {
                    Some((_, first)) => out.extend(plan.crcs[first..first + p.len as usize].iter().copied().map(Some)),
                    None => out.extend(std::iter::repeat_n(None, p.len as usize)),
                }
            }
            at += n;
            self.rt().yield_now().await;
        }
        Ok(out)
    }

    /// Writes `data`, whole blocks, to `volume` from `lba` on. Every block is visible to reads that begin when this returns, and durable after
    /// the next [`Pool::commit`].
    pub async fn write(&self, volume: VolumeId, lba: Lba, data: &Slice) -> Result<()> {
        assert_eq!(data.len() % BLOCK, 0);
        let blocks = (data.len() / BLOCK) as u64;
        let mut at = 0;
        while at < blocks {
            let n = (blocks - at).min(STEP_BLOCKS);
            let part = data.cut(at as usize * BLOCK, n as usize * BLOCK);
            self.write_step(volume, lba.plus(at), part, None).await?;
            at += n;
        }
        Ok(())
    }

    /// Writes up to [`STEP_BLOCKS`] blocks; with `size` it also makes that the volume's size, in the same step.
    pub(crate) async fn write_step(&self, volume: VolumeId, lba: Lba, data: Slice, size: Option<u64>) -> Result<()> {
        self.admit(Purpose::Write).await?;
        let runs = self.take_blocks((data.len() / BLOCK) as u32).await?;
        let crcs: SmallVec<[Crc; 1]> = block_crcs(&data).collect();
        let outcome = self.write_runs(&runs, &data).await;
        if let Err(e) = outcome {
            self.give_back(&runs);
            return Err(e);
        }
        let outcome = self.resident(Class::Foreground, |st| map(st, volume, lba, &runs, &crcs, size)).await;
        if outcome.is_ok() {
            self.state_mut().end_writing(&runs);
        } else {
            self.give_back(&runs);
        }
        self.after_change();
        outcome
    }

    fn give_back(&self, runs: &[Run]) {
        let mut st = self.state_mut();
        st.end_writing(runs);
        runs.iter().for_each(|r| st.unalloc(r.addr, r.len));
    }

    async fn write_runs(&self, runs: &[Run], data: &Slice) -> Result<()> {
        if let [run] = runs {
            return self.write_copies(run.addr, SliceList::from_iter([data.clone()]), Class::Foreground).await;
        }
        let mut tasks = Vec::with_capacity(runs.len());
        let mut at = 0;
        for run in runs {
            let bytes = run.len as usize * BLOCK;
            let (pool, part, addr) = (self.clone(), data.cut(at, bytes), run.addr);
            at += bytes;
            tasks.push(
                self.rt().spawn(async move {
                    pool.write_copies(addr, SliceList::from_iter([part]), Class::Foreground).await
                }),
            );
        }
        // All of them, whatever the first says: none may still be in flight when its blocks are given back.
        let mut outcome = Ok(());
        for t in tasks {
            outcome = outcome.and(t.await.unwrap_or_else(|| Err(PoolError::ended())));
        }
        outcome
    }

    /// Allocates `blocks` data blocks in as few runs as there are, or none at all.
    async fn take_blocks(&self, blocks: u32) -> Result<SmallVec<[Run; 1]>> {
        let mut runs: SmallVec<[Run; 1]> = SmallVec::new();
        let mut missing = blocks;
        let (mut tried_commit, mut tried_limbo) = (false, false);
        while missing > 0 {
            let got = {
                let mut st = self.state_mut();
                let got =
                    if st.leaves_promised(missing.into()) { st.alloc(GroupKind::Data, missing) } else { Alloc::Full };
                if let Alloc::Got(run) = got {
                    st.begin_writing(run);
                }
                got
            };
            let outcome = match got {
                Alloc::Got(run) => {
                    missing -= run.len;
                    runs.push(run);
                    Ok(())
                }
                Alloc::NeedMaps(id) => {
                    self.load_maps_to_take(id).await;
                    Ok(())
                }
                Alloc::Full if !tried_commit && self.state().gives_back() => {
                    tried_commit = true;
                    self.commit().await
                }
                Alloc::Full if !tried_limbo => {
                    tried_limbo = true;
                    self.empty_limbo().await;
                    Ok(())
                }
                Alloc::Full => Err(self.state().no_room("the pool is full")),
            };
            if let Err(e) = outcome {
                self.give_back(&runs);
                return Err(e);
            }
        }
        Ok(runs)
    }

    /// Unmaps `[lba, end)` of `volume`, in slices; it reads as zeros then.
    pub async fn discard(&self, volume: VolumeId, lba: Lba, end: Lba) -> Result<()> {
        let mut at = lba;
        while at < end {
            self.admit(Purpose::Free).await?;
            at = self.resident(Class::Foreground, |st| unmap(st, volume, at, end)).await?;
            self.after_change();
            self.rt().yield_now().await;
        }
        Ok(())
    }

    /// Unmaps what is behind the end of `volume`, in slices; the end is looked up for each, so that the volume may grow meanwhile.
    pub(crate) async fn trim_behind_end(&self, volume: VolumeId) -> Result<()> {
        let mut at = Lba(0);
        while at < END_OF_SPACE {
            self.admit(Purpose::Free).await?;
            let step = |st: &mut State| {
                // A round has a clone of the mapping, which will take its place: it would bring back what is unmapped here.
                if st.volumes.get(&volume).is_some_and(|v| v.round.is_some()) {
                    return Ok(None);
                }
                let size = st.volumes.get(&volume).map_or(0, |v| v.record.size_bytes);
                unmap(st, volume, at.max(Lba(size.div_ceil(BLOCK_U64))), END_OF_SPACE).map(Some)
            };
            match self.resident(Class::Foreground, step).await? {
                Some(upto) => at = upto,
                None => self.rt().sleep(AFTER_ROUND).await,
            }
            self.after_change();
            self.rt().yield_now().await;
        }
        Ok(())
    }

    /// The allocated parts of `[lba, end)`: at most `max` of (first block, blocks), in order, neighbours joined; and up to where they are all of
    /// them.
    pub async fn allocated(&self, volume: VolumeId, lba: Lba, end: Lba, max: usize) -> Result<(Vec<(Lba, u64)>, Lba)> {
        let extents = self
            .resident(Class::Foreground, |st| {
                let v = st.volumes.get(&volume).filter(|v| v.is_live()).ok_or_else(|| no_such_volume(volume))?;
                mapping::overlapping(&v.mapping.tree, &st.store, &st.geometry, (lba, end), max.saturating_add(1))
            })
            .await?;
        // One more than was asked for: there may be others behind it, whether it joins its neighbours or not.
        let all = extents.len() <= max;
        let mut out: Vec<(Lba, u64)> = Vec::new();
        for e in extents.iter().take(max) {
            let (from, to) = (e.lba.0.max(lba.0), e.end().min(end.0));
            match out.last_mut() {
                Some((start, len)) if start.0 + *len == from => *len += to - from,
                _ => out.push((Lba(from), to - from)),
            }
        }
        let upto = match out.last() {
            Some((start, len)) if !all => start.plus(*len),
            _ => end,
        };
        Ok((out, upto))
    }

    /// Waits until a change may go ahead: its nodes will find room, and not too much is dirty.
    async fn admit(&self, purpose: Purpose) -> Result<()> {
        match self.admits(purpose)? {
            (true, false) => Ok(()),
            _ => Box::pin(self.make_room(purpose)).await,
        }
    }

    /// Whether there is room for a change's nodes, and whether too much is dirty.
    fn admits(&self, purpose: Purpose) -> Result<(bool, bool)> {
        let st = self.state();
        st.standing.permit()?;
        Ok((st.admit(purpose), st.open.nodes.dirty() as u64 >= 2 * self.settings().dirty_nodes))
    }

    async fn make_room(&self, purpose: Purpose) -> Result<()> {
        let mut tries = 0;
        loop {
            let (fits, crowded) = self.admits(purpose)?;
            if fits && !crowded {
                return Ok(());
            }
            if tries == 2 {
                return Err(self.state().no_room("the pool is full: no room for metadata"));
            }
            tries += u32::from(!fits);
            self.commit().await?;
            if !fits {
                self.empty_limbo().await;
            }
        }
    }

    /// Frees, in slices, what commits have freed, waits for reads that are still about it, but not for long, and gives up groups that are empty then.
    async fn empty_limbo(&self) {
        for _ in 0..READ_LOOKS {
            while self.state_mut().drain_limbo(DRAIN) {
                self.rt().yield_now().await;
            }
            if self.state().limbo.is_empty() {
                break;
            }
            self.rt().sleep(AFTER_READ).await;
        }
        loop {
            {
                let mut st = self.state_mut();
                // What a commit writes of groups must not know of chunks that it does not say are free.
                if st.committing.is_some() || st.maybe_empty.is_empty() {
                    return;
                }
                st.dissolve_empty(DRAIN);
            }
            self.rt().yield_now().await;
        }
    }
}

/// Looks up where `[lba, lba + blocks)` is, and its checksums.
fn plan_read(st: &mut State, (volume, staged): Origin, lba: Lba, blocks: u64) -> Step<Plan> {
    let staging = staged.and_then(|epoch| st.stagings.get(&(volume, epoch)).copied());
    let volume = staging.unwrap_or(volume);
    let v = st.volumes.get(&volume).filter(|v| v.is_live()).ok_or_else(|| no_such_volume(volume))?;
    let owner = v.record.owner();
    let end = lba.plus(blocks);
    let extents = mapping::overlapping(&v.mapping.tree, &st.store, &st.geometry, (lba, end), usize::MAX)?;
    let mut plan = Plan { pieces: SmallVec::new(), crcs: SmallVec::new(), pin: st.pin.clone() };
    let mut at = lba.0;
    for e in extents {
        let (from, to) = (e.lba.0.max(lba.0), e.end().min(end.0));
        if from > at {
            plan.pieces.push(Piece { len: (from - at) as u32, place: None });
        }
        let (addr, len) = (e.addr.plus(from - e.lba.0), (to - from) as u32);
        let (group, offset) = st.geometry.split(addr);
        let Some(g) = st.groups.get(group.0 as usize) else {
            return Err(PoolError::new(ErrorKind::Damaged, format!("{addr:?} is outside of the pool")).into());
        };
        let start = plan.crcs.len();
        let tree = &g.checksums.tree;
        if !checksums::lookup(tree, &st.store, (offset, len), owner, Lba(from), &mut plan.crcs)? {
            let what = format!("block {addr} of the pool has no checksum for volume {volume}; run forebay check");
            return Err(PoolError::new(ErrorKind::Damaged, what).into());
        }
        plan.pieces.push(Piece { len, place: Some((addr, start)) });
        at = to;
    }
    if at < end.0 {
        plan.pieces.push(Piece { len: (end.0 - at) as u32, place: None });
    }
    Ok(plan)
}

/// Makes written blocks the content of `[lba, ..)`: mapping, checksums and the transaction's lists, all or
/// nothing.
fn map(st: &mut State, volume: VolumeId, lba: Lba, runs: &[Run], crcs: &[Crc], size: Option<u64>) -> Step<()> {
    let (open, committing) = (st.open.generation(), st.committing);
    let State { store, groups, volumes, geometry, open: txn, held, .. } = st;
    let v = volumes.get_mut(&volume).filter(|v| v.is_live() && !v.is_being_adopted());
    let v = v.ok_or_else(|| no_such_volume(volume))?;
    let (owner, range) = (v.record.owner(), (lba, lba.plus(crcs.len() as u64)));
    let sums = runs.iter().map(|run| {
        let (group, offset) = geometry.split(run.addr);
        checksums::range(&groups[group.0 as usize].checksums.tree, offset, run.len)
    });
    // A malformed record is found now, before anything is changed.
    mapping::overlapping(&v.mapping.tree, store, geometry, range, usize::MAX)?;
    let mut ready = store.ready([mapping::range(&v.mapping.tree, range)].into_iter().chain(sums))?;
    v.begin_edit(open, committing);
    txn.volumes.insert(volume);
    let mut freed = Vec::new();
    let mut at = 0u64;
    for run in runs {
        let (group, offset) = geometry.split(run.addr);
        let from = lba.plus(at);
        let g = &mut groups[group.0 as usize];
        g.checksums.begin_edit(open, committing);
        txn.checksums.insert(group);
        let part = &crcs[at as usize..at as usize + run.len as usize];
        checksums::record(&mut ready.edit(&mut g.checksums.tree, &mut txn.nodes), offset, owner, from, part);
        let mut edit = ready.edit(&mut v.mapping.tree, &mut txn.nodes);
        let range = (from, from.plus(u64::from(run.len)));
        let unmapped = mapping::replace(&mut edit, range, Some(run.addr), geometry, &mut freed);
        let more = v.record.allocated_blocks.saturating_add(u64::from(run.len));
        held.change(v, |v| v.record.allocated_blocks = more.saturating_sub(u64::from(unmapped)));
        push_run(&mut txn.allocs, *run, geometry.group_blocks);
        at += u64::from(run.len);
    }
    if let Some(size) = size {
        v.record.size_bytes = size;
    }
    freed.into_iter().for_each(|r| st.note_free(r));
    Ok(())
}

/// Unmaps a bounded part of `[lba, end)`; returns where it stopped.
fn unmap(st: &mut State, volume: VolumeId, lba: Lba, end: Lba) -> Step<Lba> {
    let (open, committing) = (st.open.generation(), st.committing);
    let State { store, volumes, geometry, open: txn, held, .. } = st;
    let v = volumes.get_mut(&volume).filter(|v| !v.gone && !v.is_being_adopted());
    let v = v.ok_or_else(|| no_such_volume(volume))?;
    let old = mapping::overlapping(&v.mapping.tree, store, geometry, (lba, end), STEP_EXTENTS)?;
    let (Some(first), Some(last)) = (old.first(), old.last()) else { return Ok(end) };
    let (from, upto) = (first.lba.max(lba), Lba(last.end().min(end.0)));
    let mut ready = store.ready([mapping::range(&v.mapping.tree, (from, upto))])?;
    v.begin_edit(open, committing);
    txn.volumes.insert(volume);
    let mut edit = ready.edit(&mut v.mapping.tree, &mut txn.nodes);
    let mut freed = Vec::new();
    let unmapped = mapping::replace(&mut edit, (from, upto), None, geometry, &mut freed);
    held.change(v, |v| {
        v.record.allocated_blocks = v.record.allocated_blocks.saturating_sub(u64::from(unmapped));
    });
    freed.into_iter().for_each(|r| st.note_free(r));
    Ok(if old.len() >= STEP_EXTENTS { upto } else { end })
}
