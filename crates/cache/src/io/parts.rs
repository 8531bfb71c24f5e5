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

use std::rc::Rc;

use base::{BLOCK, Lba, Result, Sectors, Slice, SliceList, VolumeId};
use queue::Class;

use crate::io::read::PieceSource;
use crate::io::recent_parts::IndexedBlock;
use crate::io::write::Writer;
use crate::transfer::block_part::BlockPart;

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

impl Writer {
    /// See [`crate::Cache::write_parts`].
    pub(crate) async fn write_parts(
        self: &Rc<Self>,
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
            let mut whole = self.reader.read_step(volume, lba, 1, false).await?;
            before = BlockPart::whole(whole.pop().ok_or_else(base::StorageError::ended)?);
        }
        let mut block = self.core.rt().bufs().take(BLOCK);
        block.copy_from_slice(&before.data);
        patches.iter().for_each(|patch| patch.apply(&mut block));
        let sectors = before.sectors.with(sectors);
        let now = BlockPart { sectors, data: block.freeze() };
        let addr = self.write_step(volume, lba, now.data.clone(), now.cover()).await?;
        let stands = IndexedBlock { addr, crc: base::crc32c(&now.data), cover: now.cover() };
        self.core.clients().keep_part(volume, lba, stands, now.clone());
        if !now.sectors.is_all() {
            self.core.state_mut().wrote_part();
        }
        Ok(now)
    }

    /// Returns the sectors that the cache has of a block.
    async fn part_of(&self, volume: VolumeId, lba: Lba) -> Result<BlockPart> {
        let whole = |data: SliceList| {
            Ok(BlockPart::whole(data.into_iter().next().ok_or_else(base::StorageError::ended)?))
        };
        let mut pieces = self.reader.plan(volume, lba, 1).await?;
        let (piece, pin) = pieces.pop().ok_or_else(base::StorageError::ended)?;
        let zeros = || self.core.rt().bufs().zeroed(BLOCK).freeze();
        match piece.part {
            PieceSource::Pool(_) => Ok(BlockPart { sectors: Sectors::NONE, data: zeros() }),
            PieceSource::Zeros => Ok(BlockPart::whole(zeros())),
            PieceSource::Bucket { addr, crcs, dirty, cover } => {
                let stands = IndexedBlock { addr, crc: crcs[0], cover };
                if let Some(known) = self.core.clients().find_part(volume, lba, stands) {
                    return Ok(known);
                }
                let data = self.bucket_io.read_bucket(addr, &crcs, Class::Foreground).await;
                drop(pin);
                match data {
                    Ok(data) => Ok(BlockPart { sectors: cover.sectors, data }),
                    Err(bad) => whole(
                        Box::pin(self.reader.read_again(volume, lba, 1, addr, dirty, &bad)).await?,
                    ),
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "parts_tests.rs"]
mod tests;
