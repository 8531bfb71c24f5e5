//! The pool's state in memory: plain data, changed between awaits only.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use base::{Bitmap, Generation, GroupId, PoolAddr, VolumeId};
use btree::Store;
use format::page::{GroupKind, GroupRecord, MAX_BITMAP_PAGES, VolumeRecord};
use format::superblock::DeviceState;

use crate::CacheMark;
use crate::device::{Disk, PoolDevice};
use crate::error::{ErrorKind, PoolError, Result};
use crate::extents::Run;
use crate::geometry::Geometry;
use crate::reservation::Ledger;
use crate::standing::Standing;
use crate::txn::{LiveTree, Txn, Volume};

/// The bitmaps of a group that is loaded.
pub(crate) struct Maps {
    /// What may not be allocated: `durable`, and what open transactions took or have not yet given back.
    pub busy: Bitmap,
    /// What the last commit wrote, or the running one is about to.
    pub durable: Bitmap,
    /// The slot (0 or 1) that holds the committed version of each page.
    pub slots: [u8; MAX_BITMAP_PAGES],
}

pub(crate) struct Group {
    /// Kind and chunks as of now; the rest as of the last commit.
    pub record: GroupRecord,
    pub busy_count: u32,
    pub maps: Option<Box<Maps>>,
    pub checksums: LiveTree,
    /// The open round's own version of them.
    pub round: Option<btree::Tree>,
    /// Its bitmaps could not be read: it is not in the index of free space.
    pub unreadable: bool,
    /// Runs of it that direct writes have taken and not entered yet: no round may begin to edit its checksums, they will.
    pub writing: u32,
}

/// A page of the volume or group table.
#[derive(Clone, Copy, Default)]
pub(crate) struct TablePage {
    pub generation: Generation,
    /// The slot that holds the committed version.
    pub slot: u8,
}

/// Reads in flight hold one of these, so that what they read is not given to others under them.
pub(crate) type Pin = Rc<()>;

pub(crate) struct State {
    pub geometry: Geometry,
    pub uuid: [u8; 16],
    pub name: String,
    pub copies: u8,
    pub next_volume: u32,
    pub sequence: u64,
    pub tables_digest: u64,
    pub devices: Vec<PoolDevice>,
    pub store: Store,

    pub volumes: BTreeMap<VolumeId, Volume>,
    /// Those that are staging volumes, and not deleted.
    pub stagings: BTreeMap<(VolumeId, base::Epoch), VolumeId>,
    /// The volume table as committed, by place.
    pub places: Vec<Option<VolumeRecord>>,
    pub groups: Vec<Group>,
    pub table_pages: Vec<TablePage>,
    /// Table pages to be written whatever they say: a slot of theirs holds what a crash left.
    pub forced_pages: BTreeSet<u32>,
    pub free_groups: BTreeSet<GroupId>,
    pub space: Space,
    /// Groups whose bitmaps are in memory, and where the search for idle ones goes on.
    pub loaded: BTreeSet<GroupId>,
    pub unload_hand: GroupId,
    /// Groups that may have become empty.
    pub maybe_empty: BTreeSet<GroupId>,

    pub open: Txn,
    /// The open round of write-back.
    pub round: Option<crate::round::RoundTxn>,
    /// Room that is set aside for write-back.
    pub reserved: Ledger,
    /// Blocks that volumes have.
    pub held: crate::promises::Held,
    /// The last published cut, and the one that the running commit publishes.
    pub published: crate::round::Published,
    pub cache_uuid: Option<[u8; 16]>,
    /// What a cache's journal has, as far as commits know.
    pub cache_mark: Option<CacheMark>,
    pub publishing: Option<crate::round::Published>,
    /// The generation that is being committed.
    pub committing: Option<Generation>,
    /// Nodes of it that have no address yet.
    pub committing_nodes: u64,
    pub committed: Generation,
    /// The newest generation that the superblocks of all devices in use say: of the committed one a crash may have left some without.
    pub known: Generation,
    pub pin: Pin,
    /// Freed blocks that reads may still be about: they become free, in order, when nobody holds the pin.
    pub limbo: VecDeque<(Pin, Vec<Run>)>,
    /// Whether anything may be written, made durable or freed.
    pub standing: Standing,
}

/// Where free space is.
#[derive(Default)]
pub(crate) struct Space {
    /// Groups with free blocks, by kind, in the order of the logarithm of their number.
    pub by_free: [BTreeSet<(u32, GroupId)>; 2],
    /// Free blocks, by kind.
    pub free: [u64; 2],
    /// Where the next allocation looks, by kind.
    pub cursor: [Option<(GroupId, u32)>; 2],
}

