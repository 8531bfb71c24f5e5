//! Clean nodes by address, in bounded number.
//!
//! Replacement is CLOCK with credits: a leaf that is used gains one round of the hand, an inner
//! node three, since it leads to many. The hand moves at most [`SWEEP`] places for one eviction, so
//! admission costs O(1) always. Nodes that are about to be edited stand beside the clock
//! ([`crate::held`]).

use std::cell::Cell;
use std::rc::Rc;

use base::PoolAddr;
use format::node::{NodeError, NodePtr, NodeRef, decode};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::Fault;
use crate::held::HeldNodes;
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

/// Counts of a cache since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CacheStats {
    /// Lookups that found their node.
    pub hits: u64,
    /// Lookups that did not: faults.
    pub misses: u64,
    /// Nodes that had to go for others.
    pub evicted: u64,
    /// Nodes that were read.
    pub loaded: u64,
    /// Steps that had to wait for a node.
    pub waited: u64,
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
    /// Nodes that edits have left to readers, beside the limit.
    left: usize,
    /// Beside the clock, and not in `index`.
    held: HeldNodes,
    hand: usize,
    hits: Cell<u64>,
    misses: Cell<u64>,
    evicted: u64,
    loaded: u64,
    waited: u64,
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
            left: 0,
            held: HeldNodes::default(),
            hand: 0,
            hits: Cell::new(0),
            misses: Cell::new(0),
            evicted: 0,
            loaded: 0,
            waited: 0,
        }
    }

    /// Verifies that `bytes` are the node that `fault` asks for, and keeps it.
    pub(crate) fn admit(&mut self, fault: &Fault, bytes: &[u8]) -> Result<(), NodeError> {
        let expected = NodeRef { ptr: fault.ptr, level: fault.level, tree: fault.tree };
        let page = decode(bytes, &expected)?;
        self.loaded += 1;
        if self.condemned.contains(&fault.ptr) {
            return Err(NodeError::Malformed("its keys are not those that its parent says"));
        }
        self.keep(fault.ptr, fault.tree, Rc::new(Node::clean(page, fault.ptr)));
        Ok(())
    }

    /// The block was freed: what it held is of no use.
    pub(crate) fn forget(&mut self, addr: PoolAddr) {
        self.held.forget(addr);
        if let Some(at) = self.index.remove(&addr) {
            self.slots[at as usize].node = None;
            self.vacant.push(at);
        }
    }

    /// The number of nodes that are resident.
    pub(crate) fn resident(&self) -> usize {
        self.index.len() + self.held.len()
    }

    /// A step has to wait for a node.
    pub(crate) fn note_wait(&mut self) {
        self.waited += 1;
    }

    /// The counts of the cache since it was made.
    pub(crate) fn stats(&self) -> CacheStats {
        CacheStats {
            hits: self.hits.get(),
            misses: self.misses.get(),
            evicted: self.evicted,
            loaded: self.loaded,
            waited: self.waited,
        }
    }

    /// The node, counted as used.
    pub(crate) fn find(&self, fault: &Fault) -> Option<&Rc<Node>> {
        let slot = self.slot_of(&fault.ptr).map(|at| &self.slots[at]);
        let found = slot.and_then(|slot| Some((slot, slot.node.as_ref()?)));
        // A damaged tree may refer to a node that has another place in it, or in another tree.
        let Some((slot, node)) =
            found.filter(|(s, n)| n.page.level() == fault.level && s.tree == fault.tree)
        else {
            return self.find_held(fault);
        };
        self.hits.set(self.hits.get() + 1);
        slot.credit.set(if node.page.level() == 0 { 1 } else { 3 });
        Some(node)
    }

    #[cold]
    fn find_held(&self, fault: &Fault) -> Option<&Rc<Node>> {
        let node = self.held.get(fault);
        let count = if node.is_some() { &self.hits } else { &self.misses };
        count.set(count.get() + 1);
        node
    }

    /// The node, if it happens to be resident.
    pub(crate) fn peek(&self, fault: &Fault) -> Option<&Rc<Node>> {
        let slot = self.slot_of(&fault.ptr).map(|at| &self.slots[at]);
        let node = slot.filter(|s| s.tree == fault.tree).and_then(|s| s.node.as_ref());
        node.filter(|n| n.page.level() == fault.level).or_else(|| self.held.get(fault))
    }

    /// Keeps a node that is about to be edited from eviction, until it is edited or three more
    /// turns have begun. False if it is not resident. Where too many are held already, it is not.
    pub(crate) fn hold(&mut self, fault: &Fault) -> bool {
        if self.held.renew(fault) {
            return true;
        }
        if self.peek(fault).is_none() {
            return false;
        }
        if !self.held.is_full()
            && let Some(node) = self.take(&fault.ptr)
        {
            self.held.insert(fault.ptr, fault.tree, node);
        }
        true
    }

    /// A turn begins: what was held for long goes back to the clock.
    pub(crate) fn next_turn(&mut self) {
        for node in self.held.next_turn() {
            self.keep(node.ptr, node.tree, node.node);
        }
    }

    /// Everything that is held goes back to the clock.
    pub(crate) fn let_go(&mut self) {
        for node in self.held.take_all() {
            self.keep(node.ptr, node.tree, node.node);
        }
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
        let Some(at) = self.slot_of(ptr) else { return self.held.take(ptr) };
        self.index.remove(&ptr.addr);
        self.vacant.push(at as u32);
        self.slots[at].node.take()
    }

    /// The node, which stays in the cache for readers, and is not held any more. Nothing is evicted
    /// for it: an edit is under way, which needs what it has found. The next one makes room.
    pub(crate) fn share(&mut self, ptr: &NodePtr, tree: u64) -> Option<Rc<Node>> {
        if let Some(at) = self.slot_of(ptr) {
            return self.slots[at].node.clone();
        }
        let node = self.held.take(ptr)?;
        self.left += 1;
        self.enter(*ptr, Slot { node: Some(node.clone()), tree, credit: Cell::new(0) });
        Some(node)
    }

    fn slot_of(&self, ptr: &NodePtr) -> Option<usize> {
        let at = *self.index.get(&ptr.addr)? as usize;
        // A freed address may have been given to another node since.
        (self.slots[at].node.as_ref()?.ptr()? == *ptr).then_some(at)
    }

    /// Keeps a node, clean or just written out, under its pointer.
    pub(crate) fn keep(&mut self, ptr: NodePtr, tree: u64, node: Rc<Node>) {
        if self.held.keep_if_same(&ptr) {
            return;
        }
        let slot = Slot { node: Some(node), tree, credit: Cell::new(0) };
        if self.index.contains_key(&ptr.addr) {
            return self.enter(ptr, slot);
        }
        let limit = self.limit.max(self.stretch.get());
        // Two for one, so that a limit that was stretched comes back.
        for _ in 0..2 {
            if self.index.len() >= limit {
                self.evict();
            }
        }
        self.enter(ptr, slot);
    }

    /// An edit begins: others make room for the nodes that the last ones have left to readers.
    pub(crate) fn trim(&mut self) {
        for _ in 0..self.left.min(2) {
            self.left -= 1;
            if self.index.len() > self.limit.max(self.stretch.get()) {
                self.evict();
            }
        }
    }

    fn enter(&mut self, ptr: NodePtr, slot: Slot) {
        if let Some(&at) = self.index.get(&ptr.addr) {
            self.slots[at as usize] = slot;
            return;
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
