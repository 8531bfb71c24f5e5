//! A search for thin buckets, whose blocks are to be put together.

use base::{BucketGen, BucketId};
use format::cache::bucket::BucketKind;

use super::bucket::Life;
use super::epochs::Epochs;
use super::table::Table;

/// A thin bucket: at most half of it is to be moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThinBucket {
    pub id: BucketId,
    pub generation: BucketGen,
    /// All that is left of it is to be moved, not just what is dirty.
    pub whole: bool,
}

/// A search that goes round and round: each call looks at the buckets after those that were looked
/// at before.
#[derive(Default)]
pub(super) struct ThinSearch {
    /// The bucket that is looked at next.
    at: u32,
}

impl ThinSearch {
    /// Looks at up to `most` buckets. Of the unpinned ones that are thin, and not dirty in a sealed
    /// epoch, it pins the thinnest. It is found once in an epoch. `clean_too`: also if none of its
    /// blocks is dirty. `keeps_all`: what is clean in it is to be moved, too.
    pub fn pin_next(
        &mut self,
        table: &mut Table,
        epochs: &Epochs,
        most: u32,
        clean_too: bool,
        keeps_all: bool,
    ) -> Option<ThinBucket> {
        let (count, blocks) = (table.geometry().count(), table.geometry().bucket_blocks());
        let (open, above) = (epochs.open(), epochs.counted_above());
        let mut thinnest: Option<(u32, BucketId)> = None;
        for _ in 0..most.min(count) {
            let id = BucketId(self.at);
            self.at = (self.at + 1) % count;
            let b = table.bucket(id);
            let is_idle = b.pins.is_none() && !b.leaving;
            let is_used = (b.life, b.kind, is_idle) != (Life::Sealed, BucketKind::Data, true);
            if is_used || b.compacted_in == open {
                continue;
            }
            let dirty = match b.dirt.above(above) {
                0 => clean_too.then_some(0),
                _ => b.dirt.only_of(open, above),
            };
            let live = u32::from(b.live);
            let left = |dirty| if keeps_all && 2 * live <= blocks { live } else { dirty };
            let thin = dirty.map(left).filter(|left| (1..=blocks / 2).contains(left));
            thinnest = [thinnest, thin.map(|left| (left, id))].into_iter().flatten().min();
        }
        let (left, id) = thinnest?;
        let b = table.unrecorded(id);
        b.pins.add();
        *b.compacted_in = open;
        let b = table.bucket(id);
        let whole = keeps_all && left == u32::from(b.live);
        Some(ThinBucket { id, generation: b.generation, whole })
    }
}
