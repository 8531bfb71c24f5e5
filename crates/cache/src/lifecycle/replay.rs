//! From what stands on the device to the index as it was: a checkpoint's superblock, bucket table
//! and root, and the journal's replay over them, all in memory. Opening a cache begins with it, and
//! so does the offline check; nothing in here writes.
//!
//! **Replay** takes entries from the superblock's place on, of its incarnation only, consecutive,
//! each whole ([`crate::store::ring_read`]). The last entry, the pool's superblock and the
//! watermark say which entries were durable. The data of durable entries was flushed with them, so
//! replay enters it unread: where it has gone bad since, reading it is an error. Data of later
//! entries may be missing, so replay reads and verifies it. A block that can be read and is not
//! what its record says is left as it was before. One that cannot be read may have arrived, and a
//! flush may have been answered: its key is entered, and reading it is an error. Unless data of
//! this entry or of one before it did not arrive: then no flush that covers it was answered, and
//! what was there before it stands ([`Tail`]). Staged blocks are verified in any case, against the
//! checksums that the pool has for them: no data is read for it. Where they differ, the data never
//! arrived; or something newer did, of a record that follows, and then these had arrived before it.
//! A first pass tells the two apart. Of an epoch that is published, the pool has them: all that
//! counts is that what was there before them is of no use. Applying a record that the checkpoint
//! has already changes nothing that the following records do not set right again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::DerefMut;
use std::time::Duration;

use base::checksum::block_crcs;
use base::{
    BlockRange, BucketId, CacheAddr, Crc, EntrySeq, Epoch, ErrorKind, Generation, IoError, Lba,
    Result, Slice, StorageError, VolumeId,
};
use btree::{Fault, Loader, NodeError, Store, Tree};
use format::cache::bucket::BucketRecord;
use format::cache::journal::{Entry, Record};
use format::cache::pool_seen::{PoolSeen, PoolStatement};
use format::cache::superblock::CacheSuperblock;
use format::tree::INDEX_TREE;
use pool::{Step, SurvivingRecords};
use queue::{Class, Device};
use rt::{Reason, Rt};

use crate::device::layout::Layout;
use crate::error::damaged;
use crate::lifecycle::staged::{PoolImage, StagedVerifier};
use crate::replacement::Eviction;

use crate::store::buckets::Buckets;
use crate::store::host_entries::{UnwrittenEntry, add_entries};
use crate::store::index::{Index, node_addr};
use crate::store::journal::{Identity, Place};
use crate::store::key::{Body, IndexKey};
use crate::store::load::read_node;
use crate::store::restored::RestoredIndex;
use crate::store::ring_read::{FoundEntries, read_journal};

/// The record of a bucket now that the pool's image has everything up to `published`: it counts
/// exactly what keys above [`counted_above`] name.
pub fn record_now(mut f: BucketRecord, sb: &CacheSuperblock, published: Epoch) -> BucketRecord {
    (f.dirty_open, f.dirty_cut) = dirty_now(f.dirty_open, f.dirty_cut, sb, published);
    f
}

/// Selects which of a checkpoint's dirty counters are still valid: of the open epoch, and of sealed
/// ones. One that is not is 0.
pub fn dirty_now<T: Default>(open: T, cut: T, sb: &CacheSuperblock, published: Epoch) -> (T, T) {
    let open = if published >= sb.epoch { T::default() } else { open };
    let cut = if published >= sb.cut { T::default() } else { cut };
    (open, cut)
}

/// The epoch up to which writes are not in the numbers that [`dirty_now`] says. Of the epochs that
/// were sealed at the checkpoint, some may be published and others not: then these numbers are
/// about all of them, and the epoch is that which was published as of the checkpoint.
pub fn counted_above(sb: &CacheSuperblock, published: Epoch) -> Epoch {
    let as_it_was = published < sb.epoch && (sb.cut == Epoch(0) || published < sb.cut);
    match sb.counted_from.0 {
        1.. if as_it_was => Epoch(sb.counted_from.0 - 1),
        // All of them are published, or it was not said: then there was one cut at most.
        _ => published,
    }
}

