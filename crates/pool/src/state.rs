//! The pool's state in memory: its components, and the few steps that need several of them.
//!
//! Each component keeps its own state private: [`Devices`], [`Space`], [`Forest`], the transactions
//! ([`Progress`]), the [`Tables`], the cache in front ([`Attached`]) and the [`Standing`]. All of
//! it is plain data that changes between awaits only.

mod drop_failed_devices;
mod pages;
mod scrubbed;

use base::{
    BLOCK_U64, BlockRange, Generation, Instant, Lba, PoolAddr, Result, StorageError, VolumeId,
};
use btree::UnneededTrees;
use format::page::{Chunk, GroupKind, VolumeRecord};
use format::tree::{tree_name, volume_of_tree};
use smallvec::SmallVec;

use crate::attached::{Attached, PublishedCut};
use crate::devices::standing::{Permit, Standing};
use crate::devices::superblock_origin::Writers;
use crate::devices::{CopyPlace, Devices};
use crate::error::Step;
use crate::findings::{MoveState, Scrub};
use crate::forest::{Change, Edit, EditOutcome, Forest, Volume};
use crate::history::Histories;
use crate::host_log::HostLog;
use crate::space::{Alloc, Demand, Pin, Purpose, Reservation, ReservationFit, Run, Space};
use crate::txn::logged::{LoggedChange, encode_map};
use crate::txn::{Kind, Progress, SnapshotRequests, Tables, Txn, not_open};

/// The places of the copies of a block.
pub(crate) type Copies = SmallVec<[CopyPlace; 3]>;

/// The identity of the pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    pub uuid: [u8; 16],
    pub name: String,
    pub copies: u8,
}

pub(crate) struct State {
    pub identity: Identity,
    pub devices: Devices,
    pub space: Space,
    pub forest: Forest,
    pub txns: Progress,
    pub tables: Tables,
    pub attached: Attached,
    pub scrub: Scrub,
    pub moves: MoveState,
    pub histories: Histories,
    /// Whether anything may be written, made durable or freed.
    pub standing: Standing,
    /// Records of changes that were answered and are not durable yet.
    pub host_log: HostLog,
    /// Whether another process writes to the devices.
    pub writers: Writers,
    /// Snapshots that the next commits are to take.
    pub snapshot_requests: SnapshotRequests,
}

impl State {
    /// The name of a volume; its number, if it has none any more.
    pub fn volume_name(&self, id: VolumeId) -> String {
        self.forest.volume(id).map_or_else(|| id.to_string(), |v| v.record().name.clone())
    }

    /// The name of a tree for users.
    pub fn tree_name(&self, tree: u64) -> String {
        match volume_of_tree(tree) {
            Some(volume) => format!("mapping of volume {}", self.volume_name(volume)),
            None => tree_name(tree),
        }
    }

    /// A block of the device is not what was written. It is none of the device's doing once a flush
    /// has failed, and lost what was written: the next start has what was there before.
    pub fn note_bad_block(&mut self, row: usize, offset: u64, now: Instant) {
        if self.standing.ended().is_none() {
            self.devices.note_bad_block(row, offset, now);
        }
    }

    /// Changes mappings, checksums and the lists of the direct transaction, all or nothing. Returns
    /// how far the change came.
    pub fn edit_direct(&mut self, change: &Change<'_>) -> Step<Lba> {
        let g = self.txns.generations();
        let upto = self.forest.edit_direct(self.txns.open_mut(), g, change)?;
        self.log_direct(change, upto);
        Ok(upto)
    }

    /// As [`State::edit_direct`], in the write-back pass.
    pub fn edit_pass(&mut self, change: &Change<'_>) -> Step<EditOutcome> {
        let g = self.txns.generations();
        self.forest.edit_pass(self.txns.txn_mut(Kind::Pass)?, g, change)
    }

