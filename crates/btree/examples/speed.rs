//! Measures lookups, inserts, write-out and loads: `cargo run --release -p btree --example speed
//! [records]`.
#![allow(
    clippy::disallowed_methods,
    reason = "a measurement needs the clock; nothing of the engine runs here"
)]

use std::time::Instant;

use base::{BLOCK, Generation, PoolAddr, Prng};
use btree::{Changes, Editor, Store, Tree, WriteOut};

fn per(what: &str, n: u64, start: Instant) {
    println!("{what:<48} {:>8.0} ns", start.elapsed().as_nanos() as f64 / n as f64);
}

fn lookups(what: &str, tree: &Tree, store: &Store, n: u64, mut key: impl FnMut(u64) -> u64) {
    let start = Instant::now();
    let found =
        (0..n).filter(|_| matches!(tree.get(store, &key(n).to_be_bytes()), Ok(Some(_)))).count();
    per(what, n, start);
    assert_eq!(found as u64, n);
}

fn edit<'a>(
    store: &'a mut Store,
    tree: &'a mut Tree,
    changes: &'a mut Changes,
    key: &[u8],
) -> Editor<'a> {
    store.edit(tree, changes, key, key).unwrap_or_else(|fault| panic!("{fault}"))
}

/// With an editor of its own.
fn insert(store: &mut Store, tree: &mut Tree, changes: &mut Changes, key: u64, value: &[u8]) {
    let key = key.to_be_bytes();
    edit(store, tree, changes, &key).insert(&key, value);
}

/// Inserts and removes by one editor.
fn edits(n: u64, random: &mut Prng) {
    let (mut store, mut tree, mut changes) =
        (Store::new(1 << 20), Tree::new(3), Changes::new(Generation(1)));
    let start = Instant::now();
    let mut edit = match store.edit(&mut tree, &mut changes, &[0], &[255]) {
        Ok(edit) => edit,
        Err(fault) => panic!("{fault}"),
    };
    for i in 0..n {
        edit.insert(&i.to_be_bytes(), &[1; 12]);
    }
    per("insert, ascending, one editor", n, start);
    let start = Instant::now();
    for i in 0..n {
        edit.remove(&i.to_be_bytes());
    }
    per("remove, ascending, one editor", n, start);
    let start = Instant::now();
    for _ in 0..n {
        edit.insert(&random.below(1 << 40).to_be_bytes(), &[1; 12]);
    }
    per("insert, random, one editor", n, start);
}

fn main() {
    let n: u64 = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(1_000_000);
    let mut store = Store::new(1 << 20);
    let mut changes = Changes::new(Generation(1));
    let mut tree = Tree::new(1);
    let mut random = Prng::new(1);
    let mut disk: Vec<Box<[u8]>> = Vec::new();

    let start = Instant::now();
    for i in 0..n {
        insert(&mut store, &mut tree, &mut changes, i, &[1; 12]);
    }
    per("insert, ascending", n, start);
    println!(
        "    {} nodes, height {}, {:.1} records a node",
        changes.dirty(),
        tree.height(),
        n as f64 / changes.dirty() as f64
    );

    let mut scattered = Tree::new(2);
    let mut count = Changes::new(Generation(1));
    let start = Instant::now();
    for _ in 0..n {
        insert(&mut store, &mut scattered, &mut count, random.below(1 << 40), &[1; 12]);
    }
    per("insert, random", n, start);
    println!("    {} nodes, {:.1} records a node", count.dirty(), n as f64 / count.dirty() as f64);

    let start = Instant::now();
    let frozen = tree.clone();
    per("freeze", 1, start);
    let mut write = WriteOut::new(&frozen, Generation(1));
    let start = Instant::now();
    let mut out = vec![0; BLOCK];
    let mut next = 0;
    let mut alloc = || {
        next += 1;
        Some(PoolAddr(next - 1))
    };
    while let Ok(Some(_)) = write.next(&mut store, &mut alloc, &mut out) {
        disk.push(out.clone().into());
    }
    per("write-out, a node, with a copy to memory", disk.len() as u64, start);
    tree.settle(&frozen);
    let root = write.root();
    let start = Instant::now();
    drop((write, frozen));
    per("drop of the frozen tree, a node", disk.len() as u64, start);

    let mut again = Prng::new(1);
    let present = |_: u64| again.below(1 << 40);
    lookups("lookup, random, changed nodes", &scattered, &store, n, present);
    lookups("lookup, random, clean nodes", &tree, &store, n, |n| random.below(n));

    let tree = Tree::open(1, root);
    let mut store = Store::new(1 << 20);
    let start = Instant::now();
    let mut loads = 0;
    for i in 0..n {
        while let Err(fault) = tree.get(&store, &i.to_be_bytes()) {
            let _ = store.admit(&fault, &disk[fault.ptr.addr.0 as usize]);
            loads += 1;
        }
    }
    println!(
        "ascending lookups with {loads} loads: {:.0} ns each",
        start.elapsed().as_nanos() as f64 / n as f64
    );
    let mut copy = tree.clone();
    let mut changes = Changes::new(Generation(2));
    let start = Instant::now();
    let few = n / 100;
    for _ in 0..few {
        insert(&mut store, &mut copy, &mut changes, random.below(n), &[2; 12]);
    }
    per("replace, random, first change of most nodes", few, start);
    let start = Instant::now();
    for i in 0..n {
        let key = i.to_be_bytes();
        edit(&mut store, &mut copy, &mut changes, &key).remove(&key);
    }
    per("remove, ascending", n, start);
    edits(n, &mut random);
}
