//! Placement: the chunks that groups have, and those that they should have.

pub(super) mod fit;
mod flow;
pub(super) mod search;

use super::groups::Groups;
use super::groups::sets::DeviceSet;
use super::supply::Supply;
use super::want::Goal;
use crate::devices::Devices;

/// The groups, to be asked which of them should have other chunks, and whether those find room
/// ([`fit`]). No answer looks at all groups: it is about sums, or about a bounded number of groups
/// ([`search`]).
#[derive(Clone, Copy)]
pub(crate) struct Placement<'a> {
    groups: &'a Groups,
    supply: &'a Supply,
}

impl<'a> Placement<'a> {
    pub(super) fn new(groups: &'a Groups, supply: &'a Supply) -> Placement<'a> {
        Placement { groups, supply }
    }

    /// The conditions that decide where chunks are to be now.
    pub(super) fn goal(&self, devices: &Devices) -> Goal {
        Goal::of(devices, self.groups.copies())
    }

    /// True if a group should have other chunks than it has.
    pub fn any_to_move(&self, devices: &Devices) -> bool {
        let goal = self.goal(devices);
        self.groups.sets().by_chunks().any(|(chunks, _)| chunks != goal.copies())
            || self.groups.sets().rows().any(|row| goal.leaves(row))
    }

    /// True if the free chunks would make more groups, were they spread more evenly over devices.
    pub fn lies_unevenly(&self, devices: &Devices) -> bool {
        let free: u64 = (0..devices.count()).map(|d| devices.spare_chunks(d)).sum();
        self.groups.formable(devices)
            < (free / u64::from(self.groups.copies())).min(self.groups.unused())
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
        let groups = self.groups.sets().in_use().max(1);
        chunks * (self.supply.busy() / groups) * base::BLOCK_U64
    }

    /// Bytes in use of the chunks that groups are to get: what is left to be copied.
    pub fn bytes_to_move(&self, devices: &Devices) -> u64 {
        if !self.any_to_move(devices) {
            return 0;
        }
        let goal = self.goal(devices);
        let gets = |set: &DeviceSet| {
            goal.split(&set.chunks()).map_or(0, |(keeps, _)| goal.copies() - keeps.len())
        };
        let blocks =
            self.groups.sets().used().map(|(set, used)| used * gets(set) as u64).sum::<u64>();
        blocks * base::BLOCK_U64
    }
}
