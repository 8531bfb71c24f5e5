//! The tree against a `BTreeMap`, over a device in memory: transactions that overlap their predecessor's commit, crashes,
//! abandoned transactions, a cache that is far too small. After every commit the allocated blocks are exactly the nodes
//! that the durable root leads to.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use base::{BLOCK, Generation, PoolAddr};
use format::node::{NodeRef, decode};
use proptest::prelude::*;

use crate::*;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;
const ID: u64 = 7;

struct Commit {
    tree: Tree,
    model: Model,
    freed: Freed,
    dirty: usize,
    out: WriteOut,
    allocated: BTreeSet<PoolAddr>,
}

struct World {
    cache: NodeCache,
    disk: BTreeMap<PoolAddr, Vec<u8>>,
    /// Blocks that a durable root leads to, or that are freed by a transaction that is not durable.
    live: BTreeSet<PoolAddr>,
    durable: Option<RootPtr>,
    durable_model: Model,
    durable_generation: Generation,
    tree: Tree,
    model: Model,
    generation: Generation,
    freed: Freed,
    dirty: DirtyCount,
    commit: Option<Commit>,
    /// The generation in which each key was inserted last.
    inserted: BTreeMap<Vec<u8>, Generation>,
    /// Where the next address is looked for.
    next: u64,
}

impl World {
    fn new(limit: usize) -> World {
        World {
            cache: NodeCache::new(limit),
            disk: BTreeMap::new(),
            live: BTreeSet::new(),
            durable: None,
            durable_model: Model::new(),
            durable_generation: Generation(0),
            tree: Tree::new(ID),
            model: Model::new(),
            generation: Generation(1),
            freed: Freed::new(),
            dirty: DirtyCount::default(),
            commit: None,
            inserted: BTreeMap::new(),
            next: 0,
        }
    }

