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
//! and goes.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use base::{BucketGen, CacheAddr, Crc, Epoch, Generation, Lba, PoolAddr, VolumeId};
use btree::{Changes, Editor, NodePtr, Store, Tree};
use format::cache::index::{Cover, IndexValue, MAX_EXTENT_BLOCKS, decode_key, index_key};
use pool::Step;
use smallvec::SmallVec;

use crate::buckets::Buckets;
use crate::error::malformed;

/// The id of the index's tree.
pub(crate) const INDEX_TREE: u64 = 3 << 32;

/// Checksums of an extent's blocks.
pub(crate) type Crcs = SmallVec<[Crc; 4]>;

/// What blocks of a volume are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Body {
    /// With some sectors only it is a single dirty block; of all others the pool's published image
    /// says what they are, and of all of them once it is published.
    Data {
        addr: CacheAddr,
        generation: BucketGen,
        crcs: Crcs,
        cover: Cover,
    },
    Staged {
        crcs: Crcs,
    },
    Zeros {
        len: u64,
    },
}

/// Neighbouring blocks of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    pub volume: VolumeId,
    pub lba: Lba,
    /// The epoch in which it was written; `None`: it came from the pool.
    pub written: Option<Epoch>,
    pub body: Body,
}

impl Extent {
    pub fn len(&self) -> u64 {
        match &self.body {
            Body::Data { crcs, .. } | Body::Staged { crcs } => crcs.len() as u64,
            Body::Zeros { len } => *len,
        }
    }

    pub fn end(&self) -> u64 {
        self.lba.0 + self.len()
    }

    /// Reads a record and sees that it lies in the cache; `None` if not.
    pub fn decode(buckets: &Buckets, key: &[u8], value: &[u8]) -> Option<Extent> {
        Extent::decode_within(|addr, len| buckets.contains(addr, len), key, value)
    }

    /// Reads a record whose blocks `contains` is asked about: whether they lie in one bucket.
    pub fn decode_within(
        contains: impl Fn(CacheAddr, u32) -> bool,
        key: &[u8],
        value: &[u8],
    ) -> Option<Extent> {
        let (volume, lba) = decode_key(key)?;
        let (written, body) = match IndexValue::decode(value)? {
            IndexValue::Zeros { epoch, len } => (Some(epoch), Body::Zeros { len }),
            IndexValue::Staged { epoch, crcs } => {
                (Some(epoch), Body::Staged { crcs: crcs.iter().collect() })
            }
            IndexValue::Data { dirty, epoch, addr, generation, crcs } => {
                if !contains(addr, crcs.len() as u32) {
                    return None;
                }
                let crcs = crcs.iter().collect();
                (dirty.then_some(epoch), Body::Data { addr, generation, crcs, cover: Cover::ALL })
            }
            IndexValue::Part { epoch, addr, generation, cover, crc } => {
                if !contains(addr, 1) {
                    return None;
                }
                (
                    Some(epoch),
                    Body::Data { addr, generation, crcs: SmallVec::from_slice(&[crc]), cover },
                )
            }
        };
        Some(Extent { volume, lba, written, body })
    }

