//! A write has three steps.
//!
//! 1. *Plan*: the throttle admits the write. The write reserves blocks of the pool, then takes
//!    blocks of an open bucket of the cache.
//! 2. *Transfer*: the data goes to the cache's device.
//! 3. *Settle*: the key enters the index, and its record enters the journal in memory. A FLUSH
//!    writes the journal (`transfer/journal_writer.rs`).

use std::rc::Rc;

use base::checksum::block_crcs;
use base::{BLOCK, BlockRange, CacheAddr, ErrorKind, Lba, Result, Slice, VolumeId};
use format::cache::index::Cover;
use format::cache::journal::blocks_for;
use pool::Reservation;
use queue::Class;

use crate::core::Core;
use crate::core::pins::TakenBlocks;
use crate::health::fail::Failures;
use crate::io::read::Reader;
use crate::replacement::keeps_blocks;
use crate::space::request_room::Room;
use crate::space::throttle::Throttle;
use crate::store::buckets::census::Stream;
use crate::store::index::STEP_EXTENTS;
use crate::store::key::{Body, Crcs, IndexKey};
use crate::store::ring_room::{JournalRoom, nodes_for};
use crate::store::taken::extents;
use crate::transfer::bucket_io::BucketIo;
use crate::writeback::pass_runner::PassRunner;

/// In how many places a write is tried before the device counts as failed.
const WRITE_TRIES: u32 = 3;

/// A write on its way: blocks of buckets are taken for its data, and room for its records.
#[must_use = "it is written by `transfer`, and visible by `settle`"]
pub(crate) struct Write {
    writer: Rc<Writer>,
    volume: VolumeId,
    lba: Lba,
    data: Slice,
    cover: Cover,
    room: JournalRoom,
    reserved: Reservation,
    taken: TakenBlocks,
}

/// Writes blocks of volumes that write back.
pub(crate) struct Writer {
    pub(super) core: Core,
    failures: Rc<Failures>,
    pub(super) bucket_io: Rc<BucketIo>,
    pub(super) room: Rc<Room>,
    pub(super) throttle: Rc<Throttle>,
    pub(super) reader: Rc<Reader>,
    pub(super) passes: Rc<PassRunner>,
}

