//! Which bucket goes, and what of it is kept.
//!
//! A victim without survivors is evicted at once. One with survivors is *leaving* until they have
//! moved; then it is a candidate again, the first of its queue. Where room is short, buckets are
//! evicted without waiting for that: then survivors are dropped.

use base::{BucketGen, BucketId, RecordSeq};

use super::Buckets;

/// The outcome of taking a victim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Victim {
    /// The victim is evicted, and has this generation now.
    Evicted(BucketId, BucketGen),
    /// Blocks of the victim are to be moved first. It is pinned.
    Leaving(BucketId, BucketGen),
}

impl Buckets {
    /// Evicts one bucket: raises its generation. It becomes free when the record that will tell of
    /// it is durable, which is the next one. `None`: there is none to be had.
    pub(in crate::store) fn evict(&mut self) -> Option<Victim> {
        let id = self.take_victim()?;
        let live = u64::from(self.table.bucket(id).live);
        let kept = self.usage.survivors(id).len() as u64;
        self.usage.lose_survivors(kept.min(live));
        Some(self.evict_victim(id))
    }

    /// The same for a bucket without survivors. One that has some is leaving.
    pub(in crate::store) fn evict_or_keep(&mut self) -> Option<Victim> {
        let id = self.take_victim()?;
        if self.usage.survivors(id).is_empty() {
            return Some(self.evict_victim(id));
        }
        self.usage.begin_leaving();
        let b = self.table.unrecorded(id);
        *b.leaving = true;
        b.pins.add();
        Some(Victim::Leaving(id, self.table.bucket(id).generation))
    }

    /// Evicts one bucket that is free at once, without a record: before anything is served. False:
    /// there is none to be had.
    pub fn evict_unlogged(&mut self) -> bool {
        let victim = self.take_victim();
        if let Some(id) = victim {
            self.raise_victim(id, self.clock);
        }
        self.journal_durable(self.clock);
        victim.is_some()
    }

    /// The survivors of a leaving bucket have moved, or were given up; its pin is given back.
    pub fn end_leaving(&mut self, id: BucketId) {
        let leaving = self.table.unrecorded(id).leaving;
        assert!(std::mem::take(leaving), "{id:?} was not leaving");
        self.usage.end_leaving(id);
        self.unpin(self.geometry().addr(id, 0));
    }

    fn take_victim(&mut self) -> Option<BucketId> {
        let table = &self.table;
        self.usage.take_victim(|id| table.bucket(id).pins.is_none())
    }

    fn evict_victim(&mut self, id: BucketId) -> Victim {
        Victim::Evicted(id, self.raise_victim(id, RecordSeq(self.clock.0 + 1)))
    }

    fn raise_victim(&mut self, id: BucketId, told: RecordSeq) -> BucketGen {
        let b = self.table.change(id);
        let live = std::mem::take(&mut b.live);
        let generation = self.usage.evict(id, b.generation, u32::from(live));
        b.generation = generation;
        self.counts.evicted(u64::from(live));
        self.retire(id, told);
        generation
    }
}