/// The epoch that is open when a cache is opened, before its journal says more.
fn epoch_at(sb: &CacheSuperblock, published: Epoch) -> Epoch {
    Epoch(sb.epoch.0.max(published.0 + 1))
}

/// The identity of the entries that count, and the place where replay begins.
pub fn replay_from(sb: &CacheSuperblock) -> (Identity, Place) {
    let of = Identity { uuid: sb.uuid, incarnation: sb.incarnation };
    (of, Place { position: sb.replay_position, sequence: sb.replay_sequence })
}

/// The outcome of a replay.
#[derive(Clone, Copy, Debug)]
pub struct ReplayOutcome {
    /// Entries that were applied.
    pub entries: u64,
    /// Records of these entries.
    pub records: u64,
    /// Blocks whose data had not arrived.
    pub dropped: u64,
    /// Entries of which only the second copy was good.
    pub healed: u64,
    /// The open epoch.
    pub epoch: Epoch,
    /// The place behind the last entry.
    pub end: Place,
}

/// Counts of what a replay found.
#[derive(Clone, Copy, Default, Debug)]
pub struct Replay {
    /// Entries and records that were applied.
    pub entries: u64,
    /// Records of these entries.
    pub records: u64,
    /// Blocks whose data had not arrived.
    pub dropped: u64,
    /// The time that the replay took.
    pub took: Duration,
}

/// The content of the place at which a record names a block.
#[derive(PartialEq)]
enum FoundBlock {
    /// The data that the record names.
    Data,
    /// Something else: the block did not arrive.
    Other,
    /// Nothing: the device cannot read the block.
    Unreadable(IoError),
}

/// A block that is not where a record says.
struct MissingBlock {
    /// The number of the record.
    number: u64,
    bucket: BucketId,
    volume: VolumeId,
    lba: Lba,
}

/// Knowledge about the entries that may not be durable.
struct Tail<'a> {
    /// All entries that replay applies.
    entries: &'a [Entry],
    /// The findings for the blocks of this entry's records, by the number of the record.
    read: BTreeMap<u64, Vec<FoundBlock>>,
    /// The blocks of the entries so far that are not there.
    missing: Vec<MissingBlock>,
    /// Some of them did not arrive. So the flush behind that entry was never complete, nor one
    /// after it, and no client was told that these entries are durable.
    unanswered: bool,
}

impl<'a> Tail<'a> {
    fn new(entries: &'a [Entry]) -> Tail<'a> {
        Tail { entries, read: BTreeMap::new(), missing: Vec::new(), unanswered: false }
    }

    /// All of this entry was noted, and a block of it cannot be read.
    fn judge(&mut self) {
        let not_arrived = |missing| !self.has_newer(missing);
        self.unanswered = self.unanswered || self.missing.iter().any(not_arrived);
    }

    /// A block that a later record says something about, or the bucket of which was given up, may
    /// have arrived: something newer stands in its place by now.
    fn has_newer(&self, &MissingBlock { number, bucket, volume, lba }: &MissingBlock) -> bool {
        let records = self.entries.iter().flat_map(Entry::records);
        let names = |of: VolumeId, from: Lba, len: u64| {
            of == volume && (from.0..from.0.saturating_add(len)).contains(&lba.0)
        };
        records.skip(number as usize).any(|record| match record {
            Record::Insert { volume, lba, value } => {
                let key = format::cache::index::index_key(volume, lba);
                let e = IndexKey::decode_within(|_, _| true, &key, value);
                e.is_some_and(|e| names(volume, e.lba, e.end() - e.lba.0))
            }
            Record::Remove { volume, lba, len } => names(volume, lba, len),
            Record::Raise { bucket: raised, .. } => raised == bucket,
            Record::Epoch { .. } => false,
        })
    }
}

/// A checkpoint, as it stands on the device.
pub struct Checkpoint<'a> {
    /// The superblock of the checkpoint.
    pub sb: &'a CacheSuperblock,
    /// The layout of the device.
    pub layout: Layout,
    /// The records of the bucket table.
    pub records: Vec<BucketRecord>,
}

