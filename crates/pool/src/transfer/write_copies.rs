//! Writing the copies of pool blocks, without those devices that fail.
//!
//! A write is a loop of plan, transfer and settle. A step takes a device of the state; what talks
//! to it ([`Disk`]) knows no state; the next step counts its errors, and may drop the device.

use std::rc::Rc;

use base::{BLOCK, ErrorKind, IoError, PoolAddr, Result, SliceList, StorageError, slice_of_list};
use queue::Class;

use crate::core::Core;
use crate::devices::standing::Permit;
use crate::devices::{CopyPlace, DeviceOutcome, Disk};
use crate::space::Run;

use crate::transfer::writer_watch::WriterWatch;

/// The number of times that a failed write is tried again before its device is dropped.
const WRITE_RETRIES: u32 = 2;

/// Writes the copies of blocks.
pub(crate) struct CopyWriter {
    core: Core,
    watch: Rc<WriterWatch>,
}

impl CopyWriter {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core, watch: &Rc<WriterWatch>) -> Rc<CopyWriter> {
        Rc::new(CopyWriter { core: core.clone(), watch: watch.clone() })
    }

    /// Writes all copies of the blocks at `addr`. A device that cannot is dropped, unless the pool
    /// cannot do without it: then, and if there is no space under a device, the write fails.
    pub(crate) async fn write_copies(
        self: &Rc<Self>,
        addr: PoolAddr,
        data: SliceList,
        class: Class,
    ) -> Result<()> {
        let copies = self.core.state().copies_to_write(addr);
        if copies.is_empty() {
            return Err(no_copy(addr));
        }
        let places: Vec<_> = copies.into_iter().collect();
        self.write_places(&places, data, class).await
    }

    /// Writes all copies of `data`, which goes to `runs` in this order.
    pub(crate) async fn write_runs(
        self: &Rc<Self>,
        runs: &[Run],
        data: SliceList,
        class: Class,
    ) -> Result<()> {
        if let [run] = runs {
            return self.write_copies(run.addr, data, class).await;
        }
        let mut tasks = Vec::with_capacity(runs.len());
        let mut at = 0;
        for run in runs {
            let len = run.len as usize * BLOCK;
            let (this, part, addr) = (self.clone(), slice_of_list(&data, at, len), run.addr);
            at += len;
            tasks.push(
                self.core.rt().spawn(async move { this.write_copies(addr, part, class).await }),
            );
        }
        // All of them, whatever the first says: none may still be in flight when its blocks are
        // given back.
        let mut outcome = Ok(());
        for t in tasks {
            outcome = outcome.and(t.await.unwrap_or_else(|| Err(StorageError::ended())));
        }
        outcome
    }

    /// Writes `data` to every place at once, with the policy of
    /// [`CopyWriter::write_copies`].
    pub(crate) async fn write_places(
        self: &Rc<Self>,
        places: &[CopyPlace],
        data: SliceList,
        class: Class,
    ) -> Result<()> {
        let permit = self.watch.permit_to_write().await?;
        let data = Rc::new(data);
        let (&first, others) = match places.split_first() {
            Some(split) => split,
            None => {
                return Err(StorageError::new(ErrorKind::Missing, "no device is left to write to"));
            }
        };
        let others: Vec<_> = others
            .iter()
            .map(|&place| {
                let (this, data) = (self.clone(), data.clone());
                self.core
                    .rt()
                    .spawn(async move { this.write_live(permit, place, &data, class).await })
            })
            .collect();
        let mut outcomes = vec![self.write_live(permit, first, &data, class).await];
        for task in others {
            outcomes.extend(task.await);
        }
        self.judge(outcomes, false)
    }

    /// Writes one copy of what other devices have. A device that cannot is dropped, as
    /// [`CopyWriter::write_copies`] does.
    pub(crate) async fn write_lacking(
        &self,
        d: usize,
        offset: u64,
        data: SliceList,
        class: Class,
    ) -> Result<()> {
        let (permit, place) = (self.watch.permit_to_write().await?, CopyPlace { row: d, offset });
        let outcome = self.write_live(permit, place, &data, class).await;
        self.judge(vec![outcome], true)
    }

    /// Judges a whole write by its outcomes on several devices: the devices that failed are
    /// dropped, all of them, if the pool can do without; else the write has failed, and can be
    /// tried again. The write has failed, too, where a device has no space: that device is not
    /// dropped, and has all that was written before, so the pool may do without others. `others`:
    /// devices that were not written to have it, so no client gets an error.
    fn judge(&self, mut outcomes: Vec<DeviceOutcome>, others: bool) -> Result<()> {
        let (now, mut st) = (self.core.now(), self.core.state_mut());
        if !others || outcomes.iter().all(|o| o.result.is_ok()) {
            st.devices.note_writes(&outcomes, now);
        }
        let full = st.devices.without_space(&mut outcomes);
        let any_good = others || full.is_some() || outcomes.iter().any(|o| o.result.is_ok());
        let mut failed = st.devices.note_write_errors(outcomes, "write");
        let rows: Vec<usize> = failed.iter().map(|f| f.0).collect();
        if any_good && st.fail_devices(&rows) {
            drop(st);
            self.core.note_dropped();
            // Without the others, space is all that is wanted.
            return full.map_or(Ok(()), |(device, e)| {
                Err(StorageError::from_io(e, format!("no space under {device}; free some there")))
            });
        }
        Err(if failed.is_empty() {
            StorageError::new(ErrorKind::Missing, "write: no device is left")
        } else {
            let (_, e, what) = failed.swap_remove(0);
            StorageError::from_io(e, what)
        })
    }

    async fn write_live(
        &self,
        permit: Permit,
        place: CopyPlace,
        data: &SliceList,
        class: Class,
    ) -> DeviceOutcome {
        let row = place.row;
        let (of, disk) = self.core.state().devices.to_write(row);
        let result = match disk {
            Some(disk) => self.write_one(permit, place, &disk, data, class).await,
            None => Err(IoError::GONE),
        };
        DeviceOutcome { row, of, result }
    }

    pub(crate) async fn write_one(
        &self,
        permit: Permit,
        CopyPlace { row, offset }: CopyPlace,
        device: &Disk,
        data: &SliceList,
        class: Class,
    ) -> std::result::Result<(), IoError> {
        let mut tries = 0;
        loop {
            match device.write(permit, class, offset, data.clone()).await {
                Err(e)
                    if tries < WRITE_RETRIES
                        && !e.is_no_space()
                        && self.core.state().devices.is_live(row) =>
                {
                    tries += 1;
                    tracing::warn!(
                        device = %self.core.state().devices.path(row), offset,
                        "a write failed: {e}; it is tried again"
                    );
                }
                outcome => return outcome,
            }
        }
    }
}

pub(super) fn no_copy(addr: PoolAddr) -> StorageError {
    StorageError::new(
        ErrorKind::Missing,
        format!("block {addr} of the pool: every device that holds a copy is missing"),
    )
}
