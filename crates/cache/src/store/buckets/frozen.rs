//! Records of all buckets as they were at a moment, for a checkpoint. Taking them is O(1): a page
//! of buckets is copied when the first of it changes after that moment, or when the checkpoint
//! comes to it.

use base::BucketGen;
use format::cache::bucket::{BucketKind, BucketRecord, RECORDS_PER_PAGE};

use super::bucket::Bucket;
use super::epochs::Moment;

/// Buckets are copied in pages of so many: those that stand in one page of the table.
const PAGE: usize = RECORDS_PER_PAGE;

/// The moment, and what was copied of it.
pub(super) struct FrozenBuckets {
    moment: Moment,
    pages: Vec<Option<Box<[BucketRecord]>>>,
}

impl FrozenBuckets {
    pub fn new(moment: Moment, buckets: usize) -> FrozenBuckets {
        FrozenBuckets {
            moment,
            pages: std::iter::repeat_with(|| None).take(buckets.div_ceil(PAGE)).collect(),
        }
    }

    /// Bucket `i` of `all` is about to change.
    pub fn keep(&mut self, i: usize, all: &[Bucket]) {
        let page = &mut self.pages[i / PAGE];
        if page.is_none() {
            let from = i / PAGE * PAGE;
            let to = all.len().min(from + PAGE);
            *page = Some(all[from..to].iter().map(|b| b.record_at(self.moment)).collect());
        }
    }

    /// The records of a page of the table: as they were frozen, but for buckets of nodes and of
    /// their copies, which are as the checkpoint leaves them. The checkpoint's own nodes count.
    /// Nodes that were replaced do not, though they may still be read.
    pub fn page(&self, page: u32, all: &[Bucket]) -> Vec<BucketRecord> {
        let from = page as usize * PAGE;
        let to = all.len().min(from + PAGE);
        let copied = self.pages[page as usize].as_deref();
        let empty = |generation: BucketGen| BucketRecord { generation, ..BucketRecord::default() };
        let one = |(i, now): (usize, &Bucket)| {
            let then = copied.map_or_else(|| now.record_at(self.moment), |copied| copied[i]);
            let nodes = nodes_in(all, from + i).map(|(live, replaced)| live - replaced);
            match (nodes, then.kind.is_of_index()) {
                (Some(live @ 1..), _) => BucketRecord { live, ..now.record_at(self.moment) },
                // Free for an open of this checkpoint. It may hold data by then, which the journal
                // tells.
                (Some(0), _) => empty(now.generation),
                (None, true) => empty(then.generation),
                (None, false) => then,
            }
        };
        all[from..to].iter().enumerate().map(one).collect()
    }
}

/// The nodes in a bucket of nodes, or of their copies, and how many of them were replaced.
fn nodes_in(all: &[Bucket], i: usize) -> Option<(u16, u16)> {
    let b = &all[i];
    match (b.kind, b.twin) {
        (BucketKind::Nodes, _) => Some((b.live, b.replaced)),
        (BucketKind::Copies, Some(of)) => nodes_in(all, of.0 as usize),
        (BucketKind::Copies, None) => Some((0, 0)),
        (BucketKind::Free | BucketKind::Data, _) => None,
    }
}

/// The record of bucket `i`.
pub(super) fn record_now(all: &[Bucket], i: usize, moment: Moment) -> BucketRecord {
    let record = all[i].record_at(moment);
    BucketRecord { live: nodes_in(all, i).map_or(record.live, |(live, _)| live), ..record }
}

#[cfg(test)]
mod tests {
    use base::{BucketId, CacheAddr, Epoch, RecordSeq};
    use model::cache::Policy;

    use super::*;

    use crate::store::buckets::Buckets;
    use crate::store::buckets::census::Stream;

