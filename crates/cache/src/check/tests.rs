//! A cache is made in simulation, damaged at a known place, and checked: exactly that must be
//! found.

use std::ops::Range;
use std::time::Duration;

use base::{BLOCK, BucketGen, CacheAddr, Lba, PoolAddr, SECTOR, SliceList, VolumeId};
use format::cache::index::{encode_data, encode_zeros, index_key};
use format::node::{NodePage, NodePtr, NodeRef, decode};
use pool::Pool;
use rt::Op;
use sim::Fault;

use super::*;
use crate::device::table::{PageSlots, choose_slot, encode_page};
use crate::store::key::{Body, IndexKey};
use crate::testkit::{CACHE_BYTES, Lab, MIB, fill, settings};
use crate::{Cache, Settings};

mod bad;
mod journal;
mod staged;

impl Lab {
    fn image(&self) -> Image {
        let files = self.files();
        self.boot(move |rt| async move {
            let options = CheckOptions::default();
            pool::check::check(&rt, files, &options, &mut |_| {}).await.expect("a pool").image
        })
    }

    fn check_with(&self, image: Image, data: bool) -> Report {
        let before = self.world.contents(self.device, 0, CACHE_BYTES as usize);
        let file = self.file();
        let report = self.boot(move |rt| async move {
            let options = CheckOptions { data, ..CheckOptions::default() };
            check(&rt, &file, &image, &options, &mut |_| {}).await
        });
        assert!(
            self.world.contents(self.device, 0, CACHE_BYTES as usize) == before,
            "a check wrote"
        );
        report
    }

    pub fn check(&self) -> Report {
        self.check_with(self.image(), true)
    }

    fn rot(&self, offset: u64) {
        assert!(self.world.inject(self.device, Fault::BitRot { offset, len: SECTOR as u64 }));
    }

    fn block(&self, offset: u64) -> Vec<u8> {
        self.world.contents(self.device, offset, BLOCK)
    }

    fn put(&self, offset: u64, bytes: &[u8]) {
        let (file, bytes) = (self.device, bytes.to_vec());
        self.boot(move |rt| async move {
            let data = SliceList::from_iter([rt.bufs().copy_of(&bytes).freeze()]);
            rt.op(Op::Write { file, offset, data, fua: true }).await.result.expect("write");
        });
    }

    pub fn superblock(&self) -> CacheSuperblock {
        let slots = (0..4).filter_map(|slot| {
            CacheSuperblock::decode(&self.block(CacheSuperblock::offset_of(slot))).ok()
        });
        slots.max_by_key(|sb| sb.sequence).expect("one of them")
    }

    /// Writes another superblock after the newest.
    fn put_superblock(&self, change: impl FnOnce(&mut CacheSuperblock)) {
        let mut sb = self.superblock();
        sb.sequence += 1;
        change(&mut sb);
        let mut block = vec![0; BLOCK];
        sb.encode(&mut block);
        self.put(CacheSuperblock::offset_of(sb.sequence), &block);
    }

    pub fn layout(&self) -> Layout {
        layout_of(&self.superblock(), &self.file()).expect("sound")
    }

    /// A page of the bucket table, of which there is one.
    fn records(&self) -> (Generation, Vec<BucketRecord>) {
        let (layout, sb) = (self.layout(), self.superblock());
        let bufs = base::BufPool::new(0);
        let read = |slot| Some(bufs.copy_of(&self.block(layout.page_offset(0, slot))));
        let slots: PageSlots = [read(0), read(1)];
        let found = choose_slot(&slots, (&layout, sb.uuid), 0, sb.generation).expect("whole");
        (found.generation, found.records)
    }

    fn put_records(&self, generation: Generation, records: &[BucketRecord]) {
        let (layout, sb) = (self.layout(), self.superblock());
        for slot in 0..2 {
            let block =
                encode_page((sb.uuid, 0, slot), records, generation, &base::BufPool::new(0));
            self.put(layout.page_offset(0, slot), &block);
        }
    }