/// A checkpoint in memory, and what is needed to go on from it.
pub struct Replayer {
    rt: Rt,
    device: Device,
    path: String,
    layout: Layout,
    restored: RestoredIndex,
    staged: StagedVerifier,
    /// The part of the journal that the last process has left, and the entries that came of it.
    survived: Option<SurvivingRecords>,
    unwritten: Vec<UnwrittenEntry>,
}

impl Replayer {
    /// The checkpoint on a device of this path. `nodes` of the index are kept in memory.
    pub fn new(
        rt: &Rt,
        device: &Device,
        path: &str,
        checkpoint: Checkpoint<'_>,
        image: PoolImage,
        nodes: usize,
        eviction: Eviction,
    ) -> Replayer {
        let Checkpoint { sb, layout, records } = checkpoint;
        let PoolImage { published, committed } = image;
        let Eviction { policy, seed } = eviction;
        let records: Vec<BucketRecord> =
            records.into_iter().map(|f| record_now(f, sb, published)).collect();
        let (above, epoch) = (counted_above(sb, published), epoch_at(sb, published));
        let blocks = layout.bucket_blocks;
        let buckets = Buckets::restore(&records, blocks, policy, seed, above, epoch);
        let staged = dirty_now(sb.staged.0, sb.staged.1, sb, published);
        let generation = Generation((u64::from(sb.incarnation) + 1) << 32);
        let tree = Tree::open(INDEX_TREE, sb.root);
        let index = Index::open(tree, Store::new(nodes), generation, published);
        Replayer {
            rt: rt.clone(),
            device: device.clone(),
            path: path.to_owned(),
            layout,
            restored: RestoredIndex::new(index, buckets, staged.0.saturating_add(staged.1)),
            staged: StagedVerifier::new(committed),
            survived: None,
            unwritten: Vec::new(),
        }
    }

    /// Has [`Replayer::run`] apply the records, too, that the last process had not written.
    pub(crate) fn add_survived(&mut self, survived: SurvivingRecords) {
        self.survived = Some(survived);
    }

    /// Takes the entries of these records, which are yet to be written.
    pub(crate) fn take_unwritten(&mut self) -> Vec<UnwrittenEntry> {
        std::mem::take(&mut self.unwritten)
    }

    /// The index, and its nodes in memory.
    pub fn index(&self) -> (&Tree, &Store) {
        (self.restored.index().tree(), self.restored.index().store())
    }

    /// The address of the second copy of a node.
    pub fn copy_of(&self, fault: &Fault) -> Option<CacheAddr> {
        self.restored.buckets().table().copy_of(node_addr(fault.ptr.addr))
    }

    /// The record of a bucket.
    pub fn record(&self, bucket: BucketId) -> BucketRecord {
        self.restored.buckets().record(bucket)
    }

    /// Blocks that keys name.
    pub fn live_blocks(&self) -> u64 {
        self.restored.buckets().counts().live_blocks()
    }

    /// Staged blocks that keys name: of the open epoch, and of the sealed ones.
    pub fn staged_named(&self) -> (u64, u64) {
        self.restored.buckets().counts().staged_named()
    }

    /// The epoch up to which writes are not in the counters of dirty blocks.
    pub fn counted_above(&self) -> Epoch {
        self.restored.buckets().epochs().counted_above()
    }

    /// The index and the buckets, with what was replayed.
    pub(crate) fn into_restored(self) -> RestoredIndex {
        self.restored
    }

