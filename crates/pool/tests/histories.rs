//! Copies of a pool are told apart, whatever they count; and an open alone makes no history.

use std::cell::Cell;
use std::rc::Rc;

use base::{BLOCK_U64, Duration, ErrorKind, IoError, Lba, OpenId};
use model::device::DeviceState;
use model::moves::MovesState;
use pool::{DeviceFile, Pool, Settings};
use sim::{DiskModel, World};
use testkit::{
    Effect, MIB, Mirror, block, check_pool, disk, fill, is_superblock, only_byte, open, try_open,
    writes_to,
};

const BLOCKS: u64 = 256;

fn mirror(seed: u64) -> Mirror {
    Mirror::filled(seed, (2, 2), BLOCKS)
}

/// Opens the pool on these files, writes `value` everywhere as often, and closes it.
fn serve(bench: &Mirror, files: &[DeviceFile], value: Option<u8>, times: u32) {
    let (id, files) = (bench.volume, files.to_vec());
    bench.run(|rt, _| async move {
        let pool = open(&rt, files).await;
        if let Some(value) = value {
            for _ in 0..times {
                fill(&pool, id, BLOCKS, value).await;
                pool.commit().await.expect("commit");
            }
        }
        pool.close().await.expect("close");
    });
}

/// A copy of a disk of the pool, as `cp` makes it.
fn copy_of(world: &World, file: &DeviceFile, name: &str) -> DeviceFile {
    let copy = disk(world, name, DiskModel::nvme(32 * MIB));
    world.restore_disk(copy.file, &world.snapshot_disk(file.file));
    copy
}

/// The sequence number of the newest superblock on a disk.
fn newest_sequence(bench: &Mirror, disk: usize) -> u64 {
    let sequence = |slot: u64| {
        let bytes = bench.world.contents(bench.files[disk].file, (slot << 16) + 72, 8);
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    };
    (1..=4).map(sequence).max().expect("four slots")
}

/// All together are refused, in any order, as each was written without the other.
fn are_refused(bench: &Mirror, files: &[DeviceFile]) {
    for turned in [false, true] {
        let mut files = files.to_vec();
        if turned {
            files.reverse();
        }
        bench.run(|rt, _| async move {
            let Err(e) = try_open(&rt, files).await else { panic!("both were taken") };
            assert_eq!(e.kind, ErrorKind::SplitBrain, "{e}");
            assert!(e.context.contains("each written without the other"), "{e}");
        });
    }
}

