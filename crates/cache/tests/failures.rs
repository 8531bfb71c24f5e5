//! What was flushed is there after a flush of the cache device that failed, and after a kill, a restart, and a power cut at any moment of the new life.
//!
//! Clients each own some blocks of a volume that writes back, write numbers into them and flush. Of every block is known the value that was flushed last, and
//! those that were issued since: it may hold any of these, and no older one. The pool's disk never fails here.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use base::{BLOCK, Lba, Prng, VolumeId};
use cache::{Cache, CacheFile, CreateOptions, Settings};
use pool::{DeviceFile, Pool};
use rt::{Order, Rt};
use sim::{DiskModel, Fault, Loses, Times, World};

const MIB: u64 = 1 << 20;
const CLIENTS: u64 = 4;
const BLOCKS: u64 = 512;

/// What each block may hold: the first value is durable.
type Model = Rc<RefCell<Vec<Vec<u64>>>>;

struct Bench {
    world: World,
    pool: Vec<DeviceFile>,
    cache: CacheFile,
    model: Model,
    rng: Prng,
    seed: u64,
}

/// How a life ends.
#[derive(Clone, Copy, PartialEq, Debug)]
enum End {
    Kill,
    PowerCut,
}

impl Bench {
    fn new(seed: u64) -> Bench {
        let world = World::new(seed);
        let size = 32 * MIB;
        let file = world.add_disk(DiskModel::nvme(size));
        let pool = vec![DeviceFile { path: "disk".into(), file, size_bytes: size, emulate: None }];
        let bytes = 5 * MIB;
        let cache = CacheFile { path: "cache".into(), file: world.add_disk(DiskModel::nvme(bytes)), size_bytes: bytes };
        let rt = Rt::new(world.backend(), Order::Seeded(seed), 256);
        let (r, files, c) = (rt.clone(), pool.clone(), cache.clone());
        rt.block_on(async move {
            let options = pool::CreateOptions { name: "bench".into(), copies: 1, group_bytes: Some(MIB) };
            pool::create(&r, &files, &options, &[[1; 16], [2; 16]]).await.expect("create");
            let (pool, _) = Pool::open(&r, files, pool::Settings::default()).await.expect("open");
            pool.create_volume("v", BLOCKS * BLOCK as u64, 4096).await.expect("volume");
            let options = CreateOptions { bucket_bytes: 64 << 10, journal_bytes: Some(MIB) };
            cache::create(&r, &c, &pool, &options, [3; 16]).await.expect("create the cache");
            pool.close().await.expect("close");
        })
        .expect("alive");
        rt.kill();
        let model = Rc::new(RefCell::new(vec![vec![0]; BLOCKS as usize]));
        Bench { world, pool, cache, model, rng: Prng::new(seed), seed }
    }

    fn settings(&mut self) -> Settings {
        Settings {
            max_lag: Duration::from_millis(self.rng.range(2, 40)),
            journal_interval: Duration::from_millis(self.rng.range(1, 20)),
            resident_nodes: 16,
            dirty_nodes: 8,
            ..Settings::default()
        }
    }

    /// Opens pool and cache, runs clients, and ends after `lasts`, wherever that is. `fails`: a flush of the cache device does, after this time. Returns
    /// whether the cache was open by then, and has failed.
    fn live(&mut self, lasts: Duration, end: End, fails: Option<(Duration, Loses)>) -> (bool, bool) {
        let settings = self.settings();
        let (world, model, seed) = (self.world.clone(), self.model.clone(), self.seed);
        let (files, file, mut rng) = (self.pool.clone(), self.cache.clone(), self.rng.fork());
        let rt = Rt::new(self.world.backend(), Order::Seeded(self.world.history_hash()), 1024);
        let r = rt.clone();
        let seen = Rc::new(Cell::new((false, false)));
        let tell = seen.clone();
        rt.block_on(async move {
            let (begun, r2, disk) = (r.clone(), r.clone(), file.file);
            let open: Rc<RefCell<Option<Cache>>> = Rc::default();
            let opened = open.clone();
            begun.detach(async move {
                let (pool, _) = Pool::open(&r2, files, pool::Settings::default()).await.expect("open");
                let opening = Cache::open(&r2, &file, &pool, settings).await;
                let cache = opening.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                let volume = pool.find_volume("v").expect("there").id;
                verify(&cache, volume, &model, seed).await;
                *opened.borrow_mut() = Some(cache.clone());
                for client in 0..CLIENTS {
                    let (cache, model, rng) = (cache.clone(), model.clone(), rng.fork());
                    r2.detach(async move { run_client(cache, volume, client, rng, model).await });
                }
                // Small groups of changes make checkpoints.
                let c = cache.clone();
                r2.detach(async move { while c.collect().await.is_ok() {} });
            });
            match fails {
                None => r.sleep(lasts).await,
                Some((after, loses)) => {
                    r.sleep(after).await;
                    world.inject(disk, Fault::FailFlush { times: Times::Next(1), loses });
                    r.sleep(lasts.saturating_sub(after)).await;
                }
            }
            let cache = open.borrow();
            tell.set((cache.is_some(), cache.as_ref().is_some_and(Cache::has_failed)));
        })
        .expect("alive");
        if end == End::PowerCut {
            self.world.power_cut();
        }
        rt.kill();
        seen.get()
    }
}

