//! Writes of some sectors of a block, without a read of the pool.
//!
//! Such a write is kept by sectors of 512 bytes, as a *part*: a block of a bucket in which only
//! some sectors count, with their set in the key. A later write to the block is merged with what
//! the cache has of it, which costs at most a read of the cache device, and none if the block was
//! written in part a moment ago ([`crate::io::recent_parts`]). The rest of the block is what the
//! pool's published image has; all that is newer is in the part, so what needs the whole block lays
//! the part over that image:
//!
//! - a read does, and the block is entered as a whole then, so that the next read needs no pool;
//! - a pass of write-back does, many at once ([`crate::writeback::pass`]).
//!
//! **Published.** A part of a published epoch counts as absent: the pool has the whole block. To
//! lay it over the image once more changes nothing, so it does not matter whether it was
//! published while the pool was being read. It has to be the same key still, though: of a block
//! that was written anew meanwhile, a newer image may have been read.

use base::checksum::block_crcs;
use base::{BLOCK, BlockRange, Crc, Lba, Result, Sectors, Slice, SliceList, VolumeId};
use format::cache::index::Cover;
use format::cache::journal::blocks_for;
use pool::Step;
use queue::Class;

use crate::Cache;
use crate::io::block_part::{BlockPart, FoundPart};
use crate::io::read::Part;
use crate::io::recent_parts::Stands;
use crate::job;
use crate::space::take::Pinned;
use crate::store::buckets::census::Stream;
use crate::store::hit_ratio::Hits;
use crate::store::key::{Body, Crcs, IndexKey};
use crate::store::ring_room::{JournalRoom, Share, nodes_for};
use crate::store::state::State;
use crate::store::taken::extents;

/// Bytes to write into a block.
pub struct Patch {
    /// The byte of the block at which the patch begins.
    pub at: usize,
    /// The bytes. They end in the block.
    pub data: Slice,
}

impl Patch {
    fn covers(&self) -> Sectors {
        Sectors::covered(self.at, self.data.len())
    }

    fn touches(&self) -> Sectors {
        Sectors::touched(self.at, self.data.len())
    }

    /// Writes the patch into a block.
    pub fn apply(&self, block: &mut [u8]) {
        block[self.at..][..self.data.len()].copy_from_slice(&self.data);
    }
}

impl Cache {
    /// Writes parts of a block, one over the other, none other of which may be written meanwhile.
    /// `known`: what is known of the block, from the write before; returns what is known now.
    pub async fn write_parts(
        &self,
        volume: VolumeId,
        lba: Lba,
        patches: &[Patch],
        known: Option<BlockPart>,
    ) -> Result<BlockPart> {
        let mut before = match known {
            Some(known) => known,
            None => self.part_of(volume, lba).await?,
        };
        let all = |sectors: fn(&Patch) -> Sectors| {
            patches.iter().map(sectors).fold(Sectors::NONE, Sectors::with)
        };
        let sectors = before.sectors.with(all(Patch::covers));
        if !sectors.has(all(Patch::touches)) {
            // A sector is written in part: what else is in it has to be known.
            let mut whole = self.read_step(volume, lba, 1, false).await?;
            before = BlockPart::whole(whole.pop().ok_or_else(base::StorageError::ended)?);
        }
        let mut block = self.rt().bufs().take(BLOCK);
        block.copy_from_slice(&before.data);
        patches.iter().for_each(|patch| patch.apply(&mut block));
        let sectors = before.sectors.with(sectors);
        let now = BlockPart { sectors, data: block.freeze() };
        let addr = self.write_step(volume, lba, now.data.clone(), now.cover()).await?;
        let stands = Stands { addr, crc: base::crc32c(&now.data), cover: now.cover() };
        self.clients().keep_part(volume, lba, stands, now.clone());
        if !now.sectors.is_all() {
            self.state_mut().wrote_part();
        }
        Ok(now)
    }

    /// Returns the sectors that the cache has of a block.
    async fn part_of(&self, volume: VolumeId, lba: Lba) -> Result<BlockPart> {
        let whole = |data: SliceList| {
            Ok(BlockPart::whole(data.into_iter().next().ok_or_else(base::StorageError::ended)?))
        };
        let mut pieces = self.plan(volume, lba, 1).await?;
        let piece = pieces.pop().ok_or_else(base::StorageError::ended)?;
        let zeros = || self.rt().bufs().zeroed(BLOCK).freeze();
        match piece.part {
            Part::Pool(_) => Ok(BlockPart { sectors: Sectors::NONE, data: zeros() }),
            Part::Zeros => Ok(BlockPart::whole(zeros())),
            Part::Bucket { addr, crcs, dirty, cover } => {
                let stands = Stands { addr, crc: crcs[0], cover };
                if let Some(known) = self.clients().find_part(volume, lba, stands) {
                    return Ok(known);
                }
                let data = self.read_bucket(addr, &crcs, Class::Foreground).await;
                drop(piece.pin);
                match data {
                    Ok(data) => Ok(BlockPart { sectors: cover.sectors, data }),
                    Err(bad) => {
                        whole(Box::pin(self.read_again(volume, lba, 1, addr, dirty, &bad)).await?)
                    }
                }
            }
        }
    }

