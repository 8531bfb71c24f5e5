//! Memory of the host that outlives the process: the seam to it.
//!
//! A process that dies leaves such memory as it was at that moment; a loss of power takes it. In
//! production it is a mapped file on a file system in memory, in the simulator a part of the
//! simulated host. Stores are made in the order in which they were asked for, as far as the next
//! process can tell: a process dies between two instructions.

use std::rc::Rc;

use crate::{IoError, OpenId};

/// The memory of one owner.
pub trait HostMemory {
    /// Bytes that may be written. The rest of the memory is not backed by anything yet.
    fn backed(&self) -> usize;

    /// Backs at least `bytes` bytes. Error: the host has no memory left for this.
    fn back(&mut self, bytes: usize) -> Result<(), IoError>;

    /// Stores bytes from `at` on, within what is backed.
    fn write(&mut self, at: usize, bytes: &[u8]);

    /// Stores a number at `at`, a multiple of 8, behind all that was written before.
    fn publish(&mut self, at: usize, value: u64);
}

/// Which process the memory of an owner is of. A copy of the owner counts on with the same numbers,
/// and has drawn another name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostMemoryId {
    /// Counts the opens of the owner.
    pub incarnation: u32,
    /// The open of the pool.
    pub open: OpenId,
}

/// A place where the host keeps such memory. Memory that is found was left by a process of this
/// boot of the host. An owner has several of them.
pub trait HostPlace {
    /// The bytes that an earlier process has left. `None`: there are none.
    fn find(&self, owner: [u8; 16], id: HostMemoryId) -> Result<Option<Vec<u8>>, IoError>;

    /// New memory, in place of what this process has made for the same. Nothing of it is backed
    /// yet.
    fn create(&self, owner: [u8; 16], id: HostMemoryId) -> Result<Box<dyn HostMemory>, IoError>;

    /// Gives up all that an owner has but this one.
    fn remove_others(&self, owner: [u8; 16], keep: Option<HostMemoryId>);

    /// False: nothing new is to be kept here.
    fn keeps(&self) -> bool {
        true
    }

    /// The name of the place, for the user.
    fn name(&self) -> String;
}

/// A place that several owners share.
pub type SharedPlace = Rc<dyn HostPlace>;

/// Bytes of the largest memory.
pub const HOST_MEMORY_MAX: usize = 64 << 20;
