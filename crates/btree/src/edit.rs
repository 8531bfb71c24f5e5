//! Inserts and removes, by path copying.
//!
//! An edit first walks the path to its record, so that it faults before it has changed anything. Then it goes down again
//! by the slots found, makes each node of the path its own (of the open generation and shared with nobody), changes the
//! leaf, and on the way back up enters splits, merges thin nodes and drops empty ones.

use std::rc::Rc;

use base::Generation;
use format::node::{self, BODY, Key, MAX_HEIGHT, MAX_KEY, MAX_VALUE, NodePage, NodePtr, Split};

use crate::node::{Bounds, Freed, NO_SLOT, Node, Place};
use crate::read::Path;
use crate::{Fault, Link, NodeCache, Tree};

/// A node that uses less is merged with a neighbour,
const THIN: usize = BODY / 3;
/// if both together use no more than this.
const MERGED: usize = BODY / 4 * 3;

/// How many changed nodes a transaction has in its trees: so many addresses its write-out will ask for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DirtyCount(usize);

impl DirtyCount {
    /// The number of nodes.
    pub fn get(self) -> usize {
        self.0
    }
}

/// What an open transaction edits its trees with.
pub struct Edit<'a> {
    /// The clean nodes.
    pub cache: &'a mut NodeCache,
    /// The open generation.
    pub generation: Generation,
    /// Receives the durable nodes that the transaction replaces.
    pub freed: &'a mut Freed,
    /// Kept equal to the number of nodes that are new in this generation.
    pub dirty: &'a mut DirtyCount,
}

/// What became of a node from which something was removed.
enum Remains {
    Enough,
    Thin,
    Nothing,
}

fn remains(page: &NodePage) -> Remains {
    match page.count() {
        0 => Remains::Nothing,
        _ if page.used() < THIN => Remains::Thin,
        _ => Remains::Enough,
    }
}

impl Tree {
    /// Sets the value of `key`. On a fault nothing was changed. Panics if the key is not of 1 to [`MAX_KEY`] bytes or the
    /// value of more than [`MAX_VALUE`].
    pub fn insert(&mut self, edit: &mut Edit<'_>, key: &[u8], value: &[u8]) -> Result<(), Fault> {
        assert!((1..=MAX_KEY).contains(&key.len()) && value.len() <= MAX_VALUE, "{}: {}", key.len(), value.len());
        let path = self.path(edit.cache, key)?;
        let settled = self.settled;
        let Some(root) = self.root.take() else {
            self.root = Some(Link::Mem(edit.new_node(NodePage::leaf(key, value), Vec::new())));
            self.height = 1;
            return Ok(());
        };
        let mut root = edit.own_root(root, settled);
        if let Some((separator, right)) = edit.insert_below(Rc::make_mut(&mut root), &path, key, value, settled) {
            assert!(usize::from(self.height) < MAX_HEIGHT, "a tree of more nodes than there can be");
            root = edit.new_node(node::new_root(self.height, &separator), vec![Some(root), Some(right)]);
            self.height += 1;
        }
        self.root = Some(Link::Mem(root));
        Ok(())
    }

    /// Merges the leaf of `key` with the next if it is thin and both fit in one; false if not. On a fault nothing was changed.
    pub fn merge_thin(&mut self, edit: &mut Edit<'_>, key: &[u8]) -> Result<bool, Fault> {
        let (Some(leaf), Some(next)) = self.leaf_of(edit.cache, key)? else { return Ok(false) };
        let used = leaf.page.used();
        let (Some(neighbour), _) = self.leaf_of(edit.cache, &next)? else { return Ok(false) };
        if used >= THIN || used + neighbour.page.used() > MERGED {
            return Ok(false);
        }
        let path = self.path(edit.cache, key)?;
        let settled = self.settled;
        let Some(root) = self.root.take() else { return Ok(false) };
        let mut root = edit.own_root(root, settled);
        edit.shrink_below(Rc::make_mut(&mut root), &path, self, &Bounds::ALL, false);
        self.root = Some(edit.lower(root, self));
        Ok(true)
    }

