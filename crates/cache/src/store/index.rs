//! The index: which blocks of which volume are in the cache, and where. Synchronous steps over
//! resident nodes.
//!
//! One tree for all volumes. A key is a volume and its first block; a value says what the blocks
//! from there on are: *data* in a bucket, clean or dirty, with a crc32c for each block (of a
//! *part*, a single dirty block, only some sectors count: what the others are says the pool's
//! published image); *staged*, in the pool's staging volume of that volume and epoch, with a crc32c
//! for each block too; or *zeros*, a discard that the pool has yet to see. Extents never overlap. A
//! data extent whose bucket has moved on to another generation is stale: it counts as absent
//! wherever it is met. So do staged blocks and zeros when their epoch is published.
//!
//! Every change goes through [`Index::replace`], which tells the buckets of everything that comes
//! and goes. Flows enter and drop keys by methods of the state (`state.rs`), which push the
//! records of the journal too.

use std::ops::ControlFlow;

use base::{
    BlockRange, BucketGen, BucketId, CacheAddr, Epoch, Generation, Lba, PoolAddr, VolumeId,
};
use btree::{Changes, Editor, NodePtr, Store, Tree};
use format::cache::index::{Cover, IndexValue, decode_key, index_key};
use pool::Step;
use smallvec::SmallVec;

use crate::error::malformed;
use crate::store::audit::Audit;
use crate::store::buckets::Buckets;
use crate::store::key::{Body, IndexKey};

/// Extents that one step over a range changes at most.
pub(crate) const STEP_EXTENTS: usize = 64;

/// The tree, its resident nodes, and what the open generation has changed.
pub(crate) struct Index {
    tree: Tree,
    store: Store,
    changes: Changes,
    /// Everything up to this epoch is in the pool's image.
    published: Epoch,
    /// Keys, once they were counted; until then how many more there are than at the open.
    keys: i64,
    keys_known: bool,
    /// A count of the buckets' blocks that is under way.
    audit: Option<Audit>,
    /// A count of the blocks that a scrub which is under way has passed.
    scrubbed: Option<Audit>,
    scratch: Vec<u8>,
}

impl Index {
    pub fn open(tree: Tree, store: Store, generation: Generation, published: Epoch) -> Index {
        let keys_known = tree.recorded().is_some_and(|root| root.is_none());
        Index {
            tree,
            store,
            changes: Changes::new(generation),
            published,
            keys: 0,
            keys_known,
            audit: None,
            scrubbed: None,
            scratch: Vec::new(),
        }
    }

    /// The tree as it is.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The nodes of the index in memory.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The nodes of the index in memory, to load some or let go of them.
    pub fn store_mut(&mut self) -> &mut Store {
        &mut self.store
    }

    /// Nodes that were changed since the last freeze.
    pub fn dirty_nodes(&self) -> u64 {
        self.changes.dirty() as u64
    }

    /// The generation of nodes that are changed now.
    pub fn generation(&self) -> Generation {
        self.changes.generation()
    }

    /// Freezes it for a checkpoint: the tree, and its changes since the last freeze.
    pub(super) fn freeze(&mut self) -> (Tree, Changes) {
        let changes = self.changes.freeze();
        (self.tree.clone(), changes)
    }

    /// A frozen tree was written: its nodes are clean.
    pub(super) fn settle(&mut self, frozen: &Tree) {
        self.tree.settle(frozen);
    }

    /// Everything up to this epoch is in the pool's image.
    pub fn published(&self) -> Epoch {
        self.published
    }

    /// The pool has committed everything up to this epoch.
    pub(super) fn publish(&mut self, epoch: Epoch) {
        self.published = epoch;
    }

    /// The number of keys, if they were ever counted.
    pub fn keys(&self) -> Option<i64> {
        self.keys_known.then_some(self.keys)
    }

    /// Begins to count the blocks of buckets.
    pub fn begin_audit(&mut self, buckets: u32) {
        self.audit = Some(Audit::new(buckets));
    }

    /// The count that is under way.
    pub fn audit(&self) -> Option<&Audit> {
        self.audit.as_ref()
    }

    /// Counts the extents of a leaf; all keys below `passed` were counted then.
    pub fn audit_leaf(&mut self, buckets: &Buckets, all: &[IndexKey], passed: Vec<u8>) {
        if let Some(audit) = &mut self.audit {
            all.iter().for_each(|e| audit.count(buckets, e, 1));
            audit.pass(passed);
        }
    }

    /// A bucket was evicted: none of its blocks counts.
    pub(super) fn evicted(&mut self, bucket: BucketId) {
        for audit in [&mut self.audit, &mut self.scrubbed].into_iter().flatten() {
            audit.evicted(bucket);
        }
    }

