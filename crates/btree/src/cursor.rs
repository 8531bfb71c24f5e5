//! A place in a tree, from which it is read leaf by leaf.

use base::Generation;
use format::node::Key;

use crate::node::Node;
use crate::{Fault, Store, Tree};

/// Reads a range in order. Its place is a key, not a node: it stays valid while the tree changes,
/// faults and is evicted.
#[derive(Clone, Debug)]
pub struct Cursor {
    /// The next record's key is not below this; `None`: at the end.
    at: Option<Key>,
    to: Option<Key>,
    /// Subtrees of older generations are passed over.
    since: Generation,
}

impl Cursor {
    /// A cursor over `[from, to)`, or to the end of the tree.
    pub fn new(from: &[u8], to: Option<&[u8]>) -> Cursor {
        Cursor { at: Some(Key::new(from)), to: to.map(Key::new), since: Generation(0) }
    }

    /// The same, over what `since` and later generations have changed: subtrees that are older are
    /// passed over, without being read. What it meets has every such record, and others beside
    /// them.
    pub fn since(self, since: Generation) -> Cursor {
        Cursor { since, ..self }
    }

    /// Calls `f` with the records of the next leaf (none, perhaps) and moves behind it, or behind
    /// what it passes over. `Ok(false)`: that was the last. On a fault the cursor has not moved and
    /// `f` was not called.
    pub fn next_leaf(
        &mut self,
        tree: &Tree,
        store: &Store,
        mut f: impl FnMut(&[u8], &[u8]),
    ) -> Result<bool, Fault> {
        let Some(at) = &self.at else { return Ok(false) };
        let (leaf, next) = tree.leaf_since(store, at, self.since)?;
        if let Some(Node { page, .. }) = leaf {
            for i in page.search(at).unwrap_or_else(|i| i)..page.count() {
                let key = page.key(i);
                if self.to.as_ref().is_some_and(|to| *key >= **to) {
                    self.at = None;
                    return Ok(false);
                }
                f(&key, page.value(i));
            }
        }
        self.at = next.filter(|next| self.to.as_ref().is_none_or(|to| **next < **to));
        Ok(self.at.is_some())
    }

    /// The nodes that come next and are not resident, in order, at most `max`: to be read ahead.
    pub fn ahead(&self, tree: &Tree, store: &Store, max: usize) -> Vec<Fault> {
        let Some(at) = &self.at else { return Vec::new() };
        let to = self.to.unwrap_or(Key::new(&[0xff; crate::MAX_KEY]));
        tree.missing_since(store, at, &to, self.since, max)
    }

    /// The key from which the next leaf is read; `None` at the end.
    pub fn position(&self) -> Option<&[u8]> {
        self.at.as_deref()
    }
}
