//! Buckets of a checkpoint, and the replay of the journal over them.
//!
//! All buckets but twins are open until the replay has ended. Then each of them is looked at as if
//! it had just become full.

use base::{BucketGen, BucketId, Epoch, RecordSeq};
use format::cache::bucket::{BucketKind, BucketRecord};
use model::cache::Policy;

use super::Buckets;
use super::bucket::Life;
use super::epochs::Epochs;
use super::nodes::NodeBuckets;
use super::replayed::Source;
use super::reuse::Reuse;
use crate::policy::replacement::Origin;

impl Buckets {
    /// Buckets as a checkpoint left them: `records` in order, none is open. All that is dirty, of
    /// epochs above `above`, counts as of `epoch`, the open one.
    pub fn restore(
        records: &[BucketRecord],
        blocks: u32,
        policy: Policy,
        seed: u64,
        above: Epoch,
        epoch: Epoch,
    ) -> Buckets {
        let mut b = Buckets::new(records.len() as u32, blocks, policy, seed, epoch);
        b.epochs = Epochs::new(epoch, above);
        b.source = Source::Disk(None);
        b.reuse = Reuse::new(std::iter::empty());
        for (id, f) in b.table.ids().zip(records) {
            let dirty = u32::from(f.dirty_open) + u32::from(f.dirty_cut);
            b.usage.restore_clock(f.generation);
            let it = b.table.change(id);
            it.generation = f.generation;
            it.kind = f.kind;
            it.live = f.live;
            if dirty > 0 {
                b.epochs.add(id, &mut it.dirt, dirty);
                b.counts.add_dirty(u64::from(dirty));
            }
            // Nothing is decided about it before replay has ended.
            it.life = Life::Open;
            if !f.kind.is_of_index() {
                b.counts.add_live(u64::from(f.live));
            }
        }
        b.nodes = NodeBuckets::restore(&mut b.table, records);
        b
    }

    /// After [`Buckets::restore`] and the journal's replay: finds out which buckets are free and
    /// which may be evicted. `epoch` is the open one now.
    pub(in crate::store) fn settle(&mut self, epoch: Epoch) {
        self.table.ids().for_each(|id| self.table.change(id).dirt.renumber(epoch));
        self.epochs.renumber(epoch);
        self.source = Source::Memory;
        self.usage.settle_clock();
        for id in self.table.ids() {
            let b = self.table.bucket(id);
            if b.life == Life::Open {
                if b.kind == BucketKind::Data {
                    // Which of its blocks were read is not known; where they came from neither.
                    self.usage.begin(id, Origin::Write, b.generation);
                }
                self.seal(id);
            }
        }
        self.journal_durable(RecordSeq(0));
    }

    /// As the replayed journal says, a bucket was evicted, and has this generation since.
    pub(in crate::store) fn raise(&mut self, id: BucketId, generation: BucketGen) {
        if !self.table.has(id) {
            return self.source.contradicts(format!("{id:?} was evicted, and is not there"));
        }
        let b = self.table.bucket(id);
        if b.generation == generation {
            return;
        }
        if b.kind.is_of_index() {
            let what = format!("{id:?} has nodes of the index, and was evicted");
            return self.source.contradicts(what);
        }
        let b = self.table.change(id);
        b.generation = generation;
        self.usage.restore_clock(generation);
        self.counts.remove_live(u64::from(b.live));
        b.live = 0;
        // All blocks of the bucket were in the pool by then.
        let dirty = u64::from(b.dirt.above(self.epochs.counted_above()));
        b.dirt.clear();
        if !self.counts.remove_dirty(dirty, self.epochs.open()) {
            let what = format!("{id:?} was evicted, and has more dirty blocks than all");
            self.source.contradicts(what);
        }
    }

    /// The first contradiction in what was replayed.
    pub(in crate::store) fn contradiction(&mut self) -> Option<String> {
        self.source.first_contradiction()
    }
}
