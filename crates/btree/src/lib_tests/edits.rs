//! Edits of ranges: nothing faults once there is an editor, whatever is removed and inserted again.

use base::Prng;

use super::*;

fn key_range(keys: &[Vec<u8>]) -> (Key, Key) {
    (Key::new(&keys[0]), Key::new(&keys[keys.len() - 1]))
}

impl World {
    /// Edits ranges in one step, all over them and in no order, and looks at them in between. No
    /// node may be loaded once the first editor is there: the editor panics if it lacks one.
    pub(super) fn edit_ranges(&mut self, ranges: &[Vec<Vec<u8>>], size: usize, seed: u64) {
        let mut rng = Prng::new(seed);
        let empties = rng.one_in(2);
        let World { tree, store, changes, model, disk, .. } = self;
        if let [keys] = ranges {
            // One range may be edited by the shorter way too.
            let (from, to) = key_range(keys);
            while let Err(fault) = store.edit(tree, changes, &from, &to) {
                store.admit(&fault, &disk[&fault.ptr.addr]).expect("the node");
            }
        }
        let wanted: Vec<(Key, Key)> = ranges.iter().map(|keys| key_range(keys)).collect();
        while let Err(fault) = store.ready(wanted.iter().map(|(from, to)| (&*tree, *from, *to))) {
            store.admit(&fault, &disk[&fault.ptr.addr]).expect("the node");
        }
        let mut ready = store
            .ready(wanted.iter().map(|(from, to)| (&*tree, *from, *to)))
            .expect("it was just there");
        let mut inserted = Vec::new();
        if empties {
            // Nothing is left of the ranges meanwhile.
            let mut order: Vec<&Vec<Vec<u8>>> = ranges.iter().collect();
            if rng.one_in(2) {
                order.reverse();
            }
            for keys in order {
                let mut edit = ready.edit(tree, changes);
                let all: Vec<Vec<u8>> = model
                    .range(keys[0].clone()..=keys[keys.len() - 1].clone())
                    .map(|(k, _)| k.clone())
                    .collect();
                for key in all {
                    assert!(edit.remove(&key));
                    model.remove(&key);
                }
            }
        }
        for _ in 0..ranges.iter().map(Vec::len).sum() {
            let mut edit = ready.edit(tree, changes);
            let keys = &ranges[rng.below(ranges.len() as u64) as usize];
            let key = &keys[rng.below(keys.len() as u64) as usize];
            let owned = |k: &[u8], v: &[u8]| (k.to_vec(), v.to_vec());
            match rng.below(8) {
                0..3 => assert_eq!(edit.remove(key), model.remove(key).is_some()),
                3..6 => {
                    let value = vec![seed as u8; rng.below(size as u64 + 1) as usize];
                    edit.insert(key, &value);
                    model.insert(key.clone(), value);
                    inserted.push(key.clone());
                }
                6 => {
                    let last = model
                        .range(..=key.clone())
                        .next_back()
                        .map(|(k, v)| (k.clone(), v.clone()));
                    assert_eq!(edit.get_le(key, owned), last);
                    assert_eq!(edit.get(key), model.get(key).map(|v| &v[..]));
                    // The record before a range may be prolonged.
                    let before = model.range(..keys[0].clone()).next_back().map(|(k, _)| k.clone());
                    if let Some(before) = before.filter(|_| ranges.len() == 1) {
                        edit.insert(&before, &[7; 20]);
                        model.insert(before.clone(), vec![7; 20]);
                        inserted.push(before);
                    }
                }
                _ => {
                    let (from, to) = (&keys[0], &keys[keys.len() - 1]);
                    let mut found = Vec::new();
                    edit.scan(from, to, |k, v| {
                        found.push(owned(k, v));
                        ControlFlow::Continue(())
                    });
                    let want: Vec<_> = model
                        .range(from.clone()..to.clone())
                        .map(|(k, v)| (k.clone(), v.clone()))
                        .collect();
                    assert_eq!(found, want);
                }
            }
        }
        for key in inserted {
            self.inserted.insert(key, self.changes.generation());
        }
    }
}

