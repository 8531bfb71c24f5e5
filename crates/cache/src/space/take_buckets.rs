//! Blocks of open buckets for what is to be written, and pins of buckets that are read.

use base::Result;
use rt::Reason;

use crate::core::pins::TakenBlocks;
use crate::job;
use crate::space::request_room::Room;
use crate::store::buckets::census::Stream;
use crate::store::taken::TakenRun;

impl Room {
    /// Takes and pins `blocks` blocks of open buckets; waits for buckets if need be. Only one write
    /// of clients at a time waits while it holds some blocks. All others go on to enter theirs into
    /// the index, so that these can be written back and their buckets become free.
    pub(crate) async fn take(&self, stream: Stream, blocks: u32) -> Result<TakenBlocks> {
        let of_clients = stream != Stream::Nodes;
        let _turn = match of_clients {
            true => Some(match self.core.turns().try_take() {
                Some(turn) => turn,
                // This write waits for what the first one waits for.
                None => {
                    let turn = self.core.turns().take();
                    self.core.rt().waits_for_job(Reason::Buckets, self.makes_room(), turn).await
                }
            }),
            false => None,
        };
        let mut taken = self.take_some(stream, blocks);
        self.end_drought(of_clients, taken.blocks());
        let mut missing = blocks - taken.blocks();
        let (own, bad) = (self.core.levels().begin_waiting(), self.stuck_blocks());
        if of_clients && missing == 0 {
            self.core.turns().found_all(blocks);
        } else if of_clients && self.core.turns().is_in_vain(own.since, blocks, bad) {
            self.core.wakes().wanted();
            return Err(self.hopeless());
        }
        while missing > 0 {
            // The next write that finds no block has the same deadline.
            let waiting = if of_clients {
                self.core.turns().found_none(|| self.core.levels().begin_waiting())
            } else {
                own
            };
            // Also before a write is refused: the next one may find room.
            self.core.wakes().wanted();
            self.failures.check_failed()?;
            if let Err(e) = self.check_hopeful(waiting) {
                // While the pool rejects what is written back it may come to itself at any time.
                if of_clients && self.core.levels().check_carried().is_ok() {
                    let bad = self.stuck_blocks();
                    self.core.turns().refused(waiting, self.core.rt().now(), taken.blocks(), bad);
                }
                return Err(e);
            }
            if of_clients {
                Box::pin(self.check_worn(waiting)).await?;
            }
            let room = self.wait_for_room();
            self.core.rt().waits_for_job(Reason::Buckets, self.makes_room(), room).await;
            // If room is short, a write takes what is left for writes.
            let stream = if of_clients { Stream::Writes } else { stream };
            let got = self.take_more(stream, missing, &mut taken);
            self.end_drought(of_clients, got);
            if of_clients && got > 0 {
                self.core.turns().room_came();
            }
            missing -= got;
        }
        Ok(taken)
    }

    /// Dirty blocks that are known to stay in the cache, whatever passes do.
    fn stuck_blocks(&self) -> u64 {
        self.core.state().bad_blocks().blocks() + self.core.levels().kept_blocks()
    }

    /// Which job makes buckets free now.
    fn makes_room(&self) -> &'static str {
        if self.core.state().buckets.census().clean > 0 { job::RECLAIM } else { job::WRITE_BACK }
    }

    /// Ends the time without room if a write has found blocks.
    fn end_drought(&self, of_clients: bool, got: u32) {
        if of_clients && got > 0 {
            self.core.turns().found_some();
        }
    }

    /// Takes and pins up to `blocks` blocks, as many as there are now.
    pub(crate) fn take_some(&self, stream: Stream, blocks: u32) -> TakenBlocks {
        let mut taken = TakenBlocks::none(&self.core);
        self.take_more(stream, blocks, &mut taken);
        taken
    }

    fn take_more(&self, stream: Stream, blocks: u32, taken: &mut TakenBlocks) -> u32 {
        let reserve = self.core.levels().node_reserve();
        let mut st = self.core.state_mut();
        let mut got = 0;
        while got < blocks {
            // The last buckets are for the index's nodes: without them nothing ever becomes free.
            let spare = stream == Stream::Nodes
                || st.buckets.reuse().free() > reserve
                || st.buckets.left_open(stream) > 0;
            let next = if spare { st.append(stream, blocks - got) } else { None };
            let Some((addr, len, generation)) = next else { break };
            taken.add(TakenRun { addr, len, generation });
            got += len;
        }
        got
    }
}
