//! Flushes that fail and lose what they covered, as `fsync` does on Linux: once, and every later
//! one succeeds. And what a kill leaves in volatile caches.
//!
//! After each of these the next start has everything that was flushed before; a block is as it was
//! flushed or as it was written later, never an error; and the offline check finds nothing.

use std::cell::Cell;
use std::rc::Rc;

use base::{BLOCK_U64, Duration, Lba, StorageError};
use model::device::DeviceState;
use model::status::PoolState;
use offline::Severity;
use pool::Pool;
use rt::Op;
use sim::{Fault, FlushLoss, Times};
use testkit::{MIB, Mirror, is_superblock, only_byte, open, put, try_open, try_put};

const BLOCKS: u64 = 64;

/// How a boot ends.
#[derive(Clone, Copy, PartialEq, Debug)]
enum End {
    Kill,
    Power,
}

/// A pool of `copies` copies on `disks` disks, with a volume of which all blocks hold `1`, flushed.
fn mirror(seed: u64, disks: usize, copies: u8) -> Mirror {
    Mirror::new(seed, (disks, copies), |pool| async move {
        let id = pool.create_volume("v", BLOCKS * BLOCK_U64, 4096).await.expect("volume");
        put(&pool, id, 0, BLOCKS, 1).await;
        id
    })
}

/// The boot has ended: by a kill, as the runtime is gone, or by a cut of power now.
fn end_boot(bench: &Mirror, end: End) {
    match end {
        End::Kill => drop(bench.world.backend()),
        End::Power => bench.world.power_cut(),
    }
}

/// The pool opens, and every block is one of `values`; then the offline check, of the data too,
/// finds nothing.
fn expect(bench: &Mirror, values: &'static [u8]) {
    let id = bench.volume;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        for lba in 0..BLOCKS {
            let data =
                pool.read(id, Lba(lba), 1).await.unwrap_or_else(|e| panic!("block {lba}: {e}"));
            let byte = only_byte(&data);
            assert!(byte.is_some_and(|b| values.contains(&b)), "block {lba} is {byte:?}");
        }
        pool.close().await.expect("close");
    });
    let problems = bench.check().findings.problems;
    // A superblock that a crash has torn on one device stands there until its slot is written
    // again.
    assert!(problems.iter().all(|p| p.severity != Severity::Error), "{problems:?}");
}

/// FLUSH A begins a commit, FLUSH B asks for another while it runs; the devices' flushes of A's
/// fail once, and lose something.
#[test]
fn a_flush_that_failed_ends_commits_for_good() {
    for seed in 0..40 {
        let (disks, loses) =
            (1 + seed as usize % 2, if seed % 3 == 0 { FlushLoss::All } else { FlushLoss::Part });
        let end = if seed % 4 < 2 { End::Kill } else { End::Power };
        let bench = mirror(seed, disks, disks as u8);
        let (world, id) = (bench.world.clone(), bench.volume);
        bench.run(|rt, files| async move {
            let pool = open(&rt, files.clone()).await;
            put(&pool, id, 0, BLOCKS / 2, 2).await;
            for f in &files {
                assert!(world.inject(f.file, Fault::FailFlush { times: Times::Next(1), loses }));
            }
            let flush = |pool: Pool| rt.spawn(async move { pool.commit().await });
            let a = flush(pool.clone());
            rt.settled().await;
            put(&pool, id, BLOCKS / 2, BLOCKS / 4, 2).await;
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
                assert_eq!(
                    try_put(&pool, id, 0, 1, 3).await.expect_err("a write").context,
                    a.context
                );
                rt.sleep(Duration::from_millis(200)).await;
            }
            let data = pool.read(id, Lba(BLOCKS - 1), 1).await.expect("reads go on");
            assert_eq!(data[0][0], 1);
        });
        end_boot(&bench, end);
        expect(&bench, &[1, 2]);
    }
}

/// As above where one device of two fails: it is dropped, the flushes succeed, and nothing of them
/// is lost.
#[test]
fn a_flush_that_failed_on_one_of_two_devices_loses_nothing() {
    for seed in 0..20 {
        let end = if seed % 2 == 0 { End::Kill } else { End::Power };
        let bench = mirror(seed, 2, 2);
        let (world, id) = (bench.world.clone(), bench.volume);
        bench.run(|rt, files| async move {
            let pool = open(&rt, files.clone()).await;
            put(&pool, id, 0, BLOCKS / 2, 2).await;
            let bad = seed as usize / 2 % 2;
            assert!(world.inject(
                files[bad].file,
                Fault::FailFlush { times: Times::Next(1), loses: FlushLoss::All }
            ));
            let p = pool.clone();
            let a = rt.spawn(async move { p.commit().await });
            rt.settled().await;
            put(&pool, id, BLOCKS / 2, BLOCKS / 2, 2).await;
            pool.commit().await.expect("FLUSH B");
            a.await.expect("alive").expect("FLUSH A");
            let status = pool.status().pool;
            assert_eq!(
                (status.state, status.devices[bad].state),
                (PoolState::Degraded, DeviceState::Failed)
            );
        });
        end_boot(&bench, end);
        expect(&bench, &[2]);
    }
}

