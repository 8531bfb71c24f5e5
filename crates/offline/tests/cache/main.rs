//! A cache is made in simulation, damaged at a known place, and checked: exactly that must be
//! found.

mod dump;
mod journal;
mod lab;
mod repair;

use base::{BLOCK, BucketGen, CacheAddr, Epoch, Generation, PoolAddr, VolumeId};
use cache::raw::{Body, IndexKey};
use format::cache::bucket::{BucketKind, BucketRecord};
use format::cache::index::{encode_data, encode_zeros};
use format::cache::superblock::{CacheSuperblock, SLOTS};
use format::node::NodePtr;
use offline::cache::check::{CacheReport, PoolRelation};
use offline::pool::check::Image;
use offline::{Severity, Subject};
use sim::Fault;

use lab::Lab;

/// Severity and subject of all problems.
fn kinds(r: &CacheReport) -> Vec<(Severity, Subject)> {
    r.problems.iter().map(|p| (p.severity, p.subject)).collect()
}

fn has(r: &CacheReport, subject: Subject, what: &str) -> bool {
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
    assert!(r.is_clean() && r.standing == PoolRelation::Attached && r.slots.len() == 4);
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
    // None is whole, and some begin as a cache's do.
    (0..SLOTS).for_each(|slot| {
        let at = CacheSuperblock::offset_of(slot);
        let mut block = lab.block(at);
        block[100] ^= 1;
        lab.put(at, &block);
    });
    let r = lab.check();
    assert_eq!((r.standing, r.uuid.is_none()), (PoolRelation::Foreign, true));
    assert!(has(&r, Subject::Device, "no superblock"), "{:?}", r.problems);
}

/// A device that is not the pool's cache was named: nothing of that is wrong.
#[test]
fn whose_it_is() {
    let lab = Lab::new();
    let is_foreign = |image: Image, what: &str| {
        let r = lab.check_with(image, true);
        let is_note = kinds(&r) == [(Severity::Note, Subject::Device)];
        assert!(is_note && r.problems[0].what.contains(what), "{:?}", r.problems);
        assert!(r.is_clean() && r.standing == PoolRelation::Foreign, "{r:?}");
    };
    // A slot that is damaged is nothing of this pool's.
    lab.rot(CacheSuperblock::offset_of(lab.superblock().sequence));
    is_foreign(Image { pool_uuid: [9; 16], ..lab.image() }, "another pool");
    is_foreign(Image { cache_uuid: Some([9; 16]), ..lab.image() }, "that is attached");
    for content in [1, 0] {
        let other = Lab::new();
        (0..SLOTS).for_each(|slot| other.put(CacheSuperblock::offset_of(slot), &[content; BLOCK]));
        let r = other.check();
        assert!(r.is_clean() && r.standing == PoolRelation::Foreign, "{r:?}");
        assert_eq!(r.problems[0].what, "it holds no cache of Forebay");
    }
    let lab = Lab::new();
    let r = lab.check_with(Image { cache_uuid: None, ..lab.image() }, true);
    assert_eq!(
        (kinds(&r), r.standing),
        (vec![(Severity::Note, Subject::Device)], PoolRelation::Detached)
    );
    assert!(r.is_clean());
}

