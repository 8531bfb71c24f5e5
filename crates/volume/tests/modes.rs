//! Cache modes under simulation: clients, while modes are switched and caches attached and
//! detached, and power cuts at any moment.
//!
//! Each block holds one number, repeated. A client owns a range of blocks, so it knows what a read
//! must give: exactly what it wrote last. After a power cut a block may hold what was durable, or
//! anything issued since, and from then on that one.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::{BLOCK, Prng};
use cache::Settings;
use pool::CacheMode;
use rt::{Order, Rt};
use testkit::{CachedWorld, MIB, Model, check_pool, number, numbers};
use volume::{Volume, Volumes};

const CLIENTS: u64 = 3;
const BLOCKS: u64 = 960;
const MODES: [CacheMode; 4] =
    [CacheMode::WriteBack, CacheMode::WriteThrough, CacheMode::WriteAround, CacheMode::None];

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
}

fn add(to: &Cell<u64>, n: u64) {
    to.set(to.get() + n);
}

struct Bench {
    devices: CachedWorld,
    boots: u64,
    seed: u64,
    seen: Rc<Seen>,
}

impl Bench {
    fn new(seed: u64, seen: &Rc<Seen>) -> Bench {
        let devices = CachedWorld::new(seed, 48 * MIB, 4 * MIB);
        devices.run(Order::Seeded(seed), |rt, devices| async move {
            let pool = devices.create_pool(&rt, pool::Settings::default()).await;
            pool.create_volume("v", BLOCKS * BLOCK as u64, 4096).await.expect("volume");
            pool.close().await.expect("close");
        });
        Bench { devices, boots: 0, seed, seen: seen.clone() }
    }

    fn live(&mut self, model: &Model) {
        self.boots += 1;
        let mut rng = Prng::new((self.seed << 16) + self.boots);
        let order = Order::Seeded(self.devices.world.history_hash());
        let (model, seed, boots, seen) = (model.clone(), self.seed, self.boots, self.seen.clone());
        let work = Duration::from_micros(rng.range(500, 80_000));
        let changing = Rc::new(Cell::new(false));
        let busy = changing.clone();
        self.devices.run(order, |r, devices| async move {
            let every = Duration::from_millis(if rng.one_in(2) { rng.range(1, 40) } else { 1000 });
            let commits = pool::Settings { commit_interval: every, ..Default::default() };
            let pool = devices.open_pool(&r, commits).await;
            let cache = match pool.cache_link().cache_uuid() {
                Some(_) => Some(devices.open_cache(&r, &pool, settings(&mut rng)).await),
                None => None,
            };
            let volumes = Volumes::with_cache(&pool, cache);
            let volume = volumes.open("v").expect("there");
            for at in 0..BLOCKS {
                let value = read(&volume, at).await;
                model.found(at, value, format_args!("seed {seed} boot {boots}"));
            }
            for client in 0..CLIENTS {
                let own = (client * BLOCKS / CLIENTS, (client + 1) * BLOCKS / CLIENTS);
                let who = format!("seed {seed} boot {boots} client {client}");
                r.detach(run_client(volume.clone(), who, own, rng.fork(), model.clone()));
            }
            let (admin, s) = (volumes.clone(), seen.clone());
            r.detach(run_admin(r.clone(), admin, devices.clone(), rng.fork(), s, busy));
            r.sleep(work).await;
            if let Some(cache) = volumes.cache() {
                let status = cache.status();
                add(&seen.hits, status.hits);
                add(&seen.promoted, status.promoted);
                add(&seen.bypassed, status.bypassed);
            }
            devices.world.power_cut();
        });
        if changing.get() {
            add(&self.seen.cut_while_changing, 1);
        }
        self.check();
    }

    /// Nothing of the pool is damaged or leaked, whatever was cut short.
    fn check(&self) {
        let (seed, boots) = (self.seed, self.boots);
        self.devices.run(Order::Fifo, |rt, devices| async move {
            let report = check_pool(&rt, vec![devices.disk]).await;
            assert!(report.is_clean(), "seed {seed} boot {boots}: {report:?}");
        });
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
    number(&data).unwrap_or_else(|| panic!("block {at} is a mixture"))
}

async fn write(volume: &Volume, (at, len): (u64, u64), rng: &mut Prng, model: &Model) {
    let values: Vec<u64> = (0..len).map(|_| rng.next_u64() | 1).collect();
    for (at, value) in (at..).zip(&values) {
        model.issue(at, *value);
    }
    volume.write(at * BLOCK as u64, numbers(&values)).await.expect("write");
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
                (at..at + len).for_each(|at| model.issue(at, 0));
                volume.discard(at * BLOCK as u64, len * BLOCK as u64).await.expect("discard");
            }
            4 => {
                let issued = model.issued((from, to));
                volume.flush().await.expect("flush");
                model.flushed(from, &issued);
            }
            _ => {
                for at in at..at + len {
                    let value = read(&volume, at).await;
                    assert_eq!(value, model.last(at), "{who}: block {at}");
                }
            }
        }
    }
}

async fn run_admin(
    rt: Rt,
    volumes: Volumes,
    devices: CachedWorld,
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
                devices.create_cache(&rt, volumes.pool(), uuid).await;
                let cache = devices.open_cache(&rt, volumes.pool(), settings(&mut rng)).await;
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
        let model = Model::new(BLOCKS);
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
    ] {
        println!("{what}: {}", n.get());
        assert!(n.get() > 10, "{what}: only {}", n.get());
    }
}
