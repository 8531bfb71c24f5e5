//! Bytes from buckets and to buckets. Nothing here touches the state of the cache.

use std::rc::Rc;

use base::checksum::block_crcs;
use base::{BLOCK, CacheAddr, IoError, Result, Slice, SliceList, StorageError};
use queue::Class;
use smallvec::SmallVec;

use crate::core::Core;
use crate::core::pins::TakenBlocks;
use crate::device::cache_device::all_written;
use crate::health::writer_watch::WriterWatch;
use crate::store::taken::TakenRun;

/// Numbers of the blocks of a read that are bad, in order.
pub(crate) type BadBlockNumbers = SmallVec<[u64; 1]>;

/// Reads and writes of the blocks of buckets.
pub(crate) struct BucketIo {
    core: Core,
    watch: Rc<WriterWatch>,
}

impl BucketIo {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core, watch: &Rc<WriterWatch>) -> Rc<BucketIo> {
        Rc::new(BucketIo { core: core.clone(), watch: watch.clone() })
    }

    /// Reads blocks of a pinned bucket; the numbers of those that are bad, if any is not what was
    /// written. An error that passes when the block is asked for again is none; one that stays is
    /// the bucket's, which is not used again then (see
    /// [`crate::store::buckets::Buckets::condemn`]).
    pub(crate) async fn read_bucket(
        &self,
        addr: CacheAddr,
        crcs: &[base::Crc],
        class: Class,
    ) -> std::result::Result<Slice, BadBlockNumbers> {
        let mut read = self
            .core
            .device()
            .queue()
            .read_blocks(class, self.core.offset_of(addr), crcs.len())
            .await;
        let is_wrong = |(_, (is, should)): &(usize, (base::Crc, &base::Crc))| is != *should;
        let wrong: Vec<usize> = block_crcs(&read.buf)
            .zip(crcs)
            .enumerate()
            .filter(is_wrong)
            .map(|(block, _)| block)
            .collect();
        let mut bad = BadBlockNumbers::new();
        for block in wrong {
            // A block that could not be read was tried again already; one that was read and is
            // wrong may be right the next time.
            let at = self.core.offset_of(CacheAddr(addr.0 + block as u64));
            let again = match read.error(block) {
                Some(e) => Err(e),
                None => self.core.device().queue().read_block_again(class, at).await,
            };
            match again {
                Ok(good) if base::crc32c(&good) == crcs[block] => {
                    read.buf[block * BLOCK..(block + 1) * BLOCK].copy_from_slice(&good);
                }
                _ => bad.push(block as u64),
            }
        }
        if bad.is_empty() { Ok(read.buf.freeze()) } else { Err(bad) }
    }

    /// Writes `data` into the blocks that were taken for it.
    pub(crate) async fn write_taken(
        &self,
        taken: &mut TakenBlocks,
        data: &Slice,
        class: Class,
    ) -> Result<()> {
        self.watch.check_alone().await?;
        let outcome = taken.write(async |all| self.write_all(all, data, class).await).await;
        let outcome = outcome.map_err(|e| {
            StorageError::from_io(e, format_args!("cache device {}: write", self.core.path()))
        });
        // Only writes of clients are noted: other data may be left out of the cache, and no client
        // is told of that.
        if class == Class::Foreground {
            self.core.health().note_written(&outcome, self.core.rt().now());
        }
        outcome
    }

    async fn write_all(
        &self,
        taken: &[TakenRun],
        data: &Slice,
        class: Class,
    ) -> std::result::Result<(), IoError> {
        let queue = self.core.device().queue();
        if let [t] = taken {
            let data = SliceList::from_iter([data.clone()]);
            return queue.write(class, self.core.offset_of(t.addr), data).await;
        }
        let mut writes = Vec::with_capacity(taken.len());
        let mut at = 0;
        for t in taken {
            let bytes = t.len as usize * BLOCK;
            let (device, part, offset) =
                (queue.clone(), data.slice(at, bytes), self.core.offset_of(t.addr));
            at += bytes;
            writes.push(self.core.rt().spawn(async move {
                device.write(class, offset, SliceList::from_iter([part])).await
            }));
        }
        all_written(writes).await
    }
}
