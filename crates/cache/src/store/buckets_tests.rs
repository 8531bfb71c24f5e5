//! Buckets against a model that keeps every block by itself.

use std::collections::BTreeMap;

use base::{BucketGen, BucketId, CacheAddr, Epoch, Prng, RecordSeq};
use format::cache::bucket::{BucketKind, BucketRecord};
use model::cache::Policy;

use super::bucket::Life;
use super::{Buckets, Stream, ThinBucket, Victim};

const BUCKETS: u32 = 24;
const BLOCKS: u32 = 8;

/// A block: the epoch in which it was written, and whether a key names it still.
#[derive(Clone, Copy, Debug)]
struct Block {
    generation: BucketGen,
    written: Option<Epoch>,
    live: bool,
    /// The epoch that it counts for.
    class: Option<Epoch>,
}

struct Model {
    buckets: Buckets,
    blocks: BTreeMap<CacheAddr, Block>,
    published: Epoch,
    sealed: Vec<Epoch>,
    clock: RecordSeq,
    /// Buckets whose survivors move.
    leaving: Vec<BucketId>,
    rng: Prng,
}

impl Model {
    fn of(&self, id: u32) -> impl Iterator<Item = &Block> {
        let from = u64::from(id * BLOCKS);
        self.blocks.range(CacheAddr(from)..CacheAddr(from + u64::from(BLOCKS))).map(|(_, b)| b)
    }

    fn dirty(&self, id: u32) -> usize {
        self.of(id).filter(|b| b.class.is_some()).count()
    }

    fn step(&mut self) {
        self.clock.0 += 1;
        self.buckets.set_clock(self.clock);
        match self.rng.below(50) {
            40..46 => self.touch(),
            46..48 => self.leave(),
            48.. => self.end_leaving(),
            0..18 => self.append(),
            18..30 => self.remove(),
            30..32 => {
                let epoch = self.buckets.take_cut();
                self.sealed.push(epoch);
            }
            32..34 if !self.sealed.is_empty() => self.publish(),
            34..36 => self.evict(),
            36..38 => drop(self.buckets.tidy(3)),
            _ => drop(self.buckets.journal_durable(self.clock)),
        }
        self.compare();
    }

    fn append(&mut self) {
        let stream = [Stream::Writes, Stream::Writes, Stream::Promoted][self.rng.below(3) as usize];
        let want = 1 + self.rng.below(4) as u32;
        let Some((addr, len, generation)) = self.buckets.append(stream, want) else { return };
        let dirty = stream == Stream::Writes;
        self.buckets.add(addr, len, dirty);
        self.buckets.unpin(addr);
        let written = dirty.then_some(self.buckets.epochs().open());
        for at in addr.0..addr.0 + u64::from(len) {
            let before = self
                .blocks
                .insert(CacheAddr(at), Block { generation, written, live: true, class: written });
            assert!(
                before.is_none_or(|b| !b.live && b.class.is_none()),
                "{at} was needed: {before:?}"
            );
        }
    }

    fn remove(&mut self) {
        let live: Vec<CacheAddr> =
            self.blocks.iter().filter(|(_, b)| b.live).map(|(a, _)| *a).collect();
        if live.is_empty() {
            return;
        }
        let addr = live[self.rng.below(live.len() as u64) as usize];
        let Some(b) = self.blocks.get_mut(&addr) else { return };
        b.live = false;
        let written = b.written.filter(|w| *w > self.published);
        assert_eq!(self.buckets.epochs().counted(b.written), written);
        if b.class.is_some_and(|class| !self.sealed.contains(&class)) {
            b.class = None;
        }
        self.buckets.remove(addr, b.generation, 1, written);
    }

    fn publish(&mut self) {
        let upto = self.sealed[self.rng.below(self.sealed.len() as u64) as usize];
        self.sealed.retain(|e| *e > upto);
        self.published = upto;
        self.blocks.values_mut().for_each(|b| b.class = b.class.filter(|e| *e > upto));
        self.buckets.publish(upto);
        if self.rng.one_in(2) {
            while self.buckets.tidy(5) {}
        }
    }

    /// Blocks are hit.
    fn touch(&mut self) {
        let live = self.blocks.iter().filter(|(_, b)| b.live).map(|(addr, _)| *addr);
        let live: Vec<CacheAddr> = live.collect();
        if !live.is_empty() {
            self.buckets.usage_mut().touch(live[self.rng.below(live.len() as u64) as usize], 1);
        }
    }

    /// The next victim goes, or its survivors are to move.
    fn leave(&mut self) {
        match self.buckets.evict_or_keep() {
            Some(Victim::Evicted(id, _)) => self.evicted(id),
            Some(Victim::Leaving(id, _)) => {
                assert!(self.dirty(id.0) == 0 && !self.buckets.usage().survivors(id).is_empty());
                self.leaving.push(id);
            }
            None => {}
        }
        assert_eq!(self.buckets.usage().leaving() as usize, self.leaving.len());
    }

    fn end_leaving(&mut self) {
        if let Some(id) = self.leaving.pop() {
            self.buckets.end_leaving(id);
        }
    }

