//! The tree against a `BTreeMap`, over a device in memory: transactions that overlap their
//! predecessor's commit, crashes, abandoned transactions, a cache that is far too small. After
//! every commit the allocated blocks are exactly the nodes that the durable root leads to.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use base::{BLOCK, Generation, PoolAddr};
use format::node::{NodeRef, decode};
use proptest::prelude::*;

use crate::*;

#[path = "lib_tests/edits.rs"]
mod edits;
#[path = "lib_tests/held.rs"]
mod held;
#[path = "lib_tests/loads.rs"]
mod loads;
#[path = "lib_tests/refused.rs"]
mod refused;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;
const ID: u64 = 7;

struct Commit {
    tree: Tree,
    model: Model,
    freed: FreedNodes,
    dirty: usize,
    out: WriteOut,
    allocated: BTreeSet<PoolAddr>,
}

struct World {
    store: Store,
    disk: BTreeMap<PoolAddr, Vec<u8>>,
    /// Blocks that a durable root leads to, or that are freed by a transaction that is not durable.
    live: BTreeSet<PoolAddr>,
    durable: Option<RootPtr>,
    durable_model: Model,
    durable_generation: Generation,
    tree: Tree,
    model: Model,
    changes: Changes,
    commit: Option<Commit>,
    /// The generation in which each key was inserted last.
    inserted: BTreeMap<Vec<u8>, Generation>,
    /// Where the next address is looked for.
    next: u64,
}

impl World {
    fn new(limit: usize) -> World {
        World {
            store: Store::new(limit),
            disk: BTreeMap::new(),
            live: BTreeSet::new(),
            durable: None,
            durable_model: Model::new(),
            durable_generation: Generation(0),
            tree: Tree::new(ID),
            model: Model::new(),
            changes: Changes::new(Generation(1)),
            commit: None,
            inserted: BTreeMap::new(),
            next: 0,
        }
    }

    /// Runs `op` until it does not fault.
    fn run<R>(
        &mut self,
        mut op: impl FnMut(&mut Tree, &mut Store, &mut Changes) -> Result<R, Fault>,
    ) -> R {
        for _ in 0..10_000 {
            let before = self.changes.dirty();
            match op(&mut self.tree, &mut self.store, &mut self.changes) {
                Ok(r) => return r,
                Err(fault) => {
                    assert_eq!(self.changes.dirty(), before, "a fault changed something");
                    let bytes =
                        self.disk.get(&fault.ptr.addr).expect("a fault at a block never written");
                    self.store
                        .admit(&fault, bytes)
                        .expect("a fault at a block that is not the node");
                }
            }
        }
        panic!("no progress");
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) {
        self.run(|t, s, c| {
            s.edit(t, c, key, key)?.insert(key, value);
            Ok(())
        });
        self.inserted(key, value);
    }

    fn inserted(&mut self, key: &[u8], value: &[u8]) {
        self.model.insert(key.to_vec(), value.to_vec());
        self.inserted.insert(key.to_vec(), self.changes.generation());
    }

    fn remove(&mut self, key: &[u8]) {
        let was = self.run(|t, s, c| Ok(s.edit(t, c, key, key)?.remove(key)));
        assert_eq!(was, self.model.remove(key).is_some());
    }

    fn look(&mut self, key: &[u8]) {
        let pair = |k: &[u8], v: &[u8]| (k.to_vec(), v.to_vec());
        let own = |(k, v): (&Vec<u8>, &Vec<u8>)| (k.clone(), v.clone());
        let got = self.run(|t, s, _| Ok(t.get(s, key)?.map(<[u8]>::to_vec)));
        assert_eq!(got.as_ref(), self.model.get(key));
        let le = self.run(|t, s, _| t.get_le(s, key, pair));
        assert_eq!(le, self.model.range(..=key.to_vec()).next_back().map(own));
    }

