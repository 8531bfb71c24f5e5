//! Cache modes under simulation: clients, while modes are switched and caches attached and
//! detached, and power cuts at any moment.
//!
//! Each block holds one number, repeated. A client owns a range of blocks, so it knows what a read
//! must give: exactly what it wrote last. After a power cut a block may hold what was durable, or
//! anything issued since, and from then on that one.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use base::{BLOCK, Prng, Slice};
use cache::{Cache, CacheFile, CreateOptions, Settings};
use pool::{CacheMode, DeviceFile, Pool};
use rt::{Order, Rt};
use sim::{DiskModel, World};
use volume::{Volume, Volumes};

const MIB: u64 = 1 << 20;
const CLIENTS: u64 = 3;
const BLOCKS: u64 = 960;
const MODES: [CacheMode; 4] =
    [CacheMode::WriteBack, CacheMode::WriteThrough, CacheMode::WriteAround, CacheMode::None];

/// What a block may hold: the first value is durable.
type Model = Rc<RefCell<Vec<Vec<u64>>>>;

/// What happened, over all seeds: a test of something that never happens is none.
#[derive(Default)]
struct Seen {
    switched: Cell<u64>,
    attached: Cell<u64>,
    detached: Cell<u64>,
    cut_while_changing: Cell<u64>,
    hits: Cell<u64>,
    promoted: Cell<u64>,
    bypassed: Cell<u64>,
    cut_with_staged: Cell<u64>,
}

fn add(to: &Cell<u64>, n: u64) {
    to.set(to.get() + n);
}

struct Bench {
    world: World,
    pool: Vec<DeviceFile>,
    cache: CacheFile,
    boots: u64,
    seed: u64,
    seen: Rc<Seen>,
}

impl Bench {
    fn new(seed: u64, seen: &Rc<Seen>) -> Bench {
        let world = World::new(seed);
        let size = 48 * MIB;
        let file = world.add_disk(DiskModel::nvme(size));
        let pool = vec![DeviceFile { path: "disk".into(), file, size_bytes: size }];
        let size = 4 * MIB;
        let cache = CacheFile {
            path: "cache".into(),
            file: world.add_disk(DiskModel::nvme(size)),
            size_bytes: size,
        };
        let rt = Rt::new(world.backend(), Order::Seeded(seed), 256);
        let (r, files) = (rt.clone(), pool.clone());
        rt.block_on(async move {
            let options =
                pool::CreateOptions { name: "bench".into(), copies: 1, group_bytes: Some(MIB) };
            pool::create(&r, &files, &options, &[[1; 16], [2; 16]]).await.expect("create");
            let (pool, _) = Pool::open(&r, files, pool::Settings::default()).await.expect("open");
            pool.create_volume("v", BLOCKS * BLOCK as u64, 4096).await.expect("volume");
            pool.close().await.expect("close");
        })
        .expect("alive");
        rt.kill();
        Bench { world, pool, cache, boots: 0, seed, seen: seen.clone() }
    }

