//! A shrink that fails half way, or that meets cuts which no pass has carried yet, and a volume
//! that grows after it: what was cut off does not come back, neither at once nor later.

use std::time::Duration;

use base::{ErrorKind, StorageError};
use cache::{Cache, Settings};
use pool::{CacheMode, Link, Pool};
use rt::{Order, Rt};
use testkit::{CachedWorld, MIB, blocks, holds};
use volume::Volumes;

async fn open(rt: &Rt, bench: &CachedWorld, settings: Settings) -> (Pool, Cache) {
    let pool = bench.create_pool(rt, pool::Settings::default()).await;
    bench.create_cache(rt, &pool, [3; 16]).await;
    let cache = bench.open_cache(rt, &pool, settings).await;
    (pool, cache)
}

async fn fail_half_way(rt: Rt, bench: CachedWorld, mode: CacheMode) {
    let (pool, cache) = open(&rt, &bench, Settings::default()).await;
    let volumes = Volumes::with_cache(&pool, Some(cache.clone()));
    let a = volumes.create("a", 2 * MIB, 4096).await.expect("create");
    a.write(0, blocks(1, 512)).await.expect("write");
    a.flush().await.expect("flush");

    pool.cache_link()
        .link_journal(Link::Closed(Err(StorageError::new(ErrorKind::NoSpace, "not now"))));
    volumes.resize("a", MIB).await.expect_err("its commit fails");
    pool.cache_link().link_journal(Link::None);
    volumes.resize("a", MIB).await.expect("it has that size");
    volumes.set_mode("a", mode).await.expect("the mode");
    volumes.resize("a", 2 * MIB).await.expect("grow");
    holds(&a, 0, MIB, 1).await;
    holds(&a, MIB, 2 * MIB, 0).await;
    rt.sleep(Duration::from_secs(60)).await;
    cache.publish_all().await.expect("published");
    holds(&a, MIB, 2 * MIB, 0).await;
    assert_eq!(
        a.extents(MIB, MIB, 8).await.expect("extents").iter().filter(|e| e.allocated).count(),
        0
    );
}

/// A volume grows behind a shrink that is under way, and that fails. What is left behind its end is
/// cleared then, in the block in which the volume ends now; a write to another part of that block
/// comes `later`.
async fn grow_behind(rt: Rt, bench: CachedWorld, later: Duration) {
    let (pool, cache) = open(&rt, &bench, Settings::default()).await;
    let volumes = Volumes::with_cache(&pool, Some(cache.clone()));
    let a = volumes.create("a", 2 * MIB, 512).await.expect("create");
    a.write(0, blocks(1, 512)).await.expect("write");
    a.flush().await.expect("flush");

    pool.cache_link()
        .link_journal(Link::Closed(Err(StorageError::new(ErrorKind::NoSpace, "not now"))));
    let resize = |to: u64| {
        let volumes = volumes.clone();
        rt.spawn(async move { volumes.resize("a", to).await })
    };
    let shrink = resize(MIB + 1024);
    rt.settled().await;
    let grow = resize(2 * MIB);
    shrink.await.expect("alive").expect_err("its commit fails");
    rt.sleep(later).await;
    a.write(MIB, blocks(9, 1).slice(0, 512)).await.expect("write");
    grow.await.expect("alive").expect_err("its commit fails too");
    pool.cache_link().link_journal(Link::None);
    holds(&a, MIB - 512, MIB, 1).await;
    holds(&a, MIB, MIB + 512, 9).await;
    holds(&a, MIB + 512, MIB + 1024, 1).await;
}

/// Bytes in front of the new end, and behind it.
const AROUND: u64 = 64 << 10;

/// A shrink fails, and so does what lets the volume grow again. A power cut finds the old end, and
/// all that was flushed in front of it.
#[test]
fn a_growth_that_fails_takes_nothing_that_was_flushed() {
    let bench = CachedWorld::new(9, 96 * MIB, 16 * MIB);
    let settings = || Settings { max_lag: Duration::from_secs(3600), ..Settings::default() };
    bench.run(Order::Seeded(9), |rt, bench| async move {
        let (pool, cache) = open(&rt, &bench, settings()).await;
        let volumes = Volumes::with_cache(&pool, Some(cache.clone()));
        let a = volumes.create("a", 2 * MIB, 4096).await.expect("create");
        // Few blocks, which no pass brings to the pool.
        a.write(MIB - AROUND, blocks(1, 32)).await.expect("write");
        a.flush().await.expect("flush");
        pool.cache_link()
            .link_journal(Link::Closed(Err(StorageError::new(ErrorKind::NoSpace, "not now"))));
        volumes.resize("a", MIB).await.expect_err("its commit fails");
        assert_eq!(cache.status().dirty_bytes, 2 * AROUND);
        volumes.resize("a", 2 * MIB).await.expect_err("its commit fails too");
    });
    bench.world.power_cut();
    bench.run(Order::Seeded(9), |rt, bench| async move {
        let pool = bench.open_pool(&rt, pool::Settings::default()).await;
        let cache = bench.open_cache(&rt, &pool, settings()).await;
        let a = Volumes::with_cache(&pool, Some(cache)).open("a").expect("there");
        assert_eq!(a.size(), 2 * MIB);
        holds(&a, MIB - AROUND, MIB + AROUND, 1).await;
    });
}

