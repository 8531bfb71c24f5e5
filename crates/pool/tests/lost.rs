//! Blocks without a good copy are listed from when they are met until they are written again or
//! found good; devices on which many blocks have rotted, until a scrub finds none.

use std::cell::Cell;

use base::{BLOCK, BLOCK_U64, Duration, IoError, Lba, VolumeId};
use model::device::{DeviceState, Rot};
use model::scrub::{LostBlocks, ScrubState};
use model::status::PoolState;
use pool::{Pool, ScrubOptions};
use rt::{Op, Rt};
use sim::{DiskModel, Fault};
use testkit::{Effect, MIB, Mirror, disk, fill, moved, only_byte, open, put};

const BLOCKS: u64 = 64;

/// Two disks with a volume whose blocks hold `1`.
fn mirror(seed: u64) -> Mirror {
    Mirror::new(seed, (2, 2), |pool| async move {
        let id = pool.create_volume("v", MIB, 4096).await.expect("volume");
        fill(&pool, id, BLOCKS, 1).await;
        id
    })
}

/// Where the blocks of the volume are on a disk, in order.
fn places(bench: &Mirror, disk: usize) -> Vec<u64> {
    let file = bench.files[disk].file;
    let all = (2 * MIB..32 * MIB).step_by(BLOCK);
    all.filter(|&at| bench.world.contents(file, at, BLOCK).iter().all(|&b| b == 1)).collect()
}

/// Damages these blocks of the volume on a disk.
fn rot(bench: &Mirror, disk: usize, blocks: impl Iterator<Item = usize>) {
    let at = places(bench, disk);
    for block in blocks {
        let fault = Fault::BitRot { offset: at[block], len: BLOCK_U64 };
        assert!(bench.world.inject(bench.files[disk].file, fault));
    }
}

/// The blocks of the volume that the status of the pool lists.
fn listed(pool: &Pool) -> Vec<u64> {
    let lost = pool.status().pool.scrub.lost_blocks;
    assert!(lost.iter().all(|l| l.volume == "v"));
    let blocks = |l: &LostBlocks| (l.offset..l.offset + l.length).step_by(BLOCK);
    let mut all: Vec<u64> = lost.iter().flat_map(blocks).map(|at| at / BLOCK_U64).collect();
    all.sort_unstable();
    all
}

async fn scrub(rt: &Rt, pool: &Pool) {
    pool.scrubs().start_scrub(ScrubOptions::default()).await.expect("start");
    while pool.status().pool.scrub.state == ScrubState::Running {
        rt.sleep(Duration::from_millis(10)).await;
    }
}

/// The blocks of the volume that cannot be read.
async fn unreadable(pool: &Pool, id: VolumeId) -> Vec<u64> {
    let mut out = Vec::new();
    for at in 0..BLOCKS {
        match pool.read(id, Lba(at), 1).await {
            Ok(data) => assert_eq!(only_byte(&data), Some(1)),
            Err(_) => out.push(at),
        }
    }
    out
}

#[test]
fn a_lost_block_is_listed_from_the_read_that_met_it_until_it_is_written() {
    let bench = mirror(1);
    let id = bench.volume;
    (0..2).for_each(|disk| rot(&bench, disk, [7, 8, 30, 40].into_iter()));
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        // In one request: the first is met.
        pool.read(id, Lba(0), BLOCKS).await.expect_err("it has no good copy");
        assert_eq!(listed(&pool), [7]);
        assert_eq!(unreadable(&pool, id).await, [7, 8, 30, 40]);
        assert_eq!(listed(&pool), [7, 8, 30, 40]);
        pool.close().await.expect("close");
    });
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        assert_eq!(listed(&pool), [7, 8, 30, 40], "after an open");
        put(&pool, id, 8, 1, 1).await;
        pool.discard(id, Lba(30), Lba(31)).await.expect("discard");
        pool.commit().await.expect("commit");
        assert_eq!(listed(&pool), [7, 40], "no scrub was needed");
        scrub(&rt, &pool).await;
        assert_eq!(listed(&pool), [7, 40]);
        pool.delete_volume(id).await.expect("delete");
        pool.commit().await.expect("commit");
        rt.sleep(Duration::from_secs(1)).await;
        assert_eq!(listed(&pool), [0u64; 0]);
        pool.close().await.expect("close");
    });
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        assert_eq!(listed(&pool), [0u64; 0]);
        pool.close().await.expect("close");
    });
}