    /// Enters a record into the index, without a word to the buckets.
    fn craft(&self, volume: u32, lba: u64, value: Vec<u8>) {
        self.with(move |cache| async move {
            let key = index_key(VolumeId(volume), Lba(lba));
            let outcome = cache.resident(Class::Commit, |st| {
                let (tree, store, changes) = st.index.parts_mut();
                store.edit(tree, changes, &key, &key)?.insert(&key, &value);
                Ok(())
            });
            outcome.await.expect("resident");
        });
    }

    /// The extents of "a" and "b" as the checkpoint has them.
    fn extents(&self) -> Vec<IndexKey> {
        let (sb, layout, file) = (self.superblock(), self.layout(), self.file());
        self.boot(move |rt| async move {
            let (src, mut log) = (Source::new(&rt, &file), Log::new(10));
            let (mut walk, mut out) = (walk::over(&sb), Vec::new());
            let mut nodes = walk::IndexNodes { src: &src, log: &mut log, sb: &sb, layout: &layout };
            while let Some((_, page)) = walk.next_node(&mut nodes).await {
                let records = (0..page.count())
                    .filter(|_| page.level() == 0)
                    .map(|i| (page.key(i), page.value(i)));
                out.extend(records.filter_map(|(k, v)| {
                    IndexKey::decode_within(|a, n| layout.contains(a, n), &k, v)
                }));
            }
            src.device.close();
            out
        })
    }

    fn first(&self, dirty: bool) -> (IndexKey, CacheAddr, BucketGen) {
        let published = self.image().published;
        let all = self.extents();
        let found = all.into_iter().find(|e| {
            matches!(e.body, Body::Data { .. })
                && e.len() == 1
                && e.written.is_some_and(|w| w > published) == dirty
        });
        let e = found.expect("there are both");
        let Body::Data { addr, generation, .. } = e.body else { unreachable!("it has data") };
        (e, addr, generation)
    }
}

/// Severity and subject of all problems.
fn kinds(r: &Report) -> Vec<(Severity, Subject)> {
    r.problems.iter().map(|p| (p.severity, p.subject)).collect()
}

fn has(r: &Report, subject: Subject, what: &str) -> bool {
    let found = r
        .problems
        .iter()
        .any(|p| p.subject == subject && p.severity == Severity::Error && p.what.contains(what));
    found && !r.is_clean()
}

#[test]
fn a_sound_cache_is_clean() {
    let lab = Lab::new();
    let r = lab.check();
    assert_eq!(r.problems, []);
    assert!(r.is_clean() && r.standing == Standing::Attached && r.slots.len() == 4);
    let c = r.counts;
    assert_eq!((c.live_blocks, c.dirty_blocks, c.dirty_zeros), (1120, 450, 100), "{c:?}");
    assert!(c.nodes > 2 && c.table_pages == 1 && c.keys > 900 && c.stale_keys == 0, "{c:?}");
    assert_eq!((c.journal_entries, c.verified_bytes), (0, 1120 * BLOCK as u64));
    let without = lab.check_with(lab.image(), false);
    assert_eq!(without.counts.verified_bytes, 0);
}

#[test]
fn what_a_crash_leaves_is_clean() {
    let lab = Lab::new();
    lab.crash();
    let r = lab.check();
    assert_eq!(r.problems, []);
    assert!(r.counts.journal_entries >= 5 && r.counts.journal_records >= 41, "{:?}", r.counts);
}

#[test]
fn superblocks() {
    let lab = Lab::new();
    let sequence = lab.superblock().sequence;
    lab.rot(CacheSuperblock::offset_of(sequence + 1));
    let r = lab.check();
    assert_eq!(kinds(&r), [(Severity::Note, Subject::Superblock)], "the next one may be torn");
    assert!(r.is_clean());
    lab.rot(CacheSuperblock::offset_of(sequence));
    let r = lab.check();
    assert!(kinds(&r).contains(&(Severity::DamagedCopy, Subject::Superblock)), "{:?}", r.problems);
    assert!(!r.is_clean() && r.errors == 0, "the one before says the same: {:?}", r.problems);
    (0..4).for_each(|slot| lab.put(CacheSuperblock::offset_of(slot), &[1; BLOCK]));
    let r = lab.check();
    assert_eq!((r.standing, r.uuid.is_none()), (Standing::Foreign, true));
    assert!(has(&r, Subject::Device, "no superblock"), "{:?}", r.problems);
}

