//! Blocks that a pass cannot carry, as the pool cannot read where the volume's blocks are: both
//! copies of a node of its mapping are bad, or the device is away that has the only one.
//!
//! Such blocks are *kept*: they are entered again into the open epoch, so that they stay dirty, and
//! clients read them from the cache as before. The pass goes on with everything else, and the next
//! one tries them again. Otherwise one volume would stop the write-back of all.
//!
//! Kept blocks that are few in each bucket keep it from being evicted. They are put together by
//! compaction, under the policy that has it.
//!
//! **Room.** A volume of which an eighth of the cache is kept is not written to any more: others
//! need the rest.

use std::rc::Rc;

use base::{BlockRange, Epoch, Lba, Result, StorageError, VolumeId, counted};
use format::cache::index::MAX_EXTENT_BLOCKS;
use queue::Class;

use crate::core::Core;
use crate::health::fail::Failures;
use crate::space::request_room::Room;
use crate::store::key::{Body, IndexKey};
use crate::writeback::cuts::Cut;
use crate::writeback::walk::{CarriedBlocks, Content};

/// Keeps blocks that a pass cannot carry.
pub(crate) struct Keeper {
    pub(super) core: Core,
    pub(super) failures: Rc<Failures>,
    pub(super) room: Rc<Room>,
}

impl Keeper {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core, failures: &Rc<Failures>, room: &Rc<Room>) -> Rc<Keeper> {
        Rc::new(Keeper { core: core.clone(), failures: failures.clone(), room: room.clone() })
    }

    /// Tells the log of which volumes something is kept from now on, and of which nothing is any
    /// more.
    pub(crate) fn tell_kept(&self, kept: &[VolumeId], well: &[VolumeId]) {
        for &id in kept {
            let passes = self.core.writeback().passes();
            let Some(kept) = passes.kept().of(id) else { continue };
            let (blocks, why) = (kept.blocks, &kept.why);
            tracing::error!(cache = %self.core.path(), "{} of volume {} cannot come to the pool, \
                and {} in the cache: {why}", counted(blocks, "block", "blocks"),
                self.core.pool().volume_name(id), if blocks == 1 { "stays" } else { "stay" });
        }
        for &id in well {
            if self.core.pool().volume_size(id).is_some() {
                let name = self.core.pool().volume_name(id);
                tracing::info!("what the cache kept of volume {name} is in the pool, or replaced");
            }
        }
    }

    /// The pass leaves a run, which stays dirty.
    pub(super) async fn keep_run(
        &self,
        run: &CarriedBlocks,
        why: StorageError,
        cut: &Cut,
    ) -> Result<()> {
        self.failures.check_failed()?;
        self.core.check_open()?;
        let published = self.core.state().index.published();
        match &run.content {
            // The staging volume below it ends with this pass.
            Content::Data(parts)
                if parts.iter().any(|part| part.staged_below(published).is_some()) =>
            {
                return Err(why);
            }
            Content::Data(parts) => {
                for part in parts {
                    self.enter_again(part, cut, &why).await?;
                }
            }
            Content::Zeros => {
                let body = Body::Zeros { len: run.blocks };
                let zeros = IndexKey { volume: run.volume, lba: run.lba, written: None, body };
                self.enter_again(&zeros, cut, &why).await?;
            }
            // Only while the cache is opened, which fails then.
            Content::Staged(_) => return Err(why),
        }
        self.note_kept(run.volume, self.core.epoch(), 0, &why);
        Ok(())
    }

    /// Notes that `blocks` kept blocks of a volume are of this epoch now.
    fn note_kept(&self, volume: VolumeId, epoch: Epoch, blocks: u64, why: &StorageError) {
        self.core.writeback().passes_mut().keeps(volume, blocks, epoch, why);
    }

    /// Enters what of a part of a cut was not changed since into the open epoch: it stays dirty.
    async fn enter_again(&self, part: &IndexKey, cut: &Cut, why: &StorageError) -> Result<()> {
        let (mut at, end) = (part.lba, Lba(part.end()));
        let is_data = matches!(part.body, Body::Data { .. });
        while at < end {
            let mut room = self.room_to_keep(1, MAX_EXTENT_BLOCKS, why).await?;
            // The cut keeps its own room: a later try may carry the blocks.
            let most = if is_data { end.0 - at.0 } else { 0 };
            let mut reserved = self.core.pool().take_over(most);
            let (upto, kept) = self
                .core
                .resident(Class::WriteBack, |st| {
                    let left = BlockRange::new(at, end);
                    let (found, upto) =
                        st.index.overlapping_step(&st.buckets, part.volume, left)?;
                    for now in found {
                        let now = now.slice(at.0, upto.0);
                        let same = now.body == part.slice(now.lba.0, now.end()).body;
                        let Some(written) = st.index.unpublished(&now).filter(|_| same) else {
                            continue;
                        };
                        let range = now.range();
                        let blocks = if is_data { now.len() } else { 0 };
                        if written > cut.epoch {
                            // By an earlier try, which has counted it.
                            return Ok((range.end, None));
                        }
                        let open = st.buckets.epochs().open();
                        let again = IndexKey { written: Some(open), ..now };
                        let room = &mut room.ring;
                        st.change_dirty(room, &mut reserved, part.volume, range, &[again])?;
                        return Ok((range.end, Some((open, blocks))));
                    }
                    Ok((upto, None))
                })
                .await?;
            at = upto;
            if let Some((epoch, blocks)) = kept {
                self.note_kept(part.volume, epoch, blocks, why);
            }
            self.core.rt().yield_now().await;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "kept_tests.rs"]
mod tests;
