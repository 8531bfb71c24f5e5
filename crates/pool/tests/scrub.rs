//! Scrubs in simulation: what rots is found, healed, or named; what changes meanwhile is not
//! reported.

use std::cell::Cell;
use std::rc::Rc;

use base::{BLOCK, BLOCK_U64, Duration, ErrorKind, IoError, Lba, VolumeId};
use model::scrub::{BlockKind, PoolScrub, ScrubState};
use pool::{Pool, ScrubOptions};
use rt::{Op, Rt};
use sim::Fault;
use testkit::{Effect, MIB, Mirror, only_byte, open, scrubbed};

const BLOCKS: u64 = 2048;

fn mirror(seed: u64, disks: usize, copies: u8) -> Mirror {
    Mirror::new(seed, (disks, copies), |pool| async move {
        let id = pool.create_volume("v", BLOCKS * BLOCK_U64, 4096).await.expect("volume");
        // In no order, so that trees have leaves.
        for i in 0..BLOCKS {
            fill_one(&pool, id, i * 911 % BLOCKS, 1).await;
        }
        id
    })
}

async fn fill_one(pool: &Pool, id: VolumeId, block: u64, value: u8) {
    let mut buf = pool.bufs().take(BLOCK);
    buf.fill(value);
    pool.write(id, Lba(block), &buf.freeze()).await.expect("write");
}

/// Damages a sector of everything that a disk has from `from` on up to `to`, that is not zeros.
fn rot(bench: &Mirror, disk: usize, (from, to): (u64, u64)) -> u64 {
    let mut hit = 0;
    for offset in (from..to).step_by(BLOCK) {
        let file = bench.files[disk].file;
        if bench.world.contents(file, offset, BLOCK).iter().any(|&b| b != 0) {
            hit += u64::from(bench.world.inject(file, Fault::BitRot { offset, len: BLOCK_U64 }));
        }
    }
    hit
}

/// Starts a scrub and waits until it has ended.
async fn scrub(rt: &Rt, pool: &Pool) -> PoolScrub {
    pool.scrubs().start_scrub(ScrubOptions::default()).await.expect("start");
    scrubbed(rt, pool).await
}

fn found(status: &PoolScrub, device: &str, kind: BlockKind) -> (u64, u64) {
    let one = status.found.iter().find(|f| f.device == device && f.kind == kind);
    one.map_or((0, 0), |f| (f.found.bad, f.found.healed))
}

#[test]
fn a_pool_that_is_well_is_verified_whole_and_each_leaf_is_read_once() {
    let bench = mirror(1, 2, 2);
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let before = pool.status().pool;
        let status = scrub(&rt, &pool).await;
        assert_eq!((status.state, status.bad, status.lost), (ScrubState::Done, 0, 0), "{status:?}");
        // All data, nodes and pages of both copies.
        assert!(status.verified_bytes >= 2 * BLOCKS * BLOCK_U64, "{status:?}");
        assert!(status.verified_bytes <= before.used_bytes * 2 + 16 * MIB, "{status:?}");
        // A leaf has 60 records of a block and more.
        assert!(status.leaves <= BLOCKS / 60 + 4, "{} leaves", status.leaves);
        assert_eq!(pool.status().pool.devices[0].errors.checksum, 0);
        pool.close().await.expect("close");
    });
}