    /// Ends the count; a complete one tells how many keys there are.
    pub fn end_audit(&mut self, is_complete: bool) {
        if let Some(audit) = self.audit.take().filter(|_| is_complete) {
            (self.keys, self.keys_known) = (audit.keys(), true);
        }
    }

    /// A scrub goes over the index from its beginning.
    pub fn begin_scrub(&mut self, buckets: u32) {
        self.scrubbed = Some(Audit::new(buckets));
    }

    /// A scrub has come to these extents of a leaf; it has passed all keys below `passed` then.
    pub fn scrub_leaf(&mut self, buckets: &Buckets, all: &[IndexKey], passed: Vec<u8>) {
        if let Some(scrubbed) = &mut self.scrubbed {
            all.iter().for_each(|e| scrubbed.count(buckets, e, 1));
            scrubbed.pass(passed);
        }
    }

    /// The scrub is over.
    pub fn end_scrub(&mut self) {
        self.scrubbed = None;
    }

    /// Blocks in buckets that a scrub has before it.
    pub fn unscrubbed_blocks(&self, buckets: &Buckets) -> u64 {
        let passed = self.scrubbed.as_ref().map_or(0, Audit::blocks);
        buckets.counts().live_blocks().saturating_sub(passed)
    }

    /// The epoch of an extent that the pool's image does not have.
    pub fn unpublished(&self, e: &IndexKey) -> Option<Epoch> {
        e.written.filter(|&epoch| epoch > self.published)
    }

    fn floor(&self, buckets: &Buckets, volume: VolumeId, lba: Lba) -> Step<Option<IndexKey>> {
        match self
            .tree
            .get_le(&self.store, &index_key(volume, lba), |k, v| floor(buckets, volume, k, v))?
        {
            Some(Some(None)) => Err(malformed().into()),
            found => Ok(found.flatten().flatten()),
        }
    }

    /// The part `range` of the data extent that has all of it, if there is one. No more than that
    /// is decoded, which is what most reads want.
    pub fn within(
        &self,
        buckets: &Buckets,
        volume: VolumeId,
        range: BlockRange,
    ) -> Step<Option<IndexKey>> {
        let BlockRange { from: lba, end } = range;
        let found = self.tree.get_le(&self.store, &index_key(volume, lba), |k, v| {
            let (_, first) = decode_key(k).filter(|(v, _)| *v == volume)?;
            let IndexValue::Data { dirty, epoch, addr, generation, crcs } = IndexValue::decode(v)?
            else {
                return None;
            };
            let all = crcs.len() as u64;
            if end.0 > first.0 + all || !buckets.geometry().contains(addr, all as u32) {
                return None;
            }
            let skip = lba.0 - first.0;
            let crcs = crcs.slice(skip as usize, (end.0 - lba.0) as usize).iter().collect();
            let body =
                Body::Data { addr: CacheAddr(addr.0 + skip), generation, crcs, cover: Cover::ALL };
            Some(IndexKey { volume, lba, written: dirty.then_some(epoch), body })
        })?;
        Ok(found.flatten())
    }

    /// The place of a block by the index, stale or not, if its nodes are in memory.
    pub fn place_of(
        &self,
        buckets: &Buckets,
        volume: VolumeId,
        lba: Lba,
    ) -> Option<(CacheAddr, BucketGen)> {
        let found = self.tree.get_le(&self.store, &index_key(volume, lba), |k, v| {
            let (_, first) = decode_key(k).filter(|(v, _)| *v == volume)?;
            let (addr, generation, blocks) = match IndexValue::decode(v)? {
                IndexValue::Data { addr, generation, crcs, .. } => (addr, generation, crcs.len()),
                IndexValue::Part { addr, generation, .. } => (addr, generation, 1),
                IndexValue::Zeros { .. } | IndexValue::Staged { .. } => return None,
            };
            let there = CacheAddr(addr.0 + (lba.0 - first.0));
            let is_in = lba.0 < first.0 + blocks as u64 && buckets.geometry().contains(there, 1);
            is_in.then_some((there, generation))
        });
        found.ok().flatten().flatten()
    }

