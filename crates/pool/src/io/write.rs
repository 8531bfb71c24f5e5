//! Carries out writes and discards. Addresses are blocks of a volume.
//!
//! *Plan* waits for room and takes blocks ([`wait_for_room`](super::wait_for_room)). *Transfer*
//! writes all copies of them ([`taken`](super::taken_runs)). *Settle* enters them into the trees in
//! one step: what a reader or a commit sees is the old block or the new one.
//!
//! A future that is dropped gives back what it has taken. What it has written by then stays.

use std::rc::Rc;

use base::checksum::block_crcs;
use base::{
    BLOCK, BLOCK_U64, BlockRange, Crc, ErrorKind, Lba, Result, Slice, SliceList, StorageError,
    VolumeId,
};
use queue::Class;
use smallvec::SmallVec;

use super::{END_OF_SPACE, STEP_BLOCKS};
use crate::core::Core;
use crate::forest::Change;
use crate::io::taken_runs::RunWriter;
use crate::io::wait_for_room::PoolRoom;
use crate::space::Purpose;
use crate::state::State;
use crate::transfer::load::NodeLoader;

/// Writes and unmaps blocks of volumes.
pub(crate) struct Writer {
    core: Core,
    loader: Rc<NodeLoader>,
    room: Rc<PoolRoom>,
    runs: Rc<RunWriter>,
}

impl Writer {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        loader: &Rc<NodeLoader>,
        room: &Rc<PoolRoom>,
        runs: &Rc<RunWriter>,
    ) -> Rc<Writer> {
        Rc::new(Writer {
            core: core.clone(),
            loader: loader.clone(),
            room: room.clone(),
            runs: runs.clone(),
        })
    }

    /// See [`crate::Pool::write`].
    pub(crate) async fn write(&self, volume: VolumeId, lba: Lba, data: &Slice) -> Result<()> {
        assert_eq!(data.len() % BLOCK, 0);
        let blocks = (data.len() / BLOCK) as u64;
        let mut at = 0;
        while at < blocks {
            let n = (blocks - at).min(STEP_BLOCKS);
            let part = data.slice(at as usize * BLOCK, n as usize * BLOCK);
            self.write_step(volume, Class::Foreground, lba.plus(at), part, None).await?;
            at += n;
        }
        Ok(())
    }

    /// Writes up to [`STEP_BLOCKS`] blocks; with `size` it also makes that the volume's size, in
    /// the same step.
    pub(crate) async fn write_step(
        &self,
        volume: VolumeId,
        class: Class,
        lba: Lba,
        data: Slice,
        size: Option<u64>,
    ) -> Result<()> {
        let crcs: SmallVec<[Crc; 1]> = block_crcs(&data).collect();
        loop {
            let (room, taken) = self.room.take_for_write(crcs.len() as u32).await?;
            let data = SliceList::from_iter([data.clone()]);
            let taken = self.runs.write_taken(taken, data, class).await?;
            let change = Change::Map { volume, lba, runs: &taken, crcs: &crcs, size };
            let enter = |st: &mut State| st.edit_direct(&change).map(drop);
            match self.loader.resident_or_lost(class, |_| None, enter).await {
                Ok(()) => {
                    taken.entered();
                    drop(room);
                    return Ok(());
                }
                Err(failed) if self.loader.goes_elsewhere(&failed) => {}
                Err(failed) => return Err(failed.why),
            }
        }
    }

    /// See [`crate::Pool::discard`].
    pub(crate) async fn discard(&self, volume: VolumeId, lba: Lba, end: Lba) -> Result<()> {
        let mut at = lba;
        while at < end {
            let room = self.room.admit(Purpose::Free).await?;
            let change = Change::Unmap { volume, range: BlockRange::new(at, end) };
            at = self.loader.resident(Class::Foreground, |st| st.edit_direct(&change)).await?;
            drop(room);
            self.core.rt().yield_now().await;
        }
        Ok(())
    }

    /// Unmaps what is behind the end of `volume`, in slices; the end is looked up for each, so that
    /// the volume may grow meanwhile.
    pub(crate) async fn trim_behind_end(&self, volume: VolumeId) -> Result<()> {
        let mut at = Lba(0);
        while at < END_OF_SPACE {
            let pass_ended = self.core.state().txns.pass_ended();
            if self.core.is_closed() {
                return Err(StorageError::new(ErrorKind::Io, "the pool is closed"));
            }
            let room = self.room.admit(Purpose::Free).await?;
            let step = |st: &mut State| {
                let v = st.forest.volume(volume);
                // A pass has a clone of the mapping, which will take its place: it would bring back
                // what is unmapped here.
                if v.is_some_and(|v| v.mapping().is_in_pass()) {
                    return Ok(None);
                }
                let size = v.map_or(0, |v| v.record().size_bytes);
                let from = at.max(Lba(size.div_ceil(BLOCK_U64)));
                let range = BlockRange::new(from, END_OF_SPACE);
                st.edit_direct(&Change::Unmap { volume, range }).map(Some)
            };
            let done = self.loader.resident(Class::Foreground, step).await?;
            drop(room);
            match done {
                Some(upto) => at = upto,
                None => pass_ended.await,
            }
            self.core.rt().yield_now().await;
        }
        Ok(())
    }
}
