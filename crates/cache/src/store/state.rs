//! The cache's state in memory: plain data, changed between awaits only.
//!
//! The state is made of components, and has the steps that need several of them. The halves of such
//! a step are visible in this folder alone, or the component is lent to be read alone. So whatever
//! a flow can call is right by itself.

use base::{
    BlockRange, BucketGen, BufPool, CacheAddr, EntrySeq, Epoch, Instant, Lba, PoolAddr, RecordSeq,
    VolumeId,
};
use btree::{NodePtr, Tree, WriteOut};
use format::cache::journal::Record;
use format::cache::pool_seen::PoolSeen;
use pool::{Reservation, Step};

use crate::device::flush_barrier::{Durable, Health};
use crate::policy::doorkeeper::Doorkeeper;
use crate::store::bad_blocks::BadBlocks;
use crate::store::buckets::census::Stream;
use crate::store::buckets::{Buckets, Victim};
use crate::store::dirty_volumes::DirtyVolumes;
use crate::store::frozen::{CheckpointState, FrozenIndex};
use crate::store::hit_ratio::{HitRatios, Hits};
use crate::store::index::{Index, node_addr};
use crate::store::journal::{Journal, ReadyEntry};
use crate::store::key::{Body, IndexKey};
use crate::store::limbo::Limbo;
use crate::store::promotions::{PromotionKey, Promotions};
use crate::store::ring_room::JournalRoom;

/// Counts of what clients' requests met.
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
    /// Clean blocks that were bad in the cache and dropped: the pool has them.
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

/// A cut was taken: the epoch that it seals, and its dirty blocks with their room in the pool.
#[must_use = "a pass has to carry it"]
pub(crate) struct SealedCut {
    pub epoch: Epoch,
    pub tree: Tree,
    pub blocks: u64,
    pub reserved: Reservation,
}