#[test]
fn rot_of_any_kind_in_one_copy_is_found_healed_and_counted() {
    let bench = mirror(2, 2, 2);
    // Behind the superblock slots: tables, then data and nodes.
    let hit = rot(&bench, 1, (MIB, 32 * MIB));
    assert!(hit > BLOCKS);
    let id = bench.volume;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let status = scrub(&rt, &pool).await;
        assert_eq!((status.state, status.lost), (ScrubState::Done, 0), "{status:?}");
        assert!(status.bad >= BLOCKS && status.healed == status.bad, "{status:?}");
        for kind in [BlockKind::Data, BlockKind::Node] {
            let (bad, healed) = found(&status, "disk1", kind);
            assert!(bad > 0 && bad == healed, "{kind:?}: {status:?}");
            assert_eq!(found(&status, "disk0", kind), (0, 0));
        }
        let again = scrub(&rt, &pool).await;
        assert_eq!((again.state, again.bad), (ScrubState::Done, 0), "{again:?}");
        pool.close().await.expect("close");
    });
    // The other device may go now.
    bench.run(|rt, files| async move {
        let pool = open(&rt, vec![files[1].clone()]).await;
        let data = pool.read(id, Lba(0), BLOCKS).await.expect("read");
        assert_eq!(only_byte(&data), Some(1));
        pool.close().await.expect("close");
    });
}

#[test]
fn checksum_trees_of_groups_that_hold_no_data_any_more_are_healed() {
    let bench = mirror(23, 2, 2);
    let id = bench.volume;
    bench.run(|rt, files| async move {
        // These groups are free then. They keep their trees, which their next use needs.
        let pool = open(&rt, files).await;
        pool.delete_volume(id).await.expect("delete");
        rt.sleep(Duration::from_secs(60)).await;
        pool.close().await.expect("close");
    });
    rot(&bench, 1, (2 * MIB, 32 * MIB));
    assert!(bench.check().damaged_copies > 0, "no tree is left");
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let status = scrub(&rt, &pool).await;
        assert_eq!((status.state, status.lost), (ScrubState::Done, 0), "{status:?}");
        pool.close().await.expect("close");
    });
    let report = bench.check();
    assert_eq!((report.damaged_copies, report.errors), (0, 0), "{report:?}");
}

#[test]
fn bad_pages_and_superblocks_are_healed_while_the_pool_serves() {
    let bench = mirror(3, 2, 2);
    let (world, disks) = (bench.world.clone(), bench.files.clone());
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        // Under the running pool: everything before the data.
        let file = disks[1].file;
        for offset in (64 << 10..2 * MIB).step_by(BLOCK) {
            if world.contents(file, offset, BLOCK).iter().any(|&b| b != 0) {
                world.inject(file, Fault::BitRot { offset, len: BLOCK_U64 });
            }
        }
        let status = scrub(&rt, &pool).await;
        assert_eq!(status.state, ScrubState::Done);
        let (bad, healed) = found(&status, "disk1", BlockKind::Page);
        assert!(bad > 0 && bad == healed, "{status:?}");
        // Superblocks, while it runs: its start has written new ones.
        let slow = ScrubOptions { rate: Some(4 * MIB), ..ScrubOptions::default() };
        pool.scrubs().start_scrub(slow).await.expect("start");
        rt.sleep(Duration::from_millis(500)).await;
        for slot in 1..=4 {
            let fault = Fault::BitRot { offset: slot * (64 << 10), len: BLOCK_U64 };
            assert!(world.inject(file, fault));
        }
        let status = scrubbed(&rt, &pool).await;
        assert_eq!(found(&status, "disk1", BlockKind::Superblock), (1, 1), "{status:?}");
        let again = scrub(&rt, &pool).await;
        assert_eq!((again.state, again.bad), (ScrubState::Done, 0), "{again:?}");
        pool.close().await.expect("close");
    });
    bench.run(|rt, files| async move {
        let pool = open(&rt, vec![files[1].clone()]).await;
        pool.close().await.expect("close");
    });
}

