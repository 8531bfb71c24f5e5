//! Index and buckets against a map that has each block by itself. The store holds 16 nodes, and all
//! of them come by faults: a fault may have changed nothing, in the tree, in the buckets' counters
//! or in the keys'.

use std::collections::{BTreeMap, BTreeSet};

use base::{BLOCK, BucketGen, BucketId, Crc, Prng, RecordSeq, Sectors};
use btree::{Cursor, Stop, WriteOut};
use format::tree::INDEX_TREE;
use model::cache::Policy;
use rustc_hash::FxHashMap;

use super::*;

use crate::store::buckets::census::Stream;
use crate::store::index_walk::IndexWalk;
use crate::store::key::Crcs;
use format::cache::bucket::{BucketKind, BucketRecord};
use format::cache::index::{MAX_EXTENT_BLOCKS, StagedBelow};

const BUCKETS: u32 = 1200;
const BLOCKS: u32 = 16;
const VOLUMES: u64 = 3;
const VOLUME_BLOCKS: u64 = 40_000;

/// What a block is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Block {
    Data { addr: CacheAddr, generation: BucketGen, crc: Crc, written: Option<Epoch>, cover: Cover },
    Staged { crc: Crc, epoch: Epoch },
    Zeros { epoch: Epoch },
}

/// The blocks of an extent.
fn blocks(e: &IndexKey) -> impl Iterator<Item = ((VolumeId, u64), Block)> {
    let epoch = e.written.unwrap_or_default();
    (e.lba.0..e.end()).enumerate().map(move |(i, lba)| {
        let block = match &e.body {
            Body::Data { addr, generation, crcs, cover } => Block::Data {
                addr: CacheAddr(addr.0 + i as u64),
                generation: *generation,
                crc: crcs[i],
                written: e.written,
                cover: *cover,
            },
            Body::Staged { crcs } => Block::Staged { crc: crcs[i], epoch },
            Body::Zeros { .. } => Block::Zeros { epoch },
        };
        ((e.volume, lba), block)
    })
}

struct World {
    index: Index,
    buckets: Buckets,
    disk: FxHashMap<PoolAddr, Vec<u8>>,
    model: BTreeMap<(VolumeId, u64), Block>,
    sealed: Vec<Epoch>,
    clock: RecordSeq,
    crc: Crc,
    next_node: u64,
    faults: u64,
    /// Parts that were written, and how many of those that were looked up are parts.
    parts: (u64, u64),
    rng: Prng,
}

impl World {
    fn new(seed: u64) -> World {
        let buckets = Buckets::new(BUCKETS, BLOCKS, Policy::ALL[seed as usize % 4], seed, Epoch(1));
        World {
            index: Index::open(Tree::new(INDEX_TREE), Store::new(16), Generation(1), Epoch(0)),
            buckets,
            disk: FxHashMap::default(),
            model: BTreeMap::new(),
            sealed: Vec::new(),
            clock: RecordSeq(0),
            crc: 0,
            next_node: 0,
            faults: 0,
            parts: (0, 0),
            rng: Prng::new(seed),
        }
    }

    /// All that an edit changes, or a fault may not.
    fn counters(&self) -> impl PartialEq + std::fmt::Debug + use<> {
        let b = &self.buckets;
        let all: Vec<_> = (0..BUCKETS).map(|id| b.record(BucketId(id)).live).collect();
        let keys = (self.index.keys, self.index.changes.dirty());
        let b = b.counts();
        (all, b.dirty_blocks(), b.stale_blocks(), b.staged_named(), keys)
    }

    /// Runs a step, and loads a node for each fault.
    fn run<T>(&mut self, mut step: impl FnMut(&mut Index, &mut Buckets) -> Step<T>) -> T {
        for tries in 0.. {
            assert!(tries < 10_000, "it does not come to rest");
            let before = (tries < 3).then(|| self.counters());
            let fault = match step(&mut self.index, &mut self.buckets) {
                Ok(t) => return t,
                Err(Stop::Fault(fault)) => fault,
                Err(Stop::Error(e)) => panic!("{e}"),
            };
            assert!(
                before.is_none_or(|before| before == self.counters()),
                "a fault changed something"
            );
            self.faults += 1;
            self.index.store.admit(&fault, &self.disk[&fault.ptr.addr]).expect("the node");
        }
        unreachable!()
    }

    /// The journal has one record more.
    fn tick(&mut self) {
        self.clock.0 += 1;
        self.buckets.set_clock(self.clock);
    }

