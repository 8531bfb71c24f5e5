//! Two processes that have the same pool open, from two machines or by two names of its disks: each
//! stops as soon as it can know of the other one, and says so.

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::rc::Rc;

use base::{BLOCK, Duration, ErrorKind, Lba};
use model::status::PoolState;
use offline::Severity;
use pool::Pool;
use rt::Rt;
use rt::sync::within;
use sim::{DiskModel, Fault};
use testkit::{MIB, Mirror, create_pool, disk, only_byte, open, put, try_open, try_put};

/// Counts the writes to all disks of the bench from now on.
fn count_writes(bench: &Mirror) -> Rc<Cell<u64>> {
    let count = Rc::new(Cell::new(0));
    for f in &bench.files {
        let seen = count.clone();
        bench.world.watch_writes(f.file, move |_, _| seen.set(seen.get() + 1));
    }
    count
}

/// Everything stands still until a look counts no more.
async fn long(pool: &Pool) {
    pool.rt().sleep(Duration::from_secs(20)).await;
}

/// The outcome of what ends within a minute.
async fn soon<T>(rt: &Rt, mut what: Pin<&mut impl Future<Output = T>>, name: &str) -> T {
    let time = rt.sleep(Duration::from_secs(60));
    within(&mut what, time).await.unwrap_or_else(|| panic!("{name} does not end"))
}

fn check_clean(bench: &Mirror) {
    let problems = bench.check().findings.problems;
    assert!(problems.iter().all(|p| p.severity != Severity::Error), "{problems:?}");
}

/// A process stood still while another one took its pool over, as with two machines at one disk:
/// when it goes on, it writes nothing at all.
#[test]
fn one_that_stood_still_writes_nothing_more() {
    for seed in 0..20 {
        let bench = Mirror::filled(seed, (2, 2), 64);
        let (id, written) = (bench.volume, count_writes(&bench));
        bench.run(|rt, files| async move {
            let first = open(&rt, files.clone()).await;
            put(&first, id, 0, 8, 2).await;
            first.commit().await.expect("alone");
            long(&first).await;
            // With one of the disks, or with both.
            let second = open(&rt, files[seed as usize % 2..].to_vec()).await;
            put(&second, id, 0, 8, 3).await;
            second.commit().await.expect("the first one stands still");
            long(&second).await;
            let before = written.get();
            let e = match seed % 3 {
                0 => try_put(&first, id, 8, 1, 4).await.expect_err("a write"),
                1 => first
                    .discard(id, Lba(0), Lba(64))
                    .await
                    .and(first.commit().await)
                    .expect_err("a commit"),
                _ => {
                    let made = first.create_volume("w", MIB, 4096).await;
                    made.map(drop).and(first.commit().await).expect_err("a new volume")
                }
            };
            assert!(e.kind == ErrorKind::Foreign && e.context.contains("a later start"), "{e}");
            assert!(e.context.contains("disk") && e.context.contains("start number"), "{e}");
            let status = first.status().pool;
            assert!(status.other_writer && status.trouble.is_some_and(|t| t == e.to_string()));
            long(&first).await;
            assert_eq!(written.get(), before, "the first one has written");
            assert!(!second.status().pool.other_writer);
            put(&second, id, 8, 8, 5).await;
            second.commit().await.expect("nobody else has written");
            let _ = first.close().await;
            second.close().await.expect("close");
        });
        bench.run(|rt, files| async move {
            let pool = open(&rt, files).await;
            for (lba, byte) in [(0, 3), (7, 3), (8, 5), (20, 1)] {
                let data = pool.read(id, Lba(lba), 1).await.expect("read");
                assert_eq!(only_byte(&data), Some(byte), "block {lba}");
            }
            pool.close().await.expect("close");
        });
        check_clean(&bench);
    }
}

/// What a process that stood still finds bad was written by the other one: it heals nothing.
#[test]
fn one_that_stood_still_heals_nothing() {
    let bench = Mirror::filled(3, (2, 2), 64);
    let (id, written) = (bench.volume, count_writes(&bench));
    bench.run(|rt, files| async move {
        let first = open(&rt, files.clone()).await;
        long(&first).await;
        let second = open(&rt, files[..1].to_vec()).await;
        // The blocks that the first one still reads are written over on one disk.
        for byte in 2..20 {
            put(&second, id, 0, 64, byte).await;
            second.commit().await.expect("alone");
        }
        let before = written.get();
        for lba in 0..64 {
            let data = first.read(id, Lba(lba), 1).await.expect("the other copy");
            assert_eq!(only_byte(&data), Some(1));
        }
        long(&first).await;
        assert_eq!(written.get(), before);
        assert!(first.status().pool.other_writer);
    });
}

