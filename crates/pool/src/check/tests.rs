//! A pool is made in simulation, damaged at a known place, and checked: exactly that must be found.

use std::cell::RefCell;

use base::{
    BLOCK, BLOCK_U64, ErrorKind, GroupId, Lba, PoolAddr, SECTOR, SliceList, StorageError, VolumeId,
};
use format::page::{
    PageId, PageKind, decode_bitmap, encode_bitmap, open_page, payload_mut, seal_page,
};
use rt::{FileId, Op, Order};
use sim::{DiskModel, Fault, World};

use super::*;
use crate::space::Geometry;
use crate::{CreateOptions, Pool, Settings};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 32 * MIB;

/// A world with a pool on its disks, which is not open.
pub(crate) struct Lab {
    world: World,
    disks: Vec<FileId>,
}

impl Lab {
    /// Two volumes on `disks` disks with `copies` copies; some of what was written is overwritten,
    /// discarded, deleted.
    pub fn new(disks: usize, copies: u8) -> Lab {
        let world = World::new(7);
        let disks: Vec<_> = (0..disks).map(|_| world.add_disk(DiskModel::nvme(SIZE))).collect();
        let lab = Lab { world, disks };
        let files = lab.files();
        lab.boot(move |rt| async move {
            let options = CreateOptions { name: "tank".into(), copies, group_bytes: Some(MIB) };
            let ids: Vec<[u8; 16]> = (0..=files.len() as u8).map(|i| [i + 1; 16]).collect();
            crate::create(&rt, &files, &options, &ids).await.expect("create");
            let (pool, _) = Pool::open(&rt, files, Settings::default()).await.expect("open");
            let a = pool.create_volume("a", 32 * MIB, 512).await.expect("volume");
            let b = pool.create_volume("b", 8 * MIB, 4096).await.expect("volume");
            let gone = pool.create_volume("gone", 8 * MIB, 4096).await.expect("volume");
            for i in 0..700u64 {
                fill(&rt, &pool, a, i * 3, 1 + i % 2, i as u8).await;
            }
            fill(&rt, &pool, b, 0, 600, 9).await;
            fill(&rt, &pool, gone, 100, 300, 11).await;
            pool.commit().await.expect("commit");
            for i in 0..100u64 {
                fill(&rt, &pool, a, i * 7, 1, 200).await;
            }
            pool.discard(b, Lba(50), Lba(123)).await.expect("discard");
            pool.delete_volume(gone).await.expect("delete");
            for _ in 0..4 {
                fill(&rt, &pool, a, 4000, 1, 77).await;
                pool.commit().await.expect("commit");
            }
            pool.close().await.expect("close");
        });
        lab
    }

    pub fn files(&self) -> Vec<DeviceFile> {
        let file =
            |&file: &FileId| DeviceFile { path: format!("disk{}", file.0), file, size_bytes: SIZE };
        self.disks.iter().map(file).collect()
    }

    pub fn boot<T: 'static, F: Future<Output = T> + 'static>(&self, f: impl FnOnce(Rt) -> F) -> T {
        let rt = Rt::new(self.world.backend(), Order::Seeded(3), 256);
        let out = rt.block_on(f(rt.clone())).expect("not killed");
        rt.kill();
        out
    }

    fn try_check(&self, files: Vec<DeviceFile>, data: bool) -> Result<Report> {
        let before: Vec<_> =
            self.disks.iter().map(|&d| self.world.contents(d, 0, SIZE as usize)).collect();
        let report = self.boot(move |rt| async move {
            let mut phases = Vec::new();
            let options = CheckOptions { data, ..CheckOptions::default() };
            let report = check(&rt, files, &options, &mut |p: Progress| phases.push(p.phase)).await;
            assert!(report.is_err() || phases.contains(&Phase::Groups));
            report
        });
        for (&d, before) in self.disks.iter().zip(before) {
            assert!(
                self.world.contents(d, 0, SIZE as usize) == before,
                "a check wrote to disk {d:?}"
            );
        }
        report
    }

    fn check(&self) -> Report {
        self.try_check(self.files(), true).expect("a pool")
    }

