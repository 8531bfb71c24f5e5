//! Stalls that are injected one by one, in simulation: the ledger names what kept slow requests,
//! and is silent where nothing is wrong.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::{BLOCK, BLOCK_U64, BufPool, Instant};
use cache::{Cache, CreateOptions};
use ledger::explain::{Question, explain};
use ledger::{Cause, Reason, RequestClass};
use pool::{CacheMode, Pool};
use rt::sync::oneshot;
use rt::{Order, Rt};
use sim::Fault;
use testkit::{CachedWorld, MIB};
use volume::{Volume, Volumes};

const VOLUME_BYTES: u64 = 64 * MIB;
const SLOW: Duration = Duration::from_millis(10);
/// Blocks that are written in no order, so that each has a key of its own.
const SCATTERED: u64 = 16_000;
/// Of the slow requests so many are named rightly, in a hundred.
const NAMED: u64 = 99;

struct Bench {
    rt: Rt,
    devices: CachedWorld,
    pool: Pool,
    cache: Cache,
    volumes: Volumes,
    volume: Volume,
}

/// What clients ask for.
#[derive(Clone, Copy)]
enum Ask {
    Read,
    Write,
    /// Of one block only.
    Same,
    /// Of blocks in no order.
    Scattered,
    Flush,
    /// Of every second block, in no order.
    Discard,
}

impl Bench {
    /// Blocks from `from` on, one after another, at most `depth` requests at a time.
    async fn run(&self, ask: Ask, from: u64, requests: u64, depth: u64) {
        self.run_on(&self.volume, ask, from, requests, depth).await;
    }

    async fn run_on(&self, volume: &Volume, ask: Ask, from: u64, requests: u64, depth: u64) {
        let next = Rc::new(Cell::new(0));
        let mut clients = Vec::new();
        for _ in 0..depth {
            let (rt, volume, next) = (self.rt.clone(), volume.clone(), next.clone());
            clients.push(self.rt.spawn(async move {
                while next.get() < requests {
                    let n = next.replace(next.get() + 1);
                    let block = match ask {
                        Ask::Same => from,
                        Ask::Discard => n * 7_919 % 100_003 * 2,
                        Ask::Scattered => (from + n) * 7919 % SCATTERED,
                        _ => from + n,
                    };
                    one(&rt, &volume, ask, block % (volume.size() / BLOCK_U64)).await;
                }
            }));
        }
        for client in clients {
            assert!(client.await.is_some());
        }
    }

    /// The next minute of the ledger.
    async fn next_minute(&self) -> Instant {
        self.rt.sleep(Duration::from_secs(61)).await;
        self.rt.now()
    }

    /// Requests since `since` that were slow, by the longest part of each.
    fn slow(&self, since: Instant) -> Vec<(Cause, String, u64)> {
        self.slower(since, SLOW)
    }

    fn slower(&self, since: Instant, than: Duration) -> Vec<(Cause, String, u64)> {
        let slower_than_ns = than.as_nanos() as u64;
        let question = Question { volume: None, kind: None, since, slower_than_ns };
        let kinds = explain(self.rt.ledger(), &question, self.rt.moment()).kinds;
        let causes = kinds.into_iter().flat_map(|k| k.causes);
        causes.map(|c| (c.cause, c.text, c.count)).collect()
    }

    /// At least so many were slow since then, and nearly all of them for this reason.
    fn named(&self, since: Instant, least: u64, is: impl Fn(&Cause) -> bool, says: &str) {
        let slow = self.slow(since);
        let all: u64 = slow.iter().map(|s| s.2).sum();
        let right: u64 = slow.iter().filter(|s| is(&s.0) && s.1.contains(says)).map(|s| s.2).sum();
        assert!(all >= least, "{all} were slow, not {least}");
        assert!(right * 100 >= all * NAMED, "{right} of {all} say {says:?}: {slow:#?}");
    }

    fn set_delay(&self, of_cache: bool, millis: u64) {
        let file = if of_cache { self.devices.file.file } else { self.devices.disk.file };
        self.devices.world.set_delay(file, Duration::from_millis(millis));
    }

    async fn flush_all(&self) {
        self.cache.publish_all().await.expect("publish");
        self.pool.commit().await.expect("commit");
    }
}

