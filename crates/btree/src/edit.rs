//! Inserts and removes, by path copying.
//!
//! An edit goes down to its record, makes each node of the way its own (of the open generation and
//! not shared), changes the leaf, and on the way back up enters splits, merges thin nodes
//! and drops empty ones. All that it meets is resident ([`crate::reach`]).

use std::ops::ControlFlow;
use std::rc::Rc;

use format::node::{self, BODY, Key, MAX_HEIGHT, MAX_KEY, MAX_VALUE, NodePage, NodePtr, Split};
use smallvec::SmallVec;

use crate::node::{Bounds, NO_SLOT, Node, Place};
use crate::reach::{Path, ResidentRange};
use crate::{Changes, Fault, Link, Stop, Store, Tree};

/// A node that uses less is merged with a neighbour,
const THIN: usize = BODY / 3;
/// if both together use no more than this.
const MERGED: usize = BODY / 4 * 3;

/// Edits a range of keys of a tree; nothing of it can fault. A key outside of the range is a broken
/// assertion, and so is a node that is not resident.
pub struct Editor<'a> {
    store: &'a mut Store,
    tree: &'a mut Tree,
    changes: &'a mut Changes,
    reaches: SmallVec<[ResidentRange; 1]>,
    /// The way to a key, which is known until something is edited.
    known: Option<(Key, Path)>,
}

/// The rest of a node from which something was removed.
enum NodeFill {
    Enough,
    Thin,
    Nothing,
}

fn remains(page: &NodePage) -> NodeFill {
    match page.count() {
        0 => NodeFill::Nothing,
        _ if page.used() < THIN => NodeFill::Thin,
        _ => NodeFill::Enough,
    }
}

/// Returns what was found where all is resident.
fn sure<T>(found: Result<T, Fault>) -> T {
    found.unwrap_or_else(|fault| panic!("an edit goes where it was not prepared to go: {fault}"))
}

/// Ranges of trees whose edits do not fault: what they may touch is resident, and nothing can be
/// admitted to the store, or leave it, for as long as this is held.
pub struct ResidentRanges<'a> {
    store: &'a mut Store,
    reaches: SmallVec<[ResidentRange; 2]>,
}

impl ResidentRanges<'_> {
    /// Edits one of the trees, in its ranges.
    pub fn edit<'e>(&'e mut self, tree: &'e mut Tree, changes: &'e mut Changes) -> Editor<'e> {
        let reaches = self.reaches.iter().filter(|r| r.tree == tree.id()).copied().collect();
        Editor::new(self.store, tree, changes, reaches, None)
    }
}

impl Store {
    /// An editor of the keys in `[from, to]` of a tree, and of the record before them. On a fault
    /// nothing was changed. The range should span far fewer leaves than the store may hold; a store
    /// that is too small grows for the time being.
    pub fn edit<'a>(
        &'a mut self,
        tree: &'a mut Tree,
        changes: &'a mut Changes,
        from: &[u8],
        to: &[u8],
    ) -> Result<Editor<'a>, Fault> {
        self.nodes.trim();
        let (reach, path) = self.reach(tree, from, to, true, &mut 0)?;
        self.nodes.relax();
        Ok(Editor::new(self, tree, changes, SmallVec::from_buf([reach]), Some((reach.from, path))))
    }

    /// The same for several ranges and trees, which are edited in one step.
    pub fn ready<'t>(
        &mut self,
        ranges: impl IntoIterator<Item = (&'t Tree, Key, Key)>,
    ) -> Result<ResidentRanges<'_>, Fault> {
        let ranges: SmallVec<[_; 2]> = ranges.into_iter().collect();
        self.nodes.trim();
        let mut seen = 0;
        let mut reaches = SmallVec::new();
        for (tree, from, to) in &ranges {
            let alone = ranges.iter().filter(|(t, ..)| t.id == tree.id).nth(1).is_none();
            reaches.push(self.reach(tree, from, to, alone, &mut seen)?.0);
        }
        self.nodes.relax();
        Ok(ResidentRanges { store: self, reaches })
    }

    /// Merges the leaf of `key` with the next if it is thin and both fit in one; false if not. On a
    /// fault nothing was changed.
    pub fn merge_thin(
        &mut self,
        tree: &mut Tree,
        changes: &mut Changes,
        key: &[u8],
    ) -> Result<bool, Fault> {
        let (Some(leaf), Some(next)) = tree.leaf_of(self, key)? else { return Ok(false) };
        Ok(leaf.page.used() < THIN && self.edit(tree, changes, key, &next)?.merge_thin(key))
    }
}