/// Two of three devices fail their flushes: with three copies the third has everything; with two
/// there are groups that both of them have, and then neither is dropped for the other's sake.
#[test]
fn devices_that_fail_together_are_judged_together() {
    for (copies, state) in [(3, PoolState::Degraded), (2, PoolState::Failed)] {
        let bench = mirror(7, 3, copies);
        let (world, id) = (bench.world.clone(), bench.volume);
        bench.run(|rt, files| async move {
            let pool = open(&rt, files.clone()).await;
            for round in 0..12 {
                put(&pool, id, 0, BLOCKS, 10 + round).await;
                pool.commit().await.expect("commit");
            }
            put(&pool, id, 0, BLOCKS, 2).await;
            for f in &files[..2] {
                assert!(world.inject(
                    f.file,
                    Fault::FailFlush { times: Times::Next(1), loses: FlushLoss::All }
                ));
            }
            let outcome = pool.commit().await;
            assert_eq!(outcome.is_ok(), copies == 3, "{outcome:?}");
            let status = pool.status().pool;
            let states: Vec<_> = status.devices.iter().map(|d| d.state).collect();
            let left = if copies == 3 { DeviceState::Failed } else { DeviceState::Online };
            assert_eq!((status.state, states), (state, vec![left, left, DeviceState::Online]));
        });
        end_boot(&bench, End::Power);
        expect(&bench, if copies == 3 { &[2] } else { &[2, 21] });
    }
}

/// A device that cannot flush at open is left out, if by what it says another one is up to date;
/// else the open is refused.
#[test]
fn a_device_that_cannot_flush_at_open_is_as_good_as_missing() {
    // Opens `disks`; the first flush of `bad` fails.
    let opens = |bench: &Mirror, disks: &'static [usize], bad: Option<usize>| {
        let (world, id) = (bench.world.clone(), bench.volume);
        bench.run(move |rt, files| async move {
            if let Some(bad) = bad {
                let fault = Fault::FailFlush { times: Times::Next(1), loses: FlushLoss::All };
                assert!(world.inject(files[bad].file, fault));
            }
            let some = disks.iter().map(|&d| files[d].clone()).collect();
            let (pool, _) = try_open(&rt, some).await?;
            let states: Vec<_> = pool.status().pool.devices.iter().map(|d| d.state).collect();
            assert_eq!(pool.read(id, Lba(0), 1).await.expect("read")[0][0], 1);
            pool.close().await.expect("close");
            Ok::<_, StorageError>(states)
        })
    };

    let bench = mirror(1, 1, 1);
    let e = opens(&bench, &[0], Some(0)).expect_err("the only one");
    assert!(e.context.contains("disk0") && e.context.contains("start again"), "{e}");
    assert_eq!(opens(&bench, &[0], None).expect("it is well again"), [DeviceState::Online]);

    let bench = mirror(2, 2, 2);
    assert_eq!(
        opens(&bench, &[0, 1], Some(1)).expect("the other one"),
        [DeviceState::Online, DeviceState::Missing]
    );

    // The first went on without the second.
    let bench = mirror(3, 2, 2);
    opens(&bench, &[0], None).expect("degraded");
    opens(&bench, &[0, 1], Some(0)).expect_err("the second is stale");
    assert_eq!(
        opens(&bench, &[0, 1], None).expect("it is well again"),
        [DeviceState::Online, DeviceState::Stale]
    );
}

/// A kill while a superblock is on its way, another life, and a cut of power in the middle of that.
/// The superblock that the second life has found stood in a volatile cache, perhaps; what is
/// written on the grounds of it, here the slot of a table page that could not be read at first,
/// must not be on the medium without it.
#[test]
fn what_is_found_after_a_kill_is_made_durable_before_it_is_acted_on() {
    for seed in 0..60 {
        let bench = mirror(seed, 1, 1);
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
                        if let Ok((pool, _)) = try_open(&inner, files.clone()).await {
                            break pool;
                        }
                    };
                    loop {
                        put(&pool, id, 0, BLOCKS, 2).await;
                        pool.commit().await.expect("commit");
                    }
                });
                while left.get() > 0 {
                    rt.sleep(Duration::from_micros(1)).await;
                }
            });
        };
        // The superblock of its second commit, which has changes.
        life(is_superblock, 2);
        end_boot(&bench, End::Kill);
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
        end_boot(&bench, End::Power);
        bench.rules.clear();
        expect(&bench, &[1, 2]);
    }
}

/// What the failed flush lost may read as anything. No block is lost by that, and no device rots:
/// the next start has everything that was flushed before.
#[test]
fn what_a_failed_flush_lost_is_no_damage() {
    let bench = mirror(11, 1, 1);
    let (world, id) = (bench.world.clone(), bench.volume);
    bench.run(|rt, files| async move {
        let pool = open(&rt, files.clone()).await;
        let disk = files[0].file;
        assert!(world.inject(disk, Fault::LoseNextWrite));
        put(&pool, id, 0, 1, 2).await;
        let fault = Fault::FailFlush { times: Times::Next(1), loses: FlushLoss::All };
        assert!(world.inject(disk, fault));
        pool.commit().await.expect_err("its flush failed");
        let e = pool.read(id, Lba(0), 1).await.expect_err("what was written is gone");
        assert!(e.context.contains("no good copy"), "{e}");
        let status = pool.status().pool;
        assert_eq!((status.state, status.devices[0].errors.checksum), (PoolState::Failed, 0));
        assert!(status.scrub.lost_blocks.is_empty(), "{:?}", status.scrub.lost_blocks);
    });
    end_boot(&bench, End::Kill);
    expect(&bench, &[1]);
}
