//! The cache's state in memory: plain data, changed between awaits only.

use base::{CacheAddr, Epoch, Instant, Lba, RecordSeq, VolumeId};
use btree::NodePtr;
use format::cache::journal::Record;
use pool::{Reservation, Step};

use crate::device::flush_barrier::Health;
use crate::policy::doorkeeper::Doorkeeper;
use crate::store::bad_blocks::BadBlocks;
use crate::store::buckets::Buckets;
use crate::store::hit_ratio::{HitRatios, Hits};
use crate::store::index::{Index, node_addr};
use crate::store::journal::Journal;
use crate::store::key::{Body, IndexKey};
use crate::store::limbo::Limbo;
use crate::store::pool_commits::Commits;
use crate::store::promotions::Promotions;
use crate::store::ring_room::JournalRoom;
use crate::store::unpublished::Unpublished;

/// What clients' requests met.
#[derive(Clone, Copy, Default, Debug)]
pub struct HitStats {
    /// Blocks read from the cache.
    pub hits: u64,
    /// Blocks read from the pool.
    pub misses: u64,
    /// Blocks that went past the cache.
    pub bypassed: u64,
    /// Blocks kept after they were read from the pool.
    pub promoted: u64,
    /// Writes of some sectors of a block that were kept as such.
    pub parts: u64,
    /// Such blocks that a read has completed.
    pub completed: u64,
    /// Clean blocks that were bad in the cache and read from the pool instead.
    pub refetched: u64,
    /// Dirty blocks that are bad: no copy is left.
    pub lost: u64,
    /// Buckets evicted.
    pub evicted: u64,
    /// Blocks read and missed that were in the cache not long ago, and entered the main queue.
    pub ghost_hits: u64,
    /// Blocks of victims that were kept.
    pub survivors: u64,
    /// Blocks of victims that were to be kept, but were bad.
    pub bad_survivors: u64,
}

pub(crate) struct State {
    pub index: Index,
    pub buckets: Buckets,
    pub journal: Journal,
    pub limbo: Limbo,
    pub promotions: Promotions,
    pub doorkeeper: Doorkeeper,
    /// What commits of the pool wait for, and what waits for them.
    pub commits: Commits,
    /// Which volumes the pool lacks something of.
    pub unpublished: Unpublished,
    /// Dirty blocks that cannot be written back.
    bad: BadBlocks,
    /// Whether anything can be made durable.
    pub health: Health,
    stats: HitStats,
    ratios: HitRatios,
    /// Nodes that the running checkpoint has yet to write.
    nodes_left: u64,
    /// A value that is being encoded.
    value: Vec<u8>,
    /// Room in the pool for what is dirty in the open epoch: for exactly as many blocks.
    reserved: Reservation,
}

impl State {
    /// The state of a cache that is opened. `reserved` is the pool's room for its dirty blocks.
    pub fn new(
        (index, buckets, journal): (Index, Buckets, Journal),
        dirty_at_open: Epoch,
        reserved: Reservation,
        health: Health,
    ) -> State {
        State {
            index,
            buckets,
            journal,
            limbo: Limbo::default(),
            promotions: Promotions::default(),
            doorkeeper: Doorkeeper::new(1 << 16),
            commits: Commits::default(),
            unpublished: Unpublished::new(dirty_at_open),
            bad: BadBlocks::default(),
            health,
            stats: HitStats::default(),
            ratios: HitRatios::new(),
            nodes_left: 0,
            value: Vec::new(),
            reserved,
        }
    }

    /// What clients' requests met.
    pub fn stats(&self) -> &HitStats {
        &self.stats
    }

    /// Counts what a request met.
    pub fn count(&mut self, count: impl FnOnce(&mut HitStats)) {
        count(&mut self.stats);
    }

    /// Blocks of a volume were read, so many of them from the cache.
    pub fn count_read(&mut self, volume: VolumeId, read: Hits, now: Instant) {
        self.stats.hits += read.hits;
        self.stats.misses += read.misses;
        self.ratios.add(volume, read, now);
    }

    /// The share of blocks read that was found.
    pub fn ratios(&self) -> &HitRatios {
        &self.ratios
    }

    /// A volume was deleted: nothing is said of it any more.
    pub fn forget_volume(&mut self, volume: VolumeId) {
        self.unpublished.forget(volume);
        self.bad.replaced(volume, (Lba(0), Lba(u64::MAX)));
        self.ratios.forget(volume);
    }

    /// Nodes that the running checkpoint has yet to write.
    pub fn nodes_left(&self) -> u64 {
        self.nodes_left
    }

    /// A checkpoint begins, which has so many nodes to write.
    pub fn begin_nodes(&mut self, nodes: u64) {
        self.nodes_left = nodes;
    }

    /// So many nodes of the running checkpoint have their room.
    pub fn took_for_nodes(&mut self, nodes: u64) {
        self.nodes_left -= nodes;
    }

    /// An empty share of the room in the pool, to be merged with others.
    pub fn empty_reservation(&mut self) -> Reservation {
        self.reserved.split(0)
    }

    /// The room in the pool for what is dirty in the open epoch, which ends.
    pub fn take_reservation(&mut self) -> Reservation {
        self.reserved.split_all()
    }

    /// Makes `[lba, end)` what `new` says: the index, the buckets' counters, and, in `room`, the
    /// journal. The open epoch has no more dirty blocks then than before.
    pub fn change(
        &mut self,
        room: &mut JournalRoom,
        volume: VolumeId,
        range: (Lba, Lba),
        new: &[IndexKey],
    ) -> Step<()> {
        self.enter(Some(room), None, volume, range, new)
    }

