//! Writes of a volume that writes back, past the buckets: large requests while the cache device
//! is late, and long streams where the settings say so.
//!
//! Their data goes to the pool at once, into the staging volume of the volume and the open epoch,
//! and a *staged* key into the index; from there on they are writes like all others: dirty until a
//! pass publishes their epoch, replaced by what comes later.
//!
//! **Order.** A pool that is written to may commit at any time, and a commit must not know of
//! staged blocks of which the journal does not: had the journal only an older record of them, with
//! other checksums, replay would take what was flushed for lost. So the record is *logged as an
//! intent*: it enters the journal before the pool is written to, and every commit that freezes
//! after that waits for it ([`Cache::records_durable`]). When the pool has the data, the key enters
//! the index, with a record in its own place among the others. A record whose data never arrived is
//! void at replay.
//!
//! **Once.** While a staged key names a block of an epoch, or a part of a block lies over it
//! ([`crate::io::parts`]), the block is not written again in this epoch: such a write goes through
//! the cache. Were it written again in place, the pool could commit the new block before the key of
//! it is entered. A checkpoint that was taken in between has the old key, and replay begins behind
//! the record that logged the new block as an intent: what was flushed would count as lost.
//!
//! **Room.** The journal's ring is freed by checkpoints, a checkpoint waits for the pool to commit
//! the staged blocks in it, and that commit waits for the logged intents. So these, and the ones
//! that follow them when the pool has the data, have room of their own before anything begins
//! ([`crate::store::ring_room`]).
//!
//! **What was before.** As long as the pool may lose staged blocks, replay may need what they
//! replaced: its buckets are neither evicted nor used anew before the pool has committed.
//!
//! **Late.** A disk may be busy for long with what others want of it. While the cache has room, a
//! write past it must not be slower than one through it. So if the pool does not answer in time,
//! the same data goes through the cache, and the client is answered when that is done; no key of
//! the staged blocks is entered, and they go with their staging volume. Then no other goes past
//! before the pool has answered that one, and from then on one at a time, more with each that is in
//! time ([`Window`]). Where the cache has no room the pool's speed is what there is, and no request
//! is overtaken.
//!
//! **Cuts.** A staging volume is not written to any more when its epoch is closed: a cut waits for
//! the writes under way here, and none begins meanwhile.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::checksum::block_crcs;
use base::{BLOCK, BLOCK_U64, Crc, Epoch, Generation, Lba, Result, Slice, VolumeId};
use format::cache::index::MAX_EXTENT_BLOCKS;
use format::cache::journal::blocks_for;
use queue::Class;
use rt::Reason;
use rt::sync::within;
use smallvec::SmallVec;

use crate::Cache;
use crate::io::window::{InWindow, UnderWay};
use crate::policy::seal::STAGED_PER_BLOCK;
use crate::settings::StreamWrites;
use crate::store::key::{Body, IndexKey};
use crate::store::ring_room::{JournalRoom, nodes_for};
use crate::store::taken::staged_extents;

/// Blocks of one write to a staging volume.
pub(crate) const STEP_BLOCKS: u64 = 256;
/// Requests of fewer blocks go through the cache: a disk behind it is slow with them, whether they
/// are a stream or not.
const LEAST_BLOCKS: u64 = (64 << 10) / BLOCK_U64;
/// For so long the pool may take to write past the cache, and so much longer for each block, before
/// the cache, if it has room, does it instead.
const PATIENCE: Duration = Duration::from_millis(5);
const PATIENCE_PER_BLOCK: Duration = Duration::from_micros(20);
/// How far a write past the cache is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// The pool has not answered.
    Writing,
    /// Its key is being entered.
    Entering,
    /// The same data went through the cache: no key of this one is entered.
    Overtaken,
}

/// A write past the cache, when its intent was logged.
struct Intent {
    cache: Cache,
    range: (VolumeId, Lba, Lba),
    staging: VolumeId,
    epoch: Epoch,
    new: SmallVec<[IndexKey; 4]>,
    /// For the records of its key.
    room: JournalRoom,
    at: Rc<Cell<At>>,
    _under_way: UnderWay,
    _in_window: InWindow,
}

