//! Blocks of open buckets for what is to be written.

use pool::Result;
use smallvec::SmallVec;

use crate::Cache;
use crate::buckets::census::Stream;
use crate::store::taken::Taken;

impl Cache {
    /// Takes and pins `blocks` blocks of open buckets; waits for buckets if need be. Of writes only one waits with some in hand: what all others have had
    /// comes into the index, so that it can be written back and its buckets become free.
    pub(crate) async fn take(&self, stream: Stream, blocks: u32) -> Result<SmallVec<[Taken; 1]>> {
        let mut taken: SmallVec<[Taken; 1]> = SmallVec::new();
        let mut missing = blocks;
        let _turn = match stream {
            Stream::Writes => Some(self.0.taking.acquire(1).await),
            _ => None,
        };
        let (rounds, since) = (self.rounds(), self.0.rt.now());
        loop {
            missing -= self.take_some(stream, missing, &mut taken);
            if missing == 0 {
                break;
            }
            let outcome = match self.check_failed().and_then(|()| self.check_hopeful(rounds)) {
                Ok(()) if stream == Stream::Writes => Box::pin(self.check_worn(since)).await,
                outcome => outcome,
            };
            if let Err(e) = outcome {
                self.give_up_pins(&taken);
                return Err(e);
            }
            let wait = self.0.room.wait();
            self.0.hungry.notify();
            wait.await;
        }
        if self.is_hungry() {
            self.0.hungry.notify();
        }
        Ok(taken)
    }

    /// Takes and pins up to `blocks` blocks, as many as there are now; returns how many.
    pub(crate) fn take_some(&self, stream: Stream, blocks: u32, taken: &mut SmallVec<[Taken; 1]>) -> u32 {
        let reserve = self.node_reserve();
        let mut st = self.state_mut();
        let mut got = 0;
        while got < blocks {
            // The last buckets are for the index's nodes: without them nothing ever becomes free.
            let spare = stream == Stream::Nodes || st.buckets.free() > reserve || st.buckets.left_open(stream) > 0;
            let next = if spare { st.buckets.append(stream, blocks - got) } else { None };
            let Some((addr, len, generation)) = next else { break };
            taken.push(Taken { addr, len, generation });
            got += len;
        }
        got
    }

    pub(crate) fn give_up_pins(&self, taken: &[Taken]) {
        let mut st = self.state_mut();
        taken.iter().for_each(|t| st.buckets.unpin(t.addr));
    }
}
