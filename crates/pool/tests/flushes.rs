//! Flushes that fail and lose what they covered, as `fsync` does on Linux: once, and every later
//! one succeeds. And what a kill leaves in volatile caches.
//!
//! After each of these the next start has everything that was flushed before; a block is as it was
//! flushed or as it was written later, never an error; and the offline check finds nothing.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use base::{BLOCK, BLOCK_U64, Duration, Lba, StorageError, VolumeId};
use pool::check::{CheckOptions, Severity};
use pool::{CreateOptions, DeviceFile, Pool, Settings};
use rt::{Op, Order, Rt};
use sim::{DiskModel, Fault, Loses, Times, World};

#[allow(dead_code, reason = "shared with tests that use more of it")]
mod common;

use common::Rules;

const MIB: u64 = 1 << 20;
const DISK: u64 = 32 * MIB;
const BLOCKS: u64 = 64;

/// How a boot ends.
#[derive(Clone, Copy, PartialEq, Debug)]
enum End {
    Kill,
    Power,
}

struct Bench {
    world: World,
    files: Vec<DeviceFile>,
    rules: Rules,
    volume: VolumeId,
}

impl Bench {
    /// A pool of `copies` copies on `disks` disks, with a volume of which all blocks hold `1`,
    /// flushed.
    fn new(seed: u64, disks: usize, copies: u8) -> Bench {
        let world = World::new(seed);
        let disk = |i| {
            let file = world.add_disk(DiskModel::nvme(DISK));
            DeviceFile { path: format!("disk{i}"), file, size_bytes: DISK }
        };
        let files: Vec<_> = (0..disks).map(disk).collect();
        let mut bench = Bench { world, files, rules: Rules::default(), volume: VolumeId(0) };
        bench.volume = bench
            .run(|rt, files| async move {
                let options =
                    CreateOptions { name: "bench".into(), copies, group_bytes: Some(MIB) };
                let ids = [[1; 16], [2; 16], [3; 16], [4; 16]];
                pool::create(&rt, &files, &options, &ids[..=files.len()]).await.expect("create");
                let pool = open(&rt, files).await.expect("open");
                let id = pool.create_volume("v", BLOCKS * BLOCK_U64, 4096).await.expect("volume");
                put(&pool, id, 0, BLOCKS, 1).await.expect("write");
                pool.close().await.expect("close");
                id
            })
            .expect("alive");
        bench
    }

    /// `None`: the power was cut.
    fn run<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        body: impl FnOnce(Rt, Vec<DeviceFile>) -> F,
    ) -> Option<T> {
        let rt = Rt::new(
            self.rules.over(self.world.backend()),
            Order::Seeded(self.world.history_hash()),
            256,
        );
        let out = rt.block_on(body(rt.clone(), self.files.clone()));
        rt.kill();
        out
    }

    /// The boot has ended: by a kill, as the runtime is gone, or by a cut of power now.
    fn end(&self, end: End) {
        match end {
            End::Kill => drop(self.world.backend()),
            End::Power => self.world.power_cut(),
        }
    }

    /// The pool opens, and every block is one of `values`; then the offline check, of the data too,
    /// finds nothing.
    fn expect(&self, values: &'static [u8]) {
        let id = self.volume;
        self.run(|rt, files| async move {
            let pool = open(&rt, files).await.expect("open");
            for lba in 0..BLOCKS {
                let data =
                    pool.read(id, Lba(lba), 1).await.unwrap_or_else(|e| panic!("block {lba}: {e}"));
                let first = data[0][0];
                assert!(
                    values.contains(&first) && data[0].iter().all(|&b| b == first),
                    "block {lba} is {first}"
                );
            }
            pool.close().await.expect("close");
        })
        .expect("alive");
        let report = self.run(|rt, files| async move {
            let options = CheckOptions { data: true, ..CheckOptions::default() };
            pool::check::check(&rt, files, &options, &mut |_| ()).await.expect("a pool")
        });
        let problems = report.expect("alive").problems;
        // A superblock that a crash has torn on one device stands there until its slot is written
        // again.
        assert!(problems.iter().all(|p| p.severity != Severity::Error), "{problems:?}");
    }
}

async fn open(rt: &Rt, files: Vec<DeviceFile>) -> Result<Pool, StorageError> {
    let settings = Settings { commit_interval: Duration::from_millis(50), ..Settings::default() };
    Ok(Pool::open(rt, files, settings).await?.0)
}

