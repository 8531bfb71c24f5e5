//! The sums over all groups together, and the devices on which the groups are.
//!
//! There are few sets of devices, however many groups there are. So what is asked about all groups,
//! and depends only on where their chunks are, is asked about the sets ([`super::super::Fit`]).
//! Other numbers are kept by device. No answer here takes longer where there are more groups.
//!
//! The record of a group is a [`CountedGroup`], which changes only by [`DeviceSets::change`]. So
//! the numbers agree with the groups at any time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Deref};

use base::{Generation, GroupId};
use format::page::{Chunk, GroupKind, GroupRecord};
use format::superblock::{MAX_COPIES, MAX_DEVICES};
use smallvec::SmallVec;

use crate::space::geometry::Geometry;

/// Devices, a bit for each row.
pub(crate) type Rows = u64;

const _: () = assert!(MAX_DEVICES <= Rows::BITS as usize);

pub(crate) fn rows_of(set: Rows) -> impl Iterator<Item = usize> {
    let mut left = set;
    std::iter::from_fn(move || {
        let row = (left != 0).then(|| left.trailing_zeros() as usize)?;
        left &= left - 1;
        Some(row)
    })
}

/// The devices of a group's chunks, in order, and which of the chunks are behind.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct DeviceSet(SmallVec<[(u16, bool); MAX_COPIES]>);

impl DeviceSet {
    fn of(chunks: &[Chunk]) -> DeviceSet {
        let mut all: SmallVec<_> = chunks.iter().map(|c| (c.device, c.behind)).collect();
        all.sort_unstable();
        DeviceSet(all)
    }

    /// Chunks of a group of this set. Their numbers say nothing.
    pub fn chunks(&self) -> SmallVec<[Chunk; MAX_COPIES]> {
        let chunk = |&(device, behind): &(u16, bool)| Chunk { behind, ..Chunk::new(device, 0) };
        self.0.iter().map(chunk).collect()
    }

    /// All devices.
    pub fn rows(&self) -> Rows {
        self.0.iter().fold(0, |all, c| all | 1 << c.0)
    }

    /// The devices of the chunks that are not behind.
    pub fn rows_not_behind(&self) -> Rows {
        self.0.iter().filter(|c| !c.1).fold(0, |all, c| all | 1 << c.0)
    }

    /// The devices of the chunks that are behind, each once.
    fn behind(&self) -> impl Iterator<Item = usize> {
        let behind = self.0.iter().filter(|c| c.1).fold(0, |all, c| all | 1 << c.0);
        rows_of(behind)
    }
}

/// A group, as far as it is counted. It can be read like a [`GroupRecord`].
pub(super) struct CountedGroup {
    id: GroupId,
    record: GroupRecord,
}

impl CountedGroup {
    pub fn set(&self) -> DeviceSet {
        DeviceSet::of(&self.record.chunks)
    }
}

impl Deref for CountedGroup {
    type Target = GroupRecord;

    fn deref(&self) -> &GroupRecord {
        &self.record
    }
}

/// The share of a group in the numbers.
#[derive(PartialEq, Eq)]
struct Share {
    set: DeviceSet,
    /// 1 for a group of metadata.
    of_metadata: u64,
    used: u64,
    /// True if the group is one of those that were passed.
    passed: bool,
    /// By device: blocks that the group's chunk lacks at most, if it is behind.
    lacks: SmallVec<[(usize, u64); MAX_COPIES]>,
}

/// The groups of a set.
#[derive(Default)]
struct Tally {
    groups: u64,
    /// Blocks in use by the last commit.
    used: u64,
}

/// The numbers of the chunks on a device.
#[derive(Clone, Default)]
struct Row {
    chunks: u64,
    /// Blocks in use by the last commit.
    used: u64,
    /// The same, of the groups that were passed.
    passed: u64,
    behind_chunks: u64,
    /// The groups of the chunks that are behind.
    behind: BTreeSet<GroupId>,
    /// Blocks that these lack at most: of what has changed since this generation.
    lacked: u64,
    since: Generation,
}

