//! Healing: a bad copy of a block is written anew from a good one.
//!
//! A read that meets a bad block takes it from the first copy that its checksum proves good. It
//! returns that at once; the copies that were bad are written in the background, while the pin of
//! the read keeps their place. A scrub finds out by itself which copies are bad, has each written
//! here, and reads it again (`scrub/verify.rs`).
//!
//! A device that cannot write the good block is dropped, if the pool can do without it.

use std::rc::Rc;

use base::{BLOCK, Buf, Crc, ErrorKind, PoolAddr, Result, Slice, SliceList, StorageError};
use queue::Class;
use rt::Reason;

use super::unread::ReadFailure;
use crate::core::Core;
use crate::devices::{CopyBlocks, CopyPlace};
use crate::space::Pin;
use crate::transfer::write_copies::CopyWriter;
use crate::transfer::writer_watch::WriterWatch;

/// Writes bad copies of blocks anew from good ones.
pub(crate) struct Healer {
    core: Core,
    watch: Rc<WriterWatch>,
    copy_writer: Rc<CopyWriter>,
}

impl Healer {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        watch: &Rc<WriterWatch>,
        copy_writer: &Rc<CopyWriter>,
    ) -> Rc<Healer> {
        Rc::new(Healer {
            core: core.clone(),
            watch: watch.clone(),
            copy_writer: copy_writer.clone(),
        })
    }

    /// The slow path of a read: finds a good version of every block that is bad in what was read
    /// and rewrites the copies that are not.
    pub(crate) async fn heal_read(
        self: &Rc<Self>,
        addr: PoolAddr,
        crcs: &[Crc],
        class: Class,
        pin: &Pin,
        CopyBlocks { mut buf, bad, .. }: CopyBlocks,
        copies: &[CopyPlace],
    ) -> std::result::Result<Slice, ReadFailure> {
        let mut heals: Vec<(CopyPlace, usize)> = Vec::new();
        for (i, _) in bad.iter().enumerate().filter(|(_, b)| **b) {
            let of_block = |&CopyPlace { row, offset }: &CopyPlace| CopyPlace {
                row,
                offset: offset + (i * BLOCK) as u64,
            };
            let (good, broken) = self.find_good(copies.iter().map(of_block), crcs[i], class).await;
            let good = good.ok_or_else(|| ReadFailure::Bad(addr.plus(i as u64), broken.len()))?;
            buf[i * BLOCK..(i + 1) * BLOCK].copy_from_slice(&good);
            heals.extend(broken.into_iter().map(|copy| (copy, i)));
        }
        let whole = buf.freeze();
        if !heals.is_empty() {
            let (this, pin, data) = (self.clone(), pin.clone(), whole.clone());
            drop(self.core.rt().spawn(async move {
                for (copy, i) in heals {
                    let good = data.slice(i * BLOCK, BLOCK);
                    // `heal` counts an error itself.
                    let _ = this.heal(copy, good, Class::Foreground).await;
                }
                drop(pin);
            }));
        }
        Ok(whole)
    }

    /// The first good one of the copies of a block, and those before it, which are bad.
    async fn find_good(
        &self,
        copies: impl Iterator<Item = CopyPlace>,
        crc: Crc,
        class: Class,
    ) -> (Option<Buf>, Vec<CopyPlace>) {
        let mut broken = Vec::new();
        for copy in copies {
            let CopyPlace { row, offset } = copy;
            let Some(disk) = self.core.disk(row) else { continue };
            let read = disk.read_copy(class, offset, std::slice::from_ref(&crc));
            let read = self.core.rt().waits(Reason::Heal, read).await;
            if read.bad.is_empty() {
                return (Some(read.buf), broken);
            }
            let mut st = self.core.state_mut();
            match read.error {
                None => st.note_bad_block(row, offset, self.core.now()),
                Some(e) => st.devices.note_read_error(row, offset, e, self.core.now()),
            }
            broken.push(copy);
        }
        (None, broken)
    }

    /// Of each of these blocks, whether any copy is good, and whether all are that can be asked.
    pub(crate) async fn good_copies(
        &self,
        addr: PoolAddr,
        crcs: &[Crc],
        class: Class,
    ) -> (Vec<bool>, Vec<bool>) {
        let pin = self.core.state().space.limbo().pin();
        let copies = self.core.state_mut().copies_to_read(addr, crcs.len() * BLOCK, &pin);
        let (mut any, mut all) = (vec![false; crcs.len()], vec![true; crcs.len()]);
        for CopyPlace { row, offset } in copies {
            let Some(disk) = self.core.disk(row) else { continue };
            let read = disk.read_copy(class, offset, crcs).await;
            for (i, crc) in crcs.chunks(1).enumerate() {
                // An error says nothing of the other blocks.
                let is_good = match read.error {
                    Some(_) if crcs.len() > 1 => {
                        let at = offset + (i * BLOCK) as u64;
                        disk.read_copy(class, at, crc).await.bad.is_empty()
                    }
                    Some(_) => false,
                    None => read.bad.get(i).is_none_or(|bad| !bad),
                };
                any[i] |= is_good;
                all[i] &= is_good;
            }
        }
        (any, all)
    }

    /// Writes the bad copies of a block from a good one, if there is one.
    pub(crate) async fn heal_copies(&self, addr: PoolAddr, crc: Crc, class: Class) {
        let pin = self.core.state().space.limbo().pin();
        let copies = self.core.state_mut().copies_to_read(addr, BLOCK, &pin);
        let (mut good, mut bad) = (None, Vec::new());
        for copy in copies {
            let Some(disk) = self.core.disk(copy.row) else { continue };
            let read = disk.read_copy(class, copy.offset, &[crc]).await;
            match read.bad.is_empty() {
                true => good = good.or(Some(read.buf.freeze())),
                false => bad.push(copy),
            }
        }
        let Some(good) = good else { return };
        for copy in bad {
            // `heal` counts an error itself.
            let _ = self.heal(copy, good.clone(), class).await;
        }
    }

    /// Writes a block of a copy again that is bad. A device that cannot is dropped, if the pool can
    /// do without it.
    pub(crate) async fn heal(&self, copy: CopyPlace, good: Slice, class: Class) -> Result<()> {
        let CopyPlace { row, offset } = copy;
        let permit = self.watch.permit_to_write().await?;
        let gone = || StorageError::new(ErrorKind::Missing, "the device is out of use");
        let device = self.core.disk(row).ok_or_else(gone)?;
        let data = SliceList::from_iter([good]);
        let outcome = self.copy_writer.write_one(permit, copy, &device, &data, class).await;
        let mut st = self.core.state_mut();
        match outcome {
            Ok(()) => st.devices.note_healed(row),
            Err(e) => {
                st.devices.note_heal_error(row, offset, e);
                // Space may come back.
                if !e.is_no_space() {
                    st.fail_devices(&[row]);
                    drop(st);
                    self.core.note_dropped();
                }
            }
        }
        outcome.map_err(|e| StorageError::from_io(e, "write of a bad block"))
    }
}
