//! Every kind of dump of a pool made in simulation; what they say must agree.

use base::ErrorKind;
use format::page::GroupKind;
use offline::items::{NodeItem, SlotItem};
use offline::pool::dump::{PoolItem, PoolStructure};

use crate::lab::Lab;

#[test]
fn words_are_read() {
    assert_eq!(PoolStructure::parse("bitmap", Some("3")), Ok(Some(PoolStructure::Bitmap(3))));
    assert_eq!(
        PoolStructure::parse("extents", Some("a")),
        Ok(Some(PoolStructure::Extents("a".into())))
    );
    assert_eq!(PoolStructure::parse("node", Some("77")), Ok(Some(PoolStructure::Node(77))));
    assert_eq!(PoolStructure::parse("what", None), Ok(None));
    for (word, argument, wanted) in [
        ("groups", Some("3"), "takes nothing"),
        ("bitmap", None, "GROUP is missing: forebay dump bitmap GROUP"),
        ("node", Some("x"), "\"x\" is not a number, as ADDRESS is: forebay dump node ADDRESS"),
    ] {
        let e = PoolStructure::parse(word, argument).unwrap_err();
        assert!(e.contains(wanted), "{word} {argument:?}: {e}");
    }
}

#[test]
fn superblocks_of_all_devices() {
    let items = Lab::new(2, 2).dump(PoolStructure::Superblock).expect("a pool");
    assert_eq!(items.len(), 8);
    for i in items {
        let PoolItem::Superblock(slot) = i else { panic!("{i:?}") };
        let SlotItem { superblock: Some(sb), error: None, .. } = *slot else { panic!("{slot:?}") };
        assert_eq!((sb.pool.as_str(), sb.devices.len()), ("bench", 2));
    }
}

#[test]
fn records_trees_and_blocks_agree() {
    let lab = Lab::new(2, 2);
    let volumes = lab.dump(PoolStructure::Volumes).expect("a pool");
    let Some(PoolItem::Volume { name, allocated_blocks, mapping: Some(root), .. }) =
        volumes.first()
    else {
        panic!("{volumes:?}")
    };
    let extents = lab.dump(PoolStructure::Extents(name.clone())).expect("a volume");
    let sum: u64 = extents
        .iter()
        .map(|e| if let PoolItem::Extent { blocks, .. } = e { u64::from(*blocks) } else { 0 })
        .sum();
    assert_eq!(sum, *allocated_blocks);
    let nodes = lab.dump(PoolStructure::Mapping("1".into())).expect("a volume by number");
    let leaf_records = |n: &PoolItem| {
        if let PoolItem::Node(NodeItem { level: 0, records, .. }) = n { *records } else { 0 }
    };
    assert_eq!(nodes.iter().map(leaf_records).sum::<usize>(), extents.len());
    let block = lab.dump(PoolStructure::Node(root.address)).expect("a block");
    assert_eq!(block.len(), 3, "two copies and the node");
    assert!(matches!(&block[2], PoolItem::Node(node) if node.crc == root.crc), "{block:?}");
    for g in lab.dump(PoolStructure::Groups).expect("a pool") {
        let PoolItem::Group { group, used_blocks, use_, .. } = g else { continue };
        if use_ == GroupKind::Free {
            continue;
        }
        let bitmap = lab.dump(PoolStructure::Bitmap(group)).expect("a group");
        let [PoolItem::Bitmap { allocated, .. }] = &bitmap[..] else { panic!("{bitmap:?}") };
        assert_eq!(allocated.iter().map(|r| r.1).sum::<u32>(), used_blocks);
        if use_ == GroupKind::Data {
            let records = lab.dump(PoolStructure::Checksums(group)).expect("a group");
            let spoken = |i: &PoolItem| match i {
                PoolItem::Checksums { allocated, .. } => allocated.iter().filter(|a| **a).count(),
                _ => 0,
            };
            assert_eq!(records.iter().map(spoken).sum::<usize>(), used_blocks as usize);
        }
    }
}

#[test]
fn what_is_not_there_is_refused() {
    let lab = Lab::new(1, 1);
    for what in [
        PoolStructure::Bitmap(1 << 30),
        PoolStructure::Checksums(u32::MAX),
        PoolStructure::Node(u64::MAX),
        PoolStructure::Extents("x".into()),
    ] {
        assert_eq!(
            lab.dump(what.clone()).expect_err("nothing").kind,
            ErrorKind::NotFound,
            "{what:?}"
        );
    }
}