async fn verify(cache: &Cache, volume: VolumeId, model: &Model, seed: u64) {
    for at in 0..BLOCKS {
        let data = cache.read(volume, Lba(at), 1).await;
        let data =
            data.unwrap_or_else(|e| panic!("seed {seed} block {at}: {e}; may be {:?}", model.borrow()[at as usize]));
        let value = u64::from_le_bytes(data[0][..8].try_into().expect("8 bytes"));
        let may = &mut model.borrow_mut()[at as usize];
        assert!(may.contains(&value), "seed {seed} block {at}: {value}, may be {may:?}");
        *may = vec![value];
    }
}

/// Works until something fails.
async fn run_client(cache: Cache, volume: VolumeId, client: u64, mut rng: Prng, model: Model) {
    let (from, to) = (client * BLOCKS / CLIENTS, (client + 1) * BLOCKS / CLIENTS);
    loop {
        if rng.one_in(3) {
            let issued: Vec<usize> = model.borrow()[from as usize..to as usize].iter().map(Vec::len).collect();
            if cache.flush_volume(volume).await.is_err() {
                return;
            }
            let mut model = model.borrow_mut();
            for (may, n) in model[from as usize..to as usize].iter_mut().zip(issued) {
                may.drain(..n - 1);
            }
            continue;
        }
        let len = rng.range(1, 9).min(to - from);
        let at = from + rng.below(to - from - len + 1);
        let mut buf = cache.pool().bufs().take(len as usize * BLOCK);
        for (i, block) in buf.chunks_mut(BLOCK).enumerate() {
            let value = rng.next_u64() | 1;
            model.borrow_mut()[at as usize + i].push(value);
            block.chunks_mut(8).for_each(|c| c.copy_from_slice(&value.to_le_bytes()));
        }
        if cache.write(volume, Lba(at), &buf.freeze()).await.is_err() {
            return;
        }
    }
}

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

#[test]
fn a_flush_that_failed_once_takes_nothing_that_was_flushed() {
    let mut failed = 0;
    for seed in 0..120 {
        let mut bench = Bench::new(seed);
        let mut rng = bench.rng.fork();
        bench.live(us(rng.range(2_000, 20_000)), End::PowerCut, None);
        let after = us(rng.range(50_000, 90_000));
        let loses = [Loses::Part, Loses::All][rng.below(2) as usize];
        let end = [End::PowerCut, End::Kill][usize::from(rng.one_in(3))];
        let (_, has_failed) = bench.live(after + us(rng.range(500, 60_000)), end, Some((after, loses)));
        failed += u32::from(has_failed);
        let (opened, _) = bench.live(us(400_000), End::PowerCut, None);
        assert!(opened, "seed {seed}");
        let (opened, _) = bench.live(us(400_000), End::PowerCut, None);
        assert!(opened, "seed {seed}");
    }
    assert!(failed > 60, "the cache failed in {failed} lives");
}

#[test]
fn a_kill_and_a_power_cut_at_any_moment_of_the_next_life_take_nothing() {
    let (mut early, mut late) = (0, 0);
    for seed in 1000..1300 {
        let mut bench = Bench::new(seed);
        let mut rng = bench.rng.fork();
        bench.live(us(rng.range(60_000, 100_000)), End::Kill, None);
        for _ in 0..2 {
            let (opened, _) = bench.live(us(rng.range(100, 60_000)), End::PowerCut, None);
            *(if opened { &mut late } else { &mut early }) += 1;
        }
        let (opened, _) = bench.live(us(400_000), End::Kill, None);
        assert!(opened, "seed {seed}");
    }
    assert!(early > 20 && late > 20, "{early} lives ended while the cache was being opened, {late} later");
}
