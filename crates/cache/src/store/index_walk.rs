//! A walk over the index, or over a cut of it, leaf by leaf.
//!
//! The place of a walk is a key and not a node. So between two leaves the index may change, and
//! nodes may leave memory. A walk meets every block that stays as it is meanwhile, in the order of
//! keys. It may miss a block that was changed meanwhile. It meets a block twice if a change
//! shortens the extent of that block, and the rest gets a key that the walk has yet to reach. A
//! leaf is up to date in the step that reads it, and not in a later one.

use base::Generation;
use btree::{Cursor, Tree};
use pool::Step;

use crate::error::malformed;
use crate::store::buckets::Buckets;
use crate::store::index::Index;
use crate::store::key::IndexKey;

pub(crate) struct IndexWalk {
    cursor: Cursor,
    /// The tree of a cut. Without it the walk goes over the index as it is at each leaf.
    cut: Option<Tree>,
    bytes: u64,
}

impl IndexWalk {
    /// A walk over the whole index.
    pub fn over_all() -> IndexWalk {
        IndexWalk { cursor: Cursor::new(&[0], None), cut: None, bytes: 0 }
    }

    /// A walk over what generations from `since` on have changed in a cut, and over some that is
    /// older.
    pub fn over_cut(cut: &Tree, since: Generation) -> IndexWalk {
        let cursor = Cursor::new(&[0], None).since(since);
        IndexWalk { cursor, cut: Some(cut.clone()), bytes: 0 }
    }

    /// False when the last leaf was read.
    pub fn goes_on(&self) -> bool {
        self.cursor.position().is_some()
    }

    /// The key below which all keys were met.
    pub fn passed(&self) -> Vec<u8> {
        self.cursor.position().map_or_else(|| vec![0xff; 16], <[u8]>::to_vec)
    }

    /// The size of the keys and values that were met.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The extents of the next leaf: none, perhaps, and dead ones too. If a node is not in memory,
    /// nothing changes, and the step can be tried again. A walk that met a malformed key is over.
    pub fn next_leaf(&mut self, index: &Index, buckets: &Buckets) -> Step<Vec<IndexKey>> {
        let (mut extents, mut bad) = (Vec::new(), false);
        let tree = self.cut.as_ref().unwrap_or(index.tree());
        self.cursor.next_leaf(tree, index.store(), |k, v| {
            self.bytes += (k.len() + v.len()) as u64;
            match IndexKey::decode(buckets, k, v) {
                Some(e) => extents.push(e),
                None => bad = true,
            }
        })?;
        if bad { Err(malformed().into()) } else { Ok(extents) }
    }
}
