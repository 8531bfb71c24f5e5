//! Reading the copies of pool blocks, verified. What is bad in what was read is healed
//! ([`heal`](super::heal)).
//!
//! A read is a loop of plan, transfer and settle. A step takes a device of the state; what talks to
//! it ([`Disk`](crate::devices::Disk)) knows no state; the next step counts its errors, and chooses
//! the next copy.

use std::rc::Rc;

use base::{BLOCK, Crc, ErrorKind, IoError, PoolAddr, Result, Slice, StorageError};
use queue::Class;

use super::unread::ReadFailure;
use crate::core::Core;
use crate::devices::CopyPlace;
use crate::space::Pin;
use crate::transfer::heal::Healer;

/// Reads blocks from their copies, verified.
pub(crate) struct CopyReader {
    core: Core,
    healer: Rc<Healer>,
}

impl CopyReader {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core, healer: &Rc<Healer>) -> Rc<CopyReader> {
        Rc::new(CopyReader { core: core.clone(), healer: healer.clone() })
    }

    /// As [`CopyReader::read_copies`], where it does not matter which block could not be read.
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
    ) -> std::result::Result<Slice, ReadFailure> {
        let copies = self.core.state_mut().copies_to_read(addr, crcs.len() * BLOCK, pin);
        let Some(&CopyPlace { row: first, offset }) = copies.first() else {
            return Err(ReadFailure::Away(addr));
        };
        let Some(disk) = self.core.disk(first) else { return Err(ReadFailure::Away(addr)) };
        let (began, others) = (self.core.now(), disk.load());
        let read = disk.read_copy(class, offset, crcs).await;
        if class == Class::Foreground {
            let now = self.core.now();
            self.core.state_mut().devices.note_read(first, now.since(began), others, now);
        }
        if read.bad.is_empty() {
            return Ok(read.buf.freeze());
        }
        if let Some(e) = read.error {
            self.core.state_mut().devices.note_read_error(first, offset, e, self.core.now());
        }
        Box::pin(self.healer.heal_read(addr, crcs, class, pin, read, &copies)).await
    }

    /// See [`crate::Pool::all_answer`].
    pub(crate) async fn all_answer(&self, class: Class) -> Result<()> {
        let rows = self.core.state().devices.live_rows();
        self.answer(rows.into_iter(), class).await
    }

    /// As [`crate::Pool::all_answer`], of the devices of these rows.
    pub(crate) async fn answer(
        &self,
        rows: impl Iterator<Item = usize>,
        class: Class,
    ) -> Result<()> {
        for row in rows {
            let Some(disk) = self.core.disk(row) else { continue };
            if !disk.answers(class).await {
                return Err(self.answers_nothing(row));
            }
        }
        Ok(())
    }

    /// That a device in use answers nothing.
    pub(crate) fn answers_nothing(&self, row: usize) -> StorageError {
        let path = self.core.state().devices.path(row).to_owned();
        let text = format!("{path} answers nothing: see to its path, cable or power");
        StorageError::new(ErrorKind::Io, text)
    }

    /// True if no copy of a block is good. A device that answered nothing for a moment has not
    /// said that a copy is bad. So the copies are read once more, and count only if their devices
    /// answer before and afterwards. Once the pool's standing has ended nothing is: what memory
    /// says of a block may have been lost with the flush that failed, and the next start has the
    /// block as it was before.
    pub(crate) async fn is_lost(&self, addr: PoolAddr, crc: Crc, class: Class, pin: &Pin) -> bool {
        self.core.permit().is_ok()
            && self.is_surely_bad(addr, crc, class, pin).await
            && !self.core.state().may_be_away(addr)
    }

    /// True if no copy of a block is good that can be asked: read between two answers of the
    /// devices that have one.
    pub(crate) async fn is_surely_bad(
        &self,
        addr: PoolAddr,
        crc: Crc,
        class: Class,
        pin: &Pin,
    ) -> bool {
        // Only devices that have a copy are asked: another one may stand still.
        let rows: Vec<usize> = self.core.state().rows_of(addr).into_iter().collect();
        if self.answer(rows.iter().copied(), class).await.is_err() {
            return false;
        }
        let copies = self.core.state_mut().copies_to_read(addr, BLOCK, pin);
        for CopyPlace { row, offset } in copies {
            let Some(disk) = self.core.disk(row) else { return false };
            let read = disk.read_copy(class, offset, &[crc]).await;
            if read.bad.is_empty() || read.error.is_some_and(IoError::is_gone) {
                return false;
            }
        }
        self.answer(rows.into_iter(), class).await.is_ok()
    }
}
