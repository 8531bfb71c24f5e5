//! The way of a write. Plan: it is let in, and takes blocks of an open bucket. Transfer: the data
//! goes to the device. Settle: the key enters the index, and its record the journal.

use base::checksum::block_crcs;
use base::{BLOCK, ErrorKind, Lba, Result, Slice, VolumeId};
use format::cache::index::Cover;
use format::cache::journal::blocks_for;
use pool::Reservation;
use queue::Class;
use rt::Reason;

use crate::Cache;
use crate::buckets::census::Stream;
use crate::io::bypass::STEP_BLOCKS;
use crate::job;
use crate::space::admission::Held;
use crate::store::key::{Body, Crcs, IndexKey};
use crate::store::ring_room::{Room, nodes_for};
use crate::store::taken::{Taken, extents};

/// In how many places a write is tried before the device counts as failed.
const WRITE_TRIES: u32 = 3;

impl Cache {
    /// Writes whole blocks. Every block is visible when this returns, and durable after the next
    /// [`Cache::flush`].
    pub async fn write(&self, volume: VolumeId, lba: Lba, data: &Slice) -> Result<()> {
        let past = self.goes_past(volume, lba, (data.len() / BLOCK) as u64);
        let mut at = 0;
        while at < data.len() {
            if past {
                let n = (data.len() - at).min(STEP_BLOCKS as usize * BLOCK);
                let written = Box::pin(self.write_past(
                    volume,
                    lba.plus((at / BLOCK) as u64),
                    &data.slice(at, n),
                ))
                .await?;
                if written {
                    at += n;
                    continue;
                }
            }
            let n = (data.len() - at).min(self.0.layout.step_blocks() * BLOCK);
            self.write_step(volume, lba.plus((at / BLOCK) as u64), data.slice(at, n), Cover::ALL)
                .await?;
            at += n;
        }
        Ok(())
    }

    /// Writes whole blocks; or one, of which only some sectors count.
    pub(crate) async fn write_step(
        &self,
        volume: VolumeId,
        lba: Lba,
        data: Slice,
        cover: Cover,
    ) -> Result<()> {
        let blocks = (data.len() / BLOCK) as u64;
        let held = self.admit(volume, blocks).await?;
        let mut reserved = self.reserve(blocks).await?;
        self.write_reserved((volume, lba), data, cover, (held, &mut reserved)).await
    }

    async fn write_reserved(
        &self,
        (volume, lba): (VolumeId, Lba),
        data: Slice,
        cover: Cover,
        ((held, mut room), reserved): ((Held, Room), &mut Reservation),
    ) -> Result<()> {
        let mut held = Some(held);
        for attempt in 1.. {
            let stream = if attempt == 1 { self.stream_of(volume, lba) } else { Stream::Writes };
            let mut taken = self.take(stream, (data.len() / BLOCK) as u32).await?;
            held.take();
            let outcome = match self.write_taken(&mut taken, &data, Class::Foreground).await {
                Ok(()) => Ok(self
                    .settle_write((&mut room, &mut *reserved), (volume, lba), &taken, &data, cover)
                    .await),
                Err(e) => {
                    let mut st = self.state_mut();
                    taken.iter().for_each(|t| st.buckets.condemn(t.addr));
                    Err(e)
                }
            };
            drop(taken);
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

    /// Whose buckets a write goes to: the main queue's, if its first block is there. Where room is
    /// short, those of writes.
    fn stream_of(&self, volume: VolumeId, lba: Lba) -> Stream {
        if !self.settings().policy.keeps_blocks() || self.is_hungry() {
            return Stream::Writes;
        }
        let st = self.state();
        match st.index.place_of(&st.buckets, volume, lba) {
            Some((addr, generation)) if st.buckets.is_in_main(addr, generation) => Stream::Main,
            _ => Stream::Writes,
        }
    }

    /// Enters what was written into the index.
    async fn settle_write(
        &self,
        (room, reserved): (&mut Room, &mut Reservation),
        (volume, lba): (VolumeId, Lba),
        taken: &[Taken],
        data: &Slice,
        cover: Cover,
    ) -> Result<()> {
        let crcs: Crcs = block_crcs(data).collect();
        self.resident(Class::Foreground, |st| {
            // The epoch of the moment in which it becomes visible.
            let written = Some(st.buckets.epoch());
            let new = extents((volume, lba), taken, &crcs, cover, written);
            st.change_dirty((room, reserved), volume, (lba, lba.plus(crcs.len() as u64)), &new)
        })
        .await
    }

    /// Makes `[lba, end)` read as zeros.
    pub async fn discard(&self, volume: VolumeId, lba: Lba, end: Lba) -> Result<()> {
        let mut at = lba;
        while at < end {
            let mut room =
                self.room_for_request(blocks_for(1, 0), nodes_for(DISCARD_EXTENTS as u64)).await?;
            self.0.last_request.set(self.0.rt.now());
            // As many extents as one step may drop; what is beyond is one step more.
            let upto = self
                .resident(Class::Foreground, |st| {
                    let old =
                        st.index.overlapping(&st.buckets, volume, (at, end), DISCARD_EXTENTS)?;
                    let upto = match old.last() {
                        Some(last) if old.len() >= DISCARD_EXTENTS => Lba(last.end().min(end.0)),
                        _ => end,
                    };
                    let written = Some(st.buckets.epoch());
                    let zeros = IndexKey {
                        volume,
                        lba: at,
                        written,
                        body: Body::Zeros { len: upto.0 - at.0 },
                    };
                    st.change(&mut room, volume, (at, upto), std::slice::from_ref(&zeros))?;
                    Ok(upto)
                })
                .await?;
            drop(room);
            at = upto;
            self.0.rt.yield_now().await;
        }
        Ok(())
    }

    /// Reserves room in the pool for `blocks` blocks. If there is none, what is dirty is published
    /// first, which may help.
    async fn reserve(&self, blocks: u64) -> Result<Reservation> {
        for _ in 0..2 {
            match self.0.pool.reserve(blocks) {
                Ok(reserved) => return Ok(reserved),
                Err(_) => {
                    let publish = Box::pin(self.publish_all());
                    let rt = &self.0.rt;
                    rt.waits_for_job(Reason::Publish, job::WRITE_BACK, publish).await?;
                }
            }
        }
        self.0.pool.reserve(blocks)
    }
}

/// Extents that one step of a discard replaces.
const DISCARD_EXTENTS: usize = 64;