impl Intent {
    /// False: it is not in the cache's index, and has to go through the cache.
    async fn run(mut self, data: Slice) -> Result<bool> {
        let (volume, lba, end) = self.range;
        let pool = self.cache.pool().clone();
        let written = pool.write(self.staging, lba, &data).await;
        if self.at.get() == At::Overtaken {
            self._in_window.overtaken = true;
            return Ok(true);
        }
        if let Err(e) = written {
            tracing::debug!("volume {volume}: not written past the cache: {e}");
            return Ok(false);
        }
        self.at.set(At::Entering);
        self.cache
            .resident(Class::Foreground, |st| {
                st.enter_staged(
                    (&mut self.room, &self.new),
                    (volume, lba, end),
                    self.epoch,
                    pool.edited(self.staging),
                )
            })
            .await?;
        Ok(true)
    }
}

impl Cache {
    /// The cache device answered a client's request after `took`; by `limit` it should have. For as
    /// long as it was late, it counts as congested.
    pub(crate) fn note_latency(&self, took: Duration, limit: Duration) {
        if limit > Duration::ZERO && took > limit {
            self.bypass().note_late(self.rt().now(), took - limit);
        }
    }

    /// The cache device is late.
    pub(crate) fn is_congested(&self) -> bool {
        let s = self.settings();
        let watched = s.congested_read > Duration::ZERO || s.congested_write > Duration::ZERO;
        watched && self.bypass().is_late(self.rt().now())
    }

    /// Decides whether a client's write goes past the buckets, and notes the write for its stream.
    pub(crate) fn follow_past(&self, volume: VolumeId, lba: Lba, blocks: u64) -> bool {
        let sequential = self.clients().follow_write(volume, lba, blocks);
        let stream = sequential && self.settings().stream_writes == StreamWrites::Past;
        let past = blocks >= LEAST_BLOCKS && (stream || self.is_congested());
        past && !self.keeps(volume)
    }

    /// More staged blocks wait for a pass than should; half as many make a pass begin.
    fn has_many_staged(&self) -> bool {
        let (open, cut) = self.state().buckets.staged_blocks();
        open + cut > STAGED_PER_BLOCK * self.layout().data_blocks()
    }

    /// So many blocks are staged that a pass should publish them.
    pub(crate) fn pass_wanted_by_staged(&self) -> bool {
        let (open, _) = self.state().buckets.staged_blocks();
        open * 2 > STAGED_PER_BLOCK * self.layout().data_blocks()
    }

    /// Writes up to [`STEP_BLOCKS`] blocks past the buckets. False: the caller has to write them
    /// through the cache.
    pub(crate) async fn write_past(
        &self,
        volume: VolumeId,
        lba: Lba,
        data: &Slice,
    ) -> Result<bool> {
        let blocks = (data.len() / BLOCK) as u64;
        // Twice: as an intent, and when it is entered.
        let records = blocks_for((blocks as usize).div_ceil(MAX_EXTENT_BLOCKS), blocks as usize);
        let mut room = self.room_for_request(2 * records, nodes_for(blocks)).await?;
        self.clients().note_request(self.rt().now());
        let end = lba.plus(blocks);
        let much_room = self.has_much_room();
        let Some(in_window) = self.bypass().enter_window(much_room) else { return Ok(false) };
        let begun = self.bypass().begin((volume, lba, end), much_room);
        let Some(under_way) = self.rt().waits(Reason::RangeLock, begun).await else {
            return Ok(false);
        };
        // It stays open while this is under way.
        let epoch = self.epoch();
        let crcs: SmallVec<[Crc; 64]> = block_crcs(data).collect();
        let new = staged_extents(volume, lba, &crcs, epoch);
        if self.has_many_staged() || self.is_staged((volume, lba, end), epoch).await? {
            return Ok(false);
        }
        let staging = match self.pool().staging(volume, epoch).await {
            Ok(staging) => staging,
            Err(e) => {
                tracing::debug!("volume {volume}: not written past the cache: {e}");
                return Ok(false);
            }
        };
        if !self.state_mut().log_intent(&mut room, &new) {
            return Ok(false);
        }
        let intent = Intent {
            cache: self.clone(),
            range: (volume, lba, end),
            staging,
            epoch,
            new,
            room,
            at: Rc::new(Cell::new(At::Writing)),
            _under_way: under_way,
            _in_window: in_window,
        };
        let (at, data) = (intent.at.clone(), data.clone());
        let mut task = self.rt().spawn(async move { intent.run(data).await });
        let patience = PATIENCE + PATIENCE_PER_BLOCK * blocks as u32;
        if let Some(outcome) = within(&mut task, self.rt().sleep(patience)).await {
            return outcome.unwrap_or_else(|| Err(base::StorageError::ended()));
        }
        if at.get() == At::Writing && self.has_much_room() {
            // The pool is late: the same data through the cache is durable sooner, and the key of
            // that is the one that counts.
            at.set(At::Overtaken);
            self.bypass().overtake();
            return Ok(false);
        }
        task.await.unwrap_or_else(|| Err(base::StorageError::ended()))
    }

