//! Trees that do not fit in memory, on an emulated rotating disk in virtual time: how many nodes
//! passes of write-back and reads in order load, how often they wait for one, and how fast they are
//! beside the same with all nodes in memory.

use std::cell::Cell;
use std::future::Future;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use base::{BLOCK, BLOCK_U64, Lba, Prng, VolumeId};
use cache::{Cache, CreateOptions};
use emulate::{Emulate, Emulations};
use pool::Pool;
use rt::{Order, Rt};
use testkit::{CachedWorld, MIB, block, blocks, boot};
use volume::{Volume, Volumes};

const DISK: u64 = 1024 * MIB;
const CACHE: u64 = 256 * MIB;
/// As many nodes as a full tree of this volume never has.
const ALL: usize = 24_576;

/// What was counted while something ran.
#[derive(Clone, Copy, Debug)]
struct Counted {
    /// Nodes that were read.
    loads: u64,
    /// Steps that waited for one.
    waits: u64,
    took: Duration,
}

#[derive(Clone)]
struct Bench {
    rt: Rt,
    pool: Pool,
    id: VolumeId,
}

impl Bench {
    async fn count(&self, work: impl Future<Output = ()>) -> Counted {
        let (before, since) = (self.pool.status().memory, self.rt.now());
        work.await;
        let after = self.pool.status().memory;
        Counted {
            loads: after.node_loads - before.node_loads,
            waits: after.node_waits - before.node_waits,
            took: self.rt.now().since(since),
        }
    }

    /// Does `one` for 0 to `n`, at most `depth` at a time.
    async fn each<F: Future<Output = ()> + 'static>(
        &self,
        (n, depth): (u64, u64),
        one: impl Fn(u64) -> F + Clone + 'static,
    ) {
        let next = Rc::new(Cell::new(0));
        let mut clients = Vec::new();
        for _ in 0..depth {
            let (next, one) = (next.clone(), one.clone());
            clients.push(self.rt.spawn(async move {
                while next.get() < n {
                    one(next.replace(next.get() + 1)).await;
                }
            }));
        }
        for client in clients {
            assert!(client.await.is_some());
        }
    }

    /// Reads so many blocks in order.
    async fn read(&self, blocks: u64) -> Counted {
        let (pool, id) = (self.pool.clone(), self.id);
        let reads = self.each((blocks / 256, 8), move |i| {
            let pool = pool.clone();
            async move {
                let data = pool.read(id, Lba(i * 256), 256).await.expect("read");
                assert_eq!(data.iter().map(|s| s.len()).sum::<usize>(), 256 * BLOCK);
            }
        });
        self.count(reads).await
    }
}

/// A pool on an emulated disk with a volume of `blocks` blocks, and a cache.
struct Devices {
    cached: CachedWorld,
    emulations: Emulations,
    blocks: u64,
}

/// The volume, and the cache in front of it.
#[derive(Clone)]
struct Open {
    bench: Bench,
    cache: Cache,
    volume: Volume,
}

impl Open {
    /// Writes single blocks to the cache.
    async fn write(&self, blocks: Rc<Vec<u64>>) {
        let (volume, n) = (self.volume.clone(), blocks.len() as u64);
        let write = move |i: u64| {
            let (volume, at) = (volume.clone(), blocks[i as usize] * BLOCK_U64);
            async move { volume.write(at, block(at as u8)).await.expect("write") }
        };
        self.bench.each((n, 32), write).await;
    }

    /// A pass that carries these blocks.
    async fn pass(&self, blocks: Vec<u64>) -> Counted {
        self.write(Rc::new(blocks)).await;
        let publish = async { self.cache.publish_all().await.expect("published") };
        self.bench.count(publish).await
    }
}

impl Devices {
    fn new(blocks: u64) -> Devices {
        let cached = CachedWorld::new(1, DISK, CACHE);
        let emulations = Emulations::default();
        emulations.add(cached.disk.file, Emulate::Hdd, DISK);
        let devices = Devices { cached, emulations, blocks };
        devices.boot(move |rt, cached| async move {
            let files = std::slice::from_ref(&cached.disk);
            let options = pool::CreateOptions {
                name: "bench".into(),
                copies: 1,
                group_bytes: Some(16 * MIB),
            };
            pool::create(&rt, files, &options, &[[1; 16], [2; 16]]).await.expect("create");
            let pool = cached.open_pool(&rt, pool::Settings::default()).await;
            pool.create_volume("a", blocks * BLOCK_U64, 4096).await.expect("volume");
            let options = CreateOptions { bucket_bytes: 256 << 10, journal_bytes: Some(8 * MIB) };
            cache::create(&rt, &cached.file, &pool, &options, [3; 16]).await.expect("create");
            pool.close().await.expect("close");
        });
        devices
    }

