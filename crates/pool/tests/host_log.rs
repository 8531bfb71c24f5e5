//! What was answered outlives the process: the next open enters it from the host log. A loss of
//! power takes the log.

use std::rc::Rc;

use base::{BLOCK_U64, Duration, ErrorKind, Lba, StorageError, VolumeId};
use pool::{DeviceFile, Link, Pool, Settings};
use rt::{Order, Rt};
use sim::{DiskModel, Fault, FlushLoss, Times, World};
use testkit::{MIB, block, blocks, boot, check_pool, create_pool, disk, only_byte};

const DISK: u64 = 32 * MIB;

/// Commits come only where they are asked for.
fn settings() -> Settings {
    Settings { commit_interval: Duration::from_secs(3600), ..Settings::default() }
}

async fn open(rt: &Rt, world: &World, files: &[DeviceFile]) -> Pool {
    let ready = Pool::ready(rt, files.to_vec(), settings()).await.expect("ready");
    ready.recover(Rc::new(world.host())).await.expect("recovered");
    ready.open().await.expect("open").0
}

async fn byte(pool: &Pool, volume: VolumeId, lba: u64) -> u8 {
    only_byte(&pool.read(volume, Lba(lba), 1).await.expect("read")).expect("one value")
}

fn bench(seed: u64, copies: usize) -> (World, Vec<DeviceFile>) {
    let world = World::new(seed);
    let names = ["a", "b"];
    let files =
        names[..copies].iter().map(|name| disk(&world, name, DiskModel::nvme(DISK))).collect();
    (world, files)
}

/// Runs one boot over `world`; it ends as a process that is killed.
fn live<T: 'static, F: Future<Output = T> + 'static>(
    world: &World,
    seed: u64,
    body: impl FnOnce(Rt, World) -> F,
) -> T {
    let w = world.clone();
    boot(world.backend(), Order::Seeded(seed), |rt| body(rt, w)).expect("alive")
}

/// Makes a pool with a volume of 16 MiB, and leaves what was written to it unflushed.
fn write_and_die(world: &World, files: &[DeviceFile], seed: u64) -> VolumeId {
    let files = files.to_vec();
    live(world, seed, |rt, world| async move {
        create_pool(&rt, &files, files.len() as u8).await;
        let pool = open(&rt, &world, &files).await;
        let v = pool.create_volume("v", 16 * MIB, 4096).await.expect("create");
        pool.write(v, Lba(0), &blocks(1, 64)).await.expect("write");
        pool.commit().await.expect("commit");
        // Over what is durable, over itself, over several block groups of 1 MiB, and given up.
        pool.write(v, Lba(8), &block(2)).await.expect("write");
        pool.write(v, Lba(8), &block(3)).await.expect("write");
        pool.write(v, Lba(512), &blocks(4, 1024)).await.expect("write");
        pool.discard(v, Lba(16), Lba(24)).await.expect("discard");
        pool.write(v, Lba(20), &block(5)).await.expect("write");
        pool.discard(v, Lba(600), Lba(610)).await.expect("discard");
        v
    })
}

async fn holds_all(pool: &Pool, v: VolumeId) {
    let expected = [
        (0, 1),
        (7, 1),
        (8, 3),
        (9, 1),
        (15, 1),
        (16, 0),
        (20, 5),
        (21, 0),
        (24, 1),
        (63, 1),
        (512, 4),
        (599, 4),
        (600, 0),
        (609, 0),
        (610, 4),
        (1535, 4),
        (1536, 0),
    ];
    for (lba, value) in expected {
        assert_eq!(byte(pool, v, lba).await, value, "block {lba}");
    }
}

