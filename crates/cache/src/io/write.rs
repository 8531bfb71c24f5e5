//! The way of a write: space in an open bucket, the data, then the key.
//!
//! These futures must run to their end once they were polled: what they took stays taken otherwise.

use std::time::Duration;

use base::checksum::block_crcs;
use base::{BLOCK, BucketGen, CacheAddr, Instant, Lba, Slice, SliceList, VolumeId};
use format::cache::index::Cover;
use pool::{ErrorKind, PoolError, Result};
use queue::Class;
use smallvec::SmallVec;

use crate::Cache;
use crate::buckets::census::Stream;
use crate::io::past::STEP_BLOCKS;
use crate::space::admission::Held;
use crate::space::reclaim::nodes_for;
use crate::store::index::{Body, Crcs, Extent};
use crate::store::room::Room;
use format::cache::index::MAX_EXTENT_BLOCKS;
use format::cache::journal::blocks_for;

/// For so long write-back may fail before writers that wait for it do.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// So many rounds may end before a writer that has waited since knows that there will be no room.
const ROUNDS: u64 = 16;
/// In how many places a write is tried before the device counts as failed.
const WRITE_TRIES: u32 = 3;
/// Neighbouring blocks of one bucket, pinned.
#[derive(Clone, Copy)]
pub(crate) struct Taken {
    pub addr: CacheAddr,
    pub len: u32,
    pub generation: BucketGen,
}

impl Cache {
    /// Writes whole blocks. Every block is visible when this returns, and durable after the next [`Cache::flush`].
    pub async fn write(&self, volume: VolumeId, lba: Lba, data: &Slice) -> Result<()> {
        let past = self.goes_past(volume, lba, (data.len() / BLOCK) as u64);
        let mut at = 0;
        while at < data.len() {
            if past {
                let n = (data.len() - at).min(STEP_BLOCKS as usize * BLOCK);
                let written =
                    Box::pin(self.write_past(volume, lba.plus((at / BLOCK) as u64), &data.cut(at, n))).await?;
                if written {
                    at += n;
                    continue;
                }
            }
            let n = (data.len() - at).min(self.0.layout.step_blocks() * BLOCK);
            self.write_step(volume, lba.plus((at / BLOCK) as u64), data.cut(at, n), Cover::ALL).await?;
            at += n;
        }
        Ok(())
    }

    /// Writes whole blocks; or one, of which only some sectors count.
    pub(crate) async fn write_step(&self, volume: VolumeId, lba: Lba, data: Slice, cover: Cover) -> Result<()> {
        let blocks = (data.len() / BLOCK) as u64;
        let held = self.admit(volume, blocks).await?;
        self.promise(blocks).await?;
        let outcome = self.write_promised((volume, lba), data, cover, held).await;
        match outcome {
            Ok(over) => {
                self.0.pool.unreserve(over);
                self.after_write();
                Ok(())
            }
            Err(e) => {
                self.0.pool.unreserve(blocks);
                Err(e)
            }
        }
    }