    /// Has the nodes on the way to `key` written anew, as far down as `moves` names one of them; returns how many of them were not
    /// changed already. On a fault nothing was changed.
    pub fn rewrite(&mut self, edit: &mut Edit<'_>, key: &[u8], moves: impl Fn(&NodePtr) -> bool) -> Result<u64, Fault> {
        let path = self.path(edit.cache, key)?;
        let Some(mut node) = self.root_node(edit.cache)? else { return Ok(0) };
        let mut lowest = None;
        loop {
            let level = node.page.level();
            if node.ptr().is_some_and(|ptr| moves(&ptr)) {
                lowest = Some(level);
            }
            if level == 0 {
                break;
            }
            node = self.child_node(edit.cache, node, usize::from(path.at[usize::from(level)]))?;
        }
        let (Some(lowest), settled) = (lowest, self.settled) else { return Ok(0) };
        let Some(root) = self.root.take() else { return Ok(0) };
        let before = edit.dirty.0;
        let mut root = edit.own_root(root, settled);
        edit.own_below(Rc::make_mut(&mut root), &path, lowest, settled);
        self.root = Some(Link::Mem(root));
        Ok((edit.dirty.0 - before) as u64)
    }

    /// Removes `key`; false if it was not there. On a fault nothing was changed.
    pub fn remove(&mut self, edit: &mut Edit<'_>, key: &[u8]) -> Result<bool, Fault> {
        let path = self.path(edit.cache, key)?;
        if !path.found {
            return Ok(false);
        }
        let settled = self.settled;
        let Some(root) = self.root.take() else { return Ok(false) };
        let mut root = edit.own_root(root, settled);
        if let Remains::Nothing = edit.shrink_below(Rc::make_mut(&mut root), &path, self, &Bounds::ALL, true) {
            edit.dirty.0 -= 1;
            self.height = 0;
        } else {
            let root = edit.lower(root, self);
            self.root = Some(root);
        }
        Ok(true)
    }
}