pub(crate) fn kind_index(kind: GroupKind) -> usize {
    match kind {
        GroupKind::Data => 0,
        GroupKind::Metadata => 1,
        GroupKind::Free => unreachable!("a free group has no place among the used ones"),
    }
}

fn class_of(free: u32) -> u32 {
    u32::BITS - free.leading_zeros()
}

impl State {
    pub fn group(&self, id: GroupId) -> &Group {
        &self.groups[id.0 as usize]
    }

    pub fn group_mut(&mut self, id: GroupId) -> &mut Group {
        &mut self.groups[id.0 as usize]
    }

    /// Changes a used group's number of busy blocks and keeps the index of free space exact.
    pub fn set_busy(&mut self, id: GroupId, busy: u32) {
        let blocks = self.geometry.group_blocks;
        let g = &mut self.groups[id.0 as usize];
        let k = kind_index(g.record.kind);
        let (old, new) = (blocks - g.busy_count, blocks - busy);
        g.busy_count = busy;
        self.space.free[k] = self.space.free[k] + u64::from(new) - u64::from(old);
        if class_of(old) != class_of(new) {
            self.space.by_free[k].remove(&(class_of(old), id));
            if new > 0 {
                self.space.by_free[k].insert((class_of(new), id));
            }
        }
    }

    /// Enters a group that is in use into the index of free space.
    pub fn index_group(&mut self, id: GroupId) {
        let g = self.group(id);
        let k = kind_index(g.record.kind);
        let free = self.geometry.group_blocks - g.busy_count;
        self.space.free[k] += u64::from(free);
        if free > 0 {
            self.space.by_free[k].insert((class_of(free), id));
        }
    }

    /// Takes it out again.
    pub fn unindex_group(&mut self, id: GroupId) {
        let g = self.group(id);
        let k = kind_index(g.record.kind);
        let free = self.geometry.group_blocks - g.busy_count;
        self.space.free[k] -= u64::from(free);
        self.space.by_free[k].remove(&(class_of(free), id));
        if self.space.cursor[k].is_some_and(|c| c.0 == id) {
            self.space.cursor[k] = None;
        }
    }

    /// A place of the volume table that is free, and how many are.
    pub fn free_place(&self) -> (Option<u32>, usize) {
        let taken: BTreeSet<u32> = self.volumes.values().map(|v| v.place).collect();
        let place = (0..self.places.len() as u32).find(|p| !taken.contains(p));
        (place, self.places.len().saturating_sub(taken.len()))
    }

    /// Enters a new volume, which has the next number; it becomes durable with the open transaction.
    pub fn add_volume(&mut self, v: Volume) -> Result<VolumeId> {
        let (id, staged) = (v.record.id, v.record.staged);
        let Some(next) = self.next_volume.checked_add(1).filter(|_| id.0 == self.next_volume) else {
            return Err(PoolError::new(ErrorKind::NoSpace, "there are no more numbers for volumes"));
        };
        self.next_volume = next;
        assert_eq!(v.record.allocated_blocks, 0, "a new volume has nothing");
        self.volumes.insert(id, v);
        if let Some(staged) = staged {
            self.stagings.insert(staged, id);
        }
        self.edit_volume(id)?;
        Ok(id)
    }

    /// A volume, about to be edited in the open transaction.
    pub fn edit_volume(&mut self, id: VolumeId) -> Result<&mut Volume> {
        let v = self.volumes.get_mut(&id).filter(|v| !v.gone).ok_or_else(|| no_such_volume(id))?;
        v.begin_edit(self.open.generation(), self.committing);
        self.open.volumes.insert(id);
        Ok(v)
    }

    /// Notes that `run` is not referred to any more.
    pub fn note_free(&mut self, run: Run) {
        crate::extents::push_run(&mut self.open.frees, run, self.geometry.group_blocks);
    }

    /// Blocks in use or not yet free for others.
    pub fn used_blocks(&self) -> u64 {
        self.groups.iter().filter(|g| g.record.kind != GroupKind::Free).map(|g| u64::from(g.busy_count)).sum()
    }

    /// True if a device is missing or failed.
    pub fn degraded(&self) -> bool {
        self.devices.iter().any(|d| d.live().is_none())
    }

