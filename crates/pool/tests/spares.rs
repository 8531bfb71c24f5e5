//! Spares take the place of devices that stay away, devices grow, and chunks are spread evenly; in
//! simulation.

use base::{Duration, ErrorKind, Lba, VolumeId};
use model::device::DeviceState;
use model::status::PoolState;
use pool::{DeviceFile, Pool, Settings};
use rt::Rt;
use sim::DiskModel;
use testkit::{
    MIB, Mirror, change, device_states, disk, fill, holds_each, moved, only_byte, open, try_open,
};

const BLOCKS: u64 = 1024;
/// Longer than a device is given to come back by itself.
const LATE: Duration = Duration::from_secs(900);

fn mirror(seed: u64, disks: usize, copies: u8) -> Mirror {
    Mirror::filled(seed, (disks, copies), BLOCKS)
}

fn new_disk(bench: &Mirror, name: &str, mib: u64) -> DeviceFile {
    disk(&bench.world, name, DiskModel::nvme(mib * MIB))
}

async fn reads(pool: &Pool, id: VolumeId, value: u8) {
    let data = pool.read(id, Lba(0), BLOCKS).await.expect("read");
    assert_eq!(only_byte(&data), Some(value));
}

/// Adds a spare, which then is one of the files of the pool.
fn with_spare(bench: &mut Mirror, name: &str, mib: u64) -> DeviceFile {
    let spare = new_disk(bench, name, mib);
    let added = spare.clone();
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let before = pool.status().pool.capacity_bytes;
        pool.moves().add_spare(added, [9; 16]).await.expect("add");
        assert_eq!(pool.status().pool.capacity_bytes, before, "a spare is no room");
        pool.close().await.expect("close");
    });
    bench.files.push(spare.clone());
    assert!(bench.check().is_clean(), "{:?}", bench.check());
    spare
}

#[test]
fn a_spare_takes_the_place_of_a_device_that_stays_away() {
    let mut bench = mirror(1, 2, 2);
    let spare = with_spare(&mut bench, "disk2", 32);
    let id = bench.volume;
    let there = vec![bench.files[0].clone(), spare.clone()];
    let (pair, old) = (there.clone(), bench.files[1].clone());
    bench.run(|rt, _| async move {
        let pool = open(&rt, pair).await;
        fill(&pool, id, BLOCKS, 7).await;
        rt.sleep(Duration::from_secs(590)).await;
        let status = pool.status().pool;
        let away =
            status.devices.iter().find(|d| d.state == DeviceState::Missing).expect("one is away");
        let promise = away.spare.as_ref().expect("a spare is there");
        assert_eq!(promise.path.as_deref(), Some("disk2"));
        assert!(promise.in_s < 15, "{promise:?}");
        assert_eq!(status.state, PoolState::Degraded);
        rt.sleep(Duration::from_secs(30)).await;
        moved(&rt, &pool).await;
        let expected =
            [("disk0".into(), DeviceState::Online), ("disk2".into(), DeviceState::Online)];
        assert_eq!(device_states(&pool), expected);
        assert_eq!(pool.status().pool.state, PoolState::Online);
        reads(&pool, id, 7).await;
        pool.close().await.expect("close");
    });
    bench.files = there.clone();
    assert!(bench.check().is_clean(), "{:?}", bench.check());
    // The old one is back, and on the list of devices still: it is left alone.
    for others in [there.clone(), vec![spare.clone()]] {
        let (old, all) = (old.clone(), [vec![old.clone()], others].concat());
        bench.run(|rt, _| async move {
            let (pool, warnings) = try_open(&rt, all).await.expect("open");
            assert!(warnings.iter().any(|w| w.contains("disk1: left alone")), "{warnings:?}");
            assert!(!pool.moves().uses_file(old.file));
            reads(&pool, id, 7).await;
            pool.close().await.expect("close");
        });
    }
    bench.run(|rt, _| async move {
        let pool = open(&rt, vec![spare]).await;
        reads(&pool, id, 7).await;
        pool.close().await.expect("close");
    });
}