#[test]
fn what_is_lost_is_named_and_stays_listed_until_it_is_written_or_discarded() {
    let bench = mirror(4, 2, 2);
    let (id, world, disks) = (bench.volume, bench.world.clone(), bench.files.clone());
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        // All that holds data of the volume in both copies, a few of it.
        let mut hit = 0;
        for offset in (2 * MIB..32 * MIB).step_by(BLOCK) {
            let of = |d: usize| world.contents(disks[d].file, offset, BLOCK);
            if hit < 5 && of(0).iter().all(|&b| b == 1) && of(1).iter().all(|&b| b == 1) {
                for disk in &disks {
                    world.inject(disk.file, Fault::BitRot { offset, len: BLOCK_U64 });
                }
                hit += 1;
            }
        }
        assert_eq!(hit, 5);
        let status = scrub(&rt, &pool).await;
        assert_eq!(
            (status.state, status.lost, status.healed),
            (ScrubState::Done, 5, 0),
            "{status:?}"
        );
        let blocks = |s: &PoolScrub| s.lost_blocks.iter().map(|l| l.length).sum::<u64>();
        assert_eq!(blocks(&status), 5 * BLOCK_U64);
        assert!(status.lost_blocks.iter().all(|l| l.volume == "v"), "{status:?}");
        let at = status.lost_blocks[0].offset / BLOCK_U64;
        let e = pool.read(id, Lba(at), 1).await.expect_err("it is lost");
        assert_eq!(e.kind, ErrorKind::Io);
        pool.close().await.expect("close");
    });
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let status = pool.scrubs().scrub_status().await;
        assert_eq!(status.lost_blocks.iter().map(|l| l.length).sum::<u64>(), 5 * BLOCK_U64);
        for l in &status.lost_blocks[1..] {
            let lba = Lba(l.offset / BLOCK_U64);
            pool.discard(id, lba, lba.plus(l.length / BLOCK_U64)).await.expect("discard");
        }
        let first = &status.lost_blocks[0];
        for i in 0..first.length / BLOCK_U64 {
            fill_one(&pool, id, first.offset / BLOCK_U64 + i, 7).await;
        }
        pool.commit().await.expect("commit");
        assert_eq!(pool.scrubs().scrub_status().await.lost_blocks, []);
        let again = scrub(&rt, &pool).await;
        assert_eq!((again.state, again.bad), (ScrubState::Done, 0), "{again:?}");
        pool.close().await.expect("close");
    });
}

#[test]
fn a_node_without_a_good_copy_is_told_until_a_scrub_passes_over_nothing() {
    let bench = mirror(8, 2, 2);
    // Nodes are the blocks behind the tables that hold no data of the volume.
    let is_node = |offset: &u64| {
        let block = bench.world.contents(bench.files[0].file, *offset, BLOCK);
        block.iter().any(|&b| b != 1) && block.iter().any(|&b| b != 0)
    };
    let nodes: Vec<u64> = (2 * MIB..32 * MIB).step_by(BLOCK).filter(is_node).collect();
    let rules = bench.rules.clone();
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        rules.set(move |op| {
            let Op::Read { offset, bufs, .. } = op else { return None };
            let end = offset + bufs.iter().map(|b| b.len() as u64).sum::<u64>();
            nodes.iter().any(|n| (*offset..end).contains(n)).then_some((IoError::IO, Effect::No))
        });
        let status = scrub(&rt, &pool).await;
        assert!(status.state == ScrubState::Done && status.passed_over > 0, "{status:?}");
        assert!(status.incomplete && status.lost == status.passed_over, "{status:?}");
        rules.clear();
        pool.close().await.expect("close");
    });
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let status = pool.scrubs().scrub_status().await;
        assert!(status.incomplete && status.passed_over > 0, "{status:?}");
        let of = ScrubOptions { device: Some("disk0".into()), rate: None };
        pool.scrubs().start_scrub(of).await.expect("start");
        let status = scrubbed(&rt, &pool).await;
        assert!(status.passed_over == 0 && status.incomplete, "{status:?}");
        let status = scrub(&rt, &pool).await;
        assert!(status.lost == 0 && !status.incomplete, "{status:?}");
        pool.close().await.expect("close");
    });
}

