//! The cache over a pool under simulation: concurrent clients, power cuts at any moment, and what
//! must be there afterwards.
//!
//! Each block holds one number, repeated. A client owns a range of blocks and knows of each the
//! last value that was flushed and all that were issued since; after a power cut a block may hold
//! any of these, and from then on that one. Blocks of one client are never written by another, so
//! what a block may hold is exact.
//!
//! Clients write long streams too, over and between what is in the cache.
//!
//! After every power cut the pool is looked at alone too: the offline check must find nothing,
//! neither in it, no leaked block above all, nor in the cache; and what it holds of a client's
//! range must be what that client had written at one moment, not before the moment found last time:
//! a whole cut, never a mixture.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use base::{BLOCK, Lba, Prng, VolumeId};
use cache::{Cache, Settings};
use offline::cache::check::PoolRelation;
use rt::Order;
use testkit::{CachedWorld, MIB, Model, check_cache, check_pool, number, numbers};

const CLIENTS: u64 = 4;

#[derive(Clone, Copy, Debug)]
struct Shape {
    cache_bytes: u64,
    blocks: u64,
    max_lag: Duration,
}

/// Of each client: what its blocks held at each moment, as a hash; and which of these the pool was
/// seen to hold last.
type History = Rc<RefCell<Vec<(Vec<u64>, usize)>>>;

/// What happened: a test of something that never happens is none.
#[derive(Default)]
struct Seen {
    /// Lives that ended with several cuts.
    cut_with_cuts: Cell<u64>,
    /// Blocks that had not arrived.
    dropped: Cell<u64>,
    passes: Cell<u64>,
}

fn add(to: &Cell<u64>, n: u64) {
    to.set(to.get() + n);
}

fn hash(values: impl Iterator<Item = u64>) -> u64 {
    values.fold(7, |h, v| base::prng::mix64(h ^ v))
}

fn own(client: u64, blocks: u64) -> (u64, u64) {
    (client * blocks / CLIENTS, (client + 1) * blocks / CLIENTS)
}

/// Notes what a client's blocks hold when everything issued so far is there.
fn note(history: &History, client: u64, model: &Model, (from, to): (u64, u64)) {
    let now = hash((from..to).map(|at| model.last(at)));
    history.borrow_mut()[client as usize].0.push(now);
}

struct Bench {
    devices: CachedWorld,
    shape: Shape,
    boots: u64,
    seed: u64,
    seen: Rc<Seen>,
}

fn settings(shape: &Shape, rng: &mut Prng) -> Settings {
    Settings {
        max_lag: shape.max_lag,
        journal_interval: Duration::from_millis(rng.range(1, 50)),
        resident_nodes: 16,
        dirty_nodes: rng.range(8, 40),
        sequential_cutoff: [0, 32 << 10, 64 << 10, 256 << 10][rng.below(4) as usize],
        seal_blocks: [0, 1, 8, 64][rng.below(4) as usize],
        pressure_percent: [0, 10, 33, 100][rng.below(4) as usize],
        ..Settings::default()
    }
}

impl Bench {
    fn new(seed: u64, shape: Shape, seen: &Rc<Seen>) -> Bench {
        let devices = CachedWorld::new(seed, 48 * MIB, shape.cache_bytes);
        devices.run(Order::Seeded(seed), |rt, devices| async move {
            let pool = devices.create_pool(&rt, pool::Settings::default()).await;
            pool.create_volume("v", shape.blocks * BLOCK as u64, 4096).await.expect("volume");
            devices.create_cache(&rt, &pool, [3; 16]).await;
            pool.close().await.expect("close");
        });
        Bench { devices, shape, boots: 0, seed, seen: seen.clone() }
    }

