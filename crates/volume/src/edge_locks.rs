//! Blocks that are written in part: their locks, what waits to be written together, and what is
//! known of a block from one write to the next.
//!
//! Consecutive unaligned requests share an edge block; many writes of a database's log share one.
//! All of them are there at once. If each waited until the one before has ended, the last would
//! wait for all of them. So those that come while an earlier write of the block is under way are a
//! *group*: they are merged, and written as one. No request waits for more than one write of the
//! block before its own.
//!
//! The content that a group has made of the block is handed to the next, which need not read it. It
//! is kept only while somebody is in line for the block, and forgotten when the block is changed in
//! any other way.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use base::Result;
use cache::{BlockPart, Patch};
use rt::sync::{OneShot, OneShotSender, oneshot};

use crate::range_locks::{RangeGuard, RangeLocks};

/// A part of a block that is to be written, and who is told how that ended.
type Part = (Patch, OneShotSender<Result<()>>);

#[derive(Default)]
struct Edge {
    /// Groups that hold the lock on the block, or wait for it.
    groups: u32,
    /// The parts of the last of them in line, if more may join them.
    open: Option<Rc<RefCell<Vec<Part>>>>,
    known: Option<BlockPart>,
}

/// The locks of one volume's blocks; clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Locks {
    ranges: RangeLocks,
    /// One lock: its holder changes the size.
    size: RangeLocks,
    edges: Rc<RefCell<BTreeMap<u64, Edge>>>,
}

/// Parts of one block that are written together; their place in the line for it.
pub(crate) struct EdgeGroup {
    locks: Locks,
    block: u64,
    lock: RangeGuard,
    parts: Rc<RefCell<Vec<Part>>>,
}

impl Locks {
    /// Waits for a lock on blocks that are to be changed as a whole.
    pub async fn lock(&self, range: Range<u64>) -> RangeGuard {
        self.queue(range).await
    }

    /// Waits until no other task changes the volume's size, and for a lock on all blocks from
    /// `first` on, which is looked up only then: a shrink that comes before moves the end that this
    /// is about.
    pub async fn lock_for_resize(&self, first: impl FnOnce() -> u64) -> (RangeGuard, RangeGuard) {
        let alone = self.size.lock(0..1).await;
        (self.lock(first()..u64::MAX).await, alone)
    }

    /// The same at once, if no other task changes the size, or has any of these blocks.
    pub fn try_lock_for_resize(&self, first: u64) -> Option<(RangeGuard, RangeGuard)> {
        let alone = self.size.try_lock(0..1)?;
        let guard = self.ranges.try_lock(first..u64::MAX)?;
        self.edges.borrow_mut().range_mut(first..).for_each(|(_, edge)| edge.known = None);
        Some((guard, alone))
    }

    /// Takes a place in the line for blocks that are to be changed as a whole; what is returned
    /// waits for the lock.
    pub fn queue(&self, range: Range<u64>) -> impl Future<Output = RangeGuard> + use<> {
        let (locks, guard) = (self.clone(), self.ranges.queue(range.clone()));
        // Parts that come later are behind this one: they join no earlier group.
        self.edges.borrow_mut().range_mut(range.clone()).for_each(|(_, edge)| edge.open = None);
        async move {
            guard.granted().await;
            locks.edges.borrow_mut().range_mut(range).for_each(|(_, edge)| edge.known = None);
            guard
        }
    }

    /// Takes a place in the line for a block of which a part is to be written. What is returned is
    /// how that ends, and the group if this is the first part of one: the caller writes it.
    pub fn queue_edge(&self, block: u64, patch: Patch) -> (OneShot<Result<()>>, Option<EdgeGroup>) {
        let (to, written) = oneshot();
        let mut edges = self.edges.borrow_mut();
        let edge = edges.entry(block).or_default();
        if let Some(open) = &edge.open {
            open.borrow_mut().push((patch, to));
            return (written, None);
        }
        let parts = Rc::new(RefCell::new(vec![(patch, to)]));
        edge.open = Some(parts.clone());
        edge.groups += 1;
        let lock = self.ranges.queue(block..block + 1);
        (written, Some(EdgeGroup { locks: self.clone(), block, lock, parts }))
    }
}

impl EdgeGroup {
    /// Waits for the lock.
    pub async fn granted(&self) {
        self.lock.granted().await;
    }

    /// The block that it is about.
    pub fn block(&self) -> u64 {
        self.block
    }

    /// All its parts, in the order in which they came. What comes later is of the next group.
    pub fn close(&self) -> Vec<Part> {
        if let Some(edge) = self.locks.edges.borrow_mut().get_mut(&self.block) {
            edge.open.take_if(|open| Rc::ptr_eq(open, &self.parts));
        }
        self.parts.take()
    }

    /// Takes the part of the block that the group before has left.
    pub fn known(&self) -> Option<BlockPart> {
        self.locks.edges.borrow_mut().get_mut(&self.block)?.known.take()
    }

    /// Leaves the part of the block that is known now to the next group.
    pub fn leave(&self, known: BlockPart) {
        if let Some(edge) =
            self.locks.edges.borrow_mut().get_mut(&self.block).filter(|edge| edge.groups > 1)
        {
            edge.known = Some(known);
        }
    }
}

impl Drop for EdgeGroup {
    fn drop(&mut self) {
        self.close();
        let mut edges = self.locks.edges.borrow_mut();
        if let Some(edge) = edges.get_mut(&self.block) {
            edge.groups -= 1;
            if edge.groups == 0 {
                edges.remove(&self.block);
            }
        }
    }
}