/// The number of groups of each set, and sums over groups.
pub(crate) struct DeviceSets {
    geometry: Geometry,
    groups: BTreeMap<DeviceSet, Tally>,
    /// By device.
    rows: Vec<Row>,
    /// Groups by the number of their chunks.
    by_chunks: BTreeMap<usize, u64>,
    /// Groups of metadata.
    of_metadata: u64,
    /// The number of times that a number of groups has changed.
    changes: u64,
    /// The groups before this one were passed.
    passed_to: GroupId,
}

impl DeviceSets {
    pub(super) fn new(geometry: Geometry) -> DeviceSets {
        DeviceSets {
            geometry,
            groups: BTreeMap::new(),
            rows: vec![Row::default(); MAX_DEVICES],
            by_chunks: BTreeMap::new(),
            of_metadata: 0,
            changes: 0,
            passed_to: GroupId(0),
        }
    }

    /// Enters a group.
    pub(super) fn enter(&mut self, id: GroupId, record: GroupRecord) -> CountedGroup {
        let entered = CountedGroup { id, record };
        let share = self.share(&entered);
        self.count(id, &share.set, add);
        self.sum(&share, |sum, n| sum + n);
        entered
    }

    /// Changes a record that was entered here.
    pub(super) fn change<T>(
        &mut self,
        group: &mut CountedGroup,
        f: impl FnOnce(&mut GroupRecord) -> T,
    ) -> T {
        let before = self.share(group);
        let out = f(&mut group.record);
        let after = self.share(group);
        if before == after {
            return out;
        }
        self.sum(&before, |sum, n| sum - n);
        if before.set != after.set {
            self.count(group.id, &before.set, subtract);
            self.count(group.id, &after.set, add);
        }
        self.sum(&after, |sum, n| sum + n);
        out
    }

    fn share(&self, group: &CountedGroup) -> Share {
        let (set, record) = (group.set(), &group.record);
        let lacks = set.behind().map(|row| (row, self.lacks(record, self.rows[row].since)));
        let lacks = lacks.collect();
        let of_metadata = u64::from(record.kind == GroupKind::Metadata);
        let used = record.used.into();
        let passed = group.id < self.passed_to;
        Share { set, of_metadata, used, passed, lacks }
    }

    /// The number of blocks in use, at most, in all parts of a group that have changed since this
    /// generation.
    fn lacks(&self, record: &GroupRecord, since: Generation) -> u64 {
        let pages = (0..).zip(&record.bitmap_generations);
        let changed = pages.filter(|(_, changed)| **changed > since);
        let blocks: u32 = changed.map(|(page, _)| self.geometry.bits_of_page(page)).sum();
        blocks.min(record.used).into()
    }

    fn count(&mut self, id: GroupId, set: &DeviceSet, by_one: fn(u64) -> u64) {
        // A group that is not in use has no chunks, and one that is has some.
        if set.0.is_empty() {
            return;
        }
        let tally = self.groups.entry(set.clone()).or_default();
        tally.groups = by_one(tally.groups);
        if tally.groups == 0 {
            self.groups.remove(set);
        }
        let groups = self.by_chunks.entry(set.0.len()).or_default();
        *groups = by_one(*groups);
        if *groups == 0 {
            self.by_chunks.remove(&set.0.len());
        }
        for &(device, behind) in &set.0 {
            let row = &mut self.rows[usize::from(device)];
            row.chunks = by_one(row.chunks);
            if behind {
                row.behind_chunks = by_one(row.behind_chunks);
            }
        }
        for row in set.behind() {
            let behind = &mut self.rows[row].behind;
            match by_one(1) {
                0 => behind.remove(&id),
                _ => behind.insert(id),
            };
        }
        self.changes += 1;
    }

    /// Adds the share of a group of a set that is counted to the sums, or subtracts them.
    fn sum(&mut self, share: &Share, f: fn(u64, u64) -> u64) {
        let Some(tally) = self.groups.get_mut(&share.set) else { return };
        tally.used = f(tally.used, share.used);
        for &(device, _) in &share.set.0 {
            let row = &mut self.rows[usize::from(device)];
            row.used = f(row.used, share.used);
            if share.passed {
                row.passed = f(row.passed, share.used);
            }
        }
        for &(row, blocks) in &share.lacks {
            let row = &mut self.rows[row];
            row.lacked = f(row.lacked, blocks);
        }
        self.of_metadata = f(self.of_metadata, share.of_metadata);
    }