    fn rot(&self, disk: usize, offset: u64) {
        assert!(self.world.inject(self.disks[disk], Fault::BitRot { offset, len: SECTOR as u64 }));
    }

    /// Overwrites a block of every disk with what `change` makes of the first one's.
    fn craft(&self, offset: u64, change: impl Fn(&mut [u8])) {
        let mut block = self.world.contents(self.disks[0], offset, BLOCK);
        change(&mut block);
        let disks = self.disks.clone();
        self.boot(move |rt| async move {
            for file in disks {
                let data = SliceList::from_iter([rt.bufs().copy_of(&block).freeze()]);
                rt.op(Op::Write { file, offset, data, fua: true }).await.result.expect("write");
            }
        });
    }

    /// Looks at what is loaded when the pool is opened.
    fn state<T: 'static>(&self, look: impl FnOnce(&crate::state::State) -> T + 'static) -> T {
        let files = self.files();
        self.boot(move |rt| async move {
            let loaded = crate::open::load(&rt, files, &Settings::default()).await.expect("load");
            look(&loaded.state)
        })
    }

    /// Offsets on each disk of a pool block.
    fn places(&self, addr: PoolAddr) -> Vec<(usize, u64)> {
        self.state(move |st| st.copies_of(addr).into_iter().collect())
    }

    /// Where the first block of the volume "b" is.
    fn first_of_b(&self) -> PoolAddr {
        let root = self.state(|st| {
            st.forest.volumes().find(|v| v.record().name == "b").map(|v| v.record().clone())
        });
        let record = root.expect("it is there");
        let ptr = record.mapping.expect("not empty").ptr;
        let (d, offset) = self.places(ptr.addr)[0];
        let bytes = self.world.contents(self.disks[d], offset, BLOCK);
        let tree = crate::forest::mapping_tree_id(record.id);
        let node = format::node::decode(&bytes, &format::node::NodeRef { ptr, level: 0, tree })
            .expect("a leaf");
        format::records::MappedExtent::decode(&node.key(0), node.value(0)).expect("an extent").addr
    }
}

async fn fill(rt: &Rt, pool: &Pool, volume: VolumeId, lba: u64, blocks: u64, byte: u8) {
    let mut buf = rt.bufs().take((blocks * BLOCK_U64) as usize);
    for (i, b) in buf.chunks_exact_mut(BLOCK).enumerate() {
        b.fill(byte.wrapping_add(i as u8));
    }
    pool.write(volume, Lba(lba), &buf.freeze()).await.expect("write");
}

/// Severity, subject, device of all problems.
fn kinds(r: &Report) -> Vec<(Severity, Subject, Option<&str>)> {
    r.problems.iter().map(|p| (p.severity, p.subject, p.device.as_deref())).collect()
}

#[test]
fn a_sound_pool_is_clean() {
    for (disks, copies) in [(1, 1), (2, 2), (4, 2), (3, 3)] {
        let r = Lab::new(disks, copies).check();
        assert_eq!(r.problems, [], "{disks} disks, {copies} copies");
        assert!(r.is_clean() && !r.degraded);
        let c = r.counts;
        assert!(c.data_blocks > 1000 && c.nodes > 5 && c.extents > 500 && c.groups > 4, "{c:?}");
        assert_eq!(c.volumes, 2);
        assert_eq!(c.verified_bytes, c.data_blocks * BLOCK_U64 * u64::from(copies));
        assert_eq!(c.good_copies, (c.data_blocks + c.nodes) * u64::from(copies));
    }
}

#[test]
fn a_crashed_pool_is_clean() {
    for seed in (0..40).step_by(5) {
        let lab = Lab::new(2, 2);
        let files = lab.files();
        let rt = Rt::new(lab.world.backend(), Order::Seeded(seed), 256);
        let (r, world) = (rt.clone(), lab.world.clone());
        let ended = rt.block_on(async move {
            let (pool, _) = Pool::open(&r, files, Settings::default()).await.expect("open");
            let b = pool.find_volume("b").expect("there").id;
            for i in 0..seed {
                fill(&r, &pool, b, 10 * i, 20, i as u8).await;
            }
            let p = pool.clone();
            drop(r.spawn(async move { p.commit().await }));
            r.sleep(base::Duration::from_micros(100 * seed)).await;
            world.power_cut();
            r.kill();
            r.yield_now().await;
        });
        assert_eq!(ended, None);
        let report = lab.check();
        assert!(report.is_clean(), "seed {seed}: {:?}", report.problems);
    }
}

