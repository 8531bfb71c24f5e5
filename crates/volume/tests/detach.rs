//! A detach that fails at the very end, when the pool is to say that it has no cache: the cache is
//! closed by then, and it must not be asked anything.

use std::time::Duration;

use base::{BLOCK, ErrorKind, Lba, StorageError, VolumeId};
use cache::Settings;
use model::cache::CacheState;
use pool::{CacheMode, Link, Pool};
use rt::{FileId, Order, Rt};
use sim::{Fault, World};
use testkit::{CachedWorld, MIB, block, holds};
use volume::{GiveUpOutcome, Volume, Volumes};

async fn write(volume: &Volume, from: u64, end: u64, value: u8) {
    for at in (from..end).step_by(BLOCK) {
        volume.write(at, block(value)).await.expect("write");
    }
}

/// Has something to commit at any time, until the pool is to have no cache any more.
async fn churn(pool: Pool, volume: VolumeId) {
    while pool.cache_link().cache_uuid().is_some() {
        let _ = pool.write(volume, Lba(0), &block(7)).await;
    }
}

/// Fails the commit that says that there is no cache: for its nodes there is no space.
async fn strike(rt: Rt, world: World, disk: FileId, pool: Pool) {
    while pool.cache_link().cache_uuid().is_some() {
        rt.sleep(Duration::from_micros(1)).await;
    }
    world.inject(disk, Fault::Full(true));
}

async fn live(rt: Rt, bench: CachedWorld) {
    let every = Duration::from_secs(3600);
    let slow = pool::Settings { commit_interval: every, ..pool::Settings::default() };
    let pool = bench.create_pool(&rt, slow.clone()).await;
    bench.create_cache(&rt, &pool, [3; 16]).await;
    let cache = bench.open_cache(&rt, &pool, Settings::default()).await;
    let volumes = Volumes::with_cache(&pool, Some(cache.clone()));
    let a = volumes.create("a", 32 * MIB, 4096).await.expect("create");
    write(&a, 0, MIB, 1).await;

    let b = pool.create_volume("b", MIB, 4096).await.expect("create");
    let churning = rt.spawn(churn(pool.clone(), b));
    let struck = rt.spawn(strike(rt.clone(), bench.world.clone(), bench.disk.file, pool.clone()));
    let e = volumes.detach().await.expect_err("the commit had no space");
    assert!(
        struck.await.is_some() && churning.await.is_some() && e.kind == ErrorKind::NoSpace,
        "{e}"
    );
    bench.world.inject(bench.disk.file, Fault::Full(false));
    assert_eq!(cache.status().state, CacheState::Aside);

    // More than the cache would hold: nothing of it waits for what the cache does no more.
    write(&a, MIB, 24 * MIB, 2).await;
    a.flush().await.expect("flush");
    holds(&a, 0, MIB, 1).await;
    holds(&a, MIB, 24 * MIB, 2).await;

    // What was flushed is in the pool, which has no cache any more.
    volumes.detach().await.expect("again");
    assert!(volumes.cache().is_none());
    write(&a, 0, MIB, 3).await;
    pool.close().await.expect("close");
    let pool = bench.open_pool(&rt, slow).await;
    assert!(pool.cache_link().cache_uuid().is_none());
    let volumes = Volumes::with_cache(&pool, None);
    let a = volumes.open("a").expect("there");
    holds(&a, 0, MIB, 3).await;
    holds(&a, MIB, 24 * MIB, 2).await;
    pool.close().await.expect("close");
}

#[test]
fn a_detach_that_fails_leaves_no_closed_cache_in_the_way() {
    CachedWorld::new(7, 96 * MIB, 16 * MIB).run(Order::Seeded(7), live);
}

