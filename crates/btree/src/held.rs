//! Nodes that are kept in memory until they are edited.
//!
//! A task that will edit many leaves loads them ahead. Until its edits come, no look-up uses them,
//! so the clock would evict them first, and each would be read twice. Such nodes are *held*: beside
//! the clock and its limit, in bounded number. An edit takes its node out. A turn begins with
//! each batch that is loaded, and what no edit has taken is let go after three turns.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::PoolAddr;
use format::node::NodePtr;

use crate::Fault;
use crate::node::Node;

/// Nodes that are held at once.
const MOST: usize = 4096;
/// A node is let go when so many turns have begun since it was held.
const TURNS: u64 = 3;

struct Entry {
    node: Rc<Node>,
    ptr: NodePtr,
    tree: u64,
    turn: u64,
}

/// A node that is held no more.
pub(crate) struct ReleasedNode {
    pub node: Rc<Node>,
    pub ptr: NodePtr,
    pub tree: u64,
}

impl From<Entry> for ReleasedNode {
    fn from(Entry { node, ptr, tree, .. }: Entry) -> ReleasedNode {
        ReleasedNode { node, ptr, tree }
    }
}

/// The nodes that are held, by address.
#[derive(Default)]
pub(crate) struct HeldNodes {
    nodes: BTreeMap<PoolAddr, Entry>,
    turn: u64,
}

impl HeldNodes {
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// No more can be held.
    pub fn is_full(&self) -> bool {
        self.nodes.len() >= MOST
    }

    /// Holds a node, from this turn on.
    pub fn insert(&mut self, ptr: NodePtr, tree: u64, node: Rc<Node>) {
        self.nodes.insert(ptr.addr, Entry { node, ptr, tree, turn: self.turn });
    }

    /// The node, if it is held.
    pub fn get(&self, fault: &Fault) -> Option<&Rc<Node>> {
        let entry = self.nodes.get(&fault.ptr.addr)?;
        let same = entry.ptr == fault.ptr && entry.tree == fault.tree;
        (same && entry.node.page.level() == fault.level).then_some(&entry.node)
    }

    /// True if the node is held; from this turn on again.
    pub fn renew(&mut self, fault: &Fault) -> bool {
        let there = self.get(fault).is_some();
        if there && let Some(entry) = self.nodes.get_mut(&fault.ptr.addr) {
            entry.turn = self.turn;
        }
        there
    }

    /// The node, which is held no more.
    pub fn take(&mut self, ptr: &NodePtr) -> Option<Rc<Node>> {
        self.nodes.get(&ptr.addr).filter(|entry| entry.ptr == *ptr)?;
        self.nodes.remove(&ptr.addr).map(|entry| entry.node)
    }

    /// Keeps the node that is held at this address if it is the one of this pointer, else drops it:
    /// its block was given to another node. True if it was kept.
    pub fn keep_if_same(&mut self, ptr: &NodePtr) -> bool {
        let same = self.nodes.get(&ptr.addr).map(|entry| entry.ptr == *ptr);
        if same == Some(false) {
            self.nodes.remove(&ptr.addr);
        }
        same == Some(true)
    }

    /// The block was freed.
    pub fn forget(&mut self, addr: PoolAddr) {
        self.nodes.remove(&addr);
    }

    /// Begins a turn; returns what is let go.
    pub fn next_turn(&mut self) -> Vec<ReleasedNode> {
        self.turn += 1;
        let now = self.turn;
        let old = self.nodes.iter().filter(|(_, entry)| entry.turn + TURNS <= now);
        let old: Vec<PoolAddr> = old.map(|(addr, _)| *addr).collect();
        old.iter().filter_map(|addr| self.nodes.remove(addr)).map(ReleasedNode::from).collect()
    }

    /// Lets go of all.
    pub fn take_all(&mut self) -> Vec<ReleasedNode> {
        std::mem::take(&mut self.nodes).into_values().map(ReleasedNode::from).collect()
    }
}
