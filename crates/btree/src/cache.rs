//! Clean nodes by address, in bounded number.
//!
//! Replacement is CLOCK with credits: a leaf that is used gains one round of the hand, an inner
//! node three, since it leads to many. The hand moves at most [`SWEEP`] places for one eviction, so
//! admission costs O(1) always.

use std::cell::Cell;
use std::rc::Rc;

use base::PoolAddr;
use format::node::{NodeError, NodePtr, NodeRef, decode};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::Fault;
use crate::node::Node;

/// The farthest the hand moves for one eviction.
const SWEEP: usize = 64;
/// The smallest cache in which an operation can be sure to find all it needs, if it is retried
/// alone.
const SMALLEST: usize = 16;

/// Condemned nodes that are remembered; more are found again.
const CONDEMNED: usize = 256;

struct Slot {
    node: Option<Rc<Node>>,
    tree: u64,
    /// Rounds of the hand that the node will survive.
    credit: Cell<u8>,
}

/// What a cache did so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CacheStats {
    /// Lookups that found their node.
    pub hits: u64,
    /// Lookups that did not: faults.
    pub misses: u64,
    /// Nodes that had to go for others.
    pub evicted: u64,
}

/// The clean resident nodes of any number of trees.
pub(crate) struct NodeCache {
    limit: usize,
    /// More than `limit` while a range that needs more is being prepared.
    stretch: Cell<usize>,
    index: FxHashMap<PoolAddr, u32>,
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    /// Whole by themselves, but not where they are referred to: not to be admitted again.
    condemned: FxHashSet<NodePtr>,
    hand: usize,
    hits: Cell<u64>,
    misses: Cell<u64>,
    evicted: u64,
}

impl NodeCache {
    /// A cache of at most `limit_nodes` nodes, but at least 16.
    pub(crate) fn new(limit_nodes: usize) -> NodeCache {
        NodeCache {
            limit: limit_nodes.max(SMALLEST),
            stretch: Cell::new(0),
            index: FxHashMap::default(),
            slots: Vec::new(),
            vacant: Vec::new(),
            condemned: FxHashSet::default(),
            hand: 0,
            hits: Cell::new(0),
            misses: Cell::new(0),
            evicted: 0,
        }
    }

    /// Verifies that `bytes` are the node that `fault` asks for, and keeps it.
    pub(crate) fn admit(&mut self, fault: &Fault, bytes: &[u8]) -> Result<(), NodeError> {
        let expected = NodeRef { ptr: fault.ptr, level: fault.level, tree: fault.tree };
        let page = decode(bytes, &expected)?;
        if self.condemned.contains(&fault.ptr) {
            return Err(NodeError::Malformed("its keys are not those that its parent says"));
        }
        self.keep(fault.ptr, fault.tree, Rc::new(Node::clean(page, fault.ptr)));
        Ok(())
    }

    /// The block was freed: what it held is of no use.
    pub(crate) fn forget(&mut self, addr: PoolAddr) {
        if let Some(at) = self.index.remove(&addr) {
            self.slots[at as usize].node = None;
            self.vacant.push(at);
        }
    }

    /// How many nodes are resident.
    pub(crate) fn resident(&self) -> usize {
        self.index.len()
    }

    /// What it did so far.
    pub(crate) fn stats(&self) -> CacheStats {
        CacheStats { hits: self.hits.get(), misses: self.misses.get(), evicted: self.evicted }
    }

    /// The node, counted as used.
    pub(crate) fn find(&self, fault: &Fault) -> Option<&Rc<Node>> {
        let slot = self.slot_of(&fault.ptr).map(|at| &self.slots[at]);
        let found = slot.and_then(|slot| Some((slot, slot.node.as_ref()?)));
        // A damaged tree may refer to a node that has another place in it, or in another tree.
        let Some((slot, node)) =
            found.filter(|(s, n)| n.page.level() == fault.level && s.tree == fault.tree)
        else {
            self.misses.set(self.misses.get() + 1);
            return None;
        };
        self.hits.set(self.hits.get() + 1);
        slot.credit.set(if node.page.level() == 0 { 1 } else { 3 });
        Some(node)
    }

    /// The node, if it happens to be resident.
    pub(crate) fn peek(&self, fault: &Fault) -> Option<&Rc<Node>> {
        let slot = &self.slots[self.slot_of(&fault.ptr)?];
        slot.node.as_ref().filter(|n| n.page.level() == fault.level && slot.tree == fault.tree)
    }

    /// The node's keys are not where its parent says: it is not the right one, though its bytes are
    /// as expected.
    pub(crate) fn condemn(&mut self, ptr: &NodePtr) {
        self.take(ptr);
        if self.condemned.len() >= CONDEMNED {
            self.condemned.clear();
        }
        self.condemned.insert(*ptr);
    }

    /// The node, which leaves the cache.
    pub(crate) fn take(&mut self, ptr: &NodePtr) -> Option<Rc<Node>> {
        let at = self.slot_of(ptr)?;
        self.index.remove(&ptr.addr);
        self.vacant.push(at as u32);
        self.slots[at].node.take()
    }

    fn slot_of(&self, ptr: &NodePtr) -> Option<usize> {
        let at = *self.index.get(&ptr.addr)? as usize;
        // A freed address may have been given to another node since.
        (self.slots[at].node.as_ref()?.ptr()? == *ptr).then_some(at)
    }

    /// Keeps a node, clean or just written out, under its pointer.
    pub(crate) fn keep(&mut self, ptr: NodePtr, tree: u64, node: Rc<Node>) {
        let slot = Slot { node: Some(node), tree, credit: Cell::new(0) };
        if let Some(&at) = self.index.get(&ptr.addr) {
            self.slots[at as usize] = slot;
            return;
        }
        let limit = self.limit.max(self.stretch.get());
        // Two for one, so that a limit that was stretched comes back.
        for _ in 0..2 {
            if self.resident() >= limit {
                self.evict();
            }
        }
        let at = if let Some(at) = self.vacant.pop() {
            self.slots[at as usize] = slot;
            at
        } else {
            self.slots.push(slot);
            self.slots.len() as u32 - 1
        };
        self.index.insert(ptr.addr, at);
    }

    fn evict(&mut self) {
        for step in 1.. {
            self.hand = if self.hand + 1 < self.slots.len() { self.hand + 1 } else { 0 };
            let slot = &mut self.slots[self.hand];
            let credit = slot.credit.get();
            let Some(node) = &slot.node else { continue };
            if credit > 0 && step < SWEEP {
                slot.credit.set(credit - 1);
                continue;
            }
            if let Some(ptr) = node.ptr() {
                self.index.remove(&ptr.addr);
            }
            slot.node = None;
            self.vacant.push(self.hand as u32);
            self.evicted += 1;
            return;
        }
    }

    /// An edit needs `nodes` at once: make room for them, until [`NodeCache::relax`].
    pub(crate) fn stretch(&self, nodes: usize) {
        self.stretch.set(self.stretch.get().max(2 * nodes + SMALLEST));
    }

    pub(crate) fn relax(&self) {
        self.stretch.set(0);
    }
}
