//! The list of lost blocks: blocks of volumes that have no good copy.
//!
//! A read, a move or a scrub enters them. They leave the list when they are written again or
//! discarded, or when a scrub finds them good. The list stands in each superblock.

use std::ops::Range;

use format::superblock::scrub::{LostExtent, MAX_LOST};

use super::Scrub;
use crate::space::Run;

/// The blocks of an extent that are in a run, by their numbers in it.
pub(crate) fn overlap(e: &LostExtent, run: &Run) -> Option<Range<usize>> {
    let end = (e.addr.0 + u64::from(e.blocks)).min(run.addr.0 + u64::from(run.len));
    let from = run.addr.0.max(e.addr.0);
    (from < end).then(|| (from - e.addr.0) as usize..(end - e.addr.0) as usize)
}

impl Scrub {
    /// The scrub counts a block without a good copy. `extent`: the block, if it is one of a volume;
    /// `None`: what it says where others are, so a part of the pool is passed over.
    pub fn lost(&mut self, extent: Option<LostExtent>) {
        self.record.lost += 1;
        match extent {
            Some(e) => _ = self.enter_lost(e),
            None => self.record.passed = self.record.passed.saturating_add(1),
        }
    }

    /// More is lost than there is room for. Returns true if that was not known.
    fn note_more_lost(&mut self) -> bool {
        let r = &mut self.record;
        let known = r.more_lost && r.more_lost_now;
        (r.more_lost, r.more_lost_now) = (true, true);
        !known
    }

    /// Enters a block of a volume that has no good copy, or that there is one more where the list
    /// has no room. Returns true if that was not known.
    pub fn enter_lost(&mut self, e: LostExtent) -> bool {
        let all = &mut self.record.extents;
        let has =
            |l: &LostExtent| l.addr.0 <= e.addr.0 && e.addr.0 < l.addr.0 + u64::from(l.blocks);
        if all.iter().any(|l| has(l) && l.volume == e.volume) {
            return false;
        }
        let follows = |l: &LostExtent| {
            l.volume == e.volume
                && l.addr.0 + u64::from(l.blocks) == e.addr.0
                && l.lba.0 + u64::from(l.blocks) == e.lba.0
        };
        if let Some(l) = all.iter_mut().find(|l| follows(l)) {
            l.blocks += 1;
        } else if all.len() < MAX_LOST {
            all.push(e);
        } else {
            return self.note_more_lost();
        }
        true
    }

    /// Forgets the lost blocks in these runs, which are free. Returns true if there were any.
    pub fn freed(&mut self, runs: &[Run]) -> bool {
        let mut any = false;
        for e in self.record.extents.clone() {
            let mut keep = Vec::new();
            for blocks in runs.iter().filter_map(|run| overlap(&e, run)) {
                keep.resize(e.blocks as usize, true);
                keep[blocks].fill(false);
            }
            any |= !keep.is_empty() && self.retain(&e, &keep);
        }
        any
    }

    /// Extents that are lost.
    pub fn extents(&self) -> &[LostExtent] {
        &self.record.extents
    }

    /// Keeps of a lost extent only the blocks for which `keep` is true. Returns true if some are
    /// not lost any more.
    pub fn retain(&mut self, which: &LostExtent, keep: &[bool]) -> bool {
        let Some(at) = self.record.extents.iter().position(|l| l == which) else { return false };
        if keep.iter().all(|k| *k) {
            return false;
        }
        self.record.extents.remove(at);
        let mut from = 0;
        for part in keep.chunk_by(|a, b| a == b) {
            if part[0] && self.record.extents.len() >= MAX_LOST {
                self.note_more_lost();
            } else if part[0] {
                self.record.extents.push(LostExtent {
                    addr: which.addr.plus(from as u64),
                    lba: which.lba.plus(from as u64),
                    blocks: part.len() as u32,
                    volume: which.volume,
                });
            }
            from += part.len();
        }
        true
    }
}
