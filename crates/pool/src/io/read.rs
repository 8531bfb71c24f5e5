//! Carries out reads. Addresses are blocks of a volume.
//!
//! *Plan* looks up addresses and checksums in one step, and takes a pin for them ([`plan_read`]).
//! *Transfer* reads one copy, verifies it, and heals it if it must. *Settle* has something to do
//! where a block has no good copy: it is entered in the list of these. The pin goes with the plan.
//! What a client reads in order has its nodes read ahead, and on disks that rotate its data
//! ([`read_ahead`](super::read_ahead)).

use std::rc::Rc;

use base::{
    BLOCK, BlockRange, Crc, ErrorKind, Lba, PoolAddr, Result, SliceList, StorageError, VolumeId,
};
use format::superblock::scrub::LostExtent;
use queue::Class;
use smallvec::SmallVec;

use super::STEP_BLOCKS;
use crate::core::Core;
use crate::error::Step;
use crate::io::read_ahead::ReadAhead;
use crate::space::{Fetched, Load, Part, Pin, Run};
use crate::state::State;
use crate::transfer::Unread;
use crate::transfer::copies::CopyReader;
use crate::transfer::load::NodeLoader;

/// A part of a read: a hole, or blocks with their checksums.
pub(super) struct Piece {
    pub len: u32,
    pub place: Option<Place>,
}

/// The place of blocks.
pub(super) struct Place {
    pub addr: PoolAddr,
    /// The place in the list of checksums where those of the blocks begin.
    pub crcs: usize,
    /// The read-ahead that has the blocks, and the number of its blocks before them.
    pub ahead: Option<(Load, u32)>,
}

/// A block of a volume.
#[derive(Clone, Copy)]
pub(super) struct BlockOf {
    pub volume: VolumeId,
    pub lba: Lba,
}

pub(super) struct Plan {
    pub pieces: SmallVec<[Piece; 1]>,
    pub crcs: SmallVec<[Crc; 8]>,
    pub pin: Pin,
    /// The first block, of the volume in whose name the blocks are.
    pub of: BlockOf,
}

/// The result of a read.
pub struct Blocks {
    /// In order, whole blocks each; what was never written is zeros.
    pub data: SliceList,
    /// The runs of blocks that were never written, or were discarded: the number of the first one
    /// behind the beginning, and how many; in order.
    pub holes: SmallVec<[(u64, u64); 1]>,
}

impl Blocks {
    fn nothing() -> Blocks {
        Blocks { data: SliceList::new(), holes: SmallVec::new() }
    }

    /// Appends `found`, which begins `at` blocks behind the beginning of this.
    fn append(&mut self, at: u64, found: Blocks) {
        self.data.extend(found.data);
        self.holes.extend(found.holes.into_iter().map(|(from, len)| (at + from, len)));
    }
}

/// Reads blocks of volumes.
pub(crate) struct Reader {
    core: Core,
    copies: Rc<CopyReader>,
    loader: Rc<NodeLoader>,
    ahead: Rc<ReadAhead>,
}

impl Reader {
    /// Over these parts of the pool.
    pub(crate) fn new(
        core: &Core,
        copies: &Rc<CopyReader>,
        loader: &Rc<NodeLoader>,
        ahead: &Rc<ReadAhead>,
    ) -> Rc<Reader> {
        Rc::new(Reader {
            core: core.clone(),
            copies: copies.clone(),
            loader: loader.clone(),
            ahead: ahead.clone(),
        })
    }

    /// See [`crate::Pool::read`].
    pub(crate) async fn read(
        self: &Rc<Self>,
        volume: VolumeId,
        lba: Lba,
        blocks: u64,
    ) -> Result<SliceList> {
        self.read_for(Class::Foreground, volume, lba, blocks).await
    }

    /// See [`crate::Pool::read_for`].
    pub(crate) async fn read_for(
        self: &Rc<Self>,
        class: Class,
        volume: VolumeId,
        lba: Lba,
        blocks: u64,
    ) -> Result<SliceList> {
        Ok(self.read_from(class, volume, lba, blocks).await?.data)
    }

    /// See [`crate::Pool::read_with_holes`].
    pub(crate) async fn read_with_holes(
        self: &Rc<Self>,
        volume: VolumeId,
        lba: Lba,
        blocks: u64,
    ) -> Result<Blocks> {
        self.read_from(Class::Foreground, volume, lba, blocks).await
    }

    async fn read_from(
        self: &Rc<Self>,
        class: Class,
        volume: VolumeId,
        lba: Lba,
        blocks: u64,
    ) -> Result<Blocks> {
        if class == Class::Foreground {
            self.ahead.follow_reader(volume, lba, blocks);
        }
        if blocks <= STEP_BLOCKS {
            return self.read_step(class, volume, lba, blocks).await;
        }
        Box::pin(self.read_steps(class, volume, lba, blocks)).await
    }