async fn one(rt: &Rt, volume: &Volume, ask: Ask, block: u64) {
    let kind = match ask {
        Ask::Read => RequestClass::Read,
        Ask::Flush => RequestClass::Flush,
        Ask::Discard => RequestClass::Discard,
        _ => RequestClass::Write,
    };
    let at = block * BLOCK_U64;
    let request = rt.request(kind, at, BLOCK_U64);
    let (done, ended) = oneshot();
    let volume = volume.clone();
    rt.detach_for(request, |request| async move {
        let outcome = match ask {
            Ask::Read => volume.read(at, BLOCK_U64).await.map(drop),
            Ask::Flush => volume.flush().await,
            Ask::Discard => volume.discard(at, BLOCK_U64).await,
            Ask::Write | Ask::Same | Ask::Scattered => {
                let mut data = BufPool::new(0).take(BLOCK);
                data.fill(block as u8);
                volume.write(at, data.freeze()).await
            }
        };
        outcome.expect("the request");
        drop(request);
        done.send(());
    });
    ended.await;
}

/// A healthy system; then `body`; then again a healthy one, of which nothing is said.
fn bench<F: Future<Output = ()> + 'static>(
    cache_bytes: u64,
    tune: impl FnOnce(&mut pool::Settings, &mut cache::Settings),
    body: impl FnOnce(Rc<Bench>) -> F + 'static,
) {
    let (mut pool, mut cache) = (pool::Settings::default(), cache::Settings::default());
    tune(&mut pool, &mut cache);
    CachedWorld::new(1, 512 * MIB, cache_bytes).run(Order::Seeded(1), |rt, devices| async move {
        let pool = devices.create_pool(&rt, pool).await;
        let options = CreateOptions { bucket_bytes: 64 << 10, journal_bytes: Some(MIB) };
        cache::create(&rt, &devices.file, &pool, &options, [3; 16]).await.expect("create");
        let cache = devices.open_cache(&rt, &pool, cache).await;
        let volumes = Volumes::with_cache(&pool, Some(cache.clone()));
        let volume = volumes.create("a", VOLUME_BYTES, 512).await.expect("create");
        let bench = Rc::new(Bench { rt, devices, pool, cache, volumes, volume });
        bench.next_minute().await;
        body(bench.clone()).await;
        bench.set_delay(true, 0);
        bench.set_delay(false, 0);
        bench.flush_all().await;
        let since = bench.next_minute().await;
        bench.run(Ask::Write, 0, 200, 4).await;
        bench.run(Ask::Read, 0, 200, 4).await;
        bench.run(Ask::Flush, 0, 10, 1).await;
        assert_eq!(bench.slow(since), []);
        bench.cache.close().await.expect("close the cache");
        bench.pool.close().await.expect("close");
    });
}

fn any(_: &mut pool::Settings, _: &mut cache::Settings) {}

#[test]
fn a_slow_cache_device() {
    bench(32 * MIB, any, |b| async move {
        // The first write after a rest waits for a look at the superblocks.
        b.run(Ask::Write, 0, 8, 8).await;
        let since = b.rt.now();
        b.set_delay(true, 20);
        b.run(Ask::Write, 8, 200, 8).await;
        b.named(since, 200, |c| c.stage == Reason::Transfer, "cache device cache");
    });
}

#[test]
fn a_slow_pool_device() {
    bench(32 * MIB, any, |b| async move {
        b.volumes.set_mode("a", CacheMode::None).await.expect("mode");
        b.run(Ask::Write, 0, 400, 8).await;
        let since = b.next_minute().await;
        b.set_delay(false, 20);
        b.run(Ask::Read, 0, 400, 8).await;
        b.named(since, 400, |c| c.stage == Reason::Transfer, "pool device disk");
    });
}

#[test]
fn a_device_that_pauses() {
    bench(32 * MIB, any, |b| async move {
        b.volumes.set_mode("a", CacheMode::None).await.expect("mode");
        b.run(Ask::Write, 0, 400, 8).await;
        let since = b.next_minute().await;
        for pause in 0..10 {
            b.devices.world.inject(b.devices.disk.file, Fault::Stuck(Duration::from_millis(80)));
            b.run(Ask::Read, pause * 40, 40, 8).await;
        }
        b.named(since, 80, |c| c.what.reason == Reason::Transfer, "pool device disk");
    });
}

#[test]
fn a_slow_commit() {
    bench(32 * MIB, any, |b| async move {
        b.volumes.set_mode("a", CacheMode::None).await.expect("mode");
        let since = b.next_minute().await;
        for i in 0..20 {
            b.run(Ask::Write, i * 10, 10, 1).await;
            b.set_delay(false, 20);
            b.run(Ask::Flush, 0, 4, 4).await;
            b.set_delay(false, 0);
        }
        b.named(since, 80, |c| c.stage == Reason::Commit, "pool device disk");
    });
}