#[test]
fn a_lost_block_that_a_later_scrub_can_read_is_listed_no_more() {
    let bench = mirror(2);
    let (rules, id) = (bench.rules.clone(), bench.volume);
    let from = places(&bench, 0)[20];
    assert_eq!(from, places(&bench, 1)[20]);
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        rules.set(move |op| {
            let Op::Read { offset, .. } = op else { return None };
            (*offset == from).then_some((IoError::IO, Effect::No))
        });
        assert_eq!(unreadable(&pool, id).await, [20]);
        scrub(&rt, &pool).await;
        assert_eq!(listed(&pool), [20]);
        rules.clear();
        assert_eq!(listed(&pool), [20]);
        scrub(&rt, &pool).await;
        assert_eq!(listed(&pool), [0u64; 0]);
        pool.close().await.expect("close");
    });
}

/// The other copy may be good: the pool does not know it while its device is away.
#[test]
fn what_a_device_that_is_away_may_have_is_not_lost() {
    let bench = mirror(3);
    let id = bench.volume;
    rot(&bench, 0, [5].into_iter());
    bench.run(|rt, files| async move {
        let pool = open(&rt, vec![files[0].clone()]).await;
        assert_eq!(unreadable(&pool, id).await, [5]);
        assert_eq!(listed(&pool), [0u64; 0]);
        pool.close().await.expect("close");
    });
}

/// A scrub heals such a block when the device is back.
#[test]
fn what_a_device_that_is_away_may_have_is_not_lost_for_a_scrub() {
    for only in [None, Some("disk0".to_owned())] {
        let bench = mirror(9);
        let id = bench.volume;
        rot(&bench, 0, [5].into_iter());
        bench.run(|rt, files| async move {
            let pool = open(&rt, vec![files[0].clone()]).await;
            pool.scrubs()
                .start_scrub(ScrubOptions { device: only, rate: None })
                .await
                .expect("start");
            rt.sleep(Duration::from_secs(10)).await;
            let s = pool.scrubs().scrub_status().await;
            assert_eq!((s.state, s.away), (ScrubState::Done, true), "{s:?}");
            assert_eq!((s.bad, s.healed, s.lost), (1, 0, 0), "{s:?}");
            assert_eq!(listed(&pool), [0u64; 0]);
            pool.close().await.expect("close");
        });
        bench.run(|rt, files| async move {
            let pool = open(&rt, files).await;
            while pool.status().pool.state != PoolState::Online {
                rt.sleep(Duration::from_millis(10)).await;
            }
            scrub(&rt, &pool).await;
            let s = pool.scrubs().scrub_status().await;
            assert_eq!((s.bad, s.healed, s.lost, s.away), (1, 1, 0, false), "{s:?}");
            assert_eq!(unreadable(&pool, id).await, [0u64; 0]);
            pool.close().await.expect("close");
        });
    }
}

/// Of what a device that is behind has, all is good that was not written meanwhile.
#[test]
fn what_a_device_that_is_behind_has_is_healed_from_it_by_a_scrub() {
    let bench = mirror(10);
    let id = bench.volume;
    rot(&bench, 0, [7, 8].into_iter());
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        pool.returns().offline_device("disk1").await.expect("offline");
        put(&pool, id, 40, 1, 2).await;
        pool.commit().await.expect("commit");
        pool.moves().pause_moves(true);
        assert!(pool.returns().online_device("disk1").await.expect("online"));
        scrub(&rt, &pool).await;
        let s = pool.scrubs().scrub_status().await;
        assert_eq!((s.state, s.bad, s.healed, s.lost), (ScrubState::Done, 2, 2, 0), "{s:?}");
        assert_eq!(listed(&pool), [0u64; 0]);
        assert_eq!(pool.status().pool.devices[1].state, DeviceState::Behind);
        pool.returns().offline_device("disk1").await.expect("offline");
        for at in [7, 8] {
            let data = pool.read(id, Lba(at), 1).await.expect("it was healed");
            assert_eq!(only_byte(&data), Some(1));
        }
        pool.close().await.expect("close");
    });
}

