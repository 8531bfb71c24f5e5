//! The forest against a naive model: a map from blocks to addresses and checksums, for each volume.

use std::collections::BTreeMap;

use base::{BLOCK, Birth, PoolAddr};
use btree::WriteOut;
use format::page::CacheMode;
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::attached::PublishedCut;
use crate::space::Run;
use crate::txn::Progress;

const GROUP: u32 = 64;
const GROUPS: u32 = 200;
const GEOMETRY: Geometry =
    Geometry { group_blocks: GROUP, group_capacity: GROUPS, volume_pages: 1 };
const A: VolumeId = VolumeId(1);
const B: VolumeId = VolumeId(2);
const C: VolumeId = VolumeId(3);
const BLOCKS: u64 = 120;

/// What a volume maps: address and checksum of each block.
type Blocks = BTreeMap<u64, (u64, Crc)>;

type Checked = std::result::Result<(), TestCaseError>;

struct Bench {
    forest: Forest,
    txns: Progress,
    live: BTreeMap<VolumeId, Blocks>,
    /// The clones of the pass.
    pass: BTreeMap<VolumeId, Blocks>,
    /// Volumes that a direct transaction has edited which is not durable.
    edited: Vec<VolumeId>,
    /// Where the next blocks go: direct writes have even groups, the pass has odd ones.
    next: [(u32, u32); 2],
    crc: Crc,
    /// Nodes that were written.
    disk: BTreeMap<u64, Vec<u8>>,
}

fn record(id: VolumeId) -> VolumeRecord {
    VolumeRecord {
        id,
        state: VolumeState::Live,
        sector: 4096,
        size_bytes: 1 << 30,
        allocated_blocks: 0,
        cache_mode: CacheMode::default(),
        mapping: None,
        name: id.0.to_string(),
        staged: None,
        limit: None,
        read_only: false,
        snapshot: None,
        deadlist: None,
    }
}

fn run_blocks(run: &Run) -> impl Iterator<Item = u64> + use<> {
    run.addr.0..run.addr.0 + u64::from(run.len)
}

impl Bench {
    fn new() -> Bench {
        let places = [A, B, C].map(|id| Some(record(id))).to_vec();
        let groups = vec![GroupRecord::free(); GROUPS as usize];
        let forest = Forest::new(GEOMETRY, 64, places, 4, &groups).expect("sound");
        Bench {
            forest,
            txns: Progress::new(Generation(1), Generation(1), Generation(1 << 32), 1, Birth(0)),
            live: [A, B, C].map(|id| (id, Blocks::new())).into(),
            pass: BTreeMap::new(),
            edited: Vec::new(),
            next: [(0, 0), (1, 0)],
            crc: 0,
            disk: BTreeMap::new(),
        }
    }

    /// One or two runs of blocks that nothing has used.
    fn take(&mut self, kind: Kind, blocks: u32) -> Vec<Run> {
        let next = &mut self.next[usize::from(kind == Kind::Pass)];
        let (mut runs, mut missing) = (Vec::new(), blocks);
        while missing > 0 {
            if next.1 == GROUP {
                *next = (next.0 + 2, 0);
            }
            let len = missing.min(GROUP - next.1);
            runs.push(Run { addr: GEOMETRY.join(GroupId(next.0), next.1), len });
            if kind == Kind::Pass {
                let g = self.txns.generations();
                self.forest.join_sums(self.txns.txn_mut(kind).expect("open"), g, GroupId(next.0));
            }
            next.1 += len;
            missing -= len;
        }
        runs
    }

    /// Edits until all of the change is made; `None`: the pass has to wait for a commit.
    fn edit(
        &mut self,
        kind: Kind,
        change: &dyn Fn(Lba) -> Change<'static>,
        end: Lba,
    ) -> Option<()> {
        let mut at = Lba(0);
        while at < end {
            match self.edit_once(kind, &change(at)) {
                EditOutcome::Upto(upto) => at = upto,
                EditOutcome::Busy => return None,
            }
        }
        Some(())
    }

    fn edit_once(&mut self, kind: Kind, change: &Change<'_>) -> EditOutcome {
        self.try_edit(kind, change).expect("nothing is damaged")
    }

    fn try_edit(&mut self, kind: Kind, change: &Change<'_>) -> Result<EditOutcome> {
        let g = self.txns.generations();
        let txn = self.txns.txn_mut(kind)?;
        resident(&mut self.forest, &self.disk, |forest| match kind {
            Kind::Direct => forest.edit_direct(txn, g, change).map(EditOutcome::Upto),
            Kind::Pass => forest.edit_pass(txn, g, change),
        })
    }

    /// The version of a volume that a transaction of a kind sees. Error: the pass must wait.
    fn join(&mut self, kind: Kind, id: VolumeId) -> std::result::Result<&mut Blocks, ()> {
        if kind == Kind::Direct {
            self.edited.push(id);
            return Ok(self.live.get_mut(&id).expect("there"));
        }
        if !self.pass.contains_key(&id) {
            if self.edited.contains(&id) {
                return Err(());
            }
            self.pass.insert(id, self.live[&id].clone());
        }
        Ok(self.pass.get_mut(&id).expect("there"))
    }

