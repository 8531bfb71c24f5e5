//! Origin of the superblocks on a cache's device: this open, one before it, or another process that
//! has the same cache open (see also the pool's `devices/superblock_origin.rs`).

use base::OpenId;
use format::cache::superblock::{CacheSuperblock, SLOTS};
use pool::LookSchedule;

/// The identity of a superblock among all that were ever written to a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    sequence: u64,
    incarnation: u32,
    /// The open of the pool in which it was written.
    opened: OpenId,
}

impl Mark {
    pub fn of(sb: &CacheSuperblock) -> Mark {
        let opened = sb.opens.opened;
        Mark { sequence: sb.sequence, incarnation: sb.incarnation, opened }
    }
}

/// The content of the slots when the cache was opened.
pub(crate) struct FoundSuperblocks {
    /// The superblock from which the open goes on.
    pub best: Mark,
    /// The superblocks that were found.
    pub marks: Vec<Mark>,
    /// Slots that could not be read.
    pub unread: Vec<u64>,
}

/// Knowledge of the superblocks on the device of an open cache.
pub(crate) struct Writers {
    uuid: [u8; 16],
    found: FoundSuperblocks,
    /// The current open of the pool.
    opened: OpenId,
    /// When all slots were looked at.
    pub looks: LookSchedule,
}

impl Writers {
    /// Knowledge after an open that found `found`, goes on from `best`, and is of the open `opened`
    /// of the pool.
    pub fn new(best: &CacheSuperblock, found: FoundSuperblocks, opened: OpenId) -> Writers {
        Writers { uuid: best.uuid, found, opened, looks: LookSchedule::default() }
    }

    /// True if neither this open nor one before it has written that; `newest` is the last sequence
    /// number that this one gave out.
    pub fn is_anothers(&self, sb: &CacheSuperblock, newest: u64) -> bool {
        let (mark, FoundSuperblocks { best, marks, unread }) = (Mark::of(sb), &self.found);
        let is_ours = mark.incarnation == self.incarnation() && mark.opened == self.opened;
        let is_own = is_ours && mark.sequence <= newest;
        let is_before = mark.incarnation <= best.incarnation;
        // The other one of the pair that was found is written again at times.
        let is_old = is_before && mark.sequence <= best.sequence | 1;
        let unseen = is_before && unread.contains(&(mark.sequence % SLOTS));
        sb.uuid != self.uuid || !(is_own || is_old || unseen || marks.contains(&mark))
    }

    /// The incarnation of this open.
    pub fn incarnation(&self) -> u32 {
        self.found.best.incarnation + 1
    }
}
