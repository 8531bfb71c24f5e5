//! Which [staged](crate::writeback::staged) blocks that the journal of an older version tells of
//! have arrived in the pool, as far as the pool has committed.
//!
//! The pool has one checksum of a staged block: that of the last write to it that it has committed.
//! A record with another one is of a write that never arrived, or of one that a later write
//! replaced. Every committed write has its record in the journal, and of one block and epoch
//! records are in the order of the writes; so if a later record has the pool's checksum, what the
//! earlier ones tell of was there, and else it was not.
//!
//! A part that lies over a staged block is judged in the same way, by the checksum of that block.
//! If a later write has replaced the block, the part was entered, and the blocks that the part
//! replaced may have been overwritten since. So the part has to be applied, though a later record
//! replaces it too.

use std::rc::Rc;

use base::{Crc, Epoch, Result, VolumeId};
use format::cache::index::StagedBelow;
use format::cache::journal::Record;
use pool::Pool;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::store::key::{Body, IndexKey};

/// A staged block: the volume it is for, the epoch, and the block.
pub type StagedBlock = (VolumeId, Epoch, u64);

/// The place to look for what the pool has committed.
pub enum CommittedBlocks {
    /// In the pool, which is open.
    Open(Pool),
    /// In what a check of the pool has found.
    Found {
        /// The checksums of the blocks in staging volumes.
        staged: Rc<FxHashMap<StagedBlock, Crc>>,
        /// The volumes that the pool has.
        volumes: FxHashSet<VolumeId>,
    },
    /// Nowhere: it could not be read. All counts as arrived.
    Unknown,
}

/// The image of the pool, as a replay has to know it.
pub struct PoolImage {
    /// Everything up to this epoch is in the image.
    pub published: Epoch,
    /// The staged blocks that are in the pool.
    pub committed: CommittedBlocks,
}

/// A verifier of which staged blocks have arrived.
pub(crate) struct StagedVerifier {
    pool: CommittedBlocks,
    /// For each block with conflicting checksums: the last record that matches; 0 if none.
    differing: FxHashMap<StagedBlock, u64>,
}

impl StagedVerifier {
    /// Nothing is known yet.
    pub fn new(pool: CommittedBlocks) -> StagedVerifier {
        StagedVerifier { pool, differing: FxHashMap::default() }
    }

    /// Goes through all records, which have these numbers; `published`: what is of this epoch or an
    /// older one is in the volumes.
    pub async fn note_all<'r>(
        &mut self,
        records: impl Iterator<Item = (Record<'r>, u64)>,
        published: Epoch,
    ) -> Result<()> {
        if matches!(self.pool, CommittedBlocks::Unknown) {
            return Ok(());
        }
        for (record, number) in records {
            let Record::Insert { volume, lba, value } = record else { continue };
            let key = format::cache::index::index_key(volume, lba);
            let Some(e) = IndexKey::decode_within(|_, _| true, &key, value) else { continue };
            let (epoch, crcs) = match (&e.body, below(&e, published)) {
                (Body::Staged { crcs }, _) => (e.written.filter(|&w| w > published), &crcs[..]),
                (_, Some(StagedBelow { epoch, crc })) => (Some(*epoch), std::slice::from_ref(crc)),
                _ => continue,
            };
            let Some(epoch) = epoch else { continue };
            for (i, same) in self.compare(&e, epoch, crcs).await?.into_iter().enumerate() {
                let block = (volume, epoch, lba.0 + i as u64);
                if !same {
                    self.differing.entry(block).or_insert(0);
                } else if let Some(last) = self.differing.get_mut(&block).filter(|_| !e.is_part()) {
                    *last = number;
                }
            }
        }
        Ok(())
    }

    /// Which blocks of a staged extent have arrived, as record `number` has it.
    pub async fn of(&self, e: &IndexKey, crcs: &[Crc], number: u64) -> Result<Vec<bool>> {
        self.had(e, e.written.unwrap_or_default(), crcs, number).await
    }

    /// True unless it is a part over a staged block that never arrived. Then what that was written
    /// with is lost, and record `number`, which tells of the part, is of no use.
    pub async fn has_below(&self, e: &IndexKey, published: Epoch, number: u64) -> Result<bool> {
        let Some(below) = below(e, published) else { return Ok(true) };
        Ok(self.had(e, below.epoch, &[below.crc], number).await? == [true])
    }

    /// Which staged blocks the pool had, with these checksums: it has them, or what later records
    /// than `number` tell of.
    async fn had(
        &self,
        e: &IndexKey,
        epoch: Epoch,
        crcs: &[Crc],
        number: u64,
    ) -> Result<Vec<bool>> {
        let mut arrived = self.compare(e, epoch, crcs).await?;
        for (i, arrived) in arrived.iter_mut().enumerate().filter(|(_, same)| !**same) {
            let later = self.differing.get(&(e.volume, epoch, e.lba.0 + i as u64));
            *arrived = later.is_some_and(|&last| last > number);
        }
        Ok(arrived)
    }

    /// Which blocks have the checksums that the pool has.
    async fn compare(&self, e: &IndexKey, epoch: Epoch, crcs: &[Crc]) -> Result<Vec<bool>> {
        // Blocks that are not there may have gone with their volume, of which nothing is needed any
        // more; least of all what was there before.
        let found = match &self.pool {
            CommittedBlocks::Unknown => return Ok(vec![true; crcs.len()]),
            CommittedBlocks::Open(pool) => match pool.cache_link().find_staging(e.volume, epoch) {
                Some(id) => pool.checksums(id, e.lba, e.len()).await?,
                None if pool.volume(e.volume).is_none() => return Ok(vec![true; crcs.len()]),
                None => vec![None; crcs.len()],
            },
            CommittedBlocks::Found { volumes, .. } if !volumes.contains(&e.volume) => {
                return Ok(vec![true; crcs.len()]);
            }
            CommittedBlocks::Found { staged, .. } => {
                (e.lba.0..e.end()).map(|lba| staged.get(&(e.volume, epoch, lba)).copied()).collect()
            }
        };
        Ok(found.into_iter().zip(crcs).map(|(is, should)| is == Some(*should)).collect())
    }
}

/// The staged block that a part lies over, if that is not published.
fn below(e: &IndexKey, published: Epoch) -> Option<&StagedBelow> {
    let Body::Data { cover, .. } = &e.body else { return None };
    cover.below.as_ref().filter(|b| b.epoch > published)
}