#[test]
fn all_that_was_answered_is_there_after_a_kill() {
    for seed in 0..20 {
        let (world, files) = bench(seed, 1 + seed as usize % 2);
        let v = write_and_die(&world, &files, seed);
        let f = files.clone();
        live(&world, seed + 100, |rt, world| async move {
            let pool = open(&rt, &world, &f).await;
            assert!(pool.has_recovered());
            holds_all(&pool, v).await;
            let used = pool.volumes()[0].allocated_bytes;
            assert_eq!(used, (64 - 8 + 1 + 1024 - 10) * BLOCK_U64);
        });
        // It was durable before anything was served: power may fail now.
        world.power_cut();
        live(&world, seed + 200, |rt, world| async move {
            let report = check_pool(&rt, files.clone()).await;
            assert!(report.is_clean(), "{report:?}");
            let pool = open(&rt, &world, &files).await;
            holds_all(&pool, v).await;
            pool.close().await.expect("close");
            assert_eq!(world.host().count(), 0, "a clean stop leaves nothing");
        });
    }
}

/// A command that gives a pool more chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MoreChunks {
    DeviceGrows,
    SpareServes,
}

/// A pool has hardly any room left. While it gets more, a write takes that room, and the process
/// is killed as soon as the write is answered.
fn write_to_new_chunks_and_die(seed: u64, by: MoreChunks) {
    const MORE: u64 = 512;
    let (world, files) = bench(seed, 1);
    let small = DeviceFile { size_bytes: DISK / 2, ..files[0].clone() };
    let spare = disk(&world, "spare", DiskModel::nvme(DISK));
    let all = match by {
        MoreChunks::DeviceGrows => files,
        MoreChunks::SpareServes => vec![small.clone(), spare.clone()],
    };
    let v = live(&world, seed, |rt, world| async move {
        create_pool(&rt, std::slice::from_ref(&small), 1).await;
        let pool = Rc::new(open(&rt, &world, &[small]).await);
        let v = pool.create_volume("v", 64 * MIB, 4096).await.expect("create");
        if by == MoreChunks::SpareServes {
            pool.moves().add_spare(spare, [9; 16]).await.expect("add");
        }
        let mut at = MORE;
        let free = |pool: &Pool| {
            let status = pool.status().pool;
            status.capacity_bytes - status.used_bytes
        };
        while free(&pool) >= MORE * BLOCK_U64 {
            pool.write(v, Lba(at), &blocks(1, 64)).await.expect("write");
            at += 64;
        }
        pool.commit().await.expect("commit");
        let growing = pool.clone();
        let command = rt.spawn(async move {
            match by {
                MoreChunks::DeviceGrows => growing.moves().grow_device("a", DISK).await.map(drop),
                MoreChunks::SpareServes => {
                    growing.spares().use_spare("spare", None).await.map(drop)
                }
            }
        });
        rt.yield_now().await;
        while pool.write(v, Lba(0), &blocks(2, MORE)).await.is_err() {
            rt.yield_now().await;
        }
        drop(command);
        v
    });
    let again = all.clone();
    live(&world, seed + 100, |rt, world| async move {
        let pool = open(&rt, &world, &again).await;
        let data = pool.read(v, Lba(0), MORE).await.expect("read");
        assert_eq!(only_byte(&data), Some(2), "seed {seed}");
        pool.close().await.expect("close");
    });
    live(&world, seed + 200, |rt, _| async move {
        let report = check_pool(&rt, all).await;
        assert!(report.is_clean(), "seed {seed}: {report:?}");
    });
}

/// A chunk that the device table does not offer when the process ends would be nothing to the next
/// one.
#[test]
fn what_was_answered_while_a_device_grows_is_there_after_a_kill() {
    (0..20).for_each(|seed| write_to_new_chunks_and_die(seed, MoreChunks::DeviceGrows));
}

#[test]
fn what_was_answered_while_a_spare_begins_to_serve_is_on_no_spare_after_a_kill() {
    (0..20).for_each(|seed| write_to_new_chunks_and_die(seed, MoreChunks::SpareServes));
}

