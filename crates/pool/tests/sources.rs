//! A device that is slow, or errs, is read only where it must be, in simulation.

use base::{Duration, Lba, VolumeId};
use model::device::SitsOutWhy;
use model::status::PoolState;
use pool::Pool;
use rt::{FileId, Rt};
use sim::{Fault, World};
use testkit::{MIB, Mirror, holds_each, open};

const BLOCKS: u64 = 1024;
const SLOW: Duration = Duration::from_millis(40);

fn mirror(seed: u64) -> Mirror {
    Mirror::filled(seed, (2, 2), BLOCKS)
}

/// Reads blocks at random, sixteen at a time, for so long; returns the longest read. So many that
/// the slower device, which is asked where the other one is busy, has enough reads to be judged by.
async fn reads(rt: &Rt, pool: &Pool, id: VolumeId, time: Duration) -> Duration {
    let until = rt.now().after(time);
    let clients = (0..16).map(|_| {
        let (rt2, pool) = (rt.clone(), pool.clone());
        rt.spawn(async move {
            let mut longest = Duration::ZERO;
            while rt2.now() < until {
                let began = rt2.now();
                let lba = Lba(rt2.random() % BLOCKS);
                let read = pool.read(id, lba, 1).await.expect("read");
                assert!(read[0].iter().all(|&b| b == 1));
                longest = longest.max(rt2.now().since(began));
                rt2.sleep(Duration::from_millis(5)).await;
            }
            longest
        })
    });
    let mut longest = Duration::ZERO;
    for client in clients.collect::<Vec<_>>() {
        longest = longest.max(client.await.expect("alive"));
    }
    longest
}

/// Which devices sit out, and why.
fn out(pool: &Pool) -> Vec<Option<SitsOutWhy>> {
    pool.status().pool.devices.iter().map(|d| d.sits_out.map(|out| out.why)).collect()
}

/// Flips bits of many sectors.
fn rot(world: &World, disk: FileId) {
    for _ in 0..3000 {
        world.inject(disk, Fault::BitRot { offset: 4 * MIB, len: 28 * MIB });
    }
}

/// Many sectors cannot be read until they are written again.
fn break_sectors(world: &World, disk: FileId) {
    for _ in 0..600 {
        world.inject(disk, Fault::ReadErrorAnywhere);
    }
}

#[test]
fn a_slow_device_is_read_only_where_it_must_be() {
    for seed in 1..3 {
        a_slow_device(seed);
    }
}

fn a_slow_device(seed: u64) {
    let bench = mirror(seed);
    let (world, id) = (bench.world.clone(), bench.volume);
    let minute = Duration::from_secs(60);
    bench.run(|rt, files| async move {
        let (fast, slow) = (files[0].file, files[1].file);
        let pool = open(&rt, files).await;
        reads(&rt, &pool, id, minute).await;
        assert_eq!(out(&pool), [None, None]);
        world.set_delay(slow, SLOW);
        let longest = reads(&rt, &pool, id, minute).await;
        assert!(longest >= SLOW);
        assert_eq!(out(&pool), [None, Some(SitsOutWhy::Slow)]);
        let longest = reads(&rt, &pool, id, minute).await;
        assert!(longest < SLOW, "{longest:?} though another device is fast");
        // It is a copy all the same: what the other has lost is read from it.
        let state = pool.status().pool.state;
        assert_eq!(state, PoolState::Online);
        rot(&world, fast);
        holds_each(&pool, id, &[1; BLOCKS as usize]).await;
        // It is well again, and is read when its time is over.
        world.set_delay(slow, Duration::ZERO);
        rt.sleep(10 * minute).await;
        reads(&rt, &pool, id, minute / 2).await;
        assert_eq!(out(&pool), [None, None]);
        pool.close().await.expect("close");
    });
}

#[test]
fn a_device_that_errs_often_is_read_only_where_it_must_be() {
    let bench = mirror(2);
    let (world, id) = (bench.world.clone(), bench.volume);
    let model = [1; BLOCKS as usize];
    bench.run(|rt, files| async move {
        let file = files[0].file;
        let pool = open(&rt, files).await;
        break_sectors(&world, file);
        holds_each(&pool, id, &model).await;
        let device = &pool.status().pool.devices[0];
        assert!(device.errors.read >= 32 && device.errors.healed > 0, "{device:?}");
        assert_eq!(out(&pool), [Some(SitsOutWhy::Errs), None]);
        let before = device.errors.read;
        holds_each(&pool, id, &model).await;
        assert_eq!(pool.status().pool.devices[0].errors.read, before, "it is not read");
        let settings = pool.current_settings();
        pool.set(pool::Settings { sit_out: Duration::ZERO, ..settings }).expect("set");
        rt.sleep(Duration::from_secs(601)).await;
        assert_eq!(out(&pool), [None, None]);
        break_sectors(&world, file);
        holds_each(&pool, id, &model).await;
        assert_eq!(out(&pool), [None, None], "none sits out");
        // What was bad is written again in the background; a block that was read from the other
        // device meanwhile is no reason by itself.
        rt.sleep(Duration::from_secs(601)).await;
        pool.set(pool::Settings { sit_out: Duration::from_secs(60), ..pool.current_settings() })
            .expect("set");
        rot(&world, file);
        holds_each(&pool, id, &model).await;
        let errors = pool.status().pool.devices[0].errors;
        assert!(errors.checksum > 100, "{errors:?}");
        assert_eq!(out(&pool), [None, None], "what is read and wrong is healed, and no reason");
        pool.close().await.expect("close");
    });
}
