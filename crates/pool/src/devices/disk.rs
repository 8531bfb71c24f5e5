//! A device's queue.
//!
//! Every part of the pool may read from it. A caller that writes or flushes shows a [`Permit`]:
//! there is no other way to a device's medium from here on.
//!
//! This module knows no state of the pool, as it lies below that: it moves bytes of one device, and
//! says whether they are what they must be. Which device is asked, and what its answer means, is
//! decided above (`transfer`).

use std::rc::Rc;

use base::checksum::block_crcs;
use base::{BLOCK, BLOCK_U64, Buf, Crc, Generation, IoError, Slice, SliceList};
use format::page::{PageId, decode_bitmap, open_page};
use format::superblock::{SLOT_COPIES, SLOTS, Superblock};
use queue::{Blocks, Class, Device, DeviceStats, Limits, Targets};
use rt::{DeviceKind, FileId, Rt};

use super::standing::Permit;

/// A file or block device that the backend has opened.
#[derive(Clone, Debug)]
pub struct DeviceFile {
    /// The path by which users know the device.
    pub path: String,
    /// The number of the device's file at the seam.
    pub file: FileId,
    /// The size of the device in bytes.
    pub size_bytes: u64,
}

impl DeviceFile {
    /// A queue on it.
    pub fn disk(&self, rt: &Rt, limits: Limits) -> Disk {
        Disk { queue: self.queue(rt, limits), path: self.path.as_str().into() }
    }

    /// A queue on it, for a device that belongs to no pool yet.
    pub(crate) fn queue(&self, rt: &Rt, limits: Limits) -> Device {
        let device = Device::new(rt, self.file, limits);
        device.set_name(&format!("pool device {}", self.path));
        device
    }
}

/// A device's queue; clones are the same.
#[derive(Clone)]
pub struct Disk {
    queue: Device,
    /// The path by which users know the device.
    path: Rc<str>,
}

/// Blocks of one copy, as they were read.
pub(crate) struct CopyBlocks {
    pub buf: Buf,
    /// Why they could not be read, if they could not.
    pub error: Option<IoError>,
    /// Of each block whether it is not what it must be; empty if all are right.
    pub bad: Vec<bool>,
}

/// The two slots of a bitmap page on one device, as they were read.
pub(crate) struct BitmapSlots {
    /// The slot that has the generation that was asked for, its words, and its block.
    pub found: Option<(u8, Vec<u64>, Slice)>,
    /// The slots that could not be read: their offsets, and the errors.
    pub errors: Vec<(u64, IoError)>,
}

impl Disk {
    /// Fills `buf`, whole blocks, from `offset`, and gives it back with the outcome. If that fails,
    /// it is read again block by block.
    pub(crate) async fn read(
        &self,
        class: Class,
        offset: u64,
        buf: Buf,
    ) -> (Result<(), IoError>, Buf) {
        let (outcome, buf) = self.queue.read(class, offset, buf).await;
        self.again(class, offset, outcome, buf).await
    }

    /// As [`Disk::read`], into a buffer that is taken when the device is asked.
    pub(crate) async fn read_new(
        &self,
        class: Class,
        offset: u64,
        len: usize,
    ) -> (Result<(), IoError>, Buf) {
        let (outcome, buf) = self.queue.read_new(class, offset, len).await;
        self.again(class, offset, outcome, buf).await
    }

    async fn again(
        &self,
        class: Class,
        offset: u64,
        outcome: Result<(), IoError>,
        buf: Buf,
    ) -> (Result<(), IoError>, Buf) {
        let e = match outcome {
            Err(e) if !e.is_gone() => e,
            outcome => return (outcome, buf),
        };
        let read = self.queue.read_blocks(class, offset, buf.len() / BLOCK).await;
        match read.unreadable.first() {
            Some((_, e)) => (Err(*e), read.buf),
            None => {
                tracing::warn!(
                    device = %self.path, offset,
                    "a read failed ({e}); a second one succeeded, and the request goes on"
                );
                (Ok(()), read.buf)
            }
        }
    }

