//! A pool is made in simulation and damaged at a known place: a repair writes exactly the bad
//! copies again, and leaves alone what has no good one.

use std::cell::Cell;

use base::{BLOCK, BLOCK_U64, ErrorKind, IoError, Lba, VolumeId};
use format::page::{GroupKind, PageKind};
use format::superblock::Superblock;
use format::tree::mapping_tree_id;
use offline::pool::check::Report;
use offline::pool::repair::repair;
use offline::repair::Outcome;
use offline::{CheckOptions, Subject};
use pool::{Pool, Settings};
use rt::Op;
use sim::Fault;
use testkit::Effect;

use crate::lab::{Lab, fill};

/// Device, kind, how many were bad, how many are good now.
fn copies(o: &Outcome<Report>) -> Vec<(&str, Subject, u64, u64)> {
    o.repairs.copies.iter().map(|m| (m.device.as_str(), m.kind, m.bad, m.repaired)).collect()
}

/// Where the copies of each kind of block are.
fn kinds_of_blocks(lab: &Lab) -> Vec<(Subject, Vec<(usize, u64)>)> {
    let page = |kind, page| {
        let offset = lab.committed(kind, page).offset;
        vec![(0, offset), (1, offset)]
    };
    let volumes = lab.geometry().volume_pages;
    let node = |root: Option<format::node::RootPtr>| {
        (Subject::Node, lab.places(root.expect("not empty").ptr.addr))
    };
    let bitmap = lab.a_bitmap(GroupKind::Data).1.offset;
    let sums = lab.groups().into_iter().find_map(|g| g.checksums);
    vec![
        (Subject::Table, page(PageKind::Volumes, 0)),
        (Subject::Table, page(PageKind::Groups, volumes.into())),
        (Subject::Bitmap, vec![(0, bitmap), (1, bitmap)]),
        node(lab.volumes()[0].mapping),
        node(sums),
        (Subject::Data, lab.places(lab.first_of_b().plus(2))),
    ]
}

#[test]
fn a_sound_pool_is_left_as_it_is() {
    for (disks, copies) in [(1, 1), (2, 2), (4, 2)] {
        let lab = Lab::new(disks, copies);
        let before = lab.contents();
        let o = lab.repair();
        assert!(o.repairs.is_empty() && o.after.is_none() && o.now().is_clean(), "{o:?}");
        assert!(lab.contents() == before);
    }
}

#[test]
fn one_bad_copy_of_every_kind_is_written_again() {
    for at in 0..6 {
        for unreadable in [false, true] {
            let lab = Lab::new(2, 2);
            let before = lab.contents();
            let (kind, places) = kinds_of_blocks(&lab).swap_remove(at);
            let (disk, offset) = places[at % 2];
            if unreadable {
                lab.strike(disk, Fault::ReadError { offset: offset + 512, len: 512 });
            } else {
                lab.rot(disk, offset);
            }
            let name = format!("disk{disk}");
            let dry = lab.dry_run();
            assert_eq!(copies(&dry), [(name.as_str(), kind, 1, 0)], "{kind:?}");
            assert!(dry.after.is_none() && dry.repairs.dry_run && dry.before.errors == 0);
            let o = lab.repair();
            assert_eq!(copies(&o), [(name.as_str(), kind, 1, 1)], "{kind:?}: {o:?}");
            assert!(o.now().is_clean() && o.repairs.failures.is_empty(), "{o:?}");
            assert!(lab.contents() == before, "{kind:?}: what was written once is there again");
            assert!(lab.repair().repairs.is_empty());
            assert!(lab.check().problems.is_empty());
        }
    }
}