    /// Reads a block of which a pinned bucket has some sectors, and the pool the others.
    pub(crate) async fn read_part(
        &self,
        volume: VolumeId,
        lba: Lba,
        part: FoundPart,
        pin: Option<Pinned>,
        sequential: bool,
    ) -> Result<SliceList> {
        let pool = self.pool().clone();
        let image = self.rt().spawn(async move { pool.read(volume, lba, 1).await });
        let mine = self.read_bucket(part.addr, &part.crcs, Class::Foreground).await;
        drop(pin);
        let image = image.await.unwrap_or_else(|| Err(base::StorageError::ended()));
        let mine = match mine {
            Ok(mine) => mine,
            Err(bad) => return self.read_again(volume, lba, 1, part.addr, true, &bad).await,
        };
        let same = self.resident(Class::Foreground, |st| st.same_part(volume, lba, &part)).await?;
        if same.is_none() {
            return Box::pin(self.read_step(volume, lba, 1, sequential)).await;
        }
        let whole = self.laid_over(&mine, part.cover.sectors, image?)?;
        self.count_read(volume, Hits { hits: 0, misses: 1 });
        self.complete_part(volume, lba, part, whole.clone());
        Ok(SliceList::from_iter([whole]))
    }

    /// A whole block: sectors of `mine`, and what the image of the pool has of the others.
    pub(crate) fn laid_over(
        &self,
        mine: &[u8],
        sectors: Sectors,
        image: SliceList,
    ) -> Result<Slice> {
        let mut whole = self.rt().bufs().take(BLOCK);
        whole.copy_from_slice(image.first().ok_or_else(base::StorageError::ended)?);
        sectors.copy(mine, &mut whole);
        Ok(whole.freeze())
    }

    /// Has a block that was read entered as a whole, if there is time and room for it.
    fn complete_part(&self, volume: VolumeId, lba: Lba, part: FoundPart, whole: Slice) {
        if self.is_low_on_buckets() {
            return;
        }
        let Some(running) = self.begin_running() else { return };
        let Some(room) = self.try_room(blocks_for(1, 1), nodes_for(1)) else { return };
        let cache = self.clone();
        self.rt().detach_job(job::PROMOTION, async move {
            let _running = running;
            if let Err(e) = cache.enter_whole(room, volume, lba, &part, whole).await {
                tracing::debug!("a block that was completed was not kept: {e}");
            }
        });
    }

    async fn enter_whole(
        &self,
        mut room: JournalRoom,
        volume: VolumeId,
        lba: Lba,
        part: &FoundPart,
        whole: Slice,
    ) -> Result<()> {
        let mut taken = self.take_some(Stream::Promoted, 1);
        if taken.is_empty() {
            return Ok(());
        }
        let mut outcome = self.write_taken(&mut taken, &whole, Class::Promotion).await;
        if outcome.is_ok() {
            let crcs: Crcs = block_crcs(&whole).collect();
            outcome = self
                .resident(Class::Promotion, |st| {
                    let open = st.buckets.epoch();
                    // A key that belongs to a cut stays as it is.
                    if st.same_part(volume, lba, part)?.is_some_and(|e| e.written == Some(open)) {
                        let new = extents(volume, lba, &taken, &crcs, Cover::ALL, Some(open));
                        st.change(&mut room, volume, BlockRange::of(lba, 1), &new)?;
                        st.completed_part();
                    }
                    Ok(())
                })
                .await;
        }
        outcome
    }

    /// Drops the key of a part that is published, as the pool has the whole block. Its bucket
    /// counts the block, so the journal is told.
    pub(crate) async fn drop_published_part(&self, part: &IndexKey) -> Result<()> {
        let Body::Data { addr, crcs, cover, .. } = &part.body else { return Ok(()) };
        let found = FoundPart { addr: *addr, crcs: crcs.clone(), cover: *cover };
        let mut room = self.ring_room(Share::Clients, blocks_for(1, 0)).await?;
        self.resident(Class::Collection, |st| {
            let same = st.same_part(part.volume, part.lba, &found)?;
            if same.is_some_and(|e| st.index.unpublished(&e).is_none()) {
                st.drop_keys(&mut room, part.volume, BlockRange::of(part.lba, 1))?;
            }
            Ok(())
        })
        .await
    }

    /// Completes an extent that a pass has read: returns whole blocks and their checksums, to be
    /// carried.
    pub(crate) async fn carried(&self, part: &IndexKey, data: Slice) -> Result<(Slice, Vec<Crc>)> {
        let Body::Data { crcs, cover, .. } = &part.body else { unreachable!("only data is read") };
        if cover.is_all() {
            return Ok((data, crcs.to_vec()));
        }
        let (volume, lba) = (part.volume, part.lba);
        let image = match self.staged_below(part) {
            Some(below) => self.read_staged(volume, below.epoch, lba, 1).await?,
            None => self.pool().read_for(Class::WriteBack, volume, lba, 1).await?,
        };
        let whole = self.laid_over(&data, cover.sectors, image)?;
        let crcs = block_crcs(&whole).collect();
        Ok((whole, crcs))
    }
}

impl State {
    /// The extent of a block, if it is the part that was found before.
    fn same_part(
        &mut self,
        volume: VolumeId,
        lba: Lba,
        part: &FoundPart,
    ) -> Step<Option<IndexKey>> {
        let found = self.index.overlapping(&self.buckets, volume, BlockRange::of(lba, 1), 1)?;
        let same = |e: &IndexKey| match &e.body {
            Body::Data { addr, crcs, cover, .. } => {
                (addr, crcs, cover) == (&part.addr, &part.crcs, &part.cover)
            }
            _ => false,
        };
        Ok(found
            .into_iter()
            .next()
            .filter(|e| e.is_part() && same(e) && !e.is_stale(&self.buckets)))
    }
}

#[cfg(test)]
#[path = "parts_tests.rs"]
mod tests;
