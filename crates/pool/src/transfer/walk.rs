//! The contents of a group: blocks with their checksums, as runs of neighbours. Synchronous steps
//! over resident nodes.

use base::{Crc, Generation, GroupId, Lba, PoolAddr, VolumeId};
use btree::{Cursor, Key, NodePtr};
use format::page::GroupKind;
use format::records::{Checksums, checksum_key};
use format::superblock::scrub::LostExtent;

use crate::error::Step;
use crate::space::{Pin, Run};
use crate::state::State;
use crate::txn::Kind;

/// The largest run.
pub(crate) const RUN_BLOCKS: u32 = 256;

/// The owner of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// A volume's block.
    Data(VolumeId, Lba),
    /// A node of this tree.
    Node(u64),
}

/// A block, and what it must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ExpectedBlock {
    pub addr: PoolAddr,
    pub crc: Crc,
    pub owner: Owner,
}

impl ExpectedBlock {
    /// As an extent of a volume.
    pub fn extent(&self) -> Option<LostExtent> {
        let Owner::Data(volume, lba) = self.owner else { return None };
        Some(LostExtent { addr: self.addr, volume, lba, blocks: 1 })
    }
}

/// Neighbours that are read by one request, in the order of addresses; there may be gaps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ReadRun {
    pub blocks: Vec<ExpectedBlock>,
}

impl ReadRun {
    pub fn first(&self) -> PoolAddr {
        self.blocks[0].addr
    }

    /// Blocks that are read, gaps included.
    pub fn len(&self) -> u32 {
        let last = self.blocks[self.blocks.len() - 1].addr.0;
        (last + 1 - self.first().0) as u32
    }
}

/// Joins blocks, ascending, to runs of one group: gaps of up to `gap` blocks are read through.
pub(crate) fn runs(
    blocks: impl IntoIterator<Item = ExpectedBlock>,
    group_blocks: u32,
    gap: u32,
) -> Vec<ReadRun> {
    let group = |addr: PoolAddr| addr.0 / u64::from(group_blocks);
    let mut out: Vec<ReadRun> = Vec::new();
    for block in blocks {
        let fits = out.last().is_some_and(|run| {
            let end = run.first().0 + u64::from(run.len());
            group(run.first()) == group(block.addr)
                && block.addr.0 - end <= u64::from(gap)
                && block.addr.0 + 1 - run.first().0 <= u64::from(RUN_BLOCKS)
        });
        match out.last_mut().filter(|_| fits) {
            Some(run) => run.blocks.push(block),
            None => out.push(ReadRun { blocks: vec![block] }),
        }
    }
    out
}

/// A pin for each run, of just its blocks. `pin` was taken when they were looked up, and ends here.
pub(crate) fn pinned(st: &State, runs: Vec<ReadRun>, pin: Pin) -> Vec<(ReadRun, Pin)> {
    let one = |run: ReadRun| {
        let pin = st.space.limbo().pin_blocks([Run { addr: run.first(), len: run.len() }], &pin);
        (run, pin)
    };
    runs.into_iter().map(one).collect()
}

/// Nodes of one tree, in the order of addresses, each once.
fn of_nodes(tree: u64, mut ptrs: Vec<NodePtr>) -> Vec<ExpectedBlock> {
    ptrs.sort_unstable_by_key(|p| p.addr);
    ptrs.dedup_by_key(|p| p.addr);
    let node = |p: NodePtr| ExpectedBlock { addr: p.addr, crc: p.crc, owner: Owner::Node(tree) };
    ptrs.into_iter().map(node).collect()
}

/// A tree.
#[derive(Clone, Copy)]
pub(crate) enum TreeId {
    /// The mapping of a volume or a snapshot.
    Mapping(VolumeId),
    /// What the snapshot before does not have of it.
    MappingSince(VolumeId),
    /// The checksums of a group.
    Sums(GroupId),
    /// The deadlist of a volume or a snapshot.
    Deadlist(VolumeId),
}

/// Nodes of a tree that are looked up in one step.
const NODES: usize = 512;

/// The next nodes of a tree that stand on devices and are of `since` or later, and where to go on,
/// if there are more.
pub(crate) fn nodes_from(
    st: &mut State,
    which: TreeId,
    since: Generation,
    from: &Key,
) -> Step<(Vec<ExpectedBlock>, Option<Key>)> {
    let mapping = |id| {
        let is_whole = st.forest.has_all_nodes(id);
        st.forest.mapping_of(Kind::Direct, id).filter(|_| is_whole)
    };
    let deadlist;
    let (tree, since) = match which {
        TreeId::Mapping(id) => (mapping(id), since),
        TreeId::MappingSince(id) => (mapping(id), since.max(st.forest.since_snapshot_before(id))),
        TreeId::Sums(id) => (Some(st.forest.sums_tree(id)), since),
        TreeId::Deadlist(id) => {
            deadlist = st.forest.deadlist_of(id);
            (deadlist.as_ref(), since)
        }
    };
    let Some(tree) = tree else { return Ok((Vec::new(), None)) };
    let (nodes, next) = tree.pointers(st.forest.store(), from, since, NODES)?;
    Ok((of_nodes(tree.id(), nodes), next))
}

