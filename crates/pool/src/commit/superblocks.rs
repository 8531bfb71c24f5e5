//! The last two steps of a commit: all devices are flushed, then the superblocks are written,
//! durably.
//!
//! Both end with a device saying that something is durable. If it says that this failed, everything
//! written to it since its last good flush counts as lost: also what the next transaction has
//! written meanwhile, which could not be written again. (A durable write is a write and a flush;
//! which of the two has failed is not told.) So neither step is tried a second time. The devices
//! that failed are left out, all together, if the others have everything without them; else the
//! pool's [standing](crate::devices::standing) ends.
//!
//! No slot is written that was not looked at before (`transfer/writer_watch.rs`): another process
//! may have written there.
//!
//! A superblock that was reported as failed may stand on a device nonetheless. It names only what
//! every device had flushed, and what its commit frees is not used before all devices have it. So
//! the next start may take it or the one before.

use std::rc::Rc;

use base::{BLOCK, Buf, ErrorKind, Generation, IoError, Result, SliceList, StorageError};
use format::superblock::{SLOT_COPIES, Superblock};
use queue::Class;
use rt::JoinHandle;

use crate::core::Core;
use crate::devices::{DeviceOutcome, Tenure};
use crate::transfer::CommitWritten;
use crate::transfer::writer_watch::WriterWatch;

/// Every device in use has flushed all that was written: a superblock may name it.
pub(crate) struct DevicesFlushed(());

/// Every device in use has the superblock: what the commit has freed may be used.
pub(crate) struct Durable(());

/// Flushes the devices, and writes their superblocks.
pub(crate) struct Superblocks {
    core: Core,
    watch: Rc<WriterWatch>,
}

impl Superblocks {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core, watch: &Rc<WriterWatch>) -> Rc<Superblocks> {
        Rc::new(Superblocks { core: core.clone(), watch: watch.clone() })
    }

    /// Flushes all devices in use.
    pub(crate) async fn flush_devices(&self, _: CommitWritten) -> Result<DevicesFlushed> {
        let permit = self.core.permit()?;
        let devices = self.core.state().devices.live_rows();
        let tasks: Vec<_> = devices
            .into_iter()
            .filter_map(|row| {
                let (of, disk) = self.core.state().devices.to_write(row);
                let disk = disk?;
                let flush = async move { disk.flush(permit, Class::Commit).await };
                Some((row, of, self.core.rt().spawn(flush)))
            })
            .collect();
        self.leave_out(outcomes(tasks).await, "flush")?;
        Ok(DevicesFlushed(()))
    }

    /// Writes the superblock of `generation` to every device in use. If a device is dropped because
    /// its write failed, writes a new one to the others, so that their newest superblocks do not
    /// say that it is in use.
    pub(crate) async fn write_superblocks(
        &self,
        _: DevicesFlushed,
        generation: Generation,
        digest: u64,
    ) -> Result<Durable> {
        loop {
            let next = self.core.state().txns.sequence() + 1;
            if !self.core.state().writers.may_write(next) {
                self.watch.look_before(next).await?;
            }
            let permit = self.core.permit()?;
            let (devices, blocks, offset) = {
                let mut st = self.core.state_mut();
                let sequence = st.txns.next_sequence();
                st.devices.note_written();
                let devices = st.devices.live_rows();
                let blocks: Vec<Buf> = devices
                    .iter()
                    .map(|&d| {
                        let mut slot = self.core.rt().bufs().take(SLOT_COPIES * BLOCK);
                        st.superblock_for(d, generation, digest).encode_slot(&mut slot);
                        slot
                    })
                    .collect();
                (devices, blocks, Superblock::offset_of(sequence))
            };
            let before = devices.len();
            let tasks: Vec<_> = devices
                .into_iter()
                .zip(blocks)
                .filter_map(|(row, block)| {
                    let (of, disk) = self.core.state().devices.to_write(row);
                    let disk = disk?;
                    let data = SliceList::from_iter([block.freeze()]);
                    let write = async move {
                        disk.write_durable(permit, Class::Commit, offset, data).await
                    };
                    Some((row, of, self.core.rt().spawn(write)))
                })
                .collect();
            self.leave_out(outcomes(tasks).await, "superblock write")?;
            if self.core.state().devices.live_rows().len() == before {
                self.core.state_mut().devices.offer_written();
                return Ok(Durable(()));
            }
        }
    }

    /// Drops the devices that could not make durable what was written to them, or ends the pool's
    /// standing. A lack of space counts as a failure too: the device may have lost what it had to
    /// write.
    fn leave_out(&self, outcomes: Vec<DeviceOutcome>, what: &str) -> Result<()> {
        let any_good = outcomes.iter().any(|o| o.result.is_ok());
        let mut st = self.core.state_mut();
        let failed = st.devices.note_write_errors(outcomes, what);
        let rows: Vec<usize> = failed.iter().map(|f| f.0).collect();
        if any_good && st.fail_devices(&rows) {
            drop(st);
            self.core.note_dropped();
            return Ok(());
        }
        let told: Vec<String> = failed.iter().map(|(_, e, what)| format!("{what}: {e}")).collect();
        let todo = if !failed.is_empty() && failed.iter().all(|(_, e, _)| e.is_no_space()) {
            "The file system under it is full: free space there"
        } else {
            "See to the device"
        };
        let text = format!(
            "{}; what was not durable before may be lost there, and the pool cannot do without \
             it. {todo}, then restart forebay: everything flushed before is there",
            if told.is_empty() { format!("{what}: no device is left") } else { told.join(", ") }
        );
        Err(st.end_standing(StorageError::new(ErrorKind::Io, text)))
    }
}

type IoResult = std::result::Result<(), IoError>;

/// Waits for requests that were sent to the devices of these rows, and returns their outcomes.
async fn outcomes(tasks: Vec<(usize, Tenure, JoinHandle<IoResult>)>) -> Vec<DeviceOutcome> {
    let mut outcomes = Vec::with_capacity(tasks.len());
    for (row, of, task) in tasks {
        let result = task.await.unwrap_or(Err(IoError::CANCELED));
        outcomes.push(DeviceOutcome { row, of, result });
    }
    outcomes
}
