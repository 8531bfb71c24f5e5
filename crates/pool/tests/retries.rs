//! What the pool does again after an error, and what it must not: with devices that answer so while
//! they may have done it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{BLOCK, BLOCK_U64, Duration, ErrorKind, IoError, Lba};
use model::device::DeviceState;
use model::status::PoolState;
use pool::Pool;
use rt::{FileId, Op, Rt};
use sim::Fault;
use testkit::{Effect, MIB, Mirror, Rules, fill, is_superblock, open, put, writes_to};

/// A pool of two copies on two disks, with a volume whose first 100 blocks hold `1`.
fn mirror(seed: u64) -> Mirror {
    Mirror::new(seed, (2, 2), |pool| async move {
        let id = pool.create_volume("v", 1 << 30, 4096).await.expect("volume");
        fill(&pool, id, 100, 1).await;
        id
    })
}

/// A durable write that failed may have lost more than itself: a superblock that was refused drops
/// its device, for whatever reason.
#[test]
fn a_superblock_that_was_refused_drops_the_device() {
    for done in [Effect::Yes, Effect::No] {
        let bench = mirror(1);
        let (rules, id) = (bench.rules.clone(), bench.volume);
        bench.run(|rt, files| async move {
            let pool = open(&rt, files.clone()).await;
            let second = files[1].file;
            rules.set(move |op| {
                let refused = is_superblock(op) && writes_to(op, second);
                refused.then_some((IoError::NO_SPACE, done))
            });
            put(&pool, id, 1000, 10, 1).await;
            pool.commit().await.expect("without the second");
            let status = pool.status().pool;
            assert_eq!(
                (status.state, status.devices[1].state),
                (PoolState::Degraded, DeviceState::Failed)
            );
            pool.close().await.expect("close");
        });
        bench.rules.clear();
        bench.run(|rt, files| async move {
            let pool = open(&rt, files).await;
            assert_eq!(pool.status().pool.devices[1].state, DeviceState::Stale);
            assert_eq!(pool.read(id, Lba(1000), 10).await.expect("read")[0][0], 1);
            pool.close().await.expect("close");
        });
    }
}

/// Where no device is left that has everything, nothing is written any more after a superblock that
/// was refused, which may stand on a device nonetheless. The next start takes it, or the one
/// before.
#[test]
fn nothing_is_written_after_a_superblock_that_was_refused() {
    for done in [Effect::Yes, Effect::No] {
        let bench = mirror(2);
        let (world, rules, id) = (bench.world.clone(), bench.rules.clone(), bench.volume);
        bench.run(|rt, files| async move {
            let pool = open(&rt, files.clone()).await;
            rules.set(move |op| is_superblock(op).then_some((IoError::IO, done)));
            let e = pool.create_volume("w", MIB, 4096).await.expect_err("no superblock");
            assert!(
                e.context.contains("superblock") && e.context.contains("restart forebay"),
                "{e}"
            );
            rules.clear();
            let disks = [files[0].file, files[1].file];
            let all = || disks.map(|disk| world.contents(disk, 0, 32 * MIB as usize));
            let before = all();
            let data = pool.bufs().zeroed(BLOCK).freeze();
            assert_eq!(
                pool.write(id, Lba(0), &data).await.expect_err("written").context,
                e.context
            );
            assert_eq!(
                pool.discard(id, Lba(0), Lba(9)).await.expect_err("discarded").context,
                e.context
            );
            assert_eq!(pool.commit().await.expect_err("committed").context, e.context);
            assert_eq!(pool.read(id, Lba(0), 100).await.expect("reads go on")[0][0], 1);
            rt.sleep(Duration::from_secs(30)).await;
            assert!(all() == before, "something was written");
            let status = pool.status().pool;
            assert_eq!(
                (status.state, status.trouble),
                (PoolState::Failed, Some(e.context.clone()))
            );
            assert_eq!(
                pool.close().await.expect_err("nothing is committed at the end either").context,
                e.context
            );
        });
        bench.run(|rt, files| async move {
            let pool = open(&rt, files).await;
            assert_eq!(pool.read(id, Lba(0), 100).await.expect("read")[0][0], 1);
            put(&pool, id, 0, 100, 1).await;
            pool.close().await.expect("close");
        });
    }
}

