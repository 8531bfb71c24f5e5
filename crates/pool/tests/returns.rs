//! Devices that were away come back in simulation, and get what they lack.

use std::cell::Cell;
use std::rc::Rc;

use base::{BLOCK_U64, Duration, ErrorKind, IoError, Lba};
use model::device::DeviceState;
use model::moves::MovesState;
use pool::{DeviceFile, Pool};
use rt::Rt;
use sim::DiskModel;
use testkit::{
    Effect, MIB, Mirror, block, change, disk, fill, holds_each, is_superblock, only_byte, open,
    try_open, writes_to,
};

const BLOCKS: u64 = 2048;

/// A pool with two copies and a volume of which all blocks hold `1`.
fn mirror(seed: u64) -> Mirror {
    Mirror::filled(seed, (2, 2), BLOCKS)
}

async fn whole(rt: &Rt, pool: &Pool) {
    for _ in 0..60_000 {
        if pool.moves().moves_status().state == MovesState::None
            && states(pool) == [DeviceState::Online, DeviceState::Online]
        {
            return;
        }
        rt.sleep(Duration::from_millis(10)).await;
    }
    panic!("{:?}, {:?}", pool.moves().moves_status(), states(pool));
}

fn states(pool: &Pool) -> Vec<DeviceState> {
    pool.status().pool.devices.iter().map(|d| d.state).collect()
}

/// Opens the pool on one disk alone, where everything must be as in `model`; the disk stays as it
/// was.
fn alone(bench: &Mirror, disk: usize, model: &[u8]) {
    let (file, id, model) = (bench.files[disk].clone(), bench.volume, model.to_vec());
    let before = bench.world.snapshot_disk(file.file);
    let only = file.clone();
    bench.run(|rt, _| async move {
        let pool = open(&rt, vec![only]).await;
        holds_each(&pool, id, &model).await;
        pool.close().await.expect("close");
    });
    bench.world.restore_disk(file.file, &before);
}

#[test]
fn a_device_that_was_missing_gets_what_changed_and_nothing_else() {
    let bench = mirror(1);
    let id = bench.volume;
    let mut model = vec![1u8; BLOCKS as usize];
    model[100..120].fill(7);
    let first = bench.files[0].clone();
    bench.run(|rt, _| async move {
        let pool = open(&rt, vec![first]).await;
        for at in 100..120 {
            pool.write(id, Lba(at), &block(7)).await.expect("write");
        }
        pool.close().await.expect("close");
    });
    bench.run(|rt, files| async move {
        let (pool, warnings) = try_open(&rt, files).await.expect("open");
        assert!(warnings.iter().any(|w| w.contains("brought up to date")), "{warnings:?}");
        whole(&rt, &pool).await;
        let copied = pool.moves().moves_status().copied_bytes / BLOCK_U64;
        assert!((20..300).contains(&copied), "{copied} blocks of {BLOCKS} were copied");
        pool.close().await.expect("close");
    });
    assert!(bench.check().is_clean(), "{:?}", bench.check());
    alone(&bench, 0, &model);
    alone(&bench, 1, &model);
}

#[test]
fn each_start_without_a_device_warns() {
    let bench = mirror(2);
    let first = bench.files[0].clone();
    for nth in 0..3 {
        let first = first.clone();
        bench.run(|rt, _| async move {
            let (pool, warnings) = try_open(&rt, vec![first]).await.expect("open");
            let said = warnings.iter().any(|w| w.contains("device 1 of the pool"));
            assert!(said, "start {nth}: {warnings:?}");
            pool.close().await.expect("close");
        });
    }
    bench.run(|rt, files| async move {
        let (pool, warnings) = try_open(&rt, files).await.expect("open");
        assert!(!warnings.iter().any(|w| w.contains("is missing")), "{warnings:?}");
        whole(&rt, &pool).await;
        pool.close().await.expect("close");
    });
}

#[test]
fn a_device_is_taken_out_of_use_and_back_under_load() {
    for seed in 0..20 {
        let bench = mirror(100 + seed);
        let id = bench.volume;
        let model = bench.run(|rt, _| {
            let files = bench.files.clone();
            async move {
                let pool = open(&rt, files).await;
                let goes_on = Rc::new(Cell::new(true));
                let writes =
                    rt.spawn(change((rt.clone(), pool.clone()), (id, BLOCKS), goes_on.clone()));
                rt.sleep(Duration::from_millis(rt.random() % 20)).await;
                for name in ["disk1", "disk0", "disk1"] {
                    pool.returns().offline_device(name).await.expect("offline");
                    assert!(states(&pool).contains(&DeviceState::Offline));
                    rt.sleep(Duration::from_millis(rt.random() % 40)).await;
                    assert!(pool.returns().online_device(name).await.expect("online"));
                    whole(&rt, &pool).await;
                }
                goes_on.set(false);
                let model = writes.await.expect("writes");
                holds_each(&pool, id, &model).await;
                pool.close().await.expect("close");
                model
            }
        });
        assert!(bench.check().is_clean(), "{seed}: {:?}", bench.check());
        alone(&bench, 0, &model);
        alone(&bench, 1, &model);
    }
}