    /// Records a direct change, which came as far as `upto`, in the host log.
    fn log_direct(&self, change: &Change<'_>, upto: Lba) {
        // A deleted volume gives its blocks back without a client.
        let live = self.forest.volume(change.volume()).filter(|v| v.is_live());
        let Some(v) = live else { return };
        let stamp = self.txns.open().generation().0;
        if !self.host_log.is_live() {
            return self.host_log.miss(stamp);
        }
        // Blocks behind the end were cut off by a shrink, which counts when it is durable.
        let (volume, end) = (change.volume(), upto.min(end_of(v)));
        let mut payload = Vec::with_capacity(64);
        let kind = match *change {
            // Of a shrink: as long as that is not durable, the block is what it was before.
            Change::Map { size: Some(_), .. } => return,
            Change::Map { lba, runs, crcs, .. } => {
                let geometry = self.space.geometry();
                let placed =
                    |run: &Run| (*run, self.space.groups().chunks(geometry.split(run.addr).0));
                encode_map(&mut payload, volume, lba, runs.iter().map(placed), crcs)
            }
            Change::Unmap { range, .. } if range.from >= end => return,
            Change::Unmap { range: BlockRange { from: lba, .. }, .. } => {
                LoggedChange::Unmap { volume, lba, end }.encode(&mut payload)
            }
        };
        self.host_log.append(kind, stamp, &payload);
    }

    /// Records in the host log what the next commit says of the cache in front.
    pub fn log_of_cache(&self, said: &LoggedChange) {
        let kind = said.encode(&mut Vec::new());
        self.host_log.append(kind, self.txns.open().generation().0, &[]);
    }

    /// Nothing is written to the pool any more, for this reason.
    pub fn end_standing(&mut self, why: StorageError) -> StorageError {
        self.standing.end(&self.host_log, why)
    }

    /// Changes the record of a volume in the direct transaction.
    pub fn change_volume(&mut self, id: VolumeId, f: impl FnOnce(&mut VolumeRecord)) -> Result<()> {
        let g = self.txns.generations();
        self.forest.change(Edit { txn: self.txns.open_mut(), g }, id, f)
    }

    /// Enters a new volume in the direct transaction.
    pub fn add_volume(&mut self, v: Volume) -> Result<VolumeId> {
        let g = self.txns.generations();
        self.forest.add(Edit { txn: self.txns.open_mut(), g }, v)
    }

    /// Empties the place of a deleted volume that has nothing any more; true of a staging volume.
    pub fn forget_volume(&mut self, id: VolumeId) -> Result<bool> {
        let g = self.txns.generations();
        self.forest.forget(Edit { txn: self.txns.open_mut(), g }, id)
    }

    /// A commit has failed: volumes that it would have created do not come to be.
    pub fn give_up_creations(&mut self) {
        let g = self.txns.generations();
        self.forest.give_up_creations(Edit { txn: self.txns.open_mut(), g });
    }

    /// Marks staging volumes deleted, in the direct transaction. The caller has their blocks freed.
    pub fn end_stagings(&mut self, f: impl Fn(VolumeId, base::Epoch) -> bool) -> Vec<VolumeId> {
        let g = self.txns.generations();
        self.forest.end_stagings(Edit { txn: self.txns.open_mut(), g }, f)
    }

    /// Nodes of trees that must find room at a commit.
    pub fn dirty_nodes(&self) -> u64 {
        self.txns.dirty_nodes()
    }

    /// Takes up to `want` contiguous blocks of `kind`.
    pub fn alloc(&mut self, kind: GroupKind, want: u32) -> Alloc {
        let demand = self.demand();
        self.space.alloc(&mut self.devices, kind, want, &demand)
    }

    /// As [`State::alloc`], of data for the write-back pass; `keeps`: what is kept for metadata
    /// stays.
    pub fn alloc_for_pass(&mut self, want: u32, keeps: bool) -> Result<Alloc> {
        let State { forest, txns, space, devices, .. } = self;
        let g = txns.generations();
        let pass = txns.txn_mut(Kind::Pass)?;
        let got = space.alloc_for_pass(devices, want, keeps, |id| forest.is_quiet(id, g));
        if let Alloc::Joined(id) = got {
            forest.join_sums(pass, g, id);
        }
        Ok(got)
    }

