//! Blocks that versions up to 0.2 have written past the cache: *staged* blocks. They stand in the
//! pool, in a staging volume for each volume and epoch, and keys of the index name them. This
//! version stages nothing.
//!
//! The open of a cache that has staged blocks carries them to their volumes, with all that is
//! dirty, in one pass: the pass copies them, and their staging volumes end with its publication. No
//! client is served before that. So keys of staged blocks count as absent from then on, and no
//! request meets one that is not published.

use std::rc::Rc;

use base::checksum::block_crcs;
use base::{
    BLOCK, BlockRange, Crc, Epoch, ErrorKind, Lba, Result, Slice, SliceList, StorageError,
    VolumeId, counted,
};
use pool::{Pass, Pool};
use queue::Class;

use super::into_pass::{gone_is_fine, write_in};
use crate::core::Core;
use crate::store::key::{Body, IndexKey};
use crate::transfer::block_part::laid_over;

/// Fails if the pool behind the cache on `path` has no room for copies of staged blocks. It is
/// asked before this open writes anything; `is_known`: an earlier one of this version has written.
pub(crate) fn check_room_for_copies(pool: &Pool, path: &str, is_known: bool) -> Result<()> {
    let blocks = pool.cache_link().staged_blocks();
    pool.reserve(blocks).map(drop).map_err(|e| {
        // The older version refuses what this one has written.
        let todo = match is_known {
            true => "see that all devices of the pool are there, and try again",
            false => {
                "start that version once more, run forebay cache flush, and stop it; nothing was \
                 changed"
            }
        };
        let text = format!(
            "{path}: an older version of Forebay has written {} past the cache, and the pool has \
             no room for their copies: {e}; {todo}",
            counted(blocks, "block", "blocks")
        );
        StorageError::new(e.kind, text)
    })
}

/// Reads and copies blocks that an older version has written past the cache.
pub(crate) struct StagedCopies {
    core: Core,
}

impl StagedCopies {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core) -> Rc<StagedCopies> {
        Rc::new(StagedCopies { core: core.clone() })
    }

    /// Completes an extent that a pass has read: returns whole blocks and their checksums, to be
    /// carried.
    pub(crate) async fn carried(&self, part: &IndexKey, data: Slice) -> Result<(Slice, Vec<Crc>)> {
        let Body::Data { crcs, cover, .. } = &part.body else { unreachable!("only data is read") };
        if cover.is_all() {
            return Ok((data, crcs.to_vec()));
        }
        let (volume, lba) = (part.volume, part.lba);
        let below = part.staged_below(self.core.state().index.published());
        let image = match below {
            Some(below) => self.read_staged(volume, below.epoch, lba, 1).await?,
            None => self.core.pool().read_for(Class::WriteBack, volume, lba, 1).await?,
        };
        let whole = laid_over(self.core.rt().bufs(), &data, cover.sectors, &image)?;
        let crcs = block_crcs(&whole).collect();
        Ok((whole, crcs))
    }

    /// Copies what is staged for a volume in this epoch into a pass.
    pub(crate) async fn copy_staged(
        &self,
        pass: &Pass,
        volume: VolumeId,
        epoch: Epoch,
        range: BlockRange,
    ) -> Result<()> {
        let BlockRange { from: lba, end } = range;
        match self.read_staged(volume, epoch, lba, range.blocks()).await {
            Ok(data) => {
                let crcs: Vec<Crc> = data.iter().flat_map(|part| block_crcs(part)).collect();
                write_in(pass, volume, lba, data, &crcs).await
            }
            Err(e) if e.kind == ErrorKind::Io => {
                let mut lost = 0;
                for at in lba.0..end.0 {
                    lost += u64::from(self.copy_block(pass, volume, epoch, Lba(at)).await?);
                }
                if lost > 0 {
                    tracing::error!(
                        cache = %self.core.path(),
                        "{} of volume {} from block {lba} to {}, which an older version has \
                         written past the cache, cannot be read and stay an error: {e}",
                        counted(lost, "block", "blocks"),
                        self.core.pool().volume_name(volume), end.0 - 1
                    );
                }
                Ok(())
            }
            Err(e) => gone_is_fine(Err(e)),
        }
    }

    /// Copies a block; true if the pool has no good copy. Such a block stays an error: zeros stand
    /// for it, which do not have its checksum.
    async fn copy_block(
        &self,
        pass: &Pass,
        volume: VolumeId,
        epoch: Epoch,
        lba: Lba,
    ) -> Result<bool> {
        let (data, crc, lost) = match self.read_staged(volume, epoch, lba, 1).await {
            Ok(data) => {
                let crc = data.iter().flat_map(|part| block_crcs(part)).next();
                (data, crc, false)
            }
            Err(e) if e.kind == ErrorKind::Io => {
                // A device that does not answer may have it.
                self.core.pool().all_answer(Class::WriteBack).await?;
                let staging = self.core.pool().cache_link().find_staging(volume, epoch);
                let crcs = match staging {
                    Some(staging) => self.core.pool().checksums(staging, lba, 1).await?,
                    None => Vec::new(),
                };
                let zeros = self.core.rt().bufs().zeroed(BLOCK).freeze();
                (SliceList::from_iter([zeros]), crcs.first().copied().flatten(), true)
            }
            Err(e) => return gone_is_fine(Err(e)).map(|()| false),
        };
        let Some(crc) = crc else { return Err(self.staging_is_lost(volume, epoch, lba)) };
        write_in(pass, volume, lba, data, &[crc]).await.map(|()| lost)
    }

    /// Copies what a part lies over that cannot be carried itself. The staging volume ends with the
    /// pass, and from then on the part lies over the pool's image.
    pub(crate) async fn copy_below(&self, pass: &Pass, part: &IndexKey) -> Result<()> {
        let Some(below) = part.staged_below(self.core.state().index.published()) else {
            return Ok(());
        };
        self.copy_staged(pass, part.volume, below.epoch, part.range()).await
    }

    /// Reads what is staged for a volume in this epoch.
    async fn read_staged(
        &self,
        volume: VolumeId,
        epoch: Epoch,
        lba: Lba,
        blocks: u64,
    ) -> Result<SliceList> {
        let pool = self.core.pool();
        if let Some(staging) = pool.cache_link().find_staging(volume, epoch) {
            let found = pool.read_with_holes(staging, lba, blocks).await?;
            if found.holes.is_empty() {
                return Ok(found.data);
            }
        }
        Err(self.staging_is_lost(volume, epoch, lba))
    }

    /// The pool lacks what a key names; or the volume was deleted, and all of it is gone.
    fn staging_is_lost(&self, volume: VolumeId, epoch: Epoch, lba: Lba) -> StorageError {
        if self.core.pool().volume(volume).is_none() {
            let text = format!("there is no volume with the id {volume}");
            return StorageError::new(ErrorKind::NotFound, text);
        }
        let text = format!(
            "the pool has lost what volume {} was written past the cache in epoch {epoch}, from \
             block {lba} on; run forebay check",
            self.core.pool().volume_name(volume)
        );
        StorageError::new(ErrorKind::Damaged, text)
    }
}