    /// True if the device gives any block of those that hold its superblocks, whatever is in it. A
    /// device that does not says nothing of its other blocks either: its path may be gone.
    pub(crate) async fn answers(&self, class: Class) -> bool {
        for slot in 0..SLOTS {
            for copy in 0..SLOT_COPIES as u64 {
                let at = Superblock::offset_of(slot) + copy * BLOCK_U64;
                if self.queue.read_new(class, at, BLOCK).await.0.is_ok() {
                    return true;
                }
            }
        }
        false
    }

    /// Reads the blocks with these checksums from `offset` on, and verifies each.
    pub(crate) async fn read_copy(&self, class: Class, offset: u64, crcs: &[Crc]) -> CopyBlocks {
        let (outcome, buf) = self.read_new(class, offset, crcs.len() * BLOCK).await;
        let bad = match outcome {
            Ok(()) if block_crcs(&buf).eq(crcs.iter().copied()) => Vec::new(),
            Ok(()) => block_crcs(&buf).zip(crcs).map(|(got, want)| got != *want).collect(),
            Err(_) => vec![true; crcs.len()],
        };
        CopyBlocks { buf, error: outcome.err(), bad }
    }

    /// Reads the slots of a bitmap page, the first of which is at `offset`, until one has this
    /// generation and can be decoded to `bits` bits.
    pub(crate) async fn read_bitmap_slots(
        &self,
        page: &PageId,
        offset: u64,
        want: Generation,
        bits: usize,
    ) -> BitmapSlots {
        let mut slots = BitmapSlots { found: None, errors: Vec::new() };
        // Each by itself: the slot that does not count may be unreadable.
        for slot in 0..2u8 {
            let at = offset + u64::from(slot) * BLOCK_U64;
            let (outcome, block) = self.read_new(Class::Commit, at, BLOCK).await;
            if let Err(e) = outcome {
                slots.errors.push((at, e));
                continue;
            }
            let Ok((version, payload)) = open_page(&page.in_slot(slot), &block) else {
                continue;
            };
            if let (true, Ok(words)) = (version == want.into(), decode_bitmap(payload, bits)) {
                slots.found = Some((slot, words, block.freeze()));
                break;
            }
        }
        slots
    }

    /// All blocks that can be read: see [`Device::read_blocks`].
    pub async fn read_blocks(&self, class: Class, offset: u64, blocks: usize) -> Blocks {
        self.queue.read_blocks(class, offset, blocks).await
    }

    pub(crate) async fn write(
        &self,
        _: Permit,
        class: Class,
        offset: u64,
        data: SliceList,
    ) -> Result<(), IoError> {
        self.queue.write(class, offset, data).await
    }

    /// Durable when it returns. If it fails, more than this write may be lost: see
    /// `commit/superblocks.rs`.
    pub(crate) async fn write_durable(
        &self,
        _: Permit,
        class: Class,
        offset: u64,
        data: SliceList,
    ) -> Result<(), IoError> {
        self.queue.write_durable(class, offset, data).await
    }

    /// Makes every write that has completed durable. If it fails, they are lost: see
    /// `commit/superblocks.rs`.
    pub(crate) async fn flush(&self, _: Permit, class: Class) -> Result<(), IoError> {
        self.queue.flush(class).await
    }

    /// See [`Device::anew`].
    pub(crate) fn anew(&self) -> Disk {
        Disk { queue: self.queue.anew(), path: self.path.clone() }
    }

    /// See [`Device::give_up`].
    pub(crate) fn give_up(&self) {
        self.queue.give_up();
    }

    /// See [`Device::is_given_up`].
    pub(crate) fn is_given_up(&self) -> bool {
        self.queue.is_given_up()
    }

    /// See [`Device::until_idle`].
    pub(crate) async fn until_idle(&self) {
        self.queue.until_idle().await;
    }

    /// Requests waiting and in flight.
    pub(crate) fn load(&self) -> usize {
        self.queue.load()
    }

    pub(crate) fn stats(&self) -> DeviceStats {
        self.queue.stats()
    }

    pub(crate) fn kind(&self) -> DeviceKind {
        self.queue.kind()
    }

    pub(crate) fn set_targets(&self, targets: Targets) {
        self.queue.set_targets(targets);
    }

    /// The device's file at the seam.
    pub(crate) fn file(&self) -> FileId {
        self.queue.file()
    }

    /// No request is taken any more.
    pub fn close(&self) {
        self.queue.close();
    }
}