    /// True if a change of the trees may go ahead: all its nodes will find room at commit.
    pub fn admits(&self, purpose: Purpose) -> bool {
        self.space.room().admits(&self.devices, purpose, self.dirty_nodes())
    }

    /// True if it may go ahead when the changes that are under way have ended.
    pub fn admits_later(&self, purpose: Purpose) -> bool {
        self.space.room().admits_later(&self.devices, purpose, self.dirty_nodes())
    }

    /// True if a direct write may find `blocks` blocks when the changes that are under way have
    /// ended.
    pub fn may_take_later(&self, blocks: u64) -> bool {
        self.space.room().may_take_later(&self.devices, blocks, &self.demand())
    }

    /// The metadata that has to find room, including the nodes that the open write-back pass has
    /// changed: the pass has spent the room for them with that of its blocks.
    pub fn demand(&self) -> Demand {
        Demand {
            dirty_nodes: self.dirty_nodes()
                + self.txns.pass().map_or(0, |pass| pass.dirty_nodes() + pass.deadlist_nodes()),
            blocks: self.forest.held().0,
        }
    }

    /// True if a direct write of `blocks` leaves what is reserved.
    pub fn leaves_reserved(&self, blocks: u64) -> bool {
        self.space.room().leaves_reserved(&self.devices, blocks, &self.demand())
    }

    /// Whether all that is reserved finds room, and what is dirty.
    pub fn reserved_fits(&self) -> ReservationFit {
        self.space.room().reserved_fits(&self.devices, &self.demand())
    }

    /// Reserves room for `blocks` blocks that write-back will write.
    pub fn reserve(&self, blocks: u64) -> Result<Reservation> {
        let got = self.space.room().reserve(&self.devices, blocks, &self.demand());
        got.ok_or_else(|| self.space.supply().no_room("the pool is full"))
    }

    /// True if `blocks` blocks that found no room may find it when the changes that are under way
    /// have ended.
    pub fn may_reserve_later(&self, blocks: u64) -> bool {
        self.space.room().may_reserve_later(&self.devices, blocks, &self.demand())
    }

    /// True if waiting for a commit may free something.
    pub fn gives_back(&self) -> bool {
        self.txns.open().frees_anything()
            || self.txns.committing().is_some()
            || self.space.limbo().has_any()
    }

    /// The next commit has to write the superblocks, whatever else it has. They say something that
    /// another half of the pool, were it opened alone, could not know.
    pub fn need_superblock(&mut self) {
        self.txns.open_mut().need_superblock();
        self.txns.open_mut().note_change();
    }

    /// Superblocks are of this open from now on, and the next commit writes the first one.
    pub fn begin_open(&mut self) {
        self.histories.begin();
        self.note_in_superblock();
    }

    /// The next commit has to write the superblocks. What they say changes nothing that the pool
    /// holds: it is of no account when halves of it meet again.
    pub fn note_in_superblock(&mut self) {
        self.txns.open_mut().need_superblock();
    }

    /// The copies of a block that are written: device and offset in bytes, also where the chunk is
    /// behind.
    pub fn copies_to_write(&self, addr: PoolAddr) -> Copies {
        let group = self.space.geometry().split(addr).0;
        let gets = |c: &Chunk| self.devices.written(c.device.into()).is_some();
        self.places_in(self.space.groups().chunks(group), addr, gets)
    }

    /// A device that is away has a copy of this block, which may be good.
    pub fn may_be_away(&self, addr: PoolAddr) -> bool {
        let group = self.space.geometry().split(addr).0;
        self.space.groups().chunks(group).iter().any(|c| !self.devices.is_live(c.device.into()))
    }

