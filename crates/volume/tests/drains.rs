//! Detaches, changes of modes and of sizes, and deletions, while clients write and the pool is
//! slow: clients that have nothing to do with it hardly notice, and those that have wait for no
//! more than a small pass.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::{BLOCK, Prng};
use cache::{Cache, Settings};
use pool::{CacheMode, Pool};
use rt::{Order, Rt};
use sim::DiskModel;
use testkit::{CachedWorld, MIB, block, disk};
use volume::{GiveUpOutcome, Volume, Volumes};

const BLOCKS: u64 = 64 * MIB / BLOCK as u64;
/// What a client rests before its next request.
const REST: Duration = Duration::from_micros(500);
/// What a small pass takes on this disk. A pass of what the clients make dirty during another one
/// takes several times as long.
const SOON: Duration = Duration::from_secs(1);
/// What it takes to hold requests for a moment, in which those that are under way end.
const MOMENT: Duration = Duration::from_millis(100);

#[derive(Clone)]
struct Bench {
    rt: Rt,
    pool: Pool,
    cache: Cache,
    volumes: Volumes,
    over: Rc<Cell<bool>>,
}

impl Bench {
    /// Passes begin soon, and carry little at a time.
    fn give_passes_time(&self) {
        let mut slow = self.cache.current_settings();
        slow.writeback.max = 256 << 10;
        slow.writeback.min = 256 << 10;
        slow.max_lag = Duration::from_millis(200);
        self.cache.set(slow).expect("set");
    }

    fn open(&self, name: &str) -> Volume {
        self.volumes.open(name).expect("there")
    }

    /// Writes blocks here and there, one after the other with a rest between them. Returns the
    /// longest and the number of them.
    async fn writer(self, name: &'static str, seed: u64, rest: Duration) -> (Duration, u64) {
        let (volume, r) = (self.open(name), &mut Prng::new(seed));
        let (mut longest, mut n) = (Duration::ZERO, 0);
        while !self.over.get() {
            let since = self.rt.now();
            let at = r.below(BLOCKS) * BLOCK as u64;
            volume.write(at, block(1 + r.below(200) as u8)).await.expect("write");
            longest = longest.max(self.rt.now().since(since));
            n += 1;
            self.rt.sleep(rest).await;
        }
        (longest, n)
    }

    /// Reads what was never written, so that no device is asked. Returns the longest.
    async fn reader(self, name: &'static str) -> Duration {
        let (volume, mut longest) = (self.open(name), Duration::ZERO);
        while !self.over.get() {
            let since = self.rt.now();
            volume.read(80 * MIB, BLOCK as u64).await.expect("read");
            longest = longest.max(self.rt.now().since(since));
            self.rt.sleep(Duration::from_millis(2)).await;
        }
        longest
    }

    /// Makes much dirty.
    async fn fill(&self, name: &str, seed: u64) {
        let (volume, r) = (self.open(name), &mut Prng::new(seed));
        for _ in 0..12_000 {
            let at = r.below(BLOCKS) * BLOCK as u64;
            volume.write(at, block(1 + r.below(200) as u8)).await.expect("write");
        }
    }
}

/// Volumes `a` and `b` write back, `through` does not. Nothing is written back before it has to be.
fn bench<F: Future<Output = ()> + 'static>(seed: u64, body: impl FnOnce(Bench) -> F + 'static) {
    let mut devices = CachedWorld::new(seed, 8 * MIB, 2112 * MIB);
    // The pool's disk takes less than the clients write.
    devices.disk = disk(&devices.world, "slow", DiskModel::rotating(512 * MIB));
    devices.run(Order::Seeded(seed), |rt, devices| async move {
        let pool = devices.create_pool(&rt, pool::Settings::default()).await;
        devices.create_cache(&rt, &pool, [3; 16]).await;
        let lazy = Settings {
            max_lag: Duration::from_secs(3600),
            dirty_target_percent: 90,
            ..Settings::default()
        };
        let cache = devices.open_cache(&rt, &pool, lazy).await;
        let volumes = Volumes::with_cache(&pool, Some(cache.clone()));
        for name in ["a", "b", "through"] {
            volumes.create(name, 96 * MIB + 512, 512).await.expect("create");
        }
        volumes.set_mode("through", CacheMode::WriteThrough).await.expect("mode");
        let over = Rc::new(Cell::new(false));
        let b = Bench { rt: rt.clone(), pool: pool.clone(), cache, volumes, over };
        b.fill("a", seed).await;
        body(b.clone()).await;
        drop(b);
        pool.close().await.expect("close");
    });
}