#[test]
fn pages_without_a_good_copy_are_written_again_from_memory() {
    let bench = mirror(9, 2, 2);
    let (id, world, disks) = (bench.volume, bench.world.clone(), bench.files.clone());
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        // Bitmaps of all groups in use are in memory from now on.
        assert_eq!(scrub(&rt, &pool).await.bad, 0);
        for offset in (MIB..2 * MIB).step_by(BLOCK) {
            for disk in &disks {
                if world.contents(disk.file, offset, BLOCK).iter().any(|&b| b != 0) {
                    world.inject(disk.file, Fault::BitRot { offset, len: BLOCK_U64 });
                }
            }
        }
        let status = scrub(&rt, &pool).await;
        assert_eq!((status.state, status.lost, status.incomplete), (ScrubState::Done, 0, false));
        let (bad, healed) = found(&status, "disk1", BlockKind::Page);
        // Of tables at least two pages, and of the bitmaps of two groups one each.
        assert!(bad >= 4 && bad == healed, "{status:?}");
        let again = scrub(&rt, &pool).await;
        assert_eq!((again.state, again.bad), (ScrubState::Done, 0), "{again:?}");
        pool.close().await.expect("close");
    });
    assert!(bench.check().is_clean());
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let data = pool.read(id, Lba(0), BLOCKS).await.expect("read");
        assert_eq!(only_byte(&data), Some(1));
        fill_one(&pool, id, 0, 2).await;
        pool.close().await.expect("close");
    });
    assert!(bench.check().is_clean());
}

#[test]
fn that_more_is_lost_than_the_list_holds_is_known_until_a_scrub_finds_less() {
    let bench = mirror(11, 2, 2);
    let (id, world, disks) = (bench.volume, bench.world.clone(), bench.files.clone());
    // Thirty blocks that are no neighbours.
    let is_data = |at: &u64| world.contents(disks[0].file, *at, BLOCK).iter().all(|&b| b == 1);
    let data: Vec<u64> = (2 * MIB..32 * MIB).step_by(BLOCK).filter(is_data).collect();
    for &offset in data.iter().step_by(10).take(30) {
        for disk in &disks {
            assert!(world.inject(disk.file, Fault::BitRot { offset, len: BLOCK_U64 }));
        }
    }
    let mend = async move |pool: &Pool, status: &PoolScrub| {
        for l in &status.lost_blocks {
            for i in 0..l.length / BLOCK_U64 {
                fill_one(pool, id, l.offset / BLOCK_U64 + i, 1).await;
            }
        }
        pool.commit().await.expect("commit");
        pool.scrubs().scrub_status().await
    };
    let mend_first = mend;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let status = scrub(&rt, &pool).await;
        assert_eq!((status.lost, status.lost_blocks.len()), (30, 18), "{status:?}");
        assert!(status.more_lost);
        let status = mend_first(&pool, &status).await;
        assert!(status.lost_blocks.is_empty() && status.more_lost, "{status:?}");
        pool.close().await.expect("close");
    });
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        assert!(pool.scrubs().scrub_status().await.more_lost);
        let status = scrub(&rt, &pool).await;
        assert_eq!((status.lost, status.lost_blocks.len()), (12, 12), "{status:?}");
        assert!(!status.more_lost);
        let status = mend(&pool, &status).await;
        assert!(status.lost_blocks.is_empty() && !status.more_lost, "{status:?}");
        pool.close().await.expect("close");
    });
    assert!(bench.check().is_clean());
}