    /// Takes these devices out of use, if every group goes on without all of them; false, and nothing is changed,
    /// if the pool needs one of them.
    pub fn fail_devices(&mut self, devices: &[usize]) -> bool {
        let failing: BTreeSet<usize> = devices.iter().copied().filter(|&d| self.devices[d].live().is_some()).collect();
        if failing.is_empty() {
            return true;
        }
        let is_failing = |device: u16| failing.contains(&usize::from(device));
        let goes_on = |g: &Group| {
            g.record.chunks.iter().any(|c| !is_failing(c.device) && self.live(c.device))
                || !g.record.chunks.iter().any(|c| is_failing(c.device))
        };
        let any_other = (0..self.devices.len()).any(|d| !failing.contains(&d) && self.devices[d].live().is_some());
        if !any_other || !self.groups.iter().filter(|g| g.record.kind != GroupKind::Free).all(goes_on) {
            return false;
        }
        let at = self.sequence + 1;
        for d in failing {
            let d = &mut self.devices[d];
            d.record.state = DeviceState::Failed;
            d.record.failed_at = at;
            d.trouble = Some("failed");
            tracing::error!(device = %d.path, "device dropped from the pool: the pool goes on without it, with less redundancy");
        }
        self.open.superblock = true;
        true
    }

    /// An entry that must be in the journal of the attached cache; 0: not known.
    pub fn cache_journal(&self) -> u64 {
        self.mark().map_or(0, |m| m.entry)
    }

    /// Clean keys of the attached cache do not count.
    pub fn clean_void(&self) -> bool {
        self.mark().is_some_and(|m| m.clean_void)
    }

    fn mark(&self) -> Option<CacheMark> {
        self.cache_mark.filter(|m| Some(m.uuid) == self.cache_uuid)
    }

    fn live(&self, device: u16) -> bool {
        self.devices.get(usize::from(device)).is_some_and(|d| d.live().is_some())
    }

    /// The live copies of a block: device and offset in bytes, least busy first.
    pub fn copies_of(&self, addr: PoolAddr) -> smallvec::SmallVec<[(usize, u64); 3]> {
        let (group, block) = self.geometry.split(addr);
        let mut out: smallvec::SmallVec<[(usize, u64); 3]> = smallvec::SmallVec::new();
        let Some(g) = self.groups.get(group.0 as usize) else { return out };
        for c in &g.record.chunks {
            if self.live(c.device) {
                out.push((usize::from(c.device), self.geometry.chunk_offset(c.chunk, block)));
            }
        }
        if out.len() > 1 {
            let load = |d: usize| self.devices[d].live().map_or(usize::MAX, Disk::load);
            out.sort_by_key(|&(d, _)| load(d));
        }
        out
    }

    /// Frees what nobody can be reading any more, up to `max` runs of it; true if there is more.
    pub fn drain_limbo(&mut self, max: usize) -> bool {
        for _ in 0..max {
            let Some((pin, runs)) = self.limbo.front_mut() else { return false };
            if Rc::strong_count(pin) > 1 {
                return false;
            }
            match runs.pop() {
                Some(run) => self.release(run),
                None => drop(self.limbo.pop_front()),
            }
        }
        true
    }

    /// Brings a group's bitmaps into memory, or drops them.
    pub fn set_maps(&mut self, id: GroupId, maps: Option<Box<Maps>>) {
        if maps.is_some() {
            self.loaded.insert(id);
        } else {
            self.loaded.remove(&id);
        }
        self.group_mut(id).maps = maps;
    }

    /// A direct write has taken a run.
    pub fn begin_writing(&mut self, run: Run) {
        let (id, _) = self.geometry.split(run.addr);
        self.group_mut(id).writing += 1;
    }

    /// It was entered, or given back.
    pub fn end_writing(&mut self, runs: &[Run]) {
        for run in runs {
            let (id, _) = self.geometry.split(run.addr);
            self.group_mut(id).writing -= 1;
        }
    }

    /// Makes blocks that nothing refers to allocatable.
    pub fn release(&mut self, run: Run) {
        let (id, block) = self.geometry.split(run.addr);
        let g = self.group_mut(id);
        let freed = match &mut g.maps {
            Some(m) => m.busy.assign(block as usize, run.len as usize, false) as u32,
            None => unreachable!("{id:?} has blocks in limbo: its maps stay loaded"),
        };
        assert_eq!(freed, run.len, "blocks of {run:?} were free already");
        let busy = g.busy_count - freed;
        if busy == 0 {
            self.maybe_empty.insert(id);
        }
        self.set_busy(id, busy);
    }
}

pub(crate) fn no_such_volume(id: VolumeId) -> PoolError {
    PoolError::new(ErrorKind::NotFound, format!("there is no volume with the id {id}"))
}
