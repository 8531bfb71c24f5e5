//! What a pass cannot carry, as the pool cannot read what says where the volume's blocks are: both
//! copies of a node of its mapping are bad, or the device is away that has the only one.
//!
//! Such blocks are *kept*: they are entered again into the open epoch, so that they stay dirty, and
//! clients read them from the cache as before. The pass goes on with everything else, and the next
//! one tries them again. Otherwise one volume would stop the write-back of all.
//!
//! A staging volume ends with the pass that publishes its epoch. So blocks that are staged are read
//! and written into the cache before. So is a block of which the cache has a part that lies over a
//! staged one. Where the cache has no room for them they are written past it once more
//! ([`kept_past`](super::kept_past)).
//!
//! Kept blocks that are few in each bucket keep it from being evicted. They are put together by
//! compaction, under the policy that has it.
//!
//! **Room.** A volume of which an eighth of the cache is kept is not written to any more: others
//! need the rest.

use base::checksum::block_crcs;
use base::{BLOCK, Crc, Epoch, ErrorKind, Lba, Result, Slice, StorageError, VolumeId, counted};
use format::cache::index::{Cover, MAX_EXTENT_BLOCKS};
use queue::Class;

use crate::Cache;
use crate::space::mover::part_of;
use crate::store::key::{Body, IndexKey};
use crate::store::state::State;
use crate::store::taken::{extents, most_extents};
use crate::writeback::all_kept::Kept;
use crate::writeback::cuts::Cut;
use crate::writeback::walk::{Carried, Content};

/// One part in so many of the cache that may be kept of a volume before its writes are refused.
const SHARE: u64 = 8;

impl Cache {
    /// What is kept of each volume that is there.
    pub fn kept(&self) -> Vec<(VolumeId, Kept)> {
        let is_there = |volume| self.pool().volume_size(volume).is_some();
        let passes = self.writeback().passes();
        let all = passes.kept().all().filter(|&(volume, _)| is_there(volume));
        all.map(|(volume, kept)| (volume, kept.clone())).collect()
    }

    /// How many blocks are kept.
    pub(crate) fn kept_blocks(&self) -> u64 {
        self.writeback().passes().kept().all().map(|(_, kept)| kept.blocks).sum()
    }

    /// Fails if something is kept, of one volume or of all.
    pub fn check_kept(&self, volume: Option<VolumeId>) -> Result<()> {
        let kept = self.kept();
        let mut kept = kept.iter().filter(|(id, _)| volume.is_none_or(|v| v == *id));
        let Some((id, first)) = kept.next() else { return Ok(()) };
        let more = match kept.count() {
            0 => String::new(),
            more => format!(
                " ({} more: see forebay cache status)",
                counted(more as u64, "volume", "volumes")
            ),
        };
        let what = format!(
            "{} of volume {} in the cache cannot come to the pool: {}{more}. Everything else that \
             was written before is in the pool",
            counted(first.all(), "block", "blocks"),
            self.pool().volume_name(*id),
            first.why
        );
        Err(StorageError::new(ErrorKind::Io, what))
    }

    /// True if something of a volume is kept.
    pub(crate) fn keeps(&self, volume: VolumeId) -> bool {
        self.writeback().passes().kept().of(volume).is_some()
    }

    /// Fails if so much of a volume is kept that it is not written to any more.
    pub(crate) fn check_writable(&self, volume: VolumeId) -> Result<()> {
        let passes = self.writeback().passes();
        let Some(kept) = passes.kept().of(volume) else { return Ok(()) };
        if kept.blocks <= self.layout().data_blocks() / SHARE {
            return Ok(());
        }
        let what = format!(
            "volume {} takes no more writes, as an eighth of the cache has blocks of it that \
             cannot come to the pool: {}",
            self.pool().volume_name(volume),
            kept.why
        );
        Err(StorageError::new(ErrorKind::Io, what))
    }

    /// Tells the log of which volumes something is kept from now on, and of which nothing is any
    /// more.
    pub(super) fn tell_kept(&self, kept: &[VolumeId], well: &[VolumeId]) {
        for &id in kept {
            let passes = self.writeback().passes();
            let Some(kept) = passes.kept().of(id) else { continue };
            let (blocks, why) = (kept.all(), &kept.why);
            tracing::error!(cache = %self.path(), "{} of volume {} cannot come to the pool, and \
                {} in the cache: {why}", counted(blocks, "block", "blocks"),
                self.pool().volume_name(id), if blocks == 1 { "stays" } else { "stay" });
        }
        for &id in well {
            if self.pool().volume_size(id).is_some() {
                let name = self.pool().volume_name(id);
                tracing::info!("what the cache kept of volume {name} is in the pool, or replaced");
            }
        }
    }

