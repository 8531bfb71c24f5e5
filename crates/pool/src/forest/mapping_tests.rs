use std::collections::BTreeMap;

use base::Generation;
use btree::Changes;
use proptest::prelude::*;

use super::*;

const GROUP: u32 = 64;
const GEOMETRY: Geometry = Geometry { group_blocks: GROUP, group_capacity: 1000, volume_pages: 1 };

proptest! {
    /// Against one entry a block, with the birth of each.
    #[test]
    fn replace_agrees_with_a_map_of_blocks(
        ops in prop::collection::vec(
            (0u64..200, 1u64..40, prop::option::of((0u64..500, 0u32..3))),
            1..60,
        ),
    ) {
        let mut tree = Tree::new(1);
        let (mut store, mut changes) = (Store::new(64), Changes::new(Generation(1)));
        let mut model: BTreeMap<u64, (u64, Birth)> = BTreeMap::new();
        for (lba, len, new) in ops {
            let new = new.map(|(group, birth)| NewBlocks {
                addr: PoolAddr(group * u64::from(GROUP)),
                birth: Birth(birth),
            });
            let blocks_of = BlockRange::of(Lba(lba), len);
            let mut freed = Vec::new();
            let mut ready = store.ready([range(&tree, blocks_of)]).expect("resident");
            let mut edit = ready.edit(&mut tree, &mut changes);
            let blocks = replace(&mut edit, blocks_of, new, &GEOMETRY, &mut freed);
            let mut want: Vec<_> = (lba..lba + len).filter_map(|b| model.remove(&b)).collect();
            let blocks_in = |run: &Run| run.addr.0..run.addr.0 + u64::from(run.len);
            let each = freed.iter().flat_map(|f| blocks_in(&f.run).map(|addr| (addr, f.birth)));
            let mut got: Vec<_> = each.collect();
            want.sort_unstable();
            got.sort_unstable();
            prop_assert_eq!(blocks as usize, got.len());
            prop_assert_eq!(got, want);
            if let Some(NewBlocks { addr, birth }) = new {
                model.extend((0..len).map(|i| (lba + i, (addr.0 + i, birth))));
            }
            let range = BlockRange::of(Lba(0), 1 << 40);
            let all = overlapping(&tree, &store, &GEOMETRY, range, usize::MAX).expect("resident");
            let each = |e: &MappedExtent| {
                let MappedExtent { lba, addr, birth, .. } = *e;
                (0..u64::from(e.len)).map(move |i| (lba.0 + i, (addr.0 + i, birth)))
            };
            let flat: Vec<_> = all
                .iter()
                .flat_map(each)
                .collect();
            prop_assert_eq!(flat, model.iter().map(|(&a, &b)| (a, b)).collect::<Vec<_>>());
        }
    }
}
