//! The last word of a device that goes out of use: a superblock on it by which it is out of use.
//!
//! The superblocks of the others say so, too. But they may be lost, or be elsewhere: then the
//! device, alone, would be served with what it had when it left, and say no more than that the
//! others are missing. With its last word it is refused, until the user takes it as it was
//! ([`Settings::take_back`](crate::Settings)).
//!
//! The last word is the newest superblock that the device has, with another row for the device
//! itself and the next sequence number. So it names the tables that the device has. It is written
//! when the others say durably that the device is out of use. Where the device does not take it,
//! nothing is lost but that. A device that comes back has taken it before anything else is written.

use std::rc::Rc;

use base::{Duration, Result, SliceList, StorageError};
use format::superblock::{DeviceState, SLOT_COPIES, Superblock};
use queue::Class;
use rt::sync::either;

use crate::commit::commit_requests::Commits;
use crate::core::Core;
use crate::devices::slots::Slots;
use crate::devices::{Disk, Tenure};
use crate::moves::rows::{is_away, recognize};
use crate::state::State;
use crate::transfer::writer_watch::WriterWatch;

/// For so long a user who takes a device out of use waits for it to be told.
const PATIENCE: Duration = Duration::from_secs(2);

/// A device that is being told. While it is, it does not come back.
struct NotifiedDevice {
    core: Core,
    row: usize,
    tenure: Tenure,
}

impl Drop for NotifiedDevice {
    fn drop(&mut self) {
        let mut st = self.core.state_mut();
        let own = st.devices.row_mut(self.row).filter(|d| d.tenure() == self.tenure);
        own.into_iter().for_each(|d| d.end_telling());
    }
}

/// Tells devices that they are out of use.
pub(crate) struct RemovalNotifier {
    core: Core,
    watch: Rc<WriterWatch>,
    commits: Rc<Commits>,
}

impl RemovalNotifier {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        watch: &Rc<WriterWatch>,
        commits: &Rc<Commits>,
    ) -> Rc<RemovalNotifier> {
        Rc::new(RemovalNotifier {
            core: core.clone(),
            watch: watch.clone(),
            commits: commits.clone(),
        })
    }

    /// Tells a device that it is out of use, which the others know durably.
    async fn tell_it_is_away(&self, row: usize) {
        let Some((telling, disk, path)) = self.begin_telling(row) else { return };
        if let Err(e) = self.write_last_word(row, &disk, &path).await {
            tracing::warn!(
                device = %path,
                "it was not told that it is out of use: alone, it would be served with what it has \
                 now: {e}"
            );
        }
        drop(telling);
    }

    /// The same, for a caller that does not wait for a device that hangs: that is told when it
    /// answers.
    pub(crate) async fn tell_for_a_while(self: &Rc<Self>, row: usize) {
        let this = self.clone();
        let telling = self.core.rt().spawn(async move { this.tell_it_is_away(row).await });
        either(async move { _ = telling.await }, self.core.rt().sleep(PATIENCE)).await;
    }

    /// Does so in the background when the others know: of a device that has failed.
    pub(crate) fn tell_later_it_is_away(self: &Rc<Self>, row: usize) {
        let this = self.clone();
        drop(self.core.rt().spawn(async move {
            if this.others_know().await {
                this.tell_it_is_away(row).await;
            }
        }));
    }

    /// Tells a device that is about to come back that it is out of use, once the others say so
    /// durably.
    pub(crate) async fn tell_before_it_returns(
        &self,
        row: usize,
        disk: &Disk,
        path: &str,
    ) -> Result<()> {
        self.commits.commit_direct().await?;
        let _telling = {
            let mut st = self.core.state_mut();
            is_away(&st, row, path)?;
            let Some(d) = st.devices.row_mut(row) else { return Ok(()) };
            d.begin_telling();
            NotifiedDevice { core: self.core.clone(), row, tenure: d.tenure() }
        };
        self.write_last_word(row, disk, path).await
    }

    /// Waits for the commit that is next, whenever that is. False: the pool is closed, or takes no
    /// more commits.
    async fn others_know(&self) -> bool {
        let target = self.core.state().next_commit();
        loop {
            let ended = self.core.commit_ended();
            if target.is_none_or(|target| self.core.committed() >= target) {
                return true;
            }
            if self.core.is_closed() || self.core.permit().is_err() {
                return false;
            }
            ended.await;
        }
    }

    fn begin_telling(&self, row: usize) -> Option<(NotifiedDevice, Disk, String)> {
        let mut st = self.core.state_mut();
        let d = st.devices.row_mut(row)?;
        let disk = d.disk()?.anew();
        if !d.begin_telling() {
            return None;
        }
        let (path, tenure) = (d.path().to_owned(), d.tenure());
        drop(st);
        Some((NotifiedDevice { core: self.core.clone(), row, tenure }, disk, path))
    }

    async fn write_last_word(&self, row: usize, disk: &Disk, path: &str) -> Result<()> {
        // A superblock that it was to write before must not come after this one.
        disk.until_idle().await;
        if self.core.is_closed() {
            return Ok(());
        }
        let slots = Slots::read(self.core.rt(), disk, path).await?;
        let Some(own) = slots.newest() else { return Ok(()) };
        let last = {
            let st = self.core.state();
            let Some(last) = last_word(&st, row, own) else { return Ok(()) };
            // Another process may have gone on with it alone, while its path was dead here.
            recognize(&st, row, own, path)?;
            last
        };
        let mut slot = self.core.bufs().take(SLOT_COPIES * base::BLOCK);
        last.encode_slot(&mut slot);
        let (at, data) =
            (Superblock::offset_of(last.sequence), SliceList::from_iter([slot.freeze()]));
        let written =
            disk.write_durable(self.watch.permit_to_write().await?, Class::Move, at, data).await;
        written.map_err(|e| StorageError::from_io(e, "write of a superblock"))
    }
}

/// The last word of the device of this row, whose newest superblock is `own`; `None`: it is
/// another device, or knows already.
pub(super) fn last_word(st: &State, row: usize, own: &Superblock) -> Option<Superblock> {
    let record = st.devices.row(row)?.record();
    let is_it = own.pool_uuid == st.identity.uuid && usize::from(own.device) == row;
    let of_own = own.devices.get(row).filter(|d| is_it && d.uuid == record.uuid)?;
    if record.state != DeviceState::Failed || of_own.state == DeviceState::Failed {
        return None;
    }
    let mut last = own.clone();
    last.sequence += 1;
    last.devices[row] = record.clone();
    Some(last)
}