    /// The sets after this one, in order, with their numbers of groups; `None`: all.
    pub fn after(&self, set: Option<&DeviceSet>) -> impl Iterator<Item = (&DeviceSet, u64)> {
        let from = set.map_or(Bound::Unbounded, Bound::Excluded);
        self.groups.range((from, Bound::Unbounded)).map(|(set, tally)| (set, tally.groups))
    }

    /// A number that is another one after each change of what [`DeviceSets::after`] returns.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// All sets, with the blocks in use of their groups.
    pub fn used(&self) -> impl Iterator<Item = (&DeviceSet, u64)> {
        self.groups.iter().map(|(set, tally)| (set, tally.used))
    }

    /// Numbers of chunks, from the least on, with the number of groups that have so many.
    pub fn by_chunks(&self) -> impl Iterator<Item = (usize, u64)> {
        self.by_chunks.iter().map(|(&chunks, &groups)| (chunks, groups))
    }

    /// The devices that groups have chunks of.
    pub fn rows(&self) -> impl Iterator<Item = usize> {
        self.rows.iter().enumerate().filter(|(_, row)| row.chunks > 0).map(|(row, _)| row)
    }

    /// Chunks of a device.
    pub fn chunks_on(&self, row: usize) -> u64 {
        self.rows[row].chunks
    }

    /// Blocks in use of the chunks of a device.
    pub fn used_on(&self, row: usize) -> u64 {
        self.rows[row].used
    }

    /// Blocks in use of the chunks of a device, of the groups that were passed.
    pub fn passed_on(&self, row: usize) -> u64 {
        self.rows[row].passed
    }

    /// The groups before `to` were passed, and no others. Takes longer the further that is ahead.
    pub(super) fn pass_to<'a>(&mut self, to: GroupId, group: impl Fn(GroupId) -> &'a CountedGroup) {
        if to < self.passed_to {
            self.rows.iter_mut().for_each(|row| row.passed = 0);
            self.passed_to = GroupId(0);
        }
        for group in (self.passed_to.0..to.0).map(|id| group(GroupId(id))) {
            for chunk in &group.record.chunks {
                self.rows[usize::from(chunk.device)].passed += u64::from(group.record.used);
            }
        }
        self.passed_to = to;
    }

    /// Groups of metadata.
    pub fn of_metadata(&self) -> u64 {
        self.of_metadata
    }

    /// Groups in use.
    pub fn in_use(&self) -> u64 {
        self.by_chunks.values().sum()
    }

    /// Chunks of a device that are behind.
    pub fn behind_on(&self, row: usize) -> u64 {
        self.rows[row].behind_chunks
    }

    /// The groups of these chunks.
    pub fn behind(&self, row: usize) -> &BTreeSet<GroupId> {
        &self.rows[row].behind
    }

    /// Blocks that these lack at most, of what has changed since this generation. `record`: the
    /// record of a group that was entered here.
    ///
    /// The sum is kept for one generation. If it is asked for another one, it is made anew, of all
    /// groups whose chunk on this device is behind: 3 ms for 100,000 of them. So it is asked when
    /// the pool is opened, and before groups are marked. Otherwise the generation changes only
    /// where a device goes away with less than it had before, while groups are behind still.
    pub(super) fn lacked<'a>(
        &mut self,
        row: usize,
        since: Generation,
        record: impl Fn(GroupId) -> &'a GroupRecord,
    ) -> u64 {
        if self.rows[row].since != since {
            let behind = self.rows[row].behind.iter();
            let lacked = behind.map(|&id| self.lacks(record(id), since)).sum();
            (self.rows[row].lacked, self.rows[row].since) = (lacked, since);
        }
        self.rows[row].lacked
    }
}

fn add(n: u64) -> u64 {
    n + 1
}

fn subtract(n: u64) -> u64 {
    n - 1
}

#[cfg(test)]
#[path = "sets_tests.rs"]
mod tests;