/// The first writes after a rest wait until the superblocks were looked at. All that did, and most
/// writes did, name the device that was looked at.
async fn writes_behind_a_slow_look(b: &Rc<Bench>, of_cache: bool, says: &str) {
    let since = b.next_minute().await;
    for i in 0..20 {
        b.rt.sleep(Duration::from_secs(5)).await;
        b.set_delay(of_cache, 30);
        let writer = b.clone();
        let written = b.rt.spawn(async move { writer.run(Ask::Write, i * 4, 4, 4).await });
        b.rt.sleep(Duration::from_millis(5)).await;
        b.set_delay(of_cache, 0);
        written.await.expect("written");
    }
    let slow = b.slow(since);
    let looks = || slow.iter().filter(|s| s.0.stage == Reason::Look);
    assert!(looks().all(|s| s.1.contains(says)), "{slow:#?}");
    assert!(looks().map(|s| s.2).sum::<u64>() >= 40, "{slow:#?}");
}

#[test]
fn a_slow_look_at_the_pool() {
    bench(32 * MIB, any, |b| async move {
        b.volumes.set_mode("a", CacheMode::None).await.expect("mode");
        writes_behind_a_slow_look(&b, false, "pool device disk").await;
    });
}

#[test]
fn a_slow_look_at_the_cache() {
    bench(32 * MIB, any, |b| async move {
        writes_behind_a_slow_look(&b, true, "cache device cache").await;
    });
}

#[test]
fn a_slow_journal() {
    bench(32 * MIB, any, |b| async move {
        let since = b.rt.now();
        for i in 0..20 {
            b.run(Ask::Write, i * 10, 10, 1).await;
            b.set_delay(true, 20);
            b.run(Ask::Flush, 0, 4, 4).await;
            b.set_delay(true, 0);
        }
        b.named(since, 80, |c| c.stage == Reason::Journal, "cache device cache");
    });
}

#[test]
fn a_full_cache() {
    bench(8 * MIB, any, |b| async move {
        b.set_delay(false, 50);
        b.run(Ask::Write, 0, 1_200, 16).await;
        let since = b.next_minute().await;
        b.run(Ask::Write, 0, 3_000, 16).await;
        let full = [Reason::Throttle, Reason::Buckets];
        b.named(since, 100, |c| full.contains(&c.stage), "");
    });
}

/// The pool is fast, and writers wait all the same.
#[test]
fn a_full_cache_and_write_back_that_may_carry_little() {
    let little = |_: &mut pool::Settings, c: &mut cache::Settings| {
        (c.writeback.min, c.writeback.idle_rate, c.writeback.max) = (MIB, MIB, MIB);
    };
    bench(8 * MIB, little, |b| async move {
        b.run(Ask::Write, 0, 1_200, 16).await;
        let since = b.next_minute().await;
        b.run(Ask::Write, 0, 3_000, 16).await;
        let full = [Reason::Throttle, Reason::Buckets];
        let rate = Reason::WritebackRate;
        b.named(
            since,
            100,
            |c| full.contains(&c.stage) && c.what.reason == rate,
            "the highest rate",
        );
        let question = Question { volume: None, kind: None, since, slower_than_ns: 10_000_000 };
        let verdict = explain(b.rt.ledger(), &question, b.rt.moment()).kinds.remove(0).verdict;
        assert!(verdict.contains("What helps: raise cache.writeback_rate_max"), "{verdict}");
    });
}

