//! Events that tasks wait for, and the changes of the state that wake them.

use base::{Epoch, RecordSeq};
use rt::sync::Event;

use crate::store::state::State;

/// The events that tasks wait for.
#[derive(Clone, Default)]
pub(crate) struct WakeEvents {
    /// Room: buckets that are free or may be evicted, nodes, or the news that there will be none.
    pub room: Event,
    /// Free buckets are short.
    pub reclaim: Event,
    pub checkpoint: Event,
    pub pass: Event,
    /// Much is dirty in the open epoch, or a pass has begun or ended.
    pub seal: Event,
    /// A pass has to go faster.
    pub pace: Event,
    /// The room is getting short, and less than it was.
    pub compact: Event,
    /// The summary of a bucket is to be written.
    pub summary: Event,
    /// The settings have changed.
    pub settings: Event,
}

impl WakeEvents {
    /// The cache has failed, or is closed.
    pub fn all(&self) {
        let WakeEvents { room, reclaim, checkpoint, pass, seal, pace, compact, summary, settings } =
            self;
        let all = [room, reclaim, checkpoint, pass, seal, pace, compact, summary, settings];
        all.into_iter().for_each(Event::notify);
    }

    /// A task waits for room: all that makes some is to look whether it can.
    pub fn wanted(&self) {
        [&self.reclaim, &self.pass, &self.checkpoint].into_iter().for_each(Event::notify);
    }
}

/// Watermarks of the state. What tasks wait for depends on these.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Marks {
    free: u32,
    clean: u32,
    pending: u32,
    unpins: u64,
    nodes_due: u64,
    unpublished: u64,
    published: Epoch,
    journal_used: u32,
    pushed: RecordSeq,
    summaries: usize,
}

impl Marks {
    pub fn of(st: &State) -> Marks {
        let census = st.buckets.census();
        Marks {
            free: st.buckets.reuse().free(),
            clean: census.clean,
            pending: st.buckets.reuse().pending(),
            unpins: st.buckets.unpins(),
            nodes_due: st.nodes_due(),
            unpublished: st.buckets.counts().unpublished_blocks().0 + st.buckets.counts().zeros().0,
            published: st.index.published(),
            journal_used: st.journal().usage().0,
            pushed: st.journal().pushed(),
            summaries: st.buckets.summaries().waiting(),
        }
    }

    /// There is more room than before.
    pub fn has_more_room(&self, before: &Marks) -> bool {
        self.free > before.free
            || self.clean > before.clean
            || self.nodes_due < before.nodes_due
            || self.published > before.published
    }

    /// There is less room than before, or more of it to be had.
    pub fn may_reclaim(&self, before: &Marks) -> bool {
        self.takes_room(before)
            || self.clean > before.clean
            || self.pending > before.pending
            || self.unpins > before.unpins
    }

    /// There is less room than before.
    pub fn takes_room(&self, before: &Marks) -> bool {
        self.free < before.free || self.nodes_due > before.nodes_due
    }

    /// The journal has grown.
    pub fn has_more_records(&self, before: &Marks) -> bool {
        self.journal_used > before.journal_used || self.pushed > before.pushed
    }

    /// A bucket was filled whose summary is to be written.
    pub fn has_more_summaries(&self, before: &Marks) -> bool {
        self.summaries > before.summaries
    }

    /// Something was written, or ceased to be dirty.
    pub fn has_other_dirt(&self, before: &Marks) -> bool {
        self.unpublished != before.unpublished
    }
}