    /// The pass leaves a run, which stays dirty.
    pub(super) async fn keep_run(&self, run: &Carried, why: StorageError, cut: &Cut) -> Result<()> {
        self.check_failed()?;
        self.check_open()?;
        let end = run.lba.plus(run.blocks);
        match &run.content {
            Content::Data(parts) => {
                for part in parts {
                    self.keep_part(part, cut, &why).await?;
                }
            }
            Content::Zeros => {
                let body = Body::Zeros { len: run.blocks };
                let zeros = IndexKey { volume: run.volume, lba: run.lba, written: None, body };
                self.enter_again(&zeros, cut, &why).await?;
            }
            Content::Staged(epoch) => {
                self.keep_staged((run.volume, *epoch), (run.lba, end), &why).await?;
            }
        }
        self.note_kept(run.volume, (self.epoch(), 0), &why);
        Ok(())
    }

    /// So many blocks are of this epoch now.
    pub(super) fn note_kept(
        &self,
        volume: VolumeId,
        (epoch, blocks): (Epoch, u64),
        why: &StorageError,
    ) {
        self.writeback().passes_mut().keeps(volume, blocks, epoch, why);
    }

    async fn keep_part(&self, part: &IndexKey, cut: &Cut, why: &StorageError) -> Result<()> {
        let Body::Data { cover, .. } = &part.body else { return Ok(()) };
        let published = self.state().index.published();
        match cover.below.filter(|below| below.epoch > published) {
            None => self.enter_again(part, cut, why).await,
            Some(below) => {
                let range = (part.lba, Lba(part.end()));
                self.keep_staged((part.volume, below.epoch), range, why).await
            }
        }
    }

    /// Enters what of a part of a cut was not changed since into the open epoch: it stays dirty.
    async fn enter_again(&self, part: &IndexKey, cut: &Cut, why: &StorageError) -> Result<()> {
        let (mut at, end) = (part.lba, Lba(part.end()));
        let is_data = matches!(part.body, Body::Data { .. });
        while at < end {
            let mut room = self.room_to_keep(1, MAX_EXTENT_BLOCKS, why).await?;
            // The cut keeps its own room: a later try may carry the blocks.
            let most = if is_data { end.0 - at.0 } else { 0 };
            let mut reserved = self.pool().take_over(most);
            let (upto, kept) = self
                .resident(Class::WriteBack, |st| {
                    let (found, upto) =
                        st.index.overlapping_step(&st.buckets, part.volume, (at, end))?;
                    for now in found {
                        let now = now.slice(at.0, upto.0);
                        let same = now.body == part.slice(now.lba.0, now.end()).body;
                        let Some(written) = st.index.unpublished(&now).filter(|_| same) else {
                            continue;
                        };
                        let range = (now.lba, Lba(now.end()));
                        let blocks = if is_data { now.len() } else { 0 };
                        if written > cut.epoch {
                            // By an earlier try, which has counted it.
                            return Ok((range.1, None));
                        }
                        let open = st.buckets.epoch();
                        let again = IndexKey { written: Some(open), ..now };
                        let room = (&mut room.ring, &mut reserved);
                        st.change_dirty(room, part.volume, range, &[again])?;
                        return Ok((range.1, Some((open, blocks))));
                    }
                    Ok((upto, None))
                })
                .await?;
            at = upto;
            if let Some(kept) = kept {
                self.note_kept(part.volume, kept, why);
            }
            self.rt().yield_now().await;
        }
        Ok(())
    }

