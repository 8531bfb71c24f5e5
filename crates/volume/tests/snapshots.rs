//! Snapshots of volumes in use, with a cache and without one.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::BLOCK;
use model::snapshot::SnapshotName;
use pool::CacheMode;
use rt::{Order, Rt};
use testkit::{CachedWorld, MIB, check_pool, number, numbers};
use volume::{Volume, Volumes};

const MODES: [CacheMode; 4] =
    [CacheMode::WriteBack, CacheMode::WriteThrough, CacheMode::WriteAround, CacheMode::None];
/// Blocks of each volume.
const BLOCKS: u64 = 64;

/// Passes come one after another.
fn settings() -> cache::Settings {
    cache::Settings {
        max_lag: Duration::from_millis(5),
        journal_interval: Duration::from_millis(5),
        ..cache::Settings::default()
    }
}

async fn open(rt: &Rt, devices: &CachedWorld) -> Volumes {
    let pool = devices.open_pool(rt, pool::Settings::default()).await;
    let cache = devices.open_cache(rt, &pool, settings()).await;
    Volumes::with_cache(&pool, Some(cache))
}

/// A pool with a cache and two volumes in a mode.
async fn create(rt: &Rt, devices: &CachedWorld, mode: CacheMode) -> Volumes {
    let pool = devices.create_pool(rt, pool::Settings::default()).await;
    devices.create_cache(rt, &pool, [5; 16]).await;
    pool.close().await.expect("close");
    let volumes = open(rt, devices).await;
    for name in ["a", "b"] {
        volumes.create(name, BLOCKS * BLOCK as u64, 4096).await.expect("create");
        volumes.set_mode(name, mode).await.expect("mode");
    }
    volumes
}

async fn close(volumes: Volumes) {
    if let Some(cache) = volumes.cache() {
        cache.write_all_back().await.expect("written back");
        cache.close().await.expect("close");
    }
    volumes.pool().close().await.expect("close");
}

async fn read(volume: &Volume, at: u64) -> u64 {
    let data = volume.read(at * BLOCK as u64, BLOCK as u64).await.expect("read");
    number(&data).expect("one number")
}

/// Writes 1, 2, 3 and so on to a block of the first volume, then to one of the second, each after
/// the answer to the one before.
async fn count_up(volumes: Volumes, at: u64, begun: Rc<Cell<u64>>, answered: Rc<Cell<u64>>) {
    let [a, b] = ["a", "b"].map(|name| volumes.open(name).expect("open"));
    for n in 1.. {
        begun.set(n);
        a.write(at * BLOCK as u64, numbers(&[n])).await.expect("write");
        b.write(at * BLOCK as u64, numbers(&[n])).await.expect("write");
        answered.set(n);
    }
}

fn names(n: u64) -> [SnapshotName; 2] {
    ["a", "b"].map(|volume| SnapshotName { volume: volume.into(), name: format!("s{n}") })
}

/// Of two volumes in one snapshot the second is never ahead of the first, and never more than a
/// write behind. All that was answered before the command is there, and nothing that was begun
/// after its end.
#[test]
fn a_snapshot_of_several_volumes_is_of_one_moment() {
    for (seed, mode) in (0..16).zip(MODES.into_iter().cycle()) {
        let devices = CachedWorld::new(seed, 64 * MIB, 8 * MIB);
        devices.run(Order::Seeded(seed), |rt, devices| async move {
            let volumes = create(&rt, &devices, mode).await;
            let counters: Vec<[Rc<Cell<u64>>; 2]> =
                (0..BLOCKS).map(|_| Default::default()).collect();
            for (at, [begun, answered]) in (0..).zip(&counters) {
                rt.detach(count_up(volumes.clone(), at, begun.clone(), answered.clone()));
            }
            let mut expected: Vec<(u64, u64)> = Vec::new();
            for n in 0..6 {
                rt.sleep(Duration::from_millis(3)).await;
                let before: Vec<u64> = counters.iter().map(|c| c[1].get()).collect();
                volumes.take_snapshots(&names(n)).await.expect("taken");
                let after: Vec<u64> = counters.iter().map(|c| c[0].get()).collect();
                let [a, b] = names(n).map(|name| volumes.open(&name.to_string()).expect("there"));
                for at in 0..BLOCKS {
                    let (first, second) = (read(&a, at).await, read(&b, at).await);
                    let what = format!("seed {seed}, {mode:?}, {n}, block {at}: {first}, {second}");
                    assert!(first == second || first == second + 1, "{what}");
                    let (before, after) = (before[at as usize], after[at as usize]);
                    assert!(second >= before && first <= after, "{what}: {before} to {after}");
                    expected.push((first, second));
                }
            }
            // They never change.
            for n in 0..6 {
                let [a, b] = names(n).map(|name| volumes.open(&name.to_string()).expect("there"));
                for at in 0..BLOCKS {
                    let found = (read(&a, at).await, read(&b, at).await);
                    assert_eq!(found, expected[(n * BLOCKS + at) as usize], "{mode:?}, {n}, {at}");
                }
            }
        });
    }
}

#[test]
fn a_snapshot_outlives_a_loss_of_power_and_is_read_only() {
    for (seed, mode) in (0..8).zip(MODES.into_iter().cycle()) {
        let devices = CachedWorld::new(seed, 64 * MIB, 8 * MIB);
        devices.run(Order::Seeded(seed), |rt, devices| async move {
            let volumes = create(&rt, &devices, mode).await;
            let a = volumes.open("a").expect("open");
            a.write(0, numbers(&[1; 32])).await.expect("write");
            volumes.take_snapshots(&names(0)).await.expect("taken");
            a.write(0, numbers(&[2; 32])).await.expect("write");
            devices.world.power_cut();
        });
        devices.run(Order::Seeded(seed + 50), |rt, devices| async move {
            let volumes = open(&rt, &devices).await;
            let [snapshot, _] =
                names(0).map(|name| volumes.open(&name.to_string()).expect("there"));
            for at in 0..BLOCKS {
                let expected = u64::from(at < 32);
                assert_eq!(read(&snapshot, at).await, expected, "{mode:?}, block {at}");
            }
            assert!(snapshot.is_read_only());
            snapshot.write(0, numbers(&[3])).await.expect_err("it never changes");
            let info = snapshot.info().expect("it is there");
            assert_eq!((&*info.name, info.size_bytes), ("a@s0", BLOCKS * BLOCK as u64));
            assert_eq!(volumes.snapshots(Some("a")).expect("listed").len(), 1);
            volumes.delete("a").await.expect_err("it has a snapshot");
            for name in names(0) {
                volumes.delete_snapshot(&name).await.expect("deleted");
            }
            snapshot.read(0, 4096).await.expect_err("it is gone");
            volumes.delete("a").await.expect("it has no snapshot");
            rt.sleep(Duration::from_secs(20)).await;
            close(volumes).await;
            let report = check_pool(&rt, vec![devices.disk]).await;
            assert!(report.is_clean(), "{report:?}");
            assert_eq!((report.counts.snapshots, report.counts.dead_runs), (0, 0));
        });
    }
}