/// The result of a step over a group's checksums.
pub(crate) enum Leaf {
    /// The blocks of a leaf that are in use, and the block of the group behind all of them.
    Blocks(Vec<ExpectedBlock>, u32),
    /// There are no more.
    End,
    /// The group's bitmaps are not in memory.
    NoMaps,
}

/// A walk over the checksums of a group.
pub(crate) struct Walk {
    group: GroupId,
    cursor: Cursor,
}

impl Walk {
    /// From a block of the group on.
    pub fn new(group: GroupId, from: u32, group_blocks: u32) -> Walk {
        // A record may begin before the block: those of a whole record back are looked at again.
        let from = from.saturating_sub(format::records::MAX_CHECKSUMS - 1);
        Walk { group, cursor: Cursor::new(&checksum_key(from), Some(&checksum_key(group_blocks))) }
    }

    /// The same, over what `since` and later generations have written, and others beside that.
    pub fn since(self, since: Generation) -> Walk {
        Walk { cursor: self.cursor.since(since), ..self }
    }

    /// Nodes that come next and are not in memory.
    pub fn ahead(&self, st: &State, max: usize) -> Vec<btree::Fault> {
        let tree = st.forest.sums_tree(self.group);
        self.cursor.ahead(tree, st.forest.store(), max)
    }

    /// The blocks of the next leaf that are in use, from block `from` of the group on. On a fault
    /// nothing has moved.
    pub fn next_leaf(&mut self, st: &mut State, from: u32) -> Step<Leaf> {
        let group = self.group;
        // The records of blocks that were freed stay, also where the group is formed again for
        // metadata. Its blocks are then no data, and have no records.
        let holds_data = st.space.groups().kind(group) == GroupKind::Data;
        if !holds_data || self.cursor.position().is_none() {
            return Ok(Leaf::End);
        }
        let Some(durable) = st.space.bitmaps().durable(group) else { return Ok(Leaf::NoMaps) };
        let geometry = st.space.geometry();
        let (mut blocks, mut upto) = (Vec::new(), from);
        self.cursor.next_leaf(st.forest.sums_tree(group), st.forest.store(), |k, v| {
            let Some(r) = Checksums::decode(k, v) else { return };
            upto = upto.max(r.offset + r.len());
            for i in 0..r.len() {
                let block = r.offset + i;
                let (true, Some(crc)) = (block >= from, r.crc(i)) else { continue };
                if durable.get(block as usize) {
                    let owner = Owner::Data(r.volume, r.lba.plus(u64::from(i)));
                    blocks.push(ExpectedBlock { addr: geometry.join(group, block), crc, owner });
                }
            }
        })?;
        Ok(Leaf::Blocks(blocks, upto))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(addr: u64) -> ExpectedBlock {
        let crc = Crc::default();
        ExpectedBlock { addr: PoolAddr(addr), crc, owner: Owner::Data(VolumeId(1), Lba(addr)) }
    }

    fn lengths(runs: &[ReadRun]) -> Vec<(u64, u32, usize)> {
        runs.iter().map(|r| (r.first().0, r.len(), r.blocks.len())).collect()
    }

    #[test]
    fn neighbours_become_runs_of_one_group_and_bounded_length() {
        let of = |addrs: &[u64], gap| lengths(&runs(addrs.iter().map(|&a| block(a)), 1024, gap));
        assert_eq!(of(&[1, 2, 3], 0), [(1, 3, 3)]);
        assert_eq!(of(&[1, 2, 5], 1), [(1, 2, 2), (5, 1, 1)]);
        assert_eq!(of(&[1, 2, 5], 2), [(1, 5, 3)]);
        assert_eq!(of(&[1022, 1023, 1024], 8), [(1022, 2, 2), (1024, 1, 1)]);
        let all: Vec<u64> = (0..600).collect();
        assert_eq!(of(&all, 0), [(0, 256, 256), (256, 256, 256), (512, 88, 88)]);
        assert_eq!(of(&[0, 255, 256], 300), [(0, 256, 2), (256, 1, 1)]);
    }
}