/// The pool opens with all of these and holds `value`; waits until it is whole.
fn join(bench: &Mirror, files: &[DeviceFile], value: u8) -> u64 {
    let (id, files) = (bench.volume, files.to_vec());
    bench.run(|rt, _| async move {
        let pool = open(&rt, files).await;
        let states = |pool: &Pool| -> Vec<DeviceState> {
            pool.status().pool.devices.iter().map(|d| d.state).collect()
        };
        for _ in 0..6000 {
            if pool.moves().moves_status().state == MovesState::None
                && states(&pool) == [DeviceState::Online, DeviceState::Online]
            {
                break;
            }
            rt.sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(
            states(&pool),
            [DeviceState::Online, DeviceState::Online],
            "{:?}",
            pool.moves().moves_status()
        );
        let data = pool.read(id, Lba(0), BLOCKS).await.expect("read");
        assert_eq!(only_byte(&data), Some(value));
        let copied = pool.moves().moves_status().copied_bytes / BLOCK_U64;
        pool.close().await.expect("close");
        copied
    })
}

/// A pool of two disks and a copy of it do the same amount of work: half of one and half of the
/// other are not a mirror. Nor are they with unequal amounts.
#[test]
fn halves_of_two_copies_of_a_pool_are_no_mirror() {
    for (seed, times) in [(1, (3, 3)), (2, (3, 4)), (3, (9, 1))] {
        let bench = mirror(seed);
        let copies: Vec<DeviceFile> =
            bench.files.iter().map(|f| copy_of(&bench.world, f, &format!("{}b", f.path))).collect();
        serve(&bench, &bench.files.clone(), Some(2), times.0);
        serve(&bench, &copies, Some(3), times.1);
        are_refused(&bench, &[bench.files[0].clone(), copies[1].clone()]);
        are_refused(&bench, &[copies[0].clone(), bench.files[1].clone()]);
        // Each of them is whole still.
        assert_eq!(join(&bench, &bench.files.clone(), 2), 0);
        assert_eq!(join(&bench, &copies, 3), 0);
    }
}

/// A copy that was only opened is the pool still. What was written since it was made counts.
#[test]
fn a_copy_that_was_only_opened_is_an_older_copy() {
    let bench = mirror(4);
    let copies: Vec<DeviceFile> =
        bench.files.iter().map(|f| copy_of(&bench.world, f, &format!("{}b", f.path))).collect();
    (0..8).for_each(|_| serve(&bench, &copies, None, 0));
    serve(&bench, &bench.files.clone(), Some(2), 1);
    let copied = join(&bench, &[copies[0].clone(), bench.files[1].clone()], 2);
    assert!(copied >= BLOCKS, "{copied}");
    assert!(
        bench
            .run(|rt, _| {
                let files = vec![copies[0].clone(), bench.files[1].clone()];
                async move { check_pool(&rt, files).await }
            })
            .is_clean()
    );
}

/// Two halves, each of which was opened alone and not written, join, and nothing is copied.
#[test]
fn an_open_alone_makes_no_history() {
    for (seed, times) in [(5, (1, 1)), (6, (3, 1)), (7, (1, 4))] {
        let bench = mirror(seed);
        let alone = |half: usize| serve(&bench, &bench.files[half..half + 1], None, 0);
        (0..times.0).for_each(|_| alone(0));
        (0..times.1).for_each(|_| alone(1));
        let copied = join(&bench, &bench.files.clone(), 1);
        assert_eq!(copied, 0, "blocks were copied");
        assert!(bench.check().is_clean(), "{:?}", bench.check());
        serve(&bench, &bench.files[..1], Some(9), 1);
        assert!(join(&bench, &bench.files.clone(), 9) >= BLOCKS);
    }
}

/// The cache was opened with one of three devices. That one judges when the others are back, though
/// those are more: the cache is of no other state.
#[test]
fn an_open_with_the_cache_is_what_all_go_on_from() {
    let bench = Mirror::filled(14, (3, 3), BLOCKS);
    let opened = bench.run(|rt, files| async move {
        let pool = open(&rt, files[..1].to_vec()).await;
        pool.cache_link().name_cache().await.expect("named");
        pool.close().await.expect("close");
        pool.opened()
    });
    let found = bench.run(|rt, files| async move {
        let ready = Pool::ready(&rt, files, Default::default()).await.expect("ready");
        let found = ready.pool().last_opened();
        let (pool, _) = ready.open().await.expect("open");
        pool.close().await.expect("close");
        found
    });
    assert_eq!(found, opened);
}

/// Half a is put back to an older copy, and served alone. What half b has since is not given up.
#[test]
fn what_was_written_after_a_copy_is_not_given_up_for_it() {
    for written in [false, true] {
        let bench = mirror(8 + u64::from(written));
        serve(&bench, &bench.files.clone(), Some(2), 1);
        let old = bench.world.snapshot_disk(bench.files[0].file);
        serve(&bench, &bench.files.clone(), Some(3), 1);
        bench.world.restore_disk(bench.files[0].file, &old);
        for _ in 0..5 {
            serve(&bench, &bench.files[..1], written.then_some(4), 5);
        }
        match written {
            true => are_refused(&bench, &bench.files.clone()),
            false => assert!(join(&bench, &bench.files.clone(), 3) >= BLOCKS),
        }
    }
}

/// A device that is away for more opens than a superblock has room for histories comes back where
/// it left.
#[test]
fn a_device_that_was_away_for_long_gets_what_it_lacks() {
    // Of a volume of 16 MiB, as what is near a block that has changed is copied with it.
    let blocks = 16 * BLOCKS;
    let bench = Mirror::filled(10, (2, 2), blocks);
    for n in 0..40 {
        let half = bench.files[..1].to_vec();
        let id = bench.volume;
        bench.run(|rt, _| async move {
            let pool = open(&rt, half).await;
            fill(&pool, id, 4, n).await;
            pool.close().await.expect("close");
        });
    }
    let id = bench.volume;
    let files = bench.files.clone();
    bench.run(|rt, _| async move {
        let pool = open(&rt, files).await;
        for _ in 0..6000 {
            rt.sleep(Duration::from_millis(10)).await;
        }
        let copied = pool.moves().moves_status().copied_bytes / BLOCK_U64;
        assert!((4..blocks / 2).contains(&copied), "{copied} blocks of {blocks} were copied");
        let data = pool.read(id, Lba(0), 4).await.expect("read");
        assert_eq!(only_byte(&data), Some(39));
        pool.close().await.expect("close");
    });
    assert!(bench.check().is_clean(), "{:?}", bench.check());
}

/// Each open has a name of its own, and the next one finds it.
#[test]
fn an_open_finds_the_name_of_the_one_before() {
    let bench = mirror(11);
    let mut before: Option<OpenId> = None;
    for _ in 0..3 {
        let own = bench.run(|rt, files| async move {
            let ready = Pool::ready(&rt, files, Default::default()).await.expect("ready");
            let (found, own) = (ready.pool().last_opened(), ready.pool().opened());
            let (pool, _) = ready.open().await.expect("open");
            assert_eq!((pool.opened(), pool.last_opened()), (own, own));
            pool.close().await.expect("close");
            (found, own)
        });
        assert!(before.is_none_or(|before| before == own.0) && own.0 != own.1);
        before = Some(own.1);
    }
}

/// A device that the user takes out of use says so itself. Alone it is refused, by name; taken back
/// it is as it was, and the others went on without it.
#[test]
fn a_device_that_left_is_not_served_alone_unasked() {
    let bench = mirror(12);
    let id = bench.volume;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        fill(&pool, id, BLOCKS, 2).await;
        pool.returns().offline_device("disk1").await.expect("offline");
        fill(&pool, id, BLOCKS, 3).await;
        pool.close().await.expect("close");
    });
    let second = bench.files[1..].to_vec();
    let alone = second.clone();
    bench.run(|rt, _| async move {
        let Err(e) = try_open(&rt, alone.clone()).await else { panic!("old data was served") };
        assert_eq!(e.kind, ErrorKind::Damaged, "{e}");
        assert!(e.context.contains("disk1") && e.context.contains("--take-back"), "{e}");
        let settings = Settings { take_back: true, ..Settings::default() };
        let (pool, warnings) = Pool::open(&rt, alone, settings).await.expect("taken back");
        assert!(warnings.iter().any(|w| w.contains("taken back as it was")), "{warnings:?}");
        let data = pool.read(id, Lba(0), BLOCKS).await.expect("read");
        assert_eq!(only_byte(&data), Some(2));
        pool.close().await.expect("close");
    });
    // Nothing was written: the newer state counts still, and it is where it left.
    let files = bench.files.clone();
    bench.run(|rt, _| async move {
        let pool = open(&rt, files).await;
        let data = pool.read(id, Lba(0), BLOCKS).await.expect("read");
        assert_eq!(only_byte(&data), Some(3));
        pool.close().await.expect("close");
    });
    bench.run(|rt, _| async move {
        let settings = Settings { take_back: true, ..Settings::default() };
        let (pool, _) = Pool::open(&rt, second, settings).await.expect("taken back");
        fill(&pool, id, BLOCKS, 4).await;
        pool.close().await.expect("close");
    });
    are_refused(&bench, &bench.files.clone());
}