/// No user asked for it, and all is well then: that there is one spare less is told all the same.
#[test]
fn that_a_spare_was_taken_is_told_until_another_one_is_added() {
    let mut bench = mirror(41, 2, 2);
    let spare = with_spare(&mut bench, "disk2", 32);
    let next = new_disk(&bench, "disk3", 32);
    let pair = vec![bench.files[0].clone(), spare];
    bench.run(|rt, _| async move {
        let pool = open(&rt, pair).await;
        let spares = || pool.status().pool.spares;
        assert_eq!((spares().left, spares().taken_total, spares().taken.len()), (1, 0, 0));
        let devices = pool.status().pool.devices;
        let missing =
            devices.into_iter().find(|d| d.state == DeviceState::Missing).expect("one is away").id;
        rt.sleep(LATE).await;
        moved(&rt, &pool).await;
        assert_eq!(pool.status().pool.state, PoolState::Online);
        let told = spares();
        assert_eq!((told.left, told.taken_total, told.taken.len()), (0, 1, 1), "{told:?}");
        assert_eq!((&*told.taken[0].spare, &told.taken[0].device), ("disk2", &missing));
        pool.moves().balance_devices().await.expect("balance");
        moved(&rt, &pool).await;
        assert_eq!(spares().taken, told.taken, "another command changes nothing");
        pool.moves().add_spare(next, [8; 16]).await.expect("add");
        assert_eq!((spares().left, spares().taken_total, spares().taken.len()), (1, 1, 0));
        pool.close().await.expect("close");
    });
}

/// The old device was written alone meanwhile: neither side is left out without a word.
#[test]
fn a_device_that_went_on_without_the_spare_is_not_left_alone() {
    let mut bench = mirror(6, 2, 2);
    let spare = with_spare(&mut bench, "disk2", 32);
    let (id, files) = (bench.volume, bench.files.clone());
    let (pair, old) = (vec![files[0].clone(), spare.clone()], files[1].clone());
    bench.run(|rt, _| async move {
        let pool = open(&rt, pair).await;
        rt.sleep(LATE).await;
        moved(&rt, &pool).await;
        pool.close().await.expect("close");
    });
    for _ in 0..20 {
        let alone = vec![old.clone()];
        bench.run(|rt, _| async move {
            let pool = open(&rt, alone).await;
            fill(&pool, id, BLOCKS, 8).await;
            pool.close().await.expect("close");
        });
    }
    for others in [vec![files[0].clone(), spare.clone()], vec![spare.clone()]] {
        let all = [vec![old.clone()], others].concat();
        bench.run(|rt, _| async move {
            let e = try_open(&rt, all).await.map(drop).expect_err("two sides");
            let kinds = [ErrorKind::Foreign, ErrorKind::SplitBrain];
            assert!(kinds.contains(&e.kind), "{e}");
        });
    }
}

#[test]
fn a_spare_waits_for_a_device_that_comes_back() {
    let mut bench = mirror(2, 2, 2);
    with_spare(&mut bench, "disk2", 32);
    let id = bench.volume;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        pool.returns().offline_device("disk1").await.expect("offline");
        // That does not count, as the user wants it.
        rt.sleep(LATE).await;
        assert_eq!(device_states(&pool)[1].1, DeviceState::Offline);
        assert!(pool.returns().online_device("disk1").await.expect("online"));
        moved(&rt, &pool).await;
        pool.close().await.expect("close");
    });
    bench.run(|rt, files| async move {
        let some = vec![files[0].clone(), files[2].clone()];
        let pool = open(&rt, some).await;
        rt.sleep(Duration::from_secs(550)).await;
        pool.returns().return_device(files[1].clone()).await.expect("return");
        rt.sleep(LATE).await;
        moved(&rt, &pool).await;
        assert_eq!(
            device_states(&pool).iter().map(|s| s.1).collect::<Vec<_>>(),
            [DeviceState::Online, DeviceState::Online, DeviceState::Spare]
        );
        reads(&pool, id, 1).await;
        pool.close().await.expect("close");
    });
}