    /// One life: what is there is checked, clients work, and then it ends cleanly or by a power cut
    /// in the middle of everything.
    fn live(&mut self, model: &Model, history: &History, clean: bool) {
        self.boots += 1;
        let mut rng = Prng::new(self.seed << 16 | self.boots);
        let order = Order::Seeded(self.devices.world.history_hash());
        let (model, seed, boots, past) = (model.clone(), self.seed, self.boots, history.clone());
        let (shape, seen) = (self.shape, self.seen.clone());
        let settings = settings(&shape, &mut rng);
        let work = Duration::from_micros(rng.range(200, 60_000));
        self.devices.run(order, |r, devices| async move {
            let pool = devices.open_pool(&r, pool::Settings::default()).await;
            let cache = devices.open_cache(&r, &pool, settings).await;
            let volume = pool.find_volume("v").expect("there").id;
            let found = cache.status();
            add(&seen.dropped, found.replay.dropped_blocks);
            for at in 0..shape.blocks {
                let value = read(&cache, volume, at).await;
                model.found(at, value, format_args!("seed {seed} boot {boots}"));
            }
            let mut clients = Vec::new();
            for client in 0..CLIENTS {
                note(&past, client, &model, own(client, shape.blocks));
                let who = (client, own(client, shape.blocks));
                let client =
                    run_client(cache.clone(), volume, who, rng.fork(), model.clone(), past.clone());
                clients.push(r.spawn(client));
            }
            let count = |cache: &Cache| {
                let status = cache.status();
                add(&seen.passes, status.writeback.passes);
                add(&seen.cut_with_cuts, u64::from(status.writeback.sealed_cuts > 1));
            };
            if clean {
                for c in clients {
                    c.await.expect("alive");
                }
                count(&cache);
                cache.close().await.expect("close");
                pool.close().await.expect("close");
                model.flushed(0, &model.issued((0, shape.blocks)));
            } else {
                r.sleep(work).await;
                count(&cache);
                devices.world.power_cut();
            }
        });
        self.look_at_the_pool(history);
    }

    fn look_at_the_pool(&self, history: &History) {
        let (shape, past, seed) = (self.shape, history.clone(), self.seed);
        self.devices.run(Order::Fifo, |rt, devices| async move {
            let report = check_pool(&rt, vec![devices.disk.clone()]).await;
            assert!(report.is_clean(), "seed {seed}: {report:?}");
            let found = check_cache(&rt, &devices.file, &report.image).await;
            assert_eq!(found.standing, PoolRelation::Attached);
            assert!(found.is_clean(), "seed {seed}: {found:?}");
            let pool = devices.open_pool(&rt, pool::Settings::default()).await;
            let volume = pool.find_volume("v").expect("there").id;
            for client in 0..CLIENTS {
                let (from, to) = own(client, shape.blocks);
                let mut values = Vec::new();
                for at in from..to {
                    let data = pool.read(volume, Lba(at), 1).await.expect("read");
                    values.push(number(&data).unwrap_or_else(|| panic!("block {at} is a mixture")));
                }
                let held = hash(values.into_iter());
                let mut past = past.borrow_mut();
                let (moments, seen) = &mut past[client as usize];
                let found = moments[*seen..].iter().rposition(|m| *m == held).map(|i| i + *seen);
                let Some(found) = found else {
                    panic!("seed {seed}: the pool holds no moment of client {client}")
                };
                *seen = found;
            }
            pool.close().await.expect("close");
        });
    }
}

async fn read(cache: &Cache, volume: VolumeId, at: u64) -> u64 {
    let data = cache.read(volume, Lba(at), 1).await.expect("read");
    number(&data).unwrap_or_else(|| panic!("block {at} is a mixture"))
}

/// Its number, and the blocks that it owns.
type Client = (u64, (u64, u64));

async fn write(
    cache: &Cache,
    volume: VolumeId,
    (client, own): Client,
    (at, len): (u64, u64),
    rng: &mut Prng,
    (model, history): (&Model, &History),
) {
    let values: Vec<u64> = (0..len).map(|_| rng.next_u64() | 1).collect();
    for (at, value) in (at..).zip(&values) {
        model.issue(at, *value);
    }
    note(history, client, model, own);
    cache.write(volume, Lba(at), &numbers(&values)).await.expect("write");
}

async fn flush(cache: &Cache, (_, (from, to)): Client, model: &Model) {
    let issued = model.issued((from, to));
    cache.flush().await.expect("flush");
    // What was issued before is durable: older values may not come back.
    model.flushed(from, &issued);
}

