//! A cache device that fails while it holds what the pool lacks: volumes that do not write back go
//! on with the pool alone, and the next open of the cache finds nothing in it that is older than
//! what they have.

use std::rc::Rc;
use std::time::Duration;

use base::BLOCK_U64;
use cache::{Cache, Settings};
use model::cache::CacheState;
use offline::cache::check::PoolRelation;
use pool::{CacheMode, Pool};
use rt::{Order, Rt};
use sim::Fault;
use testkit::{CachedWorld, MIB, block, check_cache, check_pool, only_byte};
use volume::{Volume, Volumes};

const NEVER: Duration = Duration::from_secs(3600);
/// Blocks of each volume that are written.
const BLOCKS: u64 = 400;
/// And of "f".
const FAR: u64 = 1000;

/// Writes all blocks `at` for which `at % of == is`, no two neighbours one after the other.
async fn write(volume: &Volume, (is, of): (u64, u64), value: u8) {
    for i in 0..BLOCKS {
        let at = i * 151 % BLOCKS;
        if at % of == is {
            volume.write(at * BLOCK_U64, block(value)).await.expect("write");
        }
    }
}

/// Writes every `step`th block of a larger volume.
async fn write_far(volume: &Volume, step: u64, value: u8) {
    for i in 0..FAR {
        let at = i * 151 % FAR;
        if at % step == 0 {
            volume.write(at * BLOCK_U64, block(value)).await.expect("write");
        }
    }
}

/// What each block holds, all of it one byte; `None`: it cannot be read.
async fn holds(volume: &Volume, at: u64) -> Option<u8> {
    let data = volume.read(at * BLOCK_U64, BLOCK_U64).await.ok()?;
    Some(only_byte(&data).unwrap_or_else(|| panic!("block {at} is torn")))
}

/// What "b" holds in the end, block by block: see [`Bench::fail`]. The last fifth is of value
/// `last`.
fn newest(at: u64, last: u8) -> u8 {
    [3, 4, 5, 6, last][(at % 5) as usize]
}

struct Bench(CachedWorld);

impl Bench {
    /// "a" writes back and is dirty, all of it of value 1; "b" writes through, is all of value 2,
    /// and is in the cache too. So are "d" and "e", of which nothing is changed before the cache
    /// fails. Of "f", which writes back, every other block is dirty.
    fn new() -> Bench {
        let bench = Bench(CachedWorld::new(11, 96 * MIB, 32 * MIB));
        bench.boot(|rt, devices| async move {
            let pool = devices.create_pool(&rt, pool_settings()).await;
            devices.create_cache(&rt, &pool, [3; 16]).await;
            pool.close().await.expect("close");
        });
        bench.live(|rt, volumes| async move {
            let a = volumes.create("a", 8 * MIB, 4096).await.expect("create");
            let f = volumes.create("f", 8 * MIB, 4096).await.expect("create");
            write_far(&f, 1, 1).await;
            for name in ["b", "d", "e"] {
                let v = volumes.create(name, 8 * MIB, 4096).await.expect("create");
                volumes.set_mode(name, CacheMode::WriteThrough).await.expect("switch");
                for is in 0..10 {
                    // Not more at once than is kept.
                    write(&v, (is, 10), 2).await;
                    v.flush().await.expect("flush");
                    rt.sleep(Duration::from_millis(100)).await;
                }
            }
            // A switch writes back.
            write(&a, (0, 1), 1).await;
            write_far(&f, 2, 2).await;
            let cache = volumes.cache().expect("there");
            assert_eq!(cache.status().dirty_bytes, (BLOCKS + FAR / 2) * BLOCK_U64);
            assert_eq!(
                cache.status().clean_bytes,
                (3 * BLOCKS + FAR / 2) * BLOCK_U64,
                "all of them are in the cache too"
            );
            volumes.create("g", MIB, 4096).await.expect("create");
            close(&volumes).await;
        });
        bench
    }

