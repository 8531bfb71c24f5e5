//! Nodes that are held stay in memory until they are edited.

use super::*;

impl World {
    /// Loads the nodes of a range, and holds them. Then turns begin, or all is let go.
    pub(super) fn hold(&mut self, (from, to): (&[u8], &[u8]), turns: u8) {
        let World { tree, store, disk, .. } = self;
        load_and_hold(tree, store, disk, (from, to));
        match turns {
            4.. => store.let_go(),
            _ => (0..turns).for_each(|_| store.next_turn()),
        }
    }
}

fn load_and_hold(
    tree: &Tree,
    store: &mut Store,
    disk: &BTreeMap<PoolAddr, Vec<u8>>,
    (from, to): (&[u8], &[u8]),
) {
    // A node may lead to others.
    for _ in 0..=tree.height() {
        for fault in tree.missing(store, from, to, usize::MAX) {
            assert!(!store.has(&fault) && !store.hold(&fault), "it is missing");
            store.admit(&fault, &disk[&fault.ptr.addr]).expect("the node");
            assert!(store.hold(&fault) && store.has(&fault));
        }
    }
}

/// A tree of 10,000 records as it stands on the disk, and the smallest store, which holds the nodes
/// of the first 2,000.
fn bench() -> (World, Tree, Store) {
    bench_of(0)
}

/// The same with a store of so many nodes.
fn bench_of(limit: usize) -> (World, Tree, Store) {
    let mut w = ascending(10_000);
    commit(&mut w);
    let (tree, mut store) = (Tree::open(ID, w.durable), Store::new(limit));
    load_and_hold(&tree, &mut store, &w.disk, (&key(0), &key(2_000)));
    (w, tree, store)
}

fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

/// Reads all of a tree.
fn read_all(w: &World, tree: &Tree, store: &mut Store) {
    for n in 0..10_000 {
        while let Err(fault) = tree.get(store, &key(n)).map(drop) {
            store.admit(&fault, &w.disk[&fault.ptr.addr]).expect("the node");
        }
    }
}

#[test]
fn what_is_held_stays_whatever_else_is_read_and_goes_with_its_edit() {
    let (w, mut tree, mut store) = bench();
    let held = store.resident();
    assert!(held > 10, "{held}");
    read_all(&w, &tree, &mut store);
    assert_eq!(store.resident(), held + 16);
    assert_eq!(tree.missing(&store, &key(0), &key(2_000), usize::MAX), []);
    let loaded = store.stats().loaded;
    let mut changes = Changes::new(w.changes.generation());
    for n in 0..1_900 {
        let edit = store.edit(&mut tree, &mut changes, &key(n), &key(n));
        edit.expect("held").insert(&key(n), b"new");
    }
    assert_eq!(store.stats().loaded, loaded);
    assert!(store.resident() <= 16 + 2, "{}: an edit takes its nodes", store.resident());
}

/// A write-back pass edits a clone of a tree whose clients read it all the while.
#[test]
fn nodes_that_a_clone_replaces_stay_for_readers_within_the_limit() {
    for limit in [16, 1 << 20] {
        let (w, tree, mut store) = bench_of(limit);
        let mut clone = tree.clone();
        let mut changes = Changes::beside_readers(w.changes.generation());
        let loaded = store.stats().loaded;
        for n in 0..1_900 {
            let edit = store.edit(&mut clone, &mut changes, &key(n), &key(n));
            edit.expect("held").insert(&key(n), b"new");
        }
        assert_eq!(store.stats().loaded, loaded);
        assert!(clone.get(&store, &key(7)).is_ok_and(|v| v == Some(&b"new"[..])));
        if limit == 16 {
            assert!(store.resident() <= 16 + 8, "{} nodes", store.resident());
            continue;
        }
        let there =
            (0..1_900).all(|n| tree.get(&store, &key(n)).is_ok_and(|v| v != Some(&b"new"[..])));
        assert!(there, "a reader of the old version would have to load it");
    }
}

#[test]
fn what_no_edit_takes_is_let_go() {
    for all_at_once in [false, true] {
        let (w, tree, mut store) = bench();
        if all_at_once {
            store.let_go();
        } else {
            (0..2).for_each(|_| store.next_turn());
            assert!(store.resident() > 10);
            assert_eq!(tree.missing(&store, &key(0), &key(2_000), usize::MAX), []);
            store.next_turn();
        }
        read_all(&w, &tree, &mut store);
        assert!(store.resident() <= 16, "{} nodes", store.resident());
        assert_ne!(tree.missing(&store, &key(0), &key(2_000), usize::MAX), []);
    }
}

#[test]
fn a_held_node_whose_block_is_freed_is_forgotten() {
    let (w, tree, mut store) = bench();
    let before = store.resident();
    for addr in w.disk.keys() {
        store.forget(*addr);
    }
    assert!(before > 0 && store.resident() == 0);
    assert_eq!(tree.missing(&store, &key(0), &key(2_000), usize::MAX).len(), 1, "the root");
}