    /// Returns how many dirty blocks were overwritten: so much of the promise is not needed.
    async fn write_promised(
        &self,
        (volume, lba): (VolumeId, Lba),
        data: Slice,
        cover: Cover,
        (held, mut room): (Held, Room),
    ) -> Result<u64> {
        let mut held = Some(held);
        for attempt in 1.. {
            let taken = self.take(Stream::Writes, (data.len() / BLOCK) as u32).await?;
            held.take();
            let outcome = match self.write_taken(&taken, &data, Class::Foreground).await {
                Ok(()) => Ok(self.enter(&mut room, (volume, lba), &taken, &data, cover).await),
                Err(e) => {
                    let mut st = self.state_mut();
                    taken.iter().for_each(|t| st.buckets.condemn(t.addr));
                    Err(e)
                }
            };
            self.give_up_pins(&taken);
            match outcome {
                Ok(entered) => return entered,
                Err(e) if attempt < WRITE_TRIES && e.kind != ErrorKind::NoSpace => {
                    tracing::warn!("{e}; written elsewhere");
                }
                Err(e) => {
                    if e.kind != ErrorKind::NoSpace {
                        self.fail(&e);
                    }
                    return Err(e);
                }
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Takes and pins `blocks` blocks of open buckets; waits for buckets if need be. Of writes only one waits with some in hand: what all others have had
    /// comes into the index, so that it can be written back and its buckets become free.
    pub(crate) async fn take(&self, stream: Stream, blocks: u32) -> Result<SmallVec<[Taken; 1]>> {
        let mut taken: SmallVec<[Taken; 1]> = SmallVec::new();
        let mut missing = blocks;
        let _turn = match stream {
            Stream::Writes => Some(self.0.taking.acquire(1).await),
            _ => None,
        };
        let (rounds, since) = (self.rounds(), self.0.rt.now());
        loop {
            missing -= self.take_some(stream, missing, &mut taken);
            if missing == 0 {
                break;
            }
            let outcome = match self.check_failed().and_then(|()| self.check_hopeful(rounds)) {
                Ok(()) if stream == Stream::Writes => Box::pin(self.check_worn(since)).await,
                outcome => outcome,
            };
            if let Err(e) = outcome {
                self.give_up_pins(&taken);
                return Err(e);
            }
            let wait = self.0.room.wait();
            self.0.hungry.notify();
            wait.await;
        }
        if self.is_hungry() {
            self.0.hungry.notify();
        }
        Ok(taken)
    }

    /// Sets the cache aside if somebody has waited for buckets since, and there is nothing that a round or an eviction could free.
    pub(crate) async fn check_worn(&self, waited_since: Instant) -> Result<()> {
        if self.0.rt.now().since(waited_since) <= PATIENCE {
            return Ok(());
        }
        // Garbage collection may find keys of nothing, and with them nodes; it has more time.
        let collects = self.0.rt.now().since(waited_since) <= 10 * PATIENCE;
        if !self.is_worn(collects) {
            return Ok(());
        }
        // The pool has all that counts; this says so.
        self.publish_all().await?;
        if !self.is_worn(collects) {
            return Ok(());
        }
        let census = self.state().buckets.census();
        let what = format!(
            "no bucket can be written to any more: {} of {} had errors and are not used, {} hold the index; replace the device, or attach a larger one",
            census.retired,
            self.state().buckets.count(),
            census.metadata
        );
        let e = PoolError::new(ErrorKind::Io, what);
        self.fail(&e);
        Err(e)
    }

    fn is_worn(&self, collects: bool) -> bool {
        let (st, census) = (self.state(), self.state().buckets.census());
        let dirty = st.buckets.unpublished_blocks() != (0, 0) || st.buckets.zeros() != (0, 0);
        let garbage = st.buckets.garbage() > 0;
        !dirty && st.buckets.pending() == 0 && census.clean == 0 && !(collects && garbage)
    }

    /// Fails when the cache is closed: nobody makes room in it any more.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.0.closed.get() {
            return Err(PoolError::new(ErrorKind::Io, "the cache is closed"));
        }
        Ok(())
    }

    /// Fails if waiting for buckets is of no use: write-back has failed for too long, or several rounds since number `rounds` have freed nothing.
    pub(crate) fn check_hopeful(&self, rounds: u64) -> Result<()> {
        self.check_carried()?;
        if self.rounds() > rounds + ROUNDS { Err(self.hopeless()) } else { Ok(()) }
    }

    /// Why there will be no room.
    pub(crate) fn hopeless(&self) -> PoolError {
        let why = self.check_failed().and_then(|()| self.check_open()).and_then(|()| self.check_carried());
        why.err().unwrap_or_else(|| {
            let what = "the cache is full of blocks that are bad in it and cannot be written back: see bad_blocks in forebay status";
            PoolError::new(ErrorKind::Io, what)
        })
    }

    /// Write-back has failed; said once for each cause.
    pub(crate) fn note_failing(&self, e: PoolError) {
        let mut round = self.0.round.borrow_mut();
        if round.last_error.as_ref().is_none_or(|last| last.context != e.context) {
            tracing::warn!("write-back: {e}; tried again each second");
        }
        round.last_error = Some(e);
        round.failing_since.get_or_insert(self.0.rt.now());
    }

    /// Fails if write-back has failed for too long.
    pub(crate) fn check_carried(&self) -> Result<()> {
        let round = self.0.round.borrow();
        if let (Some(since), Some(e)) = (round.failing_since, &round.last_error)
            && self.0.rt.now().since(since) > PATIENCE
        {
            let text = format!("the cache is full of what the pool does not take: {e}");
            return Err(PoolError::new(e.kind, text));
        }
        Ok(())
    }

    /// Takes and pins up to `blocks` blocks, as many as there are now; returns how many.
    pub(crate) fn take_some(&self, stream: Stream, blocks: u32, taken: &mut SmallVec<[Taken; 1]>) -> u32 {
        let reserve = self.node_reserve();
        let mut st = self.state_mut();
        let mut got = 0;
        while got < blocks {
            // The last buckets are for the index's nodes: without them nothing ever becomes free.
            let spare = stream == Stream::Nodes || st.buckets.free() > reserve || st.buckets.left_open(stream) > 0;
            let next = if spare { st.buckets.append(stream, blocks - got) } else { None };
            let Some((addr, len, generation)) = next else { break };
            taken.push(Taken { addr, len, generation });
            got += len;
        }
        got
    }

    pub(crate) fn give_up_pins(&self, taken: &[Taken]) {
        let mut st = self.state_mut();
        taken.iter().for_each(|t| st.buckets.unpin(t.addr));
    }

    pub(crate) async fn write_taken(&self, taken: &[Taken], data: &Slice, class: Class) -> Result<()> {
        let mut outcome = Ok(());
        let began = self.0.rt.now();
        if let [t] = taken {
            outcome = self.0.device.write(class, self.offset_of(t.addr), SliceList::from_iter([data.clone()])).await;
        } else {
            let mut writes = Vec::with_capacity(taken.len());
            let mut at = 0;
            for t in taken {
                let bytes = t.len as usize * BLOCK;
                let (device, part, offset) = (self.0.device.clone(), data.cut(at, bytes), self.offset_of(t.addr));
                at += bytes;
                writes.push(
                    self.0.rt.spawn(async move { device.write(class, offset, SliceList::from_iter([part])).await }),
                );
            }
            for w in writes {
                outcome = outcome.and(w.await.unwrap_or(Err(base::IoError::CANCELED)));
            }
        }
        if class == Class::Foreground {
            self.note_latency(self.0.rt.now().since(began), self.0.settings.congested_write);
        }
        outcome.map_err(|e| {
            let kind = if e.is_no_space() { ErrorKind::NoSpace } else { ErrorKind::Io };
            PoolError::new(kind, format!("cache device {}: write: {e}", self.0.path))
        })
    }

    /// Enters what was written into the index.
    async fn enter(
        &self,
        room: &mut Room,
        (volume, lba): (VolumeId, Lba),
        taken: &[Taken],
        data: &Slice,
        cover: Cover,
    ) -> Result<u64> {
        let crcs: Crcs = block_crcs(data).collect();
        self.resident(Class::Foreground, |st| {
            // The epoch of the moment in which it becomes visible.
            let written = Some(st.buckets.epoch());
            let new = extents((volume, lba), taken, &crcs, cover, written);
            st.change(room, volume, (lba, lba.plus(crcs.len() as u64)), &new)
        })
        .await
    }

    /// Makes `[lba, end)` read as zeros.
    pub async fn discard(&self, volume: VolumeId, lba: Lba, end: Lba) -> Result<()> {
        let mut at = lba;
        while at < end {
            let mut room = self.room_for_request(blocks_for(1, 0), nodes_for(DISCARD_EXTENTS as u64)).await?;
            self.0.last_request.set(self.0.rt.now());
            // As many extents as one step may drop; what is beyond is one step more.
            let upto = self
                .resident(Class::Foreground, |st| {
                    let old = st.index.overlapping(&st.buckets, volume, (at, end), DISCARD_EXTENTS)?;
                    let upto = match old.last() {
                        Some(last) if old.len() >= DISCARD_EXTENTS => Lba(last.end().min(end.0)),
                        _ => end,
                    };
                    let written = Some(st.buckets.epoch());
                    let zeros = Extent { volume, lba: at, written, body: Body::Zeros { len: upto.0 - at.0 } };
                    Ok((upto, st.change(&mut room, volume, (at, upto), std::slice::from_ref(&zeros))?))
                })
                .await?;
            drop(room);
            self.0.pool.unreserve(upto.1);
            at = upto.0;
            self.after_write();
            self.0.rt.yield_now().await;
        }
        Ok(())
    }

    /// Gets the pool's word that it can hold `blocks` more; what is dirty is published first if that may help.
    async fn promise(&self, blocks: u64) -> Result<()> {
        for attempt in 0.. {
            match self.0.pool.reserve(blocks) {
                Ok(()) => return Ok(()),
                Err(e) if attempt == 2 => return Err(e),
                Err(_) => Box::pin(self.publish_all()).await?,
            }
        }
        Ok(())
    }
}

/// Extents that one step of a discard replaces.
const DISCARD_EXTENTS: usize = 64;

/// No more extents does one step of a write make of so many blocks: one for each bucket that it
/// gets to, or more where that has more blocks than an extent.
pub(crate) const fn most_extents(blocks: u64) -> usize {
    (blocks / LEAST_BUCKET + 2 + blocks / MAX_EXTENT_BLOCKS as u64) as usize
}

/// Blocks of the smallest bucket.
pub(crate) const LEAST_BUCKET: u64 = 16;

/// The extents that blocks in `taken` make.
pub(crate) fn extents(
    (volume, lba): (VolumeId, Lba),
    taken: &[Taken],
    crcs: &[base::Crc],
    cover: Cover,
    written: Option<base::Epoch>,
) -> SmallVec<[Extent; 1]> {
    let mut out = SmallVec::new();
    let mut at = 0usize;
    for t in taken {
        let end = at + t.len as usize;
        let mut from = at;
        while from < end {
            let to = (from + MAX_EXTENT_BLOCKS).min(end);
            out.push(Extent {
                volume,
                lba: lba.plus(from as u64),
                written,
                body: Body::Data {
                    addr: CacheAddr(t.addr.0 + (from - at) as u64),
                    generation: t.generation,
                    crcs: SmallVec::from_slice(&crcs[from..to]),
                    cover,
                },
            });
            from = to;
        }
        at = end;
    }
    out
}