    fn live(&mut self, model: &Model) {
        self.boots += 1;
        let mut rng = Prng::new((self.seed << 16) + self.boots);
        let rt = Rt::new(self.world.backend(), Order::Seeded(self.world.history_hash()), 1024);
        let (r, files, file, seen) =
            (rt.clone(), self.pool.clone(), self.cache.clone(), self.seen.clone());
        let (model, seed, boots) = (model.clone(), self.seed, self.boots);
        let work = Duration::from_micros(rng.range(500, 80_000));
        let changing = Rc::new(Cell::new(false));
        let busy = changing.clone();
        rt.block_on(async move {
            let every = Duration::from_millis(if rng.one_in(2) { rng.range(1, 40) } else { 1000 });
            let (pool, _) = Pool::open(
                &r,
                files,
                pool::Settings { commit_interval: every, ..Default::default() },
            )
            .await
            .expect("open");
            let cache = match pool.cache_uuid() {
                Some(_) => Some(
                    Cache::open(&r, &file, &pool, settings(&mut rng))
                        .await
                        .expect("open the cache"),
                ),
                None => None,
            };
            let volumes = Volumes::with_cache(&pool, cache);
            let volume = volumes.open("v").expect("there");
            for at in 0..BLOCKS {
                let value = read(&volume, at).await;
                let mut model = model.borrow_mut();
                let may = &mut model[at as usize];
                assert!(
                    may.contains(&value),
                    "seed {seed} boot {boots} block {at}: {value}, may be {may:?}"
                );
                *may = vec![value];
            }
            for client in 0..CLIENTS {
                let own = (client * BLOCKS / CLIENTS, (client + 1) * BLOCKS / CLIENTS);
                let who = format!("seed {seed} boot {boots} client {client}");
                r.detach(run_client(volume.clone(), who, own, rng.fork(), model.clone()));
            }
            let (admin, s) = (volumes.clone(), seen.clone());
            r.detach(run_admin(r.clone(), admin, file, rng.fork(), s, busy));
            r.sleep(work).await;
            if let Some(cache) = volumes.cache() {
                let status = cache.status();
                add(&seen.hits, status.hits);
                add(&seen.promoted, status.promoted);
                add(&seen.bypassed, status.bypassed);
                add(&seen.cut_with_staged, u64::from(status.staged_bytes > 0));
            }
        })
        .expect("alive");
        if changing.get() {
            add(&self.seen.cut_while_changing, 1);
        }
        self.world.power_cut();
        rt.kill();
        self.check();
    }

    /// Nothing of the pool is damaged or leaked, whatever was cut short.
    fn check(&self) {
        let rt = Rt::new(self.world.backend(), Order::Fifo, 1024);
        let (r, files, seed, boots) = (rt.clone(), self.pool.clone(), self.seed, self.boots);
        rt.block_on(async move {
            let options = pool::check::CheckOptions { data: true, ..Default::default() };
            let report = pool::check::check(&r, files, &options, &mut |_| {}).await.expect("check");
            assert!(report.is_clean(), "seed {seed} boot {boots}: {report:?}");
        })
        .expect("alive");
        rt.kill();
    }
}

fn settings(rng: &mut Prng) -> Settings {
    Settings {
        max_lag: Duration::from_millis(rng.range(1, 40)),
        journal_interval: Duration::from_millis(rng.range(1, 20)),
        resident_nodes: 16,
        dirty_nodes: rng.range(8, 24),
        sequential_cutoff: if rng.one_in(3) { 0 } else { 64 << 10 },
        promote: if rng.one_in(3) { cache::Promote::Second } else { cache::Promote::First },
        ..Settings::default()
    }
}

async fn read(volume: &Volume, at: u64) -> u64 {
    let data = volume.read(at * BLOCK as u64, BLOCK as u64).await.expect("read");
    let all: Vec<u8> = data.iter().flat_map(|s| s.to_vec()).collect();
    let value = u64::from_le_bytes(all[..8].try_into().expect("8 bytes"));
    assert!(all.chunks(8).all(|c| c == value.to_le_bytes()), "block {at} is a mixture");
    value
}

fn filled(values: &[u64]) -> Slice {
    let pool = base::BufPool::new(0);
    let mut buf = pool.take(values.len() * BLOCK);
    for (block, value) in buf.chunks_mut(BLOCK).zip(values) {
        block.chunks_mut(8).for_each(|c| c.copy_from_slice(&value.to_le_bytes()));
    }
    buf.freeze()
}

async fn write(volume: &Volume, (at, len): (u64, u64), rng: &mut Prng, model: &Model) {
    let values: Vec<u64> = (0..len).map(|_| rng.next_u64() | 1).collect();
    for (may, value) in model.borrow_mut()[at as usize..(at + len) as usize].iter_mut().zip(&values)
    {
        may.push(*value);
    }
    volume.write(at * BLOCK as u64, filled(&values)).await.expect("write");
}

