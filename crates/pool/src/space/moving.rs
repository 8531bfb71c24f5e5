//! Groups whose chunks move to other devices.
//!
//! Nothing is ever overwritten in place, so a group from which nothing is allocated does not
//! change, except that blocks become free. So while one of its chunks is copied, the group is
//! *closed*: what was allocated from it before is written and committed first, and then the copy
//! has all that the group will ever hold until it is open again. No write goes to two places.
//!
//! A group that the open write-back pass has is closed too, and its move waits for the end of that
//! pass. So a move waits for one pass at most, however soon the next one begins. Until then an
//! allocation that finds no room opens the group again.

use base::GroupId;
use format::page::{Chunk, GroupKind};
use format::superblock::MAX_COPIES;
use smallvec::SmallVec;

use super::held::Era;
use super::limbo::Pin;
use super::room::{Demand, Purpose};
use super::sets::{Rows, Set};
use super::{Space, kind_index};
use crate::devices::Devices;

/// The outcome of an attempt to close a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Closing {
    /// Nothing is allocated from it any more.
    Closed,
    /// The same, but the open write-back pass has the group. It is closed when that pass has ended,
    /// unless it was [opened](Space::open_waiting) meanwhile.
    OfPass,
    /// The group's free blocks are needed: it is not closed.
    Needed,
    /// The group has other chunks than the move was planned for, or none: it was given up
    /// meanwhile, and perhaps formed again. It is not closed.
    Changed,
}

/// Chunks of a group.
type Chunks = SmallVec<[Chunk; MAX_COPIES]>;

/// The conditions that decide where the chunks of groups are to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Goal {
    copies: usize,
    /// Devices that keep no chunks: they leave, or are no devices of the pool.
    leave: Rows,
    /// Devices in use.
    live: Rows,
}

impl Goal {
    pub fn of(devices: &Devices, copies: u8) -> Goal {
        let (mut leave, mut live) = (Rows::MAX, 0);
        for (row, d) in devices.iter().enumerate() {
            leave &= !(Rows::from(!d.is_leaving() && !d.is_removed()) << row);
            live |= Rows::from(d.live().is_some()) << row;
        }
        Goal { copies: copies.into(), leave, live }
    }

    /// The same, if this device leaves.
    pub fn without(self, row: usize) -> Goal {
        Goal { leave: self.leave | 1 << row, ..self }
    }

    /// The same for another number of copies.
    pub fn with_copies(self, copies: u8) -> Goal {
        Goal { copies: copies.into(), ..self }
    }

    pub fn copies(&self) -> usize {
        self.copies
    }

    /// True if a device keeps no chunks.
    pub fn leaves(&self, row: usize) -> bool {
        self.leave >> row & 1 == 1
    }

    /// True if a chunk is a copy that counts.
    fn is_whole(&self, c: &Chunk) -> bool {
        !c.behind && self.live >> c.device & 1 == 1
    }

    /// The chunks that a group with these chunks keeps, and those that it is to lose; `None`: it
    /// has the chunks that it should have.
    fn split(&self, chunks: &[Chunk]) -> Option<(Chunks, Chunks)> {
        let leaves = |c: &&Chunk| self.leaves(c.device.into());
        if chunks.len() == self.copies && !chunks.iter().any(|c| leaves(&c)) {
            return None;
        }
        let mut loses: Chunks = chunks.iter().filter(leaves).copied().collect();
        let mut keeps: Chunks = chunks.iter().filter(|c| !leaves(c)).copied().collect();
        let is_there = |c: &Chunk| self.is_whole(c);
        // If there are too many chunks, those that are no whole copies go first.
        keeps.sort_by_key(|c| !is_there(c));
        let most = keeps.len().min(self.copies);
        loses.extend(keeps.drain(most..));
        // If only chunks that it is to lose are whole copies, it gets at least one new chunk.
        if loses.iter().any(is_there) && !keeps.iter().any(is_there) && keeps.len() == self.copies {
            loses.extend(keeps.pop());
        }
        (keeps.len() < self.copies || !loses.is_empty()).then_some((keeps, loses))
    }
}

/// The change that the chunks of a group need.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Want {
    pub group: GroupId,
    /// Chunks that it keeps.
    pub keeps: Vec<Chunk>,
    /// Chunks that it is to lose.
    pub loses: Vec<Chunk>,
    /// The number of chunks on other devices that the group is to get.
    pub gets: usize,
    /// The device on which it is to get them; `None`: any.
    pub of: Option<usize>,
}

