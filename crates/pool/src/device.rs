//! A device of the pool: its queue, its row of the device table, its error counters, the chunks it has left.
//!
//! Of a queue everyone may read. Who writes or flushes shows a [`Permit`]: there is no other way to a device's
//! medium from here on.

use base::{BLOCK, Bitmap, Buf, IoError, SliceList};
use format::superblock::{DeviceRecord, DeviceState};
use queue::{Blocks, Class, Device, DeviceStats};

use crate::standing::Permit;

/// Errors seen on a device since the pool was opened.
#[derive(Clone, Copy, Default, Debug, serde::Serialize)]
pub struct DeviceErrors {
    /// Reads that failed.
    pub read: u64,
    /// Writes and flushes that failed.
    pub write: u64,
    /// Blocks whose content was not what was written.
    pub checksum: u64,
    /// Blocks that were rewritten from a good copy.
    pub healed: u64,
}

/// A device's queue; clones are the same.
#[derive(Clone)]
pub(crate) struct Disk(Device);

impl Disk {
    pub fn over(queue: Device) -> Disk {
        Disk(queue)
    }

    /// Fills `buf`, whole blocks, from `offset`; gives it back with the outcome. What fails is asked for again, block by block.
    pub async fn read(&self, class: Class, offset: u64, buf: Buf) -> (Result<(), IoError>, Buf) {
        let first = self.0.read(class, offset, buf).await;
        self.again(class, offset, first).await
    }

    /// As [`Disk::read`], into a buffer that is taken when the device is asked.
    pub async fn read_new(&self, class: Class, offset: u64, len: usize) -> (Result<(), IoError>, Buf) {
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
                tracing::warn!(offset, "a read failed ({e}), and is well when it is tried again");
                (Ok(()), read.buf)
            }
        }
    }

    /// All blocks that can be had: see [`Device::read_blocks`].
    pub async fn read_blocks(&self, class: Class, offset: u64, blocks: usize) -> Blocks {
        self.0.read_blocks(class, offset, blocks).await
    }

    pub async fn write(&self, _: Permit, class: Class, offset: u64, data: SliceList) -> Result<(), IoError> {
        self.0.write(class, offset, data).await
    }

    /// Durable when it returns. If it fails, more than this write may be lost: see [`crate::durable`].
    pub async fn write_durable(&self, _: Permit, class: Class, offset: u64, data: SliceList) -> Result<(), IoError> {
        self.0.write_durable(class, offset, data).await
    }

    /// Makes every write that has completed durable. If it fails, they are lost: see [`crate::durable`].
    pub async fn flush(&self, _: Permit, class: Class) -> Result<(), IoError> {
        self.0.flush(class).await
    }

    /// Requests waiting and in flight.
    pub fn load(&self) -> usize {
        self.0.load()
    }

    pub fn stats(&self) -> DeviceStats {
        self.0.stats()
    }

    pub fn close(&self) {
        self.0.close();
    }
}

pub(crate) struct PoolDevice {
    pub record: DeviceRecord,
    /// What the user calls it; empty if it is missing.
    pub path: String,
    /// Absent if the device is missing.
    pub queue: Option<Disk>,
    pub errors: DeviceErrors,
    /// Why it is not in use, in words.
    pub trouble: Option<&'static str>,
    /// Chunks in use.
    pub chunks: Bitmap,
    pub free_chunks: u64,
}

impl PoolDevice {
    pub fn new(record: DeviceRecord, path: String, queue: Option<Disk>) -> PoolDevice {
        let free_chunks = record.chunks;
        let chunks = Bitmap::new(record.chunks as usize);
        PoolDevice { record, path, queue, errors: DeviceErrors::default(), trouble: None, chunks, free_chunks }
    }

    /// The queue, if the device is there and up to date.
    pub fn live(&self) -> Option<&Disk> {
        self.queue.as_ref().filter(|_| self.record.state == DeviceState::Online)
    }

    pub fn take_chunk(&mut self, chunk: u32) -> bool {
        let fits = u64::from(chunk) < self.record.chunks;
        let took = fits && self.chunks.assign(chunk as usize, 1, true) == 1;
        self.free_chunks -= u64::from(took);
        took
    }

    pub fn give_chunk(&mut self, chunk: u32) {
        self.free_chunks += self.chunks.assign(chunk as usize, 1, false) as u64;
    }

    /// What users see.
    pub fn state(&self) -> &'static str {
        match (&self.queue, self.record.state) {
            (Some(_), DeviceState::Online) => "online",
            (Some(_), DeviceState::Failed) => self.trouble.unwrap_or("failed"),
            (None, _) => self.trouble.unwrap_or("missing"),
        }
    }
}
