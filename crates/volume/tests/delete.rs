//! A deletion that fails: a crash may bring the volume back as it was, so nothing may be taken for
//! it that its mode does not allow.

use std::time::Duration;

use base::{BLOCK, ErrorKind, Slice};
use cache::{Cache, CacheFile, CreateOptions, Settings};
use pool::{CacheMode, DeviceFile, Pool};
use rt::{Order, Rt};
use sim::{DiskModel, Fault, World};
use volume::Volumes;

const MIB: u64 = 1 << 20;

fn block(value: u8) -> Slice {
    let mut buf = base::BufPool::new(0).take(BLOCK);
    buf.fill(value);
    buf.freeze()
}

async fn live(rt: Rt, world: World, disk: DeviceFile, file: CacheFile) {
    let options = pool::CreateOptions { name: "bench".into(), copies: 1, group_bytes: Some(MIB) };
    pool::create(&rt, std::slice::from_ref(&disk), &options, &[[1; 16], [2; 16]])
        .await
        .expect("create");
    let (pool, _) =
        Pool::open(&rt, vec![disk.clone()], pool::Settings::default()).await.expect("open");
    let options = CreateOptions { bucket_bytes: 64 << 10, journal_bytes: Some(MIB) };
    cache::create(&rt, &file, &pool, &options, [3; 16]).await.expect("create the cache");
    let cache = Cache::open(&rt, &file, &pool, Settings::default()).await.expect("open the cache");
    let volumes = Volumes::with_cache(&pool, Some(cache.clone()));
    let a = volumes.create("a", MIB, 4096).await.expect("create");
    volumes.set_mode("a", CacheMode::WriteThrough).await.expect("the mode");
    a.write(0, block(1)).await.expect("write");
    a.flush().await.expect("flush");

    // Kept in the cache, where a write of half the block finds the other half, late.
    rt.sleep(Duration::from_secs(1)).await;
    world.set_delay(file.file, Duration::from_millis(10));
    let half = a.clone();
    let late = rt.spawn(async move { half.write(0, block(2).slice(0, BLOCK / 2)).await });
    rt.sleep(Duration::from_millis(1)).await;

    // The pool cannot say that the volume is gone. The deletion waits for the late write, which
    // went in before it. What is written afterwards is in neither: in the cache it would be dirty,
    // of a volume that has nothing dirty.
    world.inject(disk.file, Fault::Dead);
    volumes.delete("a").await.expect_err("the disk is dead");
    let late = late.await.expect("it ends").expect_err("the disk is dead");
    assert_eq!(late.kind, ErrorKind::Io, "{late}");
    let e = a.write(0, block(3)).await.expect_err("the volume is half gone");
    assert_eq!(e.kind, ErrorKind::NotFound, "{e}");
    assert_eq!(cache.status().dirty_bytes, 0);
}

#[test]
fn a_volume_whose_deletion_failed_takes_nothing() {
    let world = World::new(8);
    let disk = |bytes| (world.add_disk(DiskModel::nvme(bytes)), bytes);
    let ((file, size_bytes), (cache, cache_bytes)) = (disk(96 * MIB), disk(16 * MIB));
    let disk = DeviceFile { path: "disk".into(), file, size_bytes };
    let file = CacheFile { path: "cache".into(), file: cache, size_bytes: cache_bytes };
    let rt = Rt::new(world.backend(), Order::Seeded(8), 1024);
    rt.block_on(live(rt.clone(), world.clone(), disk, file)).expect("alive");
    rt.kill();
}