pub(crate) struct State {
    pub index: Index,
    pub buckets: Buckets,
    pub promotions: Promotions,
    pub doorkeeper: Doorkeeper,
    journal: Journal,
    limbo: Limbo,
    /// The last record that tells of clean or dead keys that were dropped.
    dropped: RecordSeq,
    /// Which volumes the pool lacks something of.
    dirty_volumes: DirtyVolumes,
    /// Dirty blocks that cannot be written back.
    bad: BadBlocks,
    /// Reads of dirty blocks that failed while the cache's device had failed or answered nothing.
    unread: u64,
    /// Whether anything can be made durable.
    health: Health,
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
        index: Index,
        buckets: Buckets,
        journal: Journal,
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
            dropped: RecordSeq(0),
            dirty_volumes: DirtyVolumes::new(dirty_at_open),
            bad: BadBlocks::default(),
            unread: 0,
            health,
            stats: HitStats::default(),
            ratios: HitRatios::new(),
            nodes_left: 0,
            value: Vec::new(),
            reserved,
        }
    }

    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Nodes of the index that wait for readers and cuts.
    pub fn limbo(&self) -> &Limbo {
        &self.limbo
    }

    /// Clean or dead keys were dropped, the last of them by this record: commits of the pool wait
    /// until the journal has it. Where it can never be durable, the pool says that no clean key
    /// counts.
    pub fn dropped(&self) -> RecordSeq {
        self.dropped
    }

    /// Which volumes the pool lacks something of.
    pub fn dirty_volumes(&self) -> &DirtyVolumes {
        &self.dirty_volumes
    }

    /// Whether anything can be made durable.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Counts of what clients' requests met.
    pub fn stats(&self) -> &HitStats {
        &self.stats
    }

    /// Blocks went past the cache.
    pub fn bypassed(&mut self, blocks: u64) {
        self.stats.bypassed += blocks;
    }

    /// Clean blocks were bad in the cache, and were dropped.
    pub fn refetched(&mut self, blocks: u64) {
        self.stats.refetched += blocks;
    }

    /// Some sectors of a block were written, and kept as such.
    pub fn wrote_part(&mut self) {
        self.stats.parts += 1;
    }

    /// A read has completed such a block.
    pub fn completed_part(&mut self) {
        self.stats.completed += 1;
    }

    /// Blocks of a victim have moved.
    pub fn survived(&mut self, blocks: u64) {
        self.stats.survivors += blocks;
        self.buckets.usage_mut().moved(blocks);
    }

    /// A block of the victim at `addr` was to be kept, and is bad.
    pub fn bad_survivor(&mut self, addr: CacheAddr) {
        self.stats.bad_survivors += 1;
        self.buckets.condemn(addr);
    }

    /// Begins to watch a range that is to be kept; `None` if it cannot be. If at least half of it
    /// are `ghosts`, which the main queue takes, all goes there.
    pub fn watch(
        &mut self,
        volume: VolumeId,
        range: BlockRange,
        ghosts: u64,
    ) -> Option<PromotionKey> {
        if self.health.has_failed() {
            return None;
        }
        let is_main = ghosts > 0 && ghosts * 2 >= range.blocks();
        let stream = if is_main { Stream::Main } else { Stream::Promoted };
        let key = self.promotions.begin(volume, range, self.index.published(), stream)?;
        self.stats.ghost_hits += if is_main { ghosts } else { 0 };
        Some(key)
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
        self.dirty_volumes.forget(volume);
        self.bad.replaced(volume, BlockRange::new(Lba(0), Lba(u64::MAX)));
        self.ratios.forget(volume);
    }

    /// Blocks to be filled next: [`Buckets::append_beside`].
    pub fn append(&mut self, stream: Stream, want: u32) -> Option<(CacheAddr, u32, BucketGen)> {
        self.buckets.append_beside(stream, want, self.nodes_left)
    }

    /// Nodes that the running checkpoint has yet to write.
    pub fn nodes_left(&self) -> u64 {
        self.nodes_left
    }

    /// A checkpoint that runs has so many nodes to write.
    #[cfg(test)]
    pub fn suppose_nodes(&mut self, nodes: u64) {
        self.nodes_left = nodes;
    }

    /// Notes that `nodes` nodes of the running checkpoint have their room.
    pub fn took_for_nodes(&mut self, nodes: u64) {
        self.nodes_left -= nodes;
    }

    /// An empty share of the room in the pool, to be merged with others.
    pub fn empty_reservation(&mut self) -> Reservation {
        self.reserved.split(0)
    }

    /// The cache ends. The room of what is dirty in the open epoch stays reserved.
    pub fn keep_room(&mut self) {
        self.reserved.split_all().keep();
    }

    /// Makes `range` what `new` says: the index, the buckets' counters, and, in `room`, the
    /// journal. The open epoch has no more dirty blocks then than before. Where `new` is empty this
    /// is [`State::drop_keys`].
    pub fn change(
        &mut self,
        room: &mut JournalRoom,
        volume: VolumeId,
        range: BlockRange,
        new: &[IndexKey],
    ) -> Step<()> {
        if new.is_empty() {
            return self.drop_keys(room, volume, range);
        }
        self.enter(Some(room), None, volume, range, new)
    }

    /// Like `change`, for dirty blocks. Each of them takes its room in the pool out of `reserved`.
    pub fn change_dirty(
        &mut self,
        room: &mut JournalRoom,
        reserved: &mut Reservation,
        volume: VolumeId,
        range: BlockRange,
        new: &[IndexKey],
    ) -> Step<()> {
        self.enter(Some(room), Some(reserved), volume, range, new)
    }

    /// Enters what the pool has and is to be kept, without a journal record.
    pub fn promote(&mut self, volume: VolumeId, range: BlockRange, new: &[IndexKey]) -> Step<()> {
        self.enter(None, None, volume, range, new)?;
        self.stats.promoted += new.iter().map(IndexKey::len).sum::<u64>();
        Ok(())
    }

    /// Drops all keys of `range`. Commits of the pool wait until the journal has it, and all
    /// that it was told before: what made keys stale, too. Fails if the cache is closed: no record
    /// would tell of what is dropped after the last entry.
    pub fn drop_keys(
        &mut self,
        room: &mut JournalRoom,
        volume: VolumeId,
        range: BlockRange,
    ) -> Step<()> {
        self.health.check_open()?;
        self.enter(Some(room), None, volume, range, &[])
    }

    /// The same without a journal record: after a crash they are there again.
    pub fn drop_unlogged(&mut self, volume: VolumeId, range: BlockRange) -> Step<()> {
        self.enter(None, None, volume, range, &[])
    }

    /// Drops a dead key, unlogged; false if it is something else by now.
    pub fn drop_dead(&mut self, volume: VolumeId, lba: Lba) -> Step<bool> {
        let dropped = self.index.drop_dead(&mut self.buckets, volume, lba)?;
        self.hold_commits();
        Ok(dropped)
    }

    /// Clean or dead keys were dropped: from now on commits of the pool wait for all that the
    /// journal was told.
    fn hold_commits(&mut self) {
        self.dropped = self.journal.pushed();
    }

    fn enter(
        &mut self,
        room: Option<&mut JournalRoom>,
        reserved: Option<&mut Reservation>,
        volume: VolumeId,
        range: BlockRange,
        new: &[IndexKey],
    ) -> Step<()> {
        // Blocks that cease to be needed may be overwritten when the records of this change are
        // durable.
        let records = if room.is_none() { 0 } else { new.len().max(1) as u64 };
        let pushed = self.journal.pushed();
        self.buckets.set_clock(RecordSeq(pushed.0 + records));
        let outcome = self.index.replace(&mut self.buckets, volume, range, new);
        self.buckets.set_clock(pushed);
        outcome?;
        self.bad.replaced(volume, range);
        let (dirty, before) = (self.buckets.counts().dirty_blocks().0, self.reserved.blocks());
        match reserved {
            Some(reserved) if dirty > before => self.reserved.merge(reserved.split(dirty - before)),
            _ => drop(self.reserved.split(before - dirty)),
        }
        if let Some(room) = room {
            self.buckets.counts_mut().add_zeros(
                new.iter().filter(|e| matches!(e.body, Body::Zeros { .. })).count() as u64,
            );
            self.promotions.spoil(volume, range);
            if new.iter().any(|e| e.written.is_some()) {
                self.dirty_volumes.note(volume, self.buckets.epochs().open());
            }
            new.iter().for_each(|e| self.push_insert(room, e));
            if new.is_empty() {
                self.push(room, &Record::Remove { volume, lba: range.from, len: range.blocks() });
            }
        }
        if new.is_empty() {
            self.hold_commits();
        }
        Ok(())
    }

    /// Adds a record to the journal.
    fn push(&mut self, room: &mut JournalRoom, record: &Record<'_>) {
        self.buckets.set_clock(self.journal.push(room, record));
    }

    /// Adds the record of an extent to the journal.
    fn push_insert(&mut self, room: &mut JournalRoom, e: &IndexKey) {
        let mut value = std::mem::take(&mut self.value);
        e.encode(&mut value);
        self.push(room, &Record::Insert { volume: e.volume, lba: e.lba, value: &value });
        self.value = value;
    }

    /// Nodes that checkpoints have yet to write: the running one, and the next.
    pub fn nodes_due(&self) -> u64 {
        self.nodes_left + self.index.dirty_nodes()
    }

    /// Chooses a bucket that goes, and evicts it if it has no survivors, or if that is `forced`.
    pub fn evict(&mut self, room: &mut JournalRoom, forced: bool) -> Option<Victim> {
        let victim = if forced { self.buckets.evict() } else { self.buckets.evict_or_keep() }?;
        if let Victim::Evicted(bucket, generation) = victim {
            self.index.evicted(bucket);
            self.stats.evicted += 1;
            self.push(room, &Record::Raise { bucket, generation });
        }
        Some(victim)
    }

    /// All that the journal was told until now is in entries before this one.
    pub fn close_entries(&mut self) -> EntrySeq {
        self.journal.close_entries()
    }

    /// Entries before `before` to be written, some at a time: none only if all were taken out.
    /// `entry`: the one that the pool's superblocks name by now.
    pub fn take_entries(
        &mut self,
        before: EntrySeq,
        entry: EntrySeq,
        bufs: &BufPool,
    ) -> Vec<ReadyEntry> {
        let seen = PoolSeen { entry, published: self.index.published() };
        self.journal.take_ready(before, seen, bufs)
    }

    /// The journal is durable up to this entry, and to this record.
    pub fn note_durable(&mut self, proof: Durable, entry: EntrySeq, record: RecordSeq) {
        self.journal.note_durable(proof, entry, record);
        self.free_durable();
    }

    /// Buckets are free whose records are durable: they may have become empty only after that.
    pub fn free_durable(&mut self) {
        self.buckets.journal_durable(self.journal.durable());
    }

    /// Takes a cut: seals the open epoch, and opens the next.
    pub fn take_cut(&mut self, room: &mut JournalRoom) -> SealedCut {
        let (reserved, blocks) =
            (self.reserved.split_all(), self.buckets.counts().dirty_blocks().0);
        let epoch = self.buckets.take_cut();
        self.push(room, &Record::Epoch { epoch: self.buckets.epochs().open() });
        self.limbo.take_cut(epoch, self.index.generation());
        SealedCut { epoch, tree: self.index.tree().clone(), blocks, reserved }
    }

    /// The cut of `epoch` is published: everything of it and of those before is clean.
    pub fn publish(&mut self, epoch: Epoch) {
        self.index.publish(epoch);
        self.buckets.publish(epoch);
        self.limbo.published(epoch);
    }

    /// Freezes all that a checkpoint writes. `entry`: as for [`State::take_entries`].
    pub fn freeze(&mut self, entry: EntrySeq) -> FrozenIndex {
        let (place, last) = self.journal.next_place();
        self.buckets.freeze();
        let (tree, mut changes) = self.index.freeze();
        self.nodes_left = changes.dirty() as u64;
        let named = CheckpointState {
            generation: changes.generation(),
            root: None,
            place,
            epochs: (self.buckets.epochs().open(), self.buckets.epochs().cut().unwrap_or_default()),
            staged: self.buckets.counts().staged_named(),
            counted_from: Epoch(self.buckets.epochs().counted_above().0 + 1),
            pool_seen: PoolSeen { entry, published: self.index.published() },
        };
        FrozenIndex { tree, named, freed: changes.take_freed(), last }
    }

    /// Writes the next node of a checkpoint into `block`, which will stand at `at`.
    pub fn write_node(&mut self, out: &mut WriteOut, at: PoolAddr, block: &mut [u8]) {
        let written = out.next(self.index.store_mut(), &mut || Some(at), block);
        let once = "each changed node is written once, where it was offered";
        assert_eq!(written, Ok(Some(at)), "{once}");
        self.buckets.add_node(node_addr(at));
    }

    /// The last nodes of a checkpoint cannot be written where they were to stand: they are to be
    /// written elsewhere. Returns how many.
    pub fn take_nodes_back(&mut self, out: &mut WriteOut) -> u64 {
        let addrs = out.take_back(self.index.store_mut());
        for &addr in &addrs {
            self.buckets.replace_node(self.buckets.geometry().of(node_addr(addr)));
            self.buckets.remove_node(node_addr(addr));
        }
        self.nodes_left += addrs.len() as u64;
        addrs.len() as u64
    }

    /// A checkpoint is durable; it has replaced the nodes `freed`.
    pub fn complete(&mut self, proof: Durable, frozen: &FrozenIndex, freed: Vec<NodePtr>) {
        self.index.settle(&frozen.tree);
        self.journal.forget_before(proof, frozen.named.place.sequence, frozen.last);
        self.limbo.replaced(freed);
        self.free_durable();
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

    /// A dirty block could not be read, and is not known to be lost. Returns how many were.
    pub fn count_unread(&mut self) -> u64 {
        self.unread += 1;
        self.unread
    }

    /// The blocks `range` of a volume, which are at `addr`, can be written back: those that the
    /// index has there still are bad no more.
    pub fn note_good(&mut self, volume: VolumeId, range: BlockRange, addr: CacheAddr) -> Step<()> {
        for e in self.index.overlapping(&self.buckets, volume, range, usize::MAX)? {
            let e = e.slice(range.from.0, range.end.0);
            let there = CacheAddr(addr.0 + (e.lba.0 - range.from.0));
            if matches!(e.body, Body::Data { addr, .. } if addr == there) {
                self.bad.replaced(volume, e.range());
            }
        }
        Ok(())
    }

    /// A dirty block of a cut is bad, and was overwritten since: the pool's image will lack what
    /// the cut has there.
    pub fn lost_in_cut(&mut self) {
        self.stats.lost += 1;
    }

    /// Dirty blocks that cannot be written back.
    pub fn bad_blocks(&self) -> &BadBlocks {
        &self.bad
    }
}