    /// Like `change`, for dirty blocks. Each of them takes its room in the pool out of `reserved`.
    pub fn change_dirty(
        &mut self,
        (room, reserved): (&mut JournalRoom, &mut Reservation),
        volume: VolumeId,
        range: (Lba, Lba),
        new: &[IndexKey],
    ) -> Step<()> {
        self.enter(Some(room), Some(reserved), volume, range, new)
    }

    /// Like `change`, without a journal record: what the pool has is entered, or goes.
    pub fn change_clean(
        &mut self,
        volume: VolumeId,
        range: (Lba, Lba),
        new: &[IndexKey],
    ) -> Step<()> {
        self.enter(None, None, volume, range, new)
    }

    fn enter(
        &mut self,
        room: Option<&mut JournalRoom>,
        reserved: Option<&mut Reservation>,
        volume: VolumeId,
        (lba, end): (Lba, Lba),
        new: &[IndexKey],
    ) -> Step<()> {
        // What ceases to be needed may be overwritten when the records of this change are durable.
        let records = if room.is_none() { 0 } else { new.len().max(1) as u64 };
        let pushed = self.journal.pushed();
        self.buckets.set_clock(RecordSeq(pushed.0 + records));
        let outcome = self.index.replace(&mut self.buckets, volume, (lba, end), new);
        self.buckets.set_clock(pushed);
        outcome?;
        self.bad.replaced(volume, (lba, end));
        let (dirty, held) = (self.buckets.dirty_blocks().0, self.reserved.blocks());
        match reserved {
            Some(reserved) if dirty > held => self.reserved.merge(reserved.split(dirty - held)),
            _ => drop(self.reserved.split(held - dirty)),
        }
        if let Some(room) = room {
            self.buckets.add_zeros(
                new.iter().filter(|e| matches!(e.body, Body::Zeros { .. })).count() as u64,
            );
            self.promotions.spoil(volume, lba, end);
            if new.iter().any(|e| e.written.is_some()) {
                self.unpublished.note(volume, self.buckets.epoch());
            }
            new.iter().for_each(|e| self.push_insert(room, e));
            if new.is_empty() {
                self.push(room, &Record::Remove { volume, lba, len: end.0 - lba.0 });
            }
        }
        Ok(())
    }

    /// Adds a record to the journal.
    pub fn push(&mut self, room: &mut JournalRoom, record: &Record<'_>) {
        self.buckets.set_clock(self.journal.push(room, record));
    }

    /// Adds the record of an extent to the journal.
    pub fn push_insert(&mut self, room: &mut JournalRoom, e: &IndexKey) {
        let mut value = std::mem::take(&mut self.value);
        e.encode(&mut value);
        self.push(room, &Record::Insert { volume: e.volume, lba: e.lba, value: &value });
        self.value = value;
    }

    /// Nodes that checkpoints have yet to write: the running one, and the next.
    pub fn nodes_due(&self) -> u64 {
        self.nodes_left + self.index.dirty_nodes()
    }

    /// Tells the journal of evicted buckets.
    pub fn journal_raised(&mut self, room: &mut JournalRoom) {
        for (bucket, generation) in self.buckets.take_raised() {
            self.push(room, &Record::Raise { bucket, generation });
        }
    }

    /// Gives back blocks of nodes that no read can be using, some of them; true if there may be
    /// more.
    pub fn drain_limbo(&mut self, max: usize) -> bool {
        for _ in 0..max {
            let Some(NodePtr { addr, .. }) = self.limbo.next_free() else { return false };
            self.index.store_mut().forget(addr);
            self.buckets.remove_node(node_addr(addr));
        }
        true
    }

    /// Clean or dead keys were dropped: from now on commits of the pool wait for all that the
    /// journal was told.
    pub fn hold_commits(&mut self) {
        self.commits.hold_for_drops(self.journal.pushed());
    }

    /// Remembers a dirty block of which no copy is left. Returns how many are known now, if it was
    /// not.
    pub fn note_bad(&mut self, volume: VolumeId, lba: Lba) -> Option<u64> {
        self.stats.lost += 1;
        self.note_stuck(volume, lba)
    }

    /// Remembers a dirty block that cannot be written back now. Returns how many are known now, if
    /// it was not.
    pub fn note_stuck(&mut self, volume: VolumeId, lba: Lba) -> Option<u64> {
        self.bad.note(volume, lba)
    }

    /// The blocks `[lba, end)` of a volume, which are at `addr`, can be written back: those that
    /// the index has there still are bad no more.
    pub fn note_good(
        &mut self,
        volume: VolumeId,
        (lba, end): (Lba, Lba),
        addr: CacheAddr,
    ) -> Step<()> {
        for e in self.index.overlapping(&self.buckets, volume, (lba, end), usize::MAX)? {
            let e = e.slice(lba.0, end.0);
            let there = CacheAddr(addr.0 + (e.lba.0 - lba.0));
            if matches!(e.body, Body::Data { addr, .. } if addr == there) {
                self.bad.replaced(volume, (e.lba, Lba(e.end())));
            }
        }
        Ok(())
    }

    /// Dirty blocks that cannot be written back.
    pub fn bad_blocks(&self) -> &BadBlocks {
        &self.bad
    }
}