    async fn read_steps(
        self: &Rc<Self>,
        class: Class,
        volume: VolumeId,
        lba: Lba,
        blocks: u64,
    ) -> Result<Blocks> {
        let mut tasks = Vec::new();
        let mut at = 0;
        while at < blocks {
            let (n, this) = ((blocks - at).min(STEP_BLOCKS), self.clone());
            let from = lba.plus(at);
            let step = async move { this.read_step(class, volume, from, n).await };
            tasks.push(self.core.rt().spawn(step));
            at += n;
        }
        let mut all = Blocks::nothing();
        for (t, at) in tasks.into_iter().zip((0..).step_by(STEP_BLOCKS as usize)) {
            all.append(at, t.await.unwrap_or_else(|| Err(StorageError::ended()))?);
        }
        Ok(all)
    }

    async fn read_step(
        self: &Rc<Self>,
        class: Class,
        volume: VolumeId,
        lba: Lba,
        blocks: u64,
    ) -> Result<Blocks> {
        let plan =
            self.loader.resident(class, |st| plan_for(st, class, volume, lba, blocks)).await?;
        let mut out = Blocks::nothing();
        if let [Piece { len, place: Some(Place { addr, ahead: None, .. }) }] = plan.pieces[..] {
            debug_assert_eq!(u64::from(len), blocks);
            let read = self.copies.read_copies(addr, &plan.crcs, class, &plan.pin).await;
            out.data.push(match read {
                Ok(data) => data,
                Err(why) => {
                    let Plan { crcs, pin, of, .. } = &plan;
                    return Err(self.unread(*of, class, addr, crcs, pin, why).await);
                }
            });
            return Ok(out);
        }
        Box::pin(self.read_pieces(plan, class)).await
    }

    async fn read_pieces(self: &Rc<Self>, plan: Plan, class: Class) -> Result<Blocks> {
        let mut out = Blocks::nothing();
        let mut tasks: Vec<_> = Vec::with_capacity(plan.pieces.len());
        let mut next = plan.of;
        for p in &plan.pieces {
            let of = next;
            next.lba = of.lba.plus(u64::from(p.len));
            tasks.push(p.place.as_ref().map(|place| {
                let (addr, ahead) = (place.addr, place.ahead.clone());
                let crcs: SmallVec<[Crc; 8]> =
                    SmallVec::from_slice(&plan.crcs[place.crcs..place.crcs + p.len as usize]);
                let (this, pin) = (self.clone(), plan.pin.clone());
                self.core.rt().spawn(async move {
                    if let Some((load, skip)) = ahead
                        && let Some(data) = this.ahead.take_fetched(load, skip, &crcs).await
                    {
                        return Ok(data);
                    }
                    match this.copies.read_copies(addr, &crcs, class, &pin).await {
                        Ok(data) => Ok(data),
                        Err(why) => Err(this.unread(of, class, addr, &crcs, &pin, why).await),
                    }
                })
            }));
        }
        let mut at = 0;
        for (p, t) in plan.pieces.iter().zip(tasks) {
            let len = u64::from(p.len);
            out.data.push(match t {
                Some(t) => t.await.unwrap_or_else(|| Err(StorageError::ended()))?,
                None => {
                    out.holes.push((at, len));
                    self.core.zero_block(p.len as usize * BLOCK)
                }
            });
            at += len;
        }
        Ok(out)
    }

    /// Returns the error of a read of blocks of a volume, the first of which is at `addr`, with
    /// these checksums. A block that [is lost](CopyReader::is_lost) is entered in the list of lost
    /// blocks.
    async fn unread(
        &self,
        of: BlockOf,
        class: Class,
        addr: PoolAddr,
        crcs: &[Crc],
        pin: &Pin,
        why: Unread,
    ) -> StorageError {
        let Unread::Bad(block, _) = why else { return why.into() };
        let at = block.0 - addr.0;
        if self.copies.is_lost(block, crcs[at as usize], class, pin).await {
            let mut st = self.core.state_mut();
            let (volume, lba) = (of.volume, of.lba.plus(at));
            let extent = LostExtent { addr: block, volume, lba, blocks: 1 };
            if st.scrub.enter_lost(extent) {
                st.note_in_superblock();
                tracing::error!(
                    volume = %st.volume_name(volume),
                    block = lba.0,
                    "no copy of a block of a volume is good: reads of it fail until it is written \
                     again"
                );
            }
        }
        why.into()
    }

    /// See [`crate::Pool::prefetch`].
    pub(crate) async fn prefetch(&self, volume: VolumeId, lba: Lba, end: Lba) -> Result<()> {
        let mut at = lba;
        while at < end {
            let n = (end.0 - at.0).min(STEP_BLOCKS);
            self.loader.resident(Class::Foreground, |st| plan_read(st, volume, at, n)).await?;
            at = at.plus(n);
            self.core.rt().yield_now().await;
        }
        Ok(())
    }

