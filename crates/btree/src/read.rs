//! Lookups, neighbours, scans, and what must be resident for an edit.

use std::ops::ControlFlow;
use std::rc::Rc;

use base::Generation;
use format::node::{Key, MAX_HEIGHT, NodePtr};

use crate::node::{Bounds, Node, Place};
use crate::{Cursor, Fault, Link, NodeCache, Tree};

/// The way from the root to a record, as slots by level.
pub(crate) struct Path {
    pub at: [u16; MAX_HEIGHT],
    /// The record is there; else it belongs there.
    pub found: bool,
}

impl Tree {
    fn resident<'a>(&self, cache: &'a NodeCache, ptr: NodePtr, level: u8) -> Result<&'a Rc<Node>, Fault> {
        let fault = Fault { ptr, level, tree: self.id };
        cache.find(&fault).ok_or(fault)
    }

    pub(crate) fn root_node<'a>(&'a self, cache: &'a NodeCache) -> Result<Option<&'a Rc<Node>>, Fault> {
        match &self.root {
            None => Ok(None),
            Some(Link::Mem(node)) => Ok(Some(node)),
            // A recorded height of 0 is a damaged record: there is no such node, as its admission will tell.
            Some(Link::Disk(ptr)) => self.resident(cache, *ptr, self.height.wrapping_sub(1)).map(Some),
        }
    }

    pub(crate) fn child_node<'a>(&self, cache: &'a NodeCache, node: &'a Node, i: usize) -> Result<&'a Rc<Node>, Fault> {
        match node.child(i) {
            Some(child) => Ok(child),
            None => self.resident(cache, node.page.pointer(i), node.page.level() - 1),
        }
    }

    /// As [`Tree::child_node`], for edits: they replace links to settled nodes in memory by links to their blocks as they
    /// go, so such a node counts as resident only if the cache has it.
    fn child_to_edit<'a>(&self, cache: &'a NodeCache, node: &'a Node, i: usize) -> Result<&'a Rc<Node>, Fault> {
        match node.child(i).map(|child| (child.generation <= self.settled, child.ptr())) {
            Some((true, Some(ptr))) => self.resident(cache, ptr, node.page.level() - 1),
            _ => self.child_node(cache, node, i),
        }
    }

    /// The value of `key`.
    pub fn get<'a>(&'a self, cache: &'a mut NodeCache, key: &[u8]) -> Result<Option<&'a [u8]>, Fault> {
        let Some(mut node) = self.root_node(cache)? else { return Ok(None) };
        while node.page.level() > 0 {
            node = self.child_node(cache, node, node.page.child_of(key))?;
        }
        Ok(node.page.search(key).ok().map(|i| node.page.value(i)))
    }

    /// What `f` makes of the value of `key`.
    pub fn get_with<R>(
        &self,
        cache: &mut NodeCache,
        key: &[u8],
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, Fault> {
        Ok(self.get(cache, key)?.map(f))
    }

    /// What `f` makes of the key and value of the last record whose key is not above `key`.
    pub fn get_le<R>(
        &self,
        cache: &mut NodeCache,
        key: &[u8],
        f: impl FnOnce(&[u8], &[u8]) -> R,
    ) -> Result<Option<R>, Fault> {
        let Some(mut node) = self.root_node(cache)? else { return Ok(None) };
        // The lowest turning on the way that has a neighbour to the left.
        let mut left = None;
        while node.page.level() > 0 {
            let i = node.page.child_of(key);
            if i > 0 {
                left = Some((node, i - 1));
            }
            node = self.child_node(cache, node, i)?;
        }
        let i = match node.page.search(key) {
            Ok(i) => i,
            Err(i) if i > 0 => i - 1,
            Err(_) => {
                let Some((from, i)) = left else { return Ok(None) };
                node = self.child_node(cache, from, i)?;
                while node.page.level() > 0 {
                    node = self.child_node(cache, node, node.page.count() - 1)?;
                }
                node.page.count() - 1
            }
        };
        Ok(Some(f(&node.page.key(i), node.page.value(i))))
    }

    /// Calls `f` with the records of `[from, to)` in order, until it breaks. A fault may come after some of them: the
    /// caller starts over, or uses a [`Cursor`], which keeps its place.
    pub fn scan(
        &self,
        cache: &mut NodeCache,
        from: &[u8],
        to: &[u8],
        mut f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Fault> {
        let mut cursor = Cursor::new(from, Some(to));
        let mut stopped = false;
        while !stopped {
            let more = cursor.next_leaf(self, cache, |key, value| {
                stopped = stopped || f(key, value).is_break();
            })?;
            if !more {
                break;
            }
        }
        Ok(())
    }

    /// `Ok`: every node that inserts and removes of keys in `[from, to]` need is resident, so that such edits with the
    /// same cache, before anything else is admitted to it, do not fault. The range should span far fewer leaves than the
    /// cache may hold; a cache that is too small grows for the time being.
    pub fn prepare(&self, cache: &mut NodeCache, from: &[u8], to: &[u8]) -> Result<(), Fault> {
        let mut first = None;
        let seen = self.survey(cache, from, to, &mut |fault| {
            first = Some(fault);
            ControlFlow::Break(())
        });
        let beside = first.map_or_else(|| self.neighbour(cache, from, to), Err);
        match beside {
            Ok(()) => {
                cache.relax();
                Ok(())
            }
            Err(fault) => {
                cache.stretch(seen + usize::from(self.height) + 1);
                Err(fault)
            }
        }
    }

    /// Where removes of keys in `[from, to]` may leave nothing of the first leaf, it goes, and an insert goes to a leaf beside it: to the left, or where there is
    /// none to the right of all that may go. `Ok`: what leads there is resident, as is the range.
    fn neighbour(&self, cache: &NodeCache, from: &[u8], to: &[u8]) -> Result<(), Fault> {
        let Some(mut node) = self.root_node(cache)? else { return Ok(()) };
        let mut left = None;
        while node.page.level() > 0 {
            let i = node.page.child_of(from);
            if i > 0 {
                left = Some((node, i - 1));
            }
            node = self.child_to_edit(cache, node, i)?;
        }
        let stays = |node: &Node| node.page.count() > 0 && *node.page.key(node.page.count() - 1) > *to;
        if node.page.search(from).unwrap_or_else(|i| i) > 0 || stays(node) {
            return Ok(());
        }
        if let Some((parent, i)) = left {
            node = self.child_to_edit(cache, parent, i)?;
            while node.page.level() > 0 {
                node = self.child_to_edit(cache, node, node.page.count() - 1)?;
            }
            return Ok(());
        }
        let Some(mut node) = self.root_node(cache)? else { return Ok(()) };
        let mut right = None;
        while node.page.level() > 0 {
            let i = node.page.child_of(to);
            if i + 1 < node.page.count() {
                right = Some((node, i + 1));
            }
            node = self.child_to_edit(cache, node, i)?;
        }
        if let Some((parent, i)) = right.filter(|_| !stays(node)) {
            node = self.child_to_edit(cache, parent, i)?;
            while node.page.level() > 0 {
                node = self.child_to_edit(cache, node, 0)?;
            }
        }
        Ok(())
    }

    /// The nodes that operations on `[from, to]` need and that are not resident, in order, at most `max`: to be loaded
    /// together. Below such a node there may be more.
    pub fn missing(&self, cache: &NodeCache, from: &[u8], to: &[u8], max: usize) -> Vec<Fault> {
        let mut faults = Vec::new();
        if max > 0 {
            self.survey(cache, from, to, &mut |fault| {
                faults.push(fault);
                if faults.len() < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
        }
        faults
    }

    /// Visits the nodes of `[from, to]`; tells `absent` of those that are not resident. Returns how many are.
    fn survey(
        &self,
        cache: &NodeCache,
        from: &[u8],
        to: &[u8],
        absent: &mut dyn FnMut(Fault) -> ControlFlow<()>,
    ) -> usize {
        let mut seen = 0;
        match self.root_node(cache) {
            Ok(Some(root)) => {
                // Whether it was stopped does not matter any more at the root.
                let _ = self.survey_below(cache, root, from, to, absent, &mut seen);
            }
            Ok(None) => {}
            Err(fault) => {
                let _ = absent(fault);
            }
        }
        seen
    }

    fn survey_below(
        &self,
        cache: &NodeCache,
        node: &Node,
        from: &[u8],
        to: &[u8],
        absent: &mut dyn FnMut(Fault) -> ControlFlow<()>,
        seen: &mut usize,
    ) -> ControlFlow<()> {
        *seen += 1;
        if node.page.level() == 0 {
            return ControlFlow::Continue(());
        }
        for i in node.page.child_of(from)..=node.page.child_of(to) {
            match self.child_to_edit(cache, node, i) {
                Ok(child) => self.survey_below(cache, child, from, to, absent, seen)?,
                Err(fault) => absent(fault)?,
            }
        }
        ControlFlow::Continue(())
    }

    /// The way to `key`, all of it resident and in order.
    pub(crate) fn path(&self, cache: &mut NodeCache, key: &[u8]) -> Result<Path, Fault> {
        let mut path = Path { at: [0; MAX_HEIGHT], found: false };
        let Some(mut node) = self.root_node(cache)? else { return Ok(path) };
        let mut bounds = Bounds::ALL;
        while node.page.level() > 0 {
            let i = node.page.child_of(key);
            path.at[usize::from(node.page.level())] = i as u16;
            bounds = bounds.of_child(&node.page, i);
            node = self.child_to_edit(cache, node, i)?;
            if let Place::Disk(ptr) = node.place
                && !bounds.hold(&node.page)
            {
                let fault = Fault { ptr, level: node.page.level(), tree: self.id };
                cache.condemn(&ptr);
                return Err(fault);
            }
        }
        let (i, found) = match node.page.search(key) {
            Ok(i) => (i, true),
            Err(i) => (i, false),
        };
        path.at[0] = i as u16;
        path.found = found;
        Ok(path)
    }

    /// The leaf that holds `key`, and the first key that belongs to the next leaf.
    pub(crate) fn leaf_of<'a>(
        &'a self,
        cache: &'a NodeCache,
        key: &[u8],
    ) -> Result<(Option<&'a Node>, Option<Key>), Fault> {
        self.leaf_since(cache, key, Generation(0))
    }

    /// The same; or where a subtree of `key` is older than `since`, the first leaf that belongs to the next one and is not, as
    /// far as their parent knows. Without a leaf: there is none before the key.
    pub(crate) fn leaf_since<'a>(
        &'a self,
        cache: &'a NodeCache,
        key: &[u8],
        since: Generation,
    ) -> Result<(Option<&'a Node>, Option<Key>), Fault> {
        let Some(mut node) = self.root_node(cache)? else { return Ok((None, None)) };
        let mut end = None;
        while node.page.level() > 0 {
            let count = node.page.count();
            let young =
                |&i: &usize| node.child(i).map_or_else(|| node.page.pointer(i).generation, |c| c.generation) >= since;
            let Some(i) = (node.page.child_of(key)..count).find(young) else { return Ok((None, end)) };
            if i + 1 < count {
                end = Some(node.page.key(i + 1));
            }
            node = self.child_node(cache, node, i)?;
        }
        Ok((Some(node), end))
    }
}
