//! Reading and writing the copies of pool blocks: verified, and without those devices that fail.
//! What is bad in what was read is healed ([`heal`](super::heal)).
//!
//! Each is a loop of plan, transfer and settle. A step takes a device of the state; what talks to
//! it ([`Disk`]) knows no state; the next step counts its errors, and chooses the next copy, or
//! drops the device.

use std::rc::Rc;

use base::{
    BLOCK, Crc, ErrorKind, IoError, PoolAddr, Result, Slice, SliceList, StorageError, slice_of_list,
};
use queue::Class;

use crate::devices::standing::Permit;
use crate::devices::{Disk, Outcome, Place};
use crate::pool::Pool;
use crate::space::{Pin, Run};

/// The number of times that a failed write is tried again before its device is dropped.
const WRITE_RETRIES: u32 = 2;

/// Why blocks could not be read.
pub(crate) enum Unread {
    /// Of so many copies of this block that could be tried none is good.
    Bad(PoolAddr, usize),
    /// Every device that holds a copy of this block is missing.
    Away(PoolAddr),
}

impl From<Unread> for StorageError {
    fn from(why: Unread) -> StorageError {
        match why {
            Unread::Away(addr) => no_copy(addr),
            Unread::Bad(addr, tried) => StorageError::new(
                ErrorKind::Io,
                format!("block {addr} of the pool: no good copy ({tried} tried)"),
            ),
        }
    }
}

impl Pool {
    /// As [`Pool::read_copies`], where it does not matter which block could not be read.
    pub(crate) async fn read_verified(
        &self,
        addr: PoolAddr,
        crcs: &[Crc],
        class: Class,
        pin: &Pin,
    ) -> Result<Slice> {
        Ok(self.read_copies(addr, crcs, class, pin).await?)
    }

    /// Reads `crcs.len()` blocks from `addr` on, inside one group, and verifies each against its
    /// checksum. Blocks that are bad in one copy are taken from another and rewritten. `pin` keeps
    /// the blocks from being given to others meanwhile.
    pub(crate) async fn read_copies(
        &self,
        addr: PoolAddr,
        crcs: &[Crc],
        class: Class,
        pin: &Pin,
    ) -> std::result::Result<Slice, Unread> {
        let copies = self.state_mut().copies_to_read(addr, crcs.len() * BLOCK, pin);
        let Some(&Place { row: first, offset }) = copies.first() else {
            return Err(Unread::Away(addr));
        };
        let Some(disk) = self.disk(first) else { return Err(Unread::Away(addr)) };
        let (began, others) = (self.now(), disk.load());
        let read = disk.read_copy(class, offset, crcs).await;
        if class == Class::Foreground {
            let now = self.now();
            self.state_mut().devices.note_read(first, now.since(began), others, now);
        }
        if read.bad.is_empty() {
            return Ok(read.buf.freeze());
        }
        if let Some(e) = read.error {
            self.state_mut().devices.note_read_error(first, offset, e, self.now());
        }
        Box::pin(self.heal_read(addr, crcs, class, pin, read, &copies)).await
    }

    /// Fails if a device in use answers nothing. Then what could not be read just now is not known
    /// to be bad.
    pub async fn all_answer(&self, class: Class) -> Result<()> {
        let rows = self.state().devices.live_rows();
        self.answer(rows.into_iter(), class).await
    }

    /// As [`Pool::all_answer`], of the devices of these rows.
    pub(crate) async fn answer(
        &self,
        rows: impl Iterator<Item = usize>,
        class: Class,
    ) -> Result<()> {
        for row in rows {
            let Some(disk) = self.disk(row) else { continue };
            if !disk.answers(class).await {
                return Err(self.answers_nothing(row));
            }
        }
        Ok(())
    }

    /// That a device in use answers nothing.
    pub(crate) fn answers_nothing(&self, row: usize) -> StorageError {
        let path = self.state().devices.path(row).to_owned();
        let text = format!("{path} answers nothing: see to its path, cable or power");
        StorageError::new(ErrorKind::Io, text)
    }