#[test]
fn superblock_slots() {
    let lab = Lab::new(2, 2);
    let newest = lab.superblock().sequence;
    let lose = |disk, sequence, copies: &[u64]| {
        copies.iter().for_each(|c| lab.rot(disk, Superblock::offset_of(sequence) + c * BLOCK_U64));
    };
    // One copy of the newest, a whole slot of an older one; and the next one, which may be torn.
    lose(0, newest, &[0]);
    lose(1, newest - 1, &[0, 1]);
    lose(1, newest + 1, &[0, 1]);
    let want = |repaired| {
        [("disk0", Subject::Superblock, 1, repaired), ("disk1", Subject::Superblock, 1, repaired)]
    };
    assert_eq!(copies(&lab.dry_run()), want(0));
    let o = lab.repair();
    assert_eq!(copies(&o), want(1), "{o:?}");
    assert_eq!(lab.superblock().sequence, newest + 4);
    assert_eq!(lab.superblock().generation, o.before.generation, "no commit was made for it");
    assert!(lab.check().problems.is_empty());
    assert!(lab.repair().repairs.is_empty());
}

#[test]
fn slots_that_cannot_be_read() {
    let unreadable = |lab: &Lab, disk, sequence| {
        for copy in [0, BLOCK_U64] {
            let offset = Superblock::offset_of(sequence) + copy;
            lab.strike(disk, Fault::ReadError { offset, len: 512 });
        }
    };
    let lab = Lab::new(2, 2);
    unreadable(&lab, 0, lab.superblock().sequence - 2);
    let o = lab.repair();
    assert_eq!(copies(&o), [("disk0", Subject::Superblock, 1, 1)], "{o:?}");
    assert!(lab.check().problems.is_empty());
    // What cannot be read may be the newest one: the one before must not be taken for it.
    let lab = Lab::new(2, 2);
    (0..2).for_each(|disk| unreadable(&lab, disk, lab.superblock().sequence + 1));
    let (disk, offset) = lab.committed_page_of_volumes();
    lab.rot(disk, offset);
    let before = lab.contents();
    let o = lab.repair();
    assert!(o.repairs.refused.is_some() && o.after.is_none(), "{o:?}");
    assert!(lab.contents() == before);
}

#[test]
fn a_copy_of_a_superblock_that_is_nothing_like_it() {
    for copy in [0, 1] {
        let lab = Lab::new(2, 2);
        let offset = Superblock::offset_of(lab.superblock().sequence - 1) + copy * BLOCK_U64;
        lab.put_block(1, offset, vec![7; BLOCK]);
        let o = lab.repair();
        assert_eq!(copies(&o), [("disk1", Subject::Superblock, 1, 1)], "{o:?}");
        assert!(lab.check().problems.is_empty());
        // Before there were two copies, the second block could hold anything.
        let lab = Lab::new(2, 2);
        for slot in 0..4 {
            lab.put_block(1, Superblock::offset_of(slot) + BLOCK_U64, vec![7; BLOCK]);
        }
        assert!(lab.repair().repairs.is_empty());
    }
}

#[test]
fn a_torn_slot_that_is_next_is_no_damage() {
    let lab = Lab::new(2, 2);
    let next = lab.superblock().sequence + 1;
    [0, BLOCK_U64].iter().for_each(|c| lab.rot(1, Superblock::offset_of(next) + c));
    let before = lab.contents();
    assert!(lab.repair().repairs.is_empty());
    assert!(lab.contents() == before);
}

#[test]
fn what_has_no_good_copy_is_named_and_left_alone() {
    for at in 2..6 {
        let lab = Lab::new(2, 2);
        let all = kinds_of_blocks(&lab);
        let (kind, places) = &all[at];
        places.iter().for_each(|&(disk, offset)| lab.rot(disk, offset));
        let before = lab.contents();
        // Something else has a good copy. It is repaired all the same.
        let other = if at == 5 { lab.places(lab.first_of_b().plus(7))[1] } else { all[0].1[1] };
        lab.rot(other.0, other.1);
        let o = lab.repair();
        assert_eq!((o.repairs.bad(), o.repairs.repaired()), (1, 1), "{kind:?}: {o:?}");
        assert_eq!(o.repairs.refused, None);
        assert!(o.now().problems.iter().any(|p| p.subject == *kind && p.device.is_none()));
        assert_eq!((o.now().errors, o.now().damaged_copies), (o.before.errors, 0), "{o:?}");
        assert!(lab.contents() == before, "{kind:?}");
        let again = lab.repair();
        assert!(again.repairs.is_empty() && again.after.is_none() && again.before.errors > 0);
    }
}