/// One of two devices has lost its power alone, and with it what was not flushed. The next start
/// has all of it from the other, and writes it to this one before it counts on that.
#[test]
fn a_copy_that_one_device_has_lost_is_written_again() {
    for seed in 0..10 {
        let (world, files) = bench(seed, 2);
        let v = write_and_die(&world, &files, seed);
        let lost = &files[seed as usize % 2];
        assert!(world.inject(lost.file, Fault::Dead));
        world.revive(lost.file);
        let f = files.clone();
        live(&world, seed + 100, |rt, world| async move {
            let pool = open(&rt, &world, &f).await;
            holds_all(&pool, v).await;
        });
        world.power_cut();
        live(&world, seed + 200, |rt, _| async move {
            let report = check_pool(&rt, files).await;
            assert!(report.is_clean() && report.damaged_copies == 0, "{report:?}");
        });
    }
}

#[test]
fn a_start_that_dies_too_leaves_it_for_the_next() {
    for seed in 0..30 {
        let (world, files) = bench(seed, 2);
        let v = write_and_die(&world, &files, seed);
        for attempt in 0..3 {
            let (f, w) = (files.clone(), world.clone());
            boot(world.backend(), Order::Seeded(seed * 10 + attempt), |rt| async move {
                let (r, w2) = (rt.clone(), w.clone());
                drop(rt.spawn(async move {
                    w2.after_operations(2 + seed + 7 * attempt).await;
                    r.kill();
                }));
                drop(open(&rt, &w, &f).await);
            });
        }
        live(&world, seed + 500, |rt, world| async move {
            holds_all(&open(&rt, &world, &files).await, v).await;
        });
    }
}

/// Both devices are away for a moment of a start, which is before the records of what was answered
/// are entered, or while they are. What the devices did not give then is not lost: the start has it
/// all, or is refused, and the next one has it.
#[test]
fn devices_that_are_away_for_a_moment_cost_nothing() {
    let (mut refused, mut opened) = (0, 0);
    for seed in 0..540 {
        let (world, files) = bench(seed, 2);
        let v = write_and_die(&world, &files, seed);
        let f = files.clone();
        let is_open = live(&world, seed + 1000, |rt, world| async move {
            let (r, w, all) = (rt.clone(), world.clone(), f.clone());
            let away = |operations: u64, time: Duration| async move {
                w.after_operations(operations).await;
                all.iter().for_each(|one| assert!(w.inject(one.file, Fault::Unreachable)));
                r.sleep(time).await;
                all.iter().for_each(|one| w.revive(one.file));
            };
            // The second reads of many blocks take longer than the first.
            let (before, while_entered) = match seed % 2 {
                0 => {
                    (Some(away(4 + seed % 60, Duration::from_micros(20 + 90 * (seed / 60)))), None)
                }
                _ => (None, Some(away(1 + seed % 60, Duration::from_millis(1 + 9 * (seed / 60))))),
            };
            before.into_iter().for_each(|away| rt.detach(away));
            let Ok(ready) = Pool::ready(&rt, f, settings()).await else { return false };
            while_entered.into_iter().for_each(|away| rt.detach(away));
            if ready.recover(Rc::new(world.host())).await.is_err() {
                return false;
            }
            ready.open().await.is_ok()
        });
        // The start may have ended before the devices were back.
        files.iter().for_each(|one| world.revive(one.file));
        if is_open {
            opened += 1;
        } else {
            refused += 1;
        }
        live(&world, seed + 2000, |rt, world| async move {
            holds_all(&open(&rt, &world, &files).await, v).await;
        });
    }
    assert!(opened > 10 && refused > 10, "{opened} {refused}");
}

