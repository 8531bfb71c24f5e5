//! Measures lookups, inserts, write-out and loads: `cargo run --release -p btree --example speed [records]`.
#![allow(clippy::disallowed_methods, reason = "a measurement needs the clock; nothing of the engine runs here")]

use std::time::Instant;

use base::{BLOCK, Generation, PoolAddr, Prng};
use btree::{DirtyCount, Edit, Freed, NodeCache, Tree, WriteOut};

fn per(what: &str, n: u64, start: Instant) {
    println!("{what:<48} {:>8.0} ns", start.elapsed().as_nanos() as f64 / n as f64);
}

fn lookups(what: &str, tree: &Tree, cache: &mut NodeCache, n: u64, mut key: impl FnMut(u64) -> u64) {
    let start = Instant::now();
    let found = (0..n).filter(|_| matches!(tree.get(cache, &key(n).to_be_bytes()), Ok(Some(_)))).count();
    per(what, n, start);
    assert_eq!(found as u64, n);
}

fn main() {
    let n: u64 = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(1_000_000);
    let mut cache = NodeCache::new(1 << 20);
    let (mut freed, mut dirty) = (Freed::new(), DirtyCount::default());
    let mut tree = Tree::new(1);
    let mut random = Prng::new(1);
    let mut disk: Vec<Box<[u8]>> = Vec::new();

    let mut edit = Edit { cache: &mut cache, generation: Generation(1), freed: &mut freed, dirty: &mut dirty };
    let start = Instant::now();
    for i in 0..n {
        let _ = tree.insert(&mut edit, &i.to_be_bytes(), &[1; 12]);
    }
    per("insert, ascending", n, start);
    println!(
        "    {} nodes, height {}, {:.1} records a node",
        dirty.get(),
        tree.height(),
        n as f64 / dirty.get() as f64
    );

    let mut scattered = Tree::new(2);
    let mut count = DirtyCount::default();
    let mut edit = Edit { cache: &mut cache, generation: Generation(1), freed: &mut freed, dirty: &mut count };
    let start = Instant::now();
    for _ in 0..n {
        let _ = scattered.insert(&mut edit, &random.below(1 << 40).to_be_bytes(), &[1; 12]);
    }
    per("insert, random", n, start);
    println!("    {} nodes, {:.1} records a node", count.get(), n as f64 / count.get() as f64);

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
    while let Ok(Some(_)) = write.next(&mut cache, &mut alloc, &mut out) {
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
    lookups("lookup, random, changed nodes", &scattered, &mut cache, n, present);
    lookups("lookup, random, clean nodes", &tree, &mut cache, n, |n| random.below(n));

    let tree = Tree::open(1, root);
    let mut cache = NodeCache::new(1 << 20);
    let start = Instant::now();
    let mut loads = 0;
    for i in 0..n {
        while let Err(fault) = tree.get(&mut cache, &i.to_be_bytes()) {
            let _ = cache.admit(&fault, &disk[fault.ptr.addr.0 as usize]);
            loads += 1;
        }
    }
    println!("ascending lookups with {loads} loads: {:.0} ns each", start.elapsed().as_nanos() as f64 / n as f64);
    let mut copy = tree.clone();
    let mut edit = Edit { cache: &mut cache, generation: Generation(2), freed: &mut freed, dirty: &mut dirty };
    let start = Instant::now();
    let few = n / 100;
    for _ in 0..few {
        let _ = copy.insert(&mut edit, &random.below(n).to_be_bytes(), &[2; 12]);
    }
    per("replace, random, first change of most nodes", few, start);
    let start = Instant::now();
    for i in 0..n {
        let _ = copy.remove(&mut edit, &i.to_be_bytes());
    }
    per("remove, ascending", n, start);
}
