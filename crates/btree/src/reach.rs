//! The nodes that the edits of a range may touch, made resident before the first of the edits.
//!
//! An edit of a key goes down the way to it, and splits or merges nodes on that way. Two things
//! lead it to other nodes. The record before the range may have to be cut or prolonged. And removes
//! may leave nothing of a leaf: it goes, its keys belong to the leaf before it from then on, or,
//! where it was the first child of its parent, to the leaf behind it. So what is reached is the
//! leaves of the range, that of the record before it, and, if the last leaf may go, the leaf behind
//! that. Merges take a neighbour only if it happens to be resident.

use format::node::{Key, MAX_HEIGHT};

use crate::node::{Bounds, Node, Place};
use crate::{Fault, Store, Tree};

/// A range of keys of one tree whose edits do not fault.
#[derive(Clone, Copy)]
pub(crate) struct ResidentRange {
    pub tree: u64,
    /// The last record before the range, which may be replaced; empty if there was none.
    low: Key,
    pub from: Key,
    to: Key,
}

impl ResidentRange {
    /// Lookups of this key do not fault, nor do inserts.
    pub fn covers(&self, key: &[u8]) -> bool {
        *self.low <= *key && *key <= *self.to
    }

    /// Removes do not either.
    pub fn may_lose(&self, key: &[u8]) -> bool {
        *self.from <= *key && *key <= *self.to
    }
}

/// The way from the root to a record, as slots by level.
#[derive(Clone, Copy)]
pub(crate) struct Path {
    pub at: [u16; MAX_HEIGHT],
    /// The record is there; else it belongs there.
    pub found: bool,
}

impl Path {
    /// Not begun.
    pub const NONE: Path = Path { at: [0; MAX_HEIGHT], found: false };

    /// Takes the way to `key` one level down, or to its record in a leaf.
    pub fn step(&mut self, node: &Node, key: &[u8]) -> usize {
        let level = usize::from(node.page.level());
        let i = if level > 0 {
            node.page.child_of(key)
        } else {
            let place = node.page.search(key);
            self.found = place.is_ok();
            place.unwrap_or_else(|i| i)
        };
        self.at[level] = i as u16;
        i
    }
}

impl Store {
    /// `Ok`: what edits of the range may touch is resident; with the way to its first key. `alone`:
    /// no other range of the tree is edited, so that the record before this one stays.
    pub(crate) fn reach(
        &mut self,
        tree: &Tree,
        from: &[u8],
        to: &[u8],
        alone: bool,
        seen: &mut usize,
    ) -> Result<(ResidentRange, Path), Fault> {
        let mut survey = Survey { tree, store: self, seen: *seen };
        let mut path = Path::NONE;
        let found = survey.range(from, to, alone, &mut path);
        *seen = survey.seen;
        match found {
            Ok(low) => Ok((
                ResidentRange { tree: tree.id, low, from: Key::new(from), to: Key::new(to) },
                path,
            )),
            Err(lack) => {
                if let NodeFault::Wrong(fault) = &lack {
                    self.nodes.condemn(&fault.ptr);
                }
                self.nodes.stretch(*seen + usize::from(tree.height) + 1);
                let (NodeFault::Missing(fault) | NodeFault::Wrong(fault)) = lack;
                Err(fault)
            }
        }
    }
}

/// The node that an edit needs and lacks.
enum NodeFault {
    /// A node is not resident.
    Missing(Fault),
    /// One is, and its keys are not those that its parent says.
    Wrong(Fault),
}

impl From<Fault> for NodeFault {
    fn from(fault: Fault) -> NodeFault {
        NodeFault::Missing(fault)
    }
}

/// A child of a node.
#[derive(Clone, Copy)]
struct Turn<'a> {
    parent: &'a Node,
    child: usize,
}

impl Turn<'_> {
    /// The key at which the child begins.
    fn key(&self) -> Key {
        self.parent.page.key(self.child)
    }
}

/// A place on a way through a tree.
#[derive(Clone, Copy)]
struct Position<'a> {
    node: &'a Node,
    /// The lowest turnings above it that have a neighbour on this side, and that.
    left: Option<Turn<'a>>,
    right: Option<Turn<'a>>,
}

