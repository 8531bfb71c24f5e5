//! Moves blocks from one bucket to another: survivors of a victim, and what is left in sparse
//! buckets.
//!
//! Plan: the caller pins the bucket. Transfer: the blocks are read, verified, and written to an
//! open bucket of the main queue, by requests of the background. Settle: if the index still has the
//! same key, the key gets the new place. Blocks that were overwritten, discarded or moved meanwhile
//! are left alone, and the new copy is wasted.

use std::rc::Rc;

use base::checksum::block_crcs;
use base::{BLOCK, CacheAddr, Crc, ErrorKind, Result, Slice};
use btree::Stop;
use format::cache::journal::blocks_for;
use pool::Step;
use queue::Class;
use smallvec::SmallVec;

use crate::core::Core;
use crate::core::pins::TakenBlocks;
use crate::space::request_room::Room;
use crate::store::buckets::census::Stream;
use crate::store::buckets::usage::Usage;
use crate::store::key::{Body, IndexKey};
use crate::store::ring_room::{JournalRoom, nodes_for};
use crate::store::state::State;
use crate::store::taken::{TakenRun, extents, most_extents};
use crate::transfer::bucket_io::BucketIo;

/// The outcome of the move of an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MoveOutcome {
    /// The extent is in another bucket.
    Done,
    /// The extent was changed meanwhile, or there is no room for it: it stays.
    Stays,
    /// One of the extent's blocks is bad.
    Bad,
}

/// Moves blocks from one bucket to another.
pub(crate) struct Mover {
    core: Core,
    bucket_io: Rc<BucketIo>,
    room: Rc<Room>,
}

impl Mover {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core, bucket_io: &Rc<BucketIo>, room: &Rc<Room>) -> Rc<Mover> {
        Rc::new(Mover { core: core.clone(), bucket_io: bucket_io.clone(), room: room.clone() })
    }

    /// Moves an extent of a pinned bucket. `hits` gives the hits of each block after the move, by
    /// its old address.
    pub(crate) async fn move_extent(
        &self,
        e: &IndexKey,
        room: &mut JournalRoom,
        hits: fn(&Usage, CacheAddr) -> u8,
    ) -> Result<MoveOutcome> {
        let Body::Data { addr, crcs, .. } = &e.body else { return Ok(MoveOutcome::Stays) };
        let Ok(data) = self.bucket_io.read_bucket(*addr, crcs, Class::Collection).await else {
            return Ok(MoveOutcome::Bad);
        };
        let Some(taken) = self.write_elsewhere(&data, Class::Collection).await? else {
            return Ok(MoveOutcome::Stays);
        };
        let settled = self
            .core
            .resident(Class::Collection, |st| settle_move(st, room, e, &taken, hits))
            .await?;
        Ok(if settled { MoveOutcome::Done } else { MoveOutcome::Stays })
    }

    /// Moves extents of one pinned bucket together, in the order of their places: with one read and
    /// one write, of `class`. `room` is for all their records ([`room_to_move`]). Returns how many
    /// blocks were moved. Bad ones stay, and all do if there is no room for all.
    pub(crate) async fn move_together(
        &self,
        all: &[IndexKey],
        room: JournalRoom,
        class: Class,
    ) -> Result<u64> {
        let Some((good, data)) = self.read_together(all, class).await else { return Ok(0) };
        let Some(taken) = self.write_elsewhere(&data, class).await? else { return Ok(0) };
        let (mut room, mut left, mut at, mut moved) = (Some(room), &good[..], 0, 0);
        while !left.is_empty() {
            // While a node is read an entry of the journal may end. Then what comes after it takes
            // blocks of another one, for which the room was not meant.
            let (blocks, nodes) = room_to_move(left.iter().copied());
            let again = room.take().or_else(|| self.room.try_room(blocks, nodes));
            let Some(mut room) = again else { break };
            let fault = {
                let mut st = self.core.state_mut();
                loop {
                    let Some((e, rest)) = left.split_first() else { break None };
                    let part = part_of(&taken, at, e.len() as u32);
                    match settle_move(&mut st, &mut room, e, &part, Usage::hits) {
                        Ok(settled) => moved += if settled { e.len() } else { 0 },
                        Err(Stop::Fault(fault)) => break Some(fault),
                        Err(Stop::Error(e)) => return Err(e),
                    }
                    (left, at) = (rest, at + e.len() as u32);
                }
            };
            drop(room);
            if let Some(mut fault) = fault.map(Some) {
                let read = |_: &mut State| fault.take().map_or(Ok(()), |f| Err(Stop::Fault(f)));
                self.core.resident(class, read).await?;
            }
        }
        Ok(moved)
    }

    /// Writes whole blocks into an open bucket of the main queue; `None`: there is no room.
    async fn write_elsewhere(&self, data: &Slice, class: Class) -> Result<Option<TakenBlocks>> {
        let blocks = (data.len() / BLOCK) as u32;
        let mut taken = self.room.take_some(Stream::Main, blocks);
        if taken.blocks() < blocks {
            return Ok(None);
        }
        if let Err(e) = self.bucket_io.write_taken(&mut taken, data, class).await {
            // Nothing is wrong with the bucket where the file system under the cache is full.
            if e.kind != ErrorKind::NoSpace {
                let mut st = self.core.state_mut();
                taken.iter().for_each(|t| st.buckets.condemn(t.addr));
            }
            return Err(e);
        }
        Ok(Some(taken))
    }

    /// Reads extents of one bucket. Returns those that are good, and their data; `None`: none is.
    async fn read_together<'e>(
        &self,
        all: &'e [IndexKey],
        class: Class,
    ) -> Option<(Vec<&'e IndexKey>, Slice)> {
        let places: Vec<_> =
            all.iter().filter_map(|e| place_of(e).map(|(at, crcs)| (e, at, crcs))).collect();
        let (&(_, first, _), &(last, at, _)) = (places.first()?, places.last()?);
        let (from, blocks) = (self.core.offset_of(CacheAddr(first)), at + last.len() - first);
        let read = self.core.device().queue().read_blocks(class, from, blocks as usize).await;
        let bytes = places.iter().map(|p| p.2.len() * BLOCK).sum();
        let (mut data, mut good, mut filled) = (self.core.rt().bufs().take(bytes), Vec::new(), 0);
        for (e, at, crcs) in places {
            let begin = (at - first) as usize * BLOCK;
            let mut found = &read.buf[begin..begin + crcs.len() * BLOCK];
            let again;
            if !block_crcs(found).eq(crcs.iter().copied()) {
                // The extent may be good when it is read again.
                let read = self.bucket_io.read_bucket(CacheAddr(at), crcs, class).await;
                let Ok(good) = read else { continue };
                again = good;
                found = &again;
            }
            data[filled..filled + found.len()].copy_from_slice(found);
            filled += found.len();
            good.push(e);
        }
        (filled > 0).then(|| (good, data.freeze().slice(0, filled)))
    }
}