/// A device that fails for a moment is told, too, and comes back with what it has.
#[test]
fn a_device_that_failed_is_not_served_alone_unasked() {
    let bench = mirror(13);
    let (id, rules, disk) = (bench.volume, bench.rules.clone(), bench.files[1].file);
    bench.try_run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let failed = Cell::new(false);
        rules.set(move |op| {
            let is_it = is_superblock(op) && writes_to(op, disk) && !failed.replace(true);
            is_it.then_some((IoError::IO, Effect::No))
        });
        fill(&pool, id, BLOCKS, 3).await;
        pool.commit().await.expect("without it");
        // After the next commit, and before it comes back by itself.
        rt.sleep(Duration::from_secs(7)).await;
        assert_eq!(pool.status().pool.devices[1].state, DeviceState::Failed);
        rules.clear();
        rt.kill();
    });
    let second = bench.files[1..].to_vec();
    bench.run(|rt, _| async move {
        let Err(e) = try_open(&rt, second).await else { panic!("old data was served") };
        assert!(e.context.contains("out of use"), "{e}");
    });
    assert!(join(&bench, &bench.files.clone(), 3) >= BLOCKS);
}

/// Power leaves disk1 with a commit that disk0 never had, and disk0 goes on alone. What disk1 is
/// told before it comes back makes no branch of that commit: neither if it comes back at once, nor
/// if the server ends right after the last word.
#[test]
fn a_device_left_ahead_comes_back_after_its_last_word() {
    for cut_short in [false, true] {
        let bench = mirror(15);
        let (id, rules, world) = (bench.volume, bench.rules.clone(), bench.world.clone());
        let [first, second] = [0, 1].map(|disk| bench.files[disk].clone());
        let (left, went_on) = (first.clone(), world.clone());
        bench.run(|rt, files| async move {
            let pool = open(&rt, files).await;
            fill(&pool, id, BLOCKS, 2).await;
            pool.commit().await.expect("commit");
            let before = went_on.snapshot_disk(left.file);
            pool.write(id, Lba(0), &block(3)).await.expect("write");
            pool.commit().await.expect("commit");
            went_on.restore_disk(left.file, &before);
        });
        let sequence = |disk| newest_sequence(&bench, disk);
        assert_eq!(sequence(1), sequence(0) + 1, "it is ahead by one superblock");
        serve(&bench, &[first], Some(4), 1);
        if cut_short {
            let (disk, told) = (second.file, Rc::new(Cell::new(0)));
            let written = told.clone();
            bench.try_run(|rt, files| async move {
                let clock = rt.clone();
                rules.set(move |op| {
                    // The first write is the last word, and the second one comes after it.
                    let at = written.get() + u32::from(writes_to(op, disk));
                    if at > written.replace(at) && at == 2 {
                        clock.kill();
                    }
                    None
                });
                let _pool = open(&rt, files).await;
                rt.sleep(Duration::from_secs(60)).await;
            });
            bench.rules.clear();
            assert_eq!(told.get(), 2);
        }
        assert!(join(&bench, &bench.files.clone(), 4) >= BLOCKS);
        assert!(bench.check().is_clean(), "{:?}", bench.check());
    }
}