/// Until a device has what it lacks, the pool cannot do without the other one.
#[test]
fn a_chunk_that_is_behind_is_no_copy() {
    let bench = mirror(3);
    let id = bench.volume;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        pool.returns().offline_device("disk1").await.expect("offline");
        let e = pool.returns().offline_device("disk0").await.expect_err("the last one");
        assert_eq!(e.kind, ErrorKind::Invalid);
        fill(&pool, id, BLOCKS, 2).await;
        pool.commit().await.expect("commit");
        pool.moves().pause_moves(true);
        assert!(pool.returns().online_device("disk1").await.expect("online"));
        assert_eq!(states(&pool), [DeviceState::Online, DeviceState::Behind]);
        let left = pool.moves().moves_status().left_bytes / BLOCK_U64;
        assert!((BLOCKS..BLOCKS * 5 / 4).contains(&left), "{left} blocks are left to copy");
        let e = pool.returns().online_device("disk1").await.expect_err("twice");
        assert_eq!(e.kind, ErrorKind::Invalid);
        let e = pool.returns().offline_device("disk0").await.expect_err("the other one is behind");
        assert_eq!(e.kind, ErrorKind::Invalid);
        rt.sleep(Duration::from_secs(10)).await;
        assert_eq!(pool.moves().moves_status().state, MovesState::Paused);
        pool.moves().pause_moves(false);
        whole(&rt, &pool).await;
        pool.returns().offline_device("disk0").await.expect("now it can");
        let data = pool.read(id, Lba(0), BLOCKS).await.expect("read");
        assert_eq!(only_byte(&data), Some(2));
        pool.close().await.expect("close");
    });
}

/// It stays offline over a restart.
#[test]
fn what_the_user_takes_out_of_use_stays_out() {
    let bench = mirror(4);
    let id = bench.volume;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        pool.returns().offline_device("disk1").await.expect("offline");
        fill(&pool, id, BLOCKS, 2).await;
        pool.close().await.expect("close");
    });
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        rt.sleep(Duration::from_secs(100)).await;
        assert_eq!(states(&pool), [DeviceState::Online, DeviceState::Offline]);
        assert!(pool.returns().online_device("disk1").await.expect("online"));
        whole(&rt, &pool).await;
        pool.close().await.expect("close");
    });
    assert!(bench.check().is_clean(), "{:?}", bench.check());
    alone(&bench, 1, &[2; BLOCKS as usize]);
}

/// A copy of the device from another day gets everything.
#[test]
fn a_device_that_is_older_than_it_was_gets_everything() {
    let bench = mirror(5);
    let (id, second) = (bench.volume, bench.files[1].file);
    let old = bench.world.snapshot_disk(second);
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        fill(&pool, id, BLOCKS, 2).await;
        pool.returns().offline_device("disk1").await.expect("offline");
        pool.close().await.expect("close");
    });
    bench.world.restore_disk(second, &old);
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        assert!(pool.returns().online_device("disk1").await.expect("online"));
        whole(&rt, &pool).await;
        assert!(pool.moves().moves_status().copied_bytes >= BLOCKS * BLOCK_U64);
        pool.close().await.expect("close");
    });
    assert!(bench.check().is_clean(), "{:?}", bench.check());
    alone(&bench, 1, &[2; BLOCKS as usize]);
}

/// Nothing that the pool has now was there when the device went away.
#[test]
fn a_device_comes_back_to_a_pool_of_which_all_others_were_replaced() {
    let mut bench = mirror(7);
    let id = bench.volume;
    let new = disk(&bench.world, "disk2", DiskModel::nvme(32 * MIB));
    let replacement = new.clone();
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        pool.returns().offline_device("disk1").await.expect("offline");
        pool.moves().replace_device("disk0", replacement, [9; 16]).await.expect("replace");
        for _ in 0..6000 {
            rt.sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(
            pool.moves().moves_status().state,
            MovesState::None,
            "{:?}",
            pool.moves().moves_status()
        );
        fill(&pool, id, BLOCKS / 2, 2).await;
        pool.close().await.expect("close");
    });
    bench.files[0] = new;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        assert!(pool.returns().online_device("disk1").await.expect("online"));
        whole(&rt, &pool).await;
        pool.close().await.expect("close");
    });
    assert!(bench.check().is_clean(), "{:?}", bench.check());
    let mut model = vec![1u8; BLOCKS as usize];
    model[..BLOCKS as usize / 2].fill(2);
    alone(&bench, 0, &model);
    alone(&bench, 1, &model);
}

