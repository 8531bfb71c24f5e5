//! Block groups, their bitmaps, free blocks and reservations.
//!
//! A block is *busy* from its allocation until the commit that frees it is durable and no read uses
//! it any more ([`free`], [`limbo`]). The *durable* bitmap of a group changes by commits only
//! ([`bitmaps`]). So what an open transaction has allocated is known in memory alone, and a crash
//! leaves free space.

mod alloc;
mod behind;
mod bitmaps;
mod fetched;
mod fit;
mod flow;
mod free;
mod geometry;
mod held;
mod limbo;
mod maps;
mod moving;
mod passed;
mod reservation;
mod room;
pub(crate) mod run;
mod search;
mod sets;

use std::collections::{BTreeMap, BTreeSet};

use base::{ErrorKind, Generation, GroupId, Instant, StorageError, counted};
use format::node::RootPtr;
use format::page::{Chunk, GroupKind, GroupRecord, MAX_BITMAP_PAGES};
use rt::sync::Event;

use crate::devices::Devices;

pub(crate) use alloc::Alloc;
pub(crate) use bitmaps::{PageChange, Planned};
pub(crate) use fetched::{Fetched, Load, Part};
pub(crate) use fit::{Fit, Shortage, Terms};
pub use geometry::Geometry;
pub(crate) use held::Era;
pub(crate) use limbo::Pin;
pub(crate) use maps::{BitmapPage, Maps};
pub(crate) use moving::{Closing, Want};
pub use reservation::Reservation;
pub(crate) use room::{Demand, Fits, NodeRoom, Purpose};
pub(crate) use run::{Run, push_run};
pub(crate) use search::Search;

use limbo::Limbo;
use reservation::SetAside;
use sets::{Entered, Rows, Set, Sets};

struct Group {
    /// Kind, chunks and busy blocks as of now; the rest as of the last commit.
    record: Entered,
    maps: Option<Box<Maps>>,
    /// Runs that direct writes have taken and not entered yet. A write-back pass may not begin to
    /// edit its checksums, because these writes will.
    writing: u32,
    /// The open write-back pass allocates from it, and nothing else does.
    of_pass: bool,
    /// The chunks that it had before a move, for reads that began up to that era: the new chunks
    /// need not have what was freed since.
    before: Option<(Era, Vec<Chunk>)>,
}

/// Block groups, and the blocks in them.
pub(crate) struct Space {
    geometry: Geometry,
    copies: u8,
    groups: Vec<Group>,
    /// On which devices they are, and sums over them.
    sets: Sets,
    /// Groups that are closed for a move: nothing is allocated from them, so their blocks only
    /// become fewer.
    closed: BTreeSet<GroupId>,
    /// Groups whose bitmaps could not be read: they are not in the index of free space.
    unreadable: BTreeSet<GroupId>,
    /// Groups of whose checksums a node could not be read when blocks were to be entered, and until
    /// when they are left alone: they are not in that index either.
    lost_sums: BTreeMap<GroupId, Instant>,
    unused: BTreeSet<GroupId>,
    /// Groups with free blocks, by kind, in the order of the logarithm of their number.
    by_free: [BTreeSet<(u32, GroupId)>; 2],
    /// Free blocks, by kind.
    free: [u64; 2],
    /// The places where the next allocations look: by kind, and for the write-back pass.
    cursors: [Option<(GroupId, u32)>; 3],
    /// Groups whose bitmaps are in memory, and where the search for idle ones goes on.
    loaded: BTreeSet<GroupId>,
    unload_hand: GroupId,
    /// Groups that may have become empty.
    maybe_empty: BTreeSet<GroupId>,
    /// Groups that were taken into use or given up since the last freeze.
    changed: BTreeSet<GroupId>,
    /// Bitmap pages that the next commit must write, whatever they say.
    forced: BTreeSet<BitmapPage>,
    limbo: Limbo,
    reserved: SetAside,
    /// Nodes that the changes of trees under way may add.
    reserved_nodes: SetAside,
    /// Rung when one of these changes was made, or given up.
    changes_ended: Event,
    /// Rung when direct writes were entered into the trees, or given up.
    writes_ended: Event,
    /// Notified when a closed group is opened, and when direct writes may take blocks again.
    opened: Event,
    /// Tasks that wait for a group to join, or for changes to end: direct writes take no blocks
    /// meanwhile.
    direct_held: u32,
    /// Data that was read ahead.
    fetched: Fetched,
}

fn kind_index(kind: GroupKind) -> usize {
    match kind {
        GroupKind::Data => 0,
        GroupKind::Metadata => 1,
        GroupKind::Free => unreachable!("a free group has no place among the used ones"),
    }
}

