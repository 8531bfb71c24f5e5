//! Moves blocks from one bucket to another: survivors of a victim, and what is left in sparse
//! buckets.
//!
//! Plan: the caller pins the bucket. Transfer: the blocks are read, verified, and written to an
//! open bucket of the main queue, by requests of the background. Settle: if the index still has the
//! same key, the key gets the new place. Blocks that were overwritten, discarded or moved meanwhile
//! are left alone, and the new copy is wasted.

use base::{CacheAddr, Lba, Result};
use pool::Step;
use queue::Class;
use smallvec::SmallVec;

use crate::Cache;
use crate::store::buckets::Buckets;
use crate::store::buckets::census::Stream;
use crate::store::key::{Body, IndexKey};
use crate::store::ring_room::JournalRoom;
use crate::store::state::State;
use crate::store::taken::{Taken, extents};

/// What became of an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Moved {
    /// It is in another bucket.
    Done,
    /// It was changed meanwhile, or there is no room for it: it stays.
    Stays,
    /// One of its blocks is bad.
    Bad,
}

impl Cache {
    /// Moves an extent of a pinned bucket. `hits` gives the hits of each block after the move, by
    /// its old address.
    pub(crate) async fn move_extent(
        &self,
        e: &IndexKey,
        room: &mut JournalRoom,
        hits: fn(&Buckets, CacheAddr) -> u8,
    ) -> Result<Moved> {
        let Body::Data { addr, crcs, .. } = &e.body else { return Ok(Moved::Stays) };
        let Ok(data) = self.read_bucket(*addr, crcs, Class::Collection).await else {
            return Ok(Moved::Bad);
        };
        let mut taken = self.take_some(Stream::Main, crcs.len() as u32);
        if taken.blocks() < crcs.len() as u32 {
            return Ok(Moved::Stays);
        }
        if let Err(e) = self.write_taken(&mut taken, &data, Class::Collection).await {
            let mut st = self.state_mut();
            taken.iter().for_each(|t| st.buckets.condemn(t.addr));
            return Err(e);
        }
        let settled =
            self.resident(Class::Collection, |st| settle_move(st, room, e, &taken, hits)).await?;
        Ok(if settled { Moved::Done } else { Moved::Stays })
    }
}

/// True if the extent is clean, or dirty in the open epoch: a sealed epoch needs its blocks where
/// they are.
pub(crate) fn is_movable(st: &State, e: &IndexKey) -> bool {
    st.buckets.counted(e.written).is_none_or(|w| w == st.buckets.epoch())
}

/// Enters an extent where it was moved to, if it is still the same.
fn settle_move(
    st: &mut State,
    room: &mut JournalRoom,
    e: &IndexKey,
    taken: &[Taken],
    hits: fn(&Buckets, CacheAddr) -> u8,
) -> Step<bool> {
    let Body::Data { addr, crcs, cover, .. } = &e.body else { return Ok(false) };
    let range = (e.lba, Lba(e.end()));
    let now = st.index.overlapping(&st.buckets, e.volume, range, 2)?;
    let is_same = |now: &IndexKey| {
        now.lba <= e.lba && e.end() <= now.end() && now.slice(e.lba.0, e.end()) == *e
    };
    let written = st.index.unpublished(e);
    // Its epoch may have been published meanwhile. A part has no clean key: the next walk drops it.
    let published_part = e.is_part() && written.is_none();
    if !matches!(&now[..], [now] if is_same(now)) || !is_movable(st, e) || published_part {
        return Ok(false);
    }
    let kept: SmallVec<[u8; 64]> =
        (0..crcs.len() as u64).map(|i| hits(&st.buckets, CacheAddr(addr.0 + i))).collect();
    let new = extents((e.volume, e.lba), taken, crcs, *cover, written);
    // A clean key is journaled too, because its old place will be overwritten.
    st.change(room, e.volume, range, &new)?;
    let places = taken.iter().flat_map(|t| t.addr.0..t.addr.0 + u64::from(t.len));
    places.zip(kept).for_each(|(at, hits)| st.buckets.set_hits(CacheAddr(at), hits));
    Ok(true)
}