    /// Has blocks of the range in the cache that are staged in this epoch, and whole those of which
    /// it has a part that lies over a staged one, as the index says now: clients may have written
    /// such a part since the cut was taken, and an earlier try may have copied others.
    async fn keep_staged(
        &self,
        (volume, epoch): (VolumeId, Epoch),
        (lba, end): (Lba, Lba),
        why: &StorageError,
    ) -> Result<()> {
        if self.pool().find_staging(volume, epoch).is_none() {
            return Err(why.clone());
        }
        let is_staged = |e: &IndexKey| match &e.body {
            Body::Data { cover, .. } => {
                e.is_part() && cover.below.is_some_and(|below| below.epoch == epoch)
            }
            Body::Staged { .. } => e.written == Some(epoch),
            Body::Zeros { .. } => false,
        };
        let mut at = lba;
        while at < end {
            let (next, upto) = self
                .resident(Class::WriteBack, |st| {
                    let (found, upto) =
                        st.index.overlapping_step(&st.buckets, volume, (at, end))?;
                    Ok((found.into_iter().find(|e| is_staged(e)), upto))
                })
                .await?;
            // It is looked up again afterwards: it may have been changed meanwhile.
            match next.map(|e| e.slice(at.0, end.0)) {
                Some(e) if e.is_part() => self.keep_over_staged(&e, why).await?,
                Some(e) => {
                    let found = self.read_staged(volume, epoch, e.lba, e.len()).await?;
                    let is_same =
                        |now: &IndexKey| matches!(now.body, Body::Staged { .. }) && is_staged(now);
                    self.keep_copy((volume, e.lba), self.one_piece(found), is_same, why).await?;
                }
                None => at = upto,
            }
            self.rt().yield_now().await;
        }
        Ok(())
    }

    async fn keep_over_staged(&self, part: &IndexKey, why: &StorageError) -> Result<()> {
        let Body::Data { addr, crcs, .. } = &part.body else { return Ok(()) };
        let is_same = |now: &IndexKey| now == part;
        let Ok(mine) = self.read_bucket(*addr, crcs, Class::WriteBack).await else {
            if !self.has_still(part).await? {
                return Ok(());
            }
            let what = format!(
                "block {} of volume {} is bad in the cache",
                part.lba,
                self.pool().volume_name(part.volume)
            );
            return Err(StorageError::new(ErrorKind::Io, what));
        };
        let (whole, _) = self.carried(part, mine).await?;
        self.keep_copy((part.volume, part.lba), whole, is_same, why).await
    }

    /// True if the index says the same of a block still.
    async fn has_still(&self, block: &IndexKey) -> Result<bool> {
        let range = (block.lba, Lba(block.end()));
        self.resident(Class::WriteBack, |st| {
            Ok(st.index.overlapping(&st.buckets, block.volume, range, 1)?.contains(block))
        })
        .await
    }

    /// Writes blocks into the cache that are elsewhere, and enters those of them into the open
    /// epoch of which the index says the same still.
    async fn keep_copy(
        &self,
        (volume, lba): (VolumeId, Lba),
        data: Slice,
        is_same: impl Fn(&IndexKey) -> bool,
        why: &StorageError,
    ) -> Result<()> {
        let crcs: Vec<Crc> = block_crcs(&data).collect();
        let end = lba.plus((data.len() / BLOCK) as u64);
        let Some(taken) = self.write_elsewhere(&data, Class::WriteBack).await? else {
            return Box::pin(self.keep_past((volume, lba), data, is_same, why)).await;
        };
        let mut at = lba;
        while at < end {
            let blocks = end.0 - at.0;
            let mut room = self.room_to_keep(most_extents(blocks), blocks as usize, why).await?;
            let mut reserved = self.pool().take_over(blocks);
            let (upto, kept) = self
                .resident(Class::WriteBack, |st: &mut State| {
                    let found = st.index.overlapping(&st.buckets, volume, (at, end), usize::MAX)?;
                    let Some(now) = found.iter().find(|now| is_same(now)) else {
                        return Ok((end, None));
                    };
                    let (from, to) = (now.lba.max(at), Lba(now.end().min(end.0)));
                    let (skip, len) = (from.0 - lba.0, to.0 - from.0);
                    let part = part_of(&taken, skip as u32, len as u32);
                    let crcs = &crcs[skip as usize..(skip + len) as usize];
                    let open = st.buckets.epoch();
                    let new = extents((volume, from), &part, crcs, Cover::ALL, Some(open));
                    st.change_dirty((&mut room.ring, &mut reserved), volume, (from, to), &new)?;
                    Ok((to, Some((open, len))))
                })
                .await?;
            at = upto;
            if let Some(kept) = kept {
                self.note_kept(volume, kept, why);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "kept_tests.rs"]
mod tests;