/// Its writes are in line with commits, as clients wait for them.
#[test]
fn write_back_that_hurries() {
    bench(8 * MIB, any, |b| async move {
        let other = b.volumes.create("b", VOLUME_BYTES, 512).await.expect("create");
        b.volumes.set_mode("b", CacheMode::None).await.expect("mode");
        b.run_on(&other, Ask::Write, 0, 1_000, 16).await;
        b.pool.commit().await.expect("commit");
        b.set_delay(false, 20);
        let since = b.next_minute().await;
        // Bytes that commits and write-back wrote.
        let moved = |b: &Bench| {
            let queue = b.pool.status().pool.devices.remove(0).queue.expect("it is there");
            (queue.io.commit.write.bytes, queue.io.write_back.write.bytes)
        };
        let before = moved(&b);
        let (writer, ended) = (b.clone(), Rc::new(Cell::new(false)));
        let until = ended.clone();
        let writes = b.rt.spawn(async move {
            let mut at = 0;
            while !until.get() {
                writer.run(Ask::Scattered, at, 100, 16).await;
                at += 100;
            }
        });
        // Until writers have to wait.
        b.rt.sleep(Duration::from_secs(5)).await;
        b.run_on(&other, Ask::Read, 0, 400, 2).await;
        ended.set(true);
        assert!(writes.await.is_some());
        let kind = Some(RequestClass::Read);
        let question = Question { volume: None, kind, since, slower_than_ns: 10_000_000 };
        let reads = explain(b.rt.ledger(), &question, b.rt.moment()).kinds.remove(0);
        let beside = reads.causes.iter().filter(|c| c.cause.what.holder.name() == "write-back");
        let beside: u64 = beside.map(|c| c.count).sum();
        assert!(reads.slow >= 400 && beside * 2 >= reads.slow, "{:#?}", reads.causes);
        // Others were beside a commit, or a read.
        assert!(reads.verdict.contains(", beside write-back at "), "{}", reads.verdict);
        assert!(reads.verdict.contains("cache.writeback_rate_max"), "{}", reads.verdict);
        // Its bytes are those of write-back, too.
        let (commits, passes) = moved(&b);
        let (commits, passes) = (commits - before.0, passes - before.1);
        assert!(passes > 2 * commits, "{passes} by passes, {commits} by commits");
    });
}

#[test]
fn a_full_journal() {
    let rare = |_: &mut pool::Settings, c: &mut cache::Settings| c.dirty_nodes = 1 << 20;
    bench(192 * MIB, rare, |b| async move {
        let wide = b.volumes.create("wide", 1 << 40, 4096).await.expect("create");
        // A checkpoint takes long.
        b.set_delay(true, 100);
        let since = b.rt.now();
        // Discards take no room for data, and their nodes take little of so large a cache.
        b.run_on(&wide, Ask::Discard, 0, 100_000, 256).await;
        b.named(since, 100, |c| c.stage == Reason::Ring, "the journal's ring is full");
    });
}

#[test]
fn too_little_room_for_nodes() {
    let slow = |_: &mut pool::Settings, c: &mut cache::Settings| {
        (c.writeback.min, c.writeback.max, c.writeback.idle_rate) = (16 << 10, 16 << 10, 16 << 10);
        (c.dirty_target_percent, c.dirty_nodes) = (1, 8);
    };
    bench(8 * MIB, slow, |b| async move {
        let wide = b.volumes.create("wide", 1 << 40, 4096).await.expect("create");
        // Until writers have to wait for passes.
        b.run(Ask::Scattered, 0, 3_000, 64).await;
        let since = b.next_minute().await;
        b.run_on(&wide, Ask::Discard, 0, 60_000, 128).await;
        // A checkpoint waits for the same room, and so do requests that wait for that.
        let slow = b.slower(since, Duration::from_secs(1));
        let of = |reason| -> u64 { slow.iter().filter(|s| s.0.stage == reason).map(|s| s.2).sum() };
        let room = of(Reason::NodeRoom);
        let all = room + of(Reason::Ring) + of(Reason::ChangedNodes);
        assert!(room >= 20 && all >= 100, "{slow:#?}");
        assert_eq!(all, slow.iter().map(|s| s.2).sum::<u64>(), "{slow:#?}");
    });
}

#[test]
fn too_many_changed_nodes() {
    let small = |_: &mut pool::Settings, c: &mut cache::Settings| c.dirty_nodes = 8;
    bench(192 * MIB, small, |b| async move {
        b.run(Ask::Scattered, 0, SCATTERED, 16).await;
        b.flush_all().await;
        let since = b.next_minute().await;
        b.set_delay(true, 8);
        b.run(Ask::Scattered, 0, 4_000, 16).await;
        let nodes = |c: &Cause| c.stage == Reason::ChangedNodes;
        b.named(since, 100, nodes, "many nodes of the cache's index have changed");
    });
}

#[test]
fn an_index_that_is_not_in_memory() {
    let small = |_: &mut pool::Settings, c: &mut cache::Settings| {
        (c.resident_nodes, c.dirty_nodes) = (8, 16);
    };
    bench(192 * MIB, small, |b| async move {
        b.run(Ask::Scattered, 0, SCATTERED, 1).await;
        b.flush_all().await;
        let since = b.next_minute().await;
        b.set_delay(true, 20);
        for i in 0..200 {
            one(&b.rt, &b.volume, Ask::Read, i * 4391 % 16_000).await;
        }
        let index = |c: &Cause| c.stage == Reason::Index;
        b.named(since, 200, |c| index(c) || c.stage == Reason::Transfer, "cache device cache");
        let of_index: u64 = b.slow(since).iter().filter(|s| index(&s.0)).map(|s| s.2).sum();
        assert!(of_index >= 20, "{of_index}: {:#?}", b.slow(since));
    });
}

