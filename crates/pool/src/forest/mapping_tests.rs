use std::collections::BTreeMap;

use base::Generation;
use btree::Changes;
use proptest::prelude::*;

use super::*;

const GROUP: u32 = 64;
const GEOMETRY: Geometry = Geometry { group_blocks: GROUP, group_capacity: 1000, volume_pages: 1 };

proptest! {
    /// Against one entry a block.
    #[test]
    fn replace_agrees_with_a_map_of_blocks(
        ops in prop::collection::vec((0u64..200, 1u64..40, prop::option::of(0u64..500)), 1..60),
    ) {
        let mut tree = Tree::new(1);
        let (mut store, mut changes) = (Store::new(64), Changes::new(Generation(1)));
        let mut model: BTreeMap<u64, u64> = BTreeMap::new();
        for (lba, len, addr) in ops {
            let addr = addr.map(|a| PoolAddr(a * u64::from(GROUP)));
            let blocks_of = BlockRange::of(Lba(lba), len);
            let mut freed = Vec::new();
            let mut ready = store.ready([range(&tree, blocks_of)]).expect("resident");
            let mut edit = ready.edit(&mut tree, &mut changes);
            let blocks = replace(&mut edit, blocks_of, addr, &GEOMETRY, &mut freed);
            let mut want: Vec<u64> = (lba..lba + len).filter_map(|b| model.remove(&b)).collect();
            let each = freed.iter().flat_map(|r| (0..u64::from(r.len)).map(|i| r.addr.0 + i));
            let mut got: Vec<u64> = each.collect();
            want.sort_unstable();
            got.sort_unstable();
            prop_assert_eq!(blocks as usize, got.len());
            prop_assert_eq!(got, want);
            if let Some(a) = addr {
                model.extend((0..len).map(|i| (lba + i, a.0 + i)));
            }
            let range = BlockRange::of(Lba(0), 1 << 40);
            let all = overlapping(&tree, &store, &GEOMETRY, range, usize::MAX).expect("resident");
            let flat: Vec<(u64, u64)> = all
                .iter()
                .flat_map(|e| (0..u64::from(e.len)).map(|i| (e.lba.0 + i, e.addr.0 + i)))
                .collect();
            prop_assert_eq!(flat, model.iter().map(|(&a, &b)| (a, b)).collect::<Vec<_>>());
        }
    }
}