    fn boot<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        f: impl FnOnce(Rt, CachedWorld) -> F,
    ) -> T {
        self.0.run(Order::Seeded(5), f)
    }

    fn live<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        f: impl FnOnce(Rt, Volumes) -> F + 'static,
    ) -> T {
        self.boot(|rt, devices| async move {
            let volumes = open(&rt, &devices).await;
            f(rt, volumes).await
        })
    }

    /// The cache fails while "a" is dirty. "b" has overwritten a fifth of its blocks by then,
    /// durably also in the journal, another fifth not; a third fifth after that, and a fourth in
    /// another mode.
    async fn fail(self: Rc<Bench>, volumes: Volumes) -> Volumes {
        let (a, b) = (volumes.open("a").expect("there"), volumes.open("b").expect("there"));
        let cache = volumes.cache().expect("there");
        for at in 0..BLOCKS {
            assert_eq!((holds(&a, at).await, holds(&b, at).await), (Some(1), Some(2)));
        }
        assert_eq!(cache.status().misses, 0, "all of it was in the cache");
        write(&b, (0, 5), 3).await;
        write(&a, (0, 2), 7).await;
        a.flush().await.expect("flush");
        write(&b, (1, 5), 4).await;
        write(&a, (1, 4), 8).await;
        self.0.world.inject(self.0.file.file, Fault::Dead);
        b.flush().await.expect("the pool goes on");
        assert_eq!(cache.status().state, CacheState::Failed);
        a.flush().await.expect_err("what it has written since is nowhere");
        write(&b, (2, 5), 5).await;
        b.flush().await.expect("flush");
        volumes
            .set_mode("b", CacheMode::WriteBack)
            .await
            .expect_err("there is nothing to write to");
        volumes.set_mode("b", CacheMode::None).await.expect("nobody asks the cache");
        volumes.set_mode("b", CacheMode::WriteAround).await.expect("nobody asks the cache");
        write(&b, (3, 5), 6).await;
        b.flush().await.expect("flush");
        for at in 0..BLOCKS {
            assert_eq!(holds(&b, at).await, Some(newest(at, 2)), "block {at}");
        }
        // What the index says of these was not looked up.
        let (d, e) = (volumes.open("d").expect("there"), volumes.open("e").expect("there"));
        write(&d, (0, 1), 7).await;
        d.flush().await.expect("flush");
        for at in 0..BLOCKS {
            assert_eq!(
                (holds(&d, at).await, holds(&e, at).await),
                (Some(7), Some(2)),
                "block {at}"
            );
        }
        d.discard(0, BLOCK_U64).await.expect("discard");
        volumes.resize("d", 9 * MIB).await.expect("resize");
        volumes.delete("e").await.expect("delete");
        // The pool does not have what "a" holds, and does not say otherwise.
        assert_eq!(holds(&a, 0).await, None);
        assert!(a.write(0, block(9)).await.is_err());
        let Err(e) = volumes.create("c", MIB, 4096).await else { panic!("it would write back") };
        assert!(e.context.contains("restart forebay") && volumes.open("c").is_none(), "{e}");
        // What cannot be forgotten of it counts no more.
        volumes.delete("g").await.expect("it is deleted");
        assert!(volumes.open("g").is_none());
        volumes
    }

    /// What the offline checks find: nothing. Returns whether clean keys count.
    fn check(&self) -> bool {
        self.boot(|rt, devices| async move {
            let report = check_pool(&rt, vec![devices.disk]).await;
            assert!(report.is_clean(), "{report:?}");
            let found = check_cache(&rt, &devices.file, &report.image).await;
            assert!(found.is_clean() && found.standing == PoolRelation::Attached, "{found:?}");
            !report.image.clean_void
        })
    }

    /// The device of the cache is there again: "b" has all that it has flushed, "a" too. Returns
    /// how many checkpoints the open made.
    fn verify(&self, last: u8) -> u64 {
        let checkpoints = self.live(move |rt, volumes| async move {
            let (a, b) = (volumes.open("a").expect("there"), volumes.open("b").expect("there"));
            assert_eq!(b.info().expect("there").cache_mode, CacheMode::WriteAround);
            volumes.set_mode("b", CacheMode::WriteThrough).await.expect("switch");
            let cache = volumes.cache().expect("there");
            let status = cache.status();
            assert_eq!((status.state, status.clean_bytes), (CacheState::Serving, 0));
            assert!(!cache.pool().cache_link().clean_void());
            for at in 0..BLOCKS {
                assert_eq!(holds(&b, at).await, Some(newest(at, last)), "block {at} of b");
                let value = holds(&a, at).await;
                let may = if at % 2 == 0 {
                    [7, 7]
                } else if at % 4 == 1 {
                    [1, 8]
                } else {
                    [1, 1]
                };
                assert!(may.map(Some).contains(&value), "block {at} of a: {value:?}");
            }
            let d = volumes.open("d").expect("there");
            assert_eq!((volumes.open("e").is_none(), d.size()), (true, 9 * MIB));
            for at in 1..BLOCKS {
                assert_eq!(holds(&d, at).await, Some(7), "block {at} of d");
            }
            assert_eq!(holds(&d, 0).await, Some(0), "it was discarded");
            let f = volumes.open("f").expect("there");
            for at in 0..FAR {
                assert_eq!(holds(&f, at).await, Some(2 - (at % 2) as u8), "block {at} of f");
            }
            cache.collect().await.expect("collected");
            assert_eq!(cache.status().gc.miscounted_buckets, 0);
            rt.sleep(Duration::from_secs(1)).await;
            close(&volumes).await;
            status.index.checkpoints
        });
        assert!(self.check(), "clean keys count again");
        // What was kept since is trusted, and is what the pool has.
        self.live(move |_, volumes| async move {
            let (cache, b) = (volumes.cache().expect("there"), volumes.open("b").expect("there"));
            assert!(cache.status().clean_bytes > 0);
            for at in 0..BLOCKS {
                assert_eq!(holds(&b, at).await, Some(newest(at, last)), "block {at} of b");
            }
            assert!(cache.status().hits > 0);
            volumes.detach().await.expect("detach");
            for at in 0..BLOCKS {
                assert_eq!(holds(&b, at).await, Some(newest(at, last)), "block {at} of b");
            }
            close(&volumes).await;
        });
        checkpoints
    }
}

