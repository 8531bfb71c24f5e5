//! Room: what may begin, so that everything that has begun finds the blocks that it needs.
//!
//! Metadata must always find room for what is dirty, or nothing could be committed, not even what
//! frees space. So data may only take a new group, and a change may only begin, if enough stays for
//! all dirty nodes and a reserve.
//!
//! A share of all groups is kept for metadata from the beginning. Groups of data become thin and
//! stay in use, so metadata that grows later could not be given any of their free blocks.
//!
//! Room for what write-back will write is [reserved](super::reservation) before the block is dirty,
//! and direct writes take only what is left. So a write-back pass finds room, for its blocks and
//! for the nodes that publishing them will change, whatever happens meanwhile.
//!
//! So a lack of space is an error of the write itself, and never of a later commit. A full pool can
//! still be emptied, as a change that gives space back may use the reserve ([`Purpose::Free`]).

use format::page::GroupKind;

use super::claims::{Claims, NODES_PER_CHANGE};
use super::groups::Groups;
use super::reservation::Reservation;
use super::supply::Supply;
use crate::devices::Devices;

/// Records that a leaf of a tree holds at least, but for a few leaves.
const RECORDS_PER_LEAF: u64 = 40;

/// Of so many groups one is kept for metadata. The nodes of a volume that was written in random
/// order, a block a request, take 1.3 % of the space that its data takes, and as much again between
/// two commits. At worst, with [`RECORDS_PER_LEAF`], they take 2.6 %.
const GROUPS_PER_METADATA: u64 = 32;

/// Pools of so many groups keep two for metadata at least: one can be closed for a move while the
/// other one takes nodes.
const TWO_FROM: u64 = 16;

/// The purpose with which a change is admitted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The change takes space.
    Write,
    /// The change gives space back, and may use the reserve.
    Free,
}

/// The metadata that has to find room.
#[derive(Clone, Copy)]
pub(crate) struct Demand {
    /// Nodes that have no address yet.
    pub dirty_nodes: u64,
    /// Blocks that all volumes have.
    pub blocks: u64,
}

/// Whether what is reserved finds room.
#[derive(Clone, Copy)]
pub(crate) struct ReservationFit {
    /// Beside what is dirty, and the changes that are under way.
    now: bool,
    /// When all of that was committed.
    later: bool,
}

impl ReservationFit {
    /// True if what found room `before` still does.
    pub fn as_before(self, before: ReservationFit) -> bool {
        (self.now || !before.now) && (self.later || !before.later)
    }
}

/// The room as of now: the groups that can be formed, the free blocks, and what was claimed of
/// both.
#[derive(Clone, Copy)]
pub(crate) struct Room<'a> {
    groups: &'a Groups,
    claims: &'a Claims,
    group_blocks: u64,
    /// Free blocks of groups of data.
    data: u64,
    /// Free blocks of groups of metadata.
    metadata: u64,
}

