//! Devices that hang, in simulation: the user takes them out of use, and nothing waits for them.

use std::cell::Cell;
use std::rc::Rc;

use base::{Duration, Lba};
use model::device::DeviceState;
use pool::Pool;
use rt::Rt;
use sim::{DiskModel, Fault};
use testkit::{
    MIB, Mirror, device_states, disk, fill, moved, only_byte, open, put, try_open, try_put,
};

const BLOCKS: u64 = 256;
/// For so long a device hangs before the user takes it out of use.
const HANGS: Duration = Duration::from_secs(60);
/// A command of the user is done within this.
const SOON: Duration = Duration::from_secs(5);

/// A mirror of two disks, with a volume of which all blocks hold `1`.
fn mirror(seed: u64) -> Mirror {
    Mirror::filled(seed, (2, 2), BLOCKS)
}

/// Takes a device that hangs out of use, which ends soon.
async fn taken_out(rt: &Rt, pool: &Pool, device: &str) {
    let (began, r, over) = (rt.now(), rt.clone(), Rc::new(Cell::new(false)));
    let is_over = over.clone();
    drop(rt.spawn(async move {
        r.sleep(HANGS * 10).await;
        assert!(is_over.get(), "something waits for the device still");
    }));
    pool.returns().offline_device(device).await.expect("offline");
    pool.commit().await.expect("commit");
    assert!(rt.now().since(began) < SOON);
    over.set(true);
}

/// Each of the two has all of it.
fn each_holds(bench: &Mirror, value: u8) {
    let id = bench.volume;
    for only in 0..2 {
        let snapshots: Vec<_> =
            bench.files.iter().map(|f| bench.world.snapshot_disk(f.file)).collect();
        bench.run(|rt, files| async move {
            let pool = open(&rt, vec![files[only].clone()]).await;
            let data = pool.read(id, Lba(0), BLOCKS).await.expect("read");
            assert_eq!(only_byte(&data), Some(value), "disk{only}");
            pool.close().await.expect("close");
        });
        for (file, snapshot) in bench.files.iter().zip(&snapshots) {
            bench.world.restore_disk(file.file, snapshot);
        }
    }
    let report = bench.check();
    assert!(report.is_clean(), "{:?}", report.problems);
}

#[test]
fn a_device_that_hangs_is_taken_out_of_use_while_a_commit_waits_for_it() {
    let bench = mirror(31);
    let (id, world) = (bench.volume, bench.world.clone());
    bench.run(|rt, files| async move {
        let pool = open(&rt, files.clone()).await;
        fill(&pool, id, BLOCKS, 2).await;
        put(&pool, id, 0, 8, 3).await;
        assert!(world.inject(files[1].file, Fault::StuckForever));
        let (p, q) = (pool.clone(), pool.clone());
        let committed = rt.spawn(async move { p.commit().await });
        let written = rt.spawn(async move { try_put(&q, id, 100, 8, 3).await });
        rt.sleep(HANGS).await;
        assert_eq!(device_states(&pool)[1].1, DeviceState::Online);
        taken_out(&rt, &pool, "disk1").await;
        committed.await.expect("alive").expect("commit");
        written.await.expect("alive").expect("write");
        fill(&pool, id, BLOCKS, 4).await;
        let refused = pool.returns().online_device("disk1").await.expect_err("it has not answered");
        assert!(refused.context.contains("has not answered yet"), "{refused}");
        // The device answers soon after it was asked to come back.
        let back = pool.clone();
        let back = rt.spawn(async move { back.returns().online_device("disk1").await });
        rt.sleep(Duration::from_secs(3)).await;
        let place = pool.returns().check_out_of_use("disk1").expect_err("it has not answered");
        assert!(place.context.contains("has not answered yet"), "{place}");
        world.revive(files[1].file);
        assert!(back.await.expect("alive").expect("online"), "its file is open");
        moved(&rt, &pool).await;
        pool.close().await.expect("close");
    });
    each_holds(&bench, 4);
}

/// A device is told that it is out of use when it answers, so it is not served alone.
#[test]
fn a_device_that_hung_is_told_when_it_answers() {
    let bench = mirror(33);
    let (id, world) = (bench.volume, bench.world.clone());
    bench.run(|rt, files| async move {
        let pool = open(&rt, files.clone()).await;
        put(&pool, id, 0, 8, 3).await;
        assert!(world.inject(files[1].file, Fault::StuckForever));
        let p = pool.clone();
        let committed = rt.spawn(async move { p.commit().await });
        rt.sleep(HANGS).await;
        taken_out(&rt, &pool, "disk1").await;
        committed.await.expect("alive").expect("commit");
        world.revive(files[1].file);
        rt.sleep(SOON).await;
    });
    bench.run(|rt, files| async move {
        let Err(e) = try_open(&rt, files[1..].to_vec()).await else { panic!("it was served") };
        assert!(e.context.contains("out of use"), "{e}");
    });
}