#[test]
fn nothing_is_written_where_the_tables_are_lost() {
    for at in 0..2 {
        let lab = Lab::new(2, 2);
        let all = kinds_of_blocks(&lab);
        all[at].1.iter().for_each(|&(disk, offset)| lab.rot(disk, offset));
        lab.rot(all[2].1[1].0, all[2].1[1].1);
        let before = lab.contents();
        let o = lab.repair();
        let why = o.repairs.refused.as_deref().unwrap_or_default();
        assert!(why.contains("table"), "{o:?}");
        assert!(o.before.errors > 0 && o.after.is_none());
        assert!(lab.contents() == before);
    }
}

#[test]
fn nothing_is_written_where_structures_contradict_each_other() {
    let strange: [fn(&Lab); 3] = [
        |lab| _ = lab.flip(GroupKind::Data, false),
        |lab| _ = lab.flip(GroupKind::Metadata, true),
        |lab| {
            lab.craft_mapping(|e| {
                e.lba = Lba(1500);
                e.len = 3;
            })
        },
    ];
    for make in strange {
        let lab = Lab::new(2, 2);
        make(&lab);
        let (disk, offset) = lab.committed_page_of_volumes();
        lab.rot(disk, offset);
        let before = lab.contents();
        let o = lab.repair();
        assert!(o.repairs.refused.is_some() && o.after.is_none(), "{o:?}");
        assert_eq!((o.repairs.bad(), o.repairs.repaired()), (1, 0));
        assert!(lab.contents() == before);
    }
}

#[test]
fn leaked_blocks_are_freed() {
    for kind in [GroupKind::Data, GroupKind::Metadata] {
        let lab = Lab::new(2, 2);
        let used = |lab: &Lab| lab.groups().iter().map(|g| g.used).sum::<u32>();
        let before = used(&lab);
        lab.leak(kind);
        assert_eq!(used(&lab), before + 1);
        let dry = lab.dry_run();
        assert_eq!((dry.repairs.leaked_blocks, dry.repairs.freed_blocks), (1, 0), "{dry:?}");
        let o = lab.repair();
        assert_eq!((o.repairs.leaked_blocks, o.repairs.freed_blocks), (1, 1), "{o:?}");
        assert!(o.before.errors == 1 && o.now().is_clean(), "{o:?}");
        assert_eq!(used(&lab), before);
        assert!(lab.repair().repairs.is_empty());
    }
}

/// The second disk was away while blocks were written, and does not have these yet. Beside them is
/// a block that it has: the places of that one on both disks.
fn behind() -> (Lab, Vec<(usize, u64)>) {
    let lab = Lab::new(2, 2);
    let mut old = vec![0x5a; BLOCK];
    old[0] = 0xa5;
    let (files, block) = (lab.files(), old.clone());
    lab.run(|rt| async move {
        let (pool, _) = Pool::open(&rt, files, Settings::default()).await.expect("open");
        let a = pool.find_volume("a").expect("there").id;
        let old = pool.bufs().copy_of(&block).freeze();
        pool.write(a, Lba(4100), &old).await.expect("write");
        pool.commit().await.expect("commit");
        pool.returns().offline_device("disk1").await.expect("offline");
        fill(&pool, a, 4200, 100, 3).await;
        pool.commit().await.expect("commit");
        pool.moves().pause_moves(true);
        assert!(pool.returns().online_device("disk1").await.expect("online"));
        pool.close().await.expect("close");
    });
    let places = lab.files().into_iter().enumerate().map(|(disk, file)| {
        let mut all = (0..file.size_bytes).step_by(BLOCK);
        let is_it = |&at: &u64| lab.world().contents(file.file, at, BLOCK) == old;
        (disk, all.find(is_it).expect("it is there"))
    });
    let places = places.collect();
    (lab, places)
}