/// How long the longest write of a volume that writes back took, and the longest read of it and of
/// one that does not, while `change` was made.
async fn meanwhile<F: Future<Output = ()>>(b: &Bench, change: F) -> [Duration; 3] {
    let writers: Vec<_> =
        (0..4).map(|i| b.rt.spawn(b.clone().writer("a", 100 + i, REST))).collect();
    let reads = ["a", "through"].map(|name| b.rt.spawn(b.clone().reader(name)));
    // Its disk is busy. It is there so that there is something to commit.
    let direct = b.rt.spawn(b.clone().writer("through", 7, 20 * REST));
    b.rt.sleep(Duration::from_secs(1)).await;
    change.await;
    b.over.set(true);
    let (mut longest, mut n) = (Duration::ZERO, 0);
    for writer in writers {
        let (one, of) = writer.await.expect("it ends");
        (longest, n) = (longest.max(one), n + of);
    }
    assert!(n > 1000 && direct.await.expect("it ends").1 > 10, "there was hardly any load: {n}");
    let [of_a, of_through] = reads;
    [longest, of_a.await.expect("it ends"), of_through.await.expect("it ends")]
}

fn all_soon(what: &str, [write, reads @ ..]: [Duration; 3]) {
    println!("{what}: {write:?} {reads:?}");
    assert!(write < SOON, "{what}: {write:?}");
    assert!(reads.iter().all(|&took| took < MOMENT), "{what}: {reads:?}");
}

#[test]
fn a_detach_holds_nothing_up() {
    for seed in 0..4 {
        bench(seed, move |b| async move {
            let (rt, took) = (b.rt.clone(), Cell::new(Duration::ZERO));
            let longest = meanwhile(&b, async {
                let since = rt.now();
                b.volumes.detach().await.expect("detach");
                took.set(rt.now().since(since));
            })
            .await;
            println!("detach: {took:?}");
            assert!(took.get() > 2 * SOON, "there was little to write back");
            assert!(b.volumes.cache().is_none());
            all_soon("detach", longest);
        });
    }
}

#[test]
fn a_change_of_a_mode_holds_nothing_up() {
    for (seed, mode) in
        [CacheMode::WriteThrough, CacheMode::WriteAround, CacheMode::None].into_iter().enumerate()
    {
        bench(seed as u64, move |b| async move {
            let longest = meanwhile(&b, async {
                b.volumes.set_mode("a", mode).await.expect("mode");
            })
            .await;
            assert_eq!(b.pool.find_volume("a").expect("there").cache_mode, mode);
            all_soon(mode.word(), longest);
        });
    }
}

/// The volume that changes is hardly written to, and others are.
#[test]
fn a_change_of_a_quiet_volume_holds_nothing_up() {
    bench(5, |b| async move {
        let longest = meanwhile(&b, async {
            let quiet = b.rt.spawn(b.clone().writer("b", 3, 40 * REST));
            b.volumes.set_mode("b", CacheMode::WriteAround).await.expect("mode");
            b.over.set(true);
            let (longest, n) = quiet.await.expect("it ends");
            assert!(longest < SOON && n > 10, "{longest:?} of {n}");
        })
        .await;
        all_soon("quiet", longest);
    });
}

/// A drain can be given up at any time before the change goes through, and then no request waits.
#[test]
fn a_drain_is_given_up() {
    for after in [0, 8000, 14_000, 19_000, 20_500] {
        bench(6, move |b| async move {
            let longest = meanwhile(&b, async {
                let all = b.volumes.clone();
                let detach = b.rt.spawn(async move { all.detach().await });
                b.rt.sleep(Duration::from_millis(after)).await;
                let given_up = b.volumes.give_up(None).expect("asked");
                let outcome = detach.await.expect("it ends");
                assert_eq!(given_up == GiveUpOutcome::Yes, outcome.is_err(), "{given_up:?}");
                assert_eq!(b.volumes.cache().is_some(), outcome.is_err());
            })
            .await;
            all_soon("given up", longest);
        });
    }
}

/// A volume grows, whose last block is written to, while a pass of others is under way that has
/// time.
#[test]
fn a_resize_locks_nothing_while_it_waits_for_a_pass() {
    bench(7, |b| async move {
        b.give_passes_time();
        let (last, mut longest) = (b.open("through"), Duration::ZERO);
        b.rt.sleep(Duration::from_millis(300)).await;
        let all = b.volumes.clone();
        let resize = b.rt.spawn(async move { all.resize("through", 112 * MIB).await });
        for _ in 0..100 {
            let since = b.rt.now();
            last.write(96 * MIB, block(3).slice(0, 512)).await.expect("write");
            longest = longest.max(b.rt.now().since(since));
        }
        println!("resize: {longest:?}");
        assert!(longest < SOON, "{longest:?}");
        let since = b.rt.now();
        resize.await.expect("it ends").expect("resize");
        assert!(b.rt.now().since(since) < Duration::from_secs(5), "the pass has hurried");
        assert_eq!(last.size(), 112 * MIB);
    });
}

/// A deletion does not wait for a pass that has time.
#[test]
fn a_deletion_hurries_the_pass() {
    bench(8, |b| async move {
        b.give_passes_time();
        b.rt.sleep(Duration::from_millis(300)).await;
        let since = b.rt.now();
        b.volumes.delete("through").await.expect("delete");
        let took = b.rt.now().since(since);
        println!("delete: {took:?}");
        assert!(took < Duration::from_secs(5), "{took:?}");
    });
}
