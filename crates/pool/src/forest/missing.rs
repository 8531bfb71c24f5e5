//! Nodes that are not resident, as they are found before steps need them.

use std::collections::BTreeMap;

use base::{GroupId, PoolAddr};
use btree::Fault;
use rustc_hash::FxHashMap;

/// Neighbouring blocks whose checksums are mostly in one leaf.
const NEAR: u32 = 64;

/// Nodes that are not resident, each once, in the order of their addresses.
#[derive(Default)]
pub(crate) struct MissingNodes {
    nodes: BTreeMap<PoolAddr, Fault>,
    /// The last block of each group whose checksum was looked for.
    looked: FxHashMap<GroupId, u32>,
}

impl MissingNodes {
    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn add(&mut self, faults: impl IntoIterator<Item = Fault>) {
        self.nodes.extend(faults.into_iter().map(|fault| (fault.ptr.addr, fault)));
    }

    /// In the order of their addresses.
    pub fn into_faults(self) -> impl Iterator<Item = Fault> {
        self.nodes.into_values()
    }

    /// False if what has the checksums of these blocks was probably found with those before them.
    pub(super) fn is_new(&mut self, group: GroupId, last: u32) -> bool {
        let near = |at: &u32| last >= *at && last - at < NEAR;
        if self.looked.get(&group).is_some_and(near) {
            return false;
        }
        self.looked.insert(group, last);
        true
    }
}