    /// Applies the entries of the journal behind the checkpoint of `sb`. `says`: by the pool.
    pub async fn run(
        &mut self,
        sb: &CacheSuperblock,
        says: PoolStatement,
    ) -> Result<ReplayOutcome> {
        // The knowledge of a pool that is not the cache's says nothing of this journal.
        let is_its = sb.opens.is_of(says.opened);
        let known = if is_its { says.entry } else { EntrySeq(0) };
        let epoch = epoch_at(sb, self.restored.index().published());
        let (of, place) = replay_from(sb);
        let ring = self.layout.ring();
        let mut found = read_journal(&self.device, &self.path, ring, of, place, known).await?;
        let of_entries = found.entries.iter().map(|entry| entry.pool_seen);
        let seen = of_entries.fold(sb.pool_seen, PoolSeen::max);
        if let Some(survived) = &self.survived {
            self.unwritten = add_entries(&mut found, survived, of, ring, seen, self.rt.bufs())?;
        }
        let FoundEntries { entries, durable, healed, end, .. } = found;
        let has = PoolSeen { entry: says.entry, published: self.restored.index().published() };
        if has.is_older(seen) {
            // Blocks that were written back are neither in the cache any more nor in this pool.
            let text = format!("{}: {}", self.path, has.refusal(seen));
            return Err(StorageError::new(ErrorKind::Stale, text));
        }
        if !is_its {
            let text = format!("{}: {}", self.path, sb.opens.refusal(says.opened));
            return Err(StorageError::new(ErrorKind::SplitBrain, text));
        }
        let mut done = ReplayOutcome { entries: 0, records: 0, dropped: 0, healed, epoch, end };
        let records = entries.iter().flat_map(Entry::records).zip(1..);
        self.staged.note_all(records, self.restored.index().published()).await?;
        let mut tail = Tail::new(&entries);
        for entry in &entries {
            if entry.sequence > durable {
                self.read_data(entry, done.records, &mut tail).await?;
            }
            for record in entry.records() {
                done.records += 1;
                done.dropped +=
                    self.apply(done.records, &record, &mut tail, &mut done.epoch).await?;
                if let Some(what) = self.restored.contradiction() {
                    return Err(self.contradicted(entry.sequence, &record, &what));
                }
            }
            done.entries += 1;
            self.rt.yield_now().await;
        }
        Ok(done)
    }

    /// Applies one record, of this number; returns how many blocks of it had not arrived.
    async fn apply(
        &mut self,
        number: u64,
        record: &Record<'_>,
        tail: &mut Tail<'_>,
        newest: &mut Epoch,
    ) -> Result<u64> {
        match *record {
            Record::Raise { bucket, generation } => {
                self.restored.raise(bucket, generation);
                Ok(0)
            }
            Record::Epoch { epoch } => {
                *newest = epoch.max(*newest);
                Ok(0)
            }
            Record::Remove { volume, lba, len } => {
                self.change(volume, BlockRange::of(lba, len), &[]).await?;
                Ok(0)
            }
            Record::Insert { volume, lba, value } => {
                let key = format::cache::index::index_key(volume, lba);
                let Some(e) = IndexKey::decode(self.restored.buckets(), &key, value) else {
                    return Err(StorageError::new(
                        ErrorKind::Damaged,
                        "the cache's journal names blocks that are not there",
                    ));
                };
                if let Some(written) = e.written {
                    *newest = written.max(*newest);
                }
                let range = e.range();
                if e.is_stale(self.restored.buckets()) {
                    // The bucket was evicted later: the blocks were in the pool by then.
                    self.change(volume, range, &[]).await?;
                    return Ok(0);
                }
                if !self.staged.has_below(&e, self.restored.index().published(), number).await? {
                    return Ok(1);
                }
                match &e.body {
                    Body::Staged { .. } if self.restored.index().unpublished(&e).is_none() => {
                        self.change(volume, range, &[]).await?;
                        Ok(0)
                    }
                    Body::Data { .. } => match tail.read.remove(&number) {
                        Some(found) => {
                            let arrived = self.arrived(&e, found, tail.unanswered).await?;
                            self.apply_arrived(e, &arrived).await
                        }
                        None => {
                            self.change(volume, range, &[e]).await?;
                            Ok(0)
                        }
                    },
                    Body::Staged { crcs } => {
                        let arrived = self.staged.of(&e, crcs, number).await?;
                        self.apply_arrived(e, &arrived).await
                    }
                    Body::Zeros { .. } => {
                        self.change(volume, range, &[e]).await?;
                        Ok(0)
                    }
                }
            }
        }
    }