/// A volume whose creation was reported as failed does not come to be when the commit is tried
/// again.
#[test]
fn what_was_given_up_is_not_there_when_the_commit_succeeds() {
    let bench = mirror(7);
    let (rules, id) = (bench.rules.clone(), bench.volume);
    bench.run(|rt, files| async move {
        let pool = open(&rt, files.clone()).await;
        no_pages(&rules, files[1].file);
        let e = pool.create_volume("w", MIB, 4096).await.expect_err("no pages");
        assert_eq!(e.kind, ErrorKind::NoSpace, "{e}");
        // And a group is formed.
        put(&pool, id, 1000, 400, 1).await;
        rules.clear();
        pool.commit().await.expect("commit");
        assert!(pool.find_volume("w").is_none());
        pool.close().await.expect("close");
    });
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        assert!(pool.find_volume("w").is_none(), "its creation had failed");
        assert_eq!(pool.status().pool.state, PoolState::Online);
        pool.close().await.expect("close");
    });
}

/// Torture's seed 113750. A second try writes other pages, as the creation was given up. A device
/// that has lost them has those of the first try: good ones, of the same generation. They have
/// another number, so it is known which count.
#[test]
fn the_pages_of_two_tries_are_two_versions() {
    let bench = mirror(9);
    let (world, rules, id) = (bench.world.clone(), bench.rules.clone(), bench.volume);
    let seen = Rc::new(RefCell::new(BTreeMap::<(u64, u64), Vec<Vec<u8>>>::new()));
    let pages = seen.clone();
    bench.run(|rt, files| async move {
        let pool = open(&rt, files.clone()).await;
        world.watch_writes(files[0].file, move |at, data| {
            let blocks = data.iter().flat_map(|slice| slice.chunks(BLOCK));
            for (block, at) in blocks.zip((at..).step_by(BLOCK)) {
                if block.starts_with(b"FBPG") {
                    let generation = u64::from_le_bytes(block[16..24].try_into().expect("8"));
                    pages.borrow_mut().entry((at, generation)).or_default().push(block.to_vec());
                }
            }
        });
        no_pages(&rules, files[1].file);
        pool.create_volume("w", MIB, 4096).await.expect_err("no pages");
        // And a group is formed.
        put(&pool, id, 1000, 400, 1).await;
        rules.clear();
        pool.commit().await.expect("commit");
        pool.close().await.expect("close");
    });
    let attempt = |page: &Vec<u8>| u32::from_le_bytes(page[40..44].try_into().expect("4"));
    let mut others = 0;
    for ((at, generation), versions) in &*seen.borrow() {
        for two in versions.windows(2) {
            assert!(attempt(&two[1]) > attempt(&two[0]), "at {at}, generation {generation}");
            others += u32::from(two[0][56..4088] != two[1][56..4088]);
        }
    }
    assert!(others > 0, "none of the pages has changed");
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        assert!(pool.find_volume("w").is_none() && pool.find_volume("v").is_some());
        pool.close().await.expect("close");
    });
}

/// A flush for which there is no space has lost what it cannot say: that device is dropped, and the
/// pool goes on.
#[test]
fn a_flush_without_space_drops_the_device_and_not_the_pool() {
    let bench = mirror(2);
    let (rules, id) = (bench.rules.clone(), bench.volume);
    bench.run(|rt, files| async move {
        let pool = open(&rt, files.clone()).await;
        let second = files[1].file;
        rules.set(move |op| match op {
            Op::Flush { file } if *file == second => Some((IoError::NO_SPACE, Effect::No)),
            _ => None,
        });
        put(&pool, id, 1000, 10, 1).await;
        pool.commit().await.expect("without the second");
        let status = pool.status().pool;
        assert_eq!(
            (status.state, status.devices[1].state),
            (PoolState::Degraded, DeviceState::Failed)
        );
        pool.close().await.expect("close");
    });
}

