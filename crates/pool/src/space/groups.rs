//! The records of all groups: what they hold, and where their copies are.

mod behind;
pub(super) mod sets;

use std::collections::{BTreeMap, BTreeSet};

use base::{BLOCK_U64, Generation, GroupId};
use format::node::RootPtr;
use format::page::{Chunk, GroupKind, GroupRecord, MAX_BITMAP_PAGES};

use super::block_run::Run;
use super::geometry::Geometry;
use super::held::Era;
use super::limbo::Pin;
use super::maps::BitmapPage;
use crate::devices::Devices;

use sets::{CountedGroup, DeviceSet, DeviceSets, Rows};

/// The records of all groups. The kind and the chunks of a record are those of now, the rest is as
/// of the last commit.
///
/// - The sums ([`Groups::sets`]) agree with the records, which change only together with them.
/// - A group is unused if it holds nothing, and has no chunks then.
/// - Whatever changes the kind or the chunks of a group marks its record as changed for the next
///   commit.
pub(crate) struct Groups {
    geometry: Geometry,
    /// The number of copies that a group is to have.
    copies: u8,
    records: Vec<CountedGroup>,
    sets: DeviceSets,
    unused: BTreeSet<GroupId>,
    /// Groups whose kind or chunks have changed since the last freeze.
    changed: BTreeSet<GroupId>,
    /// The chunks that groups had before a move, for reads that began up to that era: the new
    /// chunks need not have what was freed since.
    before: BTreeMap<GroupId, (Era, Vec<Chunk>)>,
}

impl Groups {
    pub(super) fn new(geometry: Geometry, copies: u8, records: Vec<GroupRecord>) -> Groups {
        let mut sets = DeviceSets::new(geometry);
        let all = (0..).map(GroupId).zip(records);
        let records: Vec<CountedGroup> = all.map(|(id, record)| sets.enter(id, record)).collect();
        let unused =
            |(id, record): (GroupId, &CountedGroup)| (record.kind == GroupKind::Free).then_some(id);
        let unused = (0..).map(GroupId).zip(&records).filter_map(unused).collect();
        let (changed, before) = (BTreeSet::new(), BTreeMap::new());
        Groups { geometry, copies, records, sets, unused, changed, before }
    }

    fn record(&self, id: GroupId) -> &CountedGroup {
        &self.records[id.0 as usize]
    }

    fn change<T>(&mut self, id: GroupId, f: impl FnOnce(&mut GroupRecord) -> T) -> T {
        self.sets.change(&mut self.records[id.0 as usize], f)
    }

    /// True if there is a group of this number.
    pub fn contains(&self, id: GroupId) -> bool {
        (id.0 as usize) < self.records.len()
    }

    /// The kind of blocks that a group holds.
    pub fn kind(&self, id: GroupId) -> GroupKind {
        self.record(id).kind
    }

    /// The kind of the group of a run of blocks, which says what the run is used for.
    pub fn kind_of(&self, run: Run) -> GroupKind {
        self.kind(self.geometry.split(run.addr).0)
    }

    /// The chunks that hold the copies of a group.
    pub fn chunks(&self, id: GroupId) -> &[Chunk] {
        self.records.get(id.0 as usize).map_or(&[], |record| &record.chunks)
    }

    /// The chunks that hold the copies of a group for a read with this pin. Only a closed group can
    /// have two answers.
    pub fn chunks_for(&self, id: GroupId, pin: &Pin) -> &[Chunk] {
        match self.before.get(&id) {
            Some((era, chunks)) if pin.era() <= *era => chunks,
            _ => self.chunks(id),
        }
    }

    /// Blocks of a group in use as of the last commit.
    pub(super) fn used(&self, id: GroupId) -> u32 {
        self.record(id).used
    }

    /// The newest slots of a group's bitmap pages were written in these generations.
    pub fn bitmap_generations(&self, id: GroupId) -> [Generation; MAX_BITMAP_PAGES] {
        self.record(id).bitmap_generations
    }

    /// The records of the groups from `first` on, at most `count`.
    pub fn records(&self, first: usize, count: usize) -> Vec<GroupRecord> {
        self.records.iter().skip(first).take(count).map(|record| (**record).clone()).collect()
    }

    /// The groups in use among the `looks` groups from this one on, with their chunks.
    pub(super) fn used_among(
        &self,
        from: GroupId,
        looks: usize,
    ) -> impl Iterator<Item = (GroupId, &[Chunk])> {
        let all = (0..).map(GroupId).zip(&self.records).skip(from.0 as usize).take(looks);
        let used = all.filter(|(_, record)| record.kind != GroupKind::Free);
        used.map(|(id, record)| (id, record.chunks.as_slice()))
    }

    /// The set of a group.
    pub(super) fn set_of(&self, id: GroupId) -> DeviceSet {
        self.record(id).set()
    }

    /// The sums over all groups, and the devices on which they are.
    pub fn sets(&self) -> &DeviceSets {
        &self.sets
    }

    /// The number of copies that a group is to have.
    pub(super) fn copies(&self) -> u8 {
        self.copies
    }

    /// Sets the copies of every block: of groups that are formed from now on, and of others when
    /// they move.
    pub fn set_copies(&mut self, copies: u8) {
        self.copies = copies;
    }