impl Edit<'_> {
    fn new_node(&mut self, page: NodePage, children: Vec<Option<Rc<Node>>>) -> Rc<Node> {
        self.dirty.0 += 1;
        Rc::new(Node::changed(page, self.generation, children))
    }

    /// A node leaves the tree.
    fn retire(&mut self, node: &Node) {
        if node.generation == self.generation {
            self.dirty.0 -= 1;
        } else {
            self.freed.push(&node.place);
        }
    }

    fn own_root(&mut self, link: Link, settled: Generation) -> Rc<Node> {
        match link {
            Link::Mem(node) => self.own(node, settled),
            Link::Disk(ptr) => {
                let node = self.cache.take(&ptr).unwrap_or_else(|| unreachable!("the path was resident"));
                self.own(node, settled)
            }
        }
    }

    fn own_child<'n>(&mut self, parent: &'n mut Node, i: usize, settled: Generation) -> &'n mut Node {
        let link = match parent.children[i].take() {
            Some(node) => Link::Mem(node),
            None => Link::Disk(parent.page.pointer(i)),
        };
        let node = self.own_root(link, settled);
        Rc::make_mut(parent.children[i].insert(node))
    }

    /// The node, or its successor in the open generation. It may still be shared with a snapshot of the same generation:
    /// `Rc::make_mut` copies it then, which changes no count, since only one of the two is in the tree.
    fn own(&mut self, node: Rc<Node>, settled: Generation) -> Rc<Node> {
        assert!(node.generation <= self.generation, "an edit of {} in {}", node.generation, self.generation);
        if node.generation == self.generation {
            return node;
        }
        self.retire(&node);
        self.dirty.0 += 1;
        if let Some(ptr) = node.ptr() {
            // Freed with this transaction; without the cache's share it may be ours alone, and need not be copied.
            self.cache.take(&ptr);
        }
        let mut node = Rc::try_unwrap(node).unwrap_or_else(|shared| (*shared).clone());
        node.generation = self.generation;
        node.place = Place::Later(Rc::default());
        if node.page.level() > 0 {
            node.children.resize(node.page.count(), None);
            for i in 0..node.children.len() {
                if let Some(child) = node.child(i)
                    && child.generation <= settled
                    && let Some(ptr) = child.ptr()
                {
                    node.page.set_pointer(i, &ptr);
                    node.children[i] = None;
                }
            }
        }
        Rc::new(node)
    }

    /// Makes the nodes of a path its own, down to a level.
    fn own_below(&mut self, node: &mut Node, path: &Path, lowest: u8, settled: Generation) {
        let level = node.page.level();
        if level > lowest {
            let child = self.own_child(node, usize::from(path.at[usize::from(level)]), settled);
            self.own_below(child, path, lowest, settled);
        }
    }

    /// Inserts below `node`; returns what it was split off, and the first key that belongs there.
    fn insert_below(
        &mut self,
        node: &mut Node,
        path: &Path,
        key: &[u8],
        value: &[u8],
        settled: Generation,
    ) -> Option<(Key, Rc<Node>)> {
        let level = usize::from(node.page.level());
        let i = usize::from(path.at[level]);
        if level > 0 {
            let child = self.own_child(node, i, settled);
            let (separator, right) = self.insert_below(child, path, key, value, settled)?;
            return self.insert_child(node, i + 1, &separator, right);
        }
        let done = if path.found { node.page.replace(i, value) } else { node.page.insert(i, key, value) };
        let run = !path.found && i == usize::from(node.last) + 1;
        if done.is_ok() {
            if !path.found {
                node.last = i as u16;
            }
            return None;
        }
        let Split { left, separator, right, at } = node.page.split(i, key, value, path.found, run);
        node.page = left;
        let mut right = Node::changed(right, self.generation, Vec::new());
        (node.last, right.last) = if i < at { (i as u16, NO_SLOT) } else { (NO_SLOT, (i - at) as u16) };
        self.dirty.0 += 1;
        Some((separator, Rc::new(right)))
    }

    fn insert_child(&mut self, node: &mut Node, i: usize, key: &Key, child: Rc<Node>) -> Option<(Key, Rc<Node>)> {
        node.children.insert(i, Some(child));
        if node.page.insert_child(i, key).is_ok() {
            return None;
        }
        let Split { left, separator, right, at } = node.page.split_with_child(i, key);
        node.page = left;
        let children = node.children.split_off(at);
        Some((separator, self.new_node(right, children)))
    }

    /// Removes the record that the path leads to, or only looks what remains; merges what is thin.
    fn shrink_below(&mut self, node: &mut Node, path: &Path, tree: &Tree, bounds: &Bounds, remove: bool) -> Remains {
        let level = usize::from(node.page.level());
        let i = usize::from(path.at[level]);
        if level == 0 {
            if remove {
                node.page.remove(i);
                node.last = NO_SLOT;
            }
            return remains(&node.page);
        }
        let inside = bounds.of_child(&node.page, i);
        let child = self.own_child(node, i, tree.settled);
        match self.shrink_below(child, path, tree, &inside, remove) {
            Remains::Enough => return Remains::Enough,
            Remains::Thin => {
                if !(self.merge(node, i, i + 1, tree, bounds) || i > 0 && self.merge(node, i - 1, i, tree, bounds)) {
                    return Remains::Enough;
                }
            }
            Remains::Nothing => {
                self.dirty.0 -= 1;
                node.page.remove(i);
                node.children.remove(i);
            }
        }
        remains(&node.page)
    }

    /// Merges two neighbouring children, if both are resident and fit in one.
    fn merge(&mut self, node: &mut Node, l: usize, r: usize, tree: &Tree, bounds: &Bounds) -> bool {
        if r == node.page.count() {
            return false;
        }
        let level = node.page.level() - 1;
        let resident = |i| {
            let ptr = || Fault { ptr: node.page.pointer(i), level, tree: tree.id };
            let child = node.child(i).or_else(|| self.cache.peek(&ptr())).cloned();
            child.filter(|c: &Rc<Node>| c.is_ours() || bounds.of_child(&node.page, i).hold(&c.page))
        };
        let (Some(left), Some(right)) = (resident(l), resident(r)) else { return false };
        if left.page.used() + right.page.used() > MERGED {
            return false;
        }
        let Some(page) = node::merge(&left.page, &node.page.key(r), &right.page, MERGED) else { return false };
        let mut children = left.links();
        children.append(&mut right.links());
        for old in [left, right] {
            self.retire(&old);
            if let Some(ptr) = old.ptr() {
                self.cache.take(&ptr);
            }
        }
        node.children[l] = Some(self.new_node(page, children));
        node.children.remove(r);
        node.page.remove(r);
        true
    }

    /// A root with one child gives way to it, as far down as nodes are resident.
    fn lower(&mut self, root: Rc<Node>, tree: &mut Tree) -> Link {
        let mut link = Link::Mem(root);
        loop {
            let node = match &link {
                Link::Mem(node) => node.clone(),
                Link::Disk(ptr) => match self.cache.peek(&Fault { ptr: *ptr, level: tree.height - 1, tree: tree.id }) {
                    Some(node) => node.clone(),
                    None => return link,
                },
            };
            if node.page.level() == 0 || node.page.count() > 1 {
                return link;
            }
            link = match node.child(0) {
                Some(child) => Link::Mem(child.clone()),
                None => Link::Disk(node.page.pointer(0)),
            };
            self.retire(&node);
            tree.height -= 1;
        }
    }
}