impl<'a> Editor<'a> {
    pub(crate) fn new(
        store: &'a mut Store,
        tree: &'a mut Tree,
        changes: &'a mut Changes,
        reaches: SmallVec<[ResidentRange; 1]>,
        known: Option<(Key, Path)>,
    ) -> Editor<'a> {
        Editor { store, tree, changes, reaches, known }
    }

    fn assert_covered(&self, key: &[u8]) {
        assert!(
            self.reaches.iter().any(|r| r.covers(key)),
            "{:?} is outside of the edited range",
            Key::new(key)
        );
    }

    /// The value of `key`.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.assert_covered(key);
        sure(self.tree.get(self.store, key))
    }

    /// Returns what `f` makes of the key and value of the last record whose key is not above `key`.
    pub fn get_le<R>(&self, key: &[u8], f: impl FnOnce(&[u8], &[u8]) -> R) -> Option<R> {
        self.assert_covered(key);
        sure(self.tree.get_le(self.store, key, f))
    }

    /// Calls `f` with the records of `[from, to)` in order, until it breaks.
    pub fn scan(&self, from: &[u8], to: &[u8], f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) {
        self.assert_covered(from);
        self.assert_covered(to);
        sure(self.tree.scan(self.store, from, to, f));
    }

    /// Looks at the range with a function that is used outside of edits too.
    pub fn look<T, E>(&self, f: impl FnOnce(&Tree, &Store) -> Result<T, Stop<E>>) -> Result<T, E> {
        match f(self.tree, self.store) {
            Ok(t) => Ok(t),
            Err(Stop::Error(e)) => Err(e),
            Err(Stop::Fault(fault)) => sure(Err(fault)),
        }
    }

    /// Sets the value of `key`. Panics if the key is not of 1 to [`MAX_KEY`] bytes or the value of
    /// more than [`MAX_VALUE`].
    pub fn insert(&mut self, key: &[u8], value: &[u8]) {
        assert!(
            (1..=MAX_KEY).contains(&key.len()) && value.len() <= MAX_VALUE,
            "{}: {}",
            key.len(),
            value.len()
        );
        self.assert_covered(key);
        let path = self.path(key);
        let mut root = match self.own_tree() {
            Some(root) => root,
            None => {
                let leaf = self.new_node(NodePage::leaf(key, value), Vec::new());
                (self.tree.root, self.tree.height) = (Some(Link::Mem(leaf)), 1);
                return;
            }
        };
        if let Some((separator, right)) =
            self.insert_below(Rc::make_mut(&mut root), &path, key, value)
        {
            assert!(
                usize::from(self.tree.height) < MAX_HEIGHT,
                "a tree of more nodes than there can be"
            );
            let page = node::new_root(self.tree.height, &separator);
            root = self.new_node(page, vec![Some(root), Some(right)]);
            self.tree.height += 1;
        }
        self.tree.root = Some(Link::Mem(root));
    }

    /// Removes `key`; false if it was not there. The record before the range cannot be removed.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        assert!(
            self.reaches.iter().any(|r| r.may_lose(key)),
            "{:?} is outside of the edited range",
            Key::new(key)
        );
        let path = self.path(key);
        if path.found {
            self.shrink(&path, true);
        }
        path.found
    }

    /// Merges the leaf of `key` with the next, which the range reaches, if it is thin and both fit
    /// in one; false if not.
    pub fn merge_thin(&mut self, key: &[u8]) -> bool {
        self.assert_covered(key);
        let (Some(leaf), Some(next)) = sure(self.tree.leaf_of(self.store, key)) else {
            return false;
        };
        self.assert_covered(&next);
        let used = leaf.page.used();
        let (Some(neighbour), _) = sure(self.tree.leaf_of(self.store, &next)) else { return false };
        let merges = used < THIN && used + neighbour.page.used() <= MERGED;
        if merges {
            let path = self.path(key);
            self.shrink(&path, false);
        }
        merges
    }

    /// Has the nodes on the way to `key` written anew, as far down as `moves` names one of them;
    /// returns how many of them were not changed already.
    pub fn rewrite(&mut self, key: &[u8], moves: impl Fn(&NodePtr) -> bool) -> u64 {
        self.assert_covered(key);
        let path = self.path(key);
        let Some(mut node) = sure(self.tree.root_node(self.store)) else { return 0 };
        let named =
            |node: &Node| node.ptr().is_some_and(|ptr| moves(&ptr)).then(|| node.page.level());
        let mut lowest = named(node);
        while node.page.level() > 0 {
            let i = usize::from(path.at[usize::from(node.page.level())]);
            node = sure(self.tree.child_node(self.store, node, i));
            lowest = named(node).or(lowest);
        }
        let before = self.changes.dirty();
        if let Some(lowest) = lowest
            && let Some(mut root) = self.own_tree()
        {
            self.own_below(Rc::make_mut(&mut root), &path, lowest);
            self.tree.root = Some(Link::Mem(root));
        }
        (self.changes.dirty() - before) as u64
    }

    /// The way to a key.
    fn path(&mut self, key: &[u8]) -> Path {
        if let Some((_, path)) = self.known.take().filter(|(known, _)| **known == *key) {
            return path;
        }
        let mut path = Path::NONE;
        let Some(mut node) = sure(self.tree.root_node(self.store)) else { return path };
        while node.page.level() > 0 {
            node = sure(self.tree.child_node(self.store, node, path.step(node, key)));
        }
        path.step(node, key);
        path
    }

    fn new_node(&mut self, page: NodePage, children: Vec<Option<Rc<Node>>>) -> Rc<Node> {
        self.changes.made();
        Rc::new(Node::changed(page, self.changes.generation(), children))
    }

    /// The root, taken out of the tree.
    fn own_tree(&mut self) -> Option<Rc<Node>> {
        let root = self.tree.root.take()?;
        Some(self.own_link(root))
    }

    fn own_link(&mut self, link: Link) -> Rc<Node> {
        let node = match link {
            Link::Mem(node) => node,
            Link::Disk(ptr) => match self.take_old(&ptr) {
                Some(node) => node,
                None => panic!(
                    "an edit of tree {:#x} was not prepared for its node {}",
                    self.tree.id, ptr.addr
                ),
            },
        };
        self.own(node)
    }

    /// A node of the store that is to be replaced. It leaves the store, if nothing looks at it any
    /// more.
    fn take_old(&mut self, ptr: &NodePtr) -> Option<Rc<Node>> {
        match self.changes.has_readers() {
            true => self.store.nodes.share(ptr, self.tree.id),
            false => self.store.nodes.take(ptr),
        }
    }

    fn own_child<'n>(&mut self, parent: &'n mut Node, i: usize) -> &'n mut Node {
        let link = match parent.children[i].take() {
            Some(node) => Link::Mem(node),
            None => Link::Disk(parent.page.pointer(i)),
        };
        let node = self.own_link(link);
        Rc::make_mut(parent.children[i].insert(node))
    }

    /// The node, or its successor in the open generation. It may still be shared with a snapshot of
    /// the same generation: `Rc::make_mut` copies it then, which changes no count, since only one
    /// of the two is in the tree.
    fn own(&mut self, node: Rc<Node>) -> Rc<Node> {
        let (open, settled) = (self.changes.generation(), self.tree.settled);
        assert!(node.generation <= open, "an edit of {} in {open}", node.generation);
        if node.generation == open {
            return node;
        }
        self.changes.retire(&node, self.tree.id);
        self.changes.made();
        if let Some(ptr) = node.ptr() {
            // Freed with this transaction; without the store's share it may be ours alone, and need
            // not be copied.
            drop(self.take_old(&ptr));
        }
        let mut node = Rc::try_unwrap(node).unwrap_or_else(|shared| (*shared).clone());
        node.generation = open;
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
    fn own_below(&mut self, node: &mut Node, path: &Path, lowest: u8) {
        let level = node.page.level();
        if level > lowest {
            let child = self.own_child(node, usize::from(path.at[usize::from(level)]));
            self.own_below(child, path, lowest);
        }
    }

    /// Inserts below `node`; returns what it was split off, and the first key that belongs there.
    fn insert_below(
        &mut self,
        node: &mut Node,
        path: &Path,
        key: &[u8],
        value: &[u8],
    ) -> Option<(Key, Rc<Node>)> {
        let level = usize::from(node.page.level());
        let (i, found) = (usize::from(path.at[level]), path.found);
        if level > 0 {
            let child = self.own_child(node, i);
            let (separator, right) = self.insert_below(child, path, key, value)?;
            return self.insert_child(node, i + 1, &separator, right);
        }
        let done =
            if found { node.page.replace(i, value) } else { node.page.insert(i, key, value) };
        let run = !found && i == usize::from(node.last) + 1;
        if done.is_ok() {
            if !found {
                node.last = i as u16;
            }
            return None;
        }
        let Split { left, separator, right, at } = node.page.split(i, key, value, found, run);
        node.page = left;
        let mut right = Node::changed(right, self.changes.generation(), Vec::new());
        (node.last, right.last) =
            if i < at { (i as u16, NO_SLOT) } else { (NO_SLOT, (i - at) as u16) };
        self.changes.made();
        Some((separator, Rc::new(right)))
    }

    fn insert_child(
        &mut self,
        node: &mut Node,
        i: usize,
        key: &Key,
        child: Rc<Node>,
    ) -> Option<(Key, Rc<Node>)> {
        node.children.insert(i, Some(child));
        if node.page.insert_child(i, key).is_ok() {
            return None;
        }
        let Split { left, separator, right, at } = node.page.split_with_child(i, key);
        node.page = left;
        let children = node.children.split_off(at);
        Some((separator, self.new_node(right, children)))
    }

    /// Removes the record that the path leads to, or only looks at its leaf; merges what is thin.
    fn shrink(&mut self, path: &Path, remove: bool) {
        let Some(mut root) = self.own_tree() else { return };
        if let NodeFill::Nothing =
            self.shrink_below(Rc::make_mut(&mut root), path, &Bounds::ALL, remove)
        {
            self.changes.retire(&root, self.tree.id);
            self.tree.height = 0;
        } else {
            self.tree.root = Some(self.lower(root));
        }
    }

    fn shrink_below(
        &mut self,
        node: &mut Node,
        path: &Path,
        bounds: &Bounds,
        remove: bool,
    ) -> NodeFill {
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
        let child = self.own_child(node, i);
        match self.shrink_below(child, path, &inside, remove) {
            NodeFill::Enough => return NodeFill::Enough,
            NodeFill::Thin => {
                if !(self.merge(node, i, i + 1, bounds)
                    || i > 0 && self.merge(node, i - 1, i, bounds))
                {
                    return NodeFill::Enough;
                }
            }
            NodeFill::Nothing => {
                node.page.remove(i);
                let empty = node.children.remove(i);
                empty.iter().for_each(|node| self.changes.retire(node, self.tree.id));
            }
        }
        remains(&node.page)
    }

    /// Merges two neighbouring children, if both are resident and fit in one.
    fn merge(&mut self, node: &mut Node, l: usize, r: usize, bounds: &Bounds) -> bool {
        if r == node.page.count() {
            return false;
        }
        let level = node.page.level() - 1;
        let resident = |i| {
            let fault = || Fault { ptr: node.page.pointer(i), level, tree: self.tree.id };
            let child = node.child(i).or_else(|| self.store.nodes.peek(&fault())).cloned();
            child.filter(|c: &Rc<Node>| c.is_ours() || bounds.of_child(&node.page, i).hold(&c.page))
        };
        let (Some(left), Some(right)) = (resident(l), resident(r)) else { return false };
        if left.page.used() + right.page.used() > MERGED {
            return false;
        }
        let Some(page) = node::merge(&left.page, &node.page.key(r), &right.page, MERGED) else {
            return false;
        };
        let mut children = left.links();
        children.append(&mut right.links());
        for old in [left, right] {
            self.changes.retire(&old, self.tree.id);
            if let Some(ptr) = old.ptr() {
                drop(self.take_old(&ptr));
            }
        }
        node.children[l] = Some(self.new_node(page, children));
        node.children.remove(r);
        node.page.remove(r);
        true
    }

    /// A root with one child gives way to it, as far down as nodes are resident.
    fn lower(&mut self, root: Rc<Node>) -> Link {
        let mut link = Link::Mem(root);
        loop {
            let node = match &link {
                Link::Mem(node) => node.clone(),
                Link::Disk(ptr) => {
                    let fault =
                        Fault { ptr: *ptr, level: self.tree.height - 1, tree: self.tree.id };
                    match self.store.nodes.peek(&fault) {
                        Some(node) => node.clone(),
                        None => return link,
                    }
                }
            };
            if node.page.level() == 0 || node.page.count() > 1 {
                return link;
            }
            link = match node.child(0) {
                Some(child) => Link::Mem(child.clone()),
                None => Link::Disk(node.page.pointer(0)),
            };
            self.changes.retire(&node, self.tree.id);
            self.tree.height -= 1;
        }
    }
}