fn pool_settings() -> pool::Settings {
    pool::Settings { commit_interval: NEVER, ..pool::Settings::default() }
}

async fn open(rt: &Rt, devices: &CachedWorld) -> Volumes {
    let pool = devices.open_pool(rt, pool_settings()).await;
    let cache = devices.open_cache(rt, &pool, settings()).await;
    Volumes::with_cache(&pool, Some(cache))
}

/// The same on a host that keeps what was answered.
async fn open_with_host(rt: &Rt, devices: &CachedWorld) -> Volumes {
    let ready = Pool::ready(rt, vec![devices.disk.clone()], pool_settings()).await.expect("ready");
    ready.recover(Rc::new(devices.world.host())).await.expect("recovered");
    // The cache says what the pool's first commit is to say.
    let cache = Cache::ready(rt, &devices.file, &ready, settings()).await.expect("ready");
    let (pool, _) = ready.open().await.expect("open");
    Volumes::with_cache(&pool, Some(cache.open().await.expect("open the cache")))
}

fn settings() -> Settings {
    Settings {
        max_lag: NEVER,
        journal_interval: NEVER,
        dirty_nodes: 8,
        resident_nodes: 2,
        promote: cache::Promote::First,
        ..Settings::default()
    }
}

async fn close(volumes: &Volumes) {
    if let Some(cache) = volumes.cache() {
        cache.close().await.expect("close the cache");
    }
    volumes.pool().close().await.expect("close");
}

#[test]
fn a_power_cut_after_a_cache_has_failed_brings_nothing_old_back() {
    let bench = Rc::new(Bench::new());
    let b = bench.clone();
    bench.live(|_, volumes| async move { drop(b.fail(volumes).await) });
    bench.0.world.power_cut();
    bench.0.world.revive(bench.0.file.file);
    assert!(!bench.check(), "clean keys do not count");
    assert!(bench.verify(2) > 2, "one in the middle, too");
}

#[test]
fn a_close_after_a_cache_has_failed_brings_nothing_old_back() {
    let bench = Rc::new(Bench::new());
    let b = bench.clone();
    bench.live(|_, volumes| async move {
        let volumes = b.fail(volumes).await;
        let b = volumes.open("b").expect("there");
        // The last commit is that of the close, when the cache is closed.
        write(&b, (4, 5), 9).await;
        let (pool, cache) = (volumes.pool().clone(), volumes.cache().expect("there"));
        cache.close().await.expect_err("it has failed");
        drop((volumes, b, cache));
        pool.close().await.expect("close");
    });
    bench.0.world.revive(bench.0.file.file);
    assert!(!bench.check(), "clean keys do not count");
    bench.verify(9);
}

