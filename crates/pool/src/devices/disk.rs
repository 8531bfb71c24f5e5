//! A device's queue.
//!
//! Every part of the pool may read from it. A caller that writes or flushes shows a [`Permit`]:
//! there is no other way to a device's medium from here on.

use base::{BLOCK, Buf, IoError, SliceList};
use queue::{Blocks, Class, Device, DeviceStats, Limits, Targets};
use rt::{DeviceKind, FileId, Rt};

use super::standing::Permit;

/// A file or block device that the backend has opened.
#[derive(Clone, Debug)]
pub struct DeviceFile {
    /// What the user calls it.
    pub path: String,
    /// Its number at the seam.
    pub file: FileId,
    /// Its size in bytes.
    pub size_bytes: u64,
}

impl DeviceFile {
    /// A queue on it.
    pub fn disk(&self, rt: &Rt, limits: Limits) -> Disk {
        Disk(self.queue(rt, limits))
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
pub struct Disk(Device);

impl Disk {
    /// Fills `buf`, whole blocks, from `offset`, and gives it back with the outcome. If that fails,
    /// it is read again block by block.
    pub(crate) async fn read(
        &self,
        class: Class,
        offset: u64,
        buf: Buf,
    ) -> (Result<(), IoError>, Buf) {
        let first = self.0.read(class, offset, buf).await;
        self.again(class, offset, first).await
    }

    /// As [`Disk::read`], into a buffer that is taken when the device is asked.
    pub(crate) async fn read_new(
        &self,
        class: Class,
        offset: u64,
        len: usize,
    ) -> (Result<(), IoError>, Buf) {
        let first = self.0.read_new(class, offset, len).await;
        self.again(class, offset, first).await
    }

    async fn again(
        &self,
        class: Class,
        offset: u64,
        (outcome, buf): (Result<(), IoError>, Buf),
    ) -> (Result<(), IoError>, Buf) {
        let e = match outcome {
            Err(e) if !e.is_gone() => e,
            outcome => return (outcome, buf),
        };
        let read = self.0.read_blocks(class, offset, buf.len() / BLOCK).await;
        match read.unreadable.first() {
            Some((_, e)) => (Err(*e), read.buf),
            None => {
                tracing::warn!(offset, "read failed ({e}); the retry succeeded");
                (Ok(()), read.buf)
            }
        }
    }

    /// All blocks that can be read: see [`Device::read_blocks`].
    pub async fn read_blocks(&self, class: Class, offset: u64, blocks: usize) -> Blocks {
        self.0.read_blocks(class, offset, blocks).await
    }

    pub(crate) async fn write(
        &self,
        _: Permit,
        class: Class,
        offset: u64,
        data: SliceList,
    ) -> Result<(), IoError> {
        self.0.write(class, offset, data).await
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
        self.0.write_durable(class, offset, data).await
    }

    /// Makes every write that has completed durable. If it fails, they are lost: see
    /// `commit/superblocks.rs`.
    pub(crate) async fn flush(&self, _: Permit, class: Class) -> Result<(), IoError> {
        self.0.flush(class).await
    }

    /// Requests waiting and in flight.
    pub(crate) fn load(&self) -> usize {
        self.0.load()
    }

    pub(crate) fn stats(&self) -> DeviceStats {
        self.0.stats()
    }

    pub(crate) fn kind(&self) -> DeviceKind {
        self.0.kind()
    }

    pub(crate) fn set_targets(&self, targets: Targets) {
        self.0.set_targets(targets);
    }

    /// Its file at the seam.
    pub(crate) fn file(&self) -> FileId {
        self.0.file()
    }

    /// No request is taken any more.
    pub fn close(&self) {
        self.0.close();
    }
}
