//! Carries out reads. Addresses are blocks of a volume.
//!
//! *Plan* looks up addresses and checksums in one step, and takes a pin for them ([`plan_read`]).
//! *Transfer* reads one copy, verifies it, and heals it if it must. *Settle* has something to do
//! where a block has no good copy: it is entered in the list of these. The pin stands beside the
//! plan. What a client reads in order has its nodes read ahead, and on disks that rotate its data
//! ([`read_ahead`](super::read_ahead)).

use std::rc::Rc;

use base::{BLOCK, BlockRange, Crc, Lba, PoolAddr, Result, SliceList, StorageError, VolumeId};
use format::superblock::scrub::LostExtent;
use queue::Class;
use smallvec::SmallVec;

use super::STEP_BLOCKS;
use super::plan::{BlocksPlace, Holds, Plan, ReadPiece, VolumeBlock, plan_for, plan_read};
use crate::core::Core;
use crate::io::read_ahead::ReadAhead;
use crate::space::Pin;
use crate::transfer::ReadFailure;
use crate::transfer::copies::CopyReader;
use crate::transfer::load::NodeLoader;

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
    /// Makes the flow out of the core and the flows that it calls.
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
        let (plan, holds) =
            self.loader.resident(class, |st| plan_for(st, class, volume, lba, blocks)).await?;
        let mut out = Blocks::nothing();
        if let [ReadPiece { len, place: Some(BlocksPlace { addr, ahead: None, .. }) }] =
            plan.pieces[..]
        {
            debug_assert_eq!(u64::from(len), blocks);
            let read = self.copies.read_copies(addr, &plan.crcs, class, &holds.pin).await;
            out.data.push(match read {
                Ok(data) => data,
                Err(why) => {
                    let Plan { crcs, of, .. } = &plan;
                    return Err(self.unread(*of, class, addr, crcs, &holds.pin, why).await);
                }
            });
            return Ok(out);
        }
        Box::pin(self.read_pieces(plan, holds, class)).await
    }

    async fn read_pieces(
        self: &Rc<Self>,
        plan: Plan,
        holds: Holds,
        class: Class,
    ) -> Result<Blocks> {
        let mut out = Blocks::nothing();
        let mut tasks: Vec<_> = Vec::with_capacity(plan.pieces.len());
        let mut next = plan.of;
        for p in &plan.pieces {
            let of = next;
            next.lba = of.lba.plus(u64::from(p.len));
            tasks.push(p.place.as_ref().map(|place| {
                let addr = place.addr;
                let ahead = place.ahead.map(|part| (holds.loads[part.load].clone(), part.skip));
                let crcs: SmallVec<[Crc; 8]> =
                    SmallVec::from_slice(&plan.crcs[place.crcs..place.crcs + p.len as usize]);
                let (this, pin) = (self.clone(), holds.pin.clone());
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
        of: VolumeBlock,
        class: Class,
        addr: PoolAddr,
        crcs: &[Crc],
        pin: &Pin,
        why: ReadFailure,
    ) -> StorageError {
        let ReadFailure::Bad(block, _) = why else { return why.into() };
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
            let (plan, _holds) = self
                .loader
                .resident(Class::Foreground, |st| plan_read(st, volume, from, n))
                .await?;
            for p in &plan.pieces {
                match p.place {
                    Some(BlocksPlace { crcs: first, .. }) => {
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
