//! Survivors: blocks of a victim that were hit move to the main queue before it is evicted.
//!
//! The victim is pinned meanwhile, and nothing waits for it. Its *summary* says of which volumes
//! and blocks its blocks are. The blocks that are to be kept are looked up in the index, which
//! decides. A bucket without a summary has no survivors: it was filled before there were summaries,
//! or the incarnation that filled it ended before it wrote one. A bucket that is evicted while room
//! is short has none either. A survivor that is bad is dropped with the others.

use std::rc::Rc;

use base::{BLOCK, BucketGen, BucketId, Result, SliceList};
use format::cache::journal::blocks_for;
use format::cache::summary::{SummaryKey, encode_summary};
use queue::Class;
use rt::sync::Semaphore;

use crate::core::Core;
use crate::health::fail::Failures;
use crate::health::writer_watch::WriterWatch;
use crate::job;
use crate::space::contents::BucketContents;
use crate::space::mover::{MoveOutcome, Mover};
use crate::space::request_room::Room;
use crate::store::buckets::summaries::NextSummary;
use crate::store::buckets::usage::Usage;
use crate::store::key::IndexKey;
use crate::store::ring_room::nodes_for;
use crate::store::state::State;
use crate::store::taken::most_extents;

/// Summaries that are written at once, by requests of the class of commits. Buckets are filled
/// meanwhile: in the line of the background they stood behind the requests of a pass, and a quarter
/// of the buckets got none.
const SUMMARIES_AT_ONCE: u64 = 32;

/// A bucket whose survivors move. When this is dropped they have moved, or were given up, and the
/// bucket may be evicted.
struct LeavingBucket(Core, BucketId);

impl Drop for LeavingBucket {
    fn drop(&mut self) {
        self.0.state_mut().buckets.end_leaving(self.1);
    }
}

/// Moves the blocks that are worth it out of buckets that are evicted.
pub(crate) struct SurvivorMover {
    core: Core,
    failures: Rc<Failures>,
    watch: Rc<WriterWatch>,
    room: Rc<Room>,
    mover: Rc<Mover>,
    contents: Rc<BucketContents>,
}

impl SurvivorMover {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        failures: &Rc<Failures>,
        watch: &Rc<WriterWatch>,
        room: &Rc<Room>,
        mover: &Rc<Mover>,
        contents: &Rc<BucketContents>,
    ) -> Rc<SurvivorMover> {
        Rc::new(SurvivorMover {
            core: core.clone(),
            failures: failures.clone(),
            watch: watch.clone(),
            room: room.clone(),
            mover: mover.clone(),
            contents: contents.clone(),
        })
    }

    /// Begins to move the survivors of a leaving bucket; then the bucket may be evicted.
    pub(crate) fn keep_survivors(self: &Rc<Self>, id: BucketId, generation: BucketGen) {
        let (this, leaving) = (self.clone(), LeavingBucket(self.core.clone(), id));
        self.core.rt().detach_background(job::SURVIVORS, async move {
            let _leaving = leaving;
            if let Err(e) = this.move_survivors(id, generation).await {
                tracing::debug!("survivors of bucket {id} were dropped: {e}");
            }
        });
    }

    async fn move_survivors(&self, id: BucketId, generation: BucketGen) -> Result<()> {
        let Some(keys) = self.contents.keys_of(id, generation, Class::Collection).await else {
            return Ok(());
        };
        let mut left = self.survivors_of(id, generation, &keys).await?;
        // The last first.
        left.reverse();
        while let Some(e) = left.pop() {
            self.failures.check_failed().and_then(|()| self.core.check_open())?;
            let records = blocks_for(most_extents(e.len()), e.len() as usize);
            let room = if self.core.levels().must_evict_now() {
                None
            } else {
                self.room.try_room(records, nodes_for(e.len()))
            };
            let Some(mut room) = room else {
                self.core.wakes().checkpoint.notify();
                let lost = left.iter().map(IndexKey::len).sum::<u64>() + e.len();
                self.core.state_mut().buckets.usage_mut().lose_survivors(lost);
                break;
            };
            match self.mover.move_extent(&e, &mut room, Usage::hits_after).await? {
                MoveOutcome::Done => self.core.state_mut().survived(e.len()),
                MoveOutcome::Stays => {}
                // The blocks are moved one by one, so that the bad one takes no other with it.
                MoveOutcome::Bad if e.len() > 1 => {
                    left.extend((e.lba.0..e.end()).rev().map(|lba| e.slice(lba, lba + 1)));
                }
                MoveOutcome::Bad => self.core.state_mut().bad_survivor(self.contents.first_of(id)),
            }
        }
        Ok(())
    }

    /// The blocks of a leaving bucket that are to be kept, neighbours together.
    async fn survivors_of(
        &self,
        id: BucketId,
        generation: BucketGen,
        keys: &[SummaryKey],
    ) -> Result<Vec<IndexKey>> {
        let places = self.core.state().buckets.usage().survivors(id);
        // A bucket that leaves has nothing dirty. Of a published part, the pool has the whole
        // block.
        let is_clean = |st: &State, e: &IndexKey| !e.is_part() && st.index.unpublished(e).is_none();
        self.contents.still_there(id, generation, keys, places, is_clean, Class::Collection).await
    }

    /// Writes the summaries of buckets that are full.
    pub(crate) async fn summarizer(self: &Rc<Self>) {
        let turns = Semaphore::new(SUMMARIES_AT_ONCE);
        while !self.core.health().is_closed() && self.failures.check_failed().is_ok() {
            let (wait, turn) = (self.core.wakes().summary.wait(), turns.acquire(1).await);
            let next = self.core.state_mut().buckets.next_summary();
            let Some(next) = next else {
                drop(turn);
                wait.await;
                continue;
            };
            let this = self.clone();
            self.core.rt().detach(async move {
                this.write_summary(next).await;
                drop(turn);
            });
        }
    }

    async fn write_summary(&self, next: NextSummary) {
        let mut buf = self.core.rt().bufs().take(next.blocks as usize * BLOCK);
        encode_summary(&self.contents.summary_of(next.id, next.generation), &next.keys, &mut buf);
        let (at, data) = (self.core.offset_of(next.addr), SliceList::from_iter([buf.freeze()]));
        if self.watch.check_alone().await.is_err() {
            self.core.state_mut().buckets.unpin(next.addr);
            return;
        }
        let outcome = self.core.device().queue().write(Class::Commit, at, data).await;
        let mut st = self.core.state_mut();
        // Nothing is wrong with the bucket where the file system under the cache is full.
        if outcome.is_err_and(|e| !e.is_no_space()) {
            st.buckets.condemn(next.addr);
        }
        st.buckets.unpin(next.addr);
    }
}

#[cfg(test)]
#[path = "survivors_tests.rs"]
mod tests;