/// Goes over the same blocks in order, twice or so; between its requests come small writes there,
/// and flushes.
async fn stream(
    cache: &Cache,
    volume: VolumeId,
    who: Client,
    rng: &mut Prng,
    about: (&Model, &History),
) {
    let (_, (from, to)) = who;
    let step = rng.range(16, 40);
    let all = (step * rng.range(2, 8)).min(to - from);
    let begin = from + rng.below(to - from - all + 1);
    for _ in 0..rng.range(1, 3) {
        let mut at = begin;
        while at < begin + all {
            let len = step.min(begin + all - at);
            write(cache, volume, who, (at, len), rng, about).await;
            at += len;
            if rng.one_in(8) {
                flush(cache, who, about.0).await;
            }
        }
        for _ in 0..rng.below(4) {
            let at = begin + rng.below(all);
            let len = rng.range(1, 3).min(begin + all - at);
            write(cache, volume, who, (at, len), rng, about).await;
            if rng.one_in(3) {
                flush(cache, who, about.0).await;
            }
        }
    }
}

async fn run_client(
    cache: Cache,
    volume: VolumeId,
    who: Client,
    mut rng: Prng,
    model: Model,
    history: History,
) {
    let (client, (from, to)) = who;
    for _ in 0..120 {
        let len = if rng.one_in(4) { rng.range(1, 60) } else { rng.range(1, 4) }.min(to - from);
        let at = from + rng.below(to - from - len + 1);
        if rng.one_in(40) {
            cache.collect().await.expect("collect");
            assert_eq!(cache.status().gc.miscounted_buckets, 0);
        }
        match rng.below(12) {
            0..=4 => write(&cache, volume, who, (at, len), &mut rng, (&model, &history)).await,
            10..=11 => stream(&cache, volume, who, &mut rng, (&model, &history)).await,
            5 => {
                (at..at + len).for_each(|at| model.issue(at, 0));
                note(&history, client, &model, (from, to));
                cache.discard(volume, Lba(at), Lba(at + len)).await.expect("discard");
            }
            6..=7 => flush(&cache, who, &model).await,
            _ => {
                for i in at..at + len {
                    let value = read(&cache, volume, i).await;
                    assert_eq!(value, model.last(i), "block {i}");
                }
            }
        }
    }
}

fn run(seeds: std::ops::Range<u64>, shape: Shape) {
    let seen = Rc::new(Seen::default());
    for seed in seeds {
        let model = Model::new(shape.blocks);
        let mut bench = Bench::new(seed, shape, &seen);
        let history: History = Rc::new(RefCell::new(vec![(Vec::new(), 0); CLIENTS as usize]));
        for client in 0..CLIENTS {
            note(&history, client, &model, own(client, shape.blocks));
        }
        for life in 0..6 {
            bench.live(&model, &history, life % 3 == 2);
        }
    }
    println!(
        "passes: {}, lives that ended with several cuts: {}",
        seen.passes.get(),
        seen.cut_with_cuts.get()
    );
    assert!(
        seen.cut_with_cuts.get() > 2 || shape.max_lag > Duration::from_secs(60),
        "{}",
        seen.cut_with_cuts.get()
    );
    assert!(
        seen.passes.get() > 5 || shape.max_lag > Duration::from_secs(60),
        "only {} passes",
        seen.passes.get()
    );
    println!("blocks that had not arrived: {}", seen.dropped.get());
    assert!(seen.dropped.get() > 0, "all that was written had arrived");
}

#[test]
fn what_was_flushed_survives_power_cuts() {
    run(0..8, Shape { cache_bytes: 16 * MIB, blocks: 512, max_lag: Duration::from_secs(3600) });
}

#[test]
fn passes_publish_whole_cuts() {
    run(100..112, Shape { cache_bytes: 6 * MIB, blocks: 1024, max_lag: Duration::from_millis(20) });
}

#[test]
fn a_cache_smaller_than_what_is_written() {
    run(
        200..206,
        Shape { cache_bytes: 4 * MIB, blocks: 4096, max_lag: Duration::from_millis(200) },
    );
}