impl Writer {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        failures: &Rc<Failures>,
        bucket_io: &Rc<BucketIo>,
        room: &Rc<Room>,
        throttle: &Rc<Throttle>,
        reader: &Rc<Reader>,
        passes: &Rc<PassRunner>,
    ) -> Rc<Writer> {
        Rc::new(Writer {
            core: core.clone(),
            failures: failures.clone(),
            bucket_io: bucket_io.clone(),
            room: room.clone(),
            throttle: throttle.clone(),
            reader: reader.clone(),
            passes: passes.clone(),
        })
    }

    /// See [`crate::Cache::write`].
    pub(crate) async fn write(
        self: &Rc<Self>,
        volume: VolumeId,
        lba: Lba,
        data: &Slice,
    ) -> Result<()> {
        let mut at = 0;
        while at < data.len() {
            let n = (data.len() - at).min(self.core.layout().step_blocks() * BLOCK);
            self.write_step(volume, lba.plus((at / BLOCK) as u64), data.slice(at, n), Cover::ALL)
                .await?;
            at += n;
        }
        Ok(())
    }

    /// Writes whole blocks; or one, of which only some sectors count. Returns where the first of
    /// them stands.
    pub(super) async fn write_step(
        self: &Rc<Self>,
        volume: VolumeId,
        lba: Lba,
        data: Slice,
        cover: Cover,
    ) -> Result<CacheAddr> {
        let mut write = self.begin_write(volume, lba, data, cover).await?;
        write.transfer().await?;
        let addr = write.taken[0].addr;
        write.settle().await?;
        Ok(addr)
    }

    /// Plans a write.
    async fn begin_write(
        self: &Rc<Self>,
        volume: VolumeId,
        lba: Lba,
        data: Slice,
        cover: Cover,
    ) -> Result<Write> {
        self.core.levels().check_writable(volume)?;
        let blocks = (data.len() / BLOCK) as u64;
        let (admitted, room) = self.throttle.admit(volume, blocks).await?;
        let reserved = self.reserve(blocks).await?;
        let taken = self.room.take(self.stream_of(volume, lba), blocks as u32).await?;
        drop(admitted);
        Ok(Write { writer: self.clone(), volume, lba, data, cover, room, reserved, taken })
    }

    /// Chooses the stream that fills the buckets of a write. The stream is `Writes` if the policy
    /// keeps no blocks or if buckets are low. Otherwise the stream is `Main` if the main queue has
    /// the first block of the write, and `Writes` if not.
    fn stream_of(&self, volume: VolumeId, lba: Lba) -> Stream {
        if !keeps_blocks(self.core.settings().policy) || self.core.levels().is_low_on_buckets() {
            return Stream::Writes;
        }
        let st = self.core.state();
        match st.index.place_of(&st.buckets, volume, lba) {
            Some((addr, generation)) if st.buckets.is_in_main(addr, generation) => Stream::Main,
            _ => Stream::Writes,
        }
    }

    /// See [`crate::Cache::discard`].
    pub(crate) async fn discard(&self, volume: VolumeId, lba: Lba, end: Lba) -> Result<()> {
        let mut at = lba;
        while at < end {
            let mut room = self
                .room
                .room_for_request(blocks_for(1, 0), nodes_for(STEP_EXTENTS as u64))
                .await?;
            self.core.clients().note_request(self.core.rt().now());
            let upto = self
                .core
                .resident(Class::Foreground, |st| {
                    let left = BlockRange::new(at, end);
                    let (_, upto) = st.index.overlapping_step(&st.buckets, volume, left)?;
                    let (written, range) =
                        (Some(st.buckets.epochs().open()), BlockRange::new(at, upto));
                    let body = Body::Zeros { len: range.blocks() };
                    let zeros = IndexKey { volume, lba: at, written, body };
                    st.change(&mut room, volume, range, std::slice::from_ref(&zeros))?;
                    Ok(upto)
                })
                .await?;
            drop(room);
            at = upto;
            self.core.rt().yield_now().await;
        }
        Ok(())
    }

    /// Reserves `blocks` blocks of the pool. If the pool is full, a pass writes back all dirty
    /// blocks and the reservation is tried again, at most twice: the pass frees blocks of the pool
    /// that it replaces.
    async fn reserve(&self, blocks: u64) -> Result<Reservation> {
        for _ in 0..2 {
            match self.core.pool().reserve_beside_changes(blocks).await {
                Ok(reserved) => return Ok(reserved),
                Err(_) => self.passes.publish_for_room().await?,
            }
        }
        self.core.pool().reserve_beside_changes(blocks).await
    }
}

impl Write {
    /// Writes the data to the device. A bucket that cannot be written is not used again, and
    /// another one is tried. Where the file system under the cache is full the client is told.
    pub(crate) async fn transfer(&mut self) -> Result<()> {
        for attempt in 1.. {
            let written = self
                .writer
                .bucket_io
                .write_taken(&mut self.taken, &self.data, Class::Foreground)
                .await;
            let Err(e) = written else { break };
            if e.kind == ErrorKind::NoSpace {
                // Nothing is wrong with the bucket: the file system under the cache is full.
                self.taken = TakenBlocks::none(&self.writer.core);
                return Err(e);
            }
            {
                let mut st = self.writer.core.state_mut();
                self.taken.iter().for_each(|t| st.buckets.condemn(t.addr));
            }
            // Nothing is held while others are waited for.
            self.taken = TakenBlocks::none(&self.writer.core);
            if attempt == WRITE_TRIES {
                self.writer.failures.fail(&e);
                return Err(e);
            }
            tracing::warn!("{e}; written elsewhere");
            let blocks = (self.data.len() / BLOCK) as u32;
            self.taken = self.writer.room.take(Stream::Writes, blocks).await?;
        }
        Ok(())
    }

    /// Enters what was written into the index: now it is visible.
    async fn settle(mut self) -> Result<()> {
        let crcs: Crcs = block_crcs(&self.data).collect();
        let (core, volume, lba) = (self.writer.core.clone(), self.volume, self.lba);
        core.resident(Class::Foreground, |st| {
            // The epoch of the moment in which it becomes visible.
            let written = Some(st.buckets.epochs().open());
            let new = extents(volume, lba, &self.taken, &crcs, self.cover, written);
            let range = BlockRange::of(lba, crcs.len() as u64);
            st.change_dirty(&mut self.room, &mut self.reserved, volume, range, &new)
        })
        .await
    }
}
