//! One volume, open: requests in bytes.
//!
//! A write waits in this order: for the lock of its blocks, for a drain of the cache
//! (`cache/src/writeback/drain_gate.rs`), and for a freeze of its volume (`quiesce.rs`).
//!
//! Writes hold a lock on the blocks they touch: while a part of a block is merged with what else is
//! in it, no other request may write that block. Reads take no lock, the pool shows them each block
//! as it was before or after a write.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use base::{
    BLOCK, BLOCK_U64, ErrorKind, Instant, Lba, Result, Slice, SliceList, StorageError, VolumeId,
};
use cache::{Patch, work_of_discard, work_of_write};
use ledger::{Operation, RequestCounter};
use pool::{Pool, VolumeInfo};
use rt::Reason;

use crate::admission::{Admission, Size, Ticket};
use crate::counts::{RequestStats, VolumeCounter, VolumeStats};
use crate::edge_locks::{EdgeGroup, Locks};
use crate::route::Route;
use crate::routes::Blocks;

/// The treatment of data behind a new end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shrink {
    /// The data is cut off.
    Allowed,
    /// The resize is refused, and the volume stays as it is.
    Refused,
}

/// Zeros that are written at once.
const ZERO_BYTES: u64 = 1 << 20;

/// The number of times that `grow` tries to lock the last block while no pass runs. After that
/// `grow` locks the block first and waits for passes while it holds the lock.
const TRIES: usize = 8;

/// A part of a volume that is allocated throughout, or not at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RangeStatus {
    /// Bytes.
    pub len: u64,
    /// Blocks are allocated; else it reads as zeros and takes no space.
    pub allocated: bool,
}

/// A handle on a volume; clones are the same.
///
/// The futures of a volume must run to their end once they were polled: front ends run each request
/// as a task of its own.
#[derive(Clone)]
pub struct Volume {
    pool: Pool,
    blocks: Blocks,
    id: VolumeId,
    locks: Locks,
    admission: Admission,
    counter: Rc<dyn RequestCounter>,
}

impl Volume {
    pub(crate) fn new(
        blocks: &Blocks,
        id: VolumeId,
        locks: Locks,
        admission: Admission,
        stats: Rc<RefCell<RequestStats>>,
        own_stats: Rc<RefCell<VolumeStats>>,
    ) -> Volume {
        let (pool, blocks) = (blocks.pool().clone(), blocks.clone());
        let counter = VolumeCounter::of(stats, own_stats);
        Volume { pool, blocks, id, locks, admission, counter }
    }

    /// Waits until limits and shares admit a client's request. `bytes` is the length of a READ or a
    /// WRITE, and 0 for other requests. A FLUSH needs no ticket, and WRITE_ZEROES has
    /// [`Volume::admit_fill`]. The request has ended when its ticket is dropped.
    pub async fn admit(&self, bytes: u64) -> Ticket {
        self.admission.admit(self.id, Size::whole(bytes)).await
    }

    /// As [`Volume::admit`], for a WRITE_ZEROES. `bytes` is its length if it allocates blocks, else
    /// 0. Each turn writes at most `ZERO_BYTES` bytes, and other requests have turns in between.
    pub async fn admit_fill(&self, bytes: u64) -> Ticket {
        self.admission.admit(self.id, Size { bytes, turn: bytes.min(ZERO_BYTES) }).await
    }

    /// The time that its requests go by.
    pub fn now(&self) -> Instant {
        self.pool.rt().now()
    }

    /// The number of the volume, which no other volume ever has.
    pub fn number(&self) -> u32 {
        self.id.0
    }

