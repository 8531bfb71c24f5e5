//! Streams of a volume that writes back: they stand in the pool before they are part of its image,
//! through all that may happen to a volume.

use std::time::Duration;

use base::BLOCK;
use cache::{Settings, StreamWrites};
use rt::{Order, Rt};
use sim::Fault;
use testkit::{Cached, MIB, block, blocks, check_pool, holds, only_byte};
use volume::{Volume, Volumes};

/// Bytes of one request of a stream.
const REQUEST: u64 = 128 << 10;

async fn stream(volume: &Volume, from: u64, end: u64, value: u8) {
    for at in (from..end).step_by(REQUEST as usize) {
        volume.write(at, blocks(value, REQUEST / BLOCK as u64)).await.expect("write");
    }
}

async fn live(rt: Rt, bench: Cached) {
    let every = Duration::from_secs(3600);
    let slow = pool::Settings { commit_interval: every, ..pool::Settings::default() };
    let pool = bench.create_pool(&rt, slow).await;
    bench.create_cache(&rt, &pool, [3; 16]).await;
    let settings = Settings {
        max_lag: every,
        sequential_cutoff: MIB,
        stream_writes: StreamWrites::Past,
        ..Settings::default()
    };
    let cache = bench.open_cache(&rt, &pool, settings).await;
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
    assert_eq!(only_byte(&in_pool), Some(0), "the image is what was published");

    // FLUSH of a volume asks the pool for nothing that it has not written there.
    b.write(0, block(9)).await.expect("write");
    let before = pool.committed();
    b.flush().await.expect("flush");
    assert_eq!(pool.committed(), before);
    a.flush().await.expect("flush");
    let after = pool.committed();
    assert!(after > before);
    a.write(0, block(2)).await.expect("write");
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
    let bench = Cached::new(5, 96 * MIB, 16 * MIB);
    bench.run(Order::Seeded(5), live);
    bench.run(Order::Fifo, |rt, bench| async move {
        let report = check_pool(&rt, vec![bench.disk]).await;
        assert!(report.is_clean(), "{report:?}");
    });
}

/// A checkpoint needs a commit of the pool for what is staged. A pool that cannot commit for a
/// while, as the file system under it is full, ends no cache and loses nothing.
async fn without_commits(rt: Rt, bench: Cached) {
    let pool = bench.create_pool(&rt, pool::Settings::default()).await;
    bench.create_cache(&rt, &pool, [3; 16]).await;
    let settings = Settings {
        sequential_cutoff: MIB,
        stream_writes: StreamWrites::Past,
        ..Settings::default()
    };
    let cache = bench.open_cache(&rt, &pool, settings).await;
    let volumes = Volumes::with_cache(&pool, Some(cache.clone()));
    let a = volumes.create("a", 16 * MIB, 4096).await.expect("create");
    let b = volumes.create("b", 16 * MIB, 4096).await.expect("create");
    pool.commit().await.expect("commit");
    stream(&a, 0, 8 * MIB, 1).await;
    bench.world.inject(bench.disk.file, Fault::Full(true));
    assert!(cache.status().staged_bytes > 0);

    let (before, began) = (cache.status().index.checkpoints, rt.now());
    let (mut written, mut at) = (Vec::new(), 0);
    let mut refused = 0;
    while rt.now().since(began) < Duration::from_secs(90) {
        // An entry of the journal for each: checkpoints are needed soon.
        at = (at + 7 * BLOCK as u64) % MIB;
        match b.write(at, block(2)).await {
            Ok(()) => written.push(at),
            Err(_) => refused += 1,
        }
        let _ = b.flush().await;
        rt.sleep(Duration::from_millis(20)).await;
    }
    assert!(refused > 0, "the ring has room only after a checkpoint, which waits for the pool");
    assert!(cache.status().index.checkpoints <= before + 1);
    bench.world.inject(bench.disk.file, Fault::Full(false));
    rt.sleep(Duration::from_secs(30)).await;
    assert!(cache.status().index.checkpoints > before, "and goes on");
    b.flush().await.expect("the cache has not ended");
    for at in written {
        holds(&b, at, at + BLOCK as u64, 2).await;
    }
    holds(&a, 0, 8 * MIB, 1).await;
    volumes.detach().await.expect("detach");
    holds(&a, 0, 8 * MIB, 1).await;
    pool.close().await.expect("close");
}

#[test]
fn a_checkpoint_waits_for_a_pool_that_cannot_commit() {
    let bench = Cached::new(6, 96 * MIB, 16 * MIB);
    bench.run(Order::Seeded(6), without_commits);
    bench.run(Order::Fifo, |rt, bench| async move {
        let report = check_pool(&rt, vec![bench.disk]).await;
        assert!(report.is_clean(), "{report:?}");
    });
}
