//! Allocation: next fit in one open group for each kind. Groups are formed from chunks as they are
//! needed.

use base::{Bitmap, GroupId};
use format::page::{Chunk, GroupKind, GroupRecord, MAX_BITMAP_PAGES};

use super::maps::Maps;
use super::{Demand, Run, Space, kind_index};
use crate::devices::Devices;

/// The most runs of limbo that an allocation frees in passing, and when its group is full.
const DRAIN: usize = 32;
const DRAIN_MORE: usize = 64 * DRAIN;
/// The cursor of the write-back pass.
const PASS: usize = 2;

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
        let k = kind_index(kind);
        loop {
            if let Some(found) = self.take_at_cursor(k, want) {
                return found;
            }
            self.drain(DRAIN_MORE);
            let emptiest = self.emptiest(k, |space, id| !space.group(id).of_pass);
            let next = match emptiest.filter(|&id| self.is_roomy(id)) {
                Some(id) => Some(id),
                None if kind == GroupKind::Metadata || self.data_may_form(devices, demand) => {
                    self.form_group(devices, kind).or(emptiest)
                }
                None => emptiest,
            };
            let Some(id) = next else { return Alloc::Full };
            self.cursors[k] = Some((id, 0));
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
            if let Some(found) = self.take_at_cursor(PASS, want) {
                return found;
            }
            let best = self.emptiest(kind_index(GroupKind::Data), |space, id| {
                let g = space.group(id);
                g.of_pass || g.writing == 0 && quiet(id)
            });
            let next = match best.filter(|&id| self.is_roomy(id)) {
                Some(id) => Some(id),
                None if !keeps || self.formable_for_data(devices) > 0 => {
                    self.form_group(devices, GroupKind::Data).or(best)
                }
                None => best,
            };
            let Some(id) = next else { return Alloc::Full };
            self.leave(id);
            self.cursors[PASS] = Some((id, 0));
            if !std::mem::replace(&mut self.group_mut(id).of_pass, true) {
                return Alloc::Joined(id);
            }
        }
    }

    /// A part of the group that the write-back pass takes blocks from next, in which about `blocks`
    /// free ones should be; `None`: it has not begun with any.
    pub fn next_of_pass(&self, blocks: u64) -> Option<(GroupId, (u32, u32))> {
        let (id, at) = self.cursors[PASS]?;
        let all = u64::from(self.geometry.group_blocks);
        let span = blocks.saturating_mul(all) / u64::from(self.free_blocks(id)).max(1);
        // Free blocks are not spread evenly.
        let end = (u64::from(at) + span + span / 4).min(all);
        Some((id, (at, end as u32)))
    }

    /// Direct writes take no blocks until [`Space::let_direct_go`] was called as often: a task
    /// waits for what each of them would change again.
    pub fn hold_direct(&mut self) {
        self.direct_held += 1;
    }

    /// The end of a [`Space::hold_direct`].
    pub fn let_direct_go(&mut self) {
        self.direct_held -= 1;
        if self.direct_held == 0 {
            self.opened.notify();
        }
    }

    /// True while direct writes are to take no blocks, until [`Space::opened`].
    pub fn holds_direct(&self) -> bool {
        self.direct_held > 0
    }

    /// The write-back pass has ended.
    pub fn end_pass(&mut self) {
        self.cursors[PASS] = None;
    }

    fn take_at_cursor(&mut self, cursor: usize, want: u32) -> Option<Alloc> {
        let (id, at) = self.cursors[cursor]?;
        let Some(maps) = &mut self.groups[id.0 as usize].maps else {
            return Some(Alloc::NeedMaps(id));
        };
        let Some((start, len)) = maps.busy.find_free_run(at as usize, want as usize) else {
            self.cursors[cursor] = None;
            return None;
        };
        maps.busy.assign(start, len, true);
        let busy = self.group(id).record.busy() + len as u32;
        self.set_busy(id, busy);
        self.cursors[cursor] = Some((id, (start + len) as u32));
        Some(Alloc::Got(Run { addr: self.geometry.join(id, start as u32), len: len as u32 }))
    }

    /// The group of a kind with the most free blocks, roughly, of those that `usable` lets pass.
    fn emptiest(&self, k: usize, usable: impl Fn(&Space, GroupId) -> bool) -> Option<GroupId> {
        self.by_free[k].iter().rev().map(|&(_, id)| id).find(|&id| usable(self, id))
    }

    /// A group that is mostly full scatters what is written: a new one is better.
    fn is_roomy(&self, id: GroupId) -> bool {
        self.free_blocks(id) >= self.geometry.group_blocks / 4
    }

    /// Takes an unused group into use.
    fn form_group(&mut self, devices: &mut Devices, kind: GroupKind) -> Option<GroupId> {
        let id = *self.unused.first()?;
        let chunks = devices.take_chunks(usize::from(self.copies))?;
        self.enter_group(id, kind, chunks);
        Some(id)
    }

    /// Sees to it that the group of a run that was written before a crash has these chunks, and
    /// holds data: where it was formed without a commit it is formed again. False: the pool has
    /// something else there by now.
    pub fn form_again(&mut self, devices: &mut Devices, run: Run, chunks: &[Chunk]) -> bool {
        let id = self.geometry.split(run.addr).0;
        if !self.contains(id) || !self.is_within_group(run) {
            return false;
        }
        let same = |a: &Chunk, b: &Chunk| (a.device, a.chunk) == (b.device, b.chunk);
        let record = &self.group(id).record;
        if record.kind != GroupKind::Free {
            let chunks_are = record.chunks.len() == chunks.len()
                && record.chunks.iter().zip(chunks).all(|(a, b)| same(a, b));
            return chunks_are && record.kind == GroupKind::Data;
        }
        let all_free =
            chunks.len() == usize::from(self.copies) && devices.take_these_chunks(chunks);
        if all_free {
            self.enter_group(id, GroupKind::Data, chunks.to_vec());
        }
        all_free
    }

    /// Takes exactly these blocks, of which the group's maps are loaded. False: one of them is not
    /// free.
    pub fn take_exactly(&mut self, run: Run) -> bool {
        let (id, start) = self.geometry.split(run.addr);
        let Some(maps) = &mut self.groups[id.0 as usize].maps else { return false };
        let (start, len) = (start as usize, run.len as usize);
        if maps.busy.find_free_run(start, len) != Some((start, len)) {
            return false;
        }
        maps.busy.assign(start, len, true);
        let busy = self.group(id).record.busy() + run.len;
        self.set_busy(id, busy);
        true
    }

    fn is_within_group(&self, run: Run) -> bool {
        let offset = self.geometry.split(run.addr).1;
        run.len > 0 && u64::from(offset) + u64::from(run.len) <= self.geometry.group_blocks.into()
    }

    fn enter_group(&mut self, id: GroupId, kind: GroupKind, chunks: Vec<Chunk>) {
        self.unused.remove(&id);
        let bits = self.geometry.group_blocks as usize;
        self.change_record(id, |record| {
            assert!(record.kind == GroupKind::Free && record.used == 0);
            let checksums = record.checksums;
            *record = GroupRecord { kind, chunks, checksums, ..GroupRecord::free() };
        });
        assert!(self.group(id).record.busy() == 0);
        let maps = Maps {
            busy: Bitmap::new(bits),
            durable: Bitmap::new(bits),
            slots: [0; MAX_BITMAP_PAGES],
        };
        self.set_maps(id, Some(Box::new(maps)));
        self.changed.insert(id);
        self.index_group(id);
    }

    /// Gives up groups in which nothing is allocated, neither now nor by the last commit, looking
    /// at up to `max` that may have become empty.
    pub fn dissolve_empty(&mut self, devices: &mut Devices, max: usize) {
        for _ in 0..max {
            let Some(id) = self.maybe_empty.pop_first() else { return };
            let g = self.group(id);
            let used = g.record.busy() > 0 || g.record.used > 0;
            // The write-back pass looks at a group that it has again when it ends, and so does a
            // move.
            let rests = !self.is_unreadable(id) && !g.of_pass && !self.is_moving(id);
            if g.record.kind != GroupKind::Free && !used && rests {
                self.dissolve_group(devices, id);
            }
        }
    }

    /// True if [`Space::dissolve_empty`] has something to look at.
    pub fn may_dissolve(&self) -> bool {
        !self.maybe_empty.is_empty()
    }

    fn dissolve_group(&mut self, devices: &mut Devices, id: GroupId) {
        self.unindex_group(id);
        let chunks = self.change_record(id, |record| {
            let free = GroupRecord { checksums: record.checksums, ..GroupRecord::free() };
            std::mem::replace(record, free).chunks
        });
        self.set_maps(id, None);
        devices.give_chunks(chunks);
        self.changed.insert(id);
        self.unused.insert(id);
    }
}

#[cfg(test)]
#[path = "alloc_tests.rs"]
mod tests;
