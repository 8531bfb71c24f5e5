//! Allocation: next fit in one open group for each kind. Groups are formed from chunks as they are
//! needed.

use base::GroupId;
use format::page::{Chunk, GroupKind};

use super::Space;
use super::block_run::Run;
use super::limbo::PopOutcome;
use super::room::Demand;
use super::supply::Cursor;
use crate::devices::Devices;

/// The most runs of limbo that an allocation frees in passing, and when its group is full.
const DRAIN: usize = 32;
const DRAIN_MORE: usize = 64 * DRAIN;

/// The outcome of an allocation.
pub(crate) enum Alloc {
    /// The blocks of this run are the caller's.
    Got(Run),
    /// The maps of this group have to be loaded first.
    NeedMaps(GroupId),
    /// From now on the write-back pass allocates from this group.
    Joined(GroupId),
    /// There is no free block.
    Full,
}

impl Space {
    /// Takes up to `want` contiguous blocks of `kind`. A data group is only formed where metadata
    /// finds room for what it has to afterwards.
    pub fn alloc(
        &mut self,
        devices: &mut Devices,
        kind: GroupKind,
        want: u32,
        demand: &Demand,
    ) -> Alloc {
        self.drain(DRAIN);
        let cursor = Cursor::of(kind);
        loop {
            if let Some(found) = self.take_at_cursor(cursor, want) {
                return found;
            }
            self.drain(DRAIN_MORE);
            let emptiest = self.supply.emptiest(kind, |id| !self.takers.is_of_pass(id));
            let next = match emptiest.filter(|&id| self.is_roomy(id)) {
                Some(id) => Some(id),
                None if kind == GroupKind::Metadata
                    || self.room().data_may_form(devices, demand) =>
                {
                    self.form_group(devices, kind).or(emptiest)
                }
                None => emptiest,
            };
            let Some(id) = next else { return Alloc::Full };
            self.supply.set_cursor(cursor, Some((id, 0)));
        }
    }

    /// As [`Space::alloc`], for data of the write-back pass. The groups are those that the pass
    /// has, or those where no direct write is under way and whose checksum tree is `quiet`. A new
    /// one is formed only where metadata `keeps` its share, if it is to.
    pub fn alloc_for_pass(
        &mut self,
        devices: &mut Devices,
        want: u32,
        keeps: bool,
        quiet: impl Fn(GroupId) -> bool,
    ) -> Alloc {
        self.drain(2 * DRAIN);
        loop {
            if let Some(found) = self.take_at_cursor(Cursor::Pass, want) {
                return found;
            }
            let takers = &self.takers;
            let best = self.supply.emptiest(GroupKind::Data, |id| {
                takers.is_of_pass(id) || takers.is_settled(id) && quiet(id)
            });
            let next = match best.filter(|&id| self.is_roomy(id)) {
                Some(id) => Some(id),
                None if !keeps || self.room().formable_for_data(devices) > 0 => {
                    self.form_group(devices, GroupKind::Data).or(best)
                }
                None => best,
            };
            let Some(id) = next else { return Alloc::Full };
            self.supply.leave(id);
            self.supply.set_cursor(Cursor::Pass, Some((id, 0)));
            if self.takers.join_pass(id) {
                return Alloc::Joined(id);
            }
        }
    }

    fn take_at_cursor(&mut self, cursor: Cursor, want: u32) -> Option<Alloc> {
        let (id, at) = self.supply.cursor(cursor)?;
        if !self.bitmaps.has(id) {
            return Some(Alloc::NeedMaps(id));
        }
        let Some(run) = self.bitmaps.take(id, at, want) else {
            self.supply.set_cursor(cursor, None);
            return None;
        };
        let next = self.geometry.split(run.addr).1 + run.len;
        self.supply.take(id, run.len);
        self.supply.set_cursor(cursor, Some((id, next)));
        Some(Alloc::Got(run))
    }