impl Position<'_> {
    /// The keys that belong below the link to it.
    fn bounds(&self) -> Bounds {
        let low = self.left.map_or(Key::EMPTY, |turn| turn.parent.page.key(turn.child + 1));
        Bounds { low, high: self.right.map(|turn| turn.key()) }
    }
}

struct Survey<'a> {
    tree: &'a Tree,
    store: &'a Store,
    seen: usize,
}

impl<'a> Survey<'a> {
    /// Goes where edits of the range may go; returns the key of the last record before it.
    fn range(
        &mut self,
        from: &[u8],
        to: &[u8],
        alone: bool,
        path: &mut Path,
    ) -> Result<Key, NodeFault> {
        let Some(root) = self.tree.root_node(self.store)? else { return Ok(Key::EMPTY) };
        let root: Position<'a> = Position { node: root, left: None, right: None };
        self.seen += 1;
        let mut way = self.way(root, from, path)?;
        let (page, before) = (&way.node.page, path.step(way.node, from));
        let one_leaf = way.right.is_none_or(|turn| *to < *turn.key());
        if before > 0 && one_leaf && alone {
            return Ok(page.key(before - 1));
        }
        let low = if before > 0 {
            page.key(before - 1)
        } else if let Some(turn) = way.left {
            let leaf = self.beside(root, from, turn, |node| node.page.count() - 1)?;
            leaf.page.key(leaf.page.count() - 1)
        } else {
            Key::EMPTY
        };
        if !one_leaf {
            self.span(root, from, to)?;
            way = self.way(root, to, &mut { Path::NONE })?;
        }
        let stays = *way.node.page.key(way.node.page.count() - 1) > *to;
        if let Some(turn) = way.right.filter(|_| !stays) {
            self.beside(root, to, turn, |_| 0)?;
        }
        Ok(low)
    }

    fn child(&mut self, at: Position<'a>, i: usize) -> Result<Position<'a>, NodeFault> {
        self.seen += 1;
        let turn = |child| Some(Turn { parent: at.node, child });
        let child = Position {
            node: self.tree.child_to_edit(self.store, at.node, i)?,
            left: if i > 0 { turn(i - 1) } else { at.left },
            right: if i + 1 < at.node.page.count() { turn(i + 1) } else { at.right },
        };
        match child.node.place {
            Place::Disk(ptr) if !child.bounds().hold(&child.node.page) => {
                Err(NodeFault::Wrong(Fault {
                    ptr,
                    level: child.node.page.level(),
                    tree: self.tree.id,
                }))
            }
            _ => Ok(child),
        }
    }

    /// The leaf of a key.
    fn way(
        &mut self,
        root: Position<'a>,
        key: &[u8],
        path: &mut Path,
    ) -> Result<Position<'a>, NodeFault> {
        let mut at = root;
        while at.node.page.level() > 0 {
            at = self.child(at, path.step(at.node, key))?;
        }
        Ok(at)
    }

    /// The leaf beside that of a key: the outermost one below a turning of the way to it.
    fn beside(
        &mut self,
        root: Position<'a>,
        key: &[u8],
        turn: Turn<'a>,
        outermost: impl Fn(&Node) -> usize,
    ) -> Result<&'a Node, NodeFault> {
        let mut at = root;
        while !std::ptr::eq(at.node, turn.parent) {
            at = self.child(at, at.node.page.child_of(key))?;
        }
        at = self.child(at, turn.child)?;
        while at.node.page.level() > 0 {
            at = self.child(at, outermost(at.node))?;
        }
        Ok(at.node)
    }

    /// All nodes of the range below a node.
    fn span(&mut self, at: Position<'a>, from: &[u8], to: &[u8]) -> Result<(), NodeFault> {
        for i in at.node.page.child_of(from)..=at.node.page.child_of(to) {
            let child = self.child(at, i)?;
            if child.node.page.level() > 0 {
                self.span(child, from, to)?;
            }
        }
        Ok(())
    }
}