/// Every range of a few leaves of a tree of three levels: all of it is removed, and put there
/// again. The leaves that are left to take it may be below other parents.
#[test]
fn a_range_may_be_emptied_and_filled_again() {
    let key = |i: u64| [&[7; 20][..], &i.to_be_bytes()].concat();
    let mut w = World::new(1 << 20);
    for i in 0..1500 {
        w.insert(&key(i), &[1; 1000]);
    }
    commit(&mut w);
    assert_eq!(w.tree.height(), 3);
    for (first, len) in (0..1500).flat_map(|first| [(first, 1), (first, 4), (first, 9)]) {
        // Nothing is resident, and the store is small.
        w.crash();
        let keys: Vec<Vec<u8>> = (first..(first + len).min(1500)).map(key).collect();
        let (from, to) = key_range(&keys);
        let World { disk, store, tree, changes, model, .. } = &mut w;
        while let Err(fault) = store.edit(tree, changes, &from, &to) {
            store.admit(&fault, &disk[&fault.ptr.addr]).expect("the node");
        }
        let mut edit = store.edit(tree, changes, &from, &to).expect("it was just there");
        let insert = |edit: &mut Editor<'_>, model: &mut Model, key: &[u8], len: usize| {
            edit.insert(key, &vec![2; len]);
            model.insert(key.to_vec(), vec![2; len]);
        };
        for again in [&from, &to] {
            for key in &keys {
                assert_eq!(edit.remove(key), model.remove(key).is_some());
            }
            insert(&mut edit, model, again, 100);
        }
        keys.iter().for_each(|key| insert(&mut edit, model, key, 1000));
        if first % 25 == 0 {
            w.scan(&[0], &[255]);
        }
    }
}

/// Two trees, each with more leaves in its range than the store holds: both are there at once in
/// the end.
#[test]
fn ranges_of_several_trees_are_there_together() {
    let mut w = ascending(5_000);
    commit(&mut w);
    let root = w.durable;
    let key = |i: u64| Key::new(&i.to_be_bytes());
    // The same nodes stand for another tree by another store's disk: of another id, they have to be
    // written anew.
    let mut other = World::new(1 << 20);
    other.tree = Tree::new(ID + 1);
    for i in 0..5_000u64 {
        other.insert(&i.to_be_bytes(), &[0; 12]);
    }
    let (frozen, mut changes) = (other.tree.clone(), other.changes.freeze());
    let mut out = WriteOut::new(&frozen, changes.generation());
    let mut next = 1 << 20;
    let mut block = [0; BLOCK];
    let mut alloc = || {
        next += 1;
        Some(PoolAddr(next))
    };
    while let Some(addr) = out.next(&mut other.store, &mut alloc, &mut block).expect("room") {
        w.disk.insert(addr, block.to_vec());
    }
    assert!(changes.take_freed().is_empty());
    let (mut a, mut b) = (Tree::open(ID, root), Tree::open(ID + 1, out.root()));
    let mut store = Store::new(16);
    let mut changes = Changes::new(Generation(9));
    let mut loads = 0;
    loop {
        let ranges = [(&a, key(0), key(4_999)), (&b, key(0), key(4_999))];
        match store.ready(ranges).map(drop) {
            Ok(()) => break,
            Err(fault) => store.admit(&fault, &w.disk[&fault.ptr.addr]).expect("the node"),
        }
        loads += 1;
        assert!(loads < 1000, "it does not come to rest");
    }
    let ranges = [(&a, key(0), key(4_999)), (&b, key(0), key(4_999))];
    let mut ready = store.ready(ranges).expect("it was just there");
    for i in 0..5_000 {
        assert!(ready.edit(&mut a, &mut changes).remove(&key(i)));
        ready.edit(&mut b, &mut changes).insert(&key(i), b"new");
    }
    assert!(a.is_empty() && !b.is_empty());
}

#[test]
#[should_panic(expected = "outside of the edited range")]
fn a_key_outside_of_the_range_is_refused() {
    let mut w = ascending(1000);
    let World { store, tree, changes, .. } = &mut w;
    let mut edit =
        store.edit(tree, changes, &5u64.to_be_bytes(), &9u64.to_be_bytes()).expect("resident");
    edit.insert(&10u64.to_be_bytes(), b"x");
}

#[test]
#[should_panic(expected = "outside of the edited range")]
fn the_record_before_the_range_stays() {
    let mut w = ascending(1000);
    let World { store, tree, changes, .. } = &mut w;
    let mut edit =
        store.edit(tree, changes, &5u64.to_be_bytes(), &9u64.to_be_bytes()).expect("resident");
    edit.insert(&4u64.to_be_bytes(), b"x");
    edit.remove(&4u64.to_be_bytes());
}