#[test]
fn a_collection() {
    let small = |_: &mut pool::Settings, c: &mut cache::Settings| {
        (c.resident_nodes, c.dirty_nodes) = (8, 16);
        (c.gc_slice, c.gc_min_nodes) = (Duration::from_millis(100), 1_000);
    };
    bench(192 * MIB, small, |b| async move {
        b.run(Ask::Scattered, 0, SCATTERED, 1).await;
        b.flush_all().await;
        let since = b.next_minute().await;
        b.set_delay(true, 20);
        let (cache, ended) = (b.cache.clone(), Rc::new(Cell::new(false)));
        let until = ended.clone();
        let collections = b.rt.spawn(async move {
            let mut passes = 0;
            while !until.get() {
                cache.collect().await.expect("collect");
                passes += 1;
            }
            passes
        });
        for i in 0..200 {
            // Requests that begin at one moment are in no order that means something.
            b.rt.sleep(Duration::from_millis(3)).await;
            one(&b.rt, &b.volume, Ask::Read, i * 4391 % 16_000).await;
        }
        ended.set(true);
        let passes = collections.await.expect("it ends");
        assert!(passes >= 2, "{passes} passes");
        // A pass ends with a checkpoint.
        let slow = b.slow(since);
        let of = |name: &str| -> u64 {
            slow.iter().filter(|s| s.0.what.holder.name() == name).map(|s| s.2).sum()
        };
        assert!(of("collection") >= 190, "{slow:#?}");
        // The first read comes before the first one of a collection.
        let (flush, alone) = (of("a device flush"), of(""));
        assert_eq!(of("collection") + of("commit") + flush + alone, 200, "{slow:#?}");
        assert!(alone <= 1, "{slow:#?}");
    });
}

#[test]
fn trees_that_are_not_in_memory() {
    let small = |p: &mut pool::Settings, _: &mut cache::Settings| p.cached_nodes = 8;
    bench(32 * MIB, small, |b| async move {
        b.volumes.set_mode("a", CacheMode::None).await.expect("mode");
        for i in 0..2_000 {
            one(&b.rt, &b.volume, Ask::Write, i * 7919 % 16_000).await;
        }
        b.flush_all().await;
        let since = b.next_minute().await;
        b.set_delay(false, 20);
        for i in 0..200 {
            one(&b.rt, &b.volume, Ask::Read, i * 7919 % 16_000).await;
        }
        let tree = |c: &Cause| c.stage == Reason::Tree;
        b.named(since, 100, |c| tree(c) || c.stage == Reason::Transfer, "pool device disk");
        let of_trees: u64 = b.slow(since).iter().filter(|s| tree(&s.0)).map(|s| s.2).sum();
        assert!(of_trees >= 15, "{of_trees}");
    });
}

#[test]
fn writes_of_one_block() {
    bench(32 * MIB, any, |b| async move {
        let since = b.rt.now();
        b.set_delay(true, 15);
        b.run(Ask::Same, 0, 400, 16).await;
        b.named(since, 390, |c| c.stage == Reason::RangeLock, "the same blocks");
    });
}

#[test]
fn a_change_of_the_mode() {
    bench(32 * MIB, any, |b| async move {
        b.volumes.set_mode("a", CacheMode::WriteThrough).await.expect("mode");
        let since = b.next_minute().await;
        // The change waits for a write under way; what comes then waits for the change.
        b.set_delay(false, 50);
        let (writer, changer) = (b.clone(), b.clone());
        let write = b.rt.spawn(async move { writer.run(Ask::Same, 0, 1, 1).await });
        b.rt.sleep(Duration::from_millis(1)).await;
        let change = b.rt.spawn(async move {
            changer.volumes.set_mode("a", CacheMode::WriteBack).await.expect("mode");
        });
        b.rt.sleep(Duration::from_millis(1)).await;
        // Of blocks that were never written: no device is asked.
        b.run(Ask::Read, 10_000, 200, 200).await;
        assert!(change.await.is_some() && write.await.is_some());
        b.named(since, 200, |c| c.stage == Reason::ModeChange, "change of the cache's mode");
    });
}