    /// The rows of the devices that have a copy of a block, in use or not.
    pub fn rows_of(&self, addr: PoolAddr) -> Vec<usize> {
        let group = self.space.geometry().split(addr).0;
        self.space.groups().chunks(group).iter().map(|c| c.device.into()).collect()
    }

    /// The copies of a block that count, for a read with this pin: good sources first, and the
    /// least busy.
    pub fn copies_for(&self, addr: PoolAddr, pin: &Pin) -> Copies {
        let group = self.space.geometry().split(addr).0;
        let mut out = self.places_in(self.space.groups().chunks_for(group, pin), addr, |c| {
            self.devices.is_whole(c)
        });
        if out.len() > 1 {
            out.sort_by_key(|copy| self.devices.read_order(copy.row));
        }
        out
    }

    fn places_in(&self, chunks: &[Chunk], addr: PoolAddr, f: impl Fn(&Chunk) -> bool) -> Copies {
        let geometry = self.space.geometry();
        let block = geometry.split(addr).1;
        let place = |c: &Chunk| CopyPlace {
            row: c.device.into(),
            offset: geometry.chunk_offset(c.chunk, block),
        };
        chunks.iter().filter(|c| f(c)).map(place).collect()
    }

    /// As [`State::copies_for`], for a read of `bytes` bytes of the first: on rotating devices one
    /// whose head will be near is as good as one that is less busy. Last come chunks that are
    /// behind: if no copy is good, they may have what is older than their absence.
    pub fn copies_to_read(&mut self, addr: PoolAddr, bytes: usize, pin: &Pin) -> Copies {
        let mut copies = self.copies_for(addr, pin);
        if copies.len() > 1 {
            self.devices.put_near_first(&mut copies, bytes as u64);
        }
        copies.extend(self.copies_behind(addr, pin));
        copies
    }

    /// The places where chunks that are behind may have a block, for a read with this pin. Nothing
    /// is missing where one of these chunks does not have the block.
    pub fn copies_behind(&self, addr: PoolAddr, pin: &Pin) -> Copies {
        let chunks = self.space.groups().chunks_for(self.space.geometry().split(addr).0, pin);
        let is_behind = |c: &Chunk| c.behind && self.devices.is_live(c.device.into());
        self.places_in(chunks, addr, is_behind)
    }

    /// The trees of the write-back pass take the place of the live ones, and what it has changed
    /// joins the open transaction, which publishes `cut`.
    pub fn merge_pass(&mut self, _: Permit, cut: PublishedCut) -> Result<()> {
        let pass = self.end_pass().ok_or_else(not_open)?;
        let g = self.txns.generations();
        self.forest.publish_pass(Edit { txn: self.txns.open_mut(), g }, &pass);
        self.txns.open_mut().merge(pass, cut);
        Ok(())
    }

    /// Gives the write-back pass up; returns what it had allocated, the room that it has left, and
    /// its trees.
    pub fn give_up_pass(&mut self) -> Option<(Vec<Run>, Option<Reservation>, UnneededTrees)> {
        let pass = self.end_pass()?;
        let trees = self.forest.leave_pass(&pass);
        let (allocs, room) = pass.into_allocs();
        Some((allocs, room, trees))
    }

    fn end_pass(&mut self) -> Option<Txn> {
        let pass = self.txns.take_pass()?;
        pass.groups().iter().for_each(|&(id, _)| self.space.leave_pass(id));
        self.space.supply_mut().end_pass();
        self.forest.store_mut().let_go();
        Some(pass)
    }

    /// The commit that runs, or the one that is next, has everything that was done until now.
    pub fn next_commit(&self) -> Option<Generation> {
        let open = self.txns.open();
        if open.is_clean() { self.txns.committing() } else { Some(open.generation()) }
    }
}

/// The first block that is behind a volume.
fn end_of(volume: &Volume) -> Lba {
    Lba(volume.record().size_bytes.div_ceil(BLOCK_U64))
}