    /// Enters those blocks of an extent that arrived; returns how many did not.
    async fn apply_arrived(&mut self, e: IndexKey, arrived: &[bool]) -> Result<u64> {
        let mut dropped = 0;
        for (i, ok) in arrived.iter().enumerate() {
            if !ok {
                dropped += 1;
                continue;
            }
            let one = e.slice(e.lba.0 + i as u64, e.lba.0 + i as u64 + 1);
            let range = one.range();
            self.change(e.volume, range, &[one]).await?;
        }
        Ok(dropped)
    }

    /// Reads the data of an entry that may not be durable; `before` records stand before it.
    async fn read_data(&mut self, entry: &Entry, before: u64, tail: &mut Tail<'_>) -> Result<()> {
        tail.read.clear();
        let (mut named, mut unreadable) = (BTreeSet::new(), false);
        for (record, number) in entry.records().zip(before + 1..) {
            let Record::Insert { volume, lba, value } = record else { continue };
            let key = format::cache::index::index_key(volume, lba);
            let Some(e) = IndexKey::decode(self.restored.buckets(), &key, value) else { continue };
            let Body::Data { addr, crcs, .. } = &e.body else { continue };
            if e.is_stale(self.restored.buckets()) {
                continue;
            }
            let found = self.find(*addr, crcs).await;
            if found.contains(&FoundBlock::Other) {
                let known = self.known(&e).await?;
                let blocks = (addr.0..).zip(e.lba.0..).zip(found.iter().zip(known));
                tail.missing.extend(blocks.filter_map(|((at, lba), (found, known))| {
                    let is_missing = *found == FoundBlock::Other && !known && !named.contains(&at);
                    let bucket = self.restored.buckets().geometry().of(*addr);
                    is_missing.then_some(MissingBlock { number, bucket, volume, lba: Lba(lba) })
                }));
            }
            named.extend(addr.0..addr.0 + crcs.len() as u64);
            unreadable |= found.iter().any(|found| matches!(found, FoundBlock::Unreadable(_)));
            tail.read.insert(number, found);
        }
        if unreadable {
            tail.judge();
        }
        Ok(())
    }

    /// Reads the blocks that a key names in a bucket, and compares each with its checksum.
    async fn find(&self, addr: CacheAddr, crcs: &[Crc]) -> Vec<FoundBlock> {
        let read =
            self.device.read_blocks(Class::Commit, self.layout.offset_of(addr), crcs.len()).await;
        let is = |(is, should): (_, &Crc)| {
            if is == *should { FoundBlock::Data } else { FoundBlock::Other }
        };
        let mut found: Vec<FoundBlock> = block_crcs(&read.buf).zip(crcs).map(is).collect();
        for (block, why) in read.unreadable {
            found[block] = FoundBlock::Unreadable(why);
        }
        found
    }