    fn evict(&mut self) {
        if let Some(Victim::Evicted(id, _)) = self.buckets.evict() {
            self.evicted(id);
        }
    }

    fn evicted(&mut self, id: BucketId) {
        assert!(!self.leaving.contains(&id), "{id:?} is still needed");
        assert_eq!(self.dirty(id.0), 0, "{id:?} had something dirty");
        // Its record.
        self.clock.0 += 1;
        self.buckets.set_clock(self.clock);
        let from = u64::from(id.0 * BLOCKS);
        self.blocks.retain(|a, _| a.0 < from || a.0 >= from + u64::from(BLOCKS));
    }

    fn compare(&self) {
        let newest = self.sealed.last().copied().unwrap_or(self.published);
        let b = &self.buckets;
        for id in 0..BUCKETS {
            let BucketRecord { live, dirty_open, dirty_cut, .. } = b.record(BucketId(id));
            let found = (live.into(), dirty_open.into(), dirty_cut.into());
            let named = |from: Epoch, upto: Epoch| {
                self.of(id)
                    .filter(|b| b.live && b.written.is_some_and(|w| w > from && w <= upto))
                    .count()
            };
            let live = self.of(id).filter(|b| b.live).count();
            assert_eq!(
                found,
                (live, named(newest, b.epochs().open()), named(self.published, newest)),
                "bucket {id}"
            );
            assert_eq!(
                b.table().bucket(BucketId(id)).dirt.above(self.published) as usize,
                self.dirty(id),
                "bucket {id}"
            );
            if matches!(b.table().bucket(BucketId(id)).life, Life::Free | Life::Pending) {
                assert_eq!((live, self.dirty(id)), (0, 0), "bucket {id} is needed");
            }
        }
        let count = |f: &dyn Fn(Epoch) -> bool| {
            self.blocks.values().filter(|b| b.class.is_some_and(f)).count() as u64
        };
        assert_eq!(
            b.counts().dirty_blocks(),
            (count(&|e| e == b.epochs().open()), count(&|e| e != b.epochs().open()))
        );
        for upto in &self.sealed {
            assert_eq!(b.counts().dirty_blocks_upto(*upto), count(&|e| e <= *upto));
        }
        assert_eq!(b.epochs().cut(), self.sealed.last().copied());
        assert_eq!(b.epochs().counted_above(), self.published);
    }
}

#[test]
fn counters_are_those_of_a_model_whatever_is_sealed_and_published() {
    let (mut most, mut evicted) = (0, 0);
    for seed in 0..40 {
        let buckets = Buckets::new(
            BUCKETS,
            BLOCKS,
            Policy::ALL[seed as usize % Policy::ALL.len()],
            seed,
            Epoch(1),
        );
        let (blocks, sealed, rng) = (BTreeMap::new(), Vec::new(), Prng::new(seed));
        let mut m = Model {
            buckets,
            blocks,
            published: Epoch(0),
            sealed,
            clock: RecordSeq(0),
            leaving: Vec::new(),
            rng,
        };
        for _ in 0..1500 {
            let before = m.blocks.len();
            m.step();
            most = most.max(m.sealed.len());
            evicted += u32::from(m.blocks.len() < before);
        }
        // When everything is published, nothing is dirty, and all can be had again.
        let newest = m.buckets.take_cut();
        m.sealed.push(newest);
        m.sealed.clear();
        m.published = newest;
        m.blocks.values_mut().for_each(|b| b.class = None);
        m.buckets.publish(newest);
        while m.buckets.tidy(7) {}
        while !m.leaving.is_empty() {
            m.end_leaving();
        }
        m.compare();
        for _ in 0..BUCKETS {
            m.evict();
        }
        m.buckets.journal_durable(m.clock);
        // But for one that each stream fills.
        assert!(m.buckets.reuse().free() >= BUCKETS - 2, "seed {seed}: {:?}", m.buckets.census());
    }
    assert!(most > 4 && evicted > 100, "{most} sealed at most, {evicted} evictions");
}

#[test]
fn a_key_counts_for_the_oldest_sealed_epoch_that_is_not_before_it() {
    // As after a restart: three blocks are dirty, of epochs that are not told apart, and what comes
    // up to epoch 7 is published as of no checkpoint.
    let records = vec![BucketRecord {
        kind: BucketKind::Data,
        live: 5,
        dirty_open: 1,
        dirty_cut: 2,
        ..BucketRecord::default()
    }];
    let mut b = Buckets::restore(&records, 8, Policy::Fifo, 0, Epoch(4), Epoch(6));
    assert_eq!((b.counts().dirty_blocks(), b.epochs().counted_above()), ((3, 0), Epoch(4)));
    b.settle(Epoch(8));
    assert_eq!(b.epochs().class_of(Epoch(5)), Epoch(8));
    assert_eq!((b.take_cut(), b.take_cut()), (Epoch(8), Epoch(9)));
    let classes = [5, 8, 9, 10].map(|w| b.epochs().class_of(Epoch(w)).0);
    assert_eq!(classes, [8, 8, 9, 10]);
    b.remove(CacheAddr(1), BucketGen(0), 1, Some(Epoch(6)));
    let record = b.record(BucketId(0));
    assert_eq!(
        (record.live, record.dirty_open, record.dirty_cut, b.counts().dirty_blocks()),
        (4, 0, 2, (0, 3))
    );
    b.publish(Epoch(8));
    assert_eq!(
        (b.counts().dirty_blocks(), b.epochs().counted_above(), b.epochs().cut()),
        ((0, 0), Epoch(8), Some(Epoch(9)))
    );
}