    /// True if no copy of a block is good. A device that answered nothing for a moment has not
    /// said that a copy is bad. So the copies are read once more, and count only if their devices
    /// answer before and afterwards. Once the pool's standing has ended nothing is: what memory
    /// says of a block may have been lost with the flush that failed, and the next start has the
    /// block as it was before.
    pub(crate) async fn is_lost(&self, addr: PoolAddr, crc: Crc, class: Class, pin: &Pin) -> bool {
        if self.permit().is_err() {
            return false;
        }
        // Only devices that have a copy are asked: another one may stand still.
        let rows: Vec<usize> = self.state().rows_of(addr).into_iter().collect();
        if self.answer(rows.iter().copied(), class).await.is_err() {
            return false;
        }
        let copies = self.state_mut().copies_to_read(addr, BLOCK, pin);
        for Place { row, offset } in copies {
            let Some(disk) = self.disk(row) else { return false };
            let read = disk.read_copy(class, offset, &[crc]).await;
            if read.bad.is_empty() || read.error.is_some_and(IoError::is_gone) {
                return false;
            }
        }
        self.answer(rows.into_iter(), class).await.is_ok() && !self.state().may_be_away(addr)
    }

    /// Writes all copies of the blocks at `addr`. A device that cannot is dropped, unless the pool
    /// cannot do without it: then, and if there is no space under a device, the write fails.
    pub(crate) async fn write_copies(
        &self,
        addr: PoolAddr,
        data: SliceList,
        class: Class,
    ) -> Result<()> {
        let copies = self.state().copies_to_write(addr);
        if copies.is_empty() {
            return Err(no_copy(addr));
        }
        let places: Vec<_> = copies.into_iter().collect();
        self.write_places(&places, data, class).await
    }

    /// Writes all copies of `data`, which goes to `runs` in this order.
    pub(crate) async fn write_runs(
        &self,
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
            let (pool, part, addr) = (self.clone(), slice_of_list(&data, at, len), run.addr);
            at += len;
            tasks.push(self.rt().spawn(async move { pool.write_copies(addr, part, class).await }));
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
    /// [`Pool::write_copies`].
    pub(crate) async fn write_places(
        &self,
        places: &[Place],
        data: SliceList,
        class: Class,
    ) -> Result<()> {
        let permit = self.permit_to_write().await?;
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
                let (pool, data) = (self.clone(), data.clone());
                self.rt().spawn(async move { pool.write_live(permit, place, &data, class).await })
            })
            .collect();
        let mut outcomes = vec![self.write_live(permit, first, &data, class).await];
        for task in others {
            outcomes.extend(task.await);
        }
        self.judge(outcomes, false)
    }

    /// Writes one copy of what other devices have. A device that cannot is dropped, as
    /// [`Pool::write_copies`] does.
    pub(crate) async fn write_lacking(
        &self,
        d: usize,
        offset: u64,
        data: SliceList,
        class: Class,
    ) -> Result<()> {
        let (permit, place) = (self.permit_to_write().await?, Place { row: d, offset });
        let outcome = self.write_live(permit, place, &data, class).await;
        self.judge(vec![outcome], true)
    }

    /// Judges a whole write by its outcomes on several devices: the devices that failed are
    /// dropped, all of them, if the pool can do without; else the write has failed, and can be
    /// tried again. The write has failed, too, where a device has no space: that device is not
    /// dropped, and has all that was written before, so the pool may do without others. `others`:
    /// devices that were not written to have it, so no client gets an error.
    fn judge(&self, mut outcomes: Vec<Outcome>, others: bool) -> Result<()> {
        let (now, mut st) = (self.now(), self.state_mut());
        if !others || outcomes.iter().all(|o| o.result.is_ok()) {
            st.devices.note_writes(&outcomes, now);
        }
        let full = st.devices.without_space(&mut outcomes);
        let any_good = others || full.is_some() || outcomes.iter().any(|o| o.result.is_ok());
        let mut failed = st.devices.note_write_errors(outcomes, "write");
        let rows: Vec<usize> = failed.iter().map(|f| f.0).collect();
        if any_good && st.fail_devices(&rows) {
            drop(st);
            self.see_to_dropped();
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
        place: Place,
        data: &SliceList,
        class: Class,
    ) -> Outcome {
        let row = place.row;
        let (of, disk) = self.state().devices.to_write(row);
        let result = match disk {
            Some(disk) => self.write_one(permit, place, &disk, data, class).await,
            None => Err(IoError::GONE),
        };
        Outcome { row, of, result }
    }

    pub(super) async fn write_one(
        &self,
        permit: Permit,
        Place { row, offset }: Place,
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
                        && self.state().devices.is_live(row) =>
                {
                    tries += 1;
                    tracing::warn!(
                        device = %self.state().devices.path(row), offset,
                        "a write failed: {e}; it is tried again"
                    );
                }
                outcome => return outcome,
            }
        }
    }
}

fn no_copy(addr: PoolAddr) -> StorageError {
    StorageError::new(
        ErrorKind::Missing,
        format!("block {addr} of the pool: every device that holds a copy is missing"),
    )
}
