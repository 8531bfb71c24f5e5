//! Power fails at each write and each flush of a repair: the pool opens, nothing that was readable
//! is lost, and the next repair ends what this one began.

use std::cell::Cell;
use std::rc::Rc;

use base::{IoError, Lba};
use format::page::{GroupKind, PageKind};
use format::superblock::Superblock;
use offline::{Severity, Subject};
use pool::{Pool, Settings};
use rt::Op;
use sim::DiskSnapshot;
use testkit::Effect;

use crate::lab::Lab;

/// What all volumes hold.
fn read_all(lab: &Lab) -> Vec<Vec<u8>> {
    let files = lab.files();
    lab.run(move |rt| async move {
        let (pool, _) = Pool::open(&rt, files, Settings::default()).await.expect("open");
        let mut all = Vec::new();
        for name in ["a", "b"] {
            let v = pool.find_volume(name).expect("there");
            let blocks = v.size_bytes / base::BLOCK_U64;
            let mut bytes = Vec::new();
            for at in (0..blocks).step_by(256) {
                let read = pool.read(v.id, Lba(at), 256.min(blocks - at)).await;
                read.expect("read").iter().for_each(|s| bytes.extend_from_slice(s));
            }
            all.push(bytes);
        }
        pool.close().await.expect("close");
        all
    })
}

fn snapshot(lab: &Lab) -> Vec<DiskSnapshot> {
    lab.files().iter().map(|f| lab.world().snapshot_disk(f.file)).collect()
}

fn restore(lab: &Lab, all: &[DiskSnapshot]) {
    lab.files().iter().zip(all).for_each(|(f, s)| lab.world().restore_disk(f.file, s));
}

/// One bad copy of each kind, on both disks, and leaks.
fn damage(lab: &Lab) {
    let newest = lab.superblock().sequence;
    lab.leak(GroupKind::Data);
    lab.leak(GroupKind::Metadata);
    lab.rot(0, lab.committed(PageKind::Volumes, 0).offset);
    lab.rot(1, lab.committed(PageKind::Groups, lab.geometry().volume_pages.into()).offset);
    lab.rot(0, lab.a_bitmap(GroupKind::Metadata).1.offset);
    lab.rot(1, lab.a_bitmap(GroupKind::Data).1.offset);
    let mapping = lab.volumes()[0].mapping.expect("not empty");
    let sums = lab.groups().into_iter().find_map(|g| g.checksums).expect("not empty");
    for (i, addr) in [mapping.ptr.addr, sums.ptr.addr, lab.first_of_b()].into_iter().enumerate() {
        let (disk, offset) = lab.places(addr)[i % 2];
        lab.rot(disk, offset);
    }
    lab.rot(0, Superblock::offset_of(newest));
    lab.rot(1, Superblock::offset_of(newest - 1));
    lab.rot(1, Superblock::offset_of(newest - 1) + base::BLOCK_U64);
}

#[test]
fn power_fails_at_each_write_and_flush() {
    let lab = Lab::new(2, 2);
    let good = read_all(&lab);
    damage(&lab);
    let start = snapshot(&lab);
    let mut ends = 0;
    for n in 0u64.. {
        restore(&lab, &start);
        let left = Rc::new(Cell::new(n));
        let counter = left.clone();
        let over = Rc::new(Cell::new(false));
        let is_over = over.clone();
        lab.rules().set(move |op| {
            let counts = matches!(op, Op::Write { .. } | Op::Flush { .. });
            if counts && !is_over.get() {
                is_over.set(counter.get() == 0);
                counter.set(counter.get().saturating_sub(1));
            }
            is_over.get().then_some((IoError::IO, Effect::No))
        });
        let files = lab.files();
        let outcome = lab.try_repair(files, false);
        lab.rules().clear();
        lab.world().power_cut();
        let crashed = snapshot(&lab);
        if !over.get() {
            ends = n;
            assert!(outcome.is_ok_and(|o| o.now().is_clean()));
        }
        // It opens as it is, and holds everything.
        assert!(read_all(&lab) == good, "after {n} operations");
        restore(&lab, &crashed);
        let r = lab.check();
        let only_leaks =
            |p: &offline::Problem| p.severity != Severity::Error || p.subject == Subject::Space;
        assert!(r.problems.iter().all(only_leaks), "after {n} operations: {:?}", r.problems);
        // The next repair ends what this one began.
        let o = lab.repair();
        assert!(o.now().is_clean() && o.repairs.refused.is_none(), "after {n}: {o:?}");
        assert!(lab.repair().repairs.is_empty());
        assert!(read_all(&lab) == good, "after {n} operations and a repair");
        if over.get() {
            continue;
        }
        break;
    }
    assert!(ends > 20, "it has {ends} writes and flushes");
}