    fn step(&mut self) {
        self.tick();
        match self.rng.below(100) {
            0..33 => self.write(),
            33..45 => self.write_part(),
            45..55 => self.stage(),
            55..60 => self.discard(),
            60..65 => {
                let (volume, from, end) = self.range(40);
                self.replace(volume, (from, end), &[]);
            }
            65..68 => {
                let epoch = self.buckets.take_cut();
                self.sealed.push(epoch);
            }
            68..71 if !self.sealed.is_empty() => self.publish(),
            71..75 => self.evict(),
            75..78 => drop(self.buckets.tidy(20)),
            78..85 => drop(self.buckets.journal_durable(self.clock)),
            85 => self.collect(),
            86..88 => self.commit(),
            _ => {
                let (volume, from, end) = self.range(60);
                self.look(volume, from, end);
            }
        }
    }

    fn range(&mut self, most: u64) -> (VolumeId, u64, u64) {
        let volume = VolumeId(1 + self.rng.below(VOLUMES) as u32);
        // Near the last range, as often as not: neighbours are joined.
        let from = self.rng.below(VOLUME_BLOCKS);
        (volume, from, from + 1 + self.rng.below(most))
    }

    fn replace(&mut self, volume: VolumeId, (from, end): (u64, u64), new: &[IndexKey]) {
        let range = BlockRange::new(Lba(from), Lba(end));
        self.run(|index, buckets| index.replace(buckets, volume, range, new));
        self.model.retain(|&(v, lba), _| v != volume || lba < from || lba >= end);
        self.model.extend(new.iter().flat_map(blocks));
    }

    fn crcs(&mut self, blocks: u64) -> Crcs {
        self.crc += blocks as Crc;
        (0..blocks as Crc).map(|i| self.crc + i).collect()
    }

    /// Blocks of a bucket, dirty or clean, often behind those before.
    fn write(&mut self) {
        let stream = [Stream::Writes, Stream::Writes, Stream::Promoted][self.rng.below(3) as usize];
        let (volume, from, end) = self.range(6);
        let Some((addr, len, generation)) = self.buckets.append(stream, (end - from) as u32) else {
            return;
        };
        let written = (stream == Stream::Writes).then_some(self.buckets.epochs().open());
        let crcs = self.crcs(len.into());
        let body = Body::Data { addr, generation, crcs, cover: Cover::ALL };
        let e = IndexKey { volume, lba: Lba(from), written, body };
        self.replace(volume, (from, e.end()), &[e]);
        self.buckets.unpin(addr);
    }

    /// Some sectors of a block; the others are in the pool's image or in a staged block.
    fn write_part(&mut self) {
        let (volume, lba, _) = self.range(1);
        let Some((addr, 1, generation)) = self.buckets.append(Stream::Writes, 1) else { return };
        let crcs = self.crcs(1);
        let crc = crcs[0];
        let below =
            self.rng.one_in(3).then(|| StagedBelow { epoch: self.buckets.epochs().open(), crc });
        let sectors = Sectors::from_bits(1 + self.rng.below(254) as u8);
        let body = Body::Data { addr, generation, crcs, cover: Cover { sectors, below } };
        let e =
            IndexKey { volume, lba: Lba(lba), written: Some(self.buckets.epochs().open()), body };
        self.replace(volume, (lba, lba + 1), &[e]);
        self.buckets.unpin(addr);
        self.parts.0 += 1;
    }

    fn stage(&mut self) {
        let (volume, from, end) = self.range(MAX_EXTENT_BLOCKS as u64);
        let (crcs, written) = (self.crcs(end - from), Some(self.buckets.epochs().open()));
        let e = IndexKey { volume, lba: Lba(from), written, body: Body::Staged { crcs } };
        self.replace(volume, (from, end), &[e]);
    }

    fn discard(&mut self) {
        let (volume, from, end) = self.range(50);
        let e = IndexKey {
            volume,
            lba: Lba(from),
            written: Some(self.buckets.epochs().open()),
            body: Body::Zeros { len: end - from },
        };
        self.replace(volume, (from, end), &[e]);
    }

    fn publish(&mut self) {
        let upto = self.sealed[self.rng.below(self.sealed.len() as u64) as usize];
        self.sealed.retain(|e| *e > upto);
        self.index.published = upto;
        self.buckets.publish(upto);
        while self.rng.one_in(2) && self.buckets.tidy(5) {}
    }

    fn evict(&mut self) {
        self.buckets.evict();
        // Its record.
        self.tick();
    }

