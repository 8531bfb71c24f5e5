//! The plan of a repair, from what a check of a cache has found.

use base::{Crc, EntrySeq, Lba, Sectors, VolumeId};
use cache::raw::Identity;
use format::cache::superblock::{CacheSuperblock, SLOTS};

use crate::report::Subject;

/// Bad copies that are written again after one check.
pub(crate) const MOST: usize = 1 << 18;

/// A bad copy of something that has a good one.
#[derive(Clone, Debug)]
pub(crate) enum Fix {
    /// A slot that holds the other superblock of a pair: both say the same.
    Superblock(Box<CacheSuperblock>),
    /// A copy of an entry of the journal; the other one is good.
    Entry { bad: u64, good: u64, blocks: u32, of: Identity, sequence: EntrySeq },
    /// A copy of a node of the index; the other one is good.
    Node { bad: u64, good: u64, crc: Crc },
    /// A clean block, or the sectors of one, which the pool has too.
    Data { volume: VolumeId, lba: Lba, offset: u64, crc: Crc, sectors: Sectors },
}

impl Fix {
    /// Returns the kind of structure.
    pub fn kind(&self) -> Subject {
        match self {
            Fix::Superblock(_) => Subject::Superblock,
            Fix::Entry { .. } => Subject::Journal,
            Fix::Node { .. } => Subject::Node,
            Fix::Data { .. } => Subject::Data,
        }
    }

    /// Returns the offset of the bad copy on the device, in bytes.
    pub fn offset(&self) -> u64 {
        match self {
            Fix::Superblock(sb) => CacheSuperblock::offset_of(sb.sequence),
            Fix::Entry { bad, .. } | Fix::Node { bad, .. } => *bad,
            Fix::Data { offset, .. } => *offset,
        }
    }
}

/// The repairs that can be done.
#[derive(Default)]
pub(crate) struct CacheRepairPlan {
    most: usize,
    /// Bad copies that have a good one.
    pub fixes: Vec<Fix>,
    /// Why nothing may be written.
    pub unsound: Option<String>,
}

impl CacheRepairPlan {
    /// Keeps up to `most` bad copies.
    pub fn new(most: usize) -> CacheRepairPlan {
        CacheRepairPlan { most, ..CacheRepairPlan::default() }
    }

    /// A copy is bad, and there is a good one.
    pub fn add(&mut self, fix: Fix) {
        if self.fixes.len() < self.most {
            self.fixes.push(fix);
        }
    }

    /// A slot is bad that a superblock before `newest` was in. The one of its pair, if it is good,
    /// says what was there.
    pub fn slot(&mut self, slot: u64, newest: u64, whole: &[CacheSuperblock]) {
        let Some(sequence) = (0..SLOTS)
            .find_map(|n| newest.checked_sub(n).filter(|sequence| sequence % SLOTS == slot))
        else {
            return;
        };
        if let Some(twin) = whole.iter().find(|sb| sb.sequence == sequence ^ 1) {
            let sb = CacheSuperblock { sequence, ..twin.clone() };
            self.add(Fix::Superblock(Box::new(sb)));
        }
    }
}