/// Disk0 has the first superblock of a start on another host, which power cut short before disk1
/// had it. Here disk1 and disk2 go on, and their first superblock has what was answered. Disk0
/// calls disk1 a device in use, as disk2 does, but disk1 does not lack what disk2 has.
#[test]
fn what_a_start_completed_is_not_given_up_for_one_that_was_cut_short() {
    for turned in [false, true] {
        let world = World::new(7);
        let files: Vec<DeviceFile> =
            ["a", "b", "c"].map(|name| disk(&world, name, DiskModel::nvme(DISK))).into();
        let v = write_and_die(&world, &files, 7);
        let f = files[..2].to_vec();
        let before = world.snapshot_disk(files[1].file);
        live(&world, 8, |rt, _| async move {
            Pool::open(&rt, f, settings()).await.expect("open");
        });
        world.restore_disk(files[1].file, &before);
        let f = files[1..].to_vec();
        live(&world, 9, |rt, world| async move { drop(open(&rt, &world, &f).await) });
        let mut f = vec![files[0].clone(), files[2].clone()];
        if turned {
            f.reverse();
        }
        live(&world, 10, |rt, _| async move {
            let (pool, _) = Pool::open(&rt, f, settings()).await.expect("open");
            holds_all(&pool, v).await;
        });
    }
}

/// A start dies in the middle of its first commit, which enters what was answered. The next one has
/// other generations: had it the same, and a device lost one of its writes, what the first left
/// there would pass for it.
#[test]
fn a_start_that_died_in_its_first_commit_leaves_no_generation_to_the_next() {
    let incarnation = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight")) >> 32;
    let mut left = 0;
    for seed in 0..60 {
        let (writes, wait) = (1 + seed % 12, Duration::from_micros(15 * (seed / 12)));
        let (world, files) = bench(seed, 2);
        let _ = write_and_die(&world, &files, seed);
        let field = |offset: u64| world.contents(files[0].file, offset, 8);
        // The newest superblock, and the newest of the table pages.
        let committed = || (1..=4).map(|slot| incarnation(&field((slot << 16) + 80))).max();
        let pages = (0..64).map(|page| MIB + page * BLOCK_U64);
        let of_page = |at: u64| (field(at)[..4] == *b"FBPG").then(|| incarnation(&field(at + 16)));
        let newest = || pages.clone().filter_map(of_page).max();
        let f = files.clone();
        let _ = boot(world.backend(), Order::Seeded(seed + 50), |rt| {
            let world = world.clone();
            async move {
                let (w, clock, first) = (world.clone(), rt.clone(), f[0].file);
                rt.detach(async move {
                    w.after_writes(first, writes).await;
                    clock.sleep(wait).await;
                    clock.kill();
                });
                open(&rt, &world, &f).await;
            }
        });
        let (before, of_pages) = (committed(), newest());
        let f = files.clone();
        live(&world, seed + 100, |rt, world| async move { drop(open(&rt, &world, &f).await) });
        assert!(committed() > before.max(of_pages), "{seed}: {before:?} {of_pages:?}");
        left += u32::from(of_pages > before);
    }
    assert!(left > 0, "no start died in the middle of its first commit");
}

#[test]
fn a_power_cut_takes_the_log_and_nothing_that_was_committed() {
    for seed in 0..10 {
        let (world, files) = bench(seed, 2);
        let v = write_and_die(&world, &files, seed);
        world.power_cut();
        assert_eq!(world.host().count(), 0);
        live(&world, seed + 100, |rt, world| async move {
            let pool = open(&rt, &world, &files).await;
            assert!(!pool.has_recovered());
            for (lba, value) in [(0, 1), (8, 1), (20, 1), (63, 1), (512, 0)] {
                assert_eq!(byte(&pool, v, lba).await, value, "block {lba}");
            }
        });
    }
}

#[test]
fn the_log_of_an_older_incarnation_does_not_count() {
    let (world, files) = bench(3, 2);
    let v = write_and_die(&world, &files, 3);
    let f = files.clone();
    live(&world, 4, |rt, _| async move {
        // A host that does not know of the log, another machine for example.
        let (pool, _) = Pool::open(&rt, f, settings()).await.expect("open");
        pool.write(v, Lba(8), &block(9)).await.expect("write");
        pool.commit().await.expect("commit");
    });
    live(&world, 5, |rt, world| async move {
        let pool = open(&rt, &world, &files).await;
        assert!(!pool.has_recovered());
        assert_eq!(byte(&pool, v, 8).await, 9);
        assert_eq!(byte(&pool, v, 512).await, 0);
    });
}

