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
use format::page::GroupKind;

use super::Space;
use super::room::{Demand, Purpose};
use super::want::ChunkChange;
use crate::devices::Devices;

/// The outcome of an attempt to close a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CloseOutcome {
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

impl Space {
    /// True if one of these groups can be closed.
    pub fn does_without_one(&self, of: &Devices, ids: &[GroupId], demand: &Demand) -> bool {
        // Of groups of a kind, the one with the fewest free blocks is missed least.
        let least = |kind| {
            let of_kind = ids.iter().filter(|&&id| self.groups.kind(id) == kind);
            of_kind.min_by_key(|&&id| self.supply.free_of(id)).copied()
        };
        let least = [GroupKind::Free, GroupKind::Data, GroupKind::Metadata].map(least);
        least.into_iter().flatten().any(|id| self.does_without(of, id, demand))
    }

    /// True if all that is reserved finds room without the free blocks of this group.
    fn does_without(&self, devices: &Devices, id: GroupId, demand: &Demand) -> bool {
        let kind = self.groups.kind(id);
        if self.supply.is_left_alone(id) || kind == GroupKind::Free {
            return true;
        }
        let room = self.room();
        let left = room.without(kind, self.supply.free_of(id).into());
        left.admits(devices, Purpose::Free, demand.dirty_nodes)
            && left.reserved_fits(devices, demand).as_before(room.reserved_fits(devices, demand))
    }

    /// Closes a group for a move, if all that is reserved finds room without it. No write-back pass
    /// that begins later takes it.
    pub fn close_group(
        &mut self,
        devices: &Devices,
        want: &ChunkChange,
        demand: &Demand,
    ) -> CloseOutcome {
        let id = want.group;
        if self.groups.kind(id) == GroupKind::Free || !want.is_about(self.groups.chunks(id)) {
            return CloseOutcome::Changed;
        }
        let closed =
            if self.takers.is_of_pass(id) { CloseOutcome::OfPass } else { CloseOutcome::Closed };
        if self.supply.is_closed(id) {
            return closed;
        }
        if !self.does_without(devices, id, demand) {
            return CloseOutcome::Needed;
        }
        self.supply.close(id);
        closed
    }

    /// Opens the groups whose moves wait for the open write-back pass, as an allocation needs their
    /// room. Returns true if there was one.
    pub fn open_waiting(&mut self) -> bool {
        let closed = self.supply.closed();
        let waiting: Vec<GroupId> = closed.filter(|&id| self.takers.is_of_pass(id)).collect();
        waiting.iter().for_each(|&id| self.supply.open_group(id));
        !waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::tests::row;
    use crate::space::{Alloc, Geometry};
    use format::page::GroupRecord;
    use format::superblock::DeviceState;

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
            let loses = space.groups().chunks(id).to_vec();
            ChunkChange { group: id, keeps: Vec::new(), loses, gets: 1, of: None }
        };
        let planned = want(&space);
        assert_eq!(space.close_group(&devices, &planned, &demand), CloseOutcome::OfPass);
        assert!(space.open_waiting());
        space.leave_pass(id);
        space.supply_mut().end_pass();
        space.release(run);
        space.dissolve_empty(&mut devices, 8);
        assert_eq!(space.groups().kind(id), GroupKind::Free);
        assert_eq!(space.close_group(&devices, &planned, &demand), CloseOutcome::Changed);
        let unused = want(&space);
        assert_eq!(space.close_group(&devices, &unused, &demand), CloseOutcome::Changed);

        // The chunk is another's by then.
        assert!(devices.take_chunk_of(0).is_some_and(|c| c.is_at(&planned.loses[0])));
        let got = space.alloc(&mut devices, GroupKind::Metadata, 8, &demand);
        let Alloc::Got(_) = got else { panic!("there is room") };
        assert_eq!(space.groups().kind(id), GroupKind::Metadata);
        assert_eq!(space.close_group(&devices, &planned, &demand), CloseOutcome::Changed);
        let new = want(&space);
        assert_eq!(space.close_group(&devices, &new, &demand), CloseOutcome::Closed);
    }
}
