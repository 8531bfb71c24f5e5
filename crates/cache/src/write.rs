//! The way of a write: space in an open bucket, the data, then the key.
//!
//! These futures must run to their end once they were polled: what they took stays taken otherwise.

use base::checksum::block_crcs;
use base::{BLOCK, BucketGen, CacheAddr, Lba, Slice, SliceList, VolumeId};
use pool::{ErrorKind, PoolError, Result};
use queue::Class;
use smallvec::SmallVec;

use crate::Cache;
use crate::buckets::Stream;
use crate::index::{Body, Crcs, Extent};
use format::cache::index::MAX_EXTENT_BLOCKS;

/// Blocks that one step writes and enters.
const STEP_BLOCKS: usize = 256;

/// Neighbouring blocks of one bucket, pinned.
#[derive(Clone, Copy)]
pub(crate) struct Taken {
    pub addr: CacheAddr,
    pub len: u32,
    pub generation: BucketGen,
}

impl Cache {
    /// Writes whole blocks. Every block is visible when this returns, and durable after the next [`Cache::flush`].
    pub async fn write(&self, volume: VolumeId, lba: Lba, data: &Slice) -> Result<()> {
        let mut at = 0;
        while at < data.len() {
            let n = (data.len() - at).min(STEP_BLOCKS * BLOCK);
            at += BLOCK * self.write_step(volume, lba.plus((at / BLOCK) as u64), data.cut(at, n)).await?;
        }
        Ok(())
    }

    /// Writes the first blocks of `data`, as many as there is room for at once; returns how many.
    async fn write_step(&self, volume: VolumeId, lba: Lba, data: Slice) -> Result<usize> {
        let blocks = (data.len() / BLOCK) as u64;
        self.admit().await?;
        self.promise(blocks).await?;
        let outcome = self.write_promised(volume, lba, data).await;
        match outcome {
            Ok((written, over)) => {
                self.0.pool.unreserve(blocks - written as u64 + over);
                self.after_write();
                Ok(written)
            }
            Err(e) => {
                self.0.pool.unreserve(blocks);
                Err(e)
            }
        }
    }

    /// Returns how many blocks were written, and how many dirty ones they replaced: so much of the promise is not needed.
    async fn write_promised(&self, volume: VolumeId, lba: Lba, data: Slice) -> Result<(usize, u64)> {
        let taken = self.take(Stream::Writes, (data.len() / BLOCK) as u32).await?;
        let blocks = taken.iter().map(|t| t.len as usize).sum::<usize>();
        let data = data.cut(0, blocks * BLOCK);
        let outcome = self.write_taken(&taken, &data, Class::Foreground).await;
        let outcome = match outcome {
            Ok(()) => self.enter(volume, lba, &taken, &data).await,
            Err(e) => Err(e),
        };
        self.give_up_pins(&taken);
        Ok((blocks, outcome?))
    }

    /// Takes and pins `blocks` blocks of open buckets, or less: waits for buckets if need be, but never with some in hand, which others may be waiting for.
    pub(crate) async fn take(&self, stream: Stream, blocks: u32) -> Result<SmallVec<[Taken; 1]>> {
        let mut taken: SmallVec<[Taken; 1]> = SmallVec::new();
        let mut missing = blocks;
        while missing > 0 {
            let got = {
                let mut st = self.state_mut();
                let journal = st.journal.pushed();
                // The last buckets are for the index's nodes: without them nothing ever becomes free.
                let spare = stream == Stream::Nodes
                    || st.buckets.free() > self.0.layout.node_reserve()
                    || st.buckets.has_open(stream);
                if spare { st.buckets.append(stream, missing, journal) } else { None }
            };
            match got {
                Some((addr, len, generation)) => {
                    taken.push(Taken { addr, len, generation });
                    missing -= len;
                }
                None if !taken.is_empty() => break,
                None => {
                    self.check_failed()?;
                    let wait = self.0.room.wait();
                    self.0.hungry.notify();
                    wait.await;
                }
            }
        }
        if self.is_short() {
            self.0.hungry.notify();
        }
        Ok(taken)
    }

    pub(crate) fn give_up_pins(&self, taken: &[Taken]) {
        let mut st = self.state_mut();
        let journal = st.journal.pushed();
        for t in taken {
            st.buckets.unpin(t.addr, journal);
        }
    }

