//! Streams of a volume that writes back: they stand in the pool before they are part of its image,
//! through all that may happen to a volume.

use std::time::Duration;

use base::{BLOCK, Slice};
use cache::{Cache, CacheFile, CreateOptions, Settings};
use pool::{DeviceFile, Pool};
use rt::{Order, Rt};
use sim::{DiskModel, World};
use volume::{Volume, Volumes};

const MIB: u64 = 1 << 20;
/// Bytes of one request of a stream.
const REQUEST: u64 = 128 << 10;

fn block(value: u8, blocks: usize) -> Slice {
    let mut buf = base::BufPool::new(0).take(blocks * BLOCK);
    buf.fill(value);
    buf.freeze()
}

async fn stream(volume: &Volume, from: u64, end: u64, value: u8) {
    for at in (from..end).step_by(REQUEST as usize) {
        volume.write(at, block(value, REQUEST as usize / BLOCK)).await.expect("write");
    }
}

async fn holds(volume: &Volume, from: u64, end: u64, value: u8) {
    let data = volume.read(from, end - from).await.expect("read");
    let wrong = data.iter().flat_map(|s| s.iter()).position(|&b| b != value);
    assert_eq!(wrong, None, "bytes from {from} on are not {value}");
}

async fn live(rt: Rt, disk: DeviceFile, file: CacheFile) {
    let options = pool::CreateOptions { name: "bench".into(), copies: 1, group_bytes: Some(MIB) };
    pool::create(&rt, std::slice::from_ref(&disk), &options, &[[1; 16], [2; 16]])
        .await
        .expect("create");
    let every = Duration::from_secs(3600);
    let slow = pool::Settings { commit_interval: every, ..pool::Settings::default() };
    let (pool, _) = Pool::open(&rt, vec![disk], slow).await.expect("open");
    let options = CreateOptions { bucket_bytes: 64 << 10, journal_bytes: Some(MIB) };
    cache::create(&rt, &file, &pool, &options, [3; 16]).await.expect("create the cache");
    let settings = Settings { max_lag: every, sequential_cutoff: MIB, ..Settings::default() };
    let cache = Cache::open(&rt, &file, &pool, settings).await.expect("open the cache");
    let volumes = Volumes::with_cache(&pool, Some(cache.clone()));
    let a = volumes.create("a", 16 * MIB, 4096).await.expect("create");
    let b = volumes.create("b", 16 * MIB, 4096).await.expect("create");

    stream(&a, 0, 8 * MIB, 1).await;
    assert_eq!(cache.status().staged_bytes, 7 * MIB, "all but what comes before the cutoff");
    assert_eq!(cache.status().bypassed * BLOCK as u64, 7 * MIB);
    holds(&a, 0, 8 * MIB, 1).await;
    let in_pool = pool
        .read(pool.find_volume("a").expect("there").id, base::Lba(512), 16)
        .await
        .expect("read");
    assert!(in_pool.iter().all(|s| s.iter().all(|&b| b == 0)), "the image is what was published");

    // FLUSH of a volume asks the pool for nothing that it has not written there.
    b.write(0, block(9, 1)).await.expect("write");
    let before = pool.committed();
    b.flush().await.expect("flush");
    assert_eq!(pool.committed(), before);
    a.flush().await.expect("flush");
    let after = pool.committed();
    assert!(after > before);
    a.write(0, block(2, 1)).await.expect("write");
    a.flush().await.expect("flush");
    assert_eq!(pool.committed(), after, "what is staged is durable");

    // What a shrink cuts off is not there when the volume grows again.
    volumes.resize("a", 6 * MIB).await.expect("shrink");
    volumes.resize("a", 16 * MIB).await.expect("grow");
    holds(&a, 4096, 6 * MIB, 1).await;
    holds(&a, 6 * MIB, 16 * MIB, 0).await;
    assert_eq!(cache.status().staged_bytes, 5 * MIB);

    // Published, it is the volume's, and staged no more.
    cache.publish_all().await.expect("publish");
    assert_eq!((cache.status().staged_bytes, pool.stagings().len()), (0, 0));
    holds(&a, 4096, 6 * MIB, 1).await;
    cache.collect().await.expect("collect");
    assert_eq!((cache.status().gc.miscounted_buckets, cache.status().index.stale_blocks), (0, 0));
    holds(&a, 4096, 6 * MIB, 1).await;

    // A volume that is deleted leaves nothing.
    stream(&b, 0, 4 * MIB, 5).await;
    assert_eq!(pool.stagings().len(), 1);
    volumes.delete("b").await.expect("delete");
    assert_eq!((cache.status().dirty_bytes, pool.stagings().len()), (0, 0));

    // Without the cache all of it is in the pool.
    stream(&a, 8 * MIB, 12 * MIB, 6).await;
    a.discard(9 * MIB, MIB).await.expect("discard");
    volumes.detach().await.expect("detach");
    holds(&a, 4096, 6 * MIB, 1).await;
    holds(&a, 8 * MIB, 9 * MIB, 6).await;
    holds(&a, 9 * MIB, 10 * MIB, 0).await;
    holds(&a, 10 * MIB, 12 * MIB, 6).await;
    assert!(pool.stagings().is_empty());
    pool.close().await.expect("close");
}

#[test]
fn a_stream_is_staged_until_it_is_published() {
    let world = World::new(5);
    let disk = |bytes| (world.add_disk(DiskModel::nvme(bytes)), bytes);
    let ((file, size_bytes), (cache, cache_bytes)) = (disk(96 * MIB), disk(16 * MIB));
    let disk = DeviceFile { path: "disk".into(), file, size_bytes };
    let file = CacheFile { path: "cache".into(), file: cache, size_bytes: cache_bytes };
    let rt = Rt::new(world.backend(), Order::Seeded(5), 1024);
    rt.block_on(live(rt.clone(), disk.clone(), file)).expect("alive");
    rt.kill();
    let rt = Rt::new(world.backend(), Order::Fifo, 1024);
    let r = rt.clone();
    rt.block_on(async move {
        let options = pool::check::CheckOptions { data: true, ..Default::default() };
        let report =
            pool::check::check(&r, vec![disk], &options, &mut |_| {}).await.expect("check");
        assert!(report.is_clean(), "{report:?}");
    })
    .expect("alive");
    rt.kill();
}
