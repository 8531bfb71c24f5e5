//! Blocks of open buckets for what is to be written, and pins of buckets that are read.

use std::ops::Deref;

use base::{CacheAddr, Result};
use rt::Reason;
use smallvec::SmallVec;

use crate::Cache;
use crate::job;
use crate::store::buckets::census::Stream;
use crate::store::taken::Taken;

/// Blocks that were taken to be written. Their buckets are pinned until it is dropped.
#[must_use = "blocks that are dropped are wasted"]
pub(crate) struct TakenBlocks {
    cache: Cache,
    all: SmallVec<[Taken; 1]>,
    /// A write to them is in flight.
    in_flight: bool,
}

impl Deref for TakenBlocks {
    type Target = [Taken];

    fn deref(&self) -> &[Taken] {
        &self.all
    }
}

impl Drop for TakenBlocks {
    fn drop(&mut self) {
        // A write whose task was dropped may reach the device at any time. So its buckets stay
        // pinned until the next open.
        if !self.in_flight && !self.all.is_empty() {
            let mut st = self.cache.state_mut();
            self.all.iter().for_each(|t| st.buckets.unpin(t.addr));
        }
    }
}

/// The bucket of a block is not used anew while it is pinned.
pub(crate) struct Pinned {
    cache: Cache,
    addr: CacheAddr,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.cache.state_mut().buckets.unpin(self.addr);
    }
}

impl Cache {
    /// Takes over a pin that was set by a step.
    pub(crate) fn pinned(&self, addr: CacheAddr) -> Pinned {
        Pinned { cache: self.clone(), addr }
    }

    /// Takes and pins `blocks` blocks of open buckets; waits for buckets if need be. Only one write
    /// of clients at a time waits while it holds some blocks. All others go on to enter theirs into
    /// the index, so that these can be written back and their buckets become free.
    pub(crate) async fn take(&self, stream: Stream, blocks: u32) -> Result<TakenBlocks> {
        let of_clients = stream != Stream::Nodes;
        let _turn = match of_clients {
            true => Some(match self.turns().try_take() {
                Some(turn) => turn,
                // This write waits for what the first one waits for.
                None => {
                    let turn = self.turns().take();
                    self.rt().waits_for_job(Reason::Buckets, self.makes_room(), turn).await
                }
            }),
            false => None,
        };
        let mut taken = self.take_some(stream, blocks);
        self.end_drought(of_clients, taken.blocks());
        let mut missing = blocks - taken.blocks();
        let (own, bad) = (self.begin_waiting(), self.stuck_blocks());
        if of_clients && missing == 0 {
            self.turns().found_all(blocks);
        } else if of_clients && self.turns().is_in_vain(own.since, blocks, bad) {
            self.wakes().wanted();
            return Err(self.hopeless());
        }
        while missing > 0 {
            // The next write that finds no block has the same deadline.
            let waiting =
                if of_clients { self.turns().found_none(|| self.begin_waiting()) } else { own };
            // Also before a write is refused: the next one may find room.
            self.wakes().wanted();
            self.check_failed()?;
            if let Err(e) = self.check_hopeful(waiting) {
                // While the pool rejects what is written back it may come to itself at any time.
                if of_clients && self.check_carried().is_ok() {
                    let bad = self.stuck_blocks();
                    self.turns().refused(waiting, self.rt().now(), taken.blocks(), bad);
                }
                return Err(e);
            }
            if of_clients {
                Box::pin(self.check_worn(waiting)).await?;
            }
            let room = self.wait_for_room();
            self.rt().waits_for_job(Reason::Buckets, self.makes_room(), room).await;
            // If room is short, a write takes what is left for writes.
            let stream = if of_clients { Stream::Writes } else { stream };
            let got = self.take_more(stream, missing, &mut taken);
            self.end_drought(of_clients, got);
            if of_clients && got > 0 {
                self.turns().room_came();
            }
            missing -= got;
        }
        Ok(taken)
    }

    /// Dirty blocks that are known to stay in the cache, whatever passes do.
    fn stuck_blocks(&self) -> u64 {
        self.state().bad_blocks().blocks() + self.kept_blocks()
    }

    /// Which job makes buckets free now.
    fn makes_room(&self) -> &'static str {
        if self.state().buckets.census().clean > 0 { job::RECLAIM } else { job::WRITE_BACK }
    }

    /// Ends the time without room if a write has found blocks.
    fn end_drought(&self, of_clients: bool, got: u32) {
        if of_clients && got > 0 {
            self.turns().found_some();
        }
    }

    /// Takes and pins up to `blocks` blocks, as many as there are now.
    pub(crate) fn take_some(&self, stream: Stream, blocks: u32) -> TakenBlocks {
        let mut taken = TakenBlocks::none(self);
        self.take_more(stream, blocks, &mut taken);
        taken
    }

    fn take_more(&self, stream: Stream, blocks: u32, taken: &mut TakenBlocks) -> u32 {
        let reserve = self.node_reserve();
        let mut st = self.state_mut();
        let mut got = 0;
        while got < blocks {
            // The last buckets are for the index's nodes: without them nothing ever becomes free.
            let spare = stream == Stream::Nodes
                || st.buckets.free() > reserve
                || st.buckets.left_open(stream) > 0;
            let next = if spare { st.append(stream, blocks - got) } else { None };
            let Some((addr, len, generation)) = next else { break };
            taken.all.push(Taken { addr, len, generation });
            got += len;
        }
        got
    }
}

impl TakenBlocks {
    /// No blocks.
    pub fn none(cache: &Cache) -> TakenBlocks {
        TakenBlocks { cache: cache.clone(), all: SmallVec::new(), in_flight: false }
    }

    /// Has the blocks written. If the task is dropped meanwhile, they stay pinned.
    pub async fn write<T>(&mut self, write: impl AsyncFnOnce(&[Taken]) -> T) -> T {
        self.in_flight = true;
        let outcome = write(&self.all).await;
        self.in_flight = false;
        outcome
    }

    /// The number of blocks that were taken.
    pub fn blocks(&self) -> u32 {
        self.all.iter().map(|t| t.len).sum()
    }
}
