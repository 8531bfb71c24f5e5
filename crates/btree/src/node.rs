//! A node in memory, and what becomes of the block of one that is replaced.

use std::cell::Cell;
use std::rc::Rc;

use base::Generation;
use format::node::{Key, NodePage, NodePtr};

/// Where a node stands on the device.
pub(crate) enum Place {
    /// It was read from there.
    Disk(NodePtr),
    /// Changed in memory; set when it is written out. Shared with [`Freed`], since a node may be replaced before.
    Later(Rc<Cell<Option<NodePtr>>>),
}

/// The keys that belong below a link: from `low` up to and without `high`.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    pub low: Key,
    pub high: Option<Key>,
}

impl Bounds {
    /// Of a root.
    pub const ALL: Bounds = Bounds { low: Key::EMPTY, high: None };

    /// Those of child `i` of an inner node with these bounds.
    pub fn of_child(&self, page: &NodePage, i: usize) -> Bounds {
        Bounds {
            low: if i > 0 { page.key(i) } else { self.low },
            high: if i + 1 < page.count() { Some(page.key(i + 1)) } else { self.high },
        }
    }

    /// True if they hold for a node's keys. A page is only known to be whole by itself; an edit relies on the order of
    /// keys across nodes, so it checks what comes from the device before it changes it.
    pub fn hold(&self, page: &NodePage) -> bool {
        let first = usize::from(page.level() > 0);
        let count = page.count();
        let above_low = |key: Key| if first == 0 { *key >= *self.low } else { *key > *self.low };
        first == count || above_low(page.key(first)) && self.high.is_none_or(|high| *page.key(count - 1) < *high)
    }
}

/// A node: its page, and those of its children that are not (only) on the device.
pub(crate) struct Node {
    pub page: NodePage,
    /// The transaction that changed it last.
    pub generation: Generation,
    pub place: Place,
    /// Of a changed inner node: for each child the node in memory, or `None` and the page's pointer holds. Else empty.
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
    pub fn changed(page: NodePage, generation: Generation, children: Vec<Option<Rc<Node>>>) -> Node {
        Node { page, generation, place: Place::Later(Rc::default()), children, last: NO_SLOT }
    }

    /// Where it stands, once it has been written out.
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

/// Blocks of nodes that a transaction replaced. They may be reused when that transaction is durable.
#[derive(Default)]
pub struct Freed {
    known: Vec<NodePtr>,
    /// Nodes of the frozen generation that had no address when they were replaced.
    later: Vec<Rc<Cell<Option<NodePtr>>>>,
}

impl Freed {
    /// None.
    pub fn new() -> Freed {
        Freed::default()
    }

    /// How many nodes were replaced; at most so many addresses will be freed.
    pub fn len(&self) -> usize {
        self.known.len() + self.later.len()
    }

    /// True if no node was replaced.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The nodes, each once, in the order in which they were replaced as far as they had addresses then. To be called when the
    /// transaction before has been written out completely: only then do its nodes have all their addresses. One that was never
    /// written out has none to free.
    pub fn resolve(self) -> impl Iterator<Item = NodePtr> {
        self.known.into_iter().chain(self.later.into_iter().filter_map(|cell| cell.get()))
    }

    pub(crate) fn push(&mut self, place: &Place) {
        match place {
            Place::Disk(ptr) => self.known.push(*ptr),
            Place::Later(cell) => match cell.get() {
                Some(ptr) => self.known.push(ptr),
                None => self.later.push(cell.clone()),
            },
        }
    }
}