#[test]
fn whose_it_is() {
    let lab = Lab::new();
    let r = lab.check_with(Image { pool_uuid: [9; 16], ..lab.image() }, true);
    assert!(has(&r, Subject::Device, "another pool") && r.standing == Standing::Foreign);
    let r = lab.check_with(Image { cache_uuid: Some([9; 16]), ..lab.image() }, true);
    assert!(
        has(&r, Subject::Device, "not the cache that is attached")
            && r.standing == Standing::Foreign
    );
    let r = lab.check_with(Image { cache_uuid: None, ..lab.image() }, true);
    assert_eq!(
        (kinds(&r), r.standing),
        (vec![(Severity::Note, Subject::Device)], Standing::Detached)
    );
    assert!(r.is_clean());
}

#[test]
fn a_device_that_is_too_small() {
    let lab = Lab::new();
    lab.put_superblock(|sb| sb.bucket_count += 1);
    let r = lab.check();
    assert!(has(&r, Subject::Superblock, "needs"), "{:?}", r.problems);
}

#[test]
fn table_pages() {
    let lab = Lab::new();
    let layout = lab.layout();
    lab.rot(layout.page_offset(0, 0));
    let r = lab.check();
    assert_eq!(kinds(&r), [(Severity::Note, Subject::Table)]);
    lab.rot(layout.page_offset(0, 1));
    let r = lab.check();
    assert_eq!(kinds(&r), [(Severity::Error, Subject::Table), (Severity::Note, Subject::Journal)]);
    let lab = Lab::new();
    let (_, records) = lab.records();
    lab.put_records(Generation(1), &records);
    let r = lab.check();
    assert!(has(&r, Subject::Table, "older than it should be"), "{:?}", r.problems);
}

#[test]
fn counters() {
    let wrong = |change: fn(&mut BucketRecord), select: fn(&BucketRecord) -> bool| {
        let lab = Lab::new();
        let (generation, mut records) = lab.records();
        change(records.iter_mut().find(|f| select(f)).expect("such a bucket"));
        lab.put_records(generation, &records);
        let r = lab.check();
        assert!(
            !r.is_clean()
                && r.problems
                    .iter()
                    .all(|p| p.subject == Subject::Bucket || p.severity == Severity::Note)
        );
        r
    };
    let r =
        wrong(|f| f.live -= 1, |f| f.kind == BucketKind::Data && f.live > 2 && f.dirty_open == 0);
    assert!(has(&r, Subject::Bucket, "blocks in it"), "{:?}", r.problems);
    let r = wrong(|f| f.live += 1, |f| f.kind == BucketKind::Nodes);
    assert!(has(&r, Subject::Bucket, "blocks in it"), "{:?}", r.problems);
    let r = wrong(|f| f.dirty_open -= 1, |f| f.dirty_open > 0);
    assert!(has(&r, Subject::Bucket, "dirty blocks of the open epoch"), "{:?}", r.problems);
    let r = wrong(|f| f.kind = BucketKind::Nodes, |f| f.kind == BucketKind::Data && f.live > 0);
    assert!(has(&r, Subject::Bucket, "is for nodes"), "{:?}", r.problems);
    let r = wrong(|f| f.kind = BucketKind::Free, |f| f.kind == BucketKind::Nodes && f.live > 0);
    assert!(has(&r, Subject::Bucket, "is for free"), "{:?}", r.problems);
}

#[test]
fn counters_of_a_cut() {
    let lab = Lab::new();
    let (generation, mut records) = lab.records();
    let f = records.iter_mut().find(|f| f.dirty_open > 0).expect("a dirty one");
    (f.dirty_open, f.dirty_cut) = (f.dirty_open - 1, 1);
    lab.put_records(generation, &records);
    let epoch = lab.superblock().epoch;
    lab.put_superblock(|sb| (sb.epoch, sb.cut) = (Epoch(epoch.0 + 1), epoch));
    let r = lab.check();
    assert!(has(&r, Subject::Bucket, "dirty blocks of the sealed epochs"), "{:?}", r.problems);
}

