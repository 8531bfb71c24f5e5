//! A node in memory.

use std::cell::Cell;
use std::rc::Rc;

use base::Generation;
use format::node::{Key, NodePage, NodePtr};

/// The place of a node on the device.
#[derive(Clone)]
pub(crate) enum Place {
    /// The node was read from there.
    Disk(NodePtr),
    /// The node was changed in memory; set when it is written out. Shared with [`FreedNodes`],
    /// since a node may be replaced before.
    Later(Rc<Cell<Option<NodePtr>>>),
}

/// The keys that belong below a link: from `low` up to and without `high`.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    pub low: Key,
    pub high: Option<Key>,
}

impl Bounds {
    /// The bounds of a root.
    pub const ALL: Bounds = Bounds { low: Key::EMPTY, high: None };

    /// The bounds of child `i` of an inner node with these bounds.
    pub fn of_child(&self, page: &NodePage, i: usize) -> Bounds {
        Bounds {
            low: if i > 0 { page.key(i) } else { self.low },
            high: if i + 1 < page.count() { Some(page.key(i + 1)) } else { self.high },
        }
    }

    /// True if they hold for a node's keys. A page is only known to be whole by itself; an edit
    /// relies on the order of keys across nodes, so what comes from the device is checked before.
    pub fn hold(&self, page: &NodePage) -> bool {
        let (first, count) = (usize::from(page.level() > 0), page.count());
        let above_low = |key: Key| if first == 0 { *key >= *self.low } else { *key > *self.low };
        first == count
            || above_low(page.key(first))
                && self.high.is_none_or(|high| *page.key(count - 1) < *high)
    }
}

/// A node: its page, and those of its children that are not (only) on the device.
pub(crate) struct Node {
    pub page: NodePage,
    /// The transaction that changed it last.
    pub generation: Generation,
    pub place: Place,
    /// Of a changed inner node: for each child the node in memory, or `None` and the page's pointer
    /// holds. Else empty.
    pub children: Vec<Option<Rc<Node>>>,
    /// The slot last inserted, by which keys that arrive in order are recognised.
    pub last: u16,
}

/// No slot: nothing was inserted yet.
pub(crate) const NO_SLOT: u16 = u16::MAX - 1;

impl Node {
    /// A node as it was read.
    pub fn clean(page: NodePage, ptr: NodePtr) -> Node {
        let generation = ptr.generation;
        Node { page, generation, place: Place::Disk(ptr), children: Vec::new(), last: NO_SLOT }
    }

    /// A changed node of `generation`.
    pub fn changed(
        page: NodePage,
        generation: Generation,
        children: Vec<Option<Rc<Node>>>,
    ) -> Node {
        Node { page, generation, place: Place::Later(Rc::default()), children, last: NO_SLOT }
    }

    /// The place of the node, once it has been written out.
    pub fn ptr(&self) -> Option<NodePtr> {
        match &self.place {
            Place::Disk(ptr) => Some(*ptr),
            Place::Later(cell) => cell.get(),
        }
    }

    /// True if its keys are known to be in its bounds: it was made here, not read.
    pub fn is_ours(&self) -> bool {
        matches!(self.place, Place::Later(_))
    }

    /// Child `i` if it is in memory by this node's own link.
    pub fn child(&self, i: usize) -> Option<&Rc<Node>> {
        self.children.get(i).and_then(Option::as_ref)
    }

    /// The generation of child `i`.
    pub fn child_generation(&self, i: usize) -> Generation {
        self.child(i).map_or_else(|| self.page.pointer(i).generation, |child| child.generation)
    }

    /// The children's links, also of a clean node.
    pub fn links(&self) -> Vec<Option<Rc<Node>>> {
        match self.page.level() {
            0 => Vec::new(),
            _ if self.children.is_empty() => vec![None; self.page.count()],
            _ => self.children.clone(),
        }
    }
}

impl Clone for Node {
    /// A copy is another node: it will have an address of its own.
    fn clone(&self) -> Node {
        let mut copy = Node::changed(self.page.clone(), self.generation, self.children.clone());
        copy.last = self.last;
        copy
    }
}