/// Power leaves disk1 ahead of disk2 while disk0 is away. Disk2 goes on without disk1, and disk0
/// comes back to it. Then disk0, which disk1 does not know as a device in use, knows that disk2
/// lacked what disk1 is ahead by.
#[test]
fn a_device_left_ahead_of_another_comes_back_to_a_third() {
    let bench = Mirror::filled(16, (3, 3), BLOCKS);
    let (id, world) = (bench.volume, bench.world.clone());
    let third = bench.files[2].file;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files[1..].to_vec()).await;
        fill(&pool, id, BLOCKS, 2).await;
        pool.commit().await.expect("commit");
        let before = world.snapshot_disk(third);
        pool.write(id, Lba(0), &block(3)).await.expect("write");
        pool.commit().await.expect("commit");
        world.restore_disk(third, &before);
    });
    bench.run(|rt, files| async move {
        let pool = open(&rt, vec![files[0].clone(), files[2].clone()]).await;
        while pool.status().pool.devices[0].state != DeviceState::Online
            || pool.moves().moves_status().state != MovesState::None
        {
            rt.sleep(Duration::from_millis(10)).await;
        }
        fill(&pool, id, BLOCKS, 4).await;
        pool.close().await.expect("close");
    });
    bench.run(|rt, files| async move {
        let pool = open(&rt, files[..2].to_vec()).await;
        let data = pool.read(id, Lba(0), BLOCKS).await.expect("read");
        assert_eq!(only_byte(&data), Some(4));
        pool.close().await.expect("close");
    });
}

/// A start is cut short while it brings disk1 to the newest superblock: disk1 has the commit, but
/// not the number. The next start writes each slot once more, as any of them may be torn.
#[test]
fn a_sync_of_superblocks_that_was_cut_short_begins_again() {
    let bench = Rc::new(mirror(18));
    let (id, world, second) = (bench.volume, bench.world.clone(), bench.files[1].file);
    let slots = format::superblock::SLOTS;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let before = world.snapshot_disk(second);
        pool.write(id, Lba(0), &block(3)).await.expect("write");
        pool.commit().await.expect("commit");
        world.restore_disk(second, &before);
    });
    let behind = newest_sequence(&bench, 1);
    assert_eq!(behind + 1, newest_sequence(&bench, 0));
    // The first superblock of the sync is on disk1, the second one on disk0 alone.
    let (seen, world, left) = (bench.clone(), bench.world.clone(), Rc::new(Cell::new(None)));
    let kept = left.clone();
    bench.try_run(|rt, files| async move {
        let opening = rt.clone();
        rt.detach(async move { drop(try_open(&opening, files).await) });
        let newest = |disk| newest_sequence(&seen, disk);
        let mut before = None;
        while newest(0) < behind + 3 {
            if before.is_none() && newest(1) == behind + 2 {
                before = Some(world.snapshot_disk(second));
            }
            rt.sleep(Duration::from_micros(1)).await;
        }
        kept.set(before);
        rt.kill();
    });
    bench.world.restore_disk(second, &left.take().expect("a state of disk1"));
    assert_eq!((newest_sequence(&bench, 0), newest_sequence(&bench, 1)), (behind + 3, behind + 2));
    let written = || {
        let (rules, written) = (bench.rules.clone(), Rc::new(Cell::new(0)));
        let seen = written.clone();
        bench.run(|rt, files| async move {
            rules.set(move |op| {
                seen.set(seen.get() + u64::from(is_superblock(op) && writes_to(op, second)));
                None
            });
            open(&rt, files).await.close().await.expect("close");
        });
        bench.rules.clear();
        written.get()
    };
    assert!(written() > slots);
    assert!(written() < slots, "nothing is left to sync");
}

