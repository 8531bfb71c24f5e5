//! Operations that must not meet a pass: the end of a volume, or of a part of it.

use base::{BlockRange, Lba, Result, VolumeId};
use queue::Class;
use rt::sync::Permit;

use crate::Cache;
use crate::store::key::END;

impl Cache {
    /// Waits for the end of the running pass, which is not paced any more; none begins while the
    /// permit is held, and no cut is taken. There may be cuts: see [`Cache::between_cuts`]. A
    /// request that is waited for while the permit is held may wait for a pass.
    pub async fn between_passes(&self) -> Permit {
        let _urgent = self.urgent();
        self.writeback().lock().await
    }

    /// Forgets all blocks of a volume that was deleted, in slices. To be called [between
    /// passes](Cache::between_passes).
    pub async fn forget(&self, volume: VolumeId) -> Result<()> {
        self.forget_from(volume, Lba(0)).await?;
        self.state_mut().forget_volume(volume);
        Ok(())
    }

    /// Forgets the blocks of a volume from `lba` on: it ends there now. To be called [between
    /// passes](Cache::between_passes).
    pub async fn forget_from(&self, volume: VolumeId, lba: Lba) -> Result<()> {
        // Blocks that were read and wait to be kept would be entered after this.
        self.state_mut().promotions.spoil(volume, BlockRange::new(lba, END));
        let mut at = lba;
        while at < END {
            let mut room = self.room_between_passes().await?;
            let upto = self
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
            self.rt().yield_now().await;
        }
        Ok(())
    }
}