/// The blocks of the journal's ring that the records of these extents take when they are moved in
/// one step, and the number of nodes that may change.
pub(crate) fn room_to_move<'e>(all: impl Iterator<Item = &'e IndexKey> + Clone) -> (u32, u64) {
    let records = all.clone().map(|e| most_extents(e.len())).sum();
    let checksums = all.clone().map(IndexKey::len).sum::<u64>() as usize;
    (blocks_for(records, checksums), all.map(|e| nodes_for(e.len())).sum())
}

/// The place of an extent, and the checksums of its blocks.
pub(super) fn place_of(e: &IndexKey) -> Option<(u64, &[Crc])> {
    match &e.body {
        Body::Data { addr, crcs, .. } => Some((addr.0, crcs)),
        Body::Staged { .. } | Body::Zeros { .. } => None,
    }
}

/// The part of taken blocks from block `from` on that has `len` blocks.
fn part_of(taken: &[TakenRun], mut from: u32, mut len: u32) -> SmallVec<[TakenRun; 2]> {
    let mut part = SmallVec::new();
    for t in taken {
        let skip = from.min(t.len);
        let of_this = len.min(t.len - skip);
        if of_this > 0 {
            part.push(TakenRun { addr: CacheAddr(t.addr.0 + u64::from(skip)), len: of_this, ..*t });
        }
        (from, len) = (from - skip, len - of_this);
    }
    part
}

/// True if the extent is clean, or dirty in the open epoch: a sealed epoch needs its blocks where
/// they are.
pub(crate) fn is_movable(st: &State, e: &IndexKey) -> bool {
    st.buckets.epochs().counted(e.written).is_none_or(|w| w == st.buckets.epochs().open())
}

/// Enters an extent where it was moved to, if it is still the same.
fn settle_move(
    st: &mut State,
    room: &mut JournalRoom,
    e: &IndexKey,
    taken: &[TakenRun],
    hits: fn(&Usage, CacheAddr) -> u8,
) -> Step<bool> {
    let Body::Data { addr, crcs, cover, .. } = &e.body else { return Ok(false) };
    let range = e.range();
    let now = st.index.overlapping(&st.buckets, e.volume, range, 2)?;
    let is_same = |now: &IndexKey| {
        now.lba <= e.lba && e.end() <= now.end() && now.slice(e.lba.0, e.end()) == *e
    };
    let written = st.index.unpublished(e);
    // The epoch of the extent may have been published meanwhile. A part has no clean key: the next
    // walk drops it.
    let published_part = e.is_part() && written.is_none();
    if !matches!(&now[..], [now] if is_same(now)) || !is_movable(st, e) || published_part {
        return Ok(false);
    }
    let kept: SmallVec<[u8; 64]> =
        (0..crcs.len() as u64).map(|i| hits(st.buckets.usage(), CacheAddr(addr.0 + i))).collect();
    let new = extents(e.volume, e.lba, taken, crcs, *cover, written);
    // A clean key is journaled too, because its old place will be overwritten.
    st.change(room, e.volume, range, &new)?;
    let places = taken.iter().flat_map(|t| t.addr.0..t.addr.0 + u64::from(t.len));
    places.zip(kept).for_each(|(at, hits)| st.buckets.usage_mut().set_hits(CacheAddr(at), hits));
    Ok(true)
}
