//! Bursts of writes, whole blocks and sectors, before a pool that is slow, stops and recovers: no
//! write waits for the pool while the cache has room, and none waits once the load has stopped
//! being too much.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::{BLOCK, Prng, SECTOR};
use cache::{Cache, CreateOptions, Settings};
use rt::{Order, Rt};
use sim::Fault;
use testkit::{CachedWorld, MIB};
use volume::{Volume, Volumes};

const POOL_BYTES: u64 = 192 * MIB;
const VOLUME_BYTES: u64 = 96 * MIB;
/// What the cache's device, its journal and its turns take, and no pool.
const SOON: Duration = Duration::from_millis(60);

/// What clients do for a while, `depth` requests at a time.
#[derive(Clone, Copy, Debug)]
struct Load {
    depth: u64,
    most_blocks: u64,
    sectors: bool,
    time: Duration,
    /// After each request a client rests this long.
    rest: Duration,
}

struct Bench {
    rt: Rt,
    cache: Cache,
    volume: Volume,
}

impl Bench {
    /// Runs a load; returns the longest write that came while less than half of the room was gone.
    async fn run(&self, load: Load, seed: u64) -> Duration {
        let until = self.rt.now().after(load.time);
        let longest = Rc::new(Cell::new(Duration::ZERO));
        let clients = (0..load.depth).map(|client| {
            let (rt, cache, volume, longest) =
                (self.rt.clone(), self.cache.clone(), self.volume.clone(), longest.clone());
            self.rt.spawn(async move {
                let r = &mut Prng::new(seed * 1000 + client);
                while rt.now() < until {
                    let unit = if load.sectors && r.one_in(2) { SECTOR } else { BLOCK } as u64;
                    let len = (1 + r.below(load.most_blocks * BLOCK as u64 / unit)) * unit;
                    let at = r.below((VOLUME_BYTES - len) / unit) * unit;
                    let mut data = base::BufPool::new(0).take(len as usize);
                    data.fill(r.below(256) as u8);
                    let (gone, since) = (cache.status().writeback.room_gone, rt.now());
                    volume.write(at, data.freeze()).await.expect("write");
                    if gone < 0.5 {
                        longest.set(longest.get().max(rt.now().since(since)));
                    }
                    rt.sleep(load.rest).await;
                }
            })
        });
        for client in clients.collect::<Vec<_>>() {
            assert!(client.await.is_some());
        }
        longest.get()
    }

    async fn passes(&self, n: u64) {
        let before = self.cache.status().writeback.passes;
        for _ in 0..1000 {
            let w = self.cache.status().writeback;
            if w.passes >= before + n || self.cache.status().dirty_bytes == 0 {
                return;
            }
            self.rt.sleep(Duration::from_millis(100)).await;
        }
        panic!("write-back stands still: {:?}", self.cache.status());
    }
}

async fn burst(rt: Rt, devices: CachedWorld, seed: u64) {
    let (world, disk) = (&devices.world, devices.disk.file);
    let pool = devices.create_pool(&rt, pool::Settings::default()).await;
    let options = CreateOptions { bucket_bytes: 64 << 10, journal_bytes: Some(2 * MIB) };
    cache::create(&rt, &devices.file, &pool, &options, [3; 16]).await.expect("create the cache");
    let settings = Settings { sequential_cutoff: MIB, ..Settings::default() };
    let cache = devices.open_cache(&rt, &pool, settings).await;
    let volumes = Volumes::with_cache(&pool, Some(cache.clone()));
    let volume = volumes.create("a", VOLUME_BYTES, 512).await.expect("create");
    let bench = Bench { rt: rt.clone(), cache: cache.clone(), volume };
    let r = &mut Prng::new(seed);
    for phase in 0..6 {
        world.set_delay(disk, Duration::from_millis([0, 2, 20][r.below(3) as usize]));
        let load = Load {
            depth: 1 + r.below(24),
            most_blocks: [1, 1, 16, 17][r.below(4) as usize],
            sectors: r.one_in(2),
            time: Duration::from_millis(50 + r.below(4000)),
            rest: Duration::from_micros([0, 500, 20_000][r.below(3) as usize]),
        };
        if r.one_in(4) {
            world.inject(disk, Fault::Stuck(Duration::from_secs(1 + r.below(20))));
        }
        let longest = bench.run(load, seed * 100 + phase).await;
        assert!(longest < SOON, "seed {seed}, phase {phase}: {longest:?} with room; {load:?}");
    }
    world.set_delay(disk, Duration::ZERO);
    // What is left of a time in which the disk was stuck is no fault of the controller's.
    bench.passes(1).await;
    bench.passes(2).await;
    let light = Load {
        depth: 2,
        most_blocks: 2,
        sectors: true,
        time: Duration::from_secs(1),
        rest: Duration::from_millis(2),
    };
    let gone = cache.status().writeback.room_gone;
    assert!(gone < 0.76, "seed {seed}: {gone} of the room is gone after two passes");
    let longest = bench.run(light, seed).await;
    assert!(longest < SOON, "seed {seed}: {longest:?} after the load had stopped");
    cache.close().await.expect("close the cache");
    pool.close().await.expect("close");
}

/// The first six, or as many as the environment says: `FIRST=1000 SEEDS=1000 cargo test --release
/// -p volume --test bursts` runs the second thousand.
fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str, otherwise| {
        std::env::var(name).map_or(otherwise, |n| n.parse().expect("FIRST and SEEDS are numbers"))
    };
    let first = number("FIRST", 0);
    first..first + number("SEEDS", 6)
}

#[test]
fn no_write_waits_for_the_pool_while_there_is_room() {
    for seed in seeds() {
        let cache_bytes = [8, 16, 40][seed as usize % 3] * MIB;
        CachedWorld::new(seed, POOL_BYTES, cache_bytes)
            .run(Order::Seeded(seed), |rt, devices| burst(rt, devices, seed));
    }
}