    fn boot<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        body: impl FnOnce(Rt, CachedWorld) -> F,
    ) -> T {
        let backend = self.emulations.over(self.cached.world.backend());
        boot(backend, Order::Seeded(1), |rt| body(rt, self.cached.clone())).expect("alive")
    }

    /// Opens pool and cache, with so many nodes of the pool in memory.
    fn live<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        cached_nodes: usize,
        body: impl FnOnce(Open) -> F + 'static,
    ) -> T {
        self.boot(move |rt, cached| async move {
            let hour = Duration::from_secs(3600);
            let settings = pool::Settings { cached_nodes, ..pool::Settings::default() };
            let pool = cached.open_pool(&rt, settings).await;
            let settings = cache::Settings {
                max_lag: hour,
                dirty_target_percent: 90,
                ..cache::Settings::default()
            };
            let cache = cached.open_cache(&rt, &pool, settings).await;
            let volumes = Volumes::with_cache(&pool, Some(cache.clone()));
            let volume = volumes.open("a").expect("there");
            let id = pool.find_volume("a").expect("there").id;
            let bench = Bench { rt, pool: pool.clone(), id };
            let out = body(Open { bench, cache: cache.clone(), volume }).await;
            cache.close().await.expect("close the cache");
            pool.close().await.expect("close");
            out
        })
    }

    /// Opens the pool alone, and reads all of the volume twice, in order.
    fn read_twice(&self, cached_nodes: usize) -> (Counted, Counted) {
        let blocks = self.blocks;
        self.boot(move |rt, cached| async move {
            let settings = pool::Settings { cached_nodes, ..pool::Settings::default() };
            let pool = cached.open_pool(&rt, settings).await;
            let id = pool.find_volume("a").expect("there").id;
            let bench = Bench { rt, pool: pool.clone(), id };
            let reads = (bench.read(blocks).await, bench.read(blocks).await);
            pool.close().await.expect("close");
            reads
        })
    }
}

fn some(n: usize, of: u64, seed: u64) -> Vec<u64> {
    let mut r = Prng::new(seed);
    let mut all: Vec<u64> = (0..of).collect();
    for i in 0..n {
        all.swap(i, i + r.below(of - i as u64) as usize);
    }
    all.truncate(n);
    all
}

/// Passes over a volume of which each block has a record of its own, one for each seed.
fn passes(
    devices: &Devices,
    seeds: Range<u64>,
    carried: usize,
    cached_nodes: usize,
) -> Vec<Counted> {
    let all = devices.blocks;
    devices.live(cached_nodes, move |open| async move {
        let mut passes = Vec::new();
        for seed in seeds {
            passes.push(open.pass(some(carried, all, seed)).await);
        }
        passes
    })
}

/// A volume whose neighbouring blocks were carried by different passes.
fn scattered(blocks: u64) -> Devices {
    let devices = Devices::new(blocks);
    devices.live(ALL, move |open| async move {
        for odd in 0..2 {
            open.pass((0..blocks / 2).map(|i| 2 * i + odd).collect()).await;
        }
    });
    devices
}

/// Runs of a pass that are under way at the most.
const RUNS: u64 = 512;

/// Each leaf that a pass changes is read once, and none is waited for, with a twentieth of the
/// nodes in memory.
#[test]
fn a_pass_reads_each_node_once_and_ahead() {
    // The trees of this volume have about 400 nodes.
    let devices = scattered(24_576);
    for carried in [600, 6000] {
        let few = passes(&devices, 0..6, carried, 20);
        assert!(few.iter().skip(2).all(|few| few.loads <= 400), "{few:?}");
        // Where a pass begins to take blocks of another group, all runs under way may wait for two
        // nodes. Some of these passes do not.
        let most = carried as u64 / 16;
        assert!(few.iter().any(|few| few.waits <= most), "{few:?}");
        assert!(few.iter().all(|few| few.waits <= most + 2 * RUNS), "{few:?}");
    }
}

/// Reads in order wait for few nodes, and are nearly as fast as with all nodes in memory.
#[test]
fn reads_in_order_find_their_nodes_in_memory() {
    let blocks = 32_768;
    let devices = Devices::new(blocks);
    devices.live(ALL, move |open| async move {
        let volume = open.volume.clone();
        let write = move |i: u64| {
            let volume = volume.clone();
            async move { volume.write(i * MIB, blocks_of(i)).await.expect("write") }
        };
        open.bench.each((blocks / 256, 8), write).await;
        open.cache.publish_all().await.expect("published");
        open.pass(some(blocks as usize / 10 * 3, blocks, 1)).await;
    });
    for cached_nodes in [ALL, 512] {
        let (cold, warm) = devices.read_twice(cached_nodes);
        assert!(cold.waits * MIB <= blocks * BLOCK_U64, "{cold:?}");
        assert!(cold.took < warm.took * 5 / 4, "{cold:?}, again {warm:?}");
    }
}

fn blocks_of(i: u64) -> base::Slice {
    blocks(i as u8, 256)
}

/// Not a test but a measurement in virtual time, in which the program takes no time: `cargo test
/// --profile ci -p volume --test trees speed -- --ignored --nocapture`. Where passes take blocks
/// depends on what those before them freed, and so does their speed, by up to a factor of four: so
/// it is the mean of 24 passes, on four disks, and both sides begin with the same disk.
#[test]
#[ignore = "a measurement"]
fn speed_of_passes() {
    for (blocks, carried) in [(65_536, 8_192), (65_536, 24_576), (131_072, 16_384)] {
        let rate = |cached_nodes| {
            let of_a_disk = |first: u64| {
                passes(&scattered(blocks), first..first + 8, carried, cached_nodes).split_off(2)
            };
            let all: Vec<Counted> = [0, 100, 200, 300].into_iter().flat_map(of_a_disk).collect();
            let took: Duration = all.iter().map(|pass| pass.took).sum();
            let loads = all.iter().map(|pass| pass.loads).sum::<u64>() / all.len() as u64;
            ((all.len() * carried) as f64 / took.as_secs_f64(), loads)
        };
        let twentieth = (blocks / 60) as usize / 20;
        let ((fast, _), (slow, loads)) = (rate(ALL), rate(twentieth));
        eprintln!(
            "{carried} of {blocks} blocks, all nodes: {fast:.0} a second; {twentieth} nodes, of \
             which {loads} are read a pass: {slow:.0} a second: {:.2}",
            slow / fast
        );
    }
}
