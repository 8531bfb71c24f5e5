//! How long the engine's thread works between two looks at the world, with a small cache and with a
//! large one: no step grows with the cache.

use base::{BLOCK_U64, Duration, Lba, Prng, VolumeId};
use cache::{Cache, CacheFile, CreateOptions, Settings};
use pool::{DeviceFile, Pool};
use rt::{Order, Rt};
use sim::CompactDisks;
use testkit::{LongestSteps, MIB, Steps, block, compare_steps, create_pool};

/// That of the product: others take milliseconds now and then to tidy up.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const JOBS: u64 = 8;

/// A cache over a pool, with a volume twice as large as the cache.
struct Bench {
    rt: Rt,
    steps: Steps,
    cache: Cache,
    volume: VolumeId,
    blocks: u64,
}

impl Bench {
    /// So many requests of a block at random places.
    async fn at_random(&self, count: u64, writes: bool) {
        let job = |job: u64| {
            let (cache, id, blocks) = (self.cache.clone(), self.volume, self.blocks);
            self.rt.spawn(async move {
                let mut rng = Prng::new(job);
                for _ in 0..count / JOBS {
                    let lba = Lba(rng.below(blocks));
                    match writes {
                        true => cache.write(id, lba, &block(2)).await.expect("write"),
                        false => drop(cache.read(id, lba, 1).await.expect("read")),
                    }
                }
            })
        };
        for job in (0..JOBS).map(job).collect::<Vec<_>>() {
            job.await.expect("a job");
        }
    }

    async fn status(&self) {
        drop(self.cache.status());
        self.rt.sleep(Duration::from_millis(1)).await;
    }
}

/// All phases with a cache of so many MiB.
fn run(mib: u64) -> Vec<LongestSteps> {
    let (disks, steps) = (CompactDisks::default(), Steps::default());
    let (size, behind) = (mib * MIB, 3 * mib * MIB + 64 * MIB);
    let file = CacheFile { path: "cache".into(), file: disks.add(size), size_bytes: size };
    let pool = DeviceFile { path: "pool".into(), file: disks.add(behind), size_bytes: behind };
    let rt = Rt::new(steps.over(Box::new(disks)), Order::Fifo, 4096);
    let longest = rt.block_on(phases(rt.clone(), steps, file, pool)).expect("alive");
    rt.kill();
    longest
}

async fn phases(rt: Rt, steps: Steps, file: CacheFile, disk: DeviceFile) -> Vec<LongestSteps> {
    create_pool(&rt, std::slice::from_ref(&disk), 1).await;
    let (pool, _) = Pool::open(&rt, vec![disk], pool::Settings::default()).await.expect("open");
    cache::create(&rt, &file, &pool, &CreateOptions::default(), [7; 16]).await.expect("create");
    let cache = Cache::open(&rt, &file, &pool, Settings::default()).await.expect("open");
    let in_cache = file.size_bytes / BLOCK_U64;
    let blocks = 2 * in_cache;
    let volume = pool.create_volume("v", blocks * BLOCK_U64, 4096).await.expect("volume");
    let bench = Bench { rt, steps, cache, volume, blocks };
    let cache = &bench.cache;
    bench.steps.phase("write", bench.at_random(in_cache * 3 / 2, true)).await;
    bench.steps.phase("read", bench.at_random(in_cache / 2, false)).await;
    bench.steps.phase("status", bench.status()).await;
    bench.steps.phase("flush", async { cache.flush().await.expect("flush") }).await;
    bench.steps.phase("collect", async { cache.collect().await.expect("collect") }).await;
    bench.steps.phase("publish", async { cache.publish_all().await.expect("publish") }).await;
    let (end, half) = (Lba(blocks), Lba(blocks / 2));
    let discard = async { cache.discard(volume, half, end).await.expect("discard") };
    bench.steps.phase("discard", discard).await;
    bench.steps.phase("forget", async { cache.forget(volume).await.expect("forget") }).await;
    bench.steps.phase("write again", bench.at_random(in_cache / 4, true)).await;
    bench.steps.phase("detach", async { cache.detach().await.expect("detach") }).await;
    pool.close().await.expect("close");
    bench.steps.take_phases()
}

#[test]
fn no_step_grows_with_the_cache() {
    compare_steps(|| run(32), || run(512));
}