/// Torture's seed 112694. A device fails while it is invited, and has the invitation or not. Then
/// all others are replaced. It was never in use without them: the pool opens, and it comes back.
#[test]
fn a_device_that_failed_while_it_was_invited_is_no_other_half() {
    // The pool's superblock, and the four slots of the invitation.
    for (nth, done) in (0..5).flat_map(|nth| [(nth, Effect::Yes), (nth, Effect::No)]) {
        let mut bench = mirror(8);
        let id = bench.volume;
        let new = disk(&bench.world, "disk2", DiskModel::nvme(32 * MIB));
        let (rules, second, replacement) = (bench.rules.clone(), bench.files[1].file, new.clone());
        bench.run(|rt, files| async move {
            let pool = open(&rt, files).await;
            pool.returns().offline_device("disk1").await.expect("offline");
            fill(&pool, id, BLOCKS / 2, 2).await;
            let written = Cell::new(0);
            rules.set(move |op| {
                let counts = is_superblock(op) && writes_to(op, second);
                let before = written.replace(written.get() + u32::from(counts));
                (counts && before >= nth).then_some((IoError::IO, done))
            });
            pool.returns().online_device("disk1").await.expect_err("it fails");
            rules.clear();
            pool.moves().replace_device("disk0", replacement, [9; 16]).await.expect("replace");
            for _ in 0..6000 {
                rt.sleep(Duration::from_millis(10)).await;
            }
            assert_eq!(
                pool.moves().moves_status().state,
                MovesState::None,
                "{:?}",
                pool.moves().moves_status()
            );
            pool.close().await.expect("close");
        });
        bench.files[0] = new;
        bench.run(|rt, files| async move {
            let (pool, warnings) = try_open(&rt, files).await.expect("open");
            assert!(warnings.iter().any(|w| w.contains("stale")), "{nth}: {warnings:?}");
            assert!(pool.returns().online_device("disk1").await.expect("online"));
            whole(&rt, &pool).await;
            pool.close().await.expect("close");
        });
        assert!(bench.check().is_clean(), "{nth}: {:?}", bench.check());
        let mut model = vec![1u8; BLOCKS as usize];
        model[..BLOCKS as usize / 2].fill(2);
        alone(&bench, 0, &model);
        alone(&bench, 1, &model);
    }
}

#[test]
fn a_device_that_was_written_alone_does_not_come_back() {
    let bench = mirror(6);
    let id = bench.volume;
    for disk in 0..2 {
        let file: DeviceFile = bench.files[disk].clone();
        bench.run(|rt, _| async move {
            let pool = open(&rt, vec![file]).await;
            fill(&pool, id, 10, 3 + disk as u8).await;
            pool.close().await.expect("close");
        });
    }
    bench.run(|rt, files| async move {
        let pool = open(&rt, vec![files[0].clone()]).await;
        let e = pool.returns().return_device(files[1].clone()).await.expect_err("split");
        assert_eq!(e.kind, ErrorKind::SplitBrain, "{e}");
        assert_eq!(states(&pool), [DeviceState::Online, DeviceState::Missing]);
        pool.close().await.expect("close");
    });
}

