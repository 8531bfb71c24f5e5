//! The table of buckets: what is known of each by itself.

use base::{BucketGen, BucketId, CacheAddr};
use format::cache::bucket::{BucketKind, BucketRecord};

use super::bucket::{Bucket, UnrecordedFields};
use super::epochs::Moment;
use super::frozen::{FrozenBuckets, record_now};
use super::geometry::Geometry;

/// All buckets, and their records as a checkpoint has frozen them.
///
/// While records are frozen, they say what was true at that moment. So what a record says of a
/// bucket changes in one way only, [`Table::change`], which copies it first.
pub struct Table {
    geometry: Geometry,
    all: Vec<Bucket>,
    frozen: Option<FrozenBuckets>,
}

impl Table {
    /// Buckets that are all free.
    pub(super) fn new(geometry: Geometry) -> Table {
        Table { geometry, all: vec![Bucket::default(); geometry.count() as usize], frozen: None }
    }

    /// The number of buckets and their size.
    pub(super) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The numbers of all buckets.
    pub(super) fn ids(&self) -> impl Iterator<Item = BucketId> + use<> {
        (0..self.geometry.count()).map(BucketId)
    }

    /// A bucket.
    pub(super) fn bucket(&self, id: BucketId) -> &Bucket {
        &self.all[id.0 as usize]
    }

    /// A bucket that is about to change.
    pub(super) fn change(&mut self, id: BucketId) -> &mut Bucket {
        self.keep_frozen(id);
        &mut self.all[id.0 as usize]
    }

    /// A bucket of which only that is about to change which no record says.
    pub(super) fn unrecorded(&mut self, id: BucketId) -> UnrecordedFields<'_> {
        self.all[id.0 as usize].unrecorded()
    }

    /// Keeps the frozen record of a bucket that is about to change.
    pub(super) fn keep_frozen(&mut self, id: BucketId) {
        if let Some(frozen) = &mut self.frozen {
            frozen.keep(id.0 as usize, &self.all);
        }
    }

    /// Freezes the records as they are at a moment.
    pub(super) fn freeze_records(&mut self, moment: Moment) {
        assert!(self.frozen.is_none(), "one checkpoint at a time");
        self.frozen = Some(FrozenBuckets::new(moment, self.all.len()));
    }

    /// The frozen records are needed no more.
    pub(super) fn forget_frozen(&mut self) {
        self.frozen = None;
    }

    /// The record of a bucket at a moment, which is now.
    pub(super) fn record_now(&self, id: BucketId, moment: Moment) -> BucketRecord {
        record_now(&self.all, id.0 as usize, moment)
    }

    /// The records of a page of the table, as they were frozen.
    pub fn frozen_page(&self, page: u32) -> Vec<BucketRecord> {
        let frozen =
            self.frozen.as_ref().unwrap_or_else(|| unreachable!("a checkpoint has frozen them"));
        frozen.page(page, &self.all)
    }

    /// True if there is such a bucket.
    pub(super) fn has(&self, id: BucketId) -> bool {
        id.0 < self.geometry.count()
    }

    /// True if what points into the bucket of `addr` with `generation` is still good.
    pub fn is_current(&self, addr: CacheAddr, generation: BucketGen) -> bool {
        let id = self.geometry.of(addr);
        self.has(id) && self.bucket(id).generation == generation
    }

    /// The address of the second copy of the node at `addr`.
    pub fn copy_of(&self, addr: CacheAddr) -> Option<CacheAddr> {
        let id = Some(self.geometry.of(addr)).filter(|id| self.has(*id))?;
        let b = self.bucket(id);
        let twin = b.twin.filter(|_| b.kind == BucketKind::Nodes)?;
        Some(self.geometry.addr(twin, self.geometry.slot(addr)))
    }

    /// A bucket of nodes gave errors, or its twin did.
    pub(super) fn has_bad_twin(&self, id: BucketId) -> bool {
        let b = self.bucket(id);
        b.errors > 0 || b.twin.is_some_and(|t| self.bucket(t).errors > 0)
    }

    /// True if the bucket of `addr` is condemned.
    #[cfg(test)]
    pub fn has_errors(&self, addr: CacheAddr) -> bool {
        self.bucket(self.geometry.of(addr)).errors > 0
    }
}
