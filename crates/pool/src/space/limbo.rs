//! Limbo: blocks that commits have freed, and that reads may still be about.
//!
//! A read that looks up addresses takes a [`Pin`] in the same step. The blocks that a commit frees
//! wait with the pin of all reads that began before. They become free, in the order of commits,
//! when no read has that pin any more.

use std::collections::VecDeque;
use std::rc::Rc;

use super::Space;
use super::run::Run;

/// Reads in flight hold one of these, so that the blocks they read are not given to others.
pub(crate) type Pin = Rc<()>;

/// Freed blocks that wait for reads.
#[derive(Default)]
pub(super) struct Limbo {
    /// Held by the reads that began since the last commit.
    pin: Pin,
    waiting: VecDeque<(Pin, Vec<Run>)>,
}

#[cfg(test)]
impl Limbo {
    /// All runs that wait.
    pub fn runs(&self) -> impl Iterator<Item = Run> {
        self.waiting.iter().flat_map(|(_, runs)| runs.iter().copied())
    }
}

impl Space {
    /// To be held by a read of what is looked up now.
    pub fn pin(&self) -> Pin {
        self.limbo.pin.clone()
    }

    /// A commit is durable, and has freed `frees`.
    pub fn free_after_reads(&mut self, frees: Vec<Vec<Run>>) {
        for runs in frees {
            // They become free one after another, so the first one's pin holds them all. A commit
            // that frees nothing leaves the pin: the reads of now are waited for by the next one.
            let pin = std::mem::take(&mut self.limbo.pin);
            self.limbo.waiting.push_back((pin, runs));
        }
    }

    /// True if freed blocks wait for reads, or for [`Space::drain`].
    pub fn has_limbo(&self) -> bool {
        !self.limbo.waiting.is_empty()
    }

    /// Frees what no read is about any more, up to `max` runs of it; true if there may be more.
    pub fn drain(&mut self, max: usize) -> bool {
        for _ in 0..max {
            let Some((pin, runs)) = self.limbo.waiting.front_mut() else { return false };
            if Rc::strong_count(pin) > 1 {
                return false;
            }
            match runs.pop() {
                Some(run) => self.release(run),
                None => drop(self.limbo.waiting.pop_front()),
            }
        }
        true
    }

    /// Makes blocks allocatable to which nothing refers: freed ones, or such as were taken in vain.
    pub fn release(&mut self, run: Run) {
        let (id, block) = self.geometry.split(run.addr);
        let g = self.group_mut(id);
        let freed = match &mut g.maps {
            Some(m) => m.busy.assign(block as usize, run.len as usize, false) as u32,
            None => unreachable!("{id:?} has blocks in limbo: its maps stay loaded"),
        };
        assert_eq!(freed, run.len, "blocks of {run:?} were free already");
        let busy = g.busy - freed;
        if busy == 0 {
            self.maybe_empty.insert(id);
        }
        self.set_busy(id, busy);
    }
}