async fn run_client(
    volume: Volume,
    who: String,
    (from, to): (u64, u64),
    mut rng: Prng,
    model: Model,
) {
    loop {
        // Mostly few blocks, so that they are read, kept, and overwritten again.
        let hot = from + rng.below(24);
        let at = if rng.one_in(2) { hot } else { from + rng.below(to - from) };
        let len = rng.range(1, 6).min(to - at);
        let range = at as usize..(at + len) as usize;
        match rng.below(11) {
            0..3 => write(&volume, (at, len), &mut rng, &model).await,
            10 => {
                // A stream; in part over what is there.
                let (step, mut at) = (rng.range(16, 24), if rng.one_in(2) { from } else { at });
                for _ in 0..rng.range(2, 8) {
                    let len = step.min(to - at);
                    if len > 0 {
                        write(&volume, (at, len), &mut rng, &model).await;
                    }
                    at += len;
                }
            }
            3 => {
                model.borrow_mut()[range].iter_mut().for_each(|may| may.push(0));
                volume.discard(at * BLOCK as u64, len * BLOCK as u64).await.expect("discard");
            }
            4 => {
                let issued: Vec<usize> =
                    model.borrow()[from as usize..to as usize].iter().map(Vec::len).collect();
                volume.flush().await.expect("flush");
                for (may, issued) in
                    model.borrow_mut()[from as usize..to as usize].iter_mut().zip(issued)
                {
                    may.drain(..issued - 1);
                }
            }
            _ => {
                for at in at..at + len {
                    let value = read(&volume, at).await;
                    let expected = *model.borrow()[at as usize].last().expect("never empty");
                    assert_eq!(value, expected, "{who}: block {at}");
                }
            }
        }
    }
}

async fn run_admin(
    rt: Rt,
    volumes: Volumes,
    file: CacheFile,
    mut rng: Prng,
    seen: Rc<Seen>,
    changing: Rc<Cell<bool>>,
) {
    loop {
        rt.sleep(Duration::from_micros(rng.range(10, 15_000))).await;
        changing.set(true);
        match (volumes.cache(), rng.below(4)) {
            (None, 0..2) => {
                let uuid = std::array::from_fn(|_| rng.next_u64() as u8 | 1);
                let options = CreateOptions { bucket_bytes: 64 << 10, journal_bytes: Some(MIB) };
                cache::create(&rt, &file, volumes.pool(), &options, uuid)
                    .await
                    .expect("create the cache");
                let cache = Cache::open(&rt, &file, volumes.pool(), settings(&mut rng))
                    .await
                    .expect("open it");
                volumes.attach(cache).await.expect("attach");
                add(&seen.attached, 1);
            }
            (Some(_), 0) => {
                volumes.detach().await.expect("detach");
                add(&seen.detached, 1);
            }
            _ => {
                let mode = MODES[rng.below(4) as usize];
                volumes.set_mode("v", mode).await.expect("set the mode");
                assert_eq!(
                    volumes.open("v").expect("there").info().expect("there").cache_mode,
                    mode
                );
                add(&seen.switched, 1);
            }
        }
        changing.set(false);
    }
}

#[test]
fn modes_are_switched_under_load() {
    let seen = Rc::new(Seen::default());
    for seed in 0..30 {
        let mut bench = Bench::new(seed, &seen);
        let model: Model = Rc::new(RefCell::new(vec![vec![0]; BLOCKS as usize]));
        for _ in 0..8 {
            bench.live(&model);
        }
    }
    for (what, n) in [
        ("modes switched", &seen.switched),
        ("attached", &seen.attached),
        ("detached", &seen.detached),
        ("power cuts during a change", &seen.cut_while_changing),
        ("hits", &seen.hits),
        ("promoted", &seen.promoted),
        ("blocks past the cache", &seen.bypassed),
        ("power cuts with staged blocks", &seen.cut_with_staged),
    ] {
        println!("{what}: {}", n.get());
        assert!(n.get() > 10, "{what}: only {}", n.get());
    }
}
