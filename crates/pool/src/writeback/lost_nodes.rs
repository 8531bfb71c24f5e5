//! Nodes that could not be read during a pass, and why.
//!
//! Each is asked for once in a pass: a bad sector may take a disk seconds, and a volume may have
//! thousands of parts below one node. What is not readable now may be in the next pass.
//!
//! A node of a volume's mapping concerns that volume alone: what the pass was to change there is
//! [unreachable](base::ErrorKind::Unreachable), and everything else goes on.

use std::cell::RefCell;
use std::rc::Rc;

use base::{ErrorKind, PoolAddr, StorageError, VolumeId};
use btree::Fault;
use format::tree::volume_of_tree;
use rustc_hash::FxHashMap;

use crate::core::Core;
use crate::transfer::EntryError;

/// See the [module](self). Clones are the same.
#[derive(Clone, Default)]
pub(super) struct LostNodes(Rc<RefCell<FxHashMap<PoolAddr, StorageError>>>);

impl LostNodes {
    /// Why a node could not be read, if it was asked for.
    pub fn why(&self, fault: &Fault) -> Option<StorageError> {
        self.0.borrow().get(&fault.ptr.addr).cloned()
    }

    /// A node could not be read.
    pub fn note(&self, fault: &Fault, why: StorageError) {
        self.0.borrow_mut().insert(fault.ptr.addr, why);
    }
}

/// The error with which a change of `volume` fails that needs this node. The original error is kept
/// if the node is not of that volume's mapping. It is kept, too, while the pool is not in use, as
/// nothing goes on then.
pub(super) fn told(core: &Core, volume: VolumeId, failed: EntryError) -> StorageError {
    let EntryError { why, node } = failed;
    let of_mapping = node.is_some_and(|node| volume_of_tree(node.tree) == Some(volume));
    if !of_mapping || core.permit().is_err() {
        return why;
    }
    let name = core.volume_name(volume);
    let what = format!("the mapping of volume {name} cannot be read: {why}");
    StorageError::new(ErrorKind::Unreachable, what)
}