/// A bad block that cannot be rewritten for want of space is counted, and read from the other copy.
#[test]
fn a_heal_without_space_drops_nothing() {
    let bench = mirror(3);
    let (world, rules, id) = (bench.world.clone(), bench.rules.clone(), bench.volume);
    bench.run(|rt, files| async move {
        let pool = open(&rt, files.clone()).await;
        let first = files[0].file;
        assert!(world.inject(first, Fault::LoseNextWrite));
        put(&pool, id, 1000, 1, 1).await;
        pool.commit().await.expect("commit");
        rules.set(move |op| writes_to(op, first).then_some((IoError::NO_SPACE, Effect::No)));
        // Reads go to either disk.
        for _ in 0..40 {
            pool.read(id, Lba(1000), 1).await.expect("the other copy is good");
            rt.sleep(Duration::from_millis(5)).await;
        }
        let device = pool.status().pool.devices.swap_remove(0);
        assert!(device.errors.checksum > 0 && device.errors.write > 0, "{device:?}");
        assert_eq!((device.state, device.errors.healed), (DeviceState::Online, 0));
        rules.clear();
        pool.close().await.expect("close");
    });
}

/// No page of tables and bitmaps gets to `disk`, for want of space: commits fail, and can be tried
/// again.
fn no_pages(rules: &Rules, disk: FileId) {
    rules.set(move |op| match op {
        Op::Write { offset, .. } if writes_to(op, disk) && (MIB..2 * MIB).contains(offset) => {
            Some((IoError::NO_SPACE, Effect::No))
        }
        _ => None,
    });
}

/// Until what a deleted volume held is free.
async fn expect_freed(rt: &Rt, pool: &Pool) {
    for _ in 0..40 {
        rt.sleep(Duration::from_millis(100)).await;
        if pool.status().pool.used_bytes < 50 * BLOCK_U64 {
            return;
        }
    }
    panic!("{} bytes are still in use", pool.status().pool.used_bytes);
}

#[test]
fn a_deletion_whose_commit_failed_frees_what_it_deletes() {
    let bench = mirror(4);
    let (rules, id) = (bench.rules.clone(), bench.volume);
    bench.run(|rt, files| async move {
        let pool = open(&rt, files.clone()).await;
        no_pages(&rules, files[1].file);
        pool.delete_volume(id).await.expect_err("no pages");
        rules.clear();
        pool.commit().await.expect("commit");
        expect_freed(&rt, &pool).await;
        pool.close().await.expect("close");
    });
}

#[test]
fn an_error_that_passes_does_not_end_the_freeing() {
    let bench = mirror(5);
    let (rules, id) = (bench.rules.clone(), bench.volume);
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        pool.delete_volume(id).await.expect("delete");
        // The root of its mapping is not in memory.
        rules.set(|op| matches!(op, Op::Read { .. }).then_some((IoError::IO, Effect::No)));
        rt.sleep(Duration::from_millis(20)).await;
        assert!(pool.status().pool.devices[0].errors.read > 0);
        rules.clear();
        expect_freed(&rt, &pool).await;
        pool.close().await.expect("close");
    });
}

/// No client finds a volume that may still be given up: what was written to it then would never be
/// freed.
#[test]
fn a_volume_is_found_when_it_is_durable() {
    let bench = mirror(6);
    let rules = bench.rules.clone();
    bench.run(|rt, files| async move {
        let pool = open(&rt, files.clone()).await;
        no_pages(&rules, files[1].file);
        for fails in [true, false] {
            let p = pool.clone();
            let creating = rt.spawn(async move { p.create_volume("w", MIB, 4096).await });
            rt.settled().await;
            let e = pool.create_volume("w", MIB, 4096).await.expect_err("its name is taken");
            assert_eq!(e.kind, ErrorKind::Exists);
            assert!(pool.find_volume("w").is_none() && pool.volumes().len() == 1);
            assert_eq!(creating.await.expect("alive").is_err(), fails);
            assert_eq!(pool.find_volume("w").is_none(), fails);
            rules.clear();
        }
        pool.close().await.expect("close");
    });
}

#[test]
fn a_commit_that_failed_is_tried_again_by_itself() {
    let bench = mirror(9);
    let (rules, id) = (bench.rules.clone(), bench.volume);
    bench.run(|rt, files| async move {
        let first = files[0].file;
        let pool = open(&rt, files).await;
        put(&pool, id, 1000, 10, 1).await;
        no_pages(&rules, first);
        pool.commit().await.expect_err("no pages");
        rules.clear();
        let before = pool.committed();
        rt.sleep(Duration::from_secs(30)).await;
        assert!(pool.committed() > before, "nobody tried it again");
        pool.close().await.expect("close");
    });
}