impl Want {
    /// The change that a group with these chunks needs so that it has the copies that it should
    /// have, none of them on a device that leaves; `None`: nothing. A chunk on a device that is
    /// away is kept, as the device may come back.
    pub(super) fn of(group: GroupId, chunks: &[Chunk], goal: &Goal) -> Option<Want> {
        let (keeps, loses) = goal.split(chunks)?;
        let gets = goal.copies() - keeps.len();
        let (keeps, loses) = (keeps.into_vec(), loses.into_vec());
        Some(Want { group, keeps, loses, gets, of: None })
    }

    /// True if this is about a group with these chunks.
    fn is_about(&self, chunks: &[Chunk]) -> bool {
        let known = || self.keeps.iter().chain(&self.loses);
        known().count() == chunks.len() && chunks.iter().all(|c| known().any(|k| k.is_at(c)))
    }
}

impl Space {
    /// The conditions that decide where chunks are to be now.
    pub(super) fn goal(&self, devices: &Devices) -> Goal {
        Goal::of(devices, self.copies)
    }

    /// True if a group should have other chunks than it has.
    pub fn any_to_move(&self, devices: &Devices) -> bool {
        let goal = self.goal(devices);
        self.sets.by_chunks().any(|(chunks, _)| chunks != goal.copies())
            || self.sets.rows().any(|row| goal.leaves(row))
    }

    /// True if the free chunks would make more groups, were they spread more evenly over devices.
    pub fn lies_unevenly(&self, devices: &Devices) -> bool {
        let free: u64 = (0..devices.count()).map(|d| devices.spare_chunks(d)).sum();
        self.formable(devices) < (free / u64::from(self.copies)).min(self.unused.len() as u64)
    }

    /// About how many bytes have to be moved until all devices are filled to the same share.
    pub fn bytes_to_balance(&self, devices: &Devices) -> u64 {
        let fills: Vec<(u64, u64)> = (0..devices.count()).filter_map(|d| devices.fill(d)).collect();
        let sum = |f: fn(&(u64, u64)) -> u64| fills.iter().map(f).sum::<u64>();
        let (used, all) = (sum(|f| f.0), sum(|f| f.1).max(1));
        let over = |&(n, of): &(u64, u64)| {
            n.saturating_sub((u128::from(used) * u128::from(of)).div_ceil(u128::from(all)) as u64)
        };
        let chunks: u64 = fills.iter().map(over).sum();
        let groups = self.used_groups_count().max(1);
        chunks * (self.used_blocks() / groups) * base::BLOCK_U64
    }

    /// Bytes in use of the chunks that groups are to get: what is left to be copied.
    pub fn bytes_to_move(&self, devices: &Devices) -> u64 {
        if !self.any_to_move(devices) {
            return 0;
        }
        let goal = self.goal(devices);
        let gets = |set: &Set| {
            goal.split(&set.chunks()).map_or(0, |(keeps, _)| goal.copies() - keeps.len())
        };
        let blocks = self.sets.used().map(|(set, used)| used * gets(set) as u64).sum::<u64>();
        blocks * base::BLOCK_U64
    }

    /// If groups are to get copies: how many the group with the fewest has.
    pub fn fewest_copies(&self) -> Option<u8> {
        let least = self.sets.by_chunks().next()?.0 as u8;
        (least < self.copies).then_some(least)
    }

    /// Groups in use.
    pub fn used_groups_count(&self) -> u64 {
        self.sets.by_chunks().map(|(_, groups)| groups).sum()
    }

    /// The number of chunks of a device that groups have.
    pub fn chunks_on(&self, row: usize) -> u64 {
        self.sets.chunks_on(row)
    }

    /// True if a group has a chunk of this device.
    pub fn uses_device(&self, row: usize) -> bool {
        self.chunks_on(row) > 0
    }

    /// True if a group is closed: when it is open again there may be room.
    pub fn any_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Waits until a group that is closed is open again.
    pub fn opened(&self) -> impl Future<Output = ()> + use<> {
        self.opened.wait()
    }

    /// Sets the copies of every block: of groups that are formed from now on, and of others when
    /// they move.
    pub fn set_copies(&mut self, copies: u8) {
        self.copies = copies;
    }

    /// True if the open write-back pass has a group.
    pub fn is_of_pass(&self, id: GroupId) -> bool {
        self.group(id).of_pass
    }

