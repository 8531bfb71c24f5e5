//! What the pool makes of devices that rot, fail, vanish, come back, or went on by themselves.

use base::{BLOCK, Duration, ErrorKind, Lba, StorageError, VolumeId};
use model::device::DeviceState;
use model::status::PoolState;
use pool::Pool;
use sim::{DiskModel, Fault};
use testkit::{MIB, Mirror, disk, fill, moved, only_byte, open, try_open};

const BLOCKS: u64 = 256;

/// A pool of two copies on some disks, with a volume of which all blocks hold `1`.
fn mirror(seed: u64, disks: usize) -> Mirror {
    Mirror::filled(seed, (disks, 2), BLOCKS)
}

/// Damages a sector of every block that a disk has behind its tables: data and metadata.
fn rot(bench: &Mirror, disk: usize) {
    for block in 1024..(32 * MIB / BLOCK as u64) {
        let offset = block * BLOCK as u64;
        let written =
            bench.world.contents(bench.files[disk].file, offset, BLOCK).iter().any(|&b| b != 0);
        if written {
            assert!(
                bench
                    .world
                    .inject(bench.files[disk].file, Fault::BitRot { offset, len: BLOCK as u64 })
            );
        }
    }
}

/// Opens the pool on these disks alone, and writes `value` everywhere, if any.
fn alone(bench: &Mirror, disks: &[usize], value: Option<u8>) {
    let (id, disks) = (bench.volume, disks.to_vec());
    bench.run(|rt, files| async move {
        let some = disks.iter().map(|&d| files[d].clone()).collect();
        let pool = open(&rt, some).await;
        if let Some(value) = value {
            fill(&pool, id, BLOCKS, value).await;
        }
        pool.close().await.expect("close");
    });
}

/// As [`alone`], but the superblock never reached `behind`, as when power fails while the pool is
/// opened.
fn torn(bench: &Mirror, disks: &[usize], behind: usize) {
    let snapshot = bench.world.snapshot_disk(bench.files[behind].file);
    alone(bench, disks, None);
    bench.world.restore_disk(bench.files[behind].file, &snapshot);
}

/// Opens all: the volume holds `value`, and just `stale` is left out.
fn expect_stale(bench: &Mirror, stale: Option<usize>, value: u8) {
    let id = bench.volume;
    bench.run(|rt, files| async move {
        let (pool, warnings) = try_open(&rt, files).await.expect("open");
        assert_eq!(
            warnings.iter().filter(|w| w.contains("stale")).count(),
            usize::from(stale.is_some())
        );
        for (i, d) in pool.status().pool.devices.iter().enumerate() {
            assert_eq!(
                d.state,
                if Some(i) == stale { DeviceState::Stale } else { DeviceState::Online },
                "{i}"
            );
        }
        expect(&pool, id, value).await;
        pool.close().await.expect("close");
    });
}

/// All together are refused, in any order.
fn expect_split(bench: &Mirror) {
    for turned in [false, true] {
        bench.run(|rt, mut files| async move {
            if turned {
                files.reverse();
            }
            let Err(e) = try_open(&rt, files).await else { panic!("both sides were taken") };
            assert_eq!(e.kind, ErrorKind::SplitBrain, "{e}");
        });
    }
}

async fn expect(pool: &Pool, id: VolumeId, value: u8) {
    let data = pool.read(id, Lba(0), BLOCKS).await.expect("read");
    assert_eq!(only_byte(&data), Some(value), "not all is {value}");
}

#[test]
fn rot_in_one_copy_is_healed_and_counted() {
    let bench = mirror(1, 2);
    rot(&bench, 0);
    let id = bench.volume;
    bench.run(|rt, files| async move {
        let (pool, warnings) = try_open(&rt, files).await.expect("open");
        assert!(warnings.is_empty(), "{warnings:?}");
        // Reads go to either disk: until every block has been read from the bad one.
        for _ in 0..40 {
            expect(&pool, id, 1).await;
            rt.sleep(Duration::from_millis(5)).await;
        }
        let devices = pool.status().pool.devices;
        assert!(devices[0].errors.checksum > 0 && devices[0].errors.healed > 0, "{devices:?}");
        assert_eq!((devices[1].errors.checksum, devices[0].state), (0, DeviceState::Online));
        pool.close().await.expect("close");
    });
}