    fn scan(&mut self, from: &[u8], to: &[u8]) {
        let want: Vec<_> = if from < to {
            self.model
                .range(from.to_vec()..to.to_vec())
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect()
        } else {
            Vec::new()
        };
        let mut got = Vec::new();
        let mut cursor = Cursor::new(from, Some(to));
        let mut more = true;
        while more {
            let ahead = cursor.ahead(&self.tree, &self.store, 3);
            assert!(ahead.len() <= 3);
            more = self
                .run(|t, s, _| cursor.next_leaf(t, s, |k, v| got.push((k.to_vec(), v.to_vec()))));
        }
        assert_eq!(got, want);
        let since = self.durable_generation;
        let mut young = Vec::new();
        let mut cursor = Cursor::new(from, Some(to)).since(since);
        while self
            .run(|t, s, _| cursor.next_leaf(t, s, |k, v| young.push((k.to_vec(), v.to_vec()))))
        {
        }
        assert!(young.is_sorted() && young.iter().all(|record| want.binary_search(record).is_ok()));
        for record in
            want.iter().filter(|(key, _)| self.inserted.get(key).is_some_and(|g| *g >= since))
        {
            assert!(young.binary_search(record).is_ok(), "what was inserted since was passed over");
        }
        let limit = want.len().min(10);
        let first = self.run(|t, s, _| {
            let mut first = Vec::new();
            t.scan(s, from, to, |k, v| {
                first.push((k.to_vec(), v.to_vec()));
                if first.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            Ok(first)
        });
        assert_eq!(first, want[..limit]);
    }

    /// Has nodes written elsewhere; none that is named is left on the way.
    fn rewrite(&mut self, key: &[u8], moves: impl Fn(PoolAddr) -> bool + Copy) {
        let before = self.changes.dirty();
        let moves = |node: &NodePtr| moves(node.addr);
        let moved = self.run(|t, s, c| Ok(s.edit(t, c, key, key)?.rewrite(key, moves)));
        assert_eq!(self.changes.dirty() - before, moved as usize);
        assert_eq!(self.run(|t, s, c| Ok(s.edit(t, c, key, key)?.rewrite(key, moves))), 0);
    }

    fn freeze(&mut self) {
        if self.commit.is_some() {
            return;
        }
        let (tree, mut changes) = (self.tree.clone(), self.changes.freeze());
        self.commit = Some(Commit {
            out: WriteOut::new(&tree, changes.generation()),
            tree,
            model: self.model.clone(),
            freed: changes.take_freed(),
            dirty: changes.dirty(),
            allocated: BTreeSet::new(),
        });
    }

    /// Writes up to `nodes` nodes; completes the commit if those were the last.
    fn write(&mut self, nodes: usize, fail: bool) {
        let Some(c) = &mut self.commit else { return };
        // Nodes that were given before are written.
        c.out.keep();
        for n in 0..nodes {
            if fail && n == nodes / 3 {
                // The place of those that were given since then takes no writes.
                for addr in c.out.take_back(&mut self.store) {
                    assert!(c.allocated.remove(&addr), "{addr:?} was not given");
                }
            }
            if fail && n == nodes / 2 {
                let mut none = || None;
                let mut out = [0; BLOCK];
                // Either it has an address already (a restart), or nothing happens.
                if let Ok(Some(addr)) = c.out.next(&mut self.store, &mut none, &mut out) {
                    self.disk.insert(addr, out.to_vec());
                }
                c.out.restart();
            }
            let (live, next) = (&self.live, &mut self.next);
            let allocated = &mut c.allocated;
            let mut alloc = || {
                // Reuses blocks soon, so that one freed too early shows.
                *next = (*next + 1) % (2 * live.len() as u64 + 64);
                let addr = (*next..)
                    .map(PoolAddr)
                    .find(|a| !live.contains(a) && !allocated.contains(a))?;
                allocated.insert(addr);
                Some(addr)
            };
            let mut out = [0; BLOCK];
            match c.out.next(&mut self.store, &mut alloc, &mut out).unwrap() {
                Some(addr) => {
                    assert!(
                        c.allocated.contains(&addr),
                        "{addr:?} was not allocated for this commit"
                    );
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
        self.durable_generation = Generation(self.changes.generation().0 - 1);
        self.tree.settle(&c.tree);
        self.live.extend(c.allocated);
        let freed_len = c.freed.len();
        let freed: Vec<_> = c.freed.resolve().collect();
        assert_eq!(freed.len(), freed_len, "a replaced node was never written");
        for NodePtr { addr, .. } in freed {
            assert!(self.live.remove(&addr), "{addr:?} was freed twice, or never allocated");
            self.store.forget(addr);
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
        self.changes = Changes::new(self.changes.generation());
        self.inserted.retain(|_, g| *g < self.changes.generation());
    }

    fn crash(&mut self) {
        self.commit = None;
        self.changes = Changes::new(self.durable_generation.next());
        self.abandon();
        self.store = Store::new(0);
    }
}

#[derive(Clone, Debug)]
enum Op {
    Run { start: u16, n: u16, step: u16, size: u16 },
    Remove { start: u16, n: u16, step: u16 },
    Ranges { start: u16, n: u16, size: u16, gap: u16, seed: u64 },
    Move { start: u16, n: u16, of: u64 },
    Hold(u16, u16, u8),
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
        6 => (
            start.clone(),
            1u16..400,
            prop_oneof![Just(1u16), Just(1), 2u16..50, Just(2711)],
            0u16..400,
        )
            .prop_map(|(start, n, step, size)| Op::Run { start, n, step, size }),
        5 => (start.clone(), 1u16..800, prop_oneof![Just(1u16), Just(1), 2u16..10, Just(2711)])
            .prop_map(|(start, n, step)| Op::Remove { start, n, step }),
        4 => (
            start.clone(),
            1u16..200,
            0u16..1024,
            prop_oneof![Just(0u16), 0u16..20, 0u16..2000],
            0u64..1 << 32,
        )
            .prop_map(|(start, n, size, gap, seed)| Op::Ranges { start, n, size, gap, seed }),
        2 => (start.clone(), 1u16..400,
            1u64..4).prop_map(|(start, n, of)| Op::Move { start, n, of }),
        3 => (start.clone(), start.clone(), 0u8..5).prop_map(|(a, b, t)| Op::Hold(a, b, t)),
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
            Op::Ranges { start, n, size, gap, seed } => {
                let range = |from: u16| {
                    let mut keys: Vec<_> = (from..from + n).map(key_of).collect();
                    keys.sort();
                    keys
                };
                let ranges = [range(start), range(start + n + gap), range(start + 2 * (n + gap))];
                let count = 1 + count % 3;
                w.edit_ranges(&ranges[..count], usize::from(size), seed);
            }
            Op::Move { start, n, of } => {
                for i in 0..n {
                    w.rewrite(&key_of(start + i), |addr| addr.0 % of == 0);
                }
            }
            Op::Hold(a, b, turns) => w.hold((&key_of(a), &key_of(b)), turns),
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
        limit in prop_oneof![2 => Just(0usize), 1 => Just(40), 1 => Just(10_000)],
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
    assert!(w.changes.dirty() <= 20_000 / 190 + 5, "{} nodes", w.changes.dirty());
    // Into the middle, in front of records that are already there.
    let before = w.changes.dirty();
    for i in 0..10_000u64 {
        let key = [&10_000u64.to_be_bytes()[..], &i.to_be_bytes()].concat();
        w.insert(&key, &[0; 12]);
    }
    assert!(
        w.changes.dirty() - before <= 10_000 / 190 + 5,
        "{} nodes more",
        w.changes.dirty() - before
    );
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
    let (resident, hits) = (w.store.resident(), w.store.stats().misses);
    assert_eq!(resident, w.live.len(), "and keeps it in the cache");
    w.look(&5000u64.to_be_bytes());
    assert_eq!(w.store.stats().misses, hits);
}

#[test]
fn the_cache_keeps_its_limit_and_refuses_wrong_bytes() {
    let mut w = ascending(10_000);
    commit(&mut w);
    w.crash();
    w.store = Store::new(20);
    w.scan(&[0], &[255]);
    assert!(w.store.resident() <= 20 && w.store.stats().evicted > 0);
    w.store = Store::new(20);
    let fault = w.tree.get(&w.store, &[1]).unwrap_err();
    let mut bytes = w.disk[&fault.ptr.addr].clone();
    bytes[4000] ^= 1;
    assert!(matches!(w.store.admit(&fault, &bytes), Err(NodeError::Checksum { .. })));
    assert_eq!(w.store.resident(), 0);
    // More leaves than the cache holds: it grows for as long as it must.
    w.run(|t, s, c| s.edit(t, c, &0u64.to_be_bytes(), &10_000u64.to_be_bytes()).map(|_| ()));
    assert_eq!(w.store.resident(), w.live.len());
    commit(&mut w);
    w.store.forget(PoolAddr(u64::MAX));
}

#[test]
fn what_is_older_is_passed_over_unread() {
    let mut w = World::new(1 << 20);
    for n in 0..20_000u64 {
        w.insert(&n.to_be_bytes(), &[7; 64]);
    }
    w.freeze();
    w.write(usize::MAX, false);
    let since = w.changes.generation();
    for n in [3u64, 9_000, 9_001, 19_999] {
        w.insert(&n.to_be_bytes(), &[8; 64]);
    }
    w.freeze();
    w.write(usize::MAX, false);
    w.crash();
    let before = w.store.stats().misses;
    let mut met = Vec::new();
    let mut cursor = Cursor::new(&[], None).since(since);
    while w.run(|t, s, _| cursor.next_leaf(t, s, |k, v| met.push((k.to_vec(), v[0])))) {}
    let changed: Vec<_> = met.iter().filter(|m| m.1 == 8).map(|m| m.0.clone()).collect();
    assert_eq!(changed, [3u64, 9_000, 9_001, 19_999].map(|n| n.to_be_bytes().to_vec()));
    let read = w.store.stats().misses - before;
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
    assert!(
        (old.len() / 2..old.len() / 2 + 3).contains(&w.changes.dirty()),
        "{} of {}",
        w.changes.dirty(),
        old.len()
    );
    commit(&mut w);
    assert!(old.iter().filter(|addr| half(**addr)).all(|addr| !w.live.contains(addr)));
    w.scan(&[0], &[255]);
}