async fn put(
    pool: &Pool,
    id: VolumeId,
    lba: u64,
    blocks: u64,
    value: u8,
) -> Result<(), StorageError> {
    let mut data = pool.bufs().take(blocks as usize * BLOCK);
    data.fill(value);
    pool.write(id, Lba(lba), &data.freeze()).await
}

/// FLUSH A begins a commit, FLUSH B asks for another while it runs; the devices' flushes of A's
/// fail once, and lose something.
#[test]
fn a_flush_that_failed_ends_commits_for_good() {
    for seed in 0..40 {
        let (disks, loses) =
            (1 + seed as usize % 2, if seed % 3 == 0 { Loses::All } else { Loses::Part });
        let end = if seed % 4 < 2 { End::Kill } else { End::Power };
        let bench = Bench::new(seed, disks, disks as u8);
        let (world, id) = (bench.world.clone(), bench.volume);
        bench.run(|rt, files| async move {
            let pool = open(&rt, files.clone()).await.expect("open");
            put(&pool, id, 0, BLOCKS / 2, 2).await.expect("write");
            for f in &files {
                assert!(world.inject(f.file, Fault::FailFlush { times: Times::Next(1), loses }));
            }
            let flush = |pool: Pool| rt.spawn(async move { pool.commit().await });
            let a = flush(pool.clone());
            rt.settled().await;
            put(&pool, id, BLOCKS / 2, BLOCKS / 4, 2).await.expect("write");
            let b = flush(pool.clone());
            let a = a.await.expect("alive").expect_err("its flush failed");
            assert!(a.context.contains("disk0") && a.context.contains("restart forebay"), "{a}");
            let b = b.await.expect("alive").expect_err("what A's lost would be named by it");
            assert_eq!(a.context, b.context);
            // The devices are well again: all the same.
            for _ in 0..3 {
                let e =
                    pool.commit().await.expect_err("a later flush says nothing of what was lost");
                assert_eq!(e.context, a.context);
                assert_eq!(put(&pool, id, 0, 1, 3).await.expect_err("a write").context, a.context);
                rt.sleep(Duration::from_millis(200)).await;
            }
            let data = pool.read(id, Lba(BLOCKS - 1), 1).await.expect("reads go on");
            assert_eq!(data[0][0], 1);
        });
        bench.end(end);
        bench.expect(&[1, 2]);
    }
}

/// As above where one device of two fails: it is dropped, the flushes succeed, and nothing of them
/// is lost.
#[test]
fn a_flush_that_failed_on_one_of_two_devices_loses_nothing() {
    for seed in 0..20 {
        let end = if seed % 2 == 0 { End::Kill } else { End::Power };
        let bench = Bench::new(seed, 2, 2);
        let (world, id) = (bench.world.clone(), bench.volume);
        bench.run(|rt, files| async move {
            let pool = open(&rt, files.clone()).await.expect("open");
            put(&pool, id, 0, BLOCKS / 2, 2).await.expect("write");
            let bad = seed as usize / 2 % 2;
            assert!(world.inject(
                files[bad].file,
                Fault::FailFlush { times: Times::Next(1), loses: Loses::All }
            ));
            let p = pool.clone();
            let a = rt.spawn(async move { p.commit().await });
            rt.settled().await;
            put(&pool, id, BLOCKS / 2, BLOCKS / 2, 2).await.expect("write");
            pool.commit().await.expect("FLUSH B");
            a.await.expect("alive").expect("FLUSH A");
            let status = pool.status().pool;
            assert_eq!((status.state, status.devices[bad].state), ("degraded", "failed"));
        });
        bench.end(end);
        bench.expect(&[2]);
    }
}

/// Two of three devices fail their flushes: with three copies the third has everything; with two
/// there are groups that both of them have, and then neither is dropped for the other's sake.
#[test]
fn devices_that_fail_together_are_judged_together() {
    for (copies, state) in [(3, "degraded"), (2, "failed")] {
        let bench = Bench::new(7, 3, copies);
        let (world, id) = (bench.world.clone(), bench.volume);
        bench.run(|rt, files| async move {
            let pool = open(&rt, files.clone()).await.expect("open");
            for round in 0..12 {
                put(&pool, id, 0, BLOCKS, 10 + round).await.expect("write");
                pool.commit().await.expect("commit");
            }
            put(&pool, id, 0, BLOCKS, 2).await.expect("write");
            for f in &files[..2] {
                assert!(
                    world.inject(
                        f.file,
                        Fault::FailFlush { times: Times::Next(1), loses: Loses::All }
                    )
                );
            }
            let outcome = pool.commit().await;
            assert_eq!(outcome.is_ok(), copies == 3, "{outcome:?}");
            let status = pool.status().pool;
            let states: Vec<_> = status.devices.iter().map(|d| d.state).collect();
            let left = if copies == 3 { "failed" } else { "online" };
            assert_eq!((status.state, states), (state, vec![left, left, "online"]));
        });
        bench.end(End::Power);
        bench.expect(if copies == 3 { &[2] } else { &[2, 21] });
    }
}