    /// Runs `op` until it does not fault.
    fn run<R>(&mut self, mut op: impl FnMut(&mut Tree, &mut Edit<'_>) -> Result<R, Fault>) -> R {
        for _ in 0..10_000 {
            let mut edit = Edit {
                cache: &mut self.cache,
                generation: self.generation,
                freed: &mut self.freed,
                dirty: &mut self.dirty,
            };
            let (freed, dirty) = (edit.freed.len(), *edit.dirty);
            match op(&mut self.tree, &mut edit) {
                Ok(r) => return r,
                Err(fault) => {
                    assert_eq!((edit.freed.len(), *edit.dirty), (freed, dirty), "a fault changed something");
                    let bytes = self.disk.get(&fault.ptr.addr).expect("a fault at a block never written");
                    self.cache.admit(&fault, bytes).expect("a fault at a block that is not the node");
                }
            }
        }
        panic!("no progress");
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) {
        self.run(|t, e| t.insert(e, key, value));
        self.model.insert(key.to_vec(), value.to_vec());
        self.inserted.insert(key.to_vec(), self.generation);
    }

    fn remove(&mut self, key: &[u8]) {
        let was = self.run(|t, e| t.remove(e, key));
        assert_eq!(was, self.model.remove(key).is_some());
    }

    fn look(&mut self, key: &[u8]) {
        let pair = |k: &[u8], v: &[u8]| (k.to_vec(), v.to_vec());
        let own = |(k, v): (&Vec<u8>, &Vec<u8>)| (k.clone(), v.clone());
        let got = self.run(|t, e| t.get_with(e.cache, key, <[u8]>::to_vec));
        assert_eq!(got.as_ref(), self.model.get(key));
        let le = self.run(|t, e| t.get_le(e.cache, key, pair));
        assert_eq!(le, self.model.range(..=key.to_vec()).next_back().map(own));
    }

    fn scan(&mut self, from: &[u8], to: &[u8]) {
        let want: Vec<_> = if from < to {
            self.model.range(from.to_vec()..to.to_vec()).map(|(k, v)| (k.clone(), v.clone())).collect()
        } else {
            Vec::new()
        };
        let mut got = Vec::new();
        let mut cursor = Cursor::new(from, Some(to));
        let mut more = true;
        while more {
            let ahead = cursor.ahead(&self.tree, &self.cache, 3);
            assert!(ahead.len() <= 3);
            more = self.run(|t, e| cursor.next_leaf(t, e.cache, |k, v| got.push((k.to_vec(), v.to_vec()))));
        }
        assert_eq!(got, want);
        let since = self.durable_generation;
        let mut young = Vec::new();
        let mut cursor = Cursor::new(from, Some(to)).since(since);
        while self.run(|t, e| cursor.next_leaf(t, e.cache, |k, v| young.push((k.to_vec(), v.to_vec())))) {}
        assert!(young.is_sorted() && young.iter().all(|record| want.binary_search(record).is_ok()));
        for record in want.iter().filter(|(key, _)| self.inserted.get(key).is_some_and(|g| *g >= since)) {
            assert!(young.binary_search(record).is_ok(), "what was inserted since was passed over");
        }
        let limit = want.len().min(10);
        let first = self.run(|t, e| {
            let mut first = Vec::new();
            t.scan(e.cache, from, to, |k, v| {
                first.push((k.to_vec(), v.to_vec()));
                if first.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            Ok(first)
        });
        assert_eq!(first, want[..limit]);
    }

    /// Has nodes written elsewhere; none that is named is left on the way.
    fn rewrite(&mut self, key: &[u8], moves: impl Fn(PoolAddr) -> bool + Copy) {
        let before = self.dirty.get();
        let moves = |node: &NodePtr| moves(node.addr);
        let moved = self.run(|t, e| t.rewrite(e, key, moves));
        assert_eq!(self.dirty.get() - before, moved as usize);
        assert_eq!(self.run(|t, e| t.rewrite(e, key, moves)), 0);
    }

    /// Prepares a range, then edits all over it without a fault.
    fn edit_range(&mut self, keys: &[Vec<u8>], value: &[u8]) {
        let (Some(from), Some(to)) = (keys.first(), keys.last()) else { return };
        self.run(|t, e| t.prepare(e.cache, from, to));
        let mut edit = Edit {
            cache: &mut self.cache,
            generation: self.generation,
            freed: &mut self.freed,
            dirty: &mut self.dirty,
        };
        if value.len() % 2 == 0 {
            // Nothing is left of the range meanwhile.
            let range = self.model.range(from.clone()..=to.clone());
            let all: Vec<Vec<u8>> = range.map(|(key, _)| key.clone()).collect();
            for key in all {
                self.tree.remove(&mut edit, &key).expect("it was prepared");
                self.model.remove(&key);
            }
        }
        for (i, key) in keys.iter().enumerate() {
            if i % 3 == 0 {
                self.tree.remove(&mut edit, key).expect("it was prepared");
                self.model.remove(key);
            } else {
                self.tree.insert(&mut edit, key, value).expect("it was prepared");
                self.model.insert(key.clone(), value.to_vec());
                self.inserted.insert(key.clone(), self.generation);
            }
        }
    }

    fn freeze(&mut self) {
        if self.commit.is_some() {
            return;
        }
        let tree = self.tree.clone();
        self.commit = Some(Commit {
            out: WriteOut::new(&tree, self.generation),
            tree,
            model: self.model.clone(),
            freed: std::mem::take(&mut self.freed),
            dirty: std::mem::take(&mut self.dirty).get(),
            allocated: BTreeSet::new(),
        });
        self.generation = self.generation.next();
    }

    /// Writes up to `nodes` nodes; completes the commit if those were the last.
    fn write(&mut self, nodes: usize, fail: bool) {
        let Some(c) = &mut self.commit else { return };
        for n in 0..nodes {
            if fail && n == nodes / 2 {
                let mut none = || None;
                let mut out = [0; BLOCK];
                // Either it has an address already (a restart), or nothing happens.
                if let Ok(Some(addr)) = c.out.next(&mut self.cache, &mut none, &mut out) {
                    self.disk.insert(addr, out.to_vec());
                }
                c.out.restart();
            }
            let (live, next) = (&self.live, &mut self.next);
            let allocated = &mut c.allocated;
            let mut alloc = || {
                // Reuses blocks soon, so that one freed too early shows.
                *next = (*next + 1) % (2 * live.len() as u64 + 64);
                let addr = (*next..).map(PoolAddr).find(|a| !live.contains(a) && !allocated.contains(a))?;
                allocated.insert(addr);
                Some(addr)
            };
            let mut out = [0; BLOCK];
            match c.out.next(&mut self.cache, &mut alloc, &mut out).unwrap() {
                Some(addr) => {
                    assert!(c.allocated.contains(&addr), "{addr:?} was not allocated for this commit");
                    self.disk.insert(addr, out.to_vec());
                }
                None => return self.complete(),
            }
        }
    }

    fn complete(&mut self) {
        let c = self.commit.take().unwrap();
        assert_eq!(c.dirty, c.allocated.len(), "the count of changed nodes was not exact");
        self.durable = c.out.root();
        self.durable_model = c.model;
        self.durable_generation = Generation(self.generation.0 - 1);
        self.tree.settle(&c.tree);
        self.live.extend(c.allocated);
        let freed_len = c.freed.len();
        let freed: Vec<_> = c.freed.resolve().collect();
        assert_eq!(freed.len(), freed_len, "a replaced node was never written");
        for NodePtr { addr, .. } in freed {
            assert!(self.live.remove(&addr), "{addr:?} was freed twice, or never allocated");
            self.cache.forget(addr);
        }
        drop(c.out);
        drop(c.tree);
        let (reached, contents) = self.durable_contents();
        assert_eq!(reached, self.live, "allocated blocks are not those that the root leads to");
        assert_eq!(contents, self.durable_model);
    }

    /// Every node that the durable root leads to, and every record, verified.
    fn durable_contents(&self) -> (BTreeSet<PoolAddr>, Model) {
        let (mut reached, mut contents) = (BTreeSet::new(), Model::new());
        let mut todo: Vec<_> = self.durable.map(|r| (r.ptr, r.height - 1)).into_iter().collect();
        while let Some((ptr, level)) = todo.pop() {
            assert!(reached.insert(ptr.addr), "two ways to {ptr:?}");
            let page = decode(&self.disk[&ptr.addr], &NodeRef { ptr, level, tree: ID }).unwrap();
            for i in 0..page.count() {
                if level > 0 {
                    todo.push((page.pointer(i), level - 1));
                } else {
                    contents.insert(page.key(i).to_vec(), page.value(i).to_vec());
                }
            }
        }
        (reached, contents)
    }

    /// The open transaction never happened.
    fn abandon(&mut self) {
        (self.tree, self.model) = match &self.commit {
            Some(c) => (c.tree.clone(), c.model.clone()),
            None => (Tree::open(ID, self.durable), self.durable_model.clone()),
        };
        self.freed = Freed::new();
        self.dirty = DirtyCount::default();
        self.inserted.retain(|_, g| *g < self.generation);
    }

    fn crash(&mut self) {
        self.commit = None;
        self.generation = self.durable_generation.next();
        self.abandon();
        self.cache = NodeCache::new(0);
    }
}

#[derive(Clone, Debug)]
enum Op {
    Run { start: u16, n: u16, step: u16, size: u16 },
    Remove { start: u16, n: u16, step: u16 },
    Range { start: u16, n: u16, size: u16 },
    Move { start: u16, n: u16, of: u64 },
    Look(u16),
    Scan(u16, u16),
    Snapshot,
    Freeze,
    Write(u16, bool),
    Abandon,
    Crash,
}

fn key_of(n: u16) -> Vec<u8> {
    // Of several lengths, some the beginning of others.
    let mut key = b"k".to_vec();
    key.extend((n / 7).to_be_bytes());
    key.extend(std::iter::repeat_n(b'x', usize::from(n % 7) * 4));
    key
}

fn op() -> impl Strategy<Value = Op> {
    let start = 0u16..6000;
    prop_oneof![
        6 => (start.clone(), 1u16..400, prop_oneof![Just(1u16), Just(1), 2u16..50, Just(2711)], 0u16..400)
            .prop_map(|(start, n, step, size)| Op::Run { start, n, step, size }),
        5 => (start.clone(), 1u16..800, prop_oneof![Just(1u16), Just(1), 2u16..10, Just(2711)])
            .prop_map(|(start, n, step)| Op::Remove { start, n, step }),
        2 => (start.clone(), 1u16..200, 0u16..1024).prop_map(|(start, n, size)| Op::Range { start, n, size }),
        2 => (start.clone(), 1u16..400, 1u64..4).prop_map(|(start, n, of)| Op::Move { start, n, of }),
        4 => start.clone().prop_map(Op::Look),
        2 => (start.clone(), start).prop_map(|(a, b)| Op::Scan(a, b)),
        1 => Just(Op::Snapshot),
        4 => Just(Op::Freeze),
        8 => (1u16..60, proptest::bool::weighted(0.2)).prop_map(|(n, fail)| Op::Write(n, fail)),
        1 => Just(Op::Abandon),
        1 => Just(Op::Crash),
    ]
}

fn run(ops: Vec<Op>, limit: usize) {
    let mut w = World::new(limit);
    let mut snapshot: Option<(Tree, Model)> = None;
    for (count, op) in ops.into_iter().enumerate() {
        match op {
            Op::Run { start, n, step, size } => {
                for i in 0..n {
                    let key = start.wrapping_add(i.wrapping_mul(step)) % 6000;
                    w.insert(&key_of(key), &vec![count as u8; usize::from(size)]);
                }
            }
            Op::Remove { start, n, step } => {
                for i in 0..n {
                    w.remove(&key_of(start.wrapping_add(i.wrapping_mul(step)) % 6000));
                }
            }
            Op::Range { start, n, size } => {
                let mut keys: Vec<_> = (start..start + n).map(key_of).collect();
                keys.sort();
                w.edit_range(&keys, &vec![count as u8; usize::from(size)]);
            }
            Op::Move { start, n, of } => {
                for i in 0..n {
                    w.rewrite(&key_of(start + i), |addr| addr.0 % of == 0);
                }
            }
            Op::Look(k) => w.look(&key_of(k)),
            Op::Scan(a, b) => w.scan(&key_of(a), &key_of(b)),
            // Kept, and held against its model, while the tree goes on in the same generation.
            Op::Snapshot => snapshot = Some((w.tree.clone(), w.model.clone())),
            Op::Freeze => w.freeze(),
            Op::Write(n, fail) => {
                // What is durable may take away the blocks of a snapshot that was not kept from it.
                snapshot = None;
                w.write(usize::from(n), fail);
            }
            Op::Abandon => w.abandon(),
            Op::Crash => {
                snapshot = None;
                w.crash();
            }
        }
        if let Some((tree, model)) = &snapshot {
            let live = std::mem::replace(&mut w.tree, tree.clone());
            let real = std::mem::replace(&mut w.model, model.clone());
            // What was inserted since then is not in it.
            let inserted = std::mem::take(&mut w.inserted);
            w.scan(&key_of(0), &[255]);
            (w.tree, w.model, w.inserted) = (live, real, inserted);
        }
    }
    // Everything comes to rest.
    while w.commit.is_some() {
        w.write(1000, false);
    }
    w.freeze();
    while w.commit.is_some() {
        w.write(1000, false);
    }
    assert_eq!(w.durable_model, w.model);
    w.crash();
    w.scan(b"a", &[255]);
    for key in w.model.clone().keys() {
        w.remove(key);
    }
    assert!(w.tree.is_empty());
    w.freeze();
    while w.commit.is_some() {
        w.write(1000, false);
    }
    assert!(w.live.is_empty(), "{:?} leaked", w.live);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn agrees_with_a_map_over_commits_and_crashes(
        ops in proptest::collection::vec(op(), 1..60),
        limit in prop_oneof![Just(0usize), Just(40), Just(10_000)],
    ) {
        run(ops, limit);
    }
}

fn ascending(n: u64) -> World {
    let mut w = World::new(10_000);
    for i in 0..n {
        w.insert(&i.to_be_bytes(), &[0; 12]);
    }
    w
}

fn commit(w: &mut World) {
    w.freeze();
    while w.commit.is_some() {
        w.write(1000, false);
    }
}

#[test]
fn ascending_runs_leave_full_nodes() {
    let mut w = ascending(20_000);
    assert!(w.dirty.get() <= 20_000 / 190 + 5, "{} nodes", w.dirty.get());
    // Into the middle, in front of records that are already there.
    let before = w.dirty.get();
    for i in 0..10_000u64 {
        let key = [&10_000u64.to_be_bytes()[..], &i.to_be_bytes()].concat();
        w.insert(&key, &[0; 12]);
    }
    assert!(w.dirty.get() - before <= 10_000 / 190 + 5, "{} nodes more", w.dirty.get() - before);
}

#[test]
fn nodes_that_are_not_resident_are_not_needed_for_a_merge() {
    let mut w = ascending(10_000);
    commit(&mut w);
    w.crash();
    for i in 0..10_000u64 {
        if i % 10 != 0 {
            w.remove(&i.to_be_bytes());
        }
    }
    commit(&mut w);
    assert!(w.live.len() < 25, "{} nodes of 1000 records", w.live.len());
}

#[test]
fn an_idle_tree_lets_go_of_what_was_written() {
    let mut w = ascending(10_000);
    commit(&mut w);
    assert!(matches!(w.tree.root, Some(Link::Disk(_))));
    let (resident, hits) = (w.cache.resident(), w.cache.stats().misses);
    assert_eq!(resident, w.live.len(), "and keeps it in the cache");
    w.look(&5000u64.to_be_bytes());
    assert_eq!(w.cache.stats().misses, hits);
}

#[test]
fn the_cache_keeps_its_limit_and_refuses_wrong_bytes() {
    let mut w = ascending(10_000);
    commit(&mut w);
    w.crash();
    w.cache = NodeCache::new(20);
    w.scan(&[0], &[255]);
    assert!(w.cache.resident() <= 20 && w.cache.stats().evicted > 0);
    w.cache = NodeCache::new(20);
    let fault = w.tree.get(&mut w.cache, &[1]).unwrap_err();
    let mut bytes = w.disk[&fault.ptr.addr].clone();
    bytes[4000] ^= 1;
    assert!(matches!(w.cache.admit(&fault, &bytes), Err(NodeError::Checksum { .. })));
    assert_eq!(w.cache.resident(), 0);
    // More leaves than the cache holds: it grows for as long as it must.
    w.run(|t, e| t.prepare(e.cache, &0u64.to_be_bytes(), &10_000u64.to_be_bytes()));
    assert_eq!(w.cache.resident(), w.live.len());
    commit(&mut w);
    w.cache.forget(PoolAddr(u64::MAX));
}

#[test]
fn a_node_in_the_wrong_place_is_refused_though_it_is_resident() {
    let mut w = ascending(10_000);
    commit(&mut w);
    let root = w.durable.unwrap();
    for (id, height) in [(ID + 1, root.height), (ID, 1), (ID, root.height + 1), (ID, 0), (ID, 255)] {
        let wrong = Tree::open(id, Some(RootPtr { height, ..root }));
        let fault = wrong.get(&mut w.cache, b"key").unwrap_err();
        let refusal = w.cache.admit(&fault, &w.disk[&fault.ptr.addr]).unwrap_err();
        assert!(matches!(refusal, NodeError::Tree { .. } | NodeError::Level { .. }), "{refusal}");
    }
}

#[test]
fn an_edit_does_not_trust_the_order_of_keys_across_nodes() {
    let mut w = ascending(1000);
    commit(&mut w);
    // Two children change places: every node is whole, and the tree is not in order.
    let root = w.durable.unwrap();
    let expected = NodeRef { ptr: root.ptr, level: 1, tree: ID };
    let mut page = decode(&w.disk[&root.ptr.addr], &expected).unwrap();
    let (a, b) = (page.pointer(1), page.pointer(2));
    page.set_pointer(1, &b);
    page.set_pointer(2, &a);
    let mut bytes = vec![0; BLOCK];
    let crc = page.seal(ID, root.ptr.generation, root.ptr.addr, &mut bytes);
    w.disk.insert(root.ptr.addr, bytes);
    w.tree = Tree::open(ID, Some(RootPtr { ptr: NodePtr { crc, ..root.ptr }, ..root }));
    w.cache = NodeCache::new(0);
    let mut refused = None;
    for _ in 0..10 {
        let (mut freed, mut dirty) = (Freed::new(), DirtyCount::default());
        let mut edit = Edit { cache: &mut w.cache, generation: Generation(9), freed: &mut freed, dirty: &mut dirty };
        let Err(fault) = w.tree.insert(&mut edit, &300u64.to_be_bytes(), b"x") else { panic!("it was changed") };
        refused = w.cache.admit(&fault, &w.disk[&fault.ptr.addr]).err();
        if refused.is_some() {
            break;
        }
    }
    assert!(matches!(refused, Some(NodeError::Malformed(_))), "{refused:?}");
}

#[test]
fn what_is_older_is_passed_over_unread() {
    let mut w = World::new(1 << 20);
    for n in 0..20_000u64 {
        w.insert(&n.to_be_bytes(), &[7; 64]);
    }
    w.freeze();
    w.write(usize::MAX, false);
    let since = w.generation;
    for n in [3u64, 9_000, 9_001, 19_999] {
        w.insert(&n.to_be_bytes(), &[8; 64]);
    }
    w.freeze();
    w.write(usize::MAX, false);
    w.crash();
    let before = w.cache.stats().misses;
    let mut met = Vec::new();
    let mut cursor = Cursor::new(&[], None).since(since);
    while w.run(|t, e| cursor.next_leaf(t, e.cache, |k, v| met.push((k.to_vec(), v[0])))) {}
    let changed: Vec<_> = met.iter().filter(|m| m.1 == 8).map(|m| m.0.clone()).collect();
    assert_eq!(changed, [3u64, 9_000, 9_001, 19_999].map(|n| n.to_be_bytes().to_vec()));
    let read = w.cache.stats().misses - before;
    assert!((4..12).contains(&read), "{read} nodes were read");
}

#[test]
fn nodes_are_written_elsewhere_where_they_are_told_to() {
    let mut w = ascending(20_000);
    commit(&mut w);
    let old = w.live.clone();
    let half = |addr: PoolAddr| addr.0 % 2 == 0;
    for i in 0..20_000u64 {
        w.rewrite(&i.to_be_bytes(), half);
    }
    // Not the others, but for those above.
    assert!((old.len() / 2..old.len() / 2 + 3).contains(&w.dirty.get()), "{} of {}", w.dirty.get(), old.len());
    commit(&mut w);
    assert!(old.iter().filter(|addr| half(**addr)).all(|addr| !w.live.contains(addr)));
    w.scan(&[0], &[255]);
}

/// A range whose leaves all go, at each end of the tree and in the middle: what is put there afterwards needs a leaf beside it.
#[test]
fn a_prepared_range_may_be_emptied_and_filled_again() {
    // Some of these are the borders of leaves.
    let (ends, starts) = ((100..300).map(|last| (0, last)), (100..300).map(|first| (first, first + 300)));
    for (first, last) in ends.chain(starts).chain([(0, 799)]) {
        let mut w = ascending(800);
        commit(&mut w);
        w.crash();
        let keys: Vec<Vec<u8>> = (first..=last).map(|i: u64| i.to_be_bytes().to_vec()).collect();
        let (from, to) = (keys[0].clone(), keys[keys.len() - 1].clone());
        w.run(|t, e| t.prepare(e.cache, &from, &to));
        let mut edit = Edit { cache: &mut w.cache, generation: w.generation, freed: &mut w.freed, dirty: &mut w.dirty };
        for key in &keys {
            w.tree.remove(&mut edit, key).expect("it was prepared");
            w.model.remove(key);
        }
        w.tree.insert(&mut edit, &from, b"again").expect("it was prepared");
        w.model.insert(from, b"again".to_vec());
        w.scan(&[0], &[255]);
    }
}