#[test]
fn what_a_device_that_is_behind_has_is_written_again_from_it() {
    for kind in [Subject::Data, Subject::Node] {
        let begin = || {
            let (lab, data) = behind();
            if kind == Subject::Data {
                return (lab, data);
            }
            let b = lab.volumes().into_iter().find(|v| v.name == "b").expect("there");
            let (group, block) = lab.geometry().split(b.mapping.expect("not empty").ptr.addr);
            let chunks = &lab.groups()[group.0 as usize].chunks;
            let place = |disk: u16| {
                let chunk = chunks.iter().find(|c| c.device == disk).expect("there");
                (usize::from(disk), lab.geometry().chunk_offset(chunk.chunk, block))
            };
            let places = vec![place(0), place(1)];
            assert_eq!(chunks.iter().filter(|c| c.behind).count(), 1);
            (lab, places)
        };
        let (lab, places) = begin();
        assert_eq!(lab.check().errors + lab.check().damaged_copies, 0);
        lab.rot(places[0].0, places[0].1);
        let r = lab.check();
        assert_eq!((r.errors, r.damaged_copies), (0, 1), "{kind:?}: {:?}", r.problems);
        let o = lab.repair();
        assert_eq!(copies(&o), [("disk0", kind, 1, 1)], "{o:?}");
        assert_eq!(o.now().errors + o.now().damaged_copies, 0, "{o:?}");
        // Of the one that is behind nothing is missed.
        lab.rot(places[1].0, places[1].1);
        assert!(lab.repair().repairs.is_empty());
        let (lab, places) = begin();
        places.iter().for_each(|&(disk, at)| lab.rot(disk, at));
        let o = lab.repair();
        assert!(o.repairs.is_empty() && o.before.errors > 0, "{kind:?}: {o:?}");
    }
}

#[test]
fn nothing_is_freed_where_a_part_of_a_tree_is_lost() {
    let lab = Lab::new(2, 2);
    lab.leak(GroupKind::Data);
    let (_, node) = kinds_of_blocks(&lab).swap_remove(3);
    node.iter().for_each(|&(disk, offset)| lab.rot(disk, offset));
    let before = lab.contents();
    let o = lab.repair();
    assert!(o.repairs.is_empty() && o.before.errors > 0, "{o:?}");
    assert!(lab.contents() == before);
}

/// Damages all copies of every second leaf of a volume's mapping; returns how many.
fn lose_leaves(lab: &Lab, volume: VolumeId) -> usize {
    let mut lost = 0;
    for (disk, file) in lab.files().into_iter().enumerate() {
        for offset in (0..file.size_bytes).step_by(BLOCK) {
            let block = lab.world().contents(file.file, offset, BLOCK);
            let number =
                |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("8 bytes"));
            let (tree, addr) = (number(16), number(32));
            if tree == mapping_tree_id(volume) && block[4] == 0 && addr % 2 == 0 {
                lab.rot(disk, offset);
                lost += 1;
            }
        }
    }
    lost
}

#[test]
fn a_deleted_volume_that_is_lost_in_part_is_forgotten_and_its_blocks_are_freed() {
    let lab = Lab::new(2, 2);
    let a = lab.volumes().into_iter().find(|v| v.name == "a").expect("there").id;
    assert!(lose_leaves(&lab, a) > 2);
    let o = lab.repair();
    assert!(o.repairs.forgotten_volumes == 0 && o.now().errors > 0, "{o:?}");
    lab.run({
        let files = lab.files();
        move |rt| async move {
            let (pool, _) = Pool::open(&rt, files, Settings::default()).await.expect("open");
            pool.delete_volume(a).await.expect("delete");
            pool.close().await.expect("close");
        }
    });
    let lost = lab.check();
    assert!(lost.problems.iter().any(|p| p.remedy.contains("check --repair")), "{lost:?}");
    assert!(lost.problems.iter().all(|p| !p.remedy.contains("backup")), "{lost:?}");
    let dry = lab.dry_run();
    assert_eq!((dry.repairs.forgotten_volumes, dry.repairs.freed_blocks), (1, 0), "{dry:?}");
    let o = lab.repair();
    assert_eq!(o.repairs.forgotten_volumes, 1);
    assert!(o.repairs.freed_blocks > 300 && o.now().is_clean(), "{o:?}");
    assert!(lab.volumes().iter().all(|v| v.name == "b"));
    let groups = lab.groups();
    let used = groups.iter().filter(|g| g.kind == GroupKind::Data).map(|g| g.used);
    assert_eq!(used.sum::<u32>(), 600 - 73);
    assert!(lab.repair().repairs.is_empty());
}