/// The logarithm of a number of free blocks.
fn class_of(free: u32) -> u32 {
    u32::BITS - free.leading_zeros()
}

impl Space {
    /// The space that the records of all groups describe.
    pub fn new(geometry: Geometry, copies: u8, records: Vec<GroupRecord>) -> Space {
        let mut sets = Sets::new(geometry);
        let group = |(id, record): (GroupId, GroupRecord)| Group {
            record: sets.enter(id, record),
            maps: None,
            writing: 0,
            of_pass: false,
            before: None,
        };
        let mut space = Space {
            geometry,
            copies,
            groups: (0..).map(GroupId).zip(records).map(group).collect(),
            sets,
            closed: BTreeSet::new(),
            unreadable: BTreeSet::new(),
            lost_sums: BTreeMap::new(),
            unused: BTreeSet::new(),
            by_free: [BTreeSet::new(), BTreeSet::new()],
            free: [0; 2],
            cursors: [None; 3],
            loaded: BTreeSet::new(),
            unload_hand: GroupId(0),
            maybe_empty: BTreeSet::new(),
            changed: BTreeSet::new(),
            forced: BTreeSet::new(),
            limbo: Limbo::default(),
            reserved: SetAside::default(),
            reserved_nodes: SetAside::default(),
            changes_ended: Event::new(),
            writes_ended: Event::new(),
            opened: Event::new(),
            direct_held: 0,
            fetched: Fetched::default(),
        };
        for id in (0..space.groups.len() as u32).map(GroupId) {
            let record = &space.group(id).record;
            let (kind, used) = (record.kind, record.used);
            if kind == GroupKind::Free {
                space.unused.insert(id);
                continue;
            }
            space.index_group(id);
            if used == 0 {
                space.maybe_empty.insert(id);
            }
        }
        space
    }

    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn group(&self, id: GroupId) -> &Group {
        &self.groups[id.0 as usize]
    }

    fn group_mut(&mut self, id: GroupId) -> &mut Group {
        &mut self.groups[id.0 as usize]
    }

    /// Changes the record of a group, and the numbers that follow from it.
    fn change_record<T>(&mut self, id: GroupId, f: impl FnOnce(&mut GroupRecord) -> T) -> T {
        self.sets.change(&mut self.groups[id.0 as usize].record, f)
    }

    fn free_blocks(&self, id: GroupId) -> u32 {
        self.geometry.group_blocks - self.group(id).record.busy()
    }

    fn is_moving(&self, id: GroupId) -> bool {
        self.closed.contains(&id)
    }

    fn is_unreadable(&self, id: GroupId) -> bool {
        self.unreadable.contains(&id) || self.lost_sums.contains_key(&id)
    }

    /// True if there is a group of this number.
    pub fn contains(&self, id: GroupId) -> bool {
        (id.0 as usize) < self.groups.len()
    }

    /// The kind of the group of a run of blocks, which says what the run is used for.
    pub fn kind_of(&self, run: Run) -> GroupKind {
        self.group(self.geometry.split(run.addr).0).record.kind
    }

    /// The chunks that hold the copies of a group.
    pub fn chunks(&self, id: GroupId) -> &[Chunk] {
        self.groups.get(id.0 as usize).map_or(&[], |g| &g.record.chunks)
    }

    /// True if every group in use that has a chunk on a device in `lost` has one elsewhere.
    pub fn goes_on_without(&self, devices: &Devices, lost: &BTreeSet<usize>) -> bool {
        let lost = lost.iter().fold(0, |all: Rows, row| all | 1 << row);
        let stay = devices.live_rows().iter().fold(0, |all: Rows, row| all | 1 << row) & !lost;
        let goes_on = |set: &Set| set.rows_not_behind() & stay != 0 || set.rows() & lost == 0;
        self.sets.after(None).all(|(set, _)| goes_on(set))
    }

    /// The table page with a group's record.
    pub fn page_of(&self, id: GroupId) -> u32 {
        self.geometry.page_of_group(id)
    }

    /// The records of the groups from `first` on, at most `count`.
    pub fn records(&self, first: usize, count: usize) -> Vec<GroupRecord> {
        self.groups.iter().skip(first).take(count).map(|g| (*g.record).clone()).collect()
    }

    /// The kind of blocks that a group holds.
    pub fn group_kind(&self, id: GroupId) -> GroupKind {
        self.group(id).record.kind
    }

    /// A commit has written a group's checksum tree.
    pub fn set_checksums(&mut self, id: GroupId, root: Option<RootPtr>) {
        self.change_record(id, |record| record.checksums = root);
    }