    /// True if one of these groups can be closed.
    pub fn does_without_one(&mut self, of: &Devices, ids: &[GroupId], demand: &Demand) -> bool {
        // Of groups of a kind, the one with the fewest free blocks is missed least.
        let least = |kind| {
            let of_kind = ids.iter().filter(|&&id| self.group(id).record.kind == kind);
            of_kind.min_by_key(|&&id| self.free_blocks(id)).copied()
        };
        let least = [GroupKind::Free, GroupKind::Data, GroupKind::Metadata].map(least);
        least.into_iter().flatten().any(|id| self.does_without(of, id, demand))
    }

    /// True if all that is reserved finds room without the free blocks of this group.
    fn does_without(&mut self, devices: &Devices, id: GroupId, demand: &Demand) -> bool {
        let g = self.group(id);
        let left_out =
            self.is_moving(id) || self.is_unreadable(id) || g.record.kind == GroupKind::Free;
        let (kind, free) = (g.record.kind, self.free_blocks(id));
        if left_out {
            return true;
        }
        let fitted = self.reserved_fits(devices, demand);
        self.free[kind_index(kind)] -= u64::from(free);
        let does = self.admits(devices, Purpose::Free, demand.dirty_nodes)
            && self.reserved_fits(devices, demand).as_before(fitted);
        self.free[kind_index(kind)] += u64::from(free);
        does
    }

    /// Closes a group for a move, if all that is reserved finds room without it. No write-back pass
    /// that begins later takes it.
    pub fn close_group(&mut self, devices: &Devices, want: &Want, demand: &Demand) -> Closing {
        let id = want.group;
        if self.group_kind(id) == GroupKind::Free || !want.is_about(self.chunks(id)) {
            return Closing::Changed;
        }
        let closed = if self.group(id).of_pass { Closing::OfPass } else { Closing::Closed };
        if self.is_moving(id) {
            return closed;
        }
        if !self.does_without(devices, id, demand) {
            return Closing::Needed;
        }
        self.unindex(id);
        self.closed.insert(id);
        closed
    }

    /// Opens the groups whose moves wait for the open write-back pass, as an allocation needs their
    /// room. Returns true if there was one.
    pub fn open_waiting(&mut self) -> bool {
        let closed = self.closed.iter().copied();
        let waiting: Vec<GroupId> = closed.filter(|&id| self.is_of_pass(id)).collect();
        waiting.iter().for_each(|&id| self.open_group(id));
        !waiting.is_empty()
    }

    /// Blocks are allocated from a group again.
    pub fn open_group(&mut self, id: GroupId) {
        if !self.closed.remove(&id) {
            return;
        }
        self.opened.notify();
        if self.group(id).record.kind != GroupKind::Free && !self.is_unreadable(id) {
            self.index_group(id);
        }
        self.maybe_empty.insert(id);
    }

    fn unindex(&mut self, id: GroupId) {
        if !self.is_unreadable(id) {
            self.unindex_group(id);
        }
    }

    /// True if the trees contain every run that was taken from the group.
    pub fn is_settled(&self, id: GroupId) -> bool {
        self.group(id).writing == 0
    }

    /// The copies of a group are in these chunks from now on, except for reads that have begun.
    /// Returns their era. Chunks that the group had already stay behind if they were.
    pub fn set_chunks(&mut self, id: GroupId, mut chunks: Vec<Chunk>) -> Era {
        let era = self.limbo.reads_until_now();
        let old = self.change_record(id, |record| {
            for c in &mut chunks {
                c.behind = record.chunks.iter().any(|had| had.is_at(c) && had.behind);
            }
            std::mem::replace(&mut record.chunks, chunks)
        });
        self.group_mut(id).before = Some((era, old));
        self.changed.insert(id);
        era
    }

    /// To be called when no read uses the chunks that a group had before its move.
    pub fn forget_chunks(&mut self, id: GroupId) {
        self.group_mut(id).before = None;
    }

