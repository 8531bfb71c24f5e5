//! The smallest journal under the largest load, in simulation: hundreds of writers that flush each
//! write, streams past the cache, direct writes and discards, while garbage is collected again and
//! again. Commits of the pool wait for the journal, and checkpoints for commits: everything must
//! come to rest. First the power is cut in the middle of it, and what was flushed must be there.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use base::{BLOCK, BLOCK_U64, Lba, Prng, Slice, VolumeId};
use cache::{Cache, CacheFile, CreateOptions, Settings};
use pool::{DeviceFile, Pool};
use rt::{Order, Rt};
use sim::{DiskModel, World};

const MIB: u64 = 1 << 20;
const WRITERS: u64 = 400;
/// Blocks of a writer of its own; and of a stream, or of a writer past the cache.
const OWN: u64 = 16;
const WIDE: u64 = 1024;
const STREAMS: u64 = 4;
const DIRECT: u64 = 16;
/// Nothing of this takes so long, unless it stands still.
const TIME: u64 = 600;

struct Load {
    cache: Cache,
    flushed: VolumeId,
    direct: VolumeId,
    /// What each block of a writer's may hold after a power cut: the first is flushed.
    model: Rc<RefCell<Vec<Vec<u64>>>>,
    busy: Cell<u64>,
}

fn filled(cache: &Cache, value: u64, blocks: u64) -> Slice {
    let mut buf = cache.pool().bufs().take(blocks as usize * BLOCK);
    buf.chunks_mut(8).for_each(|c| c.copy_from_slice(&value.to_le_bytes()));
    buf.freeze()
}

impl Load {
    async fn writer(self: Rc<Load>, number: u64, mut rng: Prng) {
        for i in 0..40 {
            let (at, value) = (number * OWN + rng.below(OWN), number << 16 | rng.below(1 << 16));
            let value = if rng.one_in(6) { 0 } else { value };
            self.model.borrow_mut()[at as usize].push(value);
            if value == 0 {
                self.cache.discard(self.flushed, Lba(at), Lba(at + 1)).await.expect("discard");
            } else {
                self.cache
                    .write(self.flushed, Lba(at), &filled(&self.cache, value, 1))
                    .await
                    .expect("write");
            }
            self.cache
                .flush_volume(self.flushed)
                .await
                .unwrap_or_else(|e| panic!("write {i}: {e}"));
            let may = &mut self.model.borrow_mut()[at as usize];
            may.drain(..may.len() - 1);
        }
    }

    async fn stream(self: Rc<Load>, number: u64, mut rng: Prng) {
        let from = WRITERS * OWN + number * WIDE;
        for pass in 0..8 {
            let data = filled(&self.cache, pass, 32);
            for at in (0..WIDE).step_by(32) {
                self.cache.write(self.flushed, Lba(from + at), &data).await.expect("write");
                if rng.one_in(8) {
                    self.cache.flush_volume(self.flushed).await.expect("flush");
                }
            }
        }
    }

    async fn direct(self: Rc<Load>, number: u64, mut rng: Prng) {
        for i in 0..100 {
            let at = number * OWN + rng.below(OWN);
            self.cache
                .write_direct(self.direct, Lba(at), &filled(&self.cache, i, 1), true)
                .await
                .expect("write");
            if rng.one_in(4) {
                self.cache.pool().commit().await.expect("commit");
            }
            self.cache
                .read(self.direct, Lba(number * OWN + rng.below(OWN)), 1)
                .await
                .expect("read");
        }
    }

    async fn collector(self: Rc<Load>, rt: Rt) {
        while self.busy.get() > 1 {
            self.cache.collect().await.expect("collect");
            // All of it may be in memory, and take no time.
            rt.sleep(Duration::from_millis(1)).await;
        }
    }

    fn start(self: &Rc<Load>, rt: &Rt, task: impl Future<Output = ()> + 'static) {
        self.busy.set(self.busy.get() + 1);
        let load = self.clone();
        rt.detach(async move {
            task.await;
            load.busy.set(load.busy.get() - 1);
        });
    }

    /// What is there now is what stays.
    async fn verify(&self, cache: &Cache) {
        for at in 0..WRITERS * OWN {
            let data = cache.read(self.flushed, Lba(at), 1).await.expect("read");
            let found = u64::from_le_bytes(data[0][..8].try_into().expect("8 bytes"));
            let may = &mut self.model.borrow_mut()[at as usize];
            assert!(may.contains(&found), "block {at}: {found}, may be {may:?}");
            *may = vec![found];
        }
    }

