//! A device of the pool: its queue, its row of the device table, its error counters, the chunks it has left.

use base::Bitmap;
use format::superblock::{DeviceRecord, DeviceState};
use queue::Device;

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

pub(crate) struct PoolDevice {
    pub record: DeviceRecord,
    /// What the user calls it; empty if it is missing.
    pub path: String,
    /// Absent if the device is missing.
    pub queue: Option<Device>,
    pub errors: DeviceErrors,
    /// Why it is not in use, in words.
    pub trouble: Option<&'static str>,
    /// Chunks in use.
    pub chunks: Bitmap,
    pub free_chunks: u64,
}

impl PoolDevice {
    pub fn new(record: DeviceRecord, path: String, queue: Option<Device>) -> PoolDevice {
        let free_chunks = record.chunks;
        let chunks = Bitmap::new(record.chunks as usize);
        PoolDevice { record, path, queue, errors: DeviceErrors::default(), trouble: None, chunks, free_chunks }
    }

    /// The queue, if the device is there and up to date.
    pub fn live(&self) -> Option<&Device> {
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