    /// A group that is mostly full scatters what is written: a new one is better.
    fn is_roomy(&self, id: GroupId) -> bool {
        self.supply.free_of(id) >= self.geometry.group_blocks / 4
    }

    /// Takes an unused group into use.
    fn form_group(&mut self, devices: &mut Devices, kind: GroupKind) -> Option<GroupId> {
        let id = self.groups.first_unused()?;
        let chunks = devices.take_chunks(usize::from(self.groups.copies()))?;
        self.enter_group(id, kind, chunks);
        Some(id)
    }

    /// Sees to it that the group of a run that was written before a crash has these chunks, and
    /// holds data: where it was formed without a commit it is formed again. False: the pool has
    /// something else there by now.
    pub fn form_again(&mut self, devices: &mut Devices, run: Run, chunks: &[Chunk]) -> bool {
        let id = self.geometry.split(run.addr).0;
        if !self.groups.contains(id) || !self.is_within_group(run) {
            return false;
        }
        let same = |a: &Chunk, b: &Chunk| (a.device, a.chunk) == (b.device, b.chunk);
        let (kind, had) = (self.groups.kind(id), self.groups.chunks(id));
        if kind != GroupKind::Free {
            let chunks_are =
                had.len() == chunks.len() && had.iter().zip(chunks).all(|(a, b)| same(a, b));
            return chunks_are && kind == GroupKind::Data;
        }
        let all_free =
            chunks.len() == usize::from(self.groups.copies()) && devices.take_these_chunks(chunks);
        if all_free {
            self.enter_group(id, GroupKind::Data, chunks.to_vec());
        }
        all_free
    }

    /// Takes exactly these blocks, of which the group's maps are loaded. False: one of them is not
    /// free.
    pub fn take_exactly(&mut self, run: Run) -> bool {
        let took = self.bitmaps.take_exactly(run);
        if took {
            self.supply.take(self.geometry.split(run.addr).0, run.len);
        }
        took
    }

    fn is_within_group(&self, run: Run) -> bool {
        let offset = self.geometry.split(run.addr).1;
        run.len > 0 && u64::from(offset) + u64::from(run.len) <= self.geometry.group_blocks.into()
    }

    fn enter_group(&mut self, id: GroupId, kind: GroupKind, chunks: Vec<Chunk>) {
        self.groups.take_into_use(id, kind, chunks);
        self.bitmaps.enter_empty(id);
        self.supply.enter(id, kind, 0);
    }

    /// Gives up groups in which nothing is allocated, neither now nor by the last commit, looking
    /// at up to `max` that may have become empty.
    pub fn dissolve_empty(&mut self, devices: &mut Devices, max: usize) {
        for _ in 0..max {
            let Some(id) = self.supply.pop_maybe_empty() else { return };
            let used = self.supply.busy_of(id) > 0 || self.groups.used(id) > 0;
            // The write-back pass looks at a group that it has again when it ends, and so does a
            // move.
            let rests = !self.supply.is_left_alone(id) && !self.takers.is_of_pass(id);
            if self.groups.kind(id) != GroupKind::Free && !used && rests {
                self.supply.remove(id);
                self.bitmaps.drop_empty(id);
                devices.give_chunks(self.groups.give_up(id));
            }
        }
    }

    /// Looks at up to `max` runs of limbo, and frees those that no read uses any more. Returns true
    /// if there may be more.
    pub fn drain(&mut self, max: usize) -> bool {
        for _ in 0..max {
            match self.limbo.pop() {
                Some(PopOutcome::Free(run)) => self.release(run),
                Some(PopOutcome::Pinned) => {}
                None => return false,
            }
        }
        true
    }

    /// Makes blocks free that nothing refers to: they were freed, or were taken and not used.
    pub fn release(&mut self, run: Run) {
        self.fetched.forget(run);
        self.bitmaps.release(run);
        self.supply.give_back(self.geometry.split(run.addr).0, run.len);
    }
}

#[cfg(test)]
#[path = "alloc_tests.rs"]
mod tests;