/// A return is cut short again and again, at any moment, by kills and by power cuts, while blocks
/// are written. In the end both devices have everything.
#[test]
fn a_return_survives_kills_and_power_cuts() {
    for seed in 0..60 {
        let bench = mirror(1000 + seed);
        let (id, first) = (bench.volume, bench.files[0].clone());
        bench.run(|rt, _| async move {
            let pool = open(&rt, vec![first]).await;
            fill(&pool, id, BLOCKS / 2, 2).await;
            pool.close().await.expect("close");
        });
        let mut value = 2u8;
        for life in 0..60 {
            let cut_after = Duration::from_micros(50 + (seed * 37 + life * 911) % 30_000);
            let (last, next) = (life == 59, 3 + life as u8);
            let seen = Rc::new(Cell::new(value));
            let flushed = seen.clone();
            let done = bench.try_run(|rt, files| async move {
                if !last {
                    let r = rt.clone();
                    drop(rt.spawn(async move {
                        r.sleep(cut_after).await;
                        r.kill();
                    }));
                }
                let pool = open(&rt, files).await;
                let data = pool.read(id, Lba(0), 1).await.expect("read");
                let found = only_byte(&data).expect("one value");
                // What was flushed is there, or what was being written after it.
                assert!(found >= flushed.get(), "{found} after {}", flushed.get());
                pool.write(id, Lba(0), &block(next)).await.expect("write");
                pool.commit().await.expect("commit");
                flushed.set(next);
                whole(&rt, &pool).await;
                pool.close().await.expect("close");
            });
            value = seen.get();
            if done.is_some() {
                break;
            }
            if (seed + life) % 2 == 0 {
                bench.world.power_cut();
            }
        }
        assert!(bench.check().is_clean(), "seed {seed}: {:?}", bench.check());
        let mut model = vec![1u8; BLOCKS as usize];
        model[..BLOCKS as usize / 2].fill(2);
        model[0] = value;
        alone(&bench, 0, &model);
        alone(&bench, 1, &model);
    }
}

/// The status says whether a device that failed is tried again: after three tries it is not.
#[test]
fn a_device_is_tried_three_times_by_itself() {
    let bench = mirror(7);
    let (id, bad) = (bench.volume, bench.files[1].file);
    let rules = bench.rules.clone();
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        rules.set(move |op| writes_to(op, bad).then_some((IoError::IO, Effect::No)));
        pool.write(id, Lba(0), &block(7)).await.expect("write");
        pool.commit().await.expect("commit");
        let of = || {
            let d = pool.status().pool.devices[1].clone();
            (d.state, d.tried_again)
        };
        for wait in [1, 60, 120] {
            rt.sleep(Duration::from_secs(wait)).await;
            assert_eq!(of(), (DeviceState::Failed, true), "{wait}");
        }
        rt.sleep(Duration::from_secs(240)).await;
        assert_eq!(of(), (DeviceState::Failed, false));
        rules.clear();
        assert!(pool.returns().online_device("disk1").await.expect("online"));
        whole(&rt, &pool).await;
        pool.close().await.expect("close");
    });
    assert!(bench.check().is_clean(), "{:?}", bench.check());
}

/// The last whole copy is taken out of use in the moment in which the other one is brought up to
/// date; power fails after the commit that says so. The tables of that commit say that the other
/// copy is whole.
#[test]
fn a_copy_that_counts_is_durably_whole() {
    for seed in 0..10 {
        let bench = mirror(300 + seed);
        let id = bench.volume;
        let first = bench.files[0].clone();
        bench.run(|rt, _| async move {
            let pool = open(&rt, vec![first]).await;
            fill(&pool, id, BLOCKS / 2, 2).await;
            pool.close().await.expect("close");
        });
        let flushed = bench.run(|rt, files| async move {
            let pool = open(&rt, files).await;
            let flushed = Rc::new(Cell::new(0));
            let (client, done): (Pool, Rc<Cell<u64>>) = (pool.clone(), flushed.clone());
            rt.detach(async move {
                for n in 0u64.. {
                    let value = (3 + n % 200) as u8;
                    client.write(id, Lba(BLOCKS - 1), &block(value)).await.expect("write");
                    client.commit().await.expect("commit");
                    done.set(n);
                }
            });
            let (user, clock) = (pool.clone(), rt.clone());
            rt.detach(async move {
                while let Err(e) = user.returns().offline_device("disk0").await {
                    assert_eq!(e.kind, ErrorKind::Invalid, "{e}");
                    clock.sleep(Duration::from_micros(10)).await;
                }
            });
            while states(&pool)[0] != DeviceState::Offline {
                rt.sleep(Duration::from_micros(10)).await;
            }
            let before = flushed.get();
            while flushed.get() == before {
                rt.sleep(Duration::from_micros(10)).await;
            }
            flushed.get()
        });
        bench.world.power_cut();
        bench.run(|rt, files| async move {
            let (pool, _) = try_open(&rt, files).await.unwrap_or_else(|e| panic!("{seed}: {e}"));
            let data = pool.read(id, Lba(BLOCKS - 1), 1).await.expect("read");
            let value = u64::from(only_byte(&data).expect("one value"));
            let allowed = [flushed, flushed + 1].map(|n| 3 + n % 200);
            assert!(allowed.contains(&value), "{seed}: {value} where {flushed} was flushed");
            pool.close().await.expect("close");
        });
    }
}