/// Disk1 was out of use and comes back under writes. The server ends when disk1 has the first
/// superblock of a commit after its return, and disk0 has not. Disk0, by which disk1 is out of use,
/// goes on alone. That is no branch.
#[test]
fn a_device_that_was_about_to_come_back_is_no_branch() {
    let bench = Rc::new(mirror(17));
    let (id, world, first) = (bench.volume, bench.world.clone(), bench.files[0].file);
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        pool.returns().offline_device("disk1").await.expect("offline");
        fill(&pool, id, BLOCKS, 2).await;
        pool.close().await.expect("close");
    });
    let (seen, left) = (bench.clone(), Rc::new(Cell::new(None)));
    let kept = left.clone();
    bench.try_run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let (writes, returns) = (pool.clone(), pool.clone());
        rt.detach(async move {
            loop {
                writes.write(id, Lba(0), &block(3)).await.expect("write");
                writes.commit().await.expect("commit");
            }
        });
        rt.detach(async move {
            returns.returns().online_device("disk1").await.expect("online");
        });
        let newest = |disk| newest_sequence(&seen, disk);
        let away = newest(1);
        while newest(1) == away {
            rt.sleep(Duration::from_micros(1)).await;
        }
        let invited = newest(1);
        assert_eq!(newest(0), invited);
        let before = world.snapshot_disk(first);
        while newest(1) == invited {
            rt.sleep(Duration::from_micros(1)).await;
        }
        kept.set(Some(before));
        rt.kill();
    });
    bench.world.restore_disk(first, &left.take().expect("a state of disk0"));
    assert_eq!(newest_sequence(&bench, 1), newest_sequence(&bench, 0) + 1);
    serve(&bench, &bench.files[..1], Some(4), 1);
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        pool.returns().online_device("disk1").await.expect("online");
        pool.close().await.expect("close");
    });
    join(&bench, &bench.files, 4);
    assert!(bench.check().is_clean(), "{:?}", bench.check());
}

/// A device fails here, as its path is dead, and another server goes on with it alone. When the
/// path is back, it is told nothing: it has a history of its own by then.
#[test]
fn a_device_that_another_went_on_with_is_told_nothing() {
    let bench = mirror(14);
    let (id, rules, world) = (bench.volume, bench.rules.clone(), bench.world.clone());
    let second = bench.files[1].clone();
    let before: Vec<_> = bench.files.iter().map(|f| world.snapshot_disk(f.file)).collect();
    let alone = vec![second.clone()];
    bench.run(|rt, _| async move {
        let pool = open(&rt, alone).await;
        fill(&pool, id, BLOCKS, 5).await;
        pool.close().await.expect("close");
    });
    let went_on = world.snapshot_disk(second.file);
    bench.files.iter().zip(&before).for_each(|(f, before)| world.restore_disk(f.file, before));
    let disk = second.file;
    bench.try_run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let failed = Cell::new(false);
        rules.set(move |op| {
            let is_it = is_superblock(op) && writes_to(op, disk) && !failed.replace(true);
            is_it.then_some((IoError::IO, Effect::No))
        });
        fill(&pool, id, BLOCKS, 3).await;
        pool.commit().await.expect("without it");
        world.restore_disk(disk, &went_on);
        rt.sleep(Duration::from_secs(7)).await;
        assert_eq!(pool.status().pool.devices[1].state, DeviceState::Failed);
        rules.clear();
        rt.kill();
    });
    bench.run(|rt, _| async move {
        let pool = open(&rt, vec![second]).await;
        let data = pool.read(id, Lba(0), BLOCKS).await.expect("read");
        assert_eq!(only_byte(&data), Some(5));
        pool.close().await.expect("close");
    });
}
