//! A tree of the forest in its versions: the live one, the one that a commit is writing, and the
//! private clone of a write-back pass.

use base::Generation;
use btree::Tree;
use format::node::RootPtr;

use crate::txn::{Generations, Kind};

/// A tree that is edited while an older state of it is being written.
pub(crate) struct LiveTree {
    tree: Tree,
    edited: Generation,
    frozen: Option<Tree>,
    pass: Option<Tree>,
}

impl LiveTree {
    pub fn open(id: u64, root: Option<RootPtr>) -> LiveTree {
        LiveTree::frozen(Tree::open(id, root))
    }

    /// A tree in memory that no transaction edits.
    pub fn frozen(tree: Tree) -> LiveTree {
        LiveTree { tree, edited: Generation(0), frozen: None, pass: None }
    }

    /// The same tree, as it stands on the devices.
    pub fn replace(&mut self, tree: Tree) {
        self.tree = tree;
    }

    /// The version that readers see.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The version that a transaction of this kind sees; `None`: the tree is not in the pass.
    pub fn of(&self, kind: Kind) -> Option<&Tree> {
        match kind {
            Kind::Direct => Some(&self.tree),
            Kind::Pass => self.pass.as_ref(),
        }
    }

    /// The same version, to be edited.
    pub fn of_mut(&mut self, kind: Kind) -> Option<&mut Tree> {
        match kind {
            Kind::Direct => Some(&mut self.tree),
            Kind::Pass => self.pass.as_mut(),
        }
    }

    /// The generation of the last direct edit.
    pub fn edited(&self) -> Generation {
        self.edited
    }

    /// To be called before every direct edit: keeps the state that the running commit froze. True
    /// if it did.
    pub fn begin_edit(&mut self, g: Generations) -> bool {
        let keep = self.edited != g.open && Some(self.edited) == g.committing;
        if keep {
            self.frozen = Some(self.tree.clone());
        }
        self.edited = g.open;
        keep
    }

    /// The tree as it was when `generation` was frozen; it was edited in it.
    pub fn take_frozen(&mut self, generation: Generation) -> Tree {
        let frozen = self.frozen.take();
        frozen.unwrap_or_else(|| {
            debug_assert!(self.edited <= generation);
            self.tree.clone()
        })
    }

    /// The frozen state was written, and is durable.
    pub fn settle(&mut self, written: &Tree) {
        self.frozen = None;
        self.tree.settle(written);
    }

    /// The pass gets its own version of it.
    pub fn join_pass(&mut self) {
        if self.pass.is_none() {
            self.pass = Some(self.tree.clone());
        }
    }

    /// True if the pass has its own version.
    pub fn is_in_pass(&self) -> bool {
        self.pass.is_some()
    }

    /// The nodes of the pass's version have their addresses.
    pub fn settle_pass(&mut self, written: &Tree) {
        if let Some(tree) = &mut self.pass {
            tree.settle(written);
        }
    }

    /// The pass's version takes the place of the live one, for which an edit has begun; false if
    /// there is none.
    pub fn publish_pass(&mut self) -> bool {
        let pass = self.pass.take();
        let any = pass.is_some();
        if let Some(tree) = pass {
            self.tree = tree;
        }
        any
    }

    /// The pass is given up. Returns its version.
    pub fn leave_pass(&mut self) -> Option<Tree> {
        self.pass.take()
    }
}
