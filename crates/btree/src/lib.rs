//! One persistent (copy-on-write) B+tree, in memory and on disk.
//!
//! A [`Tree`] maps byte strings to byte strings. Its nodes are blocks on a device. Changed nodes
//! are in the tree itself; a [`Store`] keeps clean ones, of any number of trees, in bounded number.
//! A *step* is a synchronous function over resident nodes. Where it needs a node that is not
//! resident it ends with a [`Fault`]; [`resident`] loads the node and runs the step again.
//!
//! **Edits.** All edits go through an [`Editor`] of a range of keys. [`Store::edit`] makes one only
//! when everything that edits of the range may touch is resident. Nothing can fault after that, so
//! a step that has begun to change something ends well.
//!
//! **Generations.** Changes belong to a transaction, the *open* generation ([`Changes`]). A node of
//! an older one is never changed: it is copied on the first change, and the block of the old one is
//! reported freed, once, in [`FreedNodes`]. To freeze a transaction is to clone the tree and to go
//! on with the next generation, in O(1). [`WriteOut`] then gives the changed nodes of the frozen
//! clone their addresses, children before parents, while the open tree, which shares what neither
//! has changed, is edited further. Commits are strictly one after another: write out, make the root
//! durable, [`Tree::settle`], then let [`FreedNodes::resolve`] of the next commit see the addresses
//! that this one gave.
//!
//! **Offline**, a [`Walk`] goes over a tree as it stands on a device.
//!
//! **Faults.** Bytes from the device are verified by `format::node::decode` when they are admitted.
//! What a durable root refers to must not be overwritten before a later root that no longer refers
//! to it is durable: the caller keeps freed addresses apart until then.

mod cache;
mod changes;
mod cursor;
mod edit;
mod held;
mod node;
mod reach;
mod read;
mod store;
mod unneeded;
mod walk;
mod write;

pub use cache::CacheStats;
pub use changes::{Changes, FreedNodes, ReplacedNode};
pub use cursor::Cursor;
pub use edit::{Editor, ResidentRanges};
pub use format::node::{Key, MAX_HEIGHT, MAX_KEY, MAX_VALUE, NodeError, NodePtr, RootPtr};
pub use store::{Loader, Stop, Store, load, resident};
pub use unneeded::UnneededTrees;
pub use walk::{Nodes, Walk, WantedNode};
pub use write::{OutOfSpace, WriteOut};

use std::rc::Rc;

use base::Generation;

use node::Node;

/// A node that a step needs is not resident: [`load`] it and run the step again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[error("node {} of tree {tree:#x} is not resident", ptr.addr)]
pub struct Fault {
    /// The node.
    pub ptr: NodePtr,
    /// The level of the node; 0 is a leaf.
    pub level: u8,
    /// The tree of the node.
    pub tree: u64,
}

/// The way to a node: directly, or by its block.
#[derive(Clone)]
enum Link {
    Mem(Rc<Node>),
    Disk(NodePtr),
}

/// A tree, or a snapshot of one: a clone costs nothing and never changes with the original.
#[derive(Clone)]
pub struct Tree {
    id: u64,
    root: Option<Link>,
    /// Levels of nodes; 0 without a root.
    height: u8,
    /// Nodes in memory of this generation and older ones are durable.
    settled: Generation,
}

impl Tree {
    /// An empty tree. `id` stands in every node, so that no tree takes another's node for its own.
    pub fn new(id: u64) -> Tree {
        Tree { id, root: None, height: 0, settled: Generation(0) }
    }

    /// The tree with this durable root; `None` is the empty tree.
    pub fn open(id: u64, root: Option<RootPtr>) -> Tree {
        Tree {
            id,
            root: root.map(|r| Link::Disk(r.ptr)),
            height: root.map_or(0, |r| r.height),
            settled: root.map_or(Generation(0), |r| r.ptr.generation),
        }
    }

    /// The number that stands in its nodes.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// True if there are no records.
    pub fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Levels of nodes; 0: empty, 1: the root is a leaf.
    pub fn height(&self) -> u8 {
        self.height
    }

    /// The root as it is recorded, if the tree has been written out since it was last changed:
    /// `Some(None)` is empty.
    pub fn recorded(&self) -> Option<Option<RootPtr>> {
        let ptr = match &self.root {
            None => return Some(None),
            Some(Link::Disk(ptr)) => *ptr,
            Some(Link::Mem(node)) => node.ptr()?,
        };
        Some(Some(RootPtr { ptr, height: self.height }))
    }

    /// `written`, the frozen snapshot that this tree was cloned to, is durable: its nodes in memory
    /// may be replaced by their blocks. O(1); the links inside the tree follow as their nodes are
    /// changed.
    pub fn settle(&mut self, written: &Tree) {
        if let Some(Link::Mem(node)) = &written.root {
            self.settled = self.settled.max(node.generation);
        }
        if let Some(Link::Mem(node)) = &self.root
            && node.generation <= self.settled
            && let Some(ptr) = node.ptr()
        {
            self.root = Some(Link::Disk(ptr));
        }
    }
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tree({:#x}, height {})", self.id, self.height)
    }
}

#[cfg(test)]
#[path = "lib_tests.rs"]
mod tests;
