//! A pool is made in simulation, damaged at a known place, and checked: exactly that must be found.

mod dump;
mod lab;
mod repair;
mod repair_crash;

use std::cell::RefCell;

use base::{BLOCK_U64, Duration, ErrorKind, Generation, GroupId, Lba, PoolAddr, StorageError};
use format::page::{GroupKind, GroupRecord};
use format::superblock::Superblock;
use model::device::DeviceState;
use offline::pool::check::{Report, check};
use offline::{CheckOptions, Problem, Severity, Subject};
use pool::raw::Geometry;
use pool::{Pool, Settings};
use rt::{Order, Rt};
use sim::Fault;

use lab::{Lab, fill};

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
        let rt = Rt::new(lab.world().backend(), Order::Seeded(seed), 256);
        let (r, world) = (rt.clone(), lab.world().clone());
        let ended = rt.block_on(async move {
            let (pool, _) = Pool::open(&r, files, Settings::default()).await.expect("open");
            let b = pool.find_volume("b").expect("there").id;
            for i in 0..seed {
                fill(&pool, b, 10 * i, 20, i as u8).await;
            }
            let p = pool.clone();
            drop(r.spawn(async move { p.commit().await }));
            r.sleep(Duration::from_micros(100 * seed)).await;
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
    let sequence = lab.superblock().sequence;
    let slot = Superblock::offset_of;
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
        let offset = lab.committed(lab.geometry().kind_of_table_page(page), page.into()).offset;
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

#[test]
fn bitmap_pages() {
    let lab = Lab::new(2, 2);
    let at = lab.a_bitmap(GroupKind::Data).1.offset;
    lab.rot(0, at);
    let r = lab.check();
    assert_eq!(kinds(&r), [(Severity::DamagedCopy, Subject::Bitmap, Some("disk0"))]);
    lab.rot(1, at);
    let r = lab.check();
    assert_eq!(kinds(&r), [(Severity::Error, Subject::Bitmap, None)]);
}

#[test]
fn leaks_and_references_to_free_blocks() {
    for kind in [GroupKind::Data, GroupKind::Metadata] {
        let lab = Lab::new(2, 2);
        let group = lab.flip(kind, true);
        let r = lab.check();
        assert_eq!(
            kinds(&r),
            [(Severity::Error, Subject::Group, None), (Severity::Error, Subject::Space, None)]
        );
        assert_eq!(r.problems[1].place, format!("block group {group}"));
        assert!(r.problems[1].what.starts_with("1 "), "{}", r.problems[1]);

        let lab = Lab::new(2, 2);
        lab.flip(kind, false);
        let r = lab.check();
        let subject = if kind == GroupKind::Data { Subject::Extent } else { Subject::Node };
        assert_eq!(
            kinds(&r),
            [(Severity::Error, Subject::Group, None), (Severity::Error, subject, None)]
        );
        assert!(r.problems[1].what.contains("not allocated"), "{}", r.problems[1]);
    }
}

/// Such a pool is not opened, and a check says what is wrong.
#[test]
fn records_of_groups_that_make_no_sense() {
    type Craft = fn(&mut GroupRecord);
    let crafts: [(GroupKind, Craft, &str); 3] = [
        (GroupKind::Free, |r| r.used = 5, "it is free and has 5 blocks in use"),
        (GroupKind::Data, |r| r.used = 1 << 17, "blocks in use"),
        (GroupKind::Data, |r| r.bitmap_generations[3] = Generation(1), "a bitmap page 3, of 1"),
    ];
    for (kind, craft, what) in crafts {
        let lab = Lab::new(2, 2);
        let at = lab.groups().iter().position(|g| g.kind == kind).expect("such a group");
        lab.craft_group(GroupId(at as u32), craft);
        let r = lab.check();
        let told = |p: &Problem| p.subject == Subject::Group && p.what.contains(what);
        assert!(!r.is_clean() && r.problems.iter().any(told), "{what}: {:?}", r.problems);
        let files = lab.files();
        let open = lab.run(|rt| async move { Pool::open(&rt, files, Settings::default()).await });
        let e = open.err().expect("it is refused");
        let says = format!("the record of block group {at} makes no sense; run forebay check");
        assert!(e.kind == ErrorKind::Damaged && e.context.contains(&says), "{e}");
    }
}

#[test]
fn nodes() {
    let lab = Lab::new(2, 2);
    let root = lab.volumes()[0].mapping.expect("not empty");
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
    lab.strike(copies[1].0, Fault::ReadError { offset: copies[1].1, len: 512 });
    let r = lab.check();
    assert_eq!(kinds(&r), [(Severity::Error, Subject::Data, None)]);
    assert_eq!(r.problems[0].place, "volume 2 (\"b\"), block 2 (bytes 8192 to 12288)");
}

#[test]
fn neighbours_that_are_bad_in_the_same_way_are_one_problem() {
    let lab = Lab::new(2, 2);
    let first = lab.first_of_b();
    for i in (4..40).chain([1]) {
        for (d, offset) in lab.places(first.plus(i)) {
            lab.rot(d, offset);
        }
    }
    let (d, offset) = lab.places(first.plus(40))[1];
    lab.rot(d, offset);
    let r = lab.check();
    let said = r.problems.iter().map(|p| (p.place.as_str(), p.counted)).collect::<Vec<_>>();
    let want = [
        ("volume 2 (\"b\"), block 1 (bytes 4096 to 8192)", 1),
        ("volume 2 (\"b\"), blocks 4 to 39 (bytes 16384 to 163840)", 36),
        ("volume 2 (\"b\"), block 40 (bytes 163840 to 167936)", 1),
    ];
    assert_eq!(said, want, "{:?}", r.problems);
    assert_eq!((r.errors, r.damaged_copies), (37, 1));
    let what = "no good copy (disk0: its checksum is wrong; disk1: its checksum is wrong)";
    assert_eq!(r.problems[1].what, what);
    assert!(r.problems[0].what.contains(", expected "), "{}", r.problems[0]);
    let blocks = r.problems[1].blocks.as_ref().expect("it is about blocks");
    assert_eq!((blocks.name.as_deref(), blocks.first, blocks.count), (Some("b"), 4, 36));
}

#[test]
fn blocks_that_two_extents_have() {
    let lab = Lab::new(2, 2);
    // The first extent, once more, far behind: inside the volume, so nothing else is wrong with it.
    lab.craft_mapping(|e| {
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
        let addr = addr(&lab.geometry());
        lab.craft_mapping(move |e| {
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
    lab.craft_mapping(|e| e.addr = e.addr.plus(1));
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
    assert_eq!(r.devices[1].state, Some(DeviceState::Missing));
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
    for i in (0..40).step_by(2) {
        let (d, offset) = lab.places(first.plus(i))[0];
        lab.rot(d, offset);
    }
    let files = lab.files();
    let r = lab.run(move |rt| async move {
        let options = CheckOptions { data: true, listed: 5 };
        let seen = RefCell::new(0);
        check(&rt, files, &options, &mut |_| *seen.borrow_mut() += 1).await.expect("a pool")
    });
    assert_eq!((r.problems.len(), r.damaged_copies), (5, 20));
}
