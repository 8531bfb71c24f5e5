//! Nodes that are not resident, as they are found before steps need them.

use std::collections::BTreeMap;

use base::PoolAddr;
use btree::Fault;

/// Nodes that are not resident, each once, in the order of their addresses.
#[derive(Default)]
pub(crate) struct Missing {
    nodes: BTreeMap<PoolAddr, Fault>,
}

impl Missing {
    /// None.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub fn add(&mut self, faults: impl IntoIterator<Item = Fault>) {
        self.nodes.extend(faults.into_iter().map(|fault| (fault.ptr.addr, fault)));
    }

    /// In the order of their addresses.
    pub fn into_faults(self) -> impl Iterator<Item = Fault> {
        self.nodes.into_values()
    }
}