#[test]
fn a_missing_device_is_no_reason_to_begin() {
    let lab = Lab::new(2, 2);
    let (disk, offset) = lab.committed_page_of_volumes();
    lab.rot(disk, offset);
    let before = lab.contents();
    for dry_run in [true, false] {
        let mut files = lab.files();
        files.pop();
        let e = lab.try_repair(files, dry_run).expect_err("a device is missing");
        assert!(e.kind == ErrorKind::Missing && e.context.contains("forebay device replace"));
        assert!(lab.contents() == before);
    }
}

#[test]
fn a_write_that_does_not_arrive_is_told_of() {
    let lab = Lab::new(2, 2);
    let (_, places) = kinds_of_blocks(&lab).swap_remove(5);
    let (disk, offset) = places[0];
    lab.rot(disk, offset);
    let (world, files) = (lab.world().clone(), lab.files());
    let o = lab.run(move |rt| async move {
        assert!(world.inject(files[disk].file, Fault::LoseNextWrite));
        repair(&rt, files, &CheckOptions::default(), false, &mut |_| ()).await.expect("a pool")
    });
    assert_eq!((o.repairs.bad(), o.repairs.repaired()), (1, 0), "{o:?}");
    let f = &o.repairs.failures[0];
    assert!(f.offset == offset && f.why.contains("replace the device"), "{f:?}");
    assert_eq!(o.now().damaged_copies, 1);
    assert!(lab.repair().now().is_clean());
}

#[test]
fn a_device_that_cannot_be_written_is_told_of() {
    let lab = Lab::new(2, 2);
    let (_, places) = kinds_of_blocks(&lab).swap_remove(3);
    let (disk, offset) = places[1];
    lab.rot(disk, offset);
    lab.rules().set(|op| matches!(op, Op::Write { .. }).then_some((IoError::IO, Effect::No)));
    let o = lab.repair();
    assert_eq!((o.repairs.bad(), o.repairs.repaired()), (1, 0), "{o:?}");
    assert!(o.repairs.failures[0].why.contains("cannot be written"), "{o:?}");
    assert_eq!(o.now().damaged_copies, 1);
    // A flush of it fails after the first, with which a pool is opened.
    let flushes = Cell::new(0);
    lab.rules().set(move |op| {
        let fails = matches!(op, Op::Flush { .. }) && flushes.replace(flushes.get() + 1) >= 2;
        fails.then_some((IoError::IO, Effect::No))
    });
    let e = lab.try_repair(lab.files(), false).expect_err("a flush fails");
    assert!(e.context.contains("nothing is lost"), "{e}");
    lab.rules().clear();
    assert!(lab.repair().now().is_clean());
}

#[test]
fn everything_at_once_and_the_pool_goes_on() {
    let lab = Lab::new(3, 2);
    let newest = lab.superblock().sequence;
    lab.leak(GroupKind::Data);
    lab.leak(GroupKind::Metadata);
    for (i, (_, places)) in kinds_of_blocks(&lab).into_iter().enumerate() {
        let (disk, offset) = places[i % 2];
        lab.rot(disk, offset);
    }
    for i in 10..40 {
        let (disk, offset) = lab.places(lab.first_of_b().plus(i))[i as usize % 2];
        lab.rot(disk, offset);
    }
    lab.rot(2, Superblock::offset_of(newest));
    let o = lab.repair();
    assert_eq!((o.repairs.bad(), o.repairs.repaired(), o.repairs.freed_blocks), (37, 37, 2));
    assert!(o.now().is_clean() && o.now().problems.is_empty(), "{o:?}");
    let files = lab.files();
    lab.run(move |rt| async move {
        let (pool, warnings) = Pool::open(&rt, files, Settings::default()).await.expect("open");
        assert_eq!(warnings, [""; 0]);
        pool.close().await.expect("close");
    });
    assert!(lab.check().problems.is_empty());
}