#[test]
fn what_a_spare_cannot_do_is_said() {
    let mut bench = mirror(3, 2, 2);
    // Room for a block group or two.
    with_spare(&mut bench, "disk2", 6);
    let (id, spare) = (bench.volume, bench.files[2].clone());
    bench.run(|rt, files| async move {
        let pool = open(&rt, vec![files[0].clone(), spare.clone()]).await;
        rt.sleep(LATE).await;
        let devices = pool.status().pool.devices;
        assert_eq!(devices[2].state, DeviceState::Spare);
        let promise = devices[1].spare.as_ref().expect("there is a spare");
        assert_eq!(promise.path, None);
        let missing = devices[1].id.clone();
        let e = pool.spares().use_spare("disk2", Some(&missing)).await.expect_err("too small");
        assert_eq!(e.kind, ErrorKind::Invalid);
        let e = pool.moves().replace_device("disk2", spare, [3; 16]).await.expect_err("a spare");
        assert_eq!(e.kind, ErrorKind::Invalid);
        assert!(!pool.spares().use_spare("disk0", None).await.expect("it is none"));
        // Without a time no spare is taken.
        pool.set(Settings { spare_after: Duration::ZERO, ..pool.current_settings() }).expect("set");
        assert!(pool.status().pool.devices[1].spare.is_none());
        reads(&pool, id, 1).await;
        pool.close().await.expect("close");
    });
}

#[test]
fn a_spare_is_used_by_hand_and_removed() {
    let mut bench = mirror(4, 2, 2);
    with_spare(&mut bench, "disk2", 32);
    with_spare(&mut bench, "disk3", 32);
    let id = bench.volume;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        assert!(pool.spares().use_spare("disk2", Some("disk0")).await.expect("in its place"));
        moved(&rt, &pool).await;
        pool.moves().remove_device("disk3").await.expect("remove");
        moved(&rt, &pool).await;
        let expected =
            [("disk1".into(), DeviceState::Online), ("disk2".into(), DeviceState::Online)];
        assert_eq!(device_states(&pool), expected);
        reads(&pool, id, 1).await;
        pool.close().await.expect("close");
    });
}

/// What moved to it would move on, or wait for ever: it is removed when the moves go on.
#[test]
fn a_spare_that_leaves_is_not_used() {
    let mut bench = mirror(42, 2, 2);
    with_spare(&mut bench, "disk2", 32);
    let id = bench.volume;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        pool.moves().pause_moves(true);
        pool.moves().remove_device("disk2").await.expect("remove");
        for old in [None, Some("disk0")] {
            let e = pool.spares().use_spare("disk2", old).await.expect_err("it leaves");
            assert_eq!(e.kind, ErrorKind::Invalid);
            assert!(e.to_string().contains("forebay device cancel"), "{e}");
        }
        assert_eq!(pool.moves().moves_status().leaving, ["disk2"]);
        pool.moves().cancel_moves().await.expect("it stays");
        pool.moves().pause_moves(false);
        assert!(pool.spares().use_spare("disk2", Some("disk0")).await.expect("in its place"));
        moved(&rt, &pool).await;
        let expected =
            [("disk1".into(), DeviceState::Online), ("disk2".into(), DeviceState::Online)];
        assert_eq!(device_states(&pool), expected);
        reads(&pool, id, 1).await;
        pool.close().await.expect("close");
    });
}

fn kill_after(rt: &Rt, time: Duration) {
    let r = rt.clone();
    drop(rt.spawn(async move {
        r.sleep(time).await;
        r.kill();
    }));
}

/// Power cuts at any moment while a spare takes a place.
#[test]
fn a_crash_leaves_a_spare_or_a_device_that_is_filled() {
    for seed in 0..30 {
        let mut bench = mirror(100 + seed, 2, 2);
        let spare = with_spare(&mut bench, "disk2", 32);
        let id = bench.volume;
        let pair = vec![bench.files[0].clone(), spare];
        let soon = Settings { spare_after: Duration::from_secs(1), ..Settings::default() };
        let (files, first) = (pair.clone(), soon.clone());
        bench.try_run(move |rt, _| async move {
            kill_after(&rt, Duration::from_micros(1_000_000 + rt.random() % 60_000));
            let (pool, _) = Pool::open(&rt, files, first).await.expect("open");
            rt.sleep(LATE).await;
            drop(pool);
        });
        bench.world.power_cut();
        let files = pair.clone();
        bench.run(move |rt, _| async move {
            let (pool, _) = Pool::open(&rt, files, soon).await.expect("open");
            rt.sleep(Duration::from_secs(10)).await;
            moved(&rt, &pool).await;
            let expected =
                [("disk0".into(), DeviceState::Online), ("disk2".into(), DeviceState::Online)];
            assert_eq!(device_states(&pool), expected);
            reads(&pool, id, 1).await;
            pool.close().await.expect("close");
        });
        bench.files = pair;
        assert!(bench.check().is_clean(), "seed {seed}: {:?}", bench.check());
    }
}