async fn meet_cuts(rt: Rt, bench: CachedWorld) {
    // 64 blocks a second, once something is dirty; and the oldest cut first.
    let slow = cache::rate_controller::RateSettings {
        min: 256 << 10,
        max: 256 << 10,
        idle_rate: 256 << 10,
    };
    let settings = Settings {
        writeback: slow,
        max_lag: Duration::from_millis(2),
        seal_blocks: 20,
        pressure_percent: 0,
        sequential_cutoff: 0,
        ..Settings::default()
    };
    let (_, cache) = open(&rt, &bench, settings).await;
    let volumes = Volumes::with_cache(&cache.pool().clone(), Some(cache.clone()));
    let a = volumes.create("a", 2 * MIB, 4096).await.expect("create");
    for i in 0..32 {
        a.write(i * 64 * 1024, blocks(1, 16)).await.expect("write");
        rt.sleep(Duration::from_millis(5)).await;
    }
    let cuts = cache.status().writeback.sealed_cuts;
    assert!(cuts > 4, "{cuts} cuts");
    volumes.resize("a", MIB).await.expect("shrink");
    // One that was taken since.
    assert!(cache.status().writeback.sealed_cuts <= 1);
    volumes.resize("a", 2 * MIB).await.expect("grow");
    holds(&a, MIB, 2 * MIB, 0).await;
    rt.sleep(Duration::from_secs(60)).await;
    cache.publish_all().await.expect("published");
    holds(&a, 0, MIB, 1).await;
    holds(&a, MIB, 2 * MIB, 0).await;
    assert_eq!(
        a.extents(MIB, MIB, 8).await.expect("extents").iter().filter(|e| e.allocated).count(),
        0
    );
}

fn run<F: Future<Output = ()> + 'static>(life: impl FnOnce(Rt, CachedWorld) -> F) {
    CachedWorld::new(9, 96 * MIB, 16 * MIB).run(Order::Seeded(9), life);
}

#[test]
fn what_a_failed_shrink_cut_off_does_not_come_back() {
    for mode in [CacheMode::WriteBack, CacheMode::WriteThrough] {
        run(|rt, bench| fail_half_way(rt, bench, mode));
    }
}

#[test]
fn a_volume_that_grows_behind_a_shrink_loses_no_write() {
    for later in (0..400).step_by(8) {
        run(move |rt, bench| grow_behind(rt, bench, Duration::from_micros(later)));
    }
}

#[test]
fn what_cuts_have_behind_a_new_end_does_not_come_back() {
    run(meet_cuts);
}

/// One who only lets a volume grow may come behind another who made it larger than that.
async fn grow_only(rt: Rt, bench: CachedWorld) {
    let (pool, _) = open(&rt, &bench, Settings::default()).await;
    let volumes = Volumes::new(&pool);
    volumes.create("a", 2 * MIB, 4096).await.expect("create");
    let behind = |to: u64| {
        let volumes = volumes.clone();
        rt.spawn(async move { volumes.grow("a", to).await })
    };
    let first = behind(8 * MIB);
    rt.settled().await;
    let second = behind(4 * MIB);
    first.await.expect("a task").expect("grow");
    let refused = second.await.expect("a task").expect_err("it would shrink");
    assert_eq!(refused.kind, ErrorKind::Loses, "{refused}");
    assert_eq!(volumes.open("a").map(|v| v.size()), Some(8 * MIB));
    volumes.grow("a", 8 * MIB).await.expect("it has that size");
    volumes.resize("a", MIB).await.expect("shrink");
    assert_eq!(volumes.open("a").map(|v| v.size()), Some(MIB));
}

#[test]
fn a_volume_that_may_only_grow_never_shrinks() {
    run(grow_only);
}
