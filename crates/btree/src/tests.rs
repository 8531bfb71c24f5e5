use base::Generation;

use crate::*;

#[test]
fn in_memory() {
    let mut cache = NodeCache::new(16);
    let (mut freed, mut dirty) = (Freed::new(), DirtyCount::default());
    let mut edit = Edit { cache: &mut cache, generation: Generation(1), freed: &mut freed, dirty: &mut dirty };
    let mut tree = Tree::new(1);
    for i in 0..10_000u64 {
        tree.insert(&mut edit, &(i * 7919 % 10_000).to_be_bytes(), &i.to_le_bytes()).unwrap();
    }
    for i in 0..10_000u64 {
        assert_eq!(tree.get(edit.cache, &(i * 7919 % 10_000).to_be_bytes()).unwrap(), Some(&i.to_le_bytes()[..]));
    }
    for i in 0..10_000u64 {
        assert!(tree.remove(&mut edit, &i.to_be_bytes()).unwrap());
    }
    assert!(tree.is_empty() && edit.freed.is_empty());
    assert_eq!(edit.dirty.get(), 0);
}
