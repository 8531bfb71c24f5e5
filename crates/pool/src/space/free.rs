//! The release of freed blocks: when they become free again.
//!
//! A write or a discard frees blocks in the open transaction. When the commit of that is durable
//! they wait in [limbo](super::limbo) for the reads that may still use them. Then they are
//! *drained*: they are not busy any more, and may be allocated again.

use super::Space;
use super::held::Era;
use super::limbo::{Pin, Popped};
use super::run::Run;

impl Space {
    /// A pin of all blocks, to be held by a read of addresses that are looked up now.
    pub fn pin(&self) -> Pin {
        self.limbo.pin()
    }

    /// A pin of these blocks alone, for background work and for nodes. They were looked up with the
    /// other pin, whose place it takes. A pin for a long time has to be one of these: from a pin of
    /// all blocks on nothing that is freed is used again, and where room is short clients wait for
    /// that.
    pub fn pin_blocks(&self, runs: impl IntoIterator<Item = Run>, looked_up: &Pin) -> Pin {
        self.limbo.pin_blocks(runs, looked_up)
    }

    /// A pin of no blocks, to be held by a write of blocks that were taken for it.
    pub fn pin_none(&self) -> Pin {
        self.limbo.pin_none()
    }

    /// The number of runs of limbo that have become free so far.
    pub fn freed_runs(&self) -> u64 {
        self.limbo.freed()
    }

    /// The era of the reads and direct writes that have begun by now.
    pub fn reads_until_now(&mut self) -> Era {
        self.limbo.reads_until_now()
    }

    /// The last era for whose reads of all blocks any wait; `None` where none wait.
    pub fn newest_in_limbo(&self) -> Option<Era> {
        self.limbo.newest()
    }

    /// True if reads of all blocks until then have ended, and the blocks that waited for them were
    /// [drained](Space::drain), but for those that are pinned themselves.
    pub fn has_freed(&self, era: Era) -> bool {
        self.limbo.has_freed(era)
    }

    /// True if freed blocks wait for pins of just them.
    pub fn any_pinned(&self) -> bool {
        self.limbo.holds_any()
    }

    /// True if the reads and direct writes until then have ended, and [`Space::drain`] has found
    /// that.
    pub fn has_passed(&self, era: Era) -> bool {
        self.limbo.has_passed(era)
    }

    /// Waits until reads have ended, so that [`Space::drain`] may free more.
    pub fn reads_ended(&self) -> impl Future<Output = ()> + use<> {
        self.limbo.reads_ended()
    }

    /// A commit is durable, and has freed `frees`.
    pub fn free_after_reads(&mut self, frees: Vec<Vec<Run>>) {
        self.limbo.push(frees);
    }

    /// True if freed blocks wait for reads, or for [`Space::drain`].
    pub fn has_limbo(&self) -> bool {
        !self.limbo.is_empty()
    }

    /// Looks at up to `max` runs of limbo, and frees those that no read uses any more. Returns true
    /// if there may be more.
    pub fn drain(&mut self, max: usize) -> bool {
        for _ in 0..max {
            match self.limbo.pop() {
                Some(Popped::Free(run)) => self.release(run),
                Some(Popped::Pinned) => {}
                None => return false,
            }
        }
        true
    }

    /// Makes blocks free that nothing refers to: they were freed, or were taken and not used.
    pub fn release(&mut self, run: Run) {
        self.fetched.forget(run);
        let (id, block) = self.geometry.split(run.addr);
        let g = self.group_mut(id);
        let freed = match &mut g.maps {
            Some(m) => m.busy.assign(block as usize, run.len as usize, false) as u32,
            None => unreachable!("{id:?} has blocks in limbo: its maps stay loaded"),
        };
        assert_eq!(freed, run.len, "blocks of {run:?} were free already");
        let busy = g.record.busy() - freed;
        if busy == 0 {
            self.maybe_empty.insert(id);
        }
        self.set_busy(id, busy);
    }
}