/// A move meets a block that has no good copy after a scrub has ended.
#[test]
fn what_moves_find_lost_does_not_count_for_a_scrub_that_has_ended() {
    let bench = mirror(11);
    let id = bench.volume;
    let at = places(&bench, 0)[9];
    assert_eq!(at, places(&bench, 1)[9]);
    let (world, rotten) = (bench.world.clone(), bench.files.clone());
    let new = [2, 3].map(|n| disk(&bench.world, &format!("disk{n}"), DiskModel::nvme(32 * MIB)));
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        scrub(&rt, &pool).await;
        for file in rotten {
            assert!(world.inject(file.file, Fault::BitRot { offset: at, len: BLOCK_U64 }));
        }
        for (old, new) in ["disk0", "disk1"].into_iter().zip(new) {
            pool.moves().replace_device(old, new, [9; 16]).await.expect("replace");
            moved(&rt, &pool).await;
        }
        assert_eq!(listed(&pool), [9]);
        let s = pool.scrubs().scrub_status().await;
        assert_eq!((s.state, s.bad, s.lost), (ScrubState::Done, 0, 0), "{s:?}");
        assert_eq!(unreadable(&pool, id).await, [9]);
        pool.close().await.expect("close");
    });
}

/// The path to both devices is gone for a minute, while one block of both has rotted.
#[test]
fn what_devices_hold_that_answer_nothing_is_not_lost() {
    let bench = mirror(5);
    let (rules, id) = (bench.rules.clone(), bench.volume);
    (0..2).for_each(|disk| rot(&bench, disk, [9].into_iter()));
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        // What reads need is in memory, but not what the scrub needs.
        pool.prefetch(id, Lba(0), Lba(BLOCKS)).await.expect("prefetch");
        rules.set(|op| matches!(op, Op::Read { .. }).then_some((IoError::IO, Effect::No)));
        pool.scrubs().start_scrub(ScrubOptions::default()).await.expect("start");
        assert_eq!(unreadable(&pool, id).await.len() as u64, BLOCKS);
        rt.sleep(Duration::from_secs(60)).await;
        assert_eq!(listed(&pool), [0u64; 0]);
        let status = pool.scrubs().scrub_status().await;
        assert_eq!((status.state, status.lost), (ScrubState::Running, 0), "{status:?}");
        rules.clear();
        rt.sleep(Duration::from_secs(10)).await;
        let status = pool.scrubs().scrub_status().await;
        assert_eq!((status.state, status.lost), (ScrubState::Done, 1), "{status:?}");
        assert_eq!(listed(&pool), [9]);
        pool.close().await.expect("close");
    });
}

/// The path to both devices is gone for some reads, and there again at any of them.
#[test]
fn what_devices_did_not_answer_for_a_moment_is_not_lost() {
    let bench = mirror(7);
    let (rules, id) = (bench.rules.clone(), bench.volume);
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        pool.prefetch(id, Lba(0), Lba(BLOCKS)).await.expect("prefetch");
        let mut failed = 0;
        for gone in 1..24 {
            let left = Cell::new(gone);
            rules.set(move |op| {
                let fails = matches!(op, Op::Read { .. }) && left.get() > 0;
                fails.then(|| left.set(left.get() - 1)).map(|()| (IoError::IO, Effect::No))
            });
            failed += u64::from(pool.read(id, Lba(gone), 1).await.is_err());
            rules.clear();
            assert_eq!(listed(&pool), [0u64; 0], "after {gone} reads that were not answered");
        }
        assert!(failed > 0);
        assert_eq!(unreadable(&pool, id).await, [0u64; 0]);
        pool.close().await.expect("close");
    });
}

