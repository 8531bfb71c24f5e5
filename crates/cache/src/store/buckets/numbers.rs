//! Numbers of buckets and blocks of each kind. All of them are exact at all times, and O(1).

use base::Epoch;

use super::Buckets;
use super::census::{Census, Stream};

impl Buckets {
    /// Buckets that may be filled at once.
    pub fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// True if the pool's image lacks something.
    pub fn is_dirty(&self) -> bool {
        self.unpublished_blocks() != (0, 0) || self.zeros() != (0, 0)
    }

    /// The number of times that the last pin of a bucket was given up.
    pub fn unpins(&self) -> u64 {
        self.unpins
    }

    /// Buckets that wait for the journal.
    pub fn pending(&self) -> u32 {
        self.pending.len() as u32
    }

    /// Blocks in buckets that no published image has, of the open epoch and of all that are sealed.
    pub fn dirty_blocks(&self) -> (u64, u64) {
        self.dirty.all()
    }

    /// Of the sealed epochs' blocks, those up to `epoch`.
    pub fn dirty_blocks_upto(&self, epoch: Epoch) -> u64 {
        self.dirty.upto(epoch)
    }

    /// Blocks that the index refers to.
    pub fn live_blocks(&self) -> u64 {
        self.live_blocks
    }

    /// Nodes of the index.
    pub fn index_nodes(&self) -> u64 {
        self.index_nodes
    }

    /// Blocks in which nodes of the index stand.
    pub fn node_blocks(&self) -> u64 {
        2 * self.index_nodes - self.nodes_once
    }

    /// Blocks that stale keys, and staged ones that are published, still name.
    pub fn stale_blocks(&self) -> u64 {
        self.stale_blocks
    }

    /// Dead keys that garbage collection would drop, about: those of published discards too.
    pub fn garbage(&self) -> u64 {
        self.stale_blocks + self.dead_zeros
    }

    /// Garbage collection begins, and drops the keys of published discards.
    pub fn forget_dead_zeros(&mut self) {
        self.dead_zeros = 0;
    }

    /// The number of buckets in each state.
    pub fn census(&self) -> Census {
        let free = self.free() + self.pending();
        let used = self.count() - free - self.retired - self.nodes;
        Census {
            free,
            clean: self.candidates,
            dirty: used - self.candidates,
            metadata: self.nodes,
            retired: self.retired,
        }
    }

    /// Blocks of `stream` that can be had without a new bucket.
    pub fn left_open(&self, stream: Stream) -> u32 {
        let open = self.open[stream as usize].as_ref().filter(|open| !self.has_bad_twin(open.id));
        open.map_or(0, |open| self.capacity(stream) - open.filled)
    }

    /// Blocks of a bucket that a stream fills: without those that its summary takes.
    pub fn capacity(&self, stream: Stream) -> u32 {
        match stream {
            Stream::Nodes => self.blocks,
            _ => self.blocks - self.summaries.blocks(),
        }
    }

    /// Buckets whose survivors move.
    pub fn leaving(&self) -> u32 {
        self.leaving
    }

    /// Blocks that staged keys name, of the open epoch and of the sealed ones: what was overwritten
    /// is left out.
    pub fn staged_named(&self) -> (u64, u64) {
        self.staged.named()
    }

    /// Discards that no published image has, of the open epoch and of the sealed ones.
    pub fn zeros(&self) -> (u64, u64) {
        self.zeros.all()
    }

    /// Dirty blocks of the open epoch that are in no cut.
    pub fn fresh_blocks(&self) -> u64 {
        self.dirty.fresh()
    }

    /// All blocks that no published image has, here or in staging volumes, of the open epoch and of
    /// the sealed ones.
    pub fn unpublished_blocks(&self) -> (u64, u64) {
        let (cached, staged) = (self.dirty.all(), self.staged.all());
        (cached.0 + staged.0, cached.1 + staged.1)
    }
}