    fn map(&mut self, kind: Kind, volume: VolumeId, lba: u64, blocks: u32) -> Checked {
        let runs = self.take(kind, blocks);
        self.crc += 1;
        let crcs: Vec<Crc> = (0..blocks).map(|i| self.crc << 8 | i).collect();
        let change = Change::Map { volume, lba: Lba(lba), runs: &runs, crcs: &crcs, size: None };
        let edited = self.edit_once(kind, &change);
        match self.join(kind, volume) {
            Err(()) => prop_assert_eq!(edited, EditOutcome::Busy),
            Ok(model) => {
                prop_assert_eq!(edited, EditOutcome::Upto(Lba(lba + u64::from(blocks))));
                let addrs = runs.iter().flat_map(run_blocks);
                model.extend((lba..).zip(addrs.zip(crcs)));
            }
        }
        Ok(())
    }

    fn unmap(&mut self, kind: Kind, volume: VolumeId, lba: u64, end: u64) -> Checked {
        let range = |at: Lba| BlockRange::new(at.max(Lba(lba)), Lba(end));
        let change = |at: Lba| Change::Unmap { volume, range: range(at) };
        let done = self.edit(kind, &change, Lba(end));
        if kind == Kind::Direct && self.live[&volume].range(lba..end).next().is_none() {
            // Nothing is edited.
            return Ok(());
        }
        match self.join(kind, volume) {
            Err(()) => prop_assert!(done.is_none()),
            Ok(model) => model.retain(|&b, _| b < lba || b >= end),
        }
        Ok(())
    }

    fn publish(&mut self) {
        let Some(pass) = self.txns.take_pass() else { return };
        // Its nodes are written before.
        for (id, joined) in pass.volumes() {
            let tree = self.forest.mapping_of(Kind::Pass, id).expect("joined").clone();
            self.write_out(&tree, joined.generation);
            self.forest.settle_pass_mapping(id, &tree);
        }
        for (id, generation) in pass.groups() {
            let tree = self.forest.sums_of(Kind::Pass, id).expect("joined").clone();
            self.write_out(&tree, generation);
            self.forest.settle_pass_sums(id, &tree);
        }
        let g = self.txns.generations();
        self.forest.publish_pass(Edit { txn: self.txns.open_mut(), g }, &pass);
        self.txns.open_mut().merge(pass, PublishedCut { epoch: Epoch(1), taken_at: 0 });
        for (id, blocks) in std::mem::take(&mut self.pass) {
            self.live.insert(id, blocks);
            self.edited.push(id);
        }
        // What it wrote stays its own until then; the next one takes other groups.
        self.next[1] = (self.next[1].0 + 2, 0);
    }

    fn abort(&mut self) {
        let Some(pass) = self.txns.take_pass() else { return };
        self.forest.leave_pass(&pass);
        self.pass.clear();
        self.next[1] = (self.next[1].0 + 2, 0);
    }

    /// Freezes, edits `during` meanwhile, and writes out. What is written is what was there at the
    /// freeze.
    fn commit(&mut self, during: impl FnOnce(&mut Bench) -> Checked) -> Checked {
        let frozen_model = self.live.clone();
        let txn = self.txns.freeze();
        during(self)?;
        let g = txn.generation();
        let volumes =
            txn.volumes().into_iter().filter_map(|(id, _)| self.forest.take_frozen_volume(id, g));
        let volumes: Vec<FrozenVolume> = volumes.collect();
        let sums: Vec<_> = txn
            .groups()
            .into_iter()
            .map(|(id, _)| (id, self.forest.take_frozen_sums(id, g)))
            .collect();
        for v in &volumes {
            let found = resident(&mut self.forest, &self.disk, |forest| {
                mapping::overlapping(&v.mapping, &forest.store, &GEOMETRY, ALL, usize::MAX)
            });
            let want: Vec<_> =
                frozen_model[&v.id].iter().map(|(&b, &(addr, _))| (b, addr)).collect();
            prop_assert_eq!(flat(&found.expect("nothing is damaged")), want);
            prop_assert_eq!(v.record.allocated_blocks, frozen_model[&v.id].len() as u64);
            let root = self.write_out(&v.mapping, g);
            self.forest.enter_root(v, root, None);
        }
        for (_, tree) in &sums {
            self.write_out(tree, g);
        }
        volumes.iter().for_each(|v| self.forest.settle_volume(v));
        sums.iter().for_each(|(id, tree)| self.forest.settle_sums(*id, tree));
        self.txns.complete(g);
        Ok(())
    }

    /// Gives the nodes of a tree addresses that no block of data has.
    fn write_out(&mut self, tree: &Tree, generation: Generation) -> Option<RootPtr> {
        let mut out = WriteOut::new(tree, generation);
        let mut block = vec![0; BLOCK];
        loop {
            let next = PoolAddr(1 << 40 | self.disk.len() as u64);
            let written = out
                .next(&mut self.forest.store, &mut || Some(next), &mut block)
                .expect("there is space");
            match written {
                Some(addr) => drop(self.disk.insert(addr.0, block.clone())),
                None => return out.root(),
            }
        }
    }