    pub(crate) async fn write_taken(&self, taken: &[Taken], data: &Slice, class: Class) -> Result<()> {
        let mut outcome = Ok(());
        if let [t] = taken {
            outcome = self.0.device.write(class, self.offset_of(t.addr), SliceList::from_iter([data.clone()])).await;
        } else {
            let mut writes = Vec::with_capacity(taken.len());
            let mut at = 0;
            for t in taken {
                let bytes = t.len as usize * BLOCK;
                let (device, part, offset) = (self.0.device.clone(), data.cut(at, bytes), self.offset_of(t.addr));
                at += bytes;
                writes.push(
                    self.0.rt.spawn(async move { device.write(class, offset, SliceList::from_iter([part])).await }),
                );
            }
            for w in writes {
                outcome = outcome.and(w.await.unwrap_or(Err(base::IoError::CANCELED)));
            }
        }
        outcome.map_err(|e| {
            let kind = if e.is_no_space() { ErrorKind::NoSpace } else { ErrorKind::Io };
            PoolError::new(kind, format!("cache device {}: write: {e}", self.0.path))
        })
    }

    /// Enters what was written into the index.
    async fn enter(&self, volume: VolumeId, lba: Lba, taken: &[Taken], data: &Slice) -> Result<u64> {
        let crcs: Crcs = block_crcs(data).collect();
        self.resident(Class::Foreground, |st| {
            // The epoch of the moment in which it becomes visible.
            let written = Some(st.buckets.epoch());
            let new = extents(volume, lba, taken, &crcs, written);
            st.change(volume, (lba, lba.plus(crcs.len() as u64)), &new, false)
        })
        .await?
    }

    /// Makes `[lba, end)` read as zeros.
    pub async fn discard(&self, volume: VolumeId, lba: Lba, end: Lba) -> Result<()> {
        let mut at = lba;
        while at < end {
            self.admit().await?;
            // As many extents as one step may drop; what is beyond is one step more.
            let upto = self
                .resident(Class::Foreground, |st| {
                    let old = match st.index.overlapping(&st.buckets, volume, (at, end), DISCARD_EXTENTS)? {
                        Ok(old) => old,
                        Err(e) => return Ok(Err(e)),
                    };
                    let upto = match old.last() {
                        Some(last) if old.len() >= DISCARD_EXTENTS => Lba(last.end().min(end.0)),
                        _ => end,
                    };
                    let written = Some(st.buckets.epoch());
                    let zeros = Extent { volume, lba: at, written, body: Body::Zeros { len: upto.0 - at.0 } };
                    Ok(match st.change(volume, (at, upto), std::slice::from_ref(&zeros), false)? {
                        Ok(over) => Ok((upto, over)),
                        Err(e) => Err(e),
                    })
                })
                .await??;
            self.0.pool.unreserve(upto.1);
            at = upto.0;
            self.after_write();
            self.0.rt.yield_now().await;
        }
        Ok(())
    }

    /// Gets the pool's word that it can hold `blocks` more; what is dirty is published first if that may help.
    async fn promise(&self, blocks: u64) -> Result<()> {
        for attempt in 0.. {
            match self.0.pool.reserve(blocks) {
                Ok(()) => return Ok(()),
                Err(e) if attempt == 2 => return Err(e),
                Err(_) => Box::pin(self.publish_all()).await?,
            }
        }
        Ok(())
    }
}

/// Extents that one step of a discard replaces.
const DISCARD_EXTENTS: usize = 64;

/// The extents that blocks in `taken` make.
pub(crate) fn extents(
    volume: VolumeId,
    lba: Lba,
    taken: &[Taken],
    crcs: &[base::Crc],
    written: Option<base::Epoch>,
) -> SmallVec<[Extent; 1]> {
    let mut out = SmallVec::new();
    let mut at = 0usize;
    for t in taken {
        let end = at + t.len as usize;
        let mut from = at;
        while from < end {
            let to = (from + MAX_EXTENT_BLOCKS).min(end);
            out.push(Extent {
                volume,
                lba: lba.plus(from as u64),
                written,
                body: Body::Data {
                    addr: CacheAddr(t.addr.0 + (from - at) as u64),
                    generation: t.generation,
                    crcs: SmallVec::from_slice(&crcs[from..to]),
                },
            });
            from = to;
        }
        at = end;
    }
    out
}
