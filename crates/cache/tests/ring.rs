//! The smallest journal under the largest load, in simulation: hundreds of writers that flush each
//! write, streams, direct writes and discards, while garbage is collected again and again. Commits
//! of the pool wait for the journal: everything must come to rest. First the power is cut in the
//! middle of it, and what was flushed must be there.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::{BLOCK_U64, Lba, Prng, VolumeId};
use cache::{Cache, Settings};
use rt::{Order, Rt};
use testkit::{CachedWorld, MIB, Model, number, numbers};

const WRITERS: u64 = 400;
/// Blocks of a writer of its own; and of a stream.
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
    /// Of the writers' blocks.
    model: Model,
    busy: Cell<u64>,
}

impl Load {
    async fn writer(self: Rc<Load>, number: u64, mut rng: Prng) {
        for i in 0..40 {
            let (at, value) = (number * OWN + rng.below(OWN), number << 16 | rng.below(1 << 16));
            let value = if rng.one_in(6) { 0 } else { value };
            self.model.issue(at, value);
            let issued = self.model.issued((at, at + 1));
            if value == 0 {
                self.cache.discard(self.flushed, Lba(at), Lba(at + 1)).await.expect("discard");
            } else {
                self.cache.write(self.flushed, Lba(at), &numbers(&[value])).await.expect("write");
            }
            self.cache.flush().await.unwrap_or_else(|e| panic!("write {i}: {e}"));
            self.model.flushed(at, &issued);
        }
    }

    async fn stream(self: Rc<Load>, number: u64, mut rng: Prng) {
        let from = WRITERS * OWN + number * WIDE;
        for pass in 0..8 {
            let data = numbers(&[pass; 32]);
            for at in (0..WIDE).step_by(32) {
                self.cache.write(self.flushed, Lba(from + at), &data).await.expect("write");
                if rng.one_in(8) {
                    self.cache.flush().await.expect("flush");
                }
            }
        }
    }

    async fn direct(self: Rc<Load>, number: u64, mut rng: Prng) {
        for i in 0..100 {
            let at = number * OWN + rng.below(OWN);
            self.cache
                .write_direct(self.direct, Lba(at), &numbers(&[i]), true)
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
            let value = number(&data).unwrap_or_else(|| panic!("block {at} is a mixture"));
            self.model.found(at, value, "a writer's");
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
    let mut rng = Prng::new(seed);
    let devices = CachedWorld::new(seed, 128 * MIB, 64 * MIB);
    let model = Model::new(WRITERS * OWN);
    for cut in [true, false] {
        let (model, mut rng) = (model.clone(), rng.fork());
        devices.run(Order::Seeded(seed), |r, devices| async move {
            if cut {
                create(&r, &devices).await;
            }
            let pool = devices.open_pool(&r, pool::Settings::default()).await;
            let id = |name| pool.find_volume(name).expect("there").id;
            let (flushed, direct) = (id("flushed"), id("direct"));
            let cache = devices.open_cache(&r, &pool, settings(&mut rng)).await;
            let load =
                Rc::new(Load { cache: cache.clone(), flushed, direct, model, busy: Cell::new(0) });
            load.verify(&cache).await;
            load.start_all(&r, &mut rng);
            if cut {
                r.sleep(Duration::from_millis(rng.range(5, 100))).await;
                return devices.world.power_cut();
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
            cache.close().await.expect("close");
            let cache = devices.open_cache(&r, &pool, settings(&mut rng)).await;
            load.verify(&cache).await;
            cache.close().await.expect("close");
            pool.close().await.expect("close");
        });
    }
}

async fn create(rt: &Rt, devices: &CachedWorld) {
    let pool = devices.create_pool(rt, pool::Settings::default()).await;
    let blocks = WRITERS * OWN + STREAMS * WIDE;
    pool.create_volume("flushed", blocks * BLOCK_U64, 4096).await.expect("volume");
    pool.create_volume("direct", DIRECT * OWN * BLOCK_U64, 4096).await.expect("volume");
    devices.create_cache(rt, &pool, [3; 16]).await;
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