/// The pool has committed nothing since the cache failed. The host has what was answered.
#[test]
fn a_kill_after_a_cache_has_failed_brings_nothing_old_back() {
    let bench = Rc::new(Bench::new());
    bench.boot(|rt, devices| async move {
        let volumes = open_with_host(&rt, &devices).await;
        let (a, b) = (volumes.open("a").expect("there"), volumes.open("b").expect("there"));
        write(&a, (0, 2), 7).await;
        devices.world.inject(devices.file.file, Fault::Dead);
        a.flush().await.expect_err("it is nowhere");
        assert_eq!(volumes.cache().expect("there").status().state, CacheState::Failed);
        let committed = volumes.pool().committed();
        write(&b, (0, 5), 3).await;
        assert_eq!(volumes.pool().committed(), committed);
    });
    bench.0.world.revive(bench.0.file.file);
    bench.boot(|rt, devices| async move {
        let volumes = open_with_host(&rt, &devices).await;
        let (a, b) = (volumes.open("a").expect("there"), volumes.open("b").expect("there"));
        for at in 0..BLOCKS {
            let value = if at % 5 == 0 { 3 } else { 2 };
            assert_eq!(holds(&b, at).await, Some(value), "block {at} of b");
            assert!([Some(1), Some(7)].contains(&holds(&a, at).await), "block {at} of a");
        }
        close(&volumes).await;
    });
}

/// A cache that holds nothing dirty is set aside under a write, which its device takes all the
/// same. The pool has that write, as it goes on alone.
#[test]
fn a_write_that_ends_after_its_cache_was_set_aside_is_in_the_pool() {
    let devices = CachedWorld::new(6, 96 * MIB, 16 * MIB);
    devices.run(Order::Seeded(6), |rt, devices| async move {
        let pool = devices.create_pool(&rt, pool_settings()).await;
        devices.create_cache(&rt, &pool, [3; 16]).await;
        let cache = devices.open_cache(&rt, &pool, Settings::default()).await;
        let volumes = Volumes::with_cache(&pool, Some(cache.clone()));
        let a = volumes.create("a", MIB, 4096).await.expect("create");
        devices.world.set_delay(devices.file.file, Duration::from_millis(50));
        let late = a.clone();
        let late = rt.spawn(async move { late.write(0, block(2)).await });
        rt.sleep(Duration::from_millis(10)).await;
        cache.leave();
        assert!(cache.is_aside());
        late.await.expect("alive").expect("the pool has it");
        assert_eq!(holds(&a, 0).await, Some(2));
    });
}

#[test]
fn an_open_that_drops_clean_keys_may_be_cut_short() {
    let bench = Rc::new(Bench::new());
    let b = bench.clone();
    bench.live(|_, volumes| async move { drop(b.fail(volumes).await) });
    bench.0.world.power_cut();
    bench.0.world.revive(bench.0.file.file);
    let files = [bench.0.disk.file, bench.0.file.file];
    let before = files.map(|f| bench.0.world.snapshot_disk(f));
    let (mut void, mut opened, mut at) = (0, 0, Duration::from_micros(150));
    while opened < 3 {
        files.iter().zip(&before).for_each(|(f, s)| bench.0.world.restore_disk(*f, s));
        // Twice: what the first one left is dropped by the second, as far as that gets.
        for _ in 0..2 {
            let done = bench.boot(|rt, devices| async move {
                let (r, done) = (rt.clone(), Rc::new(std::cell::Cell::new(false)));
                let d = done.clone();
                rt.detach(async move {
                    let _volumes = open(&r, &devices).await;
                    d.set(true);
                    std::future::pending::<()>().await;
                });
                rt.sleep(at).await;
                done.get()
            });
            bench.0.world.power_cut();
            opened += u32::from(done);
            void += u32::from(!bench.check());
        }
        bench.verify(2);
        at += Duration::from_micros(170);
    }
    assert!(void > 10, "{void} cuts before the pool took its word back");
}