#[test]
fn what_clients_write_and_discard_meanwhile_is_not_reported() {
    for seed in 0..8 {
        let bench = mirror(100 + seed, 2, 2);
        let id = bench.volume;
        bench.run(move |rt, files| async move {
            let pool = open(&rt, files).await;
            let over = Rc::new(Cell::new(false));
            let mut clients = Vec::new();
            for client in 0..4u64 {
                let (pool, rt, over) = (pool.clone(), rt.clone(), over.clone());
                clients.push(rt.clone().spawn(async move {
                    let mut i = client;
                    while !over.get() {
                        let block = i * 7919 % BLOCKS;
                        match i % 7 {
                            0 => {
                                pool.discard(id, Lba(block), Lba(block + 1)).await.expect("discard")
                            }
                            1 => pool.commit().await.expect("commit"),
                            _ => fill_one(&pool, id, block, 1).await,
                        }
                        i += 4;
                        rt.sleep(Duration::from_micros(100)).await;
                    }
                }));
            }
            for _ in 0..3 {
                let status = scrub(&rt, &pool).await;
                assert_eq!(
                    (status.state, status.bad, status.lost),
                    (ScrubState::Done, 0, 0),
                    "{status:?}"
                );
            }
            over.set(true);
            for client in clients {
                client.await.expect("it ended");
            }
            pool.close().await.expect("close");
        });
        assert!(bench.check().is_clean());
    }
}

#[test]
fn it_rests_goes_on_after_a_restart_and_is_cancelled() {
    let bench = mirror(5, 2, 2);
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let slow = ScrubOptions { rate: Some(MIB), ..ScrubOptions::default() };
        pool.scrubs().start_scrub(slow).await.expect("start");
        let e = pool.scrubs().start_scrub(ScrubOptions::default()).await.expect_err("one runs");
        assert_eq!(e.kind, ErrorKind::Invalid);
        rt.sleep(Duration::from_secs(3)).await;
        pool.scrubs().pause_scrub().await.expect("pause");
        rt.sleep(Duration::from_secs(1)).await;
        let paused = pool.scrubs().scrub_status().await;
        // Of 8 MiB in each copy.
        let (done, all) = (paused.verified_bytes, paused.all_bytes);
        assert!(done > all / 10 && done < all * 9 / 10, "{paused:?}");
        rt.sleep(Duration::from_secs(10)).await;
        assert_eq!(pool.scrubs().scrub_status().await.verified_bytes, done);
        pool.close().await.expect("close");
    });
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let paused = pool.scrubs().scrub_status().await;
        assert_eq!(paused.state, ScrubState::Paused);
        assert!(paused.verified_bytes > 0);
        pool.scrubs().resume_scrub(Some(MIB)).await.expect("resume");
        rt.sleep(Duration::from_secs(1)).await;
        // Without a word it goes on at the next start.
        pool.close().await.expect("close");
    });
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let status = scrubbed(&rt, &pool).await;
        assert_eq!((status.state, status.bad), (ScrubState::Done, 0));
        // What was verified before the restart was not verified again.
        assert!(status.verified_bytes < status.all_bytes * 5 / 4 + 8 * MIB, "{status:?}");
        let slow = ScrubOptions { rate: Some(64 << 10), ..ScrubOptions::default() };
        pool.scrubs().start_scrub(slow).await.expect("start");
        pool.scrubs().cancel_scrub().await.expect("cancel");
        let status = pool.scrubs().scrub_status().await;
        assert_eq!(status.state, ScrubState::Cancelled);
        assert!(pool.scrubs().resume_scrub(None).await.is_err());
        pool.close().await.expect("close");
    });
}

/// One is cancelled just before its end, and the next one is started: the next one is not done with
/// the end of the first, and does not count what that had in flight.
#[test]
fn the_end_of_a_cancelled_scrub_is_not_that_of_the_next_one() {
    let bench = mirror(11, 2, 2);
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let whole = scrub(&rt, &pool).await.verified_bytes;
        let mut late = 0;
        for left in (0..64 * BLOCK_U64).step_by(2 * BLOCK) {
            pool.scrubs().start_scrub(ScrubOptions::default()).await.expect("start");
            loop {
                let status = pool.scrubs().scrub_status().await;
                if status.verified_bytes + left >= whole || status.state == ScrubState::Done {
                    break;
                }
                rt.sleep(Duration::from_micros(5)).await;
            }
            late += u32::from(pool.scrubs().cancel_scrub().await.is_ok());
            let status = scrub(&rt, &pool).await;
            assert_eq!((status.state, status.bad), (ScrubState::Done, 0));
            assert_eq!(status.verified_bytes, whole, "{left}: {status:?}");
        }
        assert!(late > 0, "none was cancelled");
        pool.close().await.expect("close");
    });
}

