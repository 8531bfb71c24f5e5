//! Buckets with nodes of the index.
//!
//! Each node stands twice: in a bucket of nodes, and at the same place of that bucket's *twin*. So
//! a sector that cannot be read costs no node. The address of a node is the one in the bucket of
//! nodes; the bucket table says which bucket is the twin. Both are taken together, and the twin is
//! free when the other one is. Where there is no room for two, a bucket of nodes has no twin. Such
//! nodes are written anew when there is room again, as are those of a bucket that gave errors.

use base::{BucketId, Epoch};
use format::cache::bucket::{BucketKind, BucketRecord};

use super::bucket::Life;
use super::reuse::Reuse;
use super::table::Table;

/// The number of nodes, and of the buckets that hold nodes or their copies.
///
/// A twin names the bucket of which it is the twin, and is named by it. While nodes stand in a
/// bucket, it keeps its twin, or stays without one: so the nodes without a copy can be counted.
#[derive(Default)]
pub struct NodeBuckets {
    buckets: u32,
    nodes: u64,
    /// Of these, in buckets without a twin.
    once: u64,
}

impl NodeBuckets {
    /// Buckets of nodes and of copies, as a checkpoint left them, find each other in `table`. A
    /// bucket that names no twin which names it back has none; copies of nothing are not needed.
    pub(super) fn restore(table: &mut Table, records: &[BucketRecord]) -> NodeBuckets {
        let mut all = NodeBuckets::default();
        let kind_of = |i: BucketId| records.get(i.0 as usize).map(|f| (f.kind, f.twin));
        for (i, f) in records.iter().enumerate() {
            let id = BucketId(i as u32);
            let other = match f.kind {
                BucketKind::Nodes => BucketKind::Copies,
                BucketKind::Copies => BucketKind::Nodes,
                BucketKind::Free | BucketKind::Data => continue,
            };
            all.buckets += 1;
            let twin = f.twin.filter(|t| kind_of(*t) == Some((other, Some(id))));
            let b = table.change(id);
            b.twin = twin;
            if f.kind == BucketKind::Nodes {
                all.nodes += u64::from(f.live);
                all.once += if twin.is_none() { u64::from(f.live) } else { 0 };
            }
            if f.kind == BucketKind::Copies {
                b.live = 0;
                // Without nodes it is free when the replay has ended.
                b.life = if twin.is_some() { Life::Twin } else { Life::Open };
            }
        }
        all
    }

    /// Buckets of nodes and of copies.
    pub(super) fn buckets(&self) -> u32 {
        self.buckets
    }

    /// Nodes of the index.
    pub fn index_nodes(&self) -> u64 {
        self.nodes
    }

    /// Nodes of the index that have no second copy.
    pub fn nodes_once(&self) -> u64 {
        self.once
    }

    /// Blocks in which nodes of the index stand.
    pub fn node_blocks(&self) -> u64 {
        2 * self.nodes - self.once
    }

    /// The bucket that is filled next with nodes, with a twin if the nodes that are `left` find
    /// room beside it.
    pub(super) fn take_for_nodes(
        &mut self,
        table: &mut Table,
        reuse: &mut Reuse,
        left: u64,
    ) -> Option<BucketId> {
        let free = reuse.free_for_nodes(table);
        if free == 0 {
            return None;
        }
        let id = reuse.take_first()?;
        self.buckets += 1;
        let blocks = u64::from(table.geometry().bucket_blocks());
        let beside = (free as u64).saturating_sub(2) * blocks;
        if free > 1
            && beside + blocks >= left
            && let Some(twin) = reuse.take_far(id, free - 1)
        {
            self.pair(table, id, twin);
        }
        Some(id)
    }

    fn pair(&mut self, table: &mut Table, id: BucketId, twin: BucketId) {
        table.change(id).twin = Some(twin);
        let t = table.change(twin);
        (t.life, t.kind, t.twin) = (Life::Twin, BucketKind::Copies, Some(id));
        t.compacted_in = Epoch(0);
        self.buckets += 1;
    }

    /// A bucket holds nothing any more. Returns its twin, which goes with it.
    pub(super) fn let_twin_go(&mut self, table: &mut Table, id: BucketId) -> Option<BucketId> {
        if !table.bucket(id).kind.is_of_index() {
            return None;
        }
        self.buckets -= 1;
        let twin = table.change(id).twin.take()?;
        table.change(twin).twin = None;
        self.buckets -= 1;
        Some(twin)
    }

    /// A node was written into a bucket.
    pub(super) fn enter(&mut self, table: &mut Table, id: BucketId) {
        keep_both(table, id);
        let b = table.change(id);
        b.live += 1;
        self.nodes += 1;
        self.once += u64::from(b.twin.is_none());
    }

    /// A node in a bucket, which was replaced, is needed no more.
    pub(super) fn leave(&mut self, table: &mut Table, id: BucketId) {
        keep_both(table, id);
        let b = table.change(id);
        assert!(
            b.replaced > 0 && b.kind == BucketKind::Nodes,
            "{id:?} has no nodes that were replaced"
        );
        b.replaced -= 1;
        b.live -= 1;
        self.nodes -= 1;
        self.once -= u64::from(b.twin.is_none());
    }
}

/// Keeps the frozen records of a bucket and of its twin, both of which are about to change.
fn keep_both(table: &mut Table, id: BucketId) {
    table.keep_frozen(id);
    if let Some(twin) = table.bucket(id).twin {
        table.keep_frozen(twin);
    }
}