#[test]
fn a_device_grows_and_never_shrinks() {
    let bench = mirror(5, 2, 2);
    let id = bench.volume;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files.clone()).await;
        let before = pool.status().pool.capacity_bytes;
        let size = files[0].size_bytes;
        let same = pool.moves().grow_device("disk0", size).await.expect("the same");
        let e = pool.moves().grow_device("disk0", size / 2).await.expect_err("less");
        assert_eq!(e.kind, ErrorKind::Invalid);
        assert_eq!(
            pool.moves().grow_device("disk9", size).await.expect_err("none").kind,
            ErrorKind::NotFound
        );
        let more = pool.moves().grow_device("disk0", size + 16 * MIB).await.expect("grow");
        assert!(more >= same + 15 * MIB, "{same} {more}");
        assert_eq!(
            pool.status().pool.capacity_bytes,
            before,
            "the other one has no room for copies"
        );
        pool.moves().grow_device("disk1", size + 16 * MIB).await.expect("grow");
        assert!(pool.status().pool.capacity_bytes >= before + 15 * MIB);
        reads(&pool, id, 1).await;
        pool.close().await.expect("close");
    });
}

#[test]
fn a_pool_becomes_as_large_as_it_was_made_for() {
    let bench = mirror(7, 2, 2);
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let before = pool.status().pool;
        assert!(before.capacity_bytes < before.capacity_limit_bytes, "{before:?}");
        let most = before.capacity_limit_bytes;
        for name in ["disk0", "disk1"] {
            assert_eq!(pool.moves().grow_device(name, 2 * most).await.expect("grow"), most);
        }
        let after = pool.status().pool;
        assert_eq!((after.capacity_bytes, after.capacity_limit_bytes), (most, most));
        pool.close().await.expect("close");
    });
}

#[test]
fn chunks_are_spread_evenly_under_load_and_over_crashes() {
    for seed in 0..10 {
        let mut bench = mirror(200 + seed, 2, 2);
        let news: Vec<_> =
            [("disk2", 32), ("disk3", 64)].map(|(name, mib)| new_disk(&bench, name, mib)).into();
        let (id, added) = (bench.volume, news.clone());
        let cut = bench.try_run(move |rt, files| async move {
            let pool = open(&rt, files).await;
            for (i, file) in added.into_iter().enumerate() {
                pool.moves().add_device(file, [20 + i as u8; 16]).await.expect("add");
            }
            pool.moves().balance_devices().await.expect("begin");
            kill_after(&rt, Duration::from_micros(rt.random() % 30_000));
            rt.sleep(LATE).await;
        });
        assert!(cut.is_none(), "killed");
        bench.world.power_cut();
        bench.files.extend(news);
        let shares = bench.run(move |rt, files| async move {
            let pool = open(&rt, files).await;
            let goes_on = std::rc::Rc::new(std::cell::Cell::new(true));
            let load = change((rt.clone(), pool.clone()), (id, BLOCKS), goes_on.clone());
            let writes = rt.spawn(load);
            rt.sleep(Duration::from_millis(50)).await;
            goes_on.set(false);
            let model = writes.await.expect("writes");
            moved(&rt, &pool).await;
            assert!(!pool.moves().moves_status().balancing);
            let devices = pool.status().pool.devices;
            let group = 1 << 20;
            let shares: Vec<_> = devices
                .iter()
                .map(|d| (d.allocated_bytes / group, d.capacity_bytes / group))
                .collect();
            holds_each(&pool, id, &model).await;
            pool.close().await.expect("close");
            shares
        });
        assert!(bench.check().is_clean(), "seed {seed}: {:?}", bench.check());
        // Ended: no move of one chunk makes it better.
        for (used, all) in &shares {
            for (there, all_there) in &shares {
                assert!(
                    (2 * used).saturating_sub(1) * all_there <= (2 * there + 1) * all || *used <= 1,
                    "seed {seed}: {shares:?}"
                );
            }
        }
    }
}