    /// The chunks that hold the copies of a group for a read with this pin. Only a closed group can
    /// have two answers.
    pub fn chunks_for(&self, id: GroupId, pin: &Pin) -> &[Chunk] {
        let before = self.groups.get(id.0 as usize).and_then(|g| g.before.as_ref());
        match before {
            Some((era, chunks)) if pin.era() <= *era => chunks,
            _ => self.chunks(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::tests::row;
    use crate::space::{Alloc, Geometry};
    use format::page::GroupRecord;
    use format::superblock::DeviceState;

    fn chunk(device: u16) -> Chunk {
        Chunk::new(device, 1)
    }

    /// What a group on these devices wants: the devices of the chunks that it keeps and loses, and
    /// how many it is to get.
    fn want(on: &[u16], copies: u8, devices: &Devices) -> Option<(Vec<u16>, Vec<u16>, usize)> {
        let chunks: Vec<Chunk> = on.iter().map(|&d| chunk(d)).collect();
        let want = Want::of(GroupId(0), &chunks, &Goal::of(devices, copies))?;
        let rows = |chunks: Vec<Chunk>| chunks.into_iter().map(|c| c.device).collect();
        Some((rows(want.keeps), rows(want.loses), want.gets))
    }

    #[test]
    fn a_group_wants_its_copies_on_devices_that_stay() {
        let (online, failed) = (DeviceState::Online, DeviceState::Failed);
        let mut devices = Devices::new([online, online, failed, online].map(|s| row(9, s)).into());
        assert_eq!(want(&[0, 1], 2, &devices), None);
        assert_eq!(want(&[0, 2], 2, &devices), None, "a missing device may come back");
        assert_eq!(want(&[0], 2, &devices), Some((vec![0], vec![], 1)));
        assert_eq!(want(&[2, 0], 1, &devices), Some((vec![0], vec![2], 0)));
        for (leaves, gets) in [(2, 1), (0, 2)] {
            devices.row_mut(leaves).into_iter().for_each(|d| d.leave(None));
            let (keeps, loses, n) = want(&[0, 2], 2, &devices).expect("a want");
            assert_eq!((keeps.len() + n, loses.len(), n), (2, gets, gets));
        }
        devices.row_mut(0).into_iter().for_each(|d| d.stay());
        assert_eq!(want(&[0, 1], 2, &devices), None);
    }

    /// A move waits for a pass that has its group. A client opens the group, the pass is given up,
    /// and so is the group. Then it is formed again.
    #[test]
    fn a_group_that_was_given_up_meanwhile_is_not_closed() {
        let demand = Demand { dirty_nodes: 0, blocks: 0 };
        let geometry = Geometry { group_blocks: 256, group_capacity: 8, volume_pages: 1 };
        let mut devices = Devices::new([0, 1].map(|_| row(4, DeviceState::Online)).into());
        let mut space = Space::new(geometry, 1, vec![GroupRecord::free(); 8]);
        let Alloc::Joined(id) = space.alloc_for_pass(&mut devices, 8, true, |_| true) else {
            panic!("it has no group yet")
        };
        let Alloc::Got(run) = space.alloc_for_pass(&mut devices, 8, true, |_| true) else {
            panic!("it has a group")
        };
        let want = |space: &Space| {
            let loses = space.chunks(id).to_vec();
            Want { group: id, keeps: Vec::new(), loses, gets: 1, of: None }
        };
        let planned = want(&space);
        assert_eq!(space.close_group(&devices, &planned, &demand), Closing::OfPass);
        assert!(space.open_waiting());
        space.leave_pass(id);
        space.end_pass();
        space.release(run);
        space.dissolve_empty(&mut devices, 8);
        assert_eq!(space.group_kind(id), GroupKind::Free);
        assert_eq!(space.close_group(&devices, &planned, &demand), Closing::Changed);
        let unused = want(&space);
        assert_eq!(space.close_group(&devices, &unused, &demand), Closing::Changed);

        // The chunk is another's by then.
        assert!(devices.take_chunk_of(0).is_some_and(|c| c.is_at(&planned.loses[0])));
        let got = space.alloc(&mut devices, GroupKind::Metadata, 8, &demand);
        let Alloc::Got(_) = got else { panic!("there is room") };
        assert_eq!(space.group_kind(id), GroupKind::Metadata);
        assert_eq!(space.close_group(&devices, &planned, &demand), Closing::Changed);
        let new = want(&space);
        assert_eq!(space.close_group(&devices, &new, &demand), Closing::Closed);
    }

    /// The only copy that is there is not given up for one that is not.
    #[test]
    fn what_is_not_there_is_no_reason_to_lose_what_is() {
        let (online, failed) = (DeviceState::Online, DeviceState::Failed);
        let states = [online, failed, failed, online];
        let mut devices = Devices::new(states.map(|s| row(9, s)).into());
        devices.row_mut(0).into_iter().for_each(|d| d.leave(None));
        assert_eq!(want(&[1, 0], 1, &devices), Some((vec![], vec![0, 1], 1)));
        assert_eq!(want(&[1, 2, 0], 2, &devices), Some((vec![1], vec![0, 2], 1)));
        assert_eq!(want(&[1, 3, 0], 2, &devices), Some((vec![3, 1], vec![0], 0)));
        assert_eq!(want(&[0, 1], 2, &devices), Some((vec![1], vec![0], 1)));
    }
}
