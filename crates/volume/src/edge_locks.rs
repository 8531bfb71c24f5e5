//! Blocks that are written in part: their locks, and what is known of them from one write to the
//! next.
//!
//! Of a stream of requests that begin and end inside of blocks, each shares a block with the next
//! one. All of them are there at once, in line for the lock on that block; so what the first has
//! made of the block is handed to the next, which need not read it. It is kept only while somebody
//! is in that line, and forgotten when the block is changed in any other way.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use cache::BlockPart;

use crate::range_locks::{RangeGuard, RangeLocks};

#[derive(Default)]
struct Edge {
    /// Those that hold the lock on the block, or wait for it, to write a part of it.
    users: u32,
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

/// A place in the line for one block, to write a part of it.
pub(crate) struct EdgeGuard {
    locks: Locks,
    block: u64,
    lock: RangeGuard,
}

impl Locks {
    /// Waits for a lock on blocks that are to be changed as a whole.
    pub async fn lock(&self, range: Range<u64>) -> RangeGuard {
        self.granted(self.ranges.queue(range.clone()), range).await
    }

    /// Waits until no other task changes the volume's size, and for a lock on all blocks from
    /// `first` on, which is looked up only then: a shrink that comes before moves the end that this
    /// is about.
    pub async fn lock_for_resize(&self, first: impl FnOnce() -> u64) -> (RangeGuard, RangeGuard) {
        let alone = self.size.lock(0..1).await;
        (self.lock(first()..u64::MAX).await, alone)
    }

    /// Takes a place in the line for blocks that are to be changed as a whole; what is returned
    /// waits for the lock.
    pub fn queue(&self, range: Range<u64>) -> impl Future<Output = RangeGuard> + use<> {
        let (locks, guard) = (self.clone(), self.ranges.queue(range.clone()));
        async move { locks.granted(guard, range).await }
    }

    async fn granted(&self, guard: RangeGuard, range: Range<u64>) -> RangeGuard {
        guard.granted().await;
        self.edges.borrow_mut().range_mut(range).for_each(|(_, edge)| edge.known = None);
        guard
    }

    /// Takes a place in the line for a block of which a part is to be written.
    pub fn queue_edge(&self, block: u64) -> EdgeGuard {
        self.edges.borrow_mut().entry(block).or_default().users += 1;
        EdgeGuard { locks: self.clone(), block, lock: self.ranges.queue(block..block + 1) }
    }
}

impl EdgeGuard {
    /// Waits for the lock; returns what the write before has left.
    pub async fn granted(&self) -> Option<BlockPart> {
        self.lock.granted().await;
        self.locks.edges.borrow_mut().get_mut(&self.block)?.known.take()
    }

    /// Leaves what is known now to the next one.
    pub fn leave(&self, known: BlockPart) {
        if let Some(edge) =
            self.locks.edges.borrow_mut().get_mut(&self.block).filter(|edge| edge.users > 1)
        {
            edge.known = Some(known);
        }
    }
}

impl Drop for EdgeGuard {
    fn drop(&mut self) {
        let mut edges = self.locks.edges.borrow_mut();
        if let Some(edge) = edges.get_mut(&self.block) {
            edge.users -= 1;
            if edge.users == 0 {
                edges.remove(&self.block);
            }
        }
    }
}