    fn start_all(self: &Rc<Load>, rt: &Rt, rng: &mut Prng) {
        self.start(rt, self.clone().collector(rt.clone()));
        for number in 0..WRITERS {
            self.start(rt, self.clone().writer(number, rng.fork()));
        }
        for number in 0..STREAMS {
            self.start(rt, self.clone().stream(number, rng.fork()));
        }
        for number in 0..DIRECT {
            self.start(rt, self.clone().direct(number, rng.fork()));
        }
    }
}

fn settings(rng: &mut Prng) -> Settings {
    Settings {
        max_lag: Duration::from_millis(rng.range(20, 2_000)),
        journal_interval: Duration::from_millis(rng.range(1, 1_000)),
        dirty_nodes: rng.range(16, 200),
        sequential_cutoff: 64 << 10,
        ..Settings::default()
    }
}

fn run(seed: u64) {
    let world = World::new(seed);
    let mut rng = Prng::new(seed);
    let (size, cache_size) = (128 * MIB, 64 * MIB);
    let file = world.add_disk(DiskModel::nvme(size));
    let files = vec![DeviceFile { path: "disk".into(), file, size_bytes: size }];
    let model = DiskModel::nvme(cache_size);
    let file =
        CacheFile { path: "cache".into(), file: world.add_disk(model), size_bytes: cache_size };
    let model = Rc::new(RefCell::new(vec![vec![0]; (WRITERS * OWN) as usize]));
    for cut in [true, false] {
        let rt = Rt::new(world.backend(), Order::Seeded(seed), 4096);
        let (r, files, file, model, mut rng) =
            (rt.clone(), files.clone(), file.clone(), model.clone(), rng.fork());
        rt.block_on(async move {
            if cut {
                create(&r, &files, &file).await;
            }
            let (pool, _) = Pool::open(&r, files, pool::Settings::default()).await.expect("open");
            let id = |name| pool.find_volume(name).expect("there").id;
            let (flushed, direct) = (id("flushed"), id("direct"));
            let cache =
                Cache::open(&r, &file, &pool, settings(&mut rng)).await.expect("open the cache");
            let load =
                Rc::new(Load { cache: cache.clone(), flushed, direct, model, busy: Cell::new(0) });
            load.verify(&cache).await;
            load.start_all(&r, &mut rng);
            if cut {
                return r.sleep(Duration::from_millis(rng.range(5, 100))).await;
            }
            let began = r.now();
            while load.busy.get() > 0 {
                r.sleep(Duration::from_millis(10)).await;
                let stands = r.now().since(began) > Duration::from_secs(TIME);
                assert!(
                    !stands,
                    "seed {seed}: {} tasks stand still: {:?}",
                    load.busy.get(),
                    cache.status()
                );
            }
            assert!(cache.status().bypassed > 0, "seed {seed}: no stream went past the cache");
            cache.close().await.expect("close");
            let cache =
                Cache::open(&r, &file, &pool, settings(&mut rng)).await.expect("open the cache");
            load.verify(&cache).await;
            cache.close().await.expect("close");
            pool.close().await.expect("close");
        })
        .expect("alive");
        if cut {
            world.power_cut();
        }
        rt.kill();
    }
}

async fn create(rt: &Rt, files: &[DeviceFile], file: &CacheFile) {
    let options = pool::CreateOptions { name: "ring".into(), copies: 1, group_bytes: Some(MIB) };
    pool::create(rt, files, &options, &[[1; 16], [2; 16]]).await.expect("create");
    let (pool, _) = Pool::open(rt, files.to_vec(), pool::Settings::default()).await.expect("open");
    let blocks = WRITERS * OWN + STREAMS * WIDE;
    pool.create_volume("flushed", blocks * BLOCK_U64, 4096).await.expect("volume");
    pool.create_volume("direct", DIRECT * OWN * BLOCK_U64, 4096).await.expect("volume");
    let options = CreateOptions { bucket_bytes: 64 << 10, journal_bytes: Some(MIB) };
    cache::create(rt, file, &pool, &options, [3; 16]).await.expect("create the cache");
    pool.close().await.expect("close");
}

#[test]
fn hundreds_of_flushed_writes_go_on_with_the_smallest_journal() {
    let from = std::env::var("RING_SEED").map_or(1, |s| s.parse().expect("a number"));
    let seeds = std::env::var("RING_SEEDS").map_or(12, |s| s.parse().expect("a number"));
    for seed in from..from + seeds {
        run(seed);
    }
}
