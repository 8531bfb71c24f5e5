//! The device of an open cache: its queue, what stands where on it, and the way to make durable
//! what was written to it.

use base::{IoError, Result, SliceList, StorageError};
use queue::{Class, Device};
use rt::JoinHandle;

use super::file::CacheFile;
use super::flush_barrier::{Barrier, Durable, Health};
use super::layout::Layout;
use super::superblock_origin::Writers;

/// The device of an open cache.
pub(crate) struct CacheDevice {
    queue: Device,
    path: String,
    uuid: [u8; 16],
    layout: Layout,
    writers: Writers,
    barrier: Barrier,
}

impl CacheDevice {
    /// The device `file`, on which the cache `uuid` stands, with this queue.
    pub fn new(
        file: &CacheFile,
        queue: &Device,
        uuid: [u8; 16],
        layout: Layout,
        writers: Writers,
        health: &Health,
    ) -> CacheDevice {
        let (queue, path) = (queue.clone(), file.path.clone());
        let barrier = Barrier::new(&queue, health);
        CacheDevice { queue, path, uuid, layout, writers, barrier }
    }

    /// Knowledge about the origin of the superblocks on the device.
    pub fn writers(&self) -> &Writers {
        &self.writers
    }

    /// The queue of its reads and writes. What is to be durable goes through [`CacheDevice::flush`]
    /// or [`CacheDevice::write_durable`].
    pub fn queue(&self) -> &Device {
        &self.queue
    }

    /// The path of the device, as the user names it.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The uuid of the cache on it.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// The layout of the device.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Makes all writes that completed before durable; see [`Barrier::flush`].
    pub fn flush(&self, class: Class, what: &str) -> impl Future<Output = Result<Durable>> {
        self.barrier.flush(class, what)
    }

    /// Writes a block, and makes it durable; see [`Barrier::write`].
    pub fn write_durable(
        &self,
        class: Class,
        offset: u64,
        data: SliceList,
        what: &str,
    ) -> impl Future<Output = Result<Durable>> {
        self.barrier.write(class, offset, data, what)
    }
}

/// A cache cannot go on: `what` failed on its device at `path`. The kind by `e`.
pub(crate) fn ends_the_cache(path: &str, what: &str, e: IoError) -> StorageError {
    let advice = if e.is_no_space() {
        "the file system under it is full: free space there and restart forebay; flushed data is \
         safe"
    } else {
        "restart forebay"
    };
    let e = StorageError::from_io(e, format_args!("cache device {path}: {what}"));
    StorageError::new(e.kind, format!("{e}; {advice}"))
}

/// Writes what a cache cannot do without: once more if that fails.
pub(crate) async fn write_vital(
    device: &Device,
    class: Class,
    offset: u64,
    data: SliceList,
) -> std::result::Result<(), IoError> {
    match device.write(class, offset, data.clone()).await {
        Err(e) if !e.is_gone() => device.write(class, offset, data).await,
        outcome => outcome,
    }
}

/// Waits for the end of all these writes; the first error of them.
pub(crate) async fn all_written(
    writes: Vec<JoinHandle<std::result::Result<(), IoError>>>,
) -> std::result::Result<(), IoError> {
    let mut outcome = Ok(());
    for write in writes {
        outcome = outcome.and(write.await.unwrap_or(Err(IoError::CANCELED)));
    }
    outcome
}
