//! Groups whose chunks move to other devices.
//!
//! Nothing is ever overwritten in place, so a group from which nothing is allocated does not
//! change, but for blocks that become free. So while one of its chunks is copied, the group is
//! *closed*: what was allocated from it before is written and committed first, and then the copy
//! has all that the group will ever hold until it is open again. No write goes to two places.

use std::rc::Weak;

use base::GroupId;
use format::page::{Chunk, GroupKind};

use super::Space;
use super::room::{Demand, Purpose};
use crate::devices::Devices;

/// What became of the wish to close a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Closing {
    /// Nothing is allocated from it any more.
    Closed,
    /// The open write-back pass has it.
    OfPass,
    /// Its free blocks are needed.
    Needed,
}

/// What a group should have, and has not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Want {
    pub group: GroupId,
    /// Chunks that it keeps.
    pub keeps: Vec<Chunk>,
    /// Chunks that it is to lose.
    pub loses: Vec<Chunk>,
    /// How many chunks on other devices it is to get.
    pub gets: usize,
}

impl Want {
    /// Of a group with these chunks: `copies` of them, none on a device that leaves. One on a
    /// device that is not there is no copy, but it may come back.
    fn of(group: GroupId, chunks: &[Chunk], copies: usize, devices: &Devices) -> Option<Want> {
        let row = |c: &Chunk| devices.row(usize::from(c.device));
        let leaves = |c: &&Chunk| row(c).is_none_or(|d| d.is_leaving() || d.is_removed());
        let mut loses: Vec<Chunk> = chunks.iter().filter(leaves).copied().collect();
        let mut keeps: Vec<Chunk> = chunks.iter().filter(|c| !leaves(c)).copied().collect();
        // Of too many copies, one on a device that is not there goes first.
        keeps.sort_by_key(|c| !devices.is_live(usize::from(c.device)));
        loses.extend(keeps.split_off(keeps.len().min(copies)));
        let gets = copies - keeps.len();
        (gets > 0 || !loses.is_empty()).then_some(Want { group, keeps, loses, gets })
    }
}

impl Space {
    /// The next group, from this number on, that should have other chunks than it has.
    pub fn next_to_move(&self, from: GroupId, devices: &Devices) -> Option<Want> {
        let groups = (0..).map(GroupId).zip(&self.groups).skip(from.0 as usize);
        groups
            .filter(|(_, g)| g.record.kind != GroupKind::Free)
            .find_map(|(id, g)| Want::of(id, &g.record.chunks, usize::from(self.copies), devices))
    }

    /// Bytes in the chunks that groups are to get, or to lose without getting any: what is left to
    /// be moved.
    pub fn bytes_to_move(&self, devices: &Devices) -> u64 {
        let of = |(id, g): (GroupId, &super::Group)| {
            let want = Want::of(id, &g.record.chunks, usize::from(self.copies), devices)?;
            Some(u64::from(g.record.used) * want.gets as u64)
        };
        let used = (0..).map(GroupId).zip(&self.groups);
        used.filter(|(_, g)| g.record.kind != GroupKind::Free).filter_map(of).sum::<u64>()
            * base::BLOCK_U64
    }

    /// Groups in use.
    pub fn used_groups_count(&self) -> u64 {
        self.used_groups().count() as u64
    }

    /// Chunks of a device that groups have.
    pub fn chunks_on(&self, row: usize) -> u64 {
        let on = |c: &&Chunk| usize::from(c.device) == row;
        self.used_groups().map(|g| g.record.chunks.iter().filter(on).count() as u64).sum()
    }

    /// True if a group has a chunk of this device.
    pub fn uses_device(&self, row: usize) -> bool {
        self.chunks_on(row) > 0
    }

    /// True if a group is closed: when it is open again there may be room.
    pub fn any_closed(&self) -> bool {
        self.groups.iter().any(|g| g.moving)
    }

    /// Copies of every block of groups that are formed from now on.
    pub fn set_copies(&mut self, copies: u8) {
        self.copies = copies;
    }

    /// Closes a group, if everything that was promised finds room without it.
    pub fn close_group(&mut self, devices: &Devices, id: GroupId, demand: &Demand) -> Closing {
        if self.group(id).of_pass {
            return Closing::OfPass;
        }
        if self.group(id).moving {
            return Closing::Closed;
        }
        let held = self.keeps_promises(devices, demand);
        self.unindex(id);
        self.group_mut(id).moving = true;
        let commits = self.admits(devices, Purpose::Free, demand.dirty_nodes);
        if !commits || held && !self.keeps_promises(devices, demand) {
            self.open_group(id);
            return Closing::Needed;
        }
        Closing::Closed
    }

    /// Blocks are allocated from a group again.
    pub fn open_group(&mut self, id: GroupId) {
        if !std::mem::replace(&mut self.group_mut(id).moving, false) {
            return;
        }
        if self.group(id).record.kind != GroupKind::Free && !self.group(id).unreadable {
            self.index_group(id);
        }
        self.maybe_empty.insert(id);
    }

    fn unindex(&mut self, id: GroupId) {
        if !self.group(id).unreadable {
            self.unindex_group(id);
        }
    }

    /// True if no run of a group was taken that is not entered.
    pub fn is_settled(&self, id: GroupId) -> bool {
        self.group(id).writing == 0
    }

    /// The copies of a group are in these chunks from now on.
    pub fn set_chunks(&mut self, id: GroupId, chunks: Vec<Chunk>) {
        self.group_mut(id).record.chunks = chunks;
        self.changed.insert(id);
    }

    /// What is alive as long as a read is under way that began before now.
    pub fn reads_until_now(&mut self) -> Weak<()> {
        self.limbo.reads_until_now()
    }
}