/// The device of a cache that leaves may take as long as it likes to be closed: no request waits
/// for it, and neither does the pool's commit.
async fn while_the_device_hangs(rt: Rt, bench: CachedWorld) {
    let pool = bench.create_pool(&rt, pool::Settings::default()).await;
    bench.create_cache(&rt, &pool, [3; 16]).await;
    let cache = bench.open_cache(&rt, &pool, Settings::default()).await;
    let volumes = Volumes::with_cache(&pool, Some(cache.clone()));
    let a = volumes.create("a", 32 * MIB, 4096).await.expect("create");
    write(&a, 0, MIB, 1).await;
    cache.publish_all().await.expect("published");
    rt.sleep(Duration::from_secs(5)).await;

    bench.world.inject(bench.file.file, Fault::Stuck(Duration::from_secs(60)));
    let began = rt.now();
    let leaving = volumes.clone();
    let detached = rt.spawn(async move { leaving.detach().await });
    // Writes that go to the cache before that wait for its device.
    rt.sleep(Duration::from_secs(1)).await;
    let mut at = MIB;
    while pool.cache_link().cache_uuid().is_some() || at < 2 * MIB {
        let before = rt.now();
        a.write(at, block(2)).await.expect("write");
        a.flush().await.expect("flush");
        let took = rt.now().since(before);
        assert!(took < Duration::from_secs(1), "a write and a flush took {took:?}");
        at += BLOCK as u64;
    }
    assert!(rt.now().since(began) < Duration::from_secs(10), "the pool was told at once");
    detached.await.expect("not killed").expect("detach");
    holds(&a, 0, MIB, 1).await;
    holds(&a, MIB, at, 2).await;
    assert!(volumes.cache().is_none());
    pool.close().await.expect("close");
}

#[test]
fn no_request_waits_for_the_device_of_a_cache_that_leaves() {
    CachedWorld::new(11, 96 * MIB, 16 * MIB).run(Order::Seeded(11), while_the_device_hangs);
}

/// A read waits for the cache's device, which hangs, when the cache leaves: the pool has the data.
/// Requests of a volume that asks no cache are not held for it.
async fn while_a_read_hangs(rt: Rt, bench: CachedWorld) {
    let pool = bench.create_pool(&rt, pool::Settings::default()).await;
    bench.create_cache(&rt, &pool, [3; 16]).await;
    let cache = bench.open_cache(&rt, &pool, Settings::default()).await;
    let volumes = Volumes::with_cache(&pool, Some(cache.clone()));
    let a = volumes.create("a", 32 * MIB, 4096).await.expect("create");
    let b = volumes.create("b", MIB, 4096).await.expect("create");
    volumes.set_mode("b", CacheMode::None).await.expect("mode");
    write(&a, 0, MIB, 1).await;
    cache.publish_all().await.expect("published");
    rt.sleep(Duration::from_secs(5)).await;

    bench.world.inject(bench.file.file, Fault::StuckForever);
    let began = rt.now();
    let reader = a.clone();
    let read = rt.spawn(async move { holds(&reader, 0, MIB, 1).await });
    rt.sleep(Duration::from_millis(1)).await;
    let leaving = volumes.clone();
    let detached = rt.spawn(async move { leaving.detach().await });
    let mut longest = Duration::ZERO;
    while pool.cache_link().cache_uuid().is_some() {
        let before = rt.now();
        b.write(0, block(2)).await.expect("write");
        longest = longest.max(rt.now().since(before));
        rt.sleep(Duration::from_millis(1)).await;
    }
    assert!(longest < Duration::from_millis(50), "a write of another volume took {longest:?}");
    read.await.expect("the pool has it");
    detached.await.expect("not killed").expect("detach");
    assert!(rt.now().since(began) < Duration::from_secs(2), "nothing waits for the device");
    assert!(volumes.cache().is_none());
    write(&a, 0, MIB, 3).await;
    a.flush().await.expect("flush");
    holds(&a, 0, MIB, 3).await;
    pool.close().await.expect("close");
}

#[test]
fn a_read_that_hangs_in_a_cache_that_leaves_goes_to_the_pool() {
    CachedWorld::new(13, 96 * MIB, 16 * MIB).run(Order::Seeded(13), while_a_read_hangs);
}