/// Some blocks have rotted on one device, and the other answers nothing when these are asked for:
/// once, twice, three times. What it has of them is good.
#[test]
fn what_a_device_did_not_answer_for_a_moment_is_healed_by_a_scrub() {
    let bench = mirror(8);
    let (at, rotten) = (places(&bench, 0), [7, 20, 40]);
    rot(&bench, 1, rotten.into_iter());
    let left: Vec<(u64, Cell<usize>)> =
        rotten.iter().zip(1..).map(|(block, times)| (at[*block], Cell::new(times))).collect();
    let (rules, other) = (bench.rules.clone(), bench.files[0].file);
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        rules.set(move |op| match op {
            Op::Read { file, offset, .. } if *file == other => {
                let (_, left) = left.iter().find(|(at, left)| at == offset && left.get() > 0)?;
                left.set(left.get() - 1);
                Some((IoError::NO_DEVICE, Effect::No))
            }
            _ => None,
        });
        scrub(&rt, &pool).await;
        let status = pool.status().pool.scrub;
        assert_eq!(
            (status.state, status.bad, status.healed, status.lost),
            (ScrubState::Done, 3, 3, 0)
        );
        assert_eq!(listed(&pool), [0u64; 0]);
        pool.close().await.expect("close");
    });
}

/// Whether a block is lost is asked of the devices that have it, and of no other.
#[test]
fn a_read_does_not_wait_for_a_device_that_has_no_copy() {
    let bench = Mirror::new(6, (3, 2), |pool| async move {
        let id = pool.create_volume("v", MIB, 4096).await.expect("volume");
        fill(&pool, id, BLOCKS, 1).await;
        id
    });
    let id = bench.volume;
    let (with, without): (Vec<usize>, Vec<usize>) =
        (0..3).partition(|&disk| !places(&bench, disk).is_empty());
    with.iter().for_each(|&disk| rot(&bench, disk, [9].into_iter()));
    let (world, still) = (bench.world.clone(), bench.files[without[0]].file);
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        pool.prefetch(id, Lba(0), Lba(BLOCKS)).await.expect("prefetch");
        assert!(world.inject(still, Fault::StuckForever));
        let began = rt.now();
        assert_eq!(unreadable(&pool, id).await, [9]);
        assert!(rt.now().since(began) < Duration::from_secs(1));
        assert_eq!(listed(&pool), [9]);
        world.revive(still);
        pool.close().await.expect("close");
    });
}

#[test]
fn rot_of_a_device_is_told_until_a_scrub_finds_none() {
    let bench = mirror(4);
    rot(&bench, 1, 10..50);
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let rots = || {
            let devices = pool.status().pool.devices;
            devices.into_iter().map(|d| d.rot.map(|rot| rot.blocks)).collect::<Vec<_>>()
        };
        assert_eq!(rots(), [None, None]);
        scrub(&rt, &pool).await;
        assert_eq!(rots(), [None, Some(40)], "it was mended, and may come again");
        rt.sleep(Duration::from_secs(100)).await;
        let rot: Option<Rot> = pool.status().pool.devices[1].rot;
        assert!(rot.is_some_and(|rot| (99..=101).contains(&rot.since_s)), "{rot:?}");
        let only = ScrubOptions { device: Some("disk0".into()), ..ScrubOptions::default() };
        pool.scrubs().start_scrub(only).await.expect("start");
        rt.sleep(Duration::from_secs(10)).await;
        assert_eq!(rots(), [None, Some(40)], "another device was scrubbed");
        scrub(&rt, &pool).await;
        assert_eq!(rots(), [None, None]);
        pool.close().await.expect("close");
    });
}

#[test]
fn a_block_that_is_read_again_and_again_is_one() {
    let bench = mirror(4);
    (0..2).for_each(|disk| rot(&bench, disk, [3, 9].into_iter()));
    let id = bench.volume;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        for _ in 0..20 {
            assert_eq!(unreadable(&pool, id).await, [3, 9]);
        }
        for device in pool.status().pool.devices {
            assert!(device.errors.checksum >= 20, "reads are counted there");
            assert_eq!(device.rot.map(|rot| rot.blocks), Some(2));
        }
        pool.close().await.expect("close");
    });
}