    /// Which blocks of an extent count as arrived. One that cannot be read is not absent, unless
    /// no flush that covers it was answered: its key is entered, so that reading it is an error
    /// until it is written again, and never what was there before.
    async fn arrived(
        &mut self,
        e: &IndexKey,
        found: Vec<FoundBlock>,
        unanswered: bool,
    ) -> Result<Vec<bool>> {
        let mut arrived = Vec::with_capacity(found.len());
        for (found, block) in found.into_iter().zip(e.lba.0..) {
            arrived.push(match found {
                FoundBlock::Data => true,
                FoundBlock::Other => false,
                FoundBlock::Unreadable(why) if unanswered => {
                    tracing::warn!(
                        cache = %self.path,
                        "block {block} of volume {} was written last, before any flush was \
                         answered, and cannot be read: what it was before stands: {why}",
                        e.volume
                    );
                    false
                }
                FoundBlock::Unreadable(why) => {
                    tracing::error!(
                        cache = %self.path,
                        "block {block} of volume {} was written last, and cannot be read: {why}",
                        e.volume
                    );
                    true
                }
            });
        }
        if arrived.contains(&false) {
            // Blocks that a pass found bad were entered again where they are. They had arrived:
            // what is in the pool must not be taken for them.
            let known = self.known(e).await?;
            arrived.iter_mut().zip(known).for_each(|(arrived, known)| *arrived |= known);
        }
        Ok(arrived)
    }

    /// Which blocks of an extent the index has, in the same places with the same checksums.
    async fn known(&mut self, e: &IndexKey) -> Result<Vec<bool>> {
        let range = e.range();
        let found = self
            .resident(|r| r.index().overlapping(r.buckets(), e.volume, range, usize::MAX))
            .await?;
        let block = |lba: u64| e.slice(lba, lba + 1).body;
        let known = |lba: u64| {
            found.iter().any(|f| {
                f.lba.0 <= lba && lba < f.end() && f.slice(lba, lba + 1).body == block(lba)
            })
        };
        Ok((e.lba.0..e.end()).map(known).collect())
    }

    /// The error for a record of this entry that contradicts the checkpoint and the records before
    /// it.
    fn contradicted(&self, entry: EntrySeq, record: &Record<'_>, what: &str) -> StorageError {
        let of = match *record {
            Record::Insert { volume, lba, .. } | Record::Remove { volume, lba, .. } => {
                format!(", about block {lba} of volume {volume}")
            }
            Record::Raise { .. } | Record::Epoch { .. } => String::new(),
        };
        let text = format!(
            "{}: entry {entry} of the cache's journal contradicts what was before it{of}: {what}; \
             restore the device, or go on from the pool's older image without the cache: \
             --forget-cache",
            self.path
        );
        StorageError::new(ErrorKind::Damaged, text)
    }

    async fn change(
        &mut self,
        volume: VolumeId,
        range: BlockRange,
        new: &[IndexKey],
    ) -> Result<()> {
        self.resident(|r| r.replace(volume, range, new)).await
    }

    /// Runs a synchronous step over resident nodes until it needs no more.
    async fn resident<T>(
        &mut self,
        mut step: impl FnMut(&mut RestoredIndex) -> Step<T>,
    ) -> Result<T> {
        btree::resident(self, |r| step(&mut r.restored)).await
    }
}

impl Loader for Replayer {
    type State = Replayer;
    type Error = StorageError;
    type Pin = ();

    fn state(&mut self) -> impl DerefMut<Target = Replayer> {
        self
    }

    fn store(r: &mut Replayer) -> &mut Store {
        r.restored.nodes_mut()
    }

    fn pin(_: &Replayer, _: &Fault) {}

    const REASON: Reason = Reason::Index;

    fn rt(&self) -> Rt {
        self.rt.clone()
    }

    fn gives_way(&self) -> bool {
        false
    }

    async fn read(&mut self, fault: &Fault, _: &()) -> Result<Slice> {
        let copy = self.copy_of(fault);
        let read = read_node(&self.device, &self.layout, fault, copy, Class::Commit).await;
        read.map(|(bytes, _)| bytes)
    }

    fn refused(fault: &Fault, why: NodeError) -> StorageError {
        damaged(fault, why)
    }
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
