//! Buckets that hold nothing: those that are free, and those that are not free yet.
//!
//! A bucket that nothing needs any more is not free yet. What made it so (an overwrite, or the
//! raised generation) must be durable in the journal before its bytes may be overwritten: until
//! then it is *pending*, with the number of the record that will say so. A bucket that gave errors
//! is *retired* instead: it is not used again.

use std::collections::VecDeque;

use base::{BucketId, RecordSeq};
use format::cache::bucket::BucketKind;

use super::bucket::Life;
use super::table::Table;

/// Free buckets that are looked at for a twin: the one that is farthest away is taken, as sectors
/// go bad in neighbourhoods.
const TWINS_LOOKED_AT: usize = 32;

/// Buckets that hold nothing. Each of them is in one of the two lists, or is counted as retired.
///
/// Free buckets are in the order in which they became free. So those that were free when records
/// were frozen last are in front: only these may be taken for nodes of a checkpoint.
pub struct Reuse {
    free: VecDeque<BucketId>,
    /// Become free, in order, when the journal's record is durable.
    pending: VecDeque<(RecordSeq, BucketId)>,
    retired: u32,
    /// The number of times that records were frozen.
    freezes: u32,
}

impl Reuse {
    /// With these free buckets.
    pub(super) fn new(free: impl Iterator<Item = BucketId>) -> Reuse {
        Reuse { free: free.collect(), pending: VecDeque::new(), retired: 0, freezes: 0 }
    }

    /// Buckets that may be filled at once.
    pub fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Buckets that wait for the journal.
    pub fn pending(&self) -> u32 {
        self.pending.len() as u32
    }

    /// Buckets that are free, or will be when the journal is durable.
    pub fn free_soon(&self) -> u32 {
        self.free() + self.pending()
    }

    /// Buckets that are not used any more.
    pub(super) fn retired(&self) -> u32 {
        self.retired
    }

    /// The buckets that are free, in the order in which nodes get them.
    #[cfg(test)]
    pub fn all_free(&self) -> Vec<BucketId> {
        self.free.iter().copied().collect()
    }

    /// Records are frozen: what becomes free from now on is not for nodes of this checkpoint.
    pub(super) fn note_freeze(&mut self) {
        self.freezes += 1;
    }

    /// Free buckets that nodes of a checkpoint may use: those that were free when it froze the
    /// records.
    pub(super) fn free_for_nodes(&self, table: &Table) -> usize {
        match self.freezes {
            0 => self.free.len(),
            now => self.free.partition_point(|id| table.bucket(*id).freed_in != now),
        }
    }

    /// Takes the bucket that is free for the longest time.
    pub(super) fn take_first(&mut self) -> Option<BucketId> {
        self.free.pop_front()
    }

    /// Takes the bucket that became free last.
    pub(super) fn take_last(&mut self) -> Option<BucketId> {
        self.free.pop_back()
    }

    /// Takes a bucket far away from `id`, out of the first `among` ones.
    pub(super) fn take_far(&mut self, id: BucketId, among: usize) -> Option<BucketId> {
        let far = |at: &usize| self.free[*at].0.abs_diff(id.0);
        let at = (0..among.min(TWINS_LOOKED_AT)).max_by_key(far);
        at.and_then(|at| self.free.remove(at))
    }

    /// A bucket holds nothing any more. The record `told` of the journal says so.
    pub(super) fn retire(&mut self, table: &mut Table, id: BucketId, told: RecordSeq) {
        let b = table.change(id);
        b.kind = BucketKind::Free;
        b.dirt.clear();
        if b.errors > 0 {
            b.life = Life::Retired;
            self.retired += 1;
            return;
        }
        b.life = Life::Pending;
        self.pending.push_back((told, id));
    }

    /// All records of the journal up to `record` are durable: what waited for them is free. Returns
    /// whether anything became so.
    pub(super) fn free_durable(&mut self, table: &mut Table, record: RecordSeq) -> bool {
        let before = self.free.len();
        while let Some(&(needs, id)) = self.pending.front() {
            if needs > record {
                break;
            }
            self.pending.pop_front();
            let b = table.unrecorded(id);
            *b.life = Life::Free;
            *b.freed_in = self.freezes;
            self.free.push_back(id);
        }
        self.free.len() > before
    }
}