/// What a flush has lost is in the drive's cache yet, and must not be entered for that.
#[test]
fn a_flush_that_failed_makes_the_log_void() {
    let (world, files) = bench(6, 1);
    let f = files.clone();
    let v = live(&world, 6, |rt, world| async move {
        create_pool(&rt, &f, 1).await;
        let pool = open(&rt, &world, &f).await;
        let v = pool.create_volume("v", MIB, 4096).await.expect("create");
        pool.write(v, Lba(0), &block(1)).await.expect("write");
        world.inject(f[0].file, Fault::FailFlush { times: Times::Next(1), loses: FlushLoss::All });
        assert!(pool.commit().await.is_err());
        assert!(pool.host_log_lost().is_some());
        v
    });
    live(&world, 7, |rt, world| async move {
        let pool = open(&rt, &world, &files).await;
        assert!(!pool.has_recovered());
        assert_eq!(byte(&pool, v, 0).await, 0);
    });
}

#[test]
fn a_host_without_memory_is_told_of_and_stops_nothing() {
    let (world, files) = bench(8, 1);
    world.host().limit(0);
    live(&world, 8, |rt, world| async move {
        create_pool(&rt, &files, 1).await;
        let pool = open(&rt, &world, &files).await;
        let why = pool.host_log_lost().expect("told");
        assert!(why.contains("no memory"), "{why}");
        assert_eq!(pool.status().pool.answers_at_risk.as_ref(), Some(&why));
        let v = pool.create_volume("v", MIB, 4096).await.expect("create");
        pool.write(v, Lba(0), &block(1)).await.expect("write");
        assert_eq!(byte(&pool, v, 0).await, 1);
        pool.close().await.expect("close");
    });
}

/// A shrink fails, and so does what lets the volume grow again. The process dies: the volume has
/// its old size, and all of its content.
#[test]
fn what_a_failed_shrink_cut_off_is_there_after_a_kill() {
    for cut in [0, 512] {
        let (world, files) = bench(14, 1);
        let f = files.clone();
        let v = live(&world, 14, |rt, world| async move {
            create_pool(&rt, &f, 1).await;
            let pool = open(&rt, &world, &f).await;
            let v = pool.create_volume("v", 64 * BLOCK_U64, 512).await.expect("create");
            pool.write(v, Lba(0), &blocks(1, 64)).await.expect("write");
            pool.commit().await.expect("commit");
            pool.write(v, Lba(3), &block(2)).await.expect("write");
            pool.cache_link()
                .link_journal(Link::Closed(Err(StorageError::new(ErrorKind::NoSpace, "full"))));
            let last = (cut > 0).then(|| block(9));
            pool.resize_volume(v, 32 * BLOCK_U64 + cut, last).await.expect_err("its commit");
            pool.resize_volume(v, 64 * BLOCK_U64, None).await.expect_err("its commit");
            v
        });
        live(&world, 15, |rt, world| async move {
            let pool = open(&rt, &world, &files).await;
            assert!(pool.has_recovered());
            assert_eq!(pool.volumes()[0].size_bytes, 64 * BLOCK_U64);
            for lba in 0..64 {
                let value = if lba == 3 { 2 } else { 1 };
                assert_eq!(byte(&pool, v, lba).await, value, "block {lba}, {cut}");
            }
        });
    }
}