#[test]
fn a_scrub_keeps_its_rate_over_a_restart() {
    let bench = mirror(12, 2, 2);
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        pool.scrubs()
            .start_scrub(ScrubOptions { rate: Some(MIB), device: None })
            .await
            .expect("start");
        rt.sleep(Duration::from_secs(1)).await;
        pool.close().await.expect("close");
    });
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let before = pool.scrubs().scrub_status().await;
        assert_eq!((before.state, before.rate_limit), (ScrubState::Running, Some(MIB)));
        rt.sleep(Duration::from_secs(3)).await;
        let after = pool.scrubs().scrub_status().await;
        // Of 8 MiB in each of two copies.
        let read = after.verified_bytes - before.verified_bytes;
        assert!(after.state == ScrubState::Running && read <= 8 * MIB, "{after:?}");
        assert_eq!(scrubbed(&rt, &pool).await.state, ScrubState::Done);
        assert_eq!(scrub(&rt, &pool).await.rate_limit, None, "the next one has none of its own");
        pool.close().await.expect("close");
    });
}

#[test]
fn one_device_alone_is_read_and_healed_from_the_other() {
    let bench = mirror(6, 2, 2);
    rot(&bench, 1, (2 * MIB, 32 * MIB));
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let of = |device: &str| ScrubOptions { device: Some(device.into()), rate: None };
        let e = pool.scrubs().start_scrub(of("disk7")).await.expect_err("there is none");
        assert!(e.kind == ErrorKind::NotFound && e.context.contains("disk0"), "{e}");
        pool.scrubs().start_scrub(of("disk0")).await.expect("start");
        let status = scrubbed(&rt, &pool).await;
        assert_eq!((status.state, status.bad), (ScrubState::Done, 0), "{status:?}");
        pool.scrubs().start_scrub(of("disk1")).await.expect("start");
        let status = scrubbed(&rt, &pool).await;
        assert!(status.bad > BLOCKS && status.bad == status.healed, "{status:?}");
        assert_eq!(status.device.as_deref(), Some("disk1"));
        pool.close().await.expect("close");
    });
}

#[test]
fn one_begins_by_itself_when_it_is_due() {
    let bench = mirror(7, 1, 1);
    bench.run(|rt, files| async move {
        let settings = pool::Settings {
            unix_time_at_zero: 1_790_000_000,
            scrub_every: Duration::from_secs(86_400),
            ..pool::Settings::default()
        };
        let (pool, _) = Pool::open(&rt, files, settings).await.expect("open");
        rt.sleep(Duration::from_secs(600)).await;
        assert_eq!(pool.scrubs().scrub_status().await.state, ScrubState::Never);
        rt.sleep(Duration::from_secs(86_400)).await;
        let first = pool.scrubs().scrub_status().await;
        assert_eq!(first.state, ScrubState::Done);
        rt.sleep(Duration::from_secs(86_400)).await;
        assert!(pool.scrubs().scrub_status().await.completed_at > first.completed_at);
        // From now on after 02:30 only.
        let at = pool::Settings { scrub_at: Some(150), ..pool.current_settings() };
        pool.set(at).expect("set");
        rt.sleep(Duration::from_secs(3 * 86_400)).await;
        let status = pool.scrubs().scrub_status().await;
        assert!((9000..9000 + 600).contains(&(status.started_at % 86_400)), "{status:?}");
        let never = pool::Settings { scrub_every: Duration::ZERO, ..pool.current_settings() };
        pool.set(never).expect("set");
        let last = pool.scrubs().scrub_status().await.completed_at;
        rt.sleep(Duration::from_secs(10 * 86_400)).await;
        assert_eq!(pool.scrubs().scrub_status().await.completed_at, last);
        pool.close().await.expect("close");
    });
}