    /// The value of its record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        match &self.body {
            Body::Zeros { len } => {
                format::cache::index::encode_zeros(out, self.written.unwrap_or_default(), *len);
            }
            Body::Staged { crcs } => {
                format::cache::index::encode_staged(out, self.written.unwrap_or_default(), crcs);
            }
            Body::Data { addr, generation, crcs, cover } => {
                let epoch = self.written.unwrap_or_default();
                if cover.is_all() {
                    format::cache::index::encode_data(out, epoch, *addr, *generation, crcs);
                } else {
                    format::cache::index::encode_part(
                        out,
                        epoch,
                        (*addr, *generation),
                        cover,
                        crcs[0],
                    );
                }
            }
        }
    }

    /// The part of it in `[from, to)`.
    pub fn cut(&self, from: u64, to: u64) -> Extent {
        let (from, to) = (from.max(self.lba.0), to.min(self.end()));
        let skip = from - self.lba.0;
        let part =
            |crcs: &Crcs| SmallVec::from_slice(&crcs[skip as usize..(to - self.lba.0) as usize]);
        let body = match &self.body {
            Body::Zeros { .. } => Body::Zeros { len: to - from },
            Body::Staged { crcs } => Body::Staged { crcs: part(crcs) },
            Body::Data { addr, generation, crcs, cover } => Body::Data {
                addr: CacheAddr(addr.0 + skip),
                generation: *generation,
                crcs: part(crcs),
                cover: *cover,
            },
        };
        Extent { volume: self.volume, lba: Lba(from), written: self.written, body }
    }

    /// True if it points into a bucket that holds something else by now.
    pub fn is_stale(&self, buckets: &Buckets) -> bool {
        match &self.body {
            Body::Data { addr, generation, .. } => !buckets.is_current(*addr, *generation),
            Body::Staged { .. } | Body::Zeros { .. } => false,
        }
    }

    /// It is a block of which only some sectors count.
    pub fn is_part(&self) -> bool {
        matches!(&self.body, Body::Data { cover, .. } if !cover.is_all())
    }

    /// `next` continues it: in the volume, in the bucket, and in kind.
    fn continued_by(&self, next: &Extent, bucket_blocks: u32) -> bool {
        if self.volume != next.volume || self.written != next.written || self.end() != next.lba.0 {
            return false;
        }
        match (&self.body, &next.body) {
            (Body::Zeros { .. }, Body::Zeros { .. }) => true,
            (Body::Staged { crcs: c }, Body::Staged { crcs: d }) => {
                c.len() + d.len() <= MAX_EXTENT_BLOCKS
            }
            (
                Body::Data { addr: a, generation: g, crcs: c, cover: s },
                Body::Data { addr: b, generation: h, crcs: d, cover: t },
            ) => {
                let bucket = u64::from(bucket_blocks);
                g == h
                    && s.is_all()
                    && t.is_all()
                    && a.0 + c.len() as u64 == b.0
                    && a.0 / bucket == b.0 / bucket
                    && c.len() + d.len() <= MAX_EXTENT_BLOCKS
            }
            _ => false,
        }
    }
}

/// The tree, its resident nodes, and what the open generation has changed.
pub(crate) struct Index {
    pub tree: Tree,
    pub store: Store,
    pub changes: Changes,
    /// Everything up to this epoch is in the pool's image.
    pub published: Epoch,
    /// Keys, once they were counted; until then how many more there are than at the open.
    pub keys: i64,
    pub keys_known: bool,
    /// A count of the buckets' blocks that is under way.
    pub audit: Option<Audit>,
    scratch: Vec<u8>,
}

/// Blocks of each bucket that keys name, counted while the index changes: changes of keys that were
/// counted already are counted too.
pub(crate) struct Audit {
    /// Keys below it were counted.
    pub passed: Vec<u8>,
    pub counts: Vec<u16>,
    /// Blocks of staged keys, by epoch: which of them are published changes meanwhile.
    pub staged: BTreeMap<Epoch, i64>,
    pub keys: i64,
}

impl Audit {
    pub fn new(buckets: u32) -> Audit {
        Audit {
            passed: Vec::new(),
            counts: vec![0; buckets as usize],
            staged: BTreeMap::new(),
            keys: 0,
        }
    }

    /// Counts an extent, wherever it is.
    pub fn count(&mut self, buckets: &Buckets, e: &Extent, by: i32) {
        self.keys += i64::from(by);
        if let (Body::Staged { crcs }, Some(written)) = (&e.body, e.written) {
            *self.staged.entry(written).or_default() += i64::from(by) * crcs.len() as i64;
        }
        if let Body::Data { addr, generation, crcs, .. } = &e.body
            && buckets.is_current(*addr, *generation)
        {
            let count = &mut self.counts[buckets.of(*addr).0 as usize];
            *count = count.saturating_add_signed((by * crcs.len() as i32) as i16);
        }
    }

