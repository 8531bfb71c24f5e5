use std::collections::BTreeMap;

use base::Generation;
use btree::Changes;
use proptest::prelude::*;

use super::*;

proptest! {
    /// Against one entry a block: the last that was recorded wins, and everything recorded is found
    /// again.
    #[test]
    fn the_last_record_of_a_block_is_found(
        ops in prop::collection::vec((0u32..300, 1u32..150, 1u32..3, 0u64..3), 1..60),
    ) {
        let mut tree = Tree::new(1);
        let (mut store, mut changes) = (Store::new(64), Changes::new(Generation(1)));
        let mut model: BTreeMap<u32, (VolumeId, Lba, Crc)> = BTreeMap::new();
        for (n, (offset, len, volume, shift)) in ops.into_iter().enumerate() {
            let (volume, lba) = (VolumeId(volume), Lba(u64::from(offset) + shift * 1000));
            let crcs: Vec<Crc> = (0..len).map(|i| n as u32 * 1000 + i).collect();
            let mut ready = store.ready([range(&tree, offset, len)]).expect("resident");
            record(&mut ready.edit(&mut tree, &mut changes), offset, volume, lba, &crcs);
            for (i, &crc) in crcs.iter().enumerate() {
                model.insert(offset + i as u32, (volume, lba.plus(i as u64), crc));
            }
            for (&block, &(volume, lba, crc)) in &model {
                let mut out = Vec::new();
                let found = lookup(&tree, &store, block, 1, volume, lba, &mut out);
                prop_assert!(found.expect("resident"));
                prop_assert_eq!(&out, &[crc]);
                let found = lookup(&tree, &store, block, 1, volume, lba.plus(1), &mut out);
                prop_assert!(!found.expect("resident"));
            }
            let mut out = Vec::new();
            let found = lookup(&tree, &store, offset, len, volume, lba, &mut out);
            prop_assert!(found.expect("resident"));
            prop_assert_eq!(out, crcs);
        }
    }

    #[test]
    fn sequential_single_blocks_share_records(n in 65u32..200) {
        let mut tree = Tree::new(1);
        let (mut store, mut changes) = (Store::new(64), Changes::new(Generation(1)));
        for i in 0..n {
            let mut ready = store.ready([range(&tree, i, 1)]).expect("resident");
            let edit = &mut ready.edit(&mut tree, &mut changes);
            record(edit, i, VolumeId(1), Lba(u64::from(i)), &[i]);
        }
        let mut records = 0;
        let all = tree.scan(&store, &[0], &[0xff], |_, _| {
            records += 1;
            ControlFlow::Continue(())
        });
        all.expect("resident");
        prop_assert_eq!(records, n.div_ceil(MAX_CHECKSUMS));
    }
}