/// A device comes back and hangs at some moment of that. Nothing waits for it when the user takes
/// it out of use once more. It comes back when it answers, from where it was to come back before.
#[test]
fn a_device_that_hangs_while_it_comes_back_is_taken_out_of_use() {
    let mut hung_while = [0; 2];
    for moment in 0..60 {
        let bench = mirror(32 + moment);
        let (id, world) = (bench.volume, bench.world.clone());
        // The file of the device is open, or is another one than before.
        let is_open = moment % 2 == 0;
        let hung = bench.run(move |rt, files| async move {
            let first = if is_open { files.clone() } else { vec![files[0].clone()] };
            let pool = open(&rt, first).await;
            if is_open {
                pool.returns().offline_device("disk1").await.expect("offline");
            }
            fill(&pool, id, BLOCKS, 2).await;
            let (p, file) = (pool.clone(), files[1].clone());
            let back = rt.spawn(async move {
                match is_open {
                    true => p.returns().online_device("disk1").await.map(|_| ()),
                    false => p.returns().return_device(file).await,
                }
            });
            while device_states(&pool)[1].1 != DeviceState::Joining {
                rt.sleep(Duration::from_micros(5)).await;
            }
            rt.sleep(Duration::from_micros(moment / 2 * 25)).await;
            let was_joining = device_states(&pool)[1].1 == DeviceState::Joining;
            assert!(world.inject(files[1].file, Fault::StuckForever));
            rt.sleep(HANGS).await;
            let hangs = was_joining && device_states(&pool)[1].1 == DeviceState::Joining;
            if hangs {
                taken_out(&rt, &pool, "disk1").await;
                let ended = back.await.expect("alive").expect_err("it was taken out of use");
                assert!(ended.context.contains("taken out of use"), "{ended}");
                assert_eq!(device_states(&pool)[1], ("disk1".to_owned(), DeviceState::Offline));
                assert!(pool.moves().uses_file(files[1].file), "what it has may still take effect");
                let refused =
                    pool.returns().online_device("disk1").await.expect_err("not answered");
                assert!(refused.context.contains("has not answered yet"), "{refused}");
            }
            world.revive(files[1].file);
            rt.sleep(Duration::from_secs(1)).await;
            fill(&pool, id, BLOCKS, 4).await;
            if hangs {
                assert!(pool.returns().online_device("disk1").await.expect("online"), "it is open");
            }
            moved(&rt, &pool).await;
            assert_eq!(device_states(&pool)[1].1, DeviceState::Online);
            pool.close().await.expect("close");
            hangs
        });
        hung_while[usize::from(is_open)] += u32::from(hung);
        each_holds(&bench, 4);
    }
    assert!(hung_while.iter().all(|&n| n > 5), "of 30 each {hung_while:?} hung");
}

/// The user takes a device out of use that comes back, and hangs from that moment on. It may have
/// no request just then; what the pool does next for its return is not asked of it any more.
#[test]
fn a_device_that_is_taken_out_of_use_while_it_comes_back_is_asked_for_nothing_more() {
    let mut had_none = 0;
    for moment in 0..40 {
        let bench = mirror(232 + moment);
        let (id, world) = (bench.volume, bench.world.clone());
        let idle = bench.run(move |rt, files| async move {
            let pool = open(&rt, files.clone()).await;
            pool.returns().offline_device("disk1").await.expect("offline");
            fill(&pool, id, BLOCKS, 2).await;
            put(&pool, id, 0, 8, 3).await;
            let p = pool.clone();
            let back = rt.spawn(async move { p.returns().online_device("disk1").await });
            while device_states(&pool)[1].1 != DeviceState::Joining {
                rt.sleep(Duration::from_micros(5)).await;
            }
            rt.sleep(Duration::from_micros(moment * 25)).await;
            if device_states(&pool)[1].1 != DeviceState::Joining {
                back.await.expect("alive").expect("online");
                moved(&rt, &pool).await;
                fill(&pool, id, BLOCKS, 4).await;
                pool.close().await.expect("close");
                return false;
            }
            assert!(world.inject(files[1].file, Fault::StuckForever));
            taken_out(&rt, &pool, "disk1").await;
            let ended = back.await.expect("alive").expect_err("it was taken out of use");
            assert!(ended.context.contains("taken out of use"), "{ended}");
            let idle = pool.returns().check_out_of_use("disk1").is_ok();
            fill(&pool, id, BLOCKS, 4).await;
            world.revive(files[1].file);
            assert!(pool.returns().online_device("disk1").await.expect("online"), "it is open");
            moved(&rt, &pool).await;
            pool.close().await.expect("close");
            idle
        });
        had_none += u32::from(idle);
        each_holds(&bench, 4);
    }
    assert!(had_none > 5, "of 40 {had_none} had no request");
}

/// A device that is new, and hangs while it is added, is none of the pool then.
#[test]
fn a_device_that_hangs_while_it_is_added_is_taken_out_of_use() {
    for moment in 0..30 {
        let bench = mirror(132 + moment);
        let (id, world) = (bench.volume, bench.world.clone());
        let new = disk(&bench.world, "new", DiskModel::nvme(32 * MIB));
        bench.run(move |rt, files| async move {
            let pool = open(&rt, files).await;
            let (p, file) = (pool.clone(), new.clone());
            let added = rt.spawn(async move { p.moves().add_device(file, [7; 16]).await });
            rt.sleep(Duration::from_micros(moment * 25)).await;
            assert!(world.inject(new.file, Fault::StuckForever));
            rt.sleep(HANGS).await;
            assert_eq!(device_states(&pool)[2], ("new".to_owned(), DeviceState::Joining));
            taken_out(&rt, &pool, "new").await;
            let ended = added.await.expect("alive").expect_err("it was taken out of use");
            assert!(ended.context.contains("new: it was taken out of use"), "{ended}");
            assert_eq!(device_states(&pool).len(), 2);
            fill(&pool, id, BLOCKS, 4).await;
            pool.close().await.expect("close");
        });
        each_holds(&bench, 4);
    }
}