    /// The extents of `volume` that overlap a range, in order, at most `max`, whole as they stand,
    /// stale ones too.
    pub fn overlapping(
        &self,
        buckets: &Buckets,
        volume: VolumeId,
        range: BlockRange,
        max: usize,
    ) -> Step<SmallVec<[IndexKey; 2]>> {
        let mut out: SmallVec<[IndexKey; 2]> = SmallVec::new();
        let BlockRange { from: lba, end } = range;
        if let Some(e) = self.floor(buckets, volume, lba)?.filter(|e| e.end() > lba.0) {
            let all = e.end() >= end.0;
            out.push(e);
            if all {
                return Ok(out);
            }
        }
        let mut bad = false;
        let (from, to) = (index_key(volume, lba.plus(1)), index_key(volume, end));
        self.tree.scan(&self.store, &from, &to, |k, v| match IndexKey::decode(buckets, k, v) {
            Some(_) if out.len() >= max => ControlFlow::Break(()),
            Some(e) => {
                out.push(e);
                ControlFlow::Continue(())
            }
            None => {
                bad = true;
                ControlFlow::Break(())
            }
        })?;
        if bad { Err(malformed().into()) } else { Ok(out) }
    }

    /// The extents of [`Index::overlapping`] that one step may change, so that others have their
    /// turn; and the end of this step.
    pub fn overlapping_step(
        &self,
        buckets: &Buckets,
        volume: VolumeId,
        range: BlockRange,
    ) -> Step<(SmallVec<[IndexKey; 2]>, Lba)> {
        let found = self.overlapping(buckets, volume, range, STEP_EXTENTS)?;
        let upto = match found.last() {
            Some(last) if found.len() >= STEP_EXTENTS => Lba(last.end().min(range.end.0)),
            _ => range.end,
        };
        Ok((found, upto))
    }

    /// Makes `range` of `volume` what `new` says, or nothing that the cache knows.
    pub(super) fn replace(
        &mut self,
        buckets: &mut Buckets,
        volume: VolumeId,
        range: BlockRange,
        new: &[IndexKey],
    ) -> Step<()> {
        let old = self.overlapping(buckets, volume, range, usize::MAX)?;
        let BlockRange { from: lba, end } = range;
        let mut keys = self.edit(&index_key(volume, lba), &index_key(volume, end))?;
        let mut hits: SmallVec<[(u64, u8); 4]> = SmallVec::new();
        for e in old {
            let gone = e.slice(lba.0, end.0);
            let written = buckets.epochs().counted(gone.written);
            match &gone.body {
                Body::Data { addr, generation, crcs, .. } => {
                    if buckets.table().is_current(*addr, *generation) {
                        let of = |i: u64| buckets.usage().hits_when_replaced(CacheAddr(addr.0 + i));
                        let all = (0..crcs.len() as u64).map(|i| (gone.lba.0 + i, of(i)));
                        hits.extend(all.filter(|(_, hits)| *hits > 0));
                    }
                    buckets.remove(*addr, *generation, crcs.len() as u32, written);
                }
                Body::Staged { crcs } => buckets.remove_staged(crcs.len() as u64, written),
                Body::Zeros { .. } => {}
            }
            if e.lba < lba {
                keys.change(buckets, &e, &e.slice(0, lba.0));
            } else {
                keys.remove(buckets, &e);
            }
            if e.end() > end.0 {
                keys.insert(buckets, &e.slice(end.0, u64::MAX));
            }
        }
        for e in new {
            match &e.body {
                Body::Data { addr, crcs, .. } => {
                    buckets.add(
                        *addr,
                        crcs.len() as u32,
                        buckets.epochs().counted(e.written).is_some(),
                    );
                    buckets.name(*addr, volume, e.lba, crcs.len() as u64);
                    // Hits of a block at its old place are worth as much here.
                    for &(lba, hits) in hits.iter().filter(|h| e.lba.0 <= h.0 && h.0 < e.end()) {
                        buckets.usage_mut().set_hits(CacheAddr(addr.0 + (lba - e.lba.0)), hits);
                    }
                }
                Body::Staged { crcs } => buckets.counts_mut().add_staged(crcs.len() as u64),
                Body::Zeros { .. } => {}
            }
            keys.append(buckets, e);
        }
        Ok(())
    }

