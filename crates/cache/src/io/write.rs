//! The way of a write. Plan: it is let in, and takes blocks of an open bucket. Transfer: the data
//! goes to the device. Settle: the key enters the index, and its record the journal.

use base::checksum::block_crcs;
use base::{BLOCK, BlockRange, CacheAddr, ErrorKind, Lba, Result, Slice, VolumeId};
use format::cache::index::Cover;
use format::cache::journal::blocks_for;
use pool::Reservation;
use queue::Class;

use crate::Cache;
use crate::replacement::keeps_blocks;
use crate::space::take::TakenBlocks;
use crate::store::buckets::census::Stream;
use crate::store::index::STEP_EXTENTS;
use crate::store::key::{Body, Crcs, IndexKey};
use crate::store::ring_room::{JournalRoom, nodes_for};
use crate::store::taken::extents;

/// In how many places a write is tried before the device counts as failed.
const WRITE_TRIES: u32 = 3;

/// A write on its way: blocks of buckets are taken for its data, and room for its records.
#[must_use = "it is written by `transfer`, and visible by `settle`"]
pub(crate) struct Write {
    cache: Cache,
    volume: VolumeId,
    lba: Lba,
    data: Slice,
    cover: Cover,
    room: JournalRoom,
    reserved: Reservation,
    taken: TakenBlocks,
}

impl Cache {
    /// Writes whole blocks. Every block is visible when this returns, and durable after the next
    /// [`Cache::flush`].
    pub async fn write(&self, volume: VolumeId, lba: Lba, data: &Slice) -> Result<()> {
        let mut at = 0;
        while at < data.len() {
            let n = (data.len() - at).min(self.layout().step_blocks() * BLOCK);
            self.write_step(volume, lba.plus((at / BLOCK) as u64), data.slice(at, n), Cover::ALL)
                .await?;
            at += n;
        }
        Ok(())
    }

    /// Writes whole blocks; or one, of which only some sectors count. Returns where the first of
    /// them stands.
    pub(crate) async fn write_step(
        &self,
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
    pub(crate) async fn begin_write(
        &self,
        volume: VolumeId,
        lba: Lba,
        data: Slice,
        cover: Cover,
    ) -> Result<Write> {
        self.check_writable(volume)?;
        let blocks = (data.len() / BLOCK) as u64;
        let (admitted, room) = self.admit(volume, blocks).await?;
        let reserved = self.reserve(blocks).await?;
        let taken = self.take(self.stream_of(volume, lba), blocks as u32).await?;
        drop(admitted);
        Ok(Write { cache: self.clone(), volume, lba, data, cover, room, reserved, taken })
    }

    /// Chooses the stream whose buckets a write goes to: the main queue's, if its first block is
    /// there. Where room is short, that of writes.
    fn stream_of(&self, volume: VolumeId, lba: Lba) -> Stream {
        if !keeps_blocks(self.settings().policy) || self.is_low_on_buckets() {
            return Stream::Writes;
        }
        let st = self.state();
        match st.index.place_of(&st.buckets, volume, lba) {
            Some((addr, generation)) if st.buckets.is_in_main(addr, generation) => Stream::Main,
            _ => Stream::Writes,
        }
    }

    /// Makes `[lba, end)` read as zeros.
    pub async fn discard(&self, volume: VolumeId, lba: Lba, end: Lba) -> Result<()> {
        let mut at = lba;
        while at < end {
            let mut room =
                self.room_for_request(blocks_for(1, 0), nodes_for(STEP_EXTENTS as u64)).await?;
            self.clients().note_request(self.rt().now());
            let upto = self
                .resident(Class::Foreground, |st| {
                    let left = BlockRange::new(at, end);
                    let (_, upto) = st.index.overlapping_step(&st.buckets, volume, left)?;
                    let (written, range) = (Some(st.buckets.epoch()), BlockRange::new(at, upto));
                    let body = Body::Zeros { len: range.blocks() };
                    let zeros = IndexKey { volume, lba: at, written, body };
                    st.change(&mut room, volume, range, std::slice::from_ref(&zeros))?;
                    Ok(upto)
                })
                .await?;
            drop(room);
            at = upto;
            self.rt().yield_now().await;
        }
        Ok(())
    }

    /// Reserves room in the pool for `blocks` blocks. If there is none, what is dirty is published
    /// first, which may help.
    async fn reserve(&self, blocks: u64) -> Result<Reservation> {
        for _ in 0..2 {
            match self.pool().reserve(blocks) {
                Ok(reserved) => return Ok(reserved),
                Err(_) => self.publish_for_room().await?,
            }
        }
        self.pool().reserve(blocks)
    }
}

impl Write {
    /// Writes the data to the device. A bucket that cannot be written is not used again, and
    /// another one is tried. Where the file system under the cache is full the client is told.
    pub(crate) async fn transfer(&mut self) -> Result<()> {
        for attempt in 1.. {
            let written =
                self.cache.write_taken(&mut self.taken, &self.data, Class::Foreground).await;
            let Err(e) = written else { break };
            if e.kind == ErrorKind::NoSpace {
                // Nothing is wrong with the bucket: the file system under the cache is full.
                self.taken = TakenBlocks::none(&self.cache);
                return Err(e);
            }
            {
                let mut st = self.cache.state_mut();
                self.taken.iter().for_each(|t| st.buckets.condemn(t.addr));
            }
            // Nothing is held while others are waited for.
            self.taken = TakenBlocks::none(&self.cache);
            if attempt == WRITE_TRIES {
                self.cache.fail(&e);
                return Err(e);
            }
            tracing::warn!("{e}; written elsewhere");
            let blocks = (self.data.len() / BLOCK) as u32;
            self.taken = self.cache.take(Stream::Writes, blocks).await?;
        }
        Ok(())
    }

    /// Enters what was written into the index: now it is visible.
    async fn settle(mut self) -> Result<()> {
        let crcs: Crcs = block_crcs(&self.data).collect();
        let (cache, volume, lba) = (self.cache.clone(), self.volume, self.lba);
        cache
            .resident(Class::Foreground, |st| {
                // The epoch of the moment in which it becomes visible.
                let written = Some(st.buckets.epoch());
                let new = extents(volume, lba, &self.taken, &crcs, self.cover, written);
                let range = BlockRange::of(lba, crcs.len() as u64);
                st.change_dirty(&mut self.room, &mut self.reserved, volume, range, &new)
            })
            .await
    }
}
