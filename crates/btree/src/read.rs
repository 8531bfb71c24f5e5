//! Lookups, neighbours and scans.

use std::ops::ControlFlow;
use std::rc::Rc;

use base::Generation;
use format::node::{Key, NodePtr};

use crate::node::Node;
use crate::{Cursor, Fault, Link, Store, Tree};

/// The nodes that are looked for: those of a range of keys that are not resident.
struct MissingSearch<'a> {
    from: &'a [u8],
    /// The last key of the range.
    to: &'a [u8],
    /// Older nodes are passed over.
    since: Generation,
    /// The most nodes that are to be found.
    max: usize,
}

impl Tree {
    fn resident<'a>(
        &self,
        store: &'a Store,
        ptr: NodePtr,
        level: u8,
    ) -> Result<&'a Rc<Node>, Fault> {
        let fault = Fault { ptr, level, tree: self.id };
        store.nodes.find(&fault).ok_or(fault)
    }

    pub(crate) fn root_node<'a>(&'a self, store: &'a Store) -> Result<Option<&'a Rc<Node>>, Fault> {
        match &self.root {
            None => Ok(None),
            Some(Link::Mem(node)) => Ok(Some(node)),
            // A recorded height of 0 is a damaged record: there is no such node, as its admission
            // will tell.
            Some(Link::Disk(ptr)) => {
                self.resident(store, *ptr, self.height.wrapping_sub(1)).map(Some)
            }
        }
    }

    pub(crate) fn child_node<'a>(
        &self,
        store: &'a Store,
        node: &'a Node,
        i: usize,
    ) -> Result<&'a Rc<Node>, Fault> {
        match node.child(i) {
            Some(child) => Ok(child),
            None => self.resident(store, node.page.pointer(i), node.page.level() - 1),
        }
    }

    /// As [`Tree::child_node`], for edits: they replace links to settled nodes in memory by links
    /// to their blocks as they go, so such a node counts as resident only if the store has it.
    pub(crate) fn child_to_edit<'a>(
        &self,
        store: &'a Store,
        node: &'a Node,
        i: usize,
    ) -> Result<&'a Rc<Node>, Fault> {
        match node.child(i).map(|child| (child.generation <= self.settled, child.ptr())) {
            Some((true, Some(ptr))) => self.resident(store, ptr, node.page.level() - 1),
            _ => self.child_node(store, node, i),
        }
    }

    /// The value of `key`.
    pub fn get<'a>(&'a self, store: &'a Store, key: &[u8]) -> Result<Option<&'a [u8]>, Fault> {
        let Some(mut node) = self.root_node(store)? else { return Ok(None) };
        while node.page.level() > 0 {
            node = self.child_node(store, node, node.page.child_of(key))?;
        }
        Ok(node.page.search(key).ok().map(|i| node.page.value(i)))
    }

    /// Returns what `f` makes of the key and value of the last record whose key is not above `key`.
    pub fn get_le<R>(
        &self,
        store: &Store,
        key: &[u8],
        f: impl FnOnce(&[u8], &[u8]) -> R,
    ) -> Result<Option<R>, Fault> {
        let Some(mut node) = self.root_node(store)? else { return Ok(None) };
        // The lowest turning on the way that has a neighbour to the left.
        let mut left = None;
        while node.page.level() > 0 {
            let i = node.page.child_of(key);
            if i > 0 {
                left = Some((node, i - 1));
            }
            node = self.child_node(store, node, i)?;
        }
        let i = match node.page.search(key) {
            Ok(i) => i,
            Err(i) if i > 0 => i - 1,
            Err(_) => {
                let Some((from, i)) = left else { return Ok(None) };
                node = self.child_node(store, from, i)?;
                while node.page.level() > 0 {
                    node = self.child_node(store, node, node.page.count() - 1)?;
                }
                node.page.count() - 1
            }
        };
        Ok(Some(f(&node.page.key(i), node.page.value(i))))
    }

    /// Calls `f` with the records of `[from, to)` in order, until it breaks. A fault may come after
    /// some of them: the caller starts over, or uses a [`Cursor`], which keeps its place.
    pub fn scan(
        &self,
        store: &Store,
        from: &[u8],
        to: &[u8],
        mut f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Fault> {
        let mut cursor = Cursor::new(from, Some(to));
        let mut stopped = false;
        while !stopped {
            let more = cursor.next_leaf(self, store, |key, value| {
                stopped = stopped || f(key, value).is_break();
            })?;
            if !more {
                break;
            }
        }
        Ok(())
    }

    /// The nodes that operations on `[from, to]` need and that are not resident, in order, at most
    /// `max`: to be loaded together. Below such a node there may be more.
    pub fn missing(&self, store: &Store, from: &[u8], to: &[u8], max: usize) -> Vec<Fault> {
        self.missing_since(store, from, to, Generation(0), max)
    }

    /// The same; what is older than `since` is passed over.
    pub(crate) fn missing_since(
        &self,
        store: &Store,
        from: &[u8],
        to: &[u8],
        since: Generation,
        max: usize,
    ) -> Vec<Fault> {
        let sought = MissingSearch { from, to, since, max };
        let mut faults = Vec::new();
        match self.root_node(store) {
            Ok(Some(root)) => self.missing_below(store, root, &sought, &mut faults),
            Ok(None) => {}
            Err(fault) => faults.extend((max > 0).then_some(fault)),
        }
        faults
    }

    fn missing_below(
        &self,
        store: &Store,
        node: &Node,
        sought: &MissingSearch<'_>,
        faults: &mut Vec<Fault>,
    ) {
        if node.page.level() == 0 {
            return;
        }
        for i in node.page.child_of(sought.from)..=node.page.child_of(sought.to) {
            if faults.len() >= sought.max {
                return;
            }
            if node.child_generation(i) < sought.since {
                continue;
            }
            match self.child_to_edit(store, node, i) {
                Ok(child) => self.missing_below(store, child, sought, faults),
                Err(fault) => faults.push(fault),
            }
        }
    }

    /// The nodes of `since` and later generations that are durable on the device, from the one on
    /// that begins with `from`, parents before children, and about `max` of them; and where to go
    /// on, if there are more. Only inner nodes need to be resident. The tree may change between two
    /// calls: what both have then comes once.
    pub fn pointers(
        &self,
        store: &Store,
        from: &Key,
        since: Generation,
        max: usize,
    ) -> Result<(Vec<NodePtr>, Option<Key>), Fault> {
        let mut out = Vec::new();
        let leaf_only = matches!(self.root, Some(Link::Disk(_))) && self.height <= 1;
        if let Some(Link::Disk(ptr)) = &self.root {
            if ptr.generation < since {
                return Ok((out, None));
            }
            if *from == Key::EMPTY {
                out.push(*ptr);
            }
        }
        if leaf_only {
            return Ok((out, None));
        }
        let Some(root) = self.root_node(store)? else { return Ok((out, None)) };
        if let (Some(Link::Mem(node)), true) = (&self.root, *from == Key::EMPTY) {
            out.extend(self.written(node));
        }
        let next = self.pointers_below(store, root, from, since, max, &mut out)?;
        Ok((out, next))
    }

    /// The place of a node in memory on the device, if it is durable there.
    fn written(&self, node: &Node) -> Option<NodePtr> {
        node.ptr().filter(|_| node.generation <= self.settled)
    }

    fn pointers_below(
        &self,
        store: &Store,
        node: &Node,
        from: &Key,
        since: Generation,
        max: usize,
        out: &mut Vec<NodePtr>,
    ) -> Result<Option<Key>, Fault> {
        if node.page.level() == 0 {
            return Ok(None);
        }
        let first = node.page.child_of(from);
        for i in first..node.page.count() {
            if i > first && out.len() >= max {
                return Ok(Some(node.page.key(i)));
            }
            // The first child was met by an earlier call, unless that one ended before it.
            let is_new = i > first || *from == Key::EMPTY || node.page.key(i) == *from;
            let child = node.child(i);
            if node.child_generation(i) < since {
                continue;
            }
            if is_new {
                match child {
                    Some(child) => out.extend(self.written(child)),
                    None => out.push(node.page.pointer(i)),
                }
            }
            if node.page.level() > 1 {
                let child = self.child_node(store, node, i)?;
                if let Some(next) = self.pointers_below(store, child, from, since, max, out)? {
                    return Ok(Some(next));
                }
            }
        }
        Ok(None)
    }

    /// The leaf that holds `key`, and the first key that belongs to the next leaf.
    pub(crate) fn leaf_of<'a>(
        &'a self,
        store: &'a Store,
        key: &[u8],
    ) -> Result<(Option<&'a Node>, Option<Key>), Fault> {
        self.leaf_since(store, key, Generation(0))
    }

    /// The same; or where a subtree of `key` is older than `since`, the first leaf that belongs to
    /// the next one and is not, as far as their parent knows. Without a leaf: there is none before
    /// the key.
    pub(crate) fn leaf_since<'a>(
        &'a self,
        store: &'a Store,
        key: &[u8],
        since: Generation,
    ) -> Result<(Option<&'a Node>, Option<Key>), Fault> {
        let Some(mut node) = self.root_node(store)? else { return Ok((None, None)) };
        let mut end = None;
        while node.page.level() > 0 {
            let count = node.page.count();
            let young = |&i: &usize| node.child_generation(i) >= since;
            let Some(i) = (node.page.child_of(key)..count).find(young) else {
                return Ok((None, end));
            };
            if i + 1 < count {
                end = Some(node.page.key(i + 1));
            }
            node = self.child_node(store, node, i)?;
        }
        Ok((Some(node), end))
    }
}
