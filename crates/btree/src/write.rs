//! Writing the changed nodes of a frozen tree, children before parents.

use std::rc::Rc;

use base::{BLOCK, Generation, PoolAddr};
use format::node::{NodePtr, RootPtr};

use crate::node::{Node, Place};
use crate::{Link, Store, Tree};

/// No address could be had for a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no space for a node")]
pub struct OutOfSpace;

/// The write-out of one frozen tree, a node at a time: the caller may pause between any two, and do
/// other things to the store and to the open tree. If a write fails, [`WriteOut::restart`] (or a
/// new one) goes through all nodes again; those that have an address keep it.
pub struct WriteOut {
    tree: Tree,
    generation: Generation,
    /// The way from the root to the next node: nodes whose children up to a slot have been written.
    stack: Vec<(Rc<Node>, usize)>,
    /// Nodes that were given since the last [`WriteOut::keep`].
    given: Vec<Rc<Node>>,
    /// Nodes that have an address are given, too.
    again: bool,
}

impl WriteOut {
    /// The write-out of what `generation`, the last in which `tree` was edited, has changed.
    pub fn new(tree: &Tree, generation: Generation) -> WriteOut {
        let (stack, given) = (Vec::new(), Vec::new());
        let mut out = WriteOut { tree: tree.clone(), generation, stack, given, again: true };
        out.restart();
        out
    }

    /// Begins again with the first node.
    pub fn restart(&mut self) {
        self.again = true;
        self.begin();
    }

    fn begin(&mut self) {
        self.stack.clear();
        if let Some(Link::Mem(root)) = &self.tree.root
            && self.gives(root)
        {
            self.stack.push((root.clone(), 0));
        }
    }

    /// True if all nodes were given: no block is needed for another one.
    pub fn is_over(&self) -> bool {
        self.stack.is_empty()
    }

    /// True if a node is to be written. One with an address has no child without one.
    fn gives(&self, node: &Node) -> bool {
        node.generation == self.generation && (self.again || node.ptr().is_none())
    }

    /// The nodes that were given until now are written: they keep their addresses.
    pub fn keep(&mut self) {
        self.given.clear();
    }

    /// The nodes that were given since the last [`WriteOut::keep`] cannot be written where they
    /// were to stand. They are given again, and get other addresses. Returns those that they had.
    pub fn take_back(&mut self, store: &mut Store) -> Vec<PoolAddr> {
        let mut addrs = Vec::with_capacity(self.given.len());
        for node in self.given.drain(..) {
            if let Place::Later(place) = &node.place
                && let Some(ptr) = place.take()
            {
                store.forget(ptr.addr);
                addrs.push(ptr.addr);
            }
        }
        self.again = false;
        self.begin();
        addrs
    }

    /// Puts the next node's block in `out` (4096 bytes) and returns where it must be written;
    /// `None` after the last. Asks `alloc` for an address if the node has none; if there is none to
    /// be had nothing changes, and the caller may try again. The node's clean form goes into the
    /// store.
    pub fn next(
        &mut self,
        store: &mut Store,
        alloc: &mut dyn FnMut() -> Option<PoolAddr>,
        out: &mut [u8],
    ) -> Result<Option<PoolAddr>, OutOfSpace> {
        assert_eq!(out.len(), BLOCK);
        while let Some((node, done)) = self.stack.last() {
            let rest = node.children.get(*done..).unwrap_or_default();
            let next = rest.iter().position(|c| c.as_ref().is_some_and(|c| self.gives(c)));
            if let Some(i) = next {
                let (child, done) = (rest[i].clone(), *done + i + 1);
                if let Some(last) = self.stack.last_mut() {
                    last.1 = done;
                }
                self.stack.extend(child.map(|c| (c, 0)));
                continue;
            }
            let addr = match node.ptr() {
                Some(ptr) => ptr.addr,
                None => alloc().ok_or(OutOfSpace)?,
            };
            let Some((node, _)) = self.stack.pop() else { break };
            seal(&node, self.tree.id, addr, store, out);
            self.given.push(node);
            return Ok(Some(addr));
        }
        Ok(None)
    }

    /// The root to record, after the last node; `None` is the empty tree.
    pub fn root(&self) -> Option<RootPtr> {
        assert!(self.stack.is_empty(), "the write-out is not complete");
        self.tree.recorded().unwrap_or_else(|| unreachable!("the root was written"))
    }
}

fn seal(node: &Rc<Node>, tree: u64, addr: PoolAddr, store: &mut Store, out: &mut [u8]) {
    let Place::Later(place) = &node.place else {
        unreachable!("a changed node has a place to be set")
    };
    let generation = node.generation;
    if node.page.level() == 0 {
        let ptr = NodePtr { addr, generation, crc: node.page.seal(tree, generation, addr, out) };
        place.set(Some(ptr));
        store.nodes.keep(ptr, tree, node.clone());
        return;
    }
    let mut page = node.page.clone();
    for (i, child) in node.children.iter().enumerate() {
        if let Some(child) = child {
            let ptr = child
                .ptr()
                .unwrap_or_else(|| unreachable!("children are written before their parent"));
            page.set_pointer(i, &ptr);
        }
    }
    let ptr = NodePtr { addr, generation, crc: page.seal(tree, generation, addr, out) };
    place.set(Some(ptr));
    store.nodes.keep(ptr, tree, Rc::new(Node::clean(page, ptr)));
}
