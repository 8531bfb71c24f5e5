//! Many writes of parts of one block at once: they are written together, none is lost, and the last
//! one that came is what is read.

use std::time::Duration;

use base::{BLOCK, BLOCK_U64, Prng, SECTOR, Slice};
use cache::{CreateOptions, Settings};
use pool::CacheMode;
use rt::{Order, Rt};
use testkit::{CachedWorld, MIB};
use volume::{Volume, Volumes};

const POOL_BYTES: u64 = 96 * MIB;
const VOLUME_BYTES: u64 = 16 * MIB;
const SLOW: Duration = Duration::from_millis(10);

async fn open(rt: &Rt, devices: &CachedWorld) -> (Volumes, Volume) {
    let pool = devices.create_pool(rt, pool::Settings::default()).await;
    let options = CreateOptions { bucket_bytes: 64 << 10, journal_bytes: Some(2 * MIB) };
    cache::create(rt, &devices.file, &pool, &options, [3; 16]).await.expect("create the cache");
    let cache = devices.open_cache(rt, &pool, Settings::default()).await;
    let volumes = Volumes::with_cache(&pool, Some(cache));
    let volume = volumes.create("a", VOLUME_BYTES, 512).await.expect("create");
    (volumes, volume)
}

async fn close(volumes: Volumes) {
    volumes.cache().expect("a cache").close().await.expect("close the cache");
    volumes.pool().close().await.expect("close");
}

fn filled(len: usize, byte: u8) -> Slice {
    let mut data = base::BufPool::new(0).take(len);
    data.fill(byte);
    data.freeze()
}

/// How long `n` writes of a sector each take that come at once, to so many blocks.
async fn together(rt: &Rt, volume: &Volume, first: u64, n: u64) -> Duration {
    let since = rt.now();
    let writes: Vec<_> = (0..n)
        .map(|i| {
            let (volume, at) = (volume.clone(), first * BLOCK_U64 + i * SECTOR as u64);
            rt.spawn(async move { volume.write(at, filled(SECTOR, i as u8 + 1)).await })
        })
        .collect();
    for write in writes {
        write.await.expect("alive").expect("write");
    }
    rt.now().since(since)
}

#[test]
fn sectors_of_one_block_are_written_together() {
    CachedWorld::new(1, POOL_BYTES, 16 * MIB).run(Order::Fifo, |rt, devices| async move {
        let (volumes, volume) = open(&rt, &devices).await;
        devices.world.set_delay(devices.file.file, SLOW);
        let one = together(&rt, &volume, 0, 1).await;
        let eight = together(&rt, &volume, 100, 8).await;
        assert!(one >= SLOW, "the device is slow");
        assert!(eight < one * 2, "eight took {eight:?}, one {one:?}");
        // Those that come while one is under way wait for that one only.
        let first = rt.spawn({
            let (volume, rt) = (volume.clone(), rt.clone());
            async move { together(&rt, &volume, 200, 1).await }
        });
        rt.sleep(one / 2).await;
        let later = together(&rt, &volume, 200, 8).await;
        assert!(later < one * 2, "eight took {later:?} behind one, one {one:?}");
        assert!(first.await.expect("alive") < one * 2);
        devices.world.set_delay(devices.file.file, Duration::ZERO);
        let read = volume.read(100 * BLOCK_U64, BLOCK_U64).await.expect("read");
        let bytes: Vec<u8> = read.iter().flat_map(|s| s.to_vec()).collect();
        for (i, sector) in bytes.chunks(SECTOR).enumerate() {
            assert!(sector.iter().all(|&b| b == i as u8 + 1), "sector {i}");
        }
        close(volumes).await;
    });
}

/// Writes, whole and in part, discards and changes of the mode, all of few blocks and many at a
/// time, in an order that is known; what is read is what that order says.
async fn mix(rt: Rt, devices: CachedWorld, seed: u64) {
    const BLOCKS: usize = 6;
    let (volumes, volume) = open(&rt, &devices).await;
    let r = &mut Prng::new(seed);
    let mut model = vec![0u8; BLOCKS * BLOCK];
    for round in 0..40 {
        let (world, file) = (&devices.world, devices.file.file);
        world.set_delay(file, Duration::from_micros([0, 300, 5000][r.below(3) as usize]));
        let mut under_way = Vec::new();
        for _ in 0..1 + r.below(24) {
            let unit = [1, SECTOR as u64, SECTOR as u64, BLOCK_U64][r.below(4) as usize];
            let len = (1 + r.below(2 * BLOCK_U64 / unit)) * unit;
            let at = r.below((model.len() as u64 - len) / unit + 1) * unit;
            let (a, n, byte) = (at as usize, len as usize, r.below(255) as u8 + 1);
            let discard = unit == BLOCK_U64 && r.one_in(3);
            model[a..a + n].fill(if discard { 0 } else { byte });
            let volume = volume.clone();
            under_way.push(rt.spawn(async move {
                if discard {
                    volume.discard(at, len).await
                } else {
                    volume.write(at, filled(n, byte)).await
                }
            }));
            // It has taken its place in line before the next one comes.
            rt.yield_now().await;
        }
        if r.one_in(4) {
            let modes = [CacheMode::WriteBack, CacheMode::WriteThrough, CacheMode::WriteAround];
            let mode = modes[r.below(3) as usize];
            volumes.set_mode("a", mode).await.expect("change the mode");
        }
        for request in under_way {
            request.await.expect("alive").expect("request");
        }
        let read = volume.read(0, model.len() as u64).await.expect("read");
        let bytes: Vec<u8> = read.iter().flat_map(|s| s.to_vec()).collect();
        let wrong = bytes.iter().zip(&model).position(|(is, should)| is != should);
        assert_eq!(wrong, None, "seed {seed}, round {round}");
    }
    close(volumes).await;
}

#[test]
fn parts_that_overlap_are_read_as_they_came() {
    for seed in 0..30 {
        CachedWorld::new(seed, POOL_BYTES, 16 * MIB)
            .run(Order::Fifo, |rt, devices| mix(rt, devices, seed));
    }
}