    /// See [`crate::Pool::checksums`].
    pub(crate) async fn checksums(
        &self,
        volume: VolumeId,
        lba: Lba,
        blocks: u64,
    ) -> Result<Vec<Option<Crc>>> {
        let mut out = Vec::new();
        let mut at = 0;
        while at < blocks {
            let n = (blocks - at).min(STEP_BLOCKS);
            let from = lba.plus(at);
            let plan = self
                .loader
                .resident(Class::Foreground, |st| plan_read(st, volume, from, n))
                .await?;
            for p in &plan.pieces {
                match p.place {
                    Some(Place { crcs: first, .. }) => {
                        let crcs = &plan.crcs[first..first + p.len as usize];
                        out.extend(crcs.iter().copied().map(Some));
                    }
                    None => out.extend(std::iter::repeat_n(None, p.len as usize)),
                }
            }
            at += n;
            self.core.rt().yield_now().await;
        }
        Ok(out)
    }

    /// See [`crate::Pool::allocated`].
    pub(crate) async fn allocated(
        &self,
        volume: VolumeId,
        lba: Lba,
        end: Lba,
        max: usize,
    ) -> Result<(Vec<(Lba, u64)>, Lba)> {
        let range = BlockRange::new(lba, end);
        let extents = self
            .loader
            .resident(Class::Foreground, |st| {
                st.forest.extents(volume, range, max.saturating_add(1))
            })
            .await?;
        // One more than was asked for: there may be others behind it, whether it joins its
        // neighbours or not.
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
}

impl Plan {
    /// Blocks with their checksums from `crcs` on, in as many pieces as what was read ahead makes
    /// of them.
    fn push(&mut self, run: Run, mut crcs: usize, fetched: &Fetched) {
        let Run { mut addr, mut len } = run;
        while len > 0 {
            let part = match fetched.is_empty() {
                true => Part { len, found: None },
                false => fetched.find(Run { addr, len }),
            };
            let place = Place { addr, crcs, ahead: part.found };
            self.pieces.push(Piece { len: part.len, place: Some(place) });
            addr = addr.plus(u64::from(part.len));
            (len, crcs) = (len - part.len, crcs + part.len as usize);
        }
    }
}

/// As [`plan_read`]. What a read of the background is about is pinned by itself.
fn plan_for(st: &mut State, class: Class, from: VolumeId, lba: Lba, blocks: u64) -> Step<Plan> {
    let mut plan = plan_read(st, from, lba, blocks)?;
    if class.is_background() {
        let run = |piece: &Piece| Some(Run { addr: piece.place.as_ref()?.addr, len: piece.len });
        plan.pin = st.space.limbo().pin_blocks(plan.pieces.iter().filter_map(run), &plan.pin);
    }
    Ok(plan)
}

/// Looks up where `[lba, lba + blocks)` is, and its checksums.
pub(super) fn plan_read(st: &mut State, volume: VolumeId, lba: Lba, blocks: u64) -> Step<Plan> {
    let end = lba.plus(blocks);
    let extents = st.forest.extents(volume, BlockRange::new(lba, end), usize::MAX)?;
    let owner = st.forest.volume(volume).map_or(volume, |v| v.record().owner());
    let geometry = st.space.geometry();
    let mut plan = Plan {
        pieces: SmallVec::new(),
        crcs: SmallVec::new(),
        pin: st.space.limbo().pin(),
        of: BlockOf { volume: owner, lba },
    };
    let mut at = lba.0;
    for e in extents {
        let (from, to) = (e.lba.0.max(lba.0), e.end().min(end.0));
        if from > at {
            plan.pieces.push(Piece { len: (from - at) as u32, place: None });
        }
        let (addr, len) = (e.addr.plus(from - e.lba.0), (to - from) as u32);
        let (group, offset) = geometry.split(addr);
        if !st.space.groups().contains(group) {
            return Err(StorageError::new(
                ErrorKind::Damaged,
                format!("{addr:?} is outside of the pool"),
            )
            .into());
        }
        let start = plan.crcs.len();
        if !st.forest.checksums(group, offset, len, owner, Lba(from), &mut plan.crcs)? {
            let what = format!(
                "block {addr} of the pool has no checksum for volume {volume}; run forebay check"
            );
            return Err(StorageError::new(ErrorKind::Damaged, what).into());
        }
        plan.push(Run { addr, len }, start, st.space.fetched());
        at = to;
    }
    if at < end.0 {
        plan.pieces.push(Piece { len: (end.0 - at) as u32, place: None });
    }
    Ok(plan)
}