#[test]
fn superblocks() {
    let lab = Lab::new(2, 2);
    let sequence = lab.state(|st| st.txns.sequence());
    let slot = |sequence| format::superblock::Superblock::offset_of(sequence);
    let lose = |device, sequence| {
        [0, BLOCK_U64].into_iter().for_each(|copy| lab.rot(device, slot(sequence) + copy))
    };
    lose(0, sequence + 1);
    let r = lab.check();
    assert_eq!(
        kinds(&r),
        [(Severity::Note, Subject::Superblock, None)],
        "the next one may be torn"
    );
    assert!(r.is_clean());
    lose(1, sequence - 1);
    let r = lab.check();
    assert_eq!(kinds(&r)[1], (Severity::DamagedCopy, Subject::Superblock, Some("disk1")));
    assert!(!r.is_clean());
    (sequence - 3..=sequence).for_each(|s| lose(0, s));
    let r = lab.check();
    assert!(r.degraded);
    assert!(
        r.problems.iter().any(|p| p.subject == Subject::Device && p.severity == Severity::Error)
    );
    (sequence - 3..=sequence).for_each(|s| lose(1, s));
    let e: StorageError = lab.try_check(lab.files(), false).expect_err("no superblock is left");
    assert!(matches!(e.kind, ErrorKind::Missing | ErrorKind::Damaged), "{e}");
}

#[test]
fn table_pages() {
    for page in [0u32, 2] {
        let lab = Lab::new(2, 2);
        let committed = move |st: &crate::state::State| {
            st.space.geometry().page_offset(u64::from(page), 1 - st.tables.next_slot(page))
        };
        let offset = lab.state(committed);
        lab.rot(1, offset);
        let r = lab.check();
        assert_eq!(kinds(&r), [(Severity::DamagedCopy, Subject::Table, Some("disk1"))]);
        lab.rot(0, offset);
        let r = lab.check();
        assert!(
            r.errors > 0 && r.problems.iter().all(|p| p.severity != Severity::DamagedCopy),
            "{:?}",
            r.problems
        );
        assert_eq!(r.problems[0].subject, Subject::Table);
    }
}

/// A data group in use, its first bitmap page's offset (both slots) and that page's identity and
/// generation.
fn a_bitmap(lab: &Lab, kind: GroupKind) -> (GroupId, Geometry, PageId, base::Generation) {
    lab.state(move |st| {
        let geometry = st.space.geometry();
        let records = st.space.records(0, geometry.group_capacity as usize);
        let used = |g: &format::page::GroupRecord| g.kind == kind && g.used > 0 && g.used < 200;
        let group =
            GroupId(records.iter().position(used).expect("a group that is partly used") as u32);
        let page = geometry.bitmap_page(group, 0);
        let id = PageId { pool_uuid: st.identity.uuid, kind: PageKind::Bitmap, page, slot: 0 };
        (group, geometry, id, st.space.bitmap_generations(group)[0])
    })
}

fn committed_slot(lab: &Lab, g: &Geometry, id: &PageId, generation: base::Generation) -> u64 {
    let offsets = [0, 1].map(|slot| g.page_offset(id.page, slot));
    let holds = |&&at: &&u64| {
        let block = lab.world.contents(lab.disks[0], at, BLOCK);
        open_page(&id.in_slot(u8::from(at != offsets[0])), &block)
            .is_ok_and(|(found, _)| found == generation)
    };
    *offsets.iter().find(holds).expect("one of them")
}