/// Both write and commit all the time: they do not go on so for long. The one that stopped writes
/// nothing more.
#[test]
fn two_that_write_at_the_same_time_do_not_go_on() {
    let mut both_stopped = 0;
    for seed in 0..40 {
        let bench = Mirror::filled(seed, (1 + seed as usize % 2, 1), 64);
        let (id, written) = (bench.volume, count_writes(&bench));
        both_stopped += u32::from(bench.run(|rt, files| async move {
            let end = Rc::new(Cell::new(false));
            let first = open(&rt, files.clone()).await;
            let busy = |pool: Pool, byte: u8, pause: u64| {
                let (end, began) = (end.clone(), rt.now());
                rt.spawn(async move {
                    while !end.get() {
                        let lba = pool.rt().random() % 64;
                        let put = try_put(&pool, id, lba, 1, byte).await;
                        if put.and(pool.commit().await).is_err() {
                            let took = pool.rt().now().since(began);
                            assert!(pool.has_ended() && pool.status().pool.other_writer);
                            return Some(took);
                        }
                        pool.rt().sleep(Duration::from_millis(pause)).await;
                    }
                    None
                })
            };
            let one = busy(first.clone(), 2, 20 + seed % 7);
            rt.sleep(Duration::from_millis(seed * 13)).await;
            // The second one may meet the first one while it opens.
            let opening = pin!(try_open(&rt, files));
            let two = match soon(&rt, opening, "the open").await {
                Ok((second, _)) => Some(busy(second, 3, 15 + seed % 5)),
                Err(e) => {
                    assert!(e.context.contains("another process"), "{e}");
                    None
                }
            };
            rt.sleep(Duration::from_secs(3)).await;
            end.set(true);
            let one = soon(&rt, pin!(one), "the first").await.expect("alive");
            let two = match two {
                Some(task) => soon(&rt, pin!(task), "the second").await.expect("alive"),
                None => Some(Duration::ZERO),
            };
            assert!(one.is_some() || two.is_some(), "both go on");
            rt.sleep(Duration::from_secs(1)).await;
            let before = written.get();
            assert!(one.is_none() || try_put(&first, id, 0, 1, 4).await.is_err());
            rt.sleep(Duration::from_secs(10)).await;
            assert_eq!(written.get(), before);
            one.is_some() && two.is_some()
        }));
    }
    assert!(both_stopped > 0);
}

/// A device's path is another device by now: nothing is written to that, and the pool goes on.
#[test]
fn a_device_that_became_another_pools_is_let_go() {
    let bench = Mirror::filled(5, (2, 2), 64);
    let id = bench.volume;
    let world = bench.world.clone();
    bench.run(|rt, files| async move {
        let other = disk(&world, "other", DiskModel::nvme(32 * MIB));
        create_pool(&rt, std::slice::from_ref(&other), 1).await;
        let theirs = world.snapshot_disk(other.file);
        let pool = open(&rt, files.clone()).await;
        put(&pool, id, 0, 8, 2).await;
        pool.commit().await.expect("commit");
        long(&pool).await;
        world.restore_disk(files[1].file, &theirs);
        let before = world.contents(files[1].file, 0, (32 * MIB) as usize);
        put(&pool, id, 8, 8, 3).await;
        pool.commit().await.expect("the other device has it");
        rt.sleep(Duration::from_secs(2)).await;
        assert!(world.contents(files[1].file, 0, (32 * MIB) as usize) == before);
        assert_eq!(pool.status().pool.state, PoolState::Degraded);
        assert_eq!(pool.read(id, Lba(8), 1).await.expect("read")[0][..BLOCK], [3; BLOCK]);
        pool.close().await.expect("close");
    });
}

/// A superblock that a torn write, or a device that lost one, leaves is no other writer's.
#[test]
fn what_a_device_lost_is_no_other_writer() {
    for seed in 0..10 {
        let bench = Mirror::filled(seed, (2, 2), 64);
        let (id, world) = (bench.volume, bench.world.clone());
        bench.run(|rt, files| async move {
            let pool = open(&rt, files.clone()).await;
            for byte in 2..12 {
                put(&pool, id, 0, 4, byte).await;
                if byte % 3 == 0 {
                    // Perhaps a superblock.
                    world.inject(files[1].file, Fault::LoseNextWrite);
                }
                pool.commit().await.expect("commit");
            }
            let slot = 65536 * (1 + seed % 4);
            world.inject(files[0].file, Fault::BitRot { offset: slot, len: 8192 });
            world.inject(files[1].file, Fault::ReadError { offset: slot, len: 8192 });
            rt.sleep(Duration::from_secs(2)).await;
            put(&pool, id, 0, 4, 20).await;
            pool.commit().await.expect("commit");
            assert!(!pool.status().pool.other_writer && !pool.has_ended());
            pool.close().await.expect("close");
        });
    }
}
