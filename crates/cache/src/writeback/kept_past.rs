//! What is kept of what was written past the cache, where the cache has no room for it: it is
//! written past it once more, into the staging volume of the open epoch.
//!
//! It is a write like those of [`crate::io::bypass`], with the same order: the records are logged
//! as an intent, the pool has the data, the keys enter the index. But it must not replace what a
//! client writes meanwhile. So an intent is logged of blocks alone of which the index says the same
//! in that step, and a key is entered only where it says so still. A record of a client comes after
//! the intent then, and replaces it at replay.
//!
//! Each pass that finds no room reads and writes these blocks again. Where nothing else is to be
//! carried, the next pass comes after four times as long as that took.

use base::checksum::block_crcs;
use base::{BLOCK, Crc, Epoch, ErrorKind, Lba, Result, Slice, StorageError, VolumeId};
use queue::Class;

use crate::Cache;
use crate::store::key::IndexKey;
use crate::store::ring_room::JournalRoom;
use crate::store::taken::{most_extents, staged_extents};
use crate::writeback::kept_room::KeptRoom;

/// Blocks of which the index says the same in one step: the first, and behind the last.
type Same = Option<(Lba, Lba)>;

impl Cache {
    /// Has blocks staged in the open epoch of which the index says the same still.
    pub(super) async fn keep_past(
        &self,
        (volume, lba): (VolumeId, Lba),
        data: Slice,
        is_same: impl Fn(&IndexKey) -> bool,
        why: &StorageError,
    ) -> Result<()> {
        let crcs: Vec<Crc> = block_crcs(&data).collect();
        let end = lba.plus(crcs.len() as u64);
        let mut at = lba;
        while at < end {
            let range = (volume, at, end);
            // An entry of the journal may end between the two steps.
            let records = most_extents(end.0 - at.0);
            let mut room = self.room_for_steps(2, (records, crcs.len()), why).await?;
            // The epoch stays open while this is under way.
            let _under_way = self.bypass().begin_in_turn(range).await;
            let epoch = self.epoch();
            let staging = self.pool().staging(volume, epoch).await?;
            let first = (lba, &crcs[..]);
            let logged = self.log_same((range, epoch), first, &mut room.ring, &is_same).await?;
            let Some((from, to)) = logged else { return Ok(()) };
            let skip = (from.0 - lba.0) as usize * BLOCK;
            let part = data.slice(skip, (to.0 - from.0) as usize * BLOCK);
            let written = self.pool().write_for(Class::WriteBack, staging, from, &part).await;
            written.map_err(|e| {
                let what = format!(
                    "the cache has no room for what was written past it, nor does the pool take it \
                     again: {e}"
                );
                StorageError::new(e.kind, what)
            })?;
            let range = (volume, from, to);
            let entered = self.enter_same((range, epoch), first, (room, staging), &is_same).await?;
            if let Some((from, to)) = entered {
                self.writeback().passes_mut().keeps_staged(volume, to.0 - from.0, epoch, why);
            }
            at = entered.map_or(to, |(_, to)| to);
        }
        Ok(())
    }

    /// Logs an intent of the first blocks of the range of which the index says the same, whose
    /// checksums begin with those of block `lba`.
    async fn log_same(
        &self,
        ((volume, at, end), epoch): ((VolumeId, Lba, Lba), Epoch),
        (lba, crcs): (Lba, &[Crc]),
        room: &mut JournalRoom,
        is_same: &impl Fn(&IndexKey) -> bool,
    ) -> Result<Same> {
        let logged = self.resident(Class::WriteBack, |st| {
            let found = st.index.overlapping(&st.buckets, volume, (at, end), usize::MAX)?;
            let Some((from, to)) = first_same(&found, (at, end), is_same) else {
                return Ok(Ok(None));
            };
            let crcs = &crcs[(from.0 - lba.0) as usize..(to.0 - lba.0) as usize];
            let new = staged_extents(volume, from, crcs, epoch);
            Ok(if st.log_intent(room, &new) { Ok(Some((from, to))) } else { Err(()) })
        });
        logged.await?.map_err(|()| {
            StorageError::new(ErrorKind::Io, "the cache has failed: nothing more is entered")
        })
    }

    /// Enters keys of the first blocks of the range of which the index says the same still.
    async fn enter_same(
        &self,
        ((volume, at, end), epoch): ((VolumeId, Lba, Lba), Epoch),
        (lba, crcs): (Lba, &[Crc]),
        (mut room, staging): (KeptRoom, VolumeId),
        is_same: &impl Fn(&IndexKey) -> bool,
    ) -> Result<Same> {
        self.resident(Class::WriteBack, |st| {
            let found = st.index.overlapping(&st.buckets, volume, (at, end), usize::MAX)?;
            let Some((from, to)) = first_same(&found, (at, end), is_same) else { return Ok(None) };
            let crcs = &crcs[(from.0 - lba.0) as usize..(to.0 - lba.0) as usize];
            let new = staged_extents(volume, from, crcs, epoch);
            let commit = self.pool().edited(staging);
            st.enter_staged((&mut room.ring, &new), (volume, from, to), epoch, commit)?;
            Ok(Some((from, to)))
        })
        .await
    }
}

fn first_same(
    found: &[IndexKey],
    (at, end): (Lba, Lba),
    is_same: &impl Fn(&IndexKey) -> bool,
) -> Same {
    let now = found.iter().find(|now| is_same(now))?;
    Some((now.lba.max(at), Lba(now.end().min(end.0))))
}