/// A snapshot is put back in place after the process died: what was answered after it is no part of
/// that history, not even what reads as zeros.
#[test]
fn devices_that_were_put_back_get_nothing_of_a_newer_log() {
    for copies in [1, 2] {
        let (world, files) = bench(9, copies);
        let f = files.clone();
        let (v, snapshots) = live(&world, 9, |rt, world| async move {
            create_pool(&rt, &f, copies as u8).await;
            let pool = open(&rt, &world, &f).await;
            let v = pool.create_volume("v", MIB, 4096).await.expect("create");
            pool.write(v, Lba(0), &blocks(1, 64)).await.expect("write");
            pool.commit().await.expect("commit");
            let snapshots: Vec<_> = f.iter().map(|f| world.snapshot_disk(f.file)).collect();
            pool.write(v, Lba(8), &block(2)).await.expect("write");
            pool.commit().await.expect("commit");
            pool.discard(v, Lba(0), Lba(8)).await.expect("discard");
            (v, snapshots)
        });
        for (file, snapshot) in files.iter().zip(&snapshots) {
            world.restore_disk(file.file, snapshot);
        }
        live(&world, 10, |rt, world| async move {
            let pool = open(&rt, &world, &files).await;
            assert!(!pool.has_recovered());
            assert_eq!((byte(&pool, v, 0).await, byte(&pool, v, 8).await), (1, 1));
        });
    }
}

/// The log runs out of memory. When all is durable that it does not have, it counts again: at once,
/// or with the next commit if something was written `meanwhile`.
#[test]
fn a_log_that_ran_out_of_memory_counts_again_once_all_is_durable() {
    for meanwhile in [false, true] {
        let (world, files) = bench(11, 1);
        world.host().limit(256 << 10);
        let f = files.clone();
        let v = live(&world, 11, |rt, world| async move {
            create_pool(&rt, &f, 1).await;
            let pool = open(&rt, &world, &f).await;
            let v = pool.create_volume("v", MIB, 4096).await.expect("create");
            let mut writes = 0;
            while pool.host_log_lost().is_none() {
                pool.write(v, Lba(0), &block(1)).await.expect("write");
                writes += 1;
                assert!(writes < 10_000, "it has less memory than that");
            }
            let p = pool.clone();
            let committed = rt.spawn(async move { p.commit().await });
            if meanwhile {
                rt.settled().await;
                pool.write(v, Lba(1), &block(2)).await.expect("write");
            }
            committed.await.expect("alive").expect("commit");
            assert_eq!(pool.host_log_lost().is_some(), meanwhile);
            pool.write(v, Lba(2), &block(3)).await.expect("write");
            if meanwhile {
                pool.commit().await.expect("commit");
                assert_eq!(pool.host_log_lost(), None);
            }
            pool.write(v, Lba(3), &block(4)).await.expect("write");
            v
        });
        live(&world, 12, |rt, world| async move {
            let pool = open(&rt, &world, &files).await;
            assert!(pool.has_recovered());
            let holds = [byte(&pool, v, 0).await, byte(&pool, v, 2).await, byte(&pool, v, 3).await];
            assert_eq!(holds, [1, 3, 4], "{meanwhile}");
        });
    }
}

/// Commits that nothing else asks for make room in the log.
#[test]
fn much_that_is_recorded_is_committed() {
    let (world, files) = bench(13, 1);
    live(&world, 13, |rt, world| async move {
        create_pool(&rt, &files, 1).await;
        let pool = open(&rt, &world, &files).await;
        let v = pool.create_volume("v", MIB, 4096).await.expect("create");
        pool.commit().await.expect("commit");
        let (before, mut discards) = (pool.committed(), 0);
        pool.write(v, Lba(0), &block(1)).await.expect("write");
        // Each is a record of 40 bytes, and takes no room. With 16 MiB of them a commit is due,
        // long before writers wait for one.
        while pool.committed() <= before {
            pool.discard(v, Lba(9), Lba(10)).await.expect("discard");
            discards += 1;
            if discards % 100 == 0 {
                rt.sleep(Duration::from_micros(1)).await;
            }
            assert!(discards < 600_000, "no commit");
        }
        assert!(discards > 300_000, "{discards}");
        assert_eq!(pool.host_log_lost(), None);
    });
}
