//! Searches for the next group that something is to be done with.
//!
//! There may be a hundred thousand groups, and all of them may be as they should be. So a search
//! looks at a bounded number of them in a step, and says where it goes on. What is known about all
//! groups together often tells in the first step that there is nothing to find.
//!
//! The state may change between two steps. What is found is right in the step in which it is found.
//! A group that comes to want other chunks after it was looked at is for the next search: the
//! command or the event that has changed what is wanted wakes the flow of moves.

use base::GroupId;
use format::page::{Chunk, GroupKind};

use super::Placement;
use crate::devices::Devices;
use crate::space::want::ChunkChange;

/// Groups that are looked at in a step. Few, so that pools in tests need several steps, too.
const LOOKS: usize = 64;

/// The outcome of a step of a search.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Search {
    /// This is the next group.
    Found(ChunkChange),
    /// Not found yet: it goes on from this group.
    GoesOn(GroupId),
    /// There is none.
    Over,
}

/// The moves of a chunk by which all devices are filled more evenly. Each such move lowers the sum
/// of `used * used / chunks` over all devices, so balancing ends.
struct Gains {
    /// By the device that the chunk leaves: the gain and the device where it goes, the best first.
    from: Vec<Vec<(i128, usize)>>,
}

impl Gains {
    fn of(devices: &Devices) -> Gains {
        let fills: Vec<Option<(u64, u64)>> =
            (0..devices.count()).map(|d| devices.fill(d)).collect();
        let gain = |from: usize, to: usize| {
            let ((used, all), (used_there, all_there)) = (fills[from]?, fills[to]?);
            if used_there == all_there || used == 0 {
                return None;
            }
            let [used, all, used_there, all_there] =
                [used, all, used_there, all_there].map(i128::from);
            // By how much that sum falls, times both numbers of chunks.
            let fall = (2 * used - 1) * all_there - (2 * used_there + 1) * all;
            // To compare pairs: in thousandths, without that factor.
            (fall > 0).then(|| (fall * 1000 / (all * all_there), to))
        };
        let of = |from: usize| {
            let mut gains: Vec<_> = (0..fills.len()).filter_map(|to| gain(from, to)).collect();
            gains.sort_unstable_by(|a, b| b.cmp(a));
            gains
        };
        Gains { from: (0..fills.len()).map(of).collect() }
    }

    /// True if there is no such move.
    fn is_empty(&self) -> bool {
        self.from.iter().all(Vec::is_empty)
    }

    /// The best of these moves for a group that has the copies that it should have; `None`: there
    /// is none.
    fn best(&self, group: GroupId, chunks: &[Chunk]) -> Option<ChunkChange> {
        let has = |row: usize| chunks.iter().any(|c| usize::from(c.device) == row);
        let best = |c: &Chunk| {
            let gains = self.from.get(usize::from(c.device)).filter(|_| !c.behind)?;
            let &(gain, to) = gains.iter().find(|&&(_, to)| !has(to))?;
            Some((gain, *c, to))
        };
        let (_, from, to) = chunks.iter().filter_map(best).max_by_key(|&(gain, ..)| gain)?;
        let keeps = chunks.iter().filter(|c| **c != from).copied().collect();
        Some(ChunkChange { group, keeps, loses: vec![from], gets: 1, of: Some(to) })
    }
}

impl Placement<'_> {
    /// A step of the search for the next group, from this number on, that should have other chunks
    /// than it has.
    pub fn next_to_move(&self, from: GroupId, devices: &Devices) -> Search {
        self.look_for_move(from, devices, LOOKS)
    }

    fn look_for_move(&self, from: GroupId, devices: &Devices, looks: usize) -> Search {
        if !self.any_to_move(devices) {
            return Search::Over;
        }
        let goal = self.goal(devices);
        self.look(from, looks, |id, chunks| ChunkChange::of(id, chunks, &goal))
    }

    /// The change that a group needs, if it should have other chunks than it has.
    pub fn to_move(self, id: GroupId, devices: &Devices) -> Option<ChunkChange> {
        let used = self.groups.kind(id) != GroupKind::Free;
        used.then(|| ChunkChange::of(id, self.groups.chunks(id), &self.goal(devices))).flatten()
    }

    /// A step of the search for the next group, from this number on, with a chunk that should move
    /// to fill all devices to the same share.
    pub fn next_to_balance(&self, from: GroupId, devices: &Devices) -> Search {
        self.look_for_balance(from, devices, LOOKS)
    }

    fn look_for_balance(&self, from: GroupId, devices: &Devices, looks: usize) -> Search {
        let gains = Gains::of(devices);
        if gains.is_empty() {
            return Search::Over;
        }
        self.look(from, looks, |id, chunks| {
            (!self.supply.is_left_alone(id)).then(|| gains.best(id, chunks)).flatten()
        })
    }

    /// Looks at `looks` groups.
    fn look(
        &self,
        from: GroupId,
        looks: usize,
        f: impl Fn(GroupId, &[Chunk]) -> Option<ChunkChange>,
    ) -> Search {
        let mut used = self.groups.used_among(from, looks);
        let next = GroupId(from.0 + looks as u32);
        match used.find_map(|(id, chunks)| f(id, chunks)) {
            Some(want) => Search::Found(want),
            None if self.groups.contains(next) => Search::GoesOn(next),
            None => Search::Over,
        }
    }
}

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
