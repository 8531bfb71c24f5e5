//! A deletion that fails: a crash may bring the volume back as it was, so nothing may be taken for
//! it that its mode does not allow.

use std::time::Duration;

use base::{BLOCK, ErrorKind};
use pool::CacheMode;
use rt::{Order, Rt};
use sim::Fault;
use testkit::{CachedWorld, MIB, block};
use volume::Volumes;

async fn live(rt: Rt, bench: CachedWorld) {
    let pool = bench.create_pool(&rt, pool::Settings::default()).await;
    bench.create_cache(&rt, &pool, [3; 16]).await;
    let cache = bench.open_cache(&rt, &pool, cache::Settings::default()).await;
    let volumes = Volumes::with_cache(&pool, Some(cache.clone()));
    let a = volumes.create("a", MIB, 4096).await.expect("create");
    volumes.set_mode("a", CacheMode::WriteThrough).await.expect("the mode");
    a.write(0, block(1)).await.expect("write");
    a.flush().await.expect("flush");

    // Kept in the cache, where a write of half the block finds the other half, late.
    rt.sleep(Duration::from_secs(1)).await;
    bench.world.set_delay(bench.file.file, Duration::from_millis(10));
    let half = a.clone();
    let late = rt.spawn(async move { half.write(0, block(2).slice(0, BLOCK / 2)).await });
    rt.sleep(Duration::from_millis(1)).await;

    // The pool cannot say that the volume is gone. The deletion waits for the late write, which
    // went in before it. What is written afterwards is in neither: in the cache it would be dirty,
    // of a volume that has nothing dirty.
    bench.world.inject(bench.disk.file, Fault::Dead);
    volumes.delete("a").await.expect_err("the disk is dead");
    let late = late.await.expect("it ends").expect_err("the disk is dead");
    assert_eq!(late.kind, ErrorKind::Io, "{late}");
    let e = a.write(0, block(3)).await.expect_err("the volume is half gone");
    assert_eq!(e.kind, ErrorKind::NotFound, "{e}");
    assert_eq!(cache.status().dirty_bytes, 0);
}

#[test]
fn a_volume_whose_deletion_failed_takes_nothing() {
    CachedWorld::new(8, 96 * MIB, 16 * MIB).run(Order::Seeded(8), live);
}