/// The root's block, and what it holds.
fn root(lab: &Lab) -> (u64, NodeRef, NodePage) {
    let (sb, layout) = (lab.superblock(), lab.layout());
    let root = sb.root.expect("not empty");
    let r = NodeRef { ptr: root.ptr, level: root.height - 1, tree: INDEX_TREE };
    let offset = layout.offset_of(CacheAddr(root.ptr.addr.0));
    (offset, r, decode(&lab.block(offset), &r).expect("whole"))
}

fn put_root(lab: &Lab, page: &NodePage, generation: Generation) {
    let (offset, r, _) = root(lab);
    let mut block = vec![0; BLOCK];
    let crc = page.seal(INDEX_TREE, generation, r.ptr.addr, &mut block);
    lab.put(offset, &block);
    lab.put_superblock(|sb| {
        let root = sb.root.as_mut().expect("not empty");
        root.ptr = NodePtr { crc, generation, ..root.ptr };
    });
}

#[test]
fn nodes() {
    let lab = Lab::new();
    let (offset, _, page) = root(&lab);
    assert_eq!(page.level(), 1);
    lab.rot(lab.layout().offset_of(CacheAddr(page.pointer(1).addr.0)));
    let r = lab.check();
    assert_eq!(kinds(&r), [(Severity::Error, Subject::Node), (Severity::Note, Subject::Journal)]);
    lab.world.inject(lab.device, Fault::ReadError { offset, len: 512 });
    assert_eq!(kinds(&lab.check())[0], (Severity::Error, Subject::Node));

    let lab = Lab::new();
    let (_, r, mut page) = root(&lab);
    let (a, b) = (page.pointer(0), page.pointer(1));
    page.set_pointer(0, &b);
    page.set_pointer(1, &a);
    put_root(&lab, &page, r.ptr.generation);
    let found = lab.check();
    assert!(
        has(&found, Subject::Node, "not those that its parent expects"),
        "{:?}",
        found.problems
    );

    let lab = Lab::new();
    let (_, _, page) = root(&lab);
    put_root(&lab, &page, lab.superblock().generation.next());
    assert!(has(&lab.check(), Subject::Node, "newer than the checkpoint"));

    let lab = Lab::new();
    let (_, r, mut page) = root(&lab);
    page.set_pointer(1, &NodePtr { addr: PoolAddr(1 << 39), ..page.pointer(1) });
    put_root(&lab, &page, r.ptr.generation);
    assert!(has(&lab.check(), Subject::Node, "outside of the cache"));
}

fn data(epoch: u32, addr: CacheAddr, generation: BucketGen, blocks: usize) -> Vec<u8> {
    let mut out = Vec::new();
    encode_data(&mut out, Epoch(epoch), addr, generation, &vec![7; blocks]);
    out
}

fn zeros(epoch: u32, len: u64) -> Vec<u8> {
    let mut out = Vec::new();
    encode_zeros(&mut out, Epoch(epoch), len);
    out
}

#[test]
fn a_block_that_two_have() {
    let lab = Lab::new();
    let (_, addr, generation) = lab.first(false);
    lab.craft(1, 1201, data(0, addr, generation, 1));
    let r = lab.check();
    assert!(
        has(&r, Subject::Extent, "something else's too")
            && has(&r, Subject::Bucket, "blocks in it"),
        "{r:?}"
    );

    // The first leaf names the block of the last.
    let lab = Lab::new();
    let (_, _, page) = root(&lab);
    let last = CacheAddr(page.pointer(page.count() - 1).addr.0);
    let bucket = last.0 / u64::from(lab.layout().bucket_blocks);
    let generation = lab.records().1[bucket as usize].generation;
    lab.craft(1, 1, data(0, last, generation, 1));
    let (_, _, after) = root(&lab);
    assert_eq!(after.pointer(after.count() - 1).addr.0, last.0, "it was not written again");
    let r = lab.check();
    assert!(has(&r, Subject::Node, "something else has its block too"), "{:?}", r.problems);
}