/// Where the pool has no cache, nothing that stands in the place of one is a fault.
#[test]
fn what_is_attached_to_no_pool() {
    let lab = Lab::new();
    let none = || Image { cache_uuid: None, ..lab.image() };
    lab.rot(CacheSuperblock::offset_of(lab.superblock().sequence));
    let r = lab.check_with(none(), true);
    assert_eq!(r.standing, PoolRelation::Detached);
    assert!(r.is_clean() && r.damaged_copies == 0, "{:?}", r.problems);
    // None is whole, and some begin as a cache's do.
    (0..SLOTS).for_each(|slot| {
        let at = CacheSuperblock::offset_of(slot);
        let mut block = lab.block(at);
        block[100] ^= 1;
        lab.put(at, &block);
    });
    let r = lab.check_with(none(), true);
    assert!(r.is_clean() && r.standing == PoolRelation::Foreign, "{:?}", r.problems);
    assert!(!lab.check().is_clean(), "of a pool that has a cache it is one");
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
    let r = wrong(|f| f.twin = None, |f| f.kind == BucketKind::Nodes && f.live > 0);
    assert!(has(&r, Subject::Bucket, "which does not name it"), "{:?}", r.problems);
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

#[test]
fn nodes() {
    let lab = Lab::new();
    let (_, page) = lab.root();
    let root = lab.node_places(lab.root().0.ptr.addr);
    assert_eq!(page.level(), 1);
    let leaf = lab.node_places(page.pointer(1).addr);
    lab.rot(leaf[1]);
    assert_eq!(kinds(&lab.check()), [(Severity::DamagedCopy, Subject::Node)]);
    lab.strike(Fault::ReadError { offset: root[0], len: 512 });
    assert_eq!(kinds(&lab.check()), [(Severity::DamagedCopy, Subject::Node); 2]);
    lab.rot(leaf[0]);
    let r = lab.check();
    let is = |severity| (severity, Subject::Node);
    let note = (Severity::Note, Subject::Journal);
    assert_eq!(kinds(&r), [is(Severity::DamagedCopy), is(Severity::Error), note]);
    lab.strike(Fault::ReadError { offset: root[1], len: 512 });
    assert_eq!(kinds(&lab.check())[0], (Severity::Error, Subject::Node));

    let lab = Lab::new();
    let (r, mut page) = lab.root();
    let (a, b) = (page.pointer(0), page.pointer(1));
    page.set_pointer(0, &b);
    page.set_pointer(1, &a);
    lab.put_root(&page, r.ptr.generation);
    let found = lab.check();
    assert!(
        has(&found, Subject::Node, "not those that its parent expects"),
        "{:?}",
        found.problems
    );

    let lab = Lab::new();
    let (_, page) = lab.root();
    lab.put_root(&page, lab.superblock().generation.next());
    assert!(has(&lab.check(), Subject::Node, "newer than the checkpoint"));

    let lab = Lab::new();
    let (r, mut page) = lab.root();
    page.set_pointer(1, &NodePtr { addr: PoolAddr(1 << 39), ..page.pointer(1) });
    lab.put_root(&page, r.ptr.generation);
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
    lab.craft(2, 85, data(0, addr, generation, 1));
    let r = lab.check();
    assert!(
        has(&r, Subject::Extent, "something else's too")
            && has(&r, Subject::Bucket, "blocks in it"),
        "{r:?}"
    );

    // The first leaf names the block of the last.
    let lab = Lab::new();
    let (_, page) = lab.root();
    let last = CacheAddr(page.pointer(page.count() - 1).addr.0);
    let bucket = last.0 / u64::from(lab.layout().bucket_blocks);
    let generation = lab.records().1[bucket as usize].generation;
    lab.craft(1, 0, data(0, last, generation, 1));
    let r = lab.check();
    assert!(has(&r, Subject::Node, "something else has its block too"), "{:?}", r.problems);
}

#[test]
fn keys_that_contradict_others() {
    let lab = Lab::new();
    lab.craft(2, 85, data(0, CacheAddr(15), BucketGen(0), 2));
    let r = lab.check();
    assert!(has(&r, Subject::Extent, "makes no sense"), "it is in two buckets: {:?}", r.problems);

    let lab = Lab::new();
    let epoch = lab.superblock().epoch.0;
    lab.craft(2, 85, zeros(epoch, 10));
    lab.craft(2, 87, zeros(epoch, 1));
    let r = lab.check();
    assert!(has(&r, Subject::Extent, "begins inside"), "{:?}", r.problems);
    assert!(r.problems[0].place.contains("volume 2 (\"b\"), block 87 (bytes"), "{:?}", r.problems);

    let lab = Lab::new();
    lab.craft(2, 85, zeros(lab.superblock().epoch.0 + 10, 10));
    let r = lab.check();
    assert!(has(&r, Subject::Extent, "newer than the open one"), "{:?}", r.problems);
}

#[test]
fn stale_keys() {
    let lab = Lab::new();
    let (_, addr, generation) = lab.first(false);
    let other = BucketGen(generation.0.wrapping_sub(1));
    lab.craft(2, 85, data(0, addr, other, 1));
    let r = lab.check();
    assert_eq!((r.problems.len(), r.counts.stale_keys), (0, 1), "{:?}", r.problems);
    let epoch = lab.superblock().epoch.0;
    lab.craft(2, 87, data(epoch, addr, other, 1));
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
    assert!(r.problems[0].place.contains(&format!(", block {} (bytes", e.lba)), "{:?}", r.problems);
    assert!(lab.check_with(lab.image(), false).is_clean(), "data is looked at if it is asked for");
    let (e, addr, _) = lab.first(true);
    lab.rot(offset(addr));
    let r = lab.check();
    assert_eq!((r.errors, r.damaged_copies), (1, 1));
    let p = r.problems.iter().find(|p| p.severity == Severity::Error).expect("counted");
    assert!(p.place.starts_with(&format!("volume 1 (\"a\"), block {} (bytes", e.lba)), "{p}");

    // Neighbours are one problem, and as many errors as there are blocks.
    let lab = Lab::new();
    let two = |e: &IndexKey| e.volume == VolumeId(1) && e.lba.0 >= 2000 && e.end() - e.lba.0 == 2;
    let e = lab.extents().into_iter().find(two).expect("there");
    let Body::Data { addr, .. } = e.body else { panic!("it has data") };
    lab.rot(offset(addr));
    lab.rot(offset(CacheAddr(addr.0 + 1)));
    let r = lab.check();
    assert_eq!((r.errors, r.problems.len(), r.problems[0].counted), (2, 1, 2), "{:?}", r.problems);

    let lab = Lab::new();
    let e = lab.extents().into_iter().find(|e| e.volume == VolumeId(2)).expect("there");
    let Body::Data { addr, .. } = e.body else { panic!("it has data") };
    let offset = lab.layout().offset_of(CacheAddr(addr.0 + 3));
    lab.strike(Fault::ReadError { offset, len: 512 });
    lab.rot(offset + 2 * BLOCK as u64);
    let r = lab.check();
    assert_eq!(
        kinds(&r),
        [(Severity::DamagedCopy, Subject::Data); 2],
        "one by one: {:?}",
        r.problems
    );
}

#[test]
fn what_clean_blocks_hold_is_of_no_matter_where_they_do_not_count() {
    let lab = Lab::new();
    let (_, addr, _) = lab.first(false);
    lab.rot(lab.layout().offset_of(addr));
    assert_eq!(kinds(&lab.check()), [(Severity::DamagedCopy, Subject::Data)]);
    let void = || Image { clean_void: true, ..lab.image() };
    assert!(lab.check_with(void(), true).is_clean());
    let (_, addr, _) = lab.first(true);
    lab.rot(lab.layout().offset_of(addr));
    assert_eq!(kinds(&lab.check_with(void(), true)), [(Severity::Error, Subject::Data)]);
}