#[test]
fn bitmap_pages() {
    let lab = Lab::new(2, 2);
    let (_, g, id, generation) = a_bitmap(&lab, GroupKind::Data);
    let at = committed_slot(&lab, &g, &id, generation);
    lab.rot(0, at);
    let r = lab.check();
    assert_eq!(kinds(&r), [(Severity::DamagedCopy, Subject::Bitmap, Some("disk0"))]);
    lab.rot(1, at);
    let r = lab.check();
    assert_eq!(kinds(&r), [(Severity::Error, Subject::Bitmap, None)]);
}

/// Flips a bit of a bitmap on all disks.
fn flip(lab: &Lab, kind: GroupKind, value: bool) -> GroupId {
    let (group, g, id, generation) = a_bitmap(lab, kind);
    let at = committed_slot(lab, &g, &id, generation);
    let id = id.in_slot(u8::from(at != g.page_offset(id.page, 0)));
    lab.craft(at, |block| {
        let bits = g.bits_of_page(0) as usize;
        let (_, payload) = open_page(&id, block).expect("whole");
        let words = decode_bitmap(payload, bits).expect("whole");
        let mut map = base::Bitmap::new(bits);
        map.set_words(0, &words);
        let bit = map.find(0, !value).expect("such a bit");
        map.assign(bit, 1, value);
        encode_bitmap(map.words(), payload_mut(block));
        seal_page(&id, generation, block);
    });
    group
}

#[test]
fn leaks_and_references_to_free_blocks() {
    for kind in [GroupKind::Data, GroupKind::Metadata] {
        let lab = Lab::new(2, 2);
        let group = flip(&lab, kind, true);
        let r = lab.check();
        assert_eq!(
            kinds(&r),
            [(Severity::Error, Subject::Group, None), (Severity::Error, Subject::Space, None)]
        );
        assert_eq!(r.problems[1].place, format!("block group {group}"));
        assert!(r.problems[1].what.starts_with("1 "), "{}", r.problems[1]);

        let lab = Lab::new(2, 2);
        flip(&lab, kind, false);
        let r = lab.check();
        let subject = if kind == GroupKind::Data { Subject::Extent } else { Subject::Node };
        assert_eq!(
            kinds(&r),
            [(Severity::Error, Subject::Group, None), (Severity::Error, subject, None)]
        );
        assert!(r.problems[1].what.contains("not allocated"), "{}", r.problems[1]);
    }
}

#[test]
fn nodes() {
    let lab = Lab::new(2, 2);
    let root = lab
        .state(|st| st.forest.volumes().next().and_then(|v| v.record().mapping))
        .expect("not empty");
    let copies = lab.places(root.ptr.addr);
    assert_eq!(copies.len(), 2);
    lab.rot(copies[0].0, copies[0].1);
    let r = lab.check();
    let disk = format!("disk{}", copies[0].0);
    assert_eq!(kinds(&r), [(Severity::DamagedCopy, Subject::Node, Some(disk.as_str()))]);
    lab.rot(copies[1].0, copies[1].1);
    let r = lab.check();
    assert_eq!(kinds(&r)[0], (Severity::Error, Subject::Node, None));
    assert!(
        r.problems.iter().skip(1).all(|p| p.severity == Severity::Note),
        "nothing follows: {:?}",
        r.problems
    );
}

#[test]
fn data() {
    let lab = Lab::new(2, 2);
    let copies = lab.places(lab.first_of_b().plus(2));
    lab.rot(copies[0].0, copies[0].1);
    let r = lab.check();
    let disk = format!("disk{}", copies[0].0);
    assert_eq!(kinds(&r), [(Severity::DamagedCopy, Subject::Data, Some(disk.as_str()))]);
    assert!(
        lab.try_check(lab.files(), false).expect("a pool").is_clean(),
        "data is looked at if it is asked for"
    );
    lab.world.inject(lab.disks[copies[1].0], Fault::ReadError { offset: copies[1].1, len: 512 });
    let r = lab.check();
    assert_eq!(kinds(&r), [(Severity::Error, Subject::Data, None)]);
    assert!(r.problems[0].place.starts_with("block 2 of volume 2"), "{}", r.problems[0]);
}