/// Nothing else is written, so nothing else asks for a commit.
#[test]
fn a_device_that_is_dropped_by_a_read_is_recorded_soon() {
    let bench = mirror(1, 2);
    let (id, world, files) = (bench.volume, bench.world.clone(), bench.files.clone());
    bench.run(|rt, _| async move {
        let (pool, _) = try_open(&rt, files.clone()).await.expect("open");
        pool.commit().await.expect("commit");
        assert!(world.inject(files[0].file, Fault::Dead));
        let committed = pool.committed();
        while pool.status().pool.devices[0].state == DeviceState::Online {
            expect(&pool, id, 1).await;
            rt.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(pool.committed(), committed, "a read commits nothing");
        rt.sleep(pool.current_settings().commit_interval * 2).await;
        assert!(pool.committed() > committed, "it is not recorded");
        pool.close().await.expect("close");
    });
}

#[test]
fn rot_in_both_copies_is_an_error_and_never_wrong_data() {
    let bench = mirror(2, 2);
    rot(&bench, 0);
    rot(&bench, 1);
    let id = bench.volume;
    bench.run(|rt, files| async move {
        match try_open(&rt, files).await {
            Ok((pool, _)) => {
                let e = pool.read(id, Lba(0), BLOCKS).await.expect_err("nothing is left");
                assert!(matches!(e.kind, ErrorKind::Io | ErrorKind::Damaged), "{e}");
            }
            Err(e) => assert_eq!(e.kind, ErrorKind::Damaged, "{e}"),
        }
    });
}

#[test]
fn a_device_that_dies_is_dropped_and_is_stale_when_it_comes_back() {
    let bench = mirror(3, 2);
    let (id, world) = (bench.volume, bench.world.clone());
    bench.run(|rt, files| async move {
        let pool = open(&rt, files.clone()).await;
        assert!(world.inject(files[1].file, Fault::Dead));
        fill(&pool, id, BLOCKS, 2).await;
        expect(&pool, id, 2).await;
        let status = pool.status().pool;
        assert_eq!(
            (status.state, status.devices[1].state),
            (PoolState::Degraded, DeviceState::Failed)
        );
        pool.close().await.expect("close");
    });
    bench.world.revive(bench.files[1].file);
    bench.run(|rt, files| async move {
        let (pool, warnings) = try_open(&rt, files).await.expect("open");
        assert!(warnings.iter().any(|w| w.contains("stale")), "{warnings:?}");
        expect(&pool, id, 2).await;
        assert_eq!(pool.status().pool.devices[1].state, DeviceState::Stale);
        pool.close().await.expect("close");
    });
}

#[test]
fn halves_that_were_each_written_alone_are_refused() {
    let bench = mirror(4, 2);
    let id = bench.volume;
    for side in 0..2 {
        bench.run(|rt, files| async move {
            let (pool, warnings) =
                try_open(&rt, vec![files[side].clone()]).await.expect("degraded");
            assert!(warnings.iter().any(|w| w.contains("missing")), "{warnings:?}");
            fill(&pool, id, BLOCKS, 10 + side as u8).await;
            pool.close().await.expect("close");
        });
    }
    bench.run(|rt, files| async move {
        let Err(e) = try_open(&rt, files.clone()).await else { panic!("both halves were taken") };
        assert_eq!(e.kind, ErrorKind::SplitBrain, "{e}");
        let (pool, _) = try_open(&rt, vec![files[0].clone()]).await.expect("one side alone");
        expect(&pool, id, 10).await;
    });
}

#[test]
fn sides_that_were_used_unequally_often_are_refused() {
    for (seed, often, once) in [(7, 0, 1), (8, 1, 0)] {
        let bench = mirror(seed, 2);
        alone(&bench, &[often], Some(2));
        alone(&bench, &[often], Some(3));
        alone(&bench, &[once], Some(4));
        expect_split(&bench);
    }
}

/// To be opened alone is nothing that the other half would have to know of.
#[test]
fn a_side_that_was_only_opened_joins_again() {
    for (seed, written, opened) in [(7, 0, 1), (8, 1, 0)] {
        let bench = mirror(seed, 2);
        alone(&bench, &[written], Some(2));
        (0..5).for_each(|_| alone(&bench, &[opened], None));
        expect_stale(&bench, Some(opened), 2);
    }
}

#[test]
fn a_device_left_one_superblock_ahead_is_as_good_as_the_others() {
    let bench = mirror(9, 2);
    torn(&bench, &[0, 1], 0);
    expect_stale(&bench, None, 1);
}

#[test]
fn a_device_left_ahead_and_then_absent_is_stale() {
    for value in [None, Some(5)] {
        let bench = mirror(10, 2);
        torn(&bench, &[0, 1], 0);
        alone(&bench, &[0], value);
        expect_stale(&bench, Some(1), value.unwrap_or(1));
    }
}

#[test]
fn a_device_left_ahead_and_then_used_alone_as_the_other_was_is_refused() {
    let bench = mirror(11, 2);
    torn(&bench, &[0, 1], 0);
    alone(&bench, &[0], Some(2));
    alone(&bench, &[1], Some(3));
    expect_split(&bench);
}

#[test]
fn a_degraded_open_that_wrote_no_superblock_leaves_nothing_behind() {
    let bench = mirror(12, 2);
    torn(&bench, &[0], 0);
    expect_stale(&bench, None, 1);
}

#[test]
fn a_device_dropped_while_open_is_stale_unless_it_was_used_alone_afterwards() {
    for used in [None, Some(None), Some(Some(3))] {
        let bench = mirror(13, 2);
        let (id, world) = (bench.volume, bench.world.clone());
        bench.run(|rt, files| async move {
            let pool = open(&rt, files.clone()).await;
            assert!(world.inject(files[1].file, Fault::Dead));
            fill(&pool, id, BLOCKS, 2).await;
            pool.close().await.expect("close");
        });
        bench.world.revive(bench.files[1].file);
        if let Some(value) = used {
            alone(&bench, &[1], value);
        }
        match used {
            Some(Some(_)) => expect_split(&bench),
            _ => expect_stale(&bench, Some(1), 2),
        }
    }
}

#[test]
fn ahead_by_a_degraded_open_that_was_never_complete_is_stale() {
    for value in [None, Some(6)] {
        let bench = mirror(14, 3);
        torn(&bench, &[0, 1], 0);
        alone(&bench, &[0, 2], value);
        let id = bench.volume;
        bench.run(|rt, files| async move {
            let (pool, _) = try_open(&rt, files).await.expect("one side is contained in the other");
            expect(&pool, id, value.unwrap_or(1)).await;
        });
    }
}

#[test]
fn a_device_that_is_there_twice_is_refused_by_name() {
    let (bench, other) = (mirror(5, 2), mirror(6, 2));
    let stranger = disk(&bench.world, "stranger", DiskModel::nvme(32 * MIB));
    let snapshot = other.world.snapshot_disk(other.files[1].file);
    // A copy of a device of the pool, twice.
    bench.world.restore_disk(stranger.file, &snapshot);
    bench.run(|rt, mut files| async move {
        files.push(stranger);
        let Err(e) = try_open(&rt, files).await else { panic!("a device was taken twice") };
        assert!(e.kind == ErrorKind::Foreign && e.context.contains("stranger"), "{e}");
    });
}

#[test]
fn an_empty_device_in_the_place_of_a_missing_one_is_left_alone() {
    let bench = mirror(7, 2);
    let id = bench.volume;
    let empty = ["empty", "other"].map(|name| disk(&bench.world, name, DiskModel::nvme(32 * MIB)));
    let named = empty.clone();
    bench.run(|rt, files| async move {
        let more = vec![files[0].clone(), named[0].clone(), named[1].clone()];
        let Err(e) = try_open(&rt, more).await else { panic!("one of them is too many") };
        assert!(e.kind == ErrorKind::Foreign && e.context.contains("other"), "{e}");
        let Err(e) = try_open(&rt, named.to_vec()).await else { panic!("there is no pool") };
        assert_eq!(e.kind, ErrorKind::Foreign);
        let some = vec![named[0].clone(), files[0].clone()];
        let (pool, warnings) = try_open(&rt, some).await.expect("the other half has everything");
        assert!(warnings.iter().any(|w| w.contains("empty: not a device")), "{warnings:?}");
        assert_eq!(pool.status().pool.state, PoolState::Degraded);
        assert!(!pool.moves().uses_file(named[0].file));
        fill(&pool, id, BLOCKS, 2).await;
        pool.close().await.expect("close");
    });
    for disk in &empty {
        assert!(bench.world.contents(disk.file, 0, 32 << 20).iter().all(|&byte| byte == 0));
    }
    // The real one is what it would be had nothing been in its place: it lacks what was written.
    expect_stale(&bench, Some(1), 2);
}

/// One that was replaced may still be on the list of devices.
#[test]
fn an_empty_device_beside_a_whole_pool_is_left_alone() {
    let bench = mirror(8, 2);
    let id = bench.volume;
    let empty = disk(&bench.world, "empty", DiskModel::nvme(32 * MIB));
    let named = empty.clone();
    bench.run(|rt, files| async move {
        let all = vec![named.clone(), files[0].clone(), files[1].clone()];
        let (pool, warnings) = try_open(&rt, all).await.expect("nothing is missing");
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        let told = &warnings[0];
        assert!(told.contains("empty: not a device") && told.contains("Take it off"), "{told}");
        assert_eq!(pool.status().pool.state, PoolState::Online);
        assert!(!pool.moves().uses_file(named.file));
        fill(&pool, id, BLOCKS, 2).await;
        pool.close().await.expect("close");
    });
    assert!(bench.world.contents(empty.file, 0, 32 << 20).iter().all(|&byte| byte == 0));
}

/// A file that was cut is taken for missing where the other has everything, and filled anew when it
/// has its size back: it is not known what it has then.
#[test]
fn a_device_that_was_truncated_is_as_good_as_missing() {
    let bench = mirror(9, 2);
    let id = bench.volume;
    bench.run(|rt, mut files| async move {
        let whole = files.clone();
        files[1].size_bytes = 12 * MIB;
        let (pool, warnings) = try_open(&rt, files).await.expect("the other has everything");
        let told = warnings.iter().any(|w| w.contains("disk1") && w.contains("as if it were mis"));
        assert!(told, "{warnings:?}");
        assert_eq!(pool.status().pool.state, PoolState::Degraded);
        expect(&pool, id, 1).await;
        pool.close().await.expect("close");
        let (pool, warnings) = try_open(&rt, whole).await.expect("open");
        assert!(warnings.iter().any(|w| w.contains("stale")), "{warnings:?}");
        while pool.status().pool.devices[1].state != DeviceState::Online {
            rt.sleep(Duration::from_millis(10)).await;
        }
        moved(&rt, &pool).await;
        assert!(pool.moves().moves_status().copied_bytes >= BLOCKS * BLOCK as u64, "all of it");
        pool.close().await.expect("close");
    });
    let alone = Mirror::filled(10, (1, 1), BLOCKS);
    alone.run(|rt, mut files| async move {
        files[0].size_bytes = 12 * MIB;
        let Err(e) = try_open(&rt, files).await else { panic!("nothing has the rest") };
        assert!(e.context.contains("truncated") && e.context.contains("truncate -s"), "{e}");
    });
}

/// Where a disk's newest superblock is.
fn newest_slot(bench: &Mirror, disk: usize) -> u64 {
    let sequence = |at: &u64| {
        let bytes = bench.world.contents(bench.files[disk].file, at + 72, 8);
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    };
    (1u64..=4).map(|slot| slot << 16).max_by_key(sequence).expect("four slots")
}

/// Opens the first `disks` disks: the warnings, if the volume holds `1` everywhere. One commit
/// earlier it was empty.
fn look(bench: &Mirror, disks: usize) -> Result<Vec<String>, StorageError> {
    let id = bench.volume;
    bench.run(move |rt, files| async move {
        let (pool, warnings) = try_open(&rt, files[..disks].to_vec()).await?;
        expect(&pool, id, 1).await;
        Ok(warnings)
    })
}

#[test]
fn a_superblock_with_one_bad_copy_is_not_lost() {
    for fault in [
        |offset| Fault::BitRot { offset, len: 512 },
        |offset| Fault::ReadError { offset, len: 512 },
    ] {
        for copy in [0, BLOCK as u64] {
            let bench = mirror(77, 2);
            for disk in 0..2 {
                let at = newest_slot(&bench, disk) + copy;
                assert!(bench.world.inject(bench.files[disk].file, fault(at)));
            }
            let warnings = look(&bench, 2).expect("open");
            assert!(!warnings.iter().any(|w| w.contains("superblock")), "{warnings:?}");
        }
    }
}

#[test]
fn a_newest_superblock_that_may_be_lost_is_told() {
    let bench = mirror(77, 2);
    // The newest commit changes nothing: the one before has all of it, too.
    alone(&bench, &[0, 1], None);
    let slots = [newest_slot(&bench, 0), newest_slot(&bench, 1)];
    for (disk, slot) in slots.into_iter().enumerate() {
        for offset in [slot, slot + BLOCK as u64] {
            assert!(bench.world.inject(bench.files[disk].file, Fault::BitRot { offset, len: 512 }));
        }
    }
    assert!(look(&bench, 2).expect("open").iter().any(|w| w.contains("superblock slot")));
}

/// Unreadable is not absent: the commit before is not taken for the newest, whose freed blocks may
/// be in use.
#[test]
fn an_unreadable_superblock_is_not_an_older_one() {
    let lose = |bench: &Mirror, disk: usize, fault: fn(u64) -> Fault| {
        let at = newest_slot(bench, disk);
        assert!(bench.world.inject(bench.files[disk].file, fault(at)));
    };
    let for_good = |offset| Fault::ReadError { offset, len: 2 * BLOCK as u64 };
    // The slot as a whole, then each copy: all of it is there in the end.
    let at_first = |offset| Fault::FailReads { offset, len: 2 * BLOCK as u64, times: 4 };

    let bench = mirror(80, 2);
    lose(&bench, 0, for_good);
    lose(&bench, 1, for_good);
    let e = look(&bench, 2).expect_err("neither has it");
    assert!(e.kind == ErrorKind::Damaged && e.context.contains("disk0: superblock slot"), "{e}");

    let bench = mirror(81, 2);
    lose(&bench, 0, for_good);
    look(&bench, 1).expect_err("only the other one has it");
    assert!(!look(&bench, 2).expect("the other has it").iter().any(|w| w.contains("superblock")));

    let bench = mirror(82, 2);
    lose(&bench, 0, at_first);
    lose(&bench, 1, at_first);
    assert!(!look(&bench, 2).expect("open").iter().any(|w| w.contains("superblock")));

    // Slots in which only older ones can be are of no matter.
    let bench = mirror(83, 2);
    let newest = newest_slot(&bench, 0);
    for slot in (1u64..=4)
        .map(|slot| slot << 16)
        .filter(|&slot| slot != newest && slot != newest % (4 << 16) + (1 << 16))
    {
        assert!(bench.world.inject(bench.files[0].file, for_good(slot)));
    }
    look(&bench, 1).expect("open");
}

/// A table page's version that a crash has torn is written over at once: sectors of a later one
/// could make it whole again.
#[test]
fn a_torn_table_page_is_not_left_in_its_slot() {
    let bench = mirror(78, 2);
    // The volume table's first page; the volume's record is in its newer version. Which that is,
    // the first sector of each slot says.
    let slot = |slot: u64| MIB + slot * BLOCK as u64;
    let generation = |disk: usize, at: u64| {
        let bytes = bench.world.contents(bench.files[disk].file, at + 16, 8);
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    };
    let old =
        [slot(0), slot(1)].into_iter().min_by_key(|&at| generation(0, at)).expect("two slots");
    let before = generation(0, old);
    let sector = old + BLOCK as u64 / 2;
    assert!(bench.world.inject(bench.files[0].file, Fault::BitRot { offset: sector, len: 512 }));
    alone(&bench, &[0, 1], None);
    assert!(generation(0, old) > before && generation(1, old) == generation(0, old));

    // The same where it cannot be read.
    let other = slot(0) + slot(1) - old;
    let before = generation(0, other);
    assert!(bench.world.inject(
        bench.files[1].file,
        Fault::ReadError { offset: other + BLOCK as u64 / 2, len: 512 }
    ));
    alone(&bench, &[0, 1], None);
    assert!(generation(0, other) > before && generation(1, other) == generation(0, other));
    expect_stale(&bench, None, 1);
}

/// What is free on a device that is not there makes no groups by itself.
#[test]
fn a_pool_without_a_device_is_full_when_it_says_so() {
    let bench = mirror(79, 3);
    bench.run(|rt, mut files| async move {
        files.pop();
        let pool = open(&rt, files).await;
        let volume = pool.create_volume("big", 1 << 40, 4096).await.expect("volume");
        let capacity = pool.status().pool.capacity_bytes;
        let mut lba = 0;
        let data = pool.bufs().zeroed(BLOCKS as usize * BLOCK).freeze();
        let e = loop {
            match pool.write(volume, Lba(lba), &data).await {
                Ok(()) => lba += BLOCKS,
                Err(e) => break e,
            }
        };
        assert_eq!(e.kind, ErrorKind::NoSpace);
        let used = pool.status().pool.used_bytes;
        // Metadata keeps some for itself.
        assert!(used > capacity - 4 * MIB, "{used} of {capacity} bytes were to be had");
        pool.close().await.expect("close");
    });
}
