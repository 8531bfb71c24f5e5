//! Operations that must not meet a pass: the end of a volume, or of a part of it.

use std::rc::Rc;

use base::{BlockRange, Lba, Result, VolumeId};
use queue::Class;

use crate::core::Core;
use crate::space::request_room::Room;
use crate::store::key::END;

/// Forgets the blocks of volumes that were deleted or have shrunk.
pub(crate) struct VolumeEnds {
    core: Core,
    room: Rc<Room>,
}

impl VolumeEnds {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core, room: &Rc<Room>) -> Rc<VolumeEnds> {
        Rc::new(VolumeEnds { core: core.clone(), room: room.clone() })
    }

    /// See [`crate::Cache::forget`].
    pub(crate) async fn forget(&self, volume: VolumeId) -> Result<()> {
        self.forget_from(volume, Lba(0)).await?;
        self.core.state_mut().forget_volume(volume);
        Ok(())
    }

    /// See [`crate::Cache::forget_from`].
    pub(crate) async fn forget_from(&self, volume: VolumeId, lba: Lba) -> Result<()> {
        // Blocks that were read and wait to be kept would be entered after this.
        self.core.state_mut().promotions.spoil(volume, BlockRange::new(lba, END));
        let mut at = lba;
        while at < END {
            let mut room = self.room.room_between_passes().await?;
            let upto = self
                .core
                .resident(Class::Commit, |st| {
                    let left = BlockRange::new(at, END);
                    let (old, upto) = st.index.overlapping_step(&st.buckets, volume, left)?;
                    if old.is_empty() {
                        return Ok(upto);
                    }
                    st.drop_keys(&mut room, volume, BlockRange::new(at, upto))?;
                    Ok(upto)
                })
                .await?;
            drop(room);
            at = upto;
            self.core.rt().yield_now().await;
        }
        Ok(())
    }
}