    /// Drops dead keys and merges leaves, in a part of the index.
    fn collect(&mut self) {
        let (volume, from, _) = self.range(1);
        let mut cursor = Cursor::new(&index_key(volume, Lba(from)), None);
        for _ in 0..3 {
            let mut all = Vec::new();
            let more = self.run(|index, buckets| {
                all.clear();
                Ok(cursor.next_leaf(&index.tree, &index.store, |k, v| {
                    all.extend(IndexKey::decode(buckets, k, v))
                })?)
            });
            for e in all
                .iter()
                .filter(|e| self.index.is_dead(&self.buckets, e))
                .cloned()
                .collect::<Vec<_>>()
            {
                assert!(self.run(|index, buckets| index.drop_dead(buckets, e.volume, e.lba)));
            }
            if let Some(e) = all.first() {
                self.run(|index, _| index.merge_thin(e.volume, e.lba));
                self.run(|index, buckets| index.leave_sparse(buckets, e.volume, e.lba, None));
            }
            if !more {
                return;
            }
        }
    }

    /// Writes the changed nodes; what the tree had before is gone.
    fn commit(&mut self) {
        let mut changes = self.index.changes.freeze();
        let tree = self.index.tree.clone();
        let mut out = WriteOut::new(&tree, changes.generation());
        let mut block = vec![0; BLOCK];
        let (next, mut taken) =
            (&mut self.next_node, self.disk.keys().copied().collect::<BTreeSet<_>>());
        let mut alloc = || {
            // In some bucket: only whether that is sparse is asked.
            let place = |n: &mut u64| {
                *n = (*n + 1) % u64::from(BUCKETS * BLOCKS);
                PoolAddr(*n)
            };
            let addr = std::iter::repeat_with(|| place(next)).find(|addr| !taken.contains(addr))?;
            taken.insert(addr);
            Some(addr)
        };
        while let Some(addr) =
            out.next(&mut self.index.store, &mut alloc, &mut block).expect("room")
        {
            self.disk.insert(addr, block.clone());
        }
        self.index.tree.settle(&tree);
        for node in changes.take_freed().resolve() {
            self.index.store.forget(node.addr);
            assert!(self.disk.remove(&node.addr).is_some(), "a node was freed twice");
        }
    }

    /// What counts of a block.
    fn counts(&self, block: &Block) -> bool {
        match block {
            Block::Data { addr, generation, .. } => {
                self.buckets.table().is_current(*addr, *generation)
            }
            Block::Staged { epoch, .. } | Block::Zeros { epoch } => *epoch > self.index.published,
        }
    }

    fn look(&mut self, volume: VolumeId, from: u64, end: u64) {
        let range = BlockRange::new(Lba(from), Lba(end));
        let found =
            self.run(|index, buckets| index.overlapping(buckets, volume, range, usize::MAX));
        let mut met = BTreeMap::new();
        for e in found.iter().filter(|e| !self.index.is_dead(&self.buckets, e)) {
            for (at, block) in blocks(&e.slice(from, end)) {
                let is_part = matches!(block, Block::Data { cover, .. } if !cover.is_all());
                self.parts.1 += u64::from(is_part);
                assert!(met.insert(at, block).is_none(), "two keys name block {at:?}");
            }
        }
        let wanted: BTreeMap<_, _> =
            self.model.range((volume, from)..(volume, end)).map(|(k, b)| (*k, *b)).collect();
        let wanted: BTreeMap<_, _> = wanted.into_iter().filter(|(_, b)| self.counts(b)).collect();
        assert_eq!(met, wanted);
    }

    /// Everything, and all counters.
    fn compare(&mut self) {
        for volume in 1..=VOLUMES as u32 {
            // In parts: a lookup over more leaves than the store holds does not come to rest.
            (0..=VOLUME_BLOCKS)
                .step_by(500)
                .for_each(|from| self.look(VolumeId(volume), from, from + 500));
        }
        let mut live = vec![(0u16, 0u16, 0u16); BUCKETS as usize];
        let newest = self.sealed.last().copied().unwrap_or(self.index.published);
        for block in self.model.values().filter(|b| self.counts(b)) {
            if let Block::Data { addr, written, .. } = block {
                let (all, open, cut) = &mut live[self.buckets.geometry().of(*addr).0 as usize];
                *all += 1;
                *open += u16::from(written.is_some_and(|w| w > newest));
                *cut += u16::from(written.is_some_and(|w| w > self.index.published && w <= newest));
            }
        }
        for id in 0..BUCKETS {
            let BucketRecord { kind, live: all, dirty_open, dirty_cut, .. } =
                self.buckets.record(BucketId(id));
            assert!(kind != BucketKind::Nodes);
            assert_eq!((all, dirty_open, dirty_cut), live[id as usize], "bucket {id}");
        }
        let staged =
            |b: &&Block| matches!(b, Block::Staged { epoch, .. } if *epoch > self.index.published);
        let (open, cut) = self.buckets.counts().staged_named();
        assert_eq!(open + cut, self.model.values().filter(staged).count() as u64);
        let (mut keys, mut walk) = (0, IndexWalk::over_all());
        while walk.goes_on() {
            keys += self.run(|index, buckets| walk.next_leaf(index, buckets)).len();
        }
        assert_eq!(self.index.keys, keys as i64);
    }
}