    /// The route of one request.
    async fn route(&self) -> Result<Route<'_>> {
        self.blocks.route(self.id).await
    }

    /// The route of a client's request that changes blocks, which costs so much work when they are
    /// written back.
    async fn route_to_change(&self, work: u64) -> Result<Route<'_>> {
        self.blocks.route_to_change(self.id, work).await
    }

    /// Waits for a lock.
    async fn granted<T>(&self, lock: impl Future<Output = T>) -> T {
        self.pool.rt().waits(Reason::RangeLock, lock).await
    }

    /// The name and size of the volume; `None` if it was deleted.
    pub fn info(&self) -> Option<VolumeInfo> {
        self.pool.volume(self.id)
    }

    /// Whether clients may not change it.
    pub fn is_read_only(&self) -> bool {
        self.pool.is_read_only(self.id)
    }

    /// The size of the volume in bytes; 0 if it was deleted.
    pub fn size(&self) -> u64 {
        self.pool.volume_size(self.id).unwrap_or(0)
    }

    /// Brings what reads of `[offset, offset + len)` have to look up into memory.
    pub async fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        self.check(offset, len)?;
        let blocks = blocks_of(offset, len);
        self.route().await?.prefetch(Lba(blocks.start), Lba(blocks.end)).await
    }

    fn check(&self, offset: u64, len: u64) -> Result<()> {
        let size = self
            .pool
            .volume_size(self.id)
            .ok_or_else(|| StorageError::new(ErrorKind::NotFound, "the volume was deleted"))?;
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => {
                let text = format!(
                    "{len} bytes at {offset} are outside of the volume, which has {size} bytes"
                );
                Err(StorageError::new(ErrorKind::Invalid, text))
            }
        }
    }

    /// A request of this volume begins: says so in its story, and returns the time.
    fn begin(&self) -> base::Instant {
        if let Some(story) = self.pool.rt().story() {
            story.set_volume(self.id);
        }
        self.pool.now()
    }

    /// Counts what a request did: when its story ends, as of a large read each piece comes here. A
    /// request without a story took from `since` until now.
    fn count(&self, operation: Operation, bytes: u64, since: base::Instant) {
        match self.pool.rt().story() {
            Some(story) => story.count_as(&self.counter, operation, bytes),
            None => self.counter.count(operation, bytes, self.pool.now().since(since)),
        }
    }

    /// Reads `len` bytes from `offset` on; what was never written is zeros.
    pub async fn read(&self, offset: u64, len: u64) -> Result<SliceList> {
        self.check(offset, len)?;
        if len == 0 {
            return Ok(SliceList::new());
        }
        let since = self.begin();
        let blocks = blocks_of(offset, len);
        let mut data =
            self.route().await?.read(Lba(blocks.start), blocks.end - blocks.start).await?;
        trim_to(&mut data, offset, len);
        self.count(Operation::Read, len, since);
        Ok(data)
    }

    /// Writes `data` from `offset` on.
    pub async fn write(&self, offset: u64, data: Slice) -> Result<()> {
        let len = data.len() as u64;
        self.check(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let since = self.begin();
        if offset % BLOCK_U64 == 0 && len % BLOCK_U64 == 0 {
            let blocks = blocks_of(offset, len);
            let _lock = self.granted(self.locks.lock(blocks.clone())).await;
            // Again: it may have been shrunk while this request waited.
            self.check(offset, len)?;
            let work = work_of_write(blocks.end - blocks.start);
            self.route_to_change(work).await?.write(Lba(blocks.start), &data).await?;
        } else {
            Box::pin(self.write_pieces(offset, &data)).await?;
        }
        self.count(Operation::Write, len, since);
        Ok(())
    }

    /// Writes what does not begin and end with a block: the blocks at its ends that are written in
    /// part, and what is between them, each under a lock of its own. So a stream of such requests
    /// is no chain, in which each waits for the one before.
    async fn write_pieces(&self, offset: u64, data: &Slice) -> Result<()> {
        if blocks_of(offset, data.len() as u64).count() == 1 {
            return self.write_edge(offset, data.clone()).await;
        }
        let mut tasks = Vec::with_capacity(3);
        let mut at = 0;
        while at < data.len() {
            let from = offset + at as u64;
            let left = data.len() - at;
            let to_end_of_block = BLOCK - (from % BLOCK_U64) as usize;
            let is_part = from % BLOCK_U64 != 0 || left < BLOCK;
            let n = if is_part { left.min(to_end_of_block) } else { left / BLOCK * BLOCK };
            let (volume, piece) = (self.clone(), data.slice(at, n));
            let misplaced = at % BLOCK != 0;
            // The places of the pieces in line are taken now: all pieces of this request come
            // before those of the next.
            tasks.push(if is_part {
                self.pool.rt().spawn(volume.write_edge(from, piece))
            } else {
                let blocks = blocks_of(from, n as u64);
                let lock = self.locks.queue(blocks.clone());
                self.pool.rt().spawn(async move {
                    let _lock = volume.granted(lock).await;
                    volume.check(from, piece.len() as u64)?;
                    let mut piece = piece;
                    if misplaced {
                        // The piece does not begin at a block boundary of the buffer, and devices
                        // need memory that is aligned to blocks. The copy is made after the lock is
                        // granted, so a write that waits has no copy.
                        let mut whole = volume.pool.bufs().take(piece.len());
                        whole.copy_from_slice(&piece);
                        piece = whole.freeze();
                    }
                    let work = work_of_write(blocks.end - blocks.start);
                    volume.route_to_change(work).await?.write(Lba(blocks.start), &piece).await
                })
            });
            at += n;
        }
        let mut outcome = Ok(());
        for task in tasks {
            outcome = outcome.and(task.await.unwrap_or_else(|| Err(StorageError::ended())));
        }
        outcome
    }

    /// Writes a part of a block, together with others that come before its turn. Its place in line
    /// is taken when this is called.
    fn write_edge(&self, offset: u64, data: Slice) -> impl Future<Output = Result<()>> + use<> {
        let block = offset / BLOCK_U64;
        let patch = Patch { at: (offset % BLOCK_U64) as usize, data };
        let (written, first) = self.locks.queue_edge(block, patch);
        let (volume, follows) = (self.clone(), first.is_none());
        if let Some(group) = first {
            let volume = self.clone();
            self.pool.rt().detach(async move { volume.write_group(group).await });
        }
        async move {
            let written = match follows {
                true => volume.granted(written).await,
                // The group's task has the story of this request and reports the wait.
                false => written.await,
            };
            written.unwrap_or_else(|| Err(StorageError::ended()))
        }
    }

    /// Writes what a group of requests has for a block.
    async fn write_group(&self, group: EdgeGroup) {
        self.granted(group.granted()).await;
        // Requests that have arrived at the same time take their places first.
        self.pool.rt().yield_now().await;
        let (lba, known) = (Lba(group.block()), group.known());
        let (mut patches, mut told) = (Vec::new(), Vec::new());
        for (patch, to) in group.close() {
            // Again: the volume may have been shrunk while they waited.
            match self.check(lba.0 * BLOCK_U64 + patch.at as u64, patch.data.len() as u64) {
                Ok(()) => {
                    patches.push(patch);
                    told.push(to);
                }
                Err(e) => to.send(Err(e)),
            }
        }
        let write = async |patches: &[Patch], known| {
            self.route_to_change(work_of_write(1)).await?.write_parts(lba, patches, known).await
        };
        let mut outcomes = match &patches[..] {
            [] => Vec::new(),
            all => match write(all, known).await {
                Ok(known) => {
                    group.leave(known);
                    vec![Ok(()); all.len()]
                }
                Err(e) => vec![Err(e)],
            },
        };
        if patches.len() > outcomes.len() {
            // A block that one of the patches needs may be missing, and the others need not suffer
            // for it.
            outcomes.clear();
            for patch in &patches {
                outcomes.push(write(std::slice::from_ref(patch), None).await.map(drop));
            }
        }
        drop(group);
        told.into_iter().zip(outcomes).for_each(|(to, outcome)| to.send(outcome));
    }

    /// Makes everything that completed before, on any handle, durable.
    pub async fn flush(&self) -> Result<()> {
        let since = self.begin();
        self.route().await?.flush().await?;
        self.count(Operation::Flush, 0, since);
        Ok(())
    }

    /// Gives up the whole blocks in `[offset, offset + len)`: they take no space then and read as
    /// zeros. Parts of blocks at the ends stay as they are.
    pub async fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.check(offset, len)?;
        let since = self.begin();
        let blocks = offset.div_ceil(BLOCK_U64)..self.whole_end(offset + len);
        if blocks.start < blocks.end {
            let _lock = self.granted(self.locks.lock(blocks.clone())).await;
            let work = work_of_discard(blocks.end - blocks.start);
            let route = self.route_to_change(work).await?;
            route.discard(Lba(blocks.start), Lba(blocks.end)).await?;
        }
        self.count(Operation::Discard, len, since);
        Ok(())
    }

    /// The first block that is not whole before byte `end`. If `end` is the volume's end, the last
    /// block counts as whole, even if the volume's size is no multiple of a block.
    fn whole_end(&self, end: u64) -> u64 {
        if self.pool.volume_size(self.id) == Some(end) {
            end.div_ceil(BLOCK_U64)
        } else {
            end / BLOCK_U64
        }
    }

    /// Makes `[offset, offset + len)` read as zeros; with `allocate` by writing zeros, so that it
    /// takes space, else by giving up whole blocks. A request of a client has a ticket: others have
    /// their turns between its pieces.
    pub async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        allocate: bool,
        ticket: Option<&Ticket>,
    ) -> Result<()> {
        self.check(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let since = self.begin();
        let end = offset + len;
        if allocate {
            self.check_room(len).await?;
            self.fill(offset, end, ticket).await?;
        } else {
            let (from, to) = (offset.next_multiple_of(BLOCK_U64), self.whole_end(end) * BLOCK_U64);
            if from >= to {
                self.fill(offset, end, None).await?;
            } else {
                self.fill(offset, from, None).await?;
                let lock = self.locks.lock(from / BLOCK_U64..to / BLOCK_U64);
                let lock = self.granted(lock).await;
                // Again: it may have grown meanwhile, and more have been written to what was its
                // last block.
                let to = to.min(self.whole_end(end) * BLOCK_U64);
                if from < to {
                    let (from, to) = (from / BLOCK_U64, to / BLOCK_U64);
                    let route = self.route_to_change(work_of_discard(to - from)).await?;
                    route.discard(Lba(from), Lba(to)).await?;
                }
                drop(lock);
                self.fill(to.min(end), end, None).await?;
            }
        }
        self.count(Operation::Zero, len, since);
        Ok(())
    }

    /// Fails if so many bytes of zeros cannot find room, however much of the volume takes space
    /// already: they would fill the pool for everybody before they fail. What is being given back
    /// counts as room, as each write waits for it. Errors: `NoSpace`.
    async fn check_room(&self, len: u64) -> Result<()> {
        if len <= ZERO_BYTES || self.can_find_room(len).is_ok() {
            return Ok(());
        }
        // What a cache is to write back may replace blocks of the pool, or give them up.
        self.route().await?.publish().await?;
        self.can_find_room(len)
    }

    fn can_find_room(&self, len: u64) -> Result<()> {
        let own = self.info().map_or(0, |info| info.allocated_bytes);
        let (needed, has) = (len.saturating_sub(own), self.pool.attainable_bytes());
        if needed <= has {
            return Ok(());
        }
        let text = format!(
            "{len} bytes of zeros are to take space, and the pool has room for {has}, beside {own} \
             that the volume has: nothing was written"
        );
        Err(StorageError::new(ErrorKind::NoSpace, text))
    }

    /// Writes zeros to `[from, to)`.
    async fn fill(&self, from: u64, to: u64, ticket: Option<&Ticket>) -> Result<()> {
        let mut at = from;
        while at < to {
            if let Some(ticket) = ticket.filter(|_| at > from) {
                ticket.again().await;
            }
            // Up to the next boundary, so that all pieces but the first and last are whole.
            let end = (at / ZERO_BYTES + 1).saturating_mul(ZERO_BYTES).min(to);
            let blocks = blocks_of(at, end - at);
            // Shared zeros: queued requests use no memory.
            let zeros = self.pool.zero_block((blocks.end - blocks.start) as usize * BLOCK);
            if at % BLOCK_U64 == 0 && end % BLOCK_U64 == 0 {
                let _lock = self.granted(self.locks.lock(blocks.clone())).await;
                self.check(at, end - at)?;
                let work = work_of_write(blocks.end - blocks.start);
                self.route_to_change(work).await?.write(Lba(blocks.start), &zeros).await?;
            } else {
                Box::pin(self.write_pieces(at, &zeros.slice(0, (end - at) as usize))).await?;
            }
            at = end;
        }
        Ok(())
    }

    /// Returns the parts of `[offset, offset + len)`, allocated or not: at most `max` parts, in
    /// order from `offset` on, together perhaps less than `len`.
    pub async fn extents(&self, offset: u64, len: u64, max: usize) -> Result<Vec<RangeStatus>> {
        self.check(offset, len)?;
        let blocks = blocks_of(offset, len);
        let (found, upto) =
            self.route().await?.allocated(Lba(blocks.start), Lba(blocks.end), max.max(1)).await?;
        let mut parts: Vec<RangeStatus> = Vec::new();
        let (mut at, end) = (offset, offset + len);
        for (lba, n) in found {
            let from = (lba.0 * BLOCK_U64).max(offset);
            let to = ((lba.0 + n) * BLOCK_U64).min(end);
            if from > at {
                parts.push(RangeStatus { len: from - at, allocated: false });
            }
            parts.push(RangeStatus { len: to - from, allocated: true });
            at = to;
        }
        let end = end.min(upto.0 * BLOCK_U64);
        if at < end {
            parts.push(RangeStatus { len: end - at, allocated: false });
        }
        parts.truncate(max.max(1));
        Ok(parts)
    }

    /// Clears the bytes that a crash in the middle of a shrink left behind byte `end` of its block:
    /// they must not come back when the volume grows.
    async fn clear_behind(&self, end: u64) -> Result<()> {
        let kept = (end % BLOCK_U64) as usize;
        if kept == 0 {
            return Ok(());
        }
        let lba = Lba(end / BLOCK_U64);
        let old = self.route().await?.read(lba, 1).await?;
        if old[0][kept..].iter().all(|&b| b == 0) {
            return Ok(());
        }
        let mut block = self.pool.bufs().zeroed(BLOCK);
        block[..kept].copy_from_slice(&old[0][..kept]);
        self.route().await?.write(lba, &block.freeze()).await?;
        self.route().await?.flush().await
    }

    pub(crate) async fn resize(&self, size: u64, shrink: Shrink) -> Result<()> {
        // One task at a time freezes volumes or changes a size. So no freeze begins during this
        // resize.
        let _turn = self.blocks.turn().await;
        let old = self.size();
        match size < old {
            true if shrink == Shrink::Refused => Err(self.loses(old, size)),
            true => self.shrink(old, size).await,
            false => self.grow(old, size).await,
        }
    }

    async fn shrink(&self, old: u64, size: u64) -> Result<()> {
        // `no_pass` ends the pacing of passes and waits for their end. No block is locked yet. The
        // change of the size waits for passes again, with blocks locked, but only for passes that
        // begin after this.
        drop(self.blocks.no_pass(self.id).await?);
        // Nothing is written behind the new end while the rest is cut off.
        let _lock = self.locks.lock_for_resize(|| size / BLOCK_U64).await;
        let cut = (size % BLOCK_U64) as usize;
        let mut last = None;
        if cut != 0 {
            // The rest of the last block must not come back when the volume grows.
            let kept = self.route().await?.read(Lba(size / BLOCK_U64), 1).await?;
            let mut block = self.pool.bufs().zeroed(BLOCK);
            block[..cut].copy_from_slice(&kept[0][..cut]);
            last = Some(block.freeze());
        }
        self.route().await?.resize(old, size, last, None).await
    }

    async fn grow(&self, old: u64, size: u64) -> Result<()> {
        if size > old {
            let _lock = self.locks.lock_for_resize(|| old / BLOCK_U64).await;
            self.clear_behind(old).await?;
        }
        // All blocks from the last one on are locked while the volume grows: nothing is written
        // behind the old end. A request that holds this lock may wait for a pass. So `grow` waits
        // for passes first, and then takes the lock only if the lock is free.
        for _ in 0..TRIES {
            let no_pass = self.blocks.no_pass(self.id).await?;
            if let Some(_lock) = self.locks.try_lock_for_resize(old / BLOCK_U64) {
                return self.route().await?.resize(old, size, None, no_pass).await;
            }
            drop(no_pass);
            drop(self.locks.lock_for_resize(|| old / BLOCK_U64).await);
        }
        let _lock = self.locks.lock_for_resize(|| old / BLOCK_U64).await;
        self.route().await?.resize(old, size, None, None).await
    }

    fn loses(&self, old: u64, size: u64) -> StorageError {
        StorageError::new(
            ErrorKind::Loses,
            format!(
                "nothing was changed: the volume has {old} bytes now, and the last {} of them \
                 would be lost for good",
                old - size
            ),
        )
    }
}

/// The blocks that `len` bytes from `offset` on touch.
fn blocks_of(offset: u64, len: u64) -> Range<u64> {
    offset / BLOCK_U64..(offset + len).div_ceil(BLOCK_U64)
}

/// Cuts whole blocks that begin at the block of `offset` down to `len` bytes from `offset` on.
fn trim_to(data: &mut SliceList, offset: u64, len: u64) {
    let head = (offset % BLOCK_U64) as usize;
    if let Some(first) = data.first_mut()
        && head > 0
    {
        *first = first.slice(head, first.len() - head);
    }
    let total: u64 = data.iter().map(|s| s.len() as u64).sum();
    let excess = (total - len) as usize;
    if let Some(last) = data.last_mut()
        && excess > 0
    {
        *last = last.slice(0, last.len() - excess);
    }
}

#[cfg(test)]
#[path = "volume_tests.rs"]
mod tests;
