//! The chunks that a group should have.

use base::GroupId;
use format::page::Chunk;
use format::superblock::MAX_COPIES;
use smallvec::SmallVec;

use super::groups::sets::Rows;
use crate::devices::Devices;

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
    pub fn split(&self, chunks: &[Chunk]) -> Option<(Chunks, Chunks)> {
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
pub(crate) struct ChunkChange {
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

impl ChunkChange {
    /// The change that a group with these chunks needs so that it has the copies that it should
    /// have, none of them on a device that leaves; `None`: nothing. A chunk on a device that is
    /// away is kept, as the device may come back.
    pub(super) fn of(group: GroupId, chunks: &[Chunk], goal: &Goal) -> Option<ChunkChange> {
        let (keeps, loses) = goal.split(chunks)?;
        let gets = goal.copies() - keeps.len();
        let (keeps, loses) = (keeps.into_vec(), loses.into_vec());
        Some(ChunkChange { group, keeps, loses, gets, of: None })
    }

    /// True if this is about a group with these chunks.
    pub(super) fn is_about(&self, chunks: &[Chunk]) -> bool {
        let known = || self.keeps.iter().chain(&self.loses);
        known().count() == chunks.len() && chunks.iter().all(|c| known().any(|k| k.is_at(c)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::tests::row;
    use format::superblock::DeviceState;

    fn chunk(device: u16) -> Chunk {
        Chunk::new(device, 1)
    }

    /// What a group on these devices wants: the devices of the chunks that it keeps and loses, and
    /// how many it is to get.
    fn want(on: &[u16], copies: u8, devices: &Devices) -> Option<(Vec<u16>, Vec<u16>, usize)> {
        let chunks: Vec<Chunk> = on.iter().map(|&d| chunk(d)).collect();
        let want = ChunkChange::of(GroupId(0), &chunks, &Goal::of(devices, copies))?;
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