    /// Groups that were taken into use or given up since this was asked last.
    pub fn take_changed(&mut self) -> BTreeSet<GroupId> {
        std::mem::take(&mut self.changed)
    }

    /// Blocks in use or not yet free for others.
    pub fn used_blocks(&self) -> u64 {
        self.sets.busy()
    }

    /// Bytes of the groups in use, and of those that could be.
    pub fn capacity_bytes(&self, devices: &Devices) -> u64 {
        let used = (self.groups.len() - self.unused.len()) as u64;
        (used + self.formable(devices)) * self.geometry.group_bytes()
    }

    /// The error where nothing could be allocated: no group has room, or only groups whose bitmaps
    /// or checksums cannot be read may have some. `what` begins its text.
    pub fn no_room(&self, what: &str) -> StorageError {
        let lost = self.lost_sums.keys().filter(|id| !self.unreadable.contains(id));
        match self.unreadable.len() + lost.count() {
            0 => StorageError::new(
                ErrorKind::NoSpace,
                format!("{what}; discard something or add space"),
            ),
            n => {
                let text = format!(
                    "{what}, and {} cannot be used; see to the pool's devices, then restart \
                     forebay",
                    counted(
                        n as u64,
                        "block group with an unreadable bitmap or unreadable checksums",
                        "block groups with unreadable bitmaps or checksums"
                    )
                );
                StorageError::new(ErrorKind::Io, text)
            }
        }
    }

    /// Changes a used group's number of busy blocks and keeps the index of free space exact.
    fn set_busy(&mut self, id: GroupId, busy: u32) {
        let blocks = self.geometry.group_blocks;
        let g = &mut self.groups[id.0 as usize];
        let k = kind_index(g.record.kind);
        let (old, new) = (blocks - g.record.busy(), blocks - busy);
        self.sets.set_busy(&mut g.record, busy);
        if self.closed.contains(&id) || self.is_unreadable(id) {
            return;
        }
        self.free[k] = self.free[k] + u64::from(new) - u64::from(old);
        if class_of(old) != class_of(new) {
            self.by_free[k].remove(&(class_of(old), id));
            if new > 0 {
                self.by_free[k].insert((class_of(new), id));
            }
        }
    }

    /// Enters a group that is in use into the index of free space.
    fn index_group(&mut self, id: GroupId) {
        let k = kind_index(self.group(id).record.kind);
        let free = self.free_blocks(id);
        self.free[k] += u64::from(free);
        if free > 0 {
            self.by_free[k].insert((class_of(free), id));
        }
    }

    /// Takes a group out of the index of free space.
    fn unindex_group(&mut self, id: GroupId) {
        let k = kind_index(self.group(id).record.kind);
        let free = self.free_blocks(id);
        self.free[k] -= u64::from(free);
        self.by_free[k].remove(&(class_of(free), id));
        self.leave(id);
    }

    /// Moves all cursors out of this group.
    fn leave(&mut self, id: GroupId) {
        for cursor in &mut self.cursors {
            *cursor = cursor.filter(|c| c.0 != id);
        }
    }

    /// The newest slots of a group's bitmap pages were written in these generations.
    pub fn bitmap_generations(&self, id: GroupId) -> [Generation; MAX_BITMAP_PAGES] {
        self.group(id).record.bitmap_generations
    }

    /// A direct write has taken a run.
    pub fn begin_writing(&mut self, run: Run) {
        let (id, _) = self.geometry.split(run.addr);
        self.group_mut(id).writing += 1;
    }

    /// Ends the direct write of these runs: they were entered into the trees, or given back.
    pub fn end_writing(&mut self, runs: &[Run]) {
        for run in runs {
            let (id, _) = self.geometry.split(run.addr);
            self.group_mut(id).writing -= 1;
        }
        self.writes_ended.notify();
    }

    /// Waits for the end of a direct write, good or bad.
    pub fn writes_ended(&self) -> impl Future<Output = ()> + use<> {
        self.writes_ended.wait()
    }

    /// The write-back pass lets go of a group. It may be empty.
    pub fn leave_pass(&mut self, id: GroupId) {
        self.group_mut(id).of_pass = false;
        self.maybe_empty.insert(id);
    }

    /// The data that was read ahead.
    pub fn fetched(&self) -> &Fetched {
        &self.fetched
    }

    /// As [`Space::fetched`], to change it.
    pub fn fetched_mut(&mut self) -> &mut Fetched {
        &mut self.fetched
    }
}

#[cfg(test)]
#[path = "space_tests.rs"]
pub(crate) mod tests;
