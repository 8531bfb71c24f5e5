//! The plan of a repair, from what a check of a pool has found.
//!
//! A plan holds places and checksums, and no content: the copies are read again when they are
//! written. It is bounded, so a repair may need several checks where very much is bad.

use base::{PoolAddr, VolumeId};
use pool::offline_repair::{BadCopy, Content, Spot};

use crate::report::Subject;

/// Bad copies that are written again after one check: 1 GiB, with 25 MiB of memory for the plan.
pub(crate) const MOST: usize = 1 << 18;

/// The repairs that can be done.
#[derive(Default)]
pub(crate) struct PoolRepairPlan {
    most: usize,
    /// Bad copies that have a good one.
    pub copies: Vec<(Subject, BadCopy)>,
    /// Devices with bad superblock slots, once for each of these.
    pub slots: Vec<String>,
    /// Blocks that are allocated and that nothing refers to.
    pub leaked: Vec<(PoolAddr, u32)>,
    /// Deleted volumes of which a part of the mapping is lost: a server cannot free what they hold.
    pub dropped: Vec<VolumeId>,
    /// Why nothing may be written.
    pub unsound: Option<String>,
}

impl PoolRepairPlan {
    /// Keeps up to `most` bad copies.
    pub fn new(most: usize) -> PoolRepairPlan {
        PoolRepairPlan { most, ..PoolRepairPlan::default() }
    }

    /// True if somebody wants to know.
    pub fn is_wanted(&self) -> bool {
        self.most > 0
    }

    /// A copy is bad, and another one is good.
    pub fn copy(&mut self, subject: Subject, bad: Spot, good: Spot, content: Content) {
        if self.copies.len() < self.most {
            self.copies.push((subject, BadCopy { bad, good, content }));
        }
    }

    /// A superblock slot of a device is bad.
    pub fn slot(&mut self, path: &str) {
        if self.is_wanted() {
            self.slots.push(path.to_owned());
        }
    }
}