#[test]
fn index_and_buckets_agree_with_a_map_of_blocks() {
    let (mut faults, mut keys) = (0, 0);
    for seed in 0..8 {
        let mut w = World::new(seed);
        for i in 0..10_000 {
            w.step();
            if i % 1000 == 0 {
                w.compare();
            }
        }
        w.compare();
        assert!(w.parts.0 > 500 && w.parts.1 > 500, "{:?} parts", w.parts);
        faults += w.faults;
        keys = keys.max(w.index.keys);
        for volume in 1..=VOLUMES as u32 {
            (0..=VOLUME_BLOCKS)
                .step_by(500)
                .for_each(|from| w.replace(VolumeId(volume), (from, from + 500), &[]));
        }
        w.compare();
        assert!(w.index.tree.is_empty());
    }
    assert!(faults > 5_000 && keys > 2000, "{faults} faults, {keys} keys at most");
}

#[test]
fn a_walk_meets_what_stays_as_it_is() {
    let (mut faults, mut missed) = (0, 0);
    for seed in 0..4 {
        let mut w = World::new(seed);
        // Nothing is evicted or published, so every key counts.
        let change = |w: &mut World| match w.rng.below(10) {
            0..5 => w.write(),
            5..7 => w.write_part(),
            7 => w.stage(),
            8 => w.discard(),
            _ => {
                let (volume, from, end) = w.range(400);
                w.replace(volume, (from, end), &[]);
            }
        };
        (0..3000).for_each(|_| change(&mut w));
        w.commit();
        let before = w.model.clone();
        let mut cut = IndexWalk::over_cut(w.index.tree(), Generation(0));
        let mut all = IndexWalk::over_all();
        let (mut in_cut, mut in_all) = (BTreeMap::new(), BTreeMap::new());
        while cut.goes_on() || all.goes_on() {
            for e in w.run(|index, buckets| cut.next_leaf(index, buckets)) {
                for (at, block) in blocks(&e) {
                    assert!(in_cut.insert(at, block).is_none(), "{at:?} is met twice");
                }
            }
            let from = all.passed();
            for e in w.run(|index, buckets| all.next_leaf(index, buckets)) {
                let key = index_key(e.volume, e.lba);
                assert!(from[..] <= key[..] && key[..] < all.passed()[..], "it is out of order");
                for (at, block) in blocks(&e) {
                    assert_eq!(w.model.get(&at), Some(&block), "{at:?} is not what it is by now");
                    in_all.insert(at, block);
                }
            }
            (0..60).for_each(|_| change(&mut w));
            w.collect();
        }
        assert_eq!(in_cut, before);
        for (at, block) in &w.model {
            // Zeros that were discarded again look as before, and have another key.
            let is_same = before.get(at) == Some(block) && !matches!(block, Block::Zeros { .. });
            missed += u32::from(!in_all.contains_key(at));
            assert!(!is_same || in_all.get(at) == Some(block), "{at:?} was missed");
        }
        faults += w.faults;
    }
    assert!(faults > 100 && missed > 100, "{faults} faults, {missed} blocks came too late");
}

#[test]
fn steps_over_a_range_meet_all_of_it() {
    let mut w = World::new(1);
    (0..4000).for_each(|_| w.step());
    let (volume, end, mut steps) = (VolumeId(1), Lba(VOLUME_BLOCKS), 0);
    let (mut at, mut met) = (Lba(0), BTreeMap::new());
    while at < end {
        let range = BlockRange::new(at, end);
        let (found, upto) = w.run(|index, buckets| index.overlapping_step(buckets, volume, range));
        assert!(at < upto && (found.len() == STEP_EXTENTS || upto == end));
        let live = found.iter().filter(|e| !w.index.is_dead(&w.buckets, e));
        for (place, block) in live.flat_map(|e| blocks(&e.slice(at.0, upto.0)).collect::<Vec<_>>())
        {
            assert!(met.insert(place, block).is_none(), "{place:?} is met twice");
        }
        (at, steps) = (upto, steps + 1);
    }
    let wanted = w.model.iter().filter(|(place, block)| place.0 == volume && w.counts(block));
    assert!(steps > 5 && met.iter().eq(wanted), "{steps} steps");
}
