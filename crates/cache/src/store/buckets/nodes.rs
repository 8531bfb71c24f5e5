//! Buckets with nodes of the index.
//!
//! Each node stands twice: in a bucket of nodes, and at the same place of that bucket's *twin*. So
//! a sector that cannot be read costs no node. The address of a node is the one in the bucket of
//! nodes; the bucket table says which bucket is the twin. Both are taken together, and the twin is
//! free when the other one is. Where there is no room for two, a bucket of nodes has no twin. Such
//! nodes are written anew when there is room again, as are those of a bucket that gave errors.

use base::{BucketId, CacheAddr, Epoch, RecordSeq};
use format::cache::bucket::{BucketKind, BucketRecord};

use super::Buckets;
use super::bucket::Life;
use super::census::Stream;

/// Free buckets that are looked at for a twin: the one that is farthest away is taken, as sectors
/// go bad in neighbourhoods.
const TWINS_LOOKED_AT: usize = 32;

impl Buckets {
    /// Free buckets that nodes of a checkpoint may use: those that were free when it froze the
    /// records. They are in front.
    fn free_for_nodes(&self) -> usize {
        match self.freezes {
            0 => self.free.len(),
            now => self.free.partition_point(|id| self.all[id.0 as usize].freed_in != now),
        }
    }

    /// The bucket that is filled next with nodes, with a twin if the nodes that are `left` find
    /// room beside it.
    pub(super) fn take_for_nodes(&mut self, left: u64) -> Option<BucketId> {
        let free = self.free_for_nodes();
        if free == 0 {
            return None;
        }
        let id = self.free.pop_front()?;
        let beside = (free as u64).saturating_sub(2) * u64::from(self.blocks);
        if free > 1 && beside + u64::from(self.blocks) >= left {
            let far = |at: &usize| self.free[*at].0.abs_diff(id.0);
            let at = (0..(free - 1).min(TWINS_LOOKED_AT)).max_by_key(far);
            let twin = at.and_then(|at| self.free.remove(at));
            if let Some(twin) = twin {
                self.pair(id, twin);
            }
        }
        Some(id)
    }

    fn pair(&mut self, id: BucketId, twin: BucketId) {
        self.keep_frozen(id);
        self.keep_frozen(twin);
        self.all[id.0 as usize].twin = Some(twin);
        let t = &mut self.all[twin.0 as usize];
        (t.life, t.kind, t.twin) = (Life::Twin, BucketKind::Copies, Some(id));
        t.compacted_in = Epoch(0);
        self.nodes += 1;
    }

    /// As [`Buckets::restore`]: buckets of nodes and of copies find each other. What does not name
    /// a twin that names it back has none; copies of nothing are not needed.
    pub(super) fn restore_twins(&mut self, records: &[BucketRecord]) {
        let kind_of = |i: BucketId| records.get(i.0 as usize).map(|f| (f.kind, f.twin));
        for (i, f) in records.iter().enumerate() {
            let id = BucketId(i as u32);
            let other = match f.kind {
                BucketKind::Nodes => BucketKind::Copies,
                BucketKind::Copies => BucketKind::Nodes,
                BucketKind::Free | BucketKind::Data => continue,
            };
            let twin = f.twin.filter(|t| kind_of(*t) == Some((other, Some(id))));
            let b = &mut self.all[i];
            b.twin = twin;
            if f.kind == BucketKind::Nodes && twin.is_none() {
                self.nodes_once += u64::from(f.live);
            }
            if f.kind == BucketKind::Copies {
                b.live = 0;
                // Without nodes it is free when the replay has ended.
                b.life = if twin.is_some() { Life::Twin } else { Life::Open };
            }
        }
    }

    /// The buckets that are free, in the order in which nodes get them.
    #[cfg(test)]
    pub fn all_free(&self) -> Vec<BucketId> {
        self.free.iter().copied().collect()
    }

    /// The address of the second copy of the node at `addr`.
    pub fn copy_of(&self, addr: CacheAddr) -> Option<CacheAddr> {
        let b = self.all.get(self.of(addr).0 as usize)?;
        let twin = b.twin.filter(|_| b.kind == BucketKind::Nodes)?;
        let blocks = u64::from(self.blocks);
        Some(CacheAddr(u64::from(twin.0) * blocks + addr.0 % blocks))
    }

    /// A bucket of nodes gave errors, or its twin did.
    pub(super) fn has_bad_twin(&self, id: BucketId) -> bool {
        let b = &self.all[id.0 as usize];
        b.errors > 0 || b.twin.is_some_and(|t| self.all[t.0 as usize].errors > 0)
    }

    /// True if the nodes in a bucket are to be written elsewhere: most of them are gone, or they do
    /// not stand twice and could.
    pub(super) fn is_node_bucket_to_leave(&self, id: BucketId) -> bool {
        let b = &self.all[id.0 as usize];
        let once = b.twin.is_none() && self.free.len() > 1;
        u32::from(b.live - b.replaced) * 2 <= self.blocks || once || self.has_bad_twin(id)
    }

    /// The twin of a bucket goes with it.
    pub(super) fn retire_twin(&mut self, id: BucketId, told: RecordSeq, life: Life) {
        if let Some(twin) = self.all[id.0 as usize].twin.take() {
            self.all[twin.0 as usize].twin = None;
            self.retire_to(twin, told, life);
        }
    }

    /// Nodes that can be written without a bucket that is not free now, each twice.
    pub fn room_for_nodes(&self) -> u64 {
        u64::from(self.free() / 2) * u64::from(self.blocks)
            + u64::from(self.left_open(Stream::Nodes))
    }

    /// The same, each once at least.
    pub fn room_for_nodes_once(&self) -> u64 {
        u64::from(self.free()) * u64::from(self.blocks) + u64::from(self.left_open(Stream::Nodes))
    }

    /// Nodes of the index that have no second copy.
    pub fn nodes_once(&self) -> u64 {
        self.nodes_once
    }

    /// A node in this bucket is of no checkpoint to come; it goes when no read needs it.
    pub fn replace_node(&mut self, id: BucketId) {
        self.all[id.0 as usize].replaced += 1;
    }

    /// A node of the index at `addr` was written; or is needed no more.
    pub(in crate::store) fn add_node(&mut self, addr: CacheAddr) {
        let id = self.of(addr);
        self.keep_node_frozen(id);
        let b = &mut self.all[id.0 as usize];
        b.live += 1;
        self.index_nodes += 1;
        self.nodes_once += u64::from(b.twin.is_none());
    }

    /// A node of the index is needed no more.
    pub(in crate::store) fn remove_node(&mut self, addr: CacheAddr) {
        let id = self.of(addr);
        self.keep_node_frozen(id);
        let b = &mut self.all[id.0 as usize];
        assert!(
            b.replaced > 0 && b.kind == BucketKind::Nodes,
            "{id:?} has no nodes that were replaced"
        );
        b.replaced -= 1;
        b.live -= 1;
        self.index_nodes -= 1;
        self.nodes_once -= u64::from(b.twin.is_none());
        self.look_at(id, false);
    }

    /// Keeps the frozen records of a bucket and of its twin, both of which are about to change.
    fn keep_node_frozen(&mut self, id: BucketId) {
        self.keep_frozen(id);
        if let Some(twin) = self.all[id.0 as usize].twin {
            self.keep_frozen(twin);
        }
    }
}