    /// Every volume reads as the model says.
    fn compare(&mut self) -> Checked {
        for (&id, model) in &self.live {
            let found = resident(&mut self.forest, &self.disk, |forest| {
                forest.extents(id, ALL, usize::MAX)
            });
            let found = found.expect("nothing is damaged");
            let want: Vec<_> = model.iter().map(|(&b, &(addr, _))| (b, addr)).collect();
            prop_assert_eq!(flat(&found), want, "volume {}", id);
            let record = self.forest.volume(id).expect("there").record().clone();
            prop_assert_eq!(record.allocated_blocks, model.len() as u64);
            for (&b, &(addr, crc)) in model {
                let (group, offset) = GEOMETRY.split(PoolAddr(addr));
                let mut crcs = Vec::new();
                let owner = record.owner();
                let there = resident(&mut self.forest, &self.disk, |forest| {
                    Ok(forest.checksums(group, offset, 1, owner, Lba(b), &mut crcs)?)
                });
                prop_assert!(
                    there.expect("nothing is damaged"),
                    "block {} of volume {} has no checksum",
                    b,
                    id
                );
                prop_assert_eq!(crcs, [crc]);
            }
        }
        let sum: usize = self.live.values().map(BTreeMap::len).sum();
        prop_assert_eq!(self.forest.held(), BlockCount(sum as u64));
        Ok(())
    }
}

const ALL: BlockRange = BlockRange { from: Lba(0), end: Lba(BLOCKS * 2) };

/// Runs a step until it needs no more nodes.
fn resident<T>(
    forest: &mut Forest,
    disk: &BTreeMap<u64, Vec<u8>>,
    mut step: impl FnMut(&mut Forest) -> Step<T>,
) -> Result<T> {
    loop {
        match step(forest) {
            Ok(t) => return Ok(t),
            Err(btree::Stop::Error(e)) => return Err(e),
            Err(btree::Stop::Fault(fault)) => {
                forest.store.admit(&fault, &disk[&fault.ptr.addr.0]).expect("it was written");
            }
        }
    }
}

fn flat(extents: &[MappedExtent]) -> Vec<(u64, u64)> {
    extents
        .iter()
        .flat_map(|e| (0..u64::from(e.len)).map(|i| (e.lba.0 + i, e.addr.0 + i)))
        .collect()
}

proptest! {
    #[test]
    fn both_kinds_of_transactions_agree_with_a_map_of_blocks(
        steps in prop::collection::vec((0u8..11, any::<Index>(), 1u32..40, any::<bool>()), 1..60),
    ) {
        let mut bench = Bench::new();
        let set_aside = crate::space::tests::set_aside();
        for (what, at, len, flag) in steps {
            let lba = at.index(BLOCKS as usize) as u64;
            let end = lba + u64::from(len);
            let direct = if flag { A } else { C };
            if what >= 5 && bench.txns.pass().is_none() {
                bench.txns.begin_pass(&mut set_aside.reserve(10_000)).expect("none is open");
            }
            match what {
                0..=2 => bench.map(Kind::Direct, direct, lba, len)?,
                3 => bench.unmap(Kind::Direct, direct, lba, end)?,
                4 => {
                    bench.edited.clear();
                    let edit = |bench: &mut Bench| bench.map(Kind::Direct, direct, lba, len);
                    bench.commit(edit)?;
                }
                5..=7 => bench.map(Kind::Pass, B, lba, len)?,
                8 => bench.unmap(Kind::Pass, B, lba, end)?,
                9 if flag => bench.publish(),
                _ if flag => bench.abort(),
                _ => {}
            }
            bench.compare()?;
        }
        drop(bench.txns.take_pass());
        prop_assert_eq!(set_aside.blocks(), 0);
    }
}

/// The record of a volume says fewer blocks than its mapping has.
#[test]
fn a_record_with_too_few_blocks_is_found_before_anything_is_changed() {
    let mut bench = Bench::new();
    bench.map(Kind::Direct, A, 10, 5).expect("it is empty");
    let g = bench.txns.generations();
    let edit = Edit { txn: bench.txns.open_mut(), g };
    bench.forest.change(edit, A, |record| record.allocated_blocks = 2).expect("it is there");
    let range = BlockRange::of(Lba(0), 20);
    for (kind, range) in [(Kind::Direct, range), (Kind::Direct, BlockRange::of(Lba(11), 3))] {
        let change = Change::Unmap { volume: A, range };
        let e = bench.try_edit(kind, &change).expect_err("3 blocks and more of 2");
        assert!(e.kind == ErrorKind::Damaged && e.context.contains("has 2 blocks"), "{e}");
    }
    let Ok(left) = bench.forest.extents(A, range, 9) else { unreachable!("it is in memory") };
    assert_eq!(left.iter().map(|e| u64::from(e.len)).sum::<u64>(), 5);
    let change = Change::Unmap { volume: A, range: BlockRange::of(Lba(11), 2) };
    bench.try_edit(Kind::Direct, &change).expect("2 blocks of 2");
    assert_eq!(bench.forest.held().0, 0);
}
