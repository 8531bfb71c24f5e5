//! Sync of superblocks: devices that a crash has left a commit behind get the newest superblock,
//! before an open writes anything else.
//!
//! A crash between the superblocks of two devices leaves one of them behind: its own superblock is
//! of the commit before. It has all that the newest one refers to, as that was flushed before. But
//! by itself it is still as of the commit before, and by itself it must be able to serve, should
//! the others be lost. The pages that an open writes go where pages of the commit before are. So
//! the newest superblock comes first, on every device; from then on the commit before is nothing
//! that anybody may have to go back to.
//!
//! A sync that was cut short left them with superblocks of one commit, but not of one number, and
//! torn slots may be left too. It begins again.
//!
//! A device that is behind may have been opened alone meanwhile, and that may have been cut short
//! before its first superblock. Then it lacks table pages of the newest commit: it was going on
//! from the one before, and has written over them. (Over nothing else: the first commit of an open
//! writes no other pages and no nodes, and data only where the last commit has nothing.) They are
//! copied from a device that has them, each to its own place, which is the one that the older pages
//! are not in.
//!
//! | power fails | the device that was behind has |
//! | --- | --- |
//! | before its superblock is written | the commit before, whole |
//! | afterwards | the newest commit, whole |

use std::rc::Rc;

use base::{Result, SliceList};
use format::superblock::SLOTS;
use queue::Class;

use super::tables::PageCopy;
use crate::commit::superblocks::Superblocks;
use crate::core::Core;
use crate::transfer::write_copies::CopyWriter;
use crate::transfer::{CommitWritten, Writes};

/// Writes superblocks and table pages where an open found others.
pub(crate) struct SuperblockSync {
    core: Core,
    copy_writer: Rc<CopyWriter>,
    superblocks: Rc<Superblocks>,
}

impl SuperblockSync {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        copy_writer: &Rc<CopyWriter>,
        superblocks: &Rc<Superblocks>,
    ) -> Rc<SuperblockSync> {
        Rc::new(SuperblockSync {
            core: core.clone(),
            copy_writer: copy_writer.clone(),
            superblocks: superblocks.clone(),
        })
    }

    /// Brings all devices in use to the newest superblock, if one is behind; `lacking` is what they
    /// do not have of its table pages.
    pub(crate) async fn sync_superblocks(
        self: &Rc<Self>,
        lacking: Option<Vec<PageCopy>>,
    ) -> Result<()> {
        let Some(lacking) = lacking else {
            self.core.state_mut().histories.complete();
            return Ok(());
        };
        let mut writes = Writes::new();
        for PageCopy { device, offset, block } in lacking {
            let (this, data) =
                (self.clone(), SliceList::from_iter([self.core.bufs().copy_of(&block).freeze()]));
            let write = async move {
                this.copy_writer.write_lacking(device, offset, data, Class::Commit).await
            };
            writes.add(self.core.rt().spawn(write)).await;
        }
        let written = writes.finish().await?;
        // The crash may have torn a superblock on the device that is behind. Each slot is written
        // once, so that none is damaged any more.
        self.fill_slots(written).await?;
        let mut st = self.core.state_mut();
        st.txns.all_know();
        st.histories.complete();
        Ok(())
    }

    /// Writes the newest superblock to every slot, where nothing else has to be written before.
    pub(crate) async fn renew_slots(&self) -> Result<()> {
        self.fill_slots(Writes::new().finish().await?).await
    }

    /// Writes the newest superblock to every slot, one after the other.
    async fn fill_slots(&self, mut written: CommitWritten) -> Result<()> {
        let (generation, digest) = {
            let st = self.core.state();
            (st.txns.committed(), st.tables.digest())
        };
        for _ in 0..SLOTS {
            let flushed = self.superblocks.flush_devices(written).await?;
            self.superblocks.write_superblocks(flushed, generation, digest).await?;
            written = Writes::new().finish().await?;
        }
        Ok(())
    }
}