/// An attach that fails at the pool's commit: the pool has no cache then, and takes another.
async fn attach_in_vain(rt: Rt, bench: CachedWorld) {
    let pool = bench.create_pool(&rt, pool::Settings::default()).await;
    let volumes = Volumes::with_cache(&pool, None);
    let a = volumes.create("a", MIB, 4096).await.expect("create");
    for uuid in [[3; 16], [4; 16]] {
        bench.create_cache(&rt, &pool, uuid).await;
        let cache = bench.open_cache(&rt, &pool, Settings::default()).await;
        if uuid == [3; 16] {
            write(&a, 0, MIB, 1).await;
            pool.cache_link()
                .link_journal(Link::Closed(Err(StorageError::new(ErrorKind::NoSpace, "not now"))));
            volumes.attach(cache.clone()).await.expect_err("its commit fails");
            cache.abandon().await;
            assert!(pool.cache_link().cache_uuid().is_none() && volumes.cache().is_none());
            pool.cache_link().link_journal(Link::None);
        } else {
            volumes.attach(cache.clone()).await.expect("attach");
            assert!(volumes.cache().is_some());
        }
    }
    holds(&a, 0, MIB, 1).await;
    volumes.detach().await.expect("detach");
    pool.close().await.expect("close");
}

#[test]
fn an_attach_that_fails_leaves_a_pool_that_takes_another() {
    CachedWorld::new(10, 96 * MIB, 16 * MIB).run(Order::Seeded(10), attach_in_vain);
}

/// A detach and a change of a mode that are given up while they write back change nothing, and are
/// done when they are asked for again.
async fn give_up(rt: Rt, bench: CachedWorld) {
    let pool = bench.create_pool(&rt, pool::Settings::default()).await;
    bench.create_cache(&rt, &pool, [3; 16]).await;
    let cache = bench.open_cache(&rt, &pool, Settings::default()).await;
    let volumes = Volumes::with_cache(&pool, Some(cache));
    let a = volumes.create("a", 8 * MIB, 4096).await.expect("create");
    let mode = |volumes: &Volumes| volumes.list()[0].cache_mode;
    assert_eq!(volumes.give_up(None).expect("none"), GiveUpOutcome::NoneRuns);
    assert_eq!(volumes.give_up(Some("b")).expect_err("no such").kind, ErrorKind::NotFound);

    write(&a, 0, 4 * MIB, 1).await;
    let all = volumes.clone();
    let detach = rt.spawn(async move { all.detach().await });
    while volumes.give_up(None).expect("it runs") == GiveUpOutcome::NoneRuns {
        rt.sleep(Duration::from_micros(1)).await;
    }
    // It is the detach that runs, and no change of a mode.
    assert_eq!(volumes.give_up(Some("a")).expect("none"), GiveUpOutcome::NoneRuns);
    let e = detach.await.expect("it ends").expect_err("it was given up");
    assert_eq!((e.kind, volumes.cache().is_some()), (ErrorKind::GivenUp, true));

    write(&a, 0, 4 * MIB, 2).await;
    let all = volumes.clone();
    let change = rt.spawn(async move { all.set_mode("a", CacheMode::WriteAround).await });
    rt.sleep(Duration::from_micros(1)).await;
    // One that waits for another is given up at once, and the other goes on.
    let all = volumes.clone();
    let waits = rt.spawn(async move { all.detach().await });
    while volumes.give_up(None).expect("it waits") == GiveUpOutcome::NoneRuns {
        rt.sleep(Duration::from_micros(1)).await;
    }
    let e = waits.await.expect("it ends").expect_err("it was given up");
    assert_eq!(e.kind, ErrorKind::GivenUp);
    assert_eq!(volumes.give_up(Some("a")).expect("it runs"), GiveUpOutcome::Yes);
    let e = change.await.expect("it ends").expect_err("it was given up");
    assert_eq!((e.kind, mode(&volumes)), (ErrorKind::GivenUp, CacheMode::WriteBack));

    holds(&a, 0, 4 * MIB, 2).await;
    volumes.set_mode("a", CacheMode::WriteAround).await.expect("mode");
    assert_eq!(mode(&volumes), CacheMode::WriteAround);
    volumes.detach().await.expect("detach");
    assert_eq!(volumes.give_up(None).expect("none"), GiveUpOutcome::NoneRuns);
    holds(&a, 0, 4 * MIB, 2).await;
    pool.close().await.expect("close");
}

#[test]
fn a_change_that_is_given_up_changes_nothing() {
    for seed in 0..8 {
        CachedWorld::new(seed, 96 * MIB, 16 * MIB).run(Order::Seeded(seed), give_up);
    }
}