    /// True if a key names a block of the range as staged in this epoch, by itself or below a part.
    async fn is_staged(&self, range: (VolumeId, Lba, Lba), epoch: Epoch) -> Result<bool> {
        let (volume, lba, end) = range;
        let staged = |e: &IndexKey| match &e.body {
            Body::Data { cover, .. } => cover.below.is_some_and(|below| below.epoch == epoch),
            Body::Staged { .. } => e.written == Some(epoch),
            Body::Zeros { .. } => false,
        };
        let found = self.resident(Class::Foreground, |st| {
            st.index.overlapping(&st.buckets, volume, (lba, end), usize::MAX)
        });
        Ok(found.await?.iter().any(staged))
    }

    /// The pool's commit that has the staged blocks of a volume, or of all; `None` if it is
    /// durable.
    pub(crate) fn staged_in(&self, volume: Option<VolumeId>) -> Option<Generation> {
        let st = self.state();
        st.commits().last_staged(volume).filter(|&g| g > self.pool().committed())
    }

    /// Reads staged blocks.
    pub(crate) async fn read_staged(
        &self,
        volume: VolumeId,
        epoch: Epoch,
        lba: Lba,
        blocks: u64,
    ) -> Result<base::SliceList> {
        let data = self.pool().read_staged(volume, epoch, lba, blocks).await?;
        if self.pool().find_staging(volume, epoch).is_none() && !self.is_publishing(epoch) {
            return Err(self.staging_is_lost(volume, epoch));
        }
        Ok(data)
    }

    /// Reads blocks that the index said are staged. If their staging volume has ended, what was
    /// read is the volume's. It has them too, unless a pass has kept them: in the cache, or staged
    /// once more.
    pub(crate) async fn read_own_staged(
        &self,
        volume: VolumeId,
        epoch: Epoch,
        lba: Lba,
        blocks: u64,
    ) -> Result<base::SliceList> {
        let read = self.read_staged(volume, epoch, lba, blocks).await;
        if self.pool().find_staging(volume, epoch).is_some() {
            return read;
        }
        let end = lba.plus(blocks);
        let found = self.resident(Class::Foreground, |st| {
            st.index.overlapping(&st.buckets, volume, (lba, end), usize::MAX)
        });
        let is_same =
            |e: &IndexKey| matches!(e.body, Body::Staged { .. }) && e.written == Some(epoch);
        let found = found.await?;
        if !found.is_empty() && found.iter().all(is_same) {
            return read;
        }
        self.read_step(volume, lba, blocks, false).await
    }

    /// The pool lacks what a key names; or the volume was deleted, and all of it is gone.
    pub(crate) fn staging_is_lost(&self, volume: VolumeId, epoch: Epoch) -> base::StorageError {
        if self.pool().volume(volume).is_none() {
            return base::StorageError::new(
                base::ErrorKind::NotFound,
                format!("there is no volume with the id {volume}"),
            );
        }
        let text = format!(
            "the pool has lost what volume {volume} was written past the cache in epoch {epoch}; \
             run forebay check"
        );
        base::StorageError::new(base::ErrorKind::Damaged, text)
    }
}
