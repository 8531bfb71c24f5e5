//! A device of the pool: its queue, its row of the device table, its error counters, and its
//! chunks.

use base::Bitmap;
use format::superblock::{DeviceRecord, DeviceState};
use rt::DeviceKind;

use super::disk::Disk;

/// Bytes between two reads that a head passes about as fast as it moves.
const NEAR: u64 = 1 << 20;

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

/// One row of the device table.
pub struct PoolDevice {
    record: DeviceRecord,
    /// What the user calls it; empty if it is missing.
    path: String,
    /// Absent if the device is missing.
    disk: Option<Disk>,
    errors: DeviceErrors,
    /// Where the last read ended that was given to it.
    read_upto: u64,
    /// Why it is not in use, in words.
    trouble: Option<&'static str>,
    /// It is being added: it gets the pages that commits write, and is no device of the pool yet.
    joining: bool,
    /// Chunks in use.
    chunks: Bitmap,
    free_chunks: u64,
}

impl PoolDevice {
    pub(crate) fn new(record: DeviceRecord, path: String, disk: Option<Disk>) -> PoolDevice {
        let free_chunks = record.chunks;
        let chunks = Bitmap::new(record.chunks as usize);
        PoolDevice {
            record,
            path,
            disk,
            errors: DeviceErrors::default(),
            read_upto: 0,
            trouble: None,
            joining: false,
            chunks,
            free_chunks,
        }
    }

    /// A device that is being added.
    pub(crate) fn new_joining(record: DeviceRecord, path: String, disk: Disk) -> PoolDevice {
        PoolDevice { joining: true, ..PoolDevice::new(record, path, Some(disk)) }
    }

    /// It has all pages, and is a device of the pool from the next commit on.
    pub(crate) fn joined(&mut self) {
        self.joining = false;
    }

    /// It is being added.
    pub(crate) fn is_joining(&self) -> bool {
        self.joining
    }

    /// Its row has no device.
    pub(crate) fn is_removed(&self) -> bool {
        self.record.state == DeviceState::Removed
    }

    /// Its chunks are to be moved to others.
    pub(crate) fn is_leaving(&self) -> bool {
        self.record.leaving
    }

    /// From now on its chunks are to be moved: to `successor`, if that is given.
    pub(crate) fn leave(&mut self, successor: Option<u8>) {
        (self.record.leaving, self.record.successor) = (true, successor);
    }

    /// It stays, after all.
    pub(crate) fn stay(&mut self) {
        (self.record.leaving, self.record.successor) = (false, None);
    }

    /// New chunks may be taken of it, if it is there.
    pub(crate) fn takes_chunks(&self) -> bool {
        !self.is_leaving() && !self.is_removed() && !self.joining
    }

    /// Its row of the device table.
    pub fn record(&self) -> &DeviceRecord {
        &self.record
    }

    /// What the user calls it; empty if it is missing.
    pub fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn errors(&self) -> DeviceErrors {
        self.errors
    }

    /// To count an error.
    pub(crate) fn errors_mut(&mut self) -> &mut DeviceErrors {
        &mut self.errors
    }

    /// The queue, if the device is there.
    pub fn disk(&self) -> Option<&Disk> {
        self.disk.as_ref()
    }

    /// The queue, if the device is there and up to date.
    pub fn live(&self) -> Option<&Disk> {
        let live = self.record.state == DeviceState::Online && !self.joining;
        self.disk.as_ref().filter(|_| live)
    }

    /// True if its head has to move, and will be near.
    pub(crate) fn is_near(&self, offset: u64) -> bool {
        let rotates = self.live().is_some_and(|disk| disk.kind() == DeviceKind::Rotating);
        rotates && offset.abs_diff(self.read_upto) <= NEAR
    }

    /// A read that ends there is given to it.
    pub(crate) fn read_upto(&mut self, end: u64) {
        self.read_upto = end;
    }

    /// It is not used, because of this.
    pub(crate) fn say(&mut self, trouble: &'static str) {
        self.trouble = Some(trouble);
    }

    /// From the superblock of `sequence` on it is a failed device.
    pub(crate) fn fail(&mut self, sequence: u64) {
        self.record.state = DeviceState::Failed;
        self.record.failed_at = sequence;
    }

    /// Takes a chunk; false if it does not exist or is taken.
    pub(crate) fn take_chunk(&mut self, chunk: u32) -> bool {
        let fits = u64::from(chunk) < self.record.chunks;
        let took = fits && self.chunks.assign(chunk as usize, 1, true) == 1;
        self.free_chunks -= u64::from(took);
        took
    }

    /// Takes any free chunk.
    pub(crate) fn take_any_chunk(&mut self) -> Option<u32> {
        let chunk = self.chunks.find(0, false)? as u32;
        self.take_chunk(chunk).then_some(chunk)
    }

    pub(crate) fn give_chunk(&mut self, chunk: u32) {
        self.free_chunks += self.chunks.assign(chunk as usize, 1, false) as u64;
    }

    pub(crate) fn free_chunks(&self) -> u64 {
        self.free_chunks
    }

    /// What users see.
    pub fn state(&self) -> &'static str {
        match (&self.disk, self.record.state) {
            (_, DeviceState::Removed) => "removed",
            (Some(_), DeviceState::Online) if self.joining => "joining",
            (Some(_), DeviceState::Online) if self.record.leaving => "leaving",
            (Some(_), DeviceState::Online) => "online",
            (Some(_), DeviceState::Failed) => self.trouble.unwrap_or("failed"),
            (None, _) => self.trouble.unwrap_or("missing"),
        }
    }
}
