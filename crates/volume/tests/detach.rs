//! A detach that fails at the very end, when the pool is to say that it has no cache: the cache is
//! closed by then, and it must not be asked anything.

use std::time::Duration;

use base::{BLOCK, ErrorKind, Lba, StorageError, VolumeId};
use cache::Settings;
use pool::{Link, Pool};
use rt::{FileId, Order, Rt};
use sim::{Fault, World};
use testkit::{Cached, MIB, block, holds};
use volume::{Volume, Volumes};

async fn write(volume: &Volume, from: u64, end: u64, value: u8) {
    for at in (from..end).step_by(BLOCK) {
        volume.write(at, block(value)).await.expect("write");
    }
}

/// Has something to commit at any time, until the pool is to have no cache any more.
async fn churn(pool: Pool, volume: VolumeId) {
    while pool.cache_uuid().is_some() {
        let _ = pool.write(volume, Lba(0), &block(7)).await;
    }
}

/// Fails the commit that says that there is no cache: for its nodes there is no space.
async fn strike(rt: Rt, world: World, disk: FileId, pool: Pool) {
    while pool.cache_uuid().is_some() {
        rt.sleep(Duration::from_micros(1)).await;
    }
    world.inject(disk, Fault::Full(true));
}

async fn live(rt: Rt, bench: Cached) {
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
    assert_eq!(cache.status().state, "aside");

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
    assert!(pool.cache_uuid().is_none());
    let volumes = Volumes::with_cache(&pool, None);
    let a = volumes.open("a").expect("there");
    holds(&a, 0, MIB, 3).await;
    holds(&a, MIB, 24 * MIB, 2).await;
    pool.close().await.expect("close");
}

#[test]
fn a_detach_that_fails_leaves_no_closed_cache_in_the_way() {
    Cached::new(7, 96 * MIB, 16 * MIB).run(Order::Seeded(7), live);
}

/// An attach that fails at the pool's commit: the pool has no cache then, and takes another.
async fn attach_in_vain(rt: Rt, bench: Cached) {
    let pool = bench.create_pool(&rt, pool::Settings::default()).await;
    let volumes = Volumes::with_cache(&pool, None);
    let a = volumes.create("a", MIB, 4096).await.expect("create");
    for uuid in [[3; 16], [4; 16]] {
        bench.create_cache(&rt, &pool, uuid).await;
        let cache = bench.open_cache(&rt, &pool, Settings::default()).await;
        if uuid == [3; 16] {
            write(&a, 0, MIB, 1).await;
            pool.link_journal(Link::Closed(Err(StorageError::new(ErrorKind::NoSpace, "not now"))));
            volumes.attach(cache.clone()).await.expect_err("its commit fails");
            cache.abandon().await;
            assert!(pool.cache_uuid().is_none() && volumes.cache().is_none());
            pool.link_journal(Link::None);
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
    Cached::new(10, 96 * MIB, 16 * MIB).run(Order::Seeded(10), attach_in_vain);
}