#[test]
fn the_thinnest_bucket_is_found_once_in_an_epoch() {
    let mut b = Buckets::new(8, 8, Policy::Fifo, 0, Epoch(1));
    let filled = [(); 4].map(|()| {
        let at = fill(&mut b, true);
        b.geometry().of(at)
    });
    let overwrite = |b: &mut Buckets, id: BucketId, len| {
        b.remove(CacheAddr(u64::from(id.0) * 8), BucketGen(0), len, Some(b.epochs().open()));
    };
    assert_eq!(b.pin_thinnest(8, false), None);
    for (&id, len) in filled.iter().zip([3, 4, 6, 5]) {
        overwrite(&mut b, id, len);
    }
    // Of the first, more than half is dirty.
    let mut found = Vec::new();
    while let Some(thin) = b.pin_thinnest(8, false) {
        b.unpin(CacheAddr(u64::from(thin.id.0) * 8));
        found.push(thin.id);
    }
    assert_eq!(found, [filled[2], filled[3], filled[1]]);
    // A cut needs its blocks where they are.
    let cut = b.take_cut();
    assert_eq!(b.pin_thinnest(8, false), None);
    b.publish(cut);
    let next = fill(&mut b, true);
    let next = b.geometry().of(next);
    overwrite(&mut b, next, 7);
    b.pin(CacheAddr(u64::from(next.0) * 8));
    assert_eq!(b.pin_thinnest(8, false), None, "it is read");
    b.unpin(CacheAddr(u64::from(next.0) * 8));
    let thin = ThinBucket { id: next, generation: BucketGen(0), whole: true };
    assert_eq!(b.pin_thinnest(8, false), Some(thin));
}

fn fill(b: &mut Buckets, dirty: bool) -> CacheAddr {
    let (at, ..) = b.append(Stream::Writes, 8).expect("one is free");
    b.add(at, b.filling().capacity(Stream::Writes), dirty);
    b.unpin(at);
    at
}

/// The thinnest bucket, and whether all of it is to be moved.
fn thin(b: &mut Buckets, clean_too: bool) -> Option<(BucketId, bool)> {
    let thin = b.pin_thinnest(4, clean_too)?;
    b.unpin(CacheAddr(u64::from(thin.id.0) * 8));
    Some((thin.id, thin.whole))
}

/// While most of the cache is garbage, what is clean is not lost for it.
#[test]
fn what_is_clean_is_moved_too_while_half_is_garbage() {
    let mut b = Buckets::new(4, 8, Policy::Adaptive, 0, Epoch(1));
    let [clean, dirty] = [false, true].map(|d| fill(&mut b, d));
    let len = b.filling().capacity(Stream::Writes);
    b.remove(clean, BucketGen(0), len - 2, None);
    b.remove(dirty, BucketGen(0), len - 3, Some(Epoch(1)));
    assert!(b.is_half_garbage());
    assert_eq!(thin(&mut b, false), Some((b.geometry().of(dirty), true)));
    assert_eq!(thin(&mut b, false), None);
    assert_eq!(thin(&mut b, true), Some((b.geometry().of(clean), true)));
    assert_eq!(thin(&mut b, true), None, "it was tried in this epoch");
}

#[test]
fn only_what_is_dirty_is_moved_while_more_than_half_is_needed() {
    let mut b = Buckets::new(4, 8, Policy::Adaptive, 0, Epoch(1));
    let [clean, dirty, ..] = [false, true, false, false].map(|d| fill(&mut b, d));
    let len = b.filling().capacity(Stream::Writes);
    b.remove(clean, BucketGen(0), len - 2, None);
    b.remove(dirty, BucketGen(0), len - 1, Some(Epoch(1)));
    assert!(!b.is_half_garbage());
    assert_eq!(thin(&mut b, true), Some((b.geometry().of(dirty), false)));
    assert_eq!(thin(&mut b, true), None);
}

/// As many reads as clients like may wait for one bucket.
#[test]
fn a_bucket_counts_more_pins_than_it_has_blocks() {
    let mut b = Buckets::new(4, 8, Policy::Fifo, 0, Epoch(1));
    let at = fill(&mut b, false);
    let many = 3 * (usize::from(u16::MAX) + 1);
    (0..many).for_each(|_| b.pin(at));
    assert!(b.evict().is_none(), "it is read");
    (1..many).for_each(|_| b.unpin(at));
    assert!(b.evict().is_none(), "it is read still");
    b.unpin(at);
    assert!(b.evict().is_some());
}