    /// A key has come or gone.
    fn changed(&mut self, buckets: &Buckets, e: &Extent, by: i32) {
        if index_key(e.volume, e.lba)[..] < self.passed[..] {
            self.count(buckets, e, by);
        }
    }
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
            scratch: Vec::new(),
        }
    }

    /// The epoch of an extent that the pool's image does not have.
    pub fn unpublished(&self, e: &Extent) -> Option<Epoch> {
        e.written.filter(|&epoch| epoch > self.published)
    }

    fn floor(&self, buckets: &Buckets, volume: VolumeId, lba: Lba) -> Step<Option<Extent>> {
        match self
            .tree
            .get_le(&self.store, &index_key(volume, lba), |k, v| floor(buckets, volume, k, v))?
        {
            Some(Some(None)) => Err(malformed().into()),
            found => Ok(found.flatten().flatten()),
        }
    }

    /// The part `[lba, end)` of the data extent that has all of it, if there is one. No more than
    /// that is decoded, which is what most reads want.
    pub fn within(
        &self,
        buckets: &Buckets,
        volume: VolumeId,
        (lba, end): (Lba, Lba),
    ) -> Step<Option<Extent>> {
        let found = self.tree.get_le(&self.store, &index_key(volume, lba), |k, v| {
            let (_, first) = decode_key(k).filter(|(v, _)| *v == volume)?;
            let IndexValue::Data { dirty, epoch, addr, generation, crcs } = IndexValue::decode(v)?
            else {
                return None;
            };
            let all = crcs.len() as u64;
            if end.0 > first.0 + all || !buckets.contains(addr, all as u32) {
                return None;
            }
            let skip = lba.0 - first.0;
            let crcs = crcs.cut(skip as usize, (end.0 - lba.0) as usize).iter().collect();
            let body =
                Body::Data { addr: CacheAddr(addr.0 + skip), generation, crcs, cover: Cover::ALL };
            Some(Extent { volume, lba, written: dirty.then_some(epoch), body })
        })?;
        Ok(found.flatten())
    }

    /// The extents of `volume` that overlap `[lba, end)`, in order, at most `max`, whole as they
    /// stand, stale ones too.
    pub fn overlapping(
        &self,
        buckets: &Buckets,
        volume: VolumeId,
        (lba, end): (Lba, Lba),
        max: usize,
    ) -> Step<SmallVec<[Extent; 2]>> {
        let mut out: SmallVec<[Extent; 2]> = SmallVec::new();
        if let Some(e) = self.floor(buckets, volume, lba)?.filter(|e| e.end() > lba.0) {
            let all = e.end() >= end.0;
            out.push(e);
            if all {
                return Ok(out);
            }
        }
        let mut bad = false;
        let (from, to) = (index_key(volume, lba.plus(1)), index_key(volume, end));
        self.tree.scan(&self.store, &from, &to, |k, v| match Extent::decode(buckets, k, v) {
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

    /// Makes `[lba, end)` of `volume` what `new` says, or nothing that the cache knows.
    pub fn replace(
        &mut self,
        buckets: &mut Buckets,
        volume: VolumeId,
        (lba, end): (Lba, Lba),
        new: &[Extent],
    ) -> Step<()> {
        let old = self.overlapping(buckets, volume, (lba, end), usize::MAX)?;
        let mut keys = self.edit(&index_key(volume, lba), &index_key(volume, end))?;
        for e in old {
            let gone = e.cut(lba.0, end.0);
            let written = buckets.counted(gone.written);
            match &gone.body {
                Body::Data { addr, generation, crcs, .. } => {
                    buckets.remove(*addr, *generation, crcs.len() as u32, written);
                }
                Body::Staged { crcs } => buckets.remove_staged(crcs.len() as u64, written),
                Body::Zeros { .. } => {}
            }
            if e.lba < lba {
                keys.change(buckets, &e, &e.cut(0, lba.0));
            } else {
                keys.remove(buckets, &e);
            }
            if e.end() > end.0 {
                keys.insert(buckets, &e.cut(end.0, u64::MAX));
            }
        }
        for e in new {
            match &e.body {
                Body::Data { addr, crcs, .. } => {
                    buckets.add(*addr, crcs.len() as u32, buckets.counted(e.written).is_some())
                }
                Body::Staged { crcs } => buckets.add_staged(crcs.len() as u64),
                Body::Zeros { .. } => {}
            }
            keys.append(buckets, e);
        }
        Ok(())
    }

    fn edit(&mut self, from: &[u8], to: &[u8]) -> Step<Keys<'_>> {
        let edit = self.store.edit(&mut self.tree, &mut self.changes, from, to)?;
        Ok(Keys { edit, count: &mut self.keys, audit: &mut self.audit, scratch: &mut self.scratch })
    }

    /// Drops the key of a stale extent, or of staged blocks or a discard that the pool has; false
    /// if it is something else by now.
    pub fn drop_dead(&mut self, buckets: &mut Buckets, volume: VolumeId, lba: Lba) -> Step<bool> {
        let found = self.floor(buckets, volume, lba)?;
        let Some(e) = found.filter(|e| e.lba == lba && self.is_dead(buckets, e)) else {
            return Ok(false);
        };
        let key = index_key(volume, lba);
        self.edit(&key, &key)?.remove(buckets, &e);
        match &e.body {
            Body::Data { crcs, .. } => buckets.forget_stale(crcs.len() as u64),
            Body::Staged { crcs } => {
                buckets.remove_staged(crcs.len() as u64, buckets.counted(e.written))
            }
            Body::Zeros { .. } => {}
        }
        Ok(true)
    }

    /// True if nothing would be missed without this key.
    pub fn is_dead(&self, buckets: &Buckets, e: &Extent) -> bool {
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
    audit: &'a mut Option<Audit>,
    scratch: &'a mut Vec<u8>,
}

impl Keys<'_> {
    fn insert(&mut self, buckets: &Buckets, e: &Extent) {
        *self.count += 1;
        self.set(buckets, e);
    }

    fn remove(&mut self, buckets: &Buckets, e: &Extent) {
        self.note(buckets, e, -1);
        *self.count -= i64::from(self.edit.remove(&index_key(e.volume, e.lba)));
    }

    /// The same key is to say something else.
    fn change(&mut self, buckets: &Buckets, old: &Extent, new: &Extent) {
        self.note(buckets, old, -1);
        self.set(buckets, new);
    }

    fn set(&mut self, buckets: &Buckets, e: &Extent) {
        self.note(buckets, e, 1);
        e.encode(self.scratch);
        self.edit.insert(&index_key(e.volume, e.lba), self.scratch);
    }

    /// Enters an extent, as a continuation of the one before it where that can be.
    fn append(&mut self, buckets: &Buckets, e: &Extent) {
        // A neighbour that makes no sense is not continued; a read of it tells.
        let last = e.lba.0.checked_sub(1).map(|last| index_key(e.volume, Lba(last)));
        let before =
            last.and_then(|key| self.edit.get_le(&key, |k, v| floor(buckets, e.volume, k, v)));
        let before = before.flatten().flatten();
        let Some(b) = before.filter(|b| b.continued_by(e, buckets.bucket_blocks())) else {
            return self.insert(buckets, e);
        };
        let mut longer = b.clone();
        match (&mut longer.body, &e.body) {
            (Body::Data { crcs, .. }, Body::Data { crcs: more, .. })
            | (Body::Staged { crcs }, Body::Staged { crcs: more }) => crcs.extend_from_slice(more),
            (Body::Zeros { len }, Body::Zeros { len: more }) => *len += more,
            _ => unreachable!("an extent is continued by its own kind only"),
        }
        self.change(buckets, &b, &longer);
    }

    fn note(&mut self, buckets: &Buckets, e: &Extent, by: i32) {
        if let Some(audit) = self.audit {
            audit.changed(buckets, e, by);
        }
    }
}

/// A record that was found at or before a key of `volume`: `None` if it is another volume's, and
/// what it says, if that makes sense.
fn floor(buckets: &Buckets, volume: VolumeId, key: &[u8], value: &[u8]) -> Option<Option<Extent>> {
    let mine = decode_key(key).is_none_or(|(v, _)| v == volume);
    mine.then(|| Extent::decode(buckets, key, value))
}

/// A node of the index stands at this block of the cache device, counted from its first bucket.
pub(crate) fn node_addr(addr: PoolAddr) -> CacheAddr {
    CacheAddr(addr.0)
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
