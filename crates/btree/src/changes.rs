//! The changes of a transaction to its trees: how many nodes, and what becomes of the blocks of
//! those that it replaced.

use std::cell::Cell;
use std::rc::Rc;

use base::Generation;
use format::node::NodePtr;

use crate::node::{Node, Place};

/// The changes of an open transaction to its trees.
pub struct Changes {
    generation: Generation,
    freed: FreedNodes,
    dirty: usize,
    /// Others look at the trees as they were before.
    beside_readers: bool,
    /// Replaced nodes of the tree that is edited may be in a snapshot of it.
    has_snapshots: bool,
}

impl Changes {
    /// A transaction of this generation, which has changed nothing.
    pub fn new(generation: Generation) -> Changes {
        Changes {
            generation,
            freed: FreedNodes::new(),
            dirty: 0,
            beside_readers: false,
            has_snapshots: false,
        }
    }

    /// The same, of clones of trees that are read meanwhile: the store keeps the nodes that it
    /// replaces, until their blocks are freed.
    pub fn beside_readers(generation: Generation) -> Changes {
        Changes { beside_readers: true, ..Changes::new(generation) }
    }

    /// True if others look at the trees as they were before.
    pub(crate) fn has_readers(&self) -> bool {
        self.beside_readers
    }

    /// The generation that edits belong to.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The same, for a tree that has joined the transaction with this generation: edits that follow
    /// belong to it.
    pub fn at(&mut self, generation: Generation) -> &mut Changes {
        (self.generation, self.has_snapshots) = (generation, false);
        self
    }

    /// The same, for a tree of which there are snapshots: the nodes that it replaces are told
    /// apart from others ([`FreedNodes::take_old`]), as a snapshot may have them.
    pub fn beside_snapshots(&mut self, generation: Generation) -> &mut Changes {
        (self.generation, self.has_snapshots) = (generation, true);
        self
    }

    /// The number of new nodes in the transaction's trees, which is the number of addresses that
    /// their write-out will ask for.
    pub fn dirty(&self) -> usize {
        self.dirty
    }

    /// Addresses were given to `nodes` of its new nodes, of frozen trees, while the transaction
    /// goes on.
    pub fn placed(&mut self, nodes: usize) {
        let left = self.dirty.checked_sub(nodes);
        self.dirty = left.unwrap_or_else(|| {
            unreachable!("{nodes} nodes got addresses, {} had none", self.dirty)
        });
    }

    /// The number of replaced nodes that snapshots may have.
    pub fn old(&self) -> usize {
        self.freed.old()
    }

    /// The blocks of the nodes that it replaced.
    pub fn take_freed(&mut self) -> FreedNodes {
        std::mem::take(&mut self.freed)
    }

    /// Ends the transaction and begins the next one.
    pub fn freeze(&mut self) -> Changes {
        let next =
            Changes { beside_readers: self.beside_readers, ..Changes::new(self.generation.next()) };
        std::mem::replace(self, next)
    }

    /// A node comes to a tree.
    pub(crate) fn made(&mut self) {
        self.dirty += 1;
    }

    /// A node leaves its tree, which has this number.
    pub(crate) fn retire(&mut self, node: &Node, tree: u64) {
        if node.generation == self.generation {
            self.dirty -= 1;
        } else if self.has_snapshots {
            self.freed.old.push(OldNode { tree, place: node.place.clone() });
        } else {
            self.freed.push(&node.place);
        }
    }
}

/// Blocks of nodes that a transaction replaced. They may be reused when that transaction is
/// durable.
#[derive(Default)]
pub struct FreedNodes {
    known: Vec<NodePtr>,
    /// Nodes that were changed in memory. Those of the frozen generation may have no address yet
    /// when they are replaced, or get another one.
    later: Vec<Rc<Cell<Option<NodePtr>>>>,
    /// Nodes that a snapshot may have.
    old: Vec<OldNode>,
}

/// A replaced node of a tree of which there are snapshots.
struct OldNode {
    tree: u64,
    place: Place,
}

/// A node that was replaced in a tree of which there are snapshots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplacedNode {
    /// The number of the tree.
    pub tree: u64,
    /// The node.
    pub ptr: NodePtr,
}

impl FreedNodes {
    /// None.
    pub fn new() -> FreedNodes {
        FreedNodes::default()
    }

    /// The number of nodes that were replaced; at most so many addresses will be freed.
    pub fn len(&self) -> usize {
        self.known.len() + self.later.len() + self.old.len()
    }

    /// The number of nodes that snapshots may have.
    pub fn old(&self) -> usize {
        self.old.len()
    }

    /// Takes the nodes that snapshots may have, each once. As [`FreedNodes::resolve`], to be called
    /// when the transaction before has been written out.
    pub fn take_old(&mut self) -> impl Iterator<Item = ReplacedNode> + use<> {
        let placed = |OldNode { tree, place }| {
            let ptr = match place {
                Place::Disk(ptr) => Some(ptr),
                Place::Later(cell) => cell.get(),
            };
            ptr.map(|ptr| ReplacedNode { tree, ptr })
        };
        std::mem::take(&mut self.old).into_iter().filter_map(placed)
    }

    /// True if no node was replaced.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The nodes that no snapshot has, each once. To be called when the transaction before has been
    /// written out completely: only then do its nodes have all their addresses. One that was never
    /// written out has none to free.
    pub fn resolve(self) -> impl Iterator<Item = NodePtr> {
        self.known.into_iter().chain(self.later.into_iter().filter_map(|cell| cell.get()))
    }

    fn push(&mut self, place: &Place) {
        match place {
            Place::Disk(ptr) => self.known.push(*ptr),
            Place::Later(cell) => self.later.push(cell.clone()),
        }
    }
}