    /// A source of numbers that is the same each time.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % n
        }
    }

    /// Buckets with blocks that an index would name.
    struct World {
        buckets: Buckets,
        dice: Dice,
        published: Epoch,
        data: Vec<(CacheAddr, BucketGen, Option<Epoch>)>,
        nodes: Vec<CacheAddr>,
        replaced: Vec<CacheAddr>,
    }

    impl World {
        fn change(&mut self) {
            let b = &mut self.buckets;
            match self.dice.below(20) {
                0..9 => {
                    let stream =
                        [Stream::Writes, Stream::Promoted, Stream::Main][self.dice.below(3)];
                    let Some((addr, _, generation)) = b.append(stream, 1) else { return };
                    let dirty = stream == Stream::Writes;
                    b.add(addr, 1, dirty);
                    b.unpin(addr);
                    self.data.push((addr, generation, dirty.then_some(b.epochs().open())));
                }
                9..15 if !self.data.is_empty() => {
                    let (addr, generation, written) =
                        self.data.swap_remove(self.dice.below(self.data.len()));
                    b.remove(addr, generation, 1, written.filter(|e| *e > self.published));
                }
                15 => drop(b.evict()),
                16 => drop(b.take_cut()),
                17 if b.epochs().cut().is_some() => {
                    let unpublished = (b.epochs().open().0 - self.published.0 - 1) as usize;
                    self.published.0 += 1 + self.dice.below(unpublished) as u32;
                    b.publish(self.published);
                    while b.tidy(3) {}
                }
                18 if !self.replaced.is_empty() => {
                    b.remove_node(self.replaced.swap_remove(self.dice.below(self.replaced.len())));
                }
                _ => drop(b.journal_durable(RecordSeq(u64::MAX))),
            }
        }

        fn all(&self) -> Vec<BucketRecord> {
            (0..self.buckets.geometry().count()).map(|i| self.buckets.record(BucketId(i))).collect()
        }
    }

    #[test]
    fn what_was_frozen_stays_while_everything_changes() {
        // Three pages, the last of them not full.
        let buckets = Buckets::new(2 * PAGE as u32 + 40, 4, Policy::Fifo, 1, Epoch(1));
        let (data, nodes, replaced) = (Vec::new(), Vec::new(), Vec::new());
        let mut w = World { buckets, dice: Dice(7), published: Epoch(0), data, nodes, replaced };
        let mut differed = 0;
        for round in 0..200 {
            (0..w.dice.below(400)).for_each(|_| w.change());
            let then = w.all();
            w.buckets.freeze();
            (0..w.dice.below(400)).for_each(|_| w.change());
            // The checkpoint writes nodes, and replaces some of those that were there.
            while w.nodes.len() < 30
                && let Some((addr, ..)) = w.buckets.append(Stream::Nodes, 1)
            {
                w.buckets.add_node(addr);
                w.buckets.unpin(addr);
                w.nodes.push(addr);
            }
            for _ in 0..w.dice.below(20).min(w.nodes.len()) {
                let addr = w.nodes.swap_remove(w.dice.below(w.nodes.len()));
                w.buckets.replace_node(w.buckets.geometry().of(addr));
                w.replaced.push(addr);
            }
            (0..w.dice.below(400)).for_each(|_| w.change());
            let found: Vec<BucketRecord> =
                (0..3).flat_map(|page| w.buckets.table().frozen_page(page)).collect();
            w.buckets.thaw();
            differed += u32::from(found != w.all());
            assert_eq!(found.len(), then.len());
            for (i, (found, then)) in found.iter().zip(&then).enumerate() {
                let here = |addr: &&CacheAddr| w.buckets.geometry().of(**addr).0 as usize == i;
                let copied = |addr: &&CacheAddr| {
                    let copy = w.buckets.table().copy_of(**addr);
                    copy.is_some_and(|copy| w.buckets.geometry().of(copy).0 as usize == i)
                };
                let nodes = w.nodes.iter().filter(here).count();
                let copies = w.nodes.iter().filter(copied).count();
                let is = (found.kind, found.live);
                let place = format!("bucket {i} in round {round}");
                match (nodes, copies) {
                    (0, 0) if then.kind.is_of_index() => {
                        assert_eq!(is, (BucketKind::Free, 0), "{place}");
                    }
                    (0, 0) => assert_eq!(found, then, "{place}"),
                    (0, n) => assert_eq!(is, (BucketKind::Copies, n as u16), "{place}"),
                    (n, _) => assert_eq!(is, (BucketKind::Nodes, n as u16), "{place}"),
                }
            }
        }
        assert!(differed > 150, "{differed} of 200 times was it anything but what is now");
    }
}