    fn edit(&mut self, from: &[u8], to: &[u8]) -> Step<Keys<'_>> {
        let edit = self.store.edit(&mut self.tree, &mut self.changes, from, to)?;
        let audits = [&mut self.audit, &mut self.scrubbed];
        Ok(Keys { edit, count: &mut self.keys, audits, scratch: &mut self.scratch })
    }

    /// Drops the key of a stale extent, or of staged blocks or a discard that the pool has; false
    /// if it is something else by now.
    pub(super) fn drop_dead(
        &mut self,
        buckets: &mut Buckets,
        volume: VolumeId,
        lba: Lba,
    ) -> Step<bool> {
        let found = self.floor(buckets, volume, lba)?;
        let Some(e) = found.filter(|e| e.lba == lba && self.is_dead(buckets, e)) else {
            return Ok(false);
        };
        let key = index_key(volume, lba);
        self.edit(&key, &key)?.remove(buckets, &e);
        match &e.body {
            Body::Data { crcs, .. } => buckets.counts_mut().forget_stale(crcs.len() as u64),
            Body::Staged { crcs } => {
                buckets.remove_staged(crcs.len() as u64, buckets.epochs().counted(e.written))
            }
            Body::Zeros { .. } => {}
        }
        Ok(true)
    }

    /// True if nothing would be missed without this key.
    pub fn is_dead(&self, buckets: &Buckets, e: &IndexKey) -> bool {
        match e.body {
            Body::Data { .. } => e.is_stale(buckets),
            Body::Staged { .. } | Body::Zeros { .. } => self.unpublished(e).is_none(),
        }
    }

    /// Merges the leaf of a key with the next, if it is thin.
    pub fn merge_thin(&mut self, volume: VolumeId, lba: Lba) -> Step<bool> {
        Ok(self.store.merge_thin(&mut self.tree, &mut self.changes, &index_key(volume, lba))?)
    }

    /// Has the nodes on the way to a key written elsewhere, as far down as one of them is in a
    /// bucket that is mostly empty; not for those of generation `held` and older. Returns how many.
    pub fn leave_sparse(
        &mut self,
        buckets: &Buckets,
        volume: VolumeId,
        lba: Lba,
        held: Option<Generation>,
    ) -> Step<u64> {
        let key = index_key(volume, lba);
        let sparse = |node: &NodePtr| {
            held.is_none_or(|held| node.generation > held)
                && buckets.is_sparse(node_addr(node.addr))
        };
        Ok(self.store.edit(&mut self.tree, &mut self.changes, &key, &key)?.rewrite(&key, sparse))
    }
}

/// An edit of a range of keys, which are counted.
struct Keys<'a> {
    edit: Editor<'a>,
    count: &'a mut i64,
    audits: [&'a mut Option<Audit>; 2],
    scratch: &'a mut Vec<u8>,
}

impl Keys<'_> {
    fn insert(&mut self, buckets: &Buckets, e: &IndexKey) {
        *self.count += 1;
        self.set(buckets, e);
    }

    fn remove(&mut self, buckets: &Buckets, e: &IndexKey) {
        self.note(buckets, e, -1);
        *self.count -= i64::from(self.edit.remove(&index_key(e.volume, e.lba)));
    }

    /// The same key is to say something else.
    fn change(&mut self, buckets: &Buckets, old: &IndexKey, new: &IndexKey) {
        self.note(buckets, old, -1);
        self.set(buckets, new);
    }

    fn set(&mut self, buckets: &Buckets, e: &IndexKey) {
        self.note(buckets, e, 1);
        e.encode(self.scratch);
        self.edit.insert(&index_key(e.volume, e.lba), self.scratch);
    }

    /// Enters an extent, as a continuation of the one before it where that can be.
    fn append(&mut self, buckets: &Buckets, e: &IndexKey) {
        // A neighbour that makes no sense is not continued; a read of it tells.
        let last = e.lba.0.checked_sub(1).map(|last| index_key(e.volume, Lba(last)));
        let before =
            last.and_then(|key| self.edit.get_le(&key, |k, v| floor(buckets, e.volume, k, v)));
        let before = before.flatten().flatten();
        let Some(b) = before.filter(|b| b.continued_by(e, buckets.geometry().bucket_blocks()))
        else {
            return self.insert(buckets, e);
        };
        let mut longer = b.clone();
        longer.extend(e);
        self.change(buckets, &b, &longer);
    }

    fn note(&mut self, buckets: &Buckets, e: &IndexKey, by: i32) {
        for audit in self.audits.iter_mut().filter_map(|audit| audit.as_mut()) {
            audit.changed(buckets, e, by);
        }
    }
}

/// A record that was found at or before a key of `volume`: `None` if it is another volume's, and
/// what it says, if that makes sense.
fn floor(
    buckets: &Buckets,
    volume: VolumeId,
    key: &[u8],
    value: &[u8],
) -> Option<Option<IndexKey>> {
    let mine = decode_key(key).is_none_or(|(v, _)| v == volume);
    mine.then(|| IndexKey::decode(buckets, key, value))
}

/// A node of the index stands at this block of the cache device, counted from its first bucket.
pub fn node_addr(addr: PoolAddr) -> CacheAddr {
    CacheAddr(addr.0)
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
