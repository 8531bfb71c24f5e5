//! A device that a crash has left a superblock behind. By itself it serves the commit before, until
//! it has the newest one, and from then on that; whenever the next open ends, and also if it was
//! opened alone meanwhile.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{BLOCK, Duration, IoError, Lba};
use offline::{Severity, Subject};
use pool::{DeviceFile, Pool, Settings};
use rt::{Op, Rt};
use sim::World;
use testkit::{Effect, Mirror, fill, is_superblock, only_byte, put, try_open, writes_to};

const BLOCKS: u64 = 64;

/// A mirror of two disks with a volume of which all blocks hold `1`, then `2`. Of the commit of the
/// `2` the first disk has all but the superblock.
fn left_behind(seed: u64, answered: bool) -> Mirror {
    let bench = Mirror::new(seed, (2, 2), |pool| async move {
        let id = pool.create_volume("v", BLOCKS * BLOCK as u64, 4096).await.expect("volume");
        fill(&pool, id, BLOCKS, 1).await;
        id
    });
    // As it is when it is asked for the last superblock.
    let (w, first, id) = (bench.world.clone(), bench.files[0].file, bench.volume);
    let before = Rc::new(RefCell::new(None));
    let seen = before.clone();
    bench.rules.set(move |op| {
        if is_superblock(op) && writes_to(op, first) {
            *seen.borrow_mut() = Some(w.snapshot_disk(first));
        }
        None
    });
    let world = bench.world.clone();
    bench.run(|rt, files| async move {
        let pool = open_with_host(&rt, &world, files).await;
        fill(&pool, id, BLOCKS, 2).await;
        if answered {
            put(&pool, id, 0, BLOCKS, 3).await;
        }
    });
    bench.rules.clear();
    bench.world.restore_disk(first, before.borrow().as_ref().expect("it was asked"));
    bench
}

async fn open_with_host(rt: &Rt, world: &World, files: Vec<DeviceFile>) -> Pool {
    let every = Duration::from_secs(3600);
    let settings = Settings { commit_interval: every, ..Settings::default() };
    let ready = Pool::ready(rt, files, settings).await.expect("ready");
    ready.recover(Rc::new(world.host())).await.expect("recovered");
    ready.open().await.expect("open").0
}

/// The first disk is opened alone, and fails at its first superblock.
fn open_alone_in_vain(bench: &Mirror) {
    bench.rules.set(|op| is_superblock(op).then_some((IoError::IO, Effect::No)));
    bench.run(|rt, files| async move {
        let Err(e) = try_open(&rt, files[..1].to_vec()).await else {
            panic!("it has no superblock")
        };
        assert!(e.context.contains("superblock write to disk0"), "{e}");
    });
    bench.rules.clear();
}

/// Both are opened, until they are asked for the `n`th write or flush; then power fails, or all is
/// killed. False if it was open before that.
fn open_until(bench: &Mirror, n: u64, power: bool) -> bool {
    let world = bench.world.clone();
    let (left, open_now) = (Rc::new(Cell::new(n)), Rc::new(Cell::new(false)));
    let counted = left.clone();
    bench.rules.set(move |op| {
        let counts = matches!(op, Op::Write { .. } | Op::Flush { .. });
        counted.set(counted.get().saturating_sub(u64::from(counts)));
        None
    });
    let (opened, opening) = (open_now.clone(), open_now.clone());
    bench.run(|rt, files| async move {
        let inner = rt.clone();
        rt.detach(async move {
            let _pool = open_with_host(&inner, &world, files).await;
            opened.set(true);
        });
        while left.get() > 0 && !opening.get() {
            rt.sleep(Duration::from_micros(1)).await;
        }
    });
    bench.rules.clear();
    if power {
        bench.world.power_cut();
    }
    !open_now.get()
}

/// These disks can be opened, and the volume holds one of `values` as a whole.
fn expect(bench: &Mirror, disks: &'static [usize], values: &'static [u8]) {
    let id = bench.volume;
    bench.run(|rt, files| async move {
        let some = disks.iter().map(|&d| files[d].clone()).collect();
        let (pool, _) = try_open(&rt, some).await.unwrap_or_else(|e| panic!("{disks:?}: {e}"));
        let data = pool.read(id, Lba(0), BLOCKS).await.expect("read");
        let byte = only_byte(&data);
        assert!(byte.is_some_and(|b| values.contains(&b)), "{disks:?}: {byte:?}");
        pool.close().await.expect("close");
    });
}

/// What it wrote over on the device are table pages of the newest commit; the next open copies them
/// back.
#[test]
fn an_open_alone_that_was_cut_short_costs_one_copy_of_table_pages() {
    let bench = left_behind(1, false);
    assert!(bench.check().is_clean(), "a crash alone costs nothing");
    open_alone_in_vain(&bench);
    let report = bench.check();
    let bad: Vec<_> = report.problems.iter().filter(|p| p.severity != Severity::Note).collect();
    let explained = |what: &str| what.contains("the pool was opened without the other devices");
    assert!(!bad.is_empty());
    for p in bad {
        assert_eq!((p.severity, p.subject), (Severity::DamagedCopy, Subject::Table), "{p}");
        assert!(p.device.as_deref() == Some("disk0") && explained(&p.what), "{p}");
    }
    expect(&bench, &[0, 1], &[2]);
    let report = bench.check();
    assert!(report.is_clean(), "{:?}", report.problems);
    expect(&bench, &[0], &[2]);
}

/// Then the other disk is lost, or the first one.
#[test]
fn an_open_that_is_cut_short_leaves_each_device_whole() {
    // The first commit of an open writes table pages if it has something of the host's.
    for answered in [false, true] {
        for alone in [false, true] {
            for power in [false, true] {
                for disks in [&[0][..], &[1]] {
                    cut_short_everywhere((answered, alone, power), disks);
                }
            }
        }
    }
}

fn cut_short_everywhere((answered, alone, power): (bool, bool, bool), disks: &'static [usize]) {
    let mut n = 1;
    loop {
        let bench = left_behind(n, answered);
        if alone {
            open_alone_in_vain(&bench);
        }
        if !open_until(&bench, n, power) {
            break;
        }
        expect(&bench, disks, if disks == [0] { &[1, 2, 3] } else { &[2, 3] });
        n += 1;
    }
    // The open has flushed both, and a commit has flushed both and written two superblocks.
    assert!(n > 6, "{n}");
}