#[test]
fn keys_that_contradict_others() {
    let lab = Lab::new();
    lab.craft(1, 1205, data(0, CacheAddr(15), BucketGen(0), 2));
    let r = lab.check();
    assert!(has(&r, Subject::Extent, "makes no sense"), "it is in two buckets: {:?}", r.problems);

    let lab = Lab::new();
    let epoch = lab.superblock().epoch.0;
    lab.craft(1, 1205, zeros(epoch, 10));
    lab.craft(1, 1207, zeros(epoch, 1));
    let r = lab.check();
    assert!(has(&r, Subject::Extent, "begins inside"), "{:?}", r.problems);
    assert!(
        r.problems[0].place.contains("volume 1 (\"a\"), blocks 1207 to 1207"),
        "{:?}",
        r.problems
    );

    let lab = Lab::new();
    lab.craft(1, 1205, zeros(lab.superblock().epoch.0 + 10, 10));
    let r = lab.check();
    assert!(has(&r, Subject::Extent, "newer than the open one"), "{:?}", r.problems);
}

#[test]
fn stale_keys() {
    let lab = Lab::new();
    let (_, addr, generation) = lab.first(false);
    let other = BucketGen(generation.0.wrapping_sub(1));
    lab.craft(1, 1205, data(0, addr, other, 1));
    let r = lab.check();
    assert_eq!((r.problems.len(), r.counts.stale_keys), (0, 1), "{:?}", r.problems);
    let epoch = lab.superblock().epoch.0;
    lab.craft(1, 1207, data(epoch, addr, other, 1));
    let r = lab.check();
    assert!(
        has(&r, Subject::Extent, "dirty, and its bucket was given to something else"),
        "{:?}",
        r.problems
    );
}

#[test]
fn keys_of_what_the_pool_does_not_have() {
    let lab = Lab::new();
    let epoch = lab.superblock().epoch.0;
    lab.craft(3, 0, zeros(epoch, 5));
    let r = lab.check();
    assert_eq!(kinds(&r), [(Severity::Note, Subject::Volume)], "a deletion may be cut short");
    assert!(r.is_clean() && r.problems[0].what.starts_with("5 blocks"), "{:?}", r.problems);
    lab.craft(77, 0, zeros(epoch, 5));
    let r = lab.check();
    assert!(has(&r, Subject::Volume, "never had"), "{:?}", r.problems);

    let lab = Lab::new();
    // An open would drop them, so it is the volume that is told to be smaller.
    let mut image = lab.image();
    image.volumes.as_mut().expect("whole")[1].2 = 50 * BLOCK as u64;
    let r = lab.check_with(image, false);
    assert_eq!(kinds(&r), [(Severity::Note, Subject::Volume)]);
    assert!(r.problems[0].what.starts_with("30 blocks behind its end"), "{:?}", r.problems);
}

#[test]
fn data_that_is_bad() {
    let lab = Lab::new();
    let offset = |addr| lab.layout().offset_of(addr);
    let (e, addr, _) = lab.first(false);
    lab.rot(offset(addr));
    let r = lab.check();
    assert_eq!(kinds(&r), [(Severity::DamagedCopy, Subject::Data)]);
    assert!(r.problems[0].place.contains(&format!("blocks {} to {0}", e.lba)), "{:?}", r.problems);
    assert!(lab.check_with(lab.image(), false).is_clean(), "data is looked at if it is asked for");
    let (e, addr, _) = lab.first(true);
    lab.rot(offset(addr));
    let r = lab.check();
    assert_eq!((r.errors, r.damaged_copies), (1, 1));
    let p = r.problems.iter().find(|p| p.severity == Severity::Error).expect("counted");
    assert_eq!(p.place, format!("volume 1 (\"a\"), blocks {} to {0}", e.lba));

    let lab = Lab::new();
    let e = lab.extents().into_iter().find(|e| e.volume == VolumeId(2)).expect("there");
    let Body::Data { addr, .. } = e.body else { panic!("it has data") };
    let offset = lab.layout().offset_of(CacheAddr(addr.0 + 3));
    lab.world.inject(lab.device, Fault::ReadError { offset, len: 512 });
    lab.rot(offset + 2 * BLOCK as u64);
    let r = lab.check();
    assert_eq!(
        kinds(&r),
        [(Severity::DamagedCopy, Subject::Data); 2],
        "one by one: {:?}",
        r.problems
    );
}
