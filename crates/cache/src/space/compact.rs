//! Compaction: what writers have left of dirty buckets is put together.
//!
//! A bucket with one dirty block can be neither evicted nor filled anew. Where clients write the
//! same blocks again and again, most of what a bucket holds is overwritten soon, but hardly ever
//! all of it. So a set of a tenth of the cache makes four fifths of all buckets dirty, and writers
//! would be slowed to the speed of write-back. While the room is getting short, the dirty blocks of
//! the thinnest buckets are moved together, and their buckets are clean or free then.
//!
//! Eviction would take the oldest buckets, and lose clean blocks of them. While at most half of
//! what the buckets hold is needed, nothing is to be lost for garbage: so all that is left of a
//! bucket is moved then, and where buckets run short, thin ones without dirty blocks are compacted
//! too.
//!
//! Only buckets whose dirty blocks are all of the open epoch are compacted: a sealed epoch needs
//! its blocks where they are. Only those of which at most half is dirty: so each block that is
//! moved makes room for one at least. Their summaries say what they were filled with.

use std::rc::Rc;

use base::Result;
use queue::Class;
use rt::sync::Semaphore;

use crate::core::Core;
use crate::core::pins::BucketPin;
use crate::health::fail::Failures;
use crate::space::contents::BucketContents;
use crate::space::mover::{Mover, is_movable, place_of, room_to_move};
use crate::space::request_room::Room;
use crate::store::buckets::ThinBucket;
use crate::store::key::IndexKey;
use crate::store::state::State;

/// Buckets that are looked at to find a thin one.
const LOOKED_AT: u32 = 1024;
/// Buckets that are compacted at once.
const AT_ONCE: u64 = 16;
/// Extents that are moved together, and the blocks that are read for that.
const TOGETHER: (usize, u64) = (32, 256);

/// Puts the dirty blocks of thin buckets together.
pub(crate) struct Compactor {
    core: Core,
    failures: Rc<Failures>,
    room: Rc<Room>,
    mover: Rc<Mover>,
    contents: Rc<BucketContents>,
}

impl Compactor {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        failures: &Rc<Failures>,
        room: &Rc<Room>,
        mover: &Rc<Mover>,
        contents: &Rc<BucketContents>,
    ) -> Rc<Compactor> {
        Rc::new(Compactor {
            core: core.clone(),
            failures: failures.clone(),
            room: room.clone(),
            mover: mover.clone(),
            contents: contents.clone(),
        })
    }

    /// Compacts thin buckets while the room is getting short.
    pub(crate) async fn compactor(self: &Rc<Self>) {
        let turns = Semaphore::new(AT_ONCE);
        while !self.core.health().is_closed() && self.failures.check_failed().is_ok() {
            let less_room = self.core.wakes().compact.wait();
            let thin = if self.core.due().wants_compaction() { self.pin_thin() } else { None };
            let Some((thin, pin)) = thin else {
                less_room.await;
                continue;
            };
            let (this, turn) = (self.clone(), turns.acquire(1).await);
            self.core.rt().detach(async move {
                if let Err(e) = this.compact(thin).await {
                    tracing::debug!("a bucket was not compacted: {e}");
                }
                drop(pin);
                drop(turn);
            });
        }
    }

    /// A thin bucket, and its pin.
    fn pin_thin(&self) -> Option<(ThinBucket, BucketPin)> {
        let clean_too = self.core.due().evicts_garbage_soon();
        let bucket = self.core.state_mut().buckets.pin_thinnest(LOOKED_AT, clean_too)?;
        let pin = self.core.pinned(self.contents.first_of(bucket.id));
        Some((bucket, pin))
    }

    /// Moves the dirty blocks of a pinned bucket, or all.
    async fn compact(&self, ThinBucket { id, generation, whole }: ThinBucket) -> Result<()> {
        let Some(keys) = self.contents.keys_of(id, generation, Class::Compaction).await else {
            return Ok(());
        };
        let is_dirty =
            |st: &State, e: &IndexKey| is_movable(st, e) && st.index.unpublished(e).is_some();
        let is_needed: fn(&State, &IndexKey) -> bool = if whole { is_movable } else { is_dirty };
        let places = 0..keys.len() as u32;
        let all = self
            .contents
            .still_there(id, generation, &keys, places, is_needed, Class::Compaction)
            .await?;
        let mut left = &all[..];
        while !left.is_empty() {
            self.core.check_open()?;
            let (some, rest) = left.split_at(next_together(left));
            left = rest;
            let (blocks, nodes) = room_to_move(some.iter());
            let room = self.room.room_for_request(blocks, nodes).await?;
            let moved = self.mover.move_together(some, room, Class::Compaction).await?;
            self.core.collections().count(|gc| gc.compacted_blocks += moved);
        }
        Ok(())
    }
}

/// The number of these extents that are moved together next. They are in the order of their places.
fn next_together(all: &[IndexKey]) -> usize {
    let place = |e: &IndexKey| place_of(e).map_or(0, |(at, _)| at);
    let first = all.first().map_or(0, place);
    let (most, blocks) = TOGETHER;
    let near = |e: &&IndexKey| place(e) + e.len() <= first + blocks;
    all.iter().take(most).take_while(near).count().max(1)
}

#[cfg(test)]
#[path = "compact_tests.rs"]
mod tests;