/// A device that cannot flush at open is left out, if by what it says another one is up to date;
/// else the open is refused.
#[test]
fn a_device_that_cannot_flush_at_open_is_as_good_as_missing() {
    // Opens `disks`; the first flush of `bad` fails.
    let opens = |bench: &Bench, disks: &'static [usize], bad: Option<usize>| {
        let (world, id) = (bench.world.clone(), bench.volume);
        let run = bench.run(move |rt, files| async move {
            if let Some(bad) = bad {
                let fault = Fault::FailFlush { times: Times::Next(1), loses: Loses::All };
                assert!(world.inject(files[bad].file, fault));
            }
            let pool = open(&rt, disks.iter().map(|&d| files[d].clone()).collect()).await?;
            let states: Vec<_> = pool.status().pool.devices.iter().map(|d| d.state).collect();
            assert_eq!(pool.read(id, Lba(0), 1).await.expect("read")[0][0], 1);
            pool.close().await.expect("close");
            Ok::<_, StorageError>(states)
        });
        run.expect("alive")
    };

    let bench = Bench::new(1, 1, 1);
    let e = opens(&bench, &[0], Some(0)).expect_err("the only one");
    assert!(e.context.contains("disk0") && e.context.contains("start again"), "{e}");
    assert_eq!(opens(&bench, &[0], None).expect("it is well again"), ["online"]);

    let bench = Bench::new(2, 2, 2);
    assert_eq!(opens(&bench, &[0, 1], Some(1)).expect("the other one"), ["online", "missing"]);

    // The first went on without the second.
    let bench = Bench::new(3, 2, 2);
    opens(&bench, &[0], None).expect("degraded");
    opens(&bench, &[0, 1], Some(0)).expect_err("the second is stale");
    assert_eq!(opens(&bench, &[0, 1], None).expect("it is well again"), ["online", "stale"]);
}

/// A kill while a superblock is on its way, another life, and a cut of power in the middle of that.
/// The superblock that the second life has found stood in a volatile cache, perhaps; what is
/// written on the grounds of it, here the slot of a table page that could not be read at first,
/// must not be on the medium without it.
#[test]
fn what_is_found_after_a_kill_is_made_durable_before_it_is_acted_on() {
    for seed in 0..60 {
        let bench = Bench::new(seed, 1, 1);
        let (id, file) = (bench.volume, bench.files[0].file);
        // A life that ends when it has asked for something, `times` times.
        let life = |until: fn(&Op) -> bool, times: u32| {
            let left = Rc::new(Cell::new(times));
            let counted = left.clone();
            bench.rules.set(move |op| {
                counted.set(counted.get().saturating_sub(u32::from(until(op))));
                None
            });
            bench.run(|rt, files| async move {
                let inner = rt.clone();
                rt.detach(async move {
                    let pool = loop {
                        if let Ok(pool) = open(&inner, files.clone()).await {
                            break pool;
                        }
                    };
                    loop {
                        put(&pool, id, 0, BLOCKS, 2).await.expect("write");
                        pool.commit().await.expect("commit");
                    }
                });
                while left.get() > 0 {
                    rt.sleep(Duration::from_micros(1)).await;
                }
            });
        };
        // The superblock of its second commit, which has changes.
        life(|op| matches!(op, Op::Write { fua: true, .. }), 2);
        bench.end(End::Kill);
        // The first page of the volume table: the slot of the older version.
        let generation = |at: u64| {
            let bytes = bench.world.contents(file, at + 16, 8);
            u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
        };
        let older =
            [MIB, MIB + BLOCK_U64].into_iter().min_by_key(|&at| generation(at)).expect("two slots");
        assert!(
            bench.world.inject(file, Fault::FailReads { offset: older, len: BLOCK_U64, times: 2 })
        );
        // The first thing that it writes; then there is some time.
        life(|op| matches!(op, Op::Write { .. }), 1);
        bench.end(End::Power);
        bench.rules.clear();
        bench.expect(&[1, 2]);
    }
}
