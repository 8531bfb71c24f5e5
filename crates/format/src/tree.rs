//! The numbers of trees. Each node says which tree it belongs to.

use base::{GroupId, VolumeId};

/// The index of a cache.
pub const INDEX_TREE: u64 = 3 << 32;

/// The mapping tree of a volume.
pub fn mapping_tree_id(volume: VolumeId) -> u64 {
    1 << 32 | u64::from(volume.0)
}

/// The checksum tree of a block group.
pub fn checksum_tree_id(group: GroupId) -> u64 {
    2 << 32 | u64::from(group.0)
}

/// The deadlist of a volume, and those of its snapshots.
pub fn deadlist_tree_id(volume: VolumeId) -> u64 {
    4 << 32 | u64::from(volume.0)
}

/// The volume of which a tree is the mapping.
pub fn volume_of_tree(tree: u64) -> Option<VolumeId> {
    (tree >> 32 == 1).then_some(VolumeId(tree as u32))
}

/// The block group of which a tree has the checksums.
pub fn group_of_tree(tree: u64) -> Option<GroupId> {
    (tree >> 32 == 2).then_some(GroupId(tree as u32))
}

/// The name of the tree of this number, for users.
pub fn tree_name(tree: u64) -> String {
    match tree >> 32 {
        1 => format!("mapping of volume {}", tree as u32),
        2 => format!("checksums of group {}", tree as u32),
        3 => "index of the cache".to_owned(),
        4 => format!("deadlist of volume {}", tree as u32),
        _ => format!("{tree:#x}"),
    }
}