impl<'a> Room<'a> {
    pub(super) fn new(
        group_blocks: u32,
        groups: &'a Groups,
        supply: &Supply,
        claims: &'a Claims,
    ) -> Room<'a> {
        let [data, metadata] = [GroupKind::Data, GroupKind::Metadata].map(|k| supply.free(k));
        Room { groups, claims, group_blocks: group_blocks.into(), data, metadata }
    }

    /// The room without so many of the free blocks of a kind.
    pub(super) fn without(self, kind: GroupKind, blocks: u64) -> Room<'a> {
        match kind {
            GroupKind::Data => Room { data: self.data - blocks, ..self },
            GroupKind::Metadata => Room { metadata: self.metadata - blocks, ..self },
            GroupKind::Free => unreachable!("unused groups have no free blocks"),
        }
    }

    /// Groups that metadata lacks to its share, and that data leaves to it, where so many can still
    /// be formed.
    fn kept_of(&self, formable: u64) -> u64 {
        let share = share_of_metadata(self.groups.sets().in_use() + formable);
        share.saturating_sub(self.groups.sets().of_metadata())
    }

    /// The number of further groups that data may form.
    pub(super) fn formable_for_data(&self, devices: &Devices) -> u64 {
        let formable = self.groups.formable(devices);
        formable.saturating_sub(self.kept_of(formable))
    }

    fn reserve_blocks(&self) -> u64 {
        (self.group_blocks / 8).max(64)
    }

    /// Blocks that metadata can still take, where so many groups can be formed.
    fn metadata_room(&self, formable: u64) -> u64 {
        self.metadata + formable * self.group_blocks
    }

    /// Blocks that metadata can still take.
    pub fn metadata_left(&self, devices: &Devices) -> u64 {
        self.metadata_room(self.groups.formable(devices))
    }

    /// True if a change of the trees may go ahead: all its nodes will find room at commit, and
    /// those of the changes that are under way. It then reserves its own
    /// ([`Claims::reserve_nodes`]).
    pub fn admits(&self, devices: &Devices, purpose: Purpose, dirty_nodes: u64) -> bool {
        let nodes = dirty_nodes + self.claims.nodes();
        self.admits_beside(self.groups.formable(devices), purpose, nodes)
    }

    /// True if a change may go ahead once those that are under way have ended, should they add no
    /// node.
    pub fn admits_later(&self, devices: &Devices, purpose: Purpose, dirty_nodes: u64) -> bool {
        self.claims.nodes() > 0
            && self.admits_beside(self.groups.formable(devices), purpose, dirty_nodes)
    }

    fn admits_beside(&self, formable: u64, purpose: Purpose, nodes: u64) -> bool {
        let reserve = if purpose == Purpose::Write { self.reserve_blocks() } else { 0 };
        self.metadata_room(formable) >= nodes + NODES_PER_CHANGE + reserve
    }

    /// Nodes that changes may add which are under way, or which begin next.
    fn nodes_under_way(&self) -> u64 {
        self.claims.nodes().max(NODES_PER_CHANGE)
    }

    /// True if a data group may be formed: metadata has its share without it, and room for its
    /// nodes, also for those of what is reserved. Changes that are under way add far fewer nodes
    /// than they reserve, and hundreds of them would keep a small pool from forming any group.
    pub(super) fn data_may_form(&self, devices: &Devices, demand: &Demand) -> bool {
        self.data_may_form_beside(devices, demand, self.nodes_under_way())
    }

    fn data_may_form_beside(&self, devices: &Devices, demand: &Demand, under_way: u64) -> bool {
        let formable = self.groups.formable(devices);
        let after = self.metadata_room(formable).checked_sub(self.group_blocks);
        let need = 2 * (demand.dirty_nodes + NODES_PER_CHANGE + self.reserve_blocks());
        let for_data = match self.claims.reserved() {
            0 => formable.saturating_sub(self.kept_of(formable)),
            reserved => {
                let taken = self.groups_for_nodes(reserved, demand, under_way);
                self.left_of(formable, taken)
            }
        };
        for_data > 0 && after.is_some_and(|room| room >= need)
    }

    /// Blocks that data can still take beside what is reserved, about: metadata keeps its share.
    pub fn left_for_data(&self, devices: &Devices, demand: &Demand) -> u64 {
        let groups = match self.data_may_form(devices, demand) {
            true => self.formable_for_data(devices),
            false => 0,
        };
        let room = self.data + groups * self.group_blocks;
        room.saturating_sub(self.claims.reserved())
    }

    /// Blocks that data can come to take beside what is reserved and `live` blocks, about: all else
    /// but the share of metadata counts as free. Part of it may be free only after commits, reads
    /// and moves that are under way.
    pub fn attainable(&self, devices: &Devices, live: u64) -> u64 {
        let all = self.groups.sets().in_use() + self.groups.formable(devices);
        let of_data = all.saturating_sub(share_of_metadata(all)) * self.group_blocks;
        of_data.saturating_sub(live + self.claims.reserved())
    }

    /// True if a direct write that found too few blocks may find `blocks` more when the changes
    /// that are under way have ended. The write has given back the room for its own nodes, but held
    /// it when it looked for blocks, and holds it when it looks again: so that room counts here.
    pub fn may_take_later(&self, devices: &Devices, blocks: u64, demand: &Demand) -> bool {
        let others = self.claims.nodes();
        let (alone, beside) = (NODES_PER_CHANGE, NODES_PER_CHANGE + others);
        let leaves = |under_way| self.leaves_beside(devices, blocks, demand, under_way);
        let forms = |under_way| self.data_may_form_beside(devices, demand, under_way);
        others > 0 && leaves(alone) && (!leaves(beside) || forms(alone) && !forms(beside))
    }

    /// True if `reserved` blocks of data, and the nodes that they will change, would find room,
    /// where so many groups can be formed.
    fn can_hold(&self, formable: u64, reserved: u64, demand: &Demand) -> bool {
        self.can_hold_beside(formable, reserved, demand, self.nodes_under_way())
    }

    fn can_hold_beside(
        &self,
        formable: u64,
        reserved: u64,
        demand: &Demand,
        under_way: u64,
    ) -> bool {
        let groups = self.groups_for_nodes(reserved, demand, under_way);
        let for_data = self.left_of(formable, groups);
        groups <= formable && self.data + for_data * self.group_blocks >= reserved
    }

    /// The number of groups that metadata has to form for all nodes that are dirty, and for those
    /// that `reserved` blocks will change.
    fn groups_for_nodes(&self, reserved: u64, demand: &Demand, under_way: u64) -> u64 {
        // The leaves of two trees, each changed once, and those above them.
        let leaves = reserved.min((demand.blocks + reserved) / RECORDS_PER_LEAF + 8);
        let nodes = 2 * (leaves + leaves / 32) + 64;
        let nodes = nodes + demand.dirty_nodes + self.reserve_blocks();
        // Changes that are under way add far fewer nodes than they reserve: what these would take
        // beyond the free blocks that metadata has is left out.
        let free = self.metadata.saturating_sub(under_way);
        nodes.saturating_sub(free).div_ceil(self.group_blocks)
    }

    /// The number of groups that data may form, where metadata takes `groups` groups: these are of
    /// what is kept for it, and one more is left to it.
    fn left_of(&self, formable: u64, groups: u64) -> u64 {
        formable.saturating_sub(self.kept_of(formable).max(groups + 1))
    }

    /// Whether all that is reserved finds room, and what is dirty.
    pub fn reserved_fits(&self, devices: &Devices, demand: &Demand) -> ReservationFit {
        let formable = self.groups.formable(devices);
        let now = self.can_hold(formable, self.claims.reserved(), demand)
            && self.admits(devices, Purpose::Write, demand.dirty_nodes);
        ReservationFit { now, later: self.lasting_fits(formable, demand) }
    }

    /// True if all that is reserved for longer than a moment finds room, where so many groups can
    /// be formed, and changes can go on.
    pub fn lasting_fits(&self, formable: u64, demand: &Demand) -> bool {
        let demand = Demand { dirty_nodes: 0, ..*demand };
        self.can_hold_beside(formable, self.claims.reserved(), &demand, NODES_PER_CHANGE)
            && self.admits_beside(formable, Purpose::Write, 0)
    }

    /// True if a direct write of `blocks` leaves what is reserved.
    pub fn leaves_reserved(&self, devices: &Devices, blocks: u64, demand: &Demand) -> bool {
        self.leaves_beside(devices, blocks, demand, self.nodes_under_way())
    }

    fn leaves_beside(
        &self,
        devices: &Devices,
        blocks: u64,
        demand: &Demand,
        under_way: u64,
    ) -> bool {
        let reserved = self.claims.reserved();
        reserved == 0
            || self.can_hold_beside(
                self.groups.formable(devices),
                reserved + blocks,
                demand,
                under_way,
            )
    }

    /// Reserves `blocks` blocks, if there is room for them.
    pub fn reserve(&self, devices: &Devices, blocks: u64, demand: &Demand) -> Option<Reservation> {
        let fits = blocks == 0
            || self.can_hold(
                self.groups.formable(devices),
                self.claims.reserved() + blocks,
                demand,
            );
        fits.then(|| self.claims.take_over(blocks))
    }

    /// True if `blocks` blocks that found no room may find it when the changes that are under way
    /// have ended.
    pub fn may_reserve_later(&self, devices: &Devices, blocks: u64, demand: &Demand) -> bool {
        let (formable, reserved) = (self.groups.formable(devices), self.claims.reserved() + blocks);
        self.claims.nodes() > 0
            && self.can_hold_beside(formable, reserved, demand, NODES_PER_CHANGE)
    }
}

/// Of so many groups, those that are kept for metadata.
fn share_of_metadata(groups: u64) -> u64 {
    let least = if groups < TWO_FROM { 1 } else { 2 };
    groups.div_ceil(GROUPS_PER_METADATA).max(least)
}

#[cfg(test)]
#[path = "room_tests.rs"]
mod tests;