/// Rewrites the root leaf of the mapping of "b" on all disks, and everything above it, so that all
/// checksums are right.
fn craft_mapping(lab: &Lab, change: impl Fn(&mut format::records::MappedExtent) + 'static) {
    let files = lab.files();
    lab.boot(move |rt| async move {
        let (pool, _) = Pool::open(&rt, files, Settings::default()).await.expect("open");
        let b = pool.find_volume("b").expect("there").id;
        // The tree is brought into memory.
        pool.allocated(b, Lba(0), Lba(1 << 20), 100).await.expect("resident");
        {
            let mut st = pool.state_mut();
            let st = &mut *st;
            let g = st.txns.generations();
            st.forest.craft_mapping((st.txns.open_mut(), g), b, &change);
        }
        pool.close().await.expect("close");
    });
}

#[test]
fn blocks_that_two_extents_have() {
    let lab = Lab::new(2, 2);
    // The first extent, once more, far behind: inside the volume, so nothing else is wrong with it.
    craft_mapping(&lab, |e| {
        e.lba = Lba(1500);
        e.len = 3;
    });
    let r = lab.check();
    let subjects: Vec<_> = r.problems.iter().map(|p| p.subject).collect();
    assert!(
        subjects.contains(&Subject::Extent) && subjects.contains(&Subject::Volume),
        "{:?}",
        r.problems
    );
    assert!(
        r.problems.iter().any(|p| p.what.contains("3 of the 3 blocks") && p.what.contains("twice"))
    );
    assert_eq!(
        subjects.iter().filter(|s| **s == Subject::Checksum).count(),
        3,
        "and their checksums are another's"
    );
}

#[test]
fn extents_outside_of_data_groups() {
    let outside: [fn(&Geometry) -> u64; 3] = [
        |g| u64::from(g.group_capacity) * u64::from(g.group_blocks),
        |_| (1 << 48) - 1,
        |g| u64::from(g.group_blocks) * u64::from(g.group_capacity - 1),
    ];
    for addr in outside {
        let lab = Lab::new(2, 2);
        let addr = addr(&lab.state(|st| st.space.geometry()));
        craft_mapping(&lab, move |e| {
            e.lba = Lba(1500);
            e.addr = PoolAddr(addr);
            e.len = 1;
        });
        let r = lab.check();
        assert!(
            r.problems.iter().any(|p| p.what.contains("not inside one data group")),
            "{:?}",
            r.problems
        );
    }
}

#[test]
fn blocks_of_another_place() {
    let lab = Lab::new(2, 2);
    // The first two blocks are said to be at the second two's place, which leaves a leak as well.
    craft_mapping(&lab, |e| e.addr = e.addr.plus(1));
    let r = lab.check();
    assert!(
        r.problems
            .iter()
            .any(|p| p.subject == Subject::Checksum && p.what.contains("is for block")),
        "{r:?}"
    );
    assert!(r.problems.iter().any(|p| p.subject == Subject::Space), "{r:?}");
}

#[test]
fn a_missing_device_is_told_of() {
    let lab = Lab::new(2, 2);
    let mut files = lab.files();
    files.pop();
    let r = lab.try_check(files, true).expect("a pool");
    assert!(r.degraded && r.is_clean() && r.notes > 0, "{:?}", r.problems);
    assert_eq!(r.devices[1].state, "missing");
    let lab = Lab::new(2, 1);
    let mut files = lab.files();
    files.pop();
    let r = lab.try_check(files, true).expect("a pool");
    assert!(
        r.problems.iter().any(|p| p.subject == Subject::Group && p.severity == Severity::Error),
        "{r:?}"
    );
}

#[test]
fn the_list_is_bounded_and_the_count_is_not() {
    let lab = Lab::new(2, 2);
    let first = lab.first_of_b();
    for i in 0..20 {
        let (d, offset) = lab.places(first.plus(i))[0];
        lab.rot(d, offset);
    }
    let files = lab.files();
    let r = lab.boot(move |rt| async move {
        let options = CheckOptions { data: true, listed: 5 };
        let seen = RefCell::new(0);
        check(&rt, files, &options, &mut |_| *seen.borrow_mut() += 1).await.expect("a pool")
    });
    assert_eq!((r.problems.len(), r.damaged_copies), (5, 20));
}