    /// The number of groups that are not in use.
    pub(super) fn unused(&self) -> u64 {
        self.unused.len() as u64
    }

    /// The group that is taken into use next.
    pub(super) fn first_unused(&self) -> Option<GroupId> {
        self.unused.first().copied()
    }

    /// The number of further groups that the free chunks make, at least.
    pub fn formable(&self, devices: &Devices) -> u64 {
        devices.formable(u64::from(self.copies), self.unused())
    }

    /// Bytes of the groups in use, and of those that could be.
    pub fn capacity_bytes(&self, devices: &Devices) -> u64 {
        let used = self.records.len() as u64 - self.unused();
        (used + self.formable(devices)) * self.geometry.group_bytes()
    }

    /// If groups are to get copies: how many the group with the fewest has.
    pub fn fewest_copies(&self) -> Option<u8> {
        let least = self.sets.by_chunks().next()?.0 as u8;
        (least < self.copies).then_some(least)
    }

    /// True if a group has a chunk of this device.
    pub fn uses_device(&self, row: usize) -> bool {
        self.sets.chunks_on(row) > 0
    }

    /// True if every group in use that has a chunk on a device in `lost` has one elsewhere.
    pub fn goes_on_without(&self, devices: &Devices, lost: &BTreeSet<usize>) -> bool {
        let lost = lost.iter().fold(0, |all: Rows, row| all | 1 << row);
        let stay = devices.live_rows().iter().fold(0, |all: Rows, row| all | 1 << row) & !lost;
        let goes_on = |set: &DeviceSet| set.rows_not_behind() & stay != 0 || set.rows() & lost == 0;
        self.sets.after(None).all(|(set, _)| goes_on(set))
    }

    /// A commit has written a group's checksum tree.
    pub fn set_checksums(&mut self, id: GroupId, root: Option<RootPtr>) {
        self.change(id, |record| record.checksums = root);
    }

    /// A commit writes a bitmap page: the group's record names the page's generation, and has so
    /// many blocks in use.
    pub(super) fn note_page(
        &mut self,
        BitmapPage { group, page }: BitmapPage,
        generation: Generation,
        used: u32,
    ) {
        self.change(group, |record| {
            record.bitmap_generations[page as usize] = generation;
            record.used = used;
        });
    }

    /// Groups whose kind or chunks have changed since this was asked last.
    pub fn take_changed(&mut self) -> BTreeSet<GroupId> {
        std::mem::take(&mut self.changed)
    }

    /// An unused group is in use from now on.
    pub(super) fn take_into_use(&mut self, id: GroupId, kind: GroupKind, chunks: Vec<Chunk>) {
        self.unused.remove(&id);
        self.change(id, |record| {
            assert!(record.kind == GroupKind::Free && record.used == 0);
            let checksums = record.checksums;
            *record = GroupRecord { kind, chunks, checksums, ..GroupRecord::free() };
        });
        self.changed.insert(id);
    }

    /// A group is not in use any more; returns the chunks that it had.
    pub(super) fn give_up(&mut self, id: GroupId) -> Vec<Chunk> {
        let chunks = self.change(id, |record| {
            let free = GroupRecord { checksums: record.checksums, ..GroupRecord::free() };
            std::mem::replace(record, free).chunks
        });
        self.changed.insert(id);
        self.unused.insert(id);
        chunks
    }

    /// The copies of a group are in these chunks from now on, except for reads up to this era.
    /// Chunks that the group had already stay behind if they were.
    pub(super) fn set_chunks(&mut self, id: GroupId, mut chunks: Vec<Chunk>, era: Era) {
        let old = self.change(id, |record| {
            for c in &mut chunks {
                c.behind = record.chunks.iter().any(|had| had.is_at(c) && had.behind);
            }
            std::mem::replace(&mut record.chunks, chunks)
        });
        self.before.insert(id, (era, old));
        self.changed.insert(id);
    }

    /// To be called when no read uses the chunks that a group had before its move.
    pub fn forget_chunks(&mut self, id: GroupId) {
        self.before.remove(&id);
    }

    /// A scrub has passed the groups before this one, and no others.
    pub fn pass_to(&mut self, to: GroupId) {
        let records = &self.records;
        let to = GroupId(to.0.min(records.len() as u32));
        self.sets.pass_to(to, |id| &records[id.0 as usize]);
    }

    /// Bytes in use of all copies on these devices, as of the last commit, that a scrub has before
    /// it which has passed `used_before` blocks in use of group `id` too. Groups are not gone over.
    pub(super) fn unpassed_bytes(
        &self,
        id: GroupId,
        used_before: impl FnOnce() -> u64,
        counts: impl Fn(usize) -> bool,
    ) -> u64 {
        let rows = self.sets.rows().filter(|&row| counts(row));
        let left: u64 = rows.map(|row| self.sets.used_on(row) - self.sets.passed_on(row)).sum();
        let chunks = self.chunks(id).iter().filter(|c| counts(c.device.into())).count() as u64;
        let passed = if chunks > 0 { chunks * used_before() } else { 0 };
        left.saturating_sub(passed) * BLOCK_U64
    }

    /// Changes a record as no flow does.
    #[cfg(test)]
    pub fn change_record(&mut self, id: GroupId, f: impl FnOnce(&mut GroupRecord)) {
        self.change(id, f);
    }
}
