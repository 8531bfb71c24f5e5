//! Moves that wait for room go on by themselves when there is some.

use base::{BLOCK_U64, Duration, ErrorKind, Lba, VolumeId};
use model::moves::MovesState;
use pool::{CreateOptions, Pool};
use rt::Rt;
use sim::{DiskModel, World};
use testkit::{MIB, Mirror, Rules, disk, fill, moved, only_byte, open, put, try_put};

/// So many blocks of a volume fill two of three disks, but for the chunk that a removal of the
/// third needs to close the last block group.
const BLOCKS: u64 = 26 * MIB / BLOCK_U64;

/// Three disks with two copies, with a volume of which these blocks hold `1`.
fn nearly_full(seed: u64) -> Mirror {
    Mirror::new(seed, (3, 2), |pool| async move {
        let id = pool.create_volume("v", 64 * MIB, 4096).await.expect("volume");
        fill(&pool, id, BLOCKS, 1).await;
        id
    })
}

/// Removes `disk2` as far as there is room.
async fn leave_and_wait(rt: &Rt, pool: &Pool) {
    pool.moves().remove_device("disk2").await.expect("remove");
    while pool.moves().moves_status().state == MovesState::Running {
        rt.sleep(Duration::from_millis(10)).await;
    }
    let status = pool.moves().moves_status();
    assert_eq!(status.trouble.as_deref(), Some("waiting for room in other block groups"));
    rt.sleep(Duration::from_secs(60)).await;
    assert_eq!(
        pool.moves().moves_status().state,
        MovesState::Waiting,
        "there is no more room than before"
    );
}

/// Returns how long it took until nothing is left to move.
async fn time_to_move(rt: &Rt, pool: &Pool) -> Duration {
    let since = rt.now();
    moved(rt, pool).await;
    rt.now().since(since)
}

async fn reads(pool: &Pool, id: VolumeId, blocks: u64) {
    let data = pool.read(id, Lba(0), blocks).await.expect("read");
    assert_eq!(only_byte(&data), Some(1));
}

/// The two disks that stay are full, and the new one is empty: no block group of two copies can be
/// formed until chunks of other groups have moved.
#[test]
fn a_removal_that_waits_for_room_goes_on_when_a_device_is_added() {
    let mut bench = nearly_full(1);
    let new = disk(&bench.world, "disk3", DiskModel::nvme(32 * MIB));
    let (added, id) = (new.clone(), bench.volume);
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        leave_and_wait(&rt, &pool).await;
        pool.moves().add_device(added, [9; 16]).await.expect("add");
        moved(&rt, &pool).await;
        assert!(pool.status().pool.devices.iter().all(|d| d.path != "disk2"));
        reads(&pool, id, BLOCKS).await;
        pool.close().await.expect("close");
    });
    bench.files[2] = new;
    assert!(bench.check().is_clean(), "{:?}", bench.check());
}

#[test]
fn a_removal_that_waits_for_room_goes_on_when_blocks_are_freed() {
    let mut bench = nearly_full(2);
    let id = bench.volume;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        leave_and_wait(&rt, &pool).await;
        pool.discard(id, Lba(BLOCKS / 2), Lba(BLOCKS)).await.expect("discard");
        let took = time_to_move(&rt, &pool).await;
        // The commit that frees them wakes it; there is no poll.
        assert!(took < Duration::from_secs(1), "{took:?}");
        reads(&pool, id, BLOCKS / 2).await;
        pool.close().await.expect("close");
    });
    bench.files.pop();
    assert!(bench.check().is_clean(), "{:?}", bench.check());
}

/// Two copies on two disks that are half full, and a third disk that is small: the free chunks of
/// the second one are of no use to what it has already.
#[test]
fn a_removal_is_let_in_only_if_the_copies_find_room_on_different_devices() {
    let mut bench = Mirror::new(3, (2, 2), |pool| async move {
        let id = pool.create_volume("v", 64 * MIB, 4096).await.expect("volume");
        fill(&pool, id, BLOCKS / 2, 1).await;
        id
    });
    let small = disk(&bench.world, "disk2", DiskModel::nvme(12 * MIB));
    let large = disk(&bench.world, "disk3", DiskModel::nvme(32 * MIB));
    let (id, added) = (bench.volume, (small.clone(), large.clone()));
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        pool.moves().add_device(added.0, [8; 16]).await.expect("add");
        let e = pool.moves().remove_device("disk0").await.expect_err("no room");
        assert_eq!(e.kind, ErrorKind::NoSpace);
        let text = e.to_string();
        for part in ["without disk0", "make disk2 larger", "forebay device replace disk0"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let e = pool.moves().set_copies(3).await.expect_err("no room for copies");
        assert!(e.to_string().contains("for 3 copies"), "{e}");
        assert_eq!(
            (pool.status().pool.copies, pool.moves().moves_status().state),
            (2, MovesState::None)
        );
        pool.moves().add_device(added.1, [9; 16]).await.expect("add");
        pool.moves().remove_device("disk0").await.expect("there is room now");
        // What this removal needs is not there for another one.
        let e = pool.moves().remove_device("disk1").await.expect_err("promised");
        assert_eq!(e.kind, ErrorKind::NoSpace);
        moved(&rt, &pool).await;
        reads(&pool, id, BLOCKS / 2).await;
        pool.close().await.expect("close");
    });
    bench.files = vec![bench.files[1].clone(), small, large];
    assert!(bench.check().is_clean(), "{:?}", bench.check());
}

/// Three disks of 32 MiB with two copies have room for 48 MiB, two of them for 32.
#[test]
fn a_removal_is_not_let_in_if_what_the_cache_holds_finds_no_room_then() {
    let bench = Mirror::new(5, (3, 2), |pool| async move {
        let id = pool.create_volume("v", 64 * MIB, 4096).await.expect("volume");
        fill(&pool, id, 12 * MIB / BLOCK_U64, 1).await;
        id
    });
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let dirty = pool.reserve(18 * MIB / BLOCK_U64).expect("three disks have room");
        let e = pool.moves().remove_device("disk2").await.expect_err("no room");
        assert_eq!(e.kind, ErrorKind::NoSpace);
        for part in ["without disk2", "what the cache holds", "forebay cache flush"] {
            assert!(e.to_string().contains(part), "{part}: {e}");
        }
        assert_eq!(pool.moves().moves_status().state, MovesState::None);
        drop(dirty);
        pool.moves().remove_device("disk2").await.expect("remove");
        moved(&rt, &pool).await;
        pool.close().await.expect("close");
    });
}

/// More copies were let in, and then clients took the room for them. The old number of copies is
/// the way back.
#[test]
fn a_change_of_copies_that_waits_for_room_is_given_up_by_the_old_number() {
    let bench = Mirror::new(4, (2, 1), |pool| async move {
        let id = pool.create_volume("v", 64 * MIB, 4096).await.expect("volume");
        fill(&pool, id, BLOCKS / 2, 1).await;
        id
    });
    let id = bench.volume;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        pool.moves().pause_moves(true);
        pool.moves().set_copies(2).await.expect("copies");
        let other = pool.create_volume("w", 64 * MIB, 4096).await.expect("volume");
        fill(&pool, other, BLOCKS * 3 / 4, 2).await;
        pool.moves().pause_moves(false);
        while pool.moves().moves_status().state == MovesState::Running {
            rt.sleep(Duration::from_millis(10)).await;
        }
        let status = pool.moves().moves_status();
        assert_eq!(
            (status.state, status.fewest_copies),
            (MovesState::Waiting, Some(1)),
            "{status:?}"
        );
        let e = pool.moves().cancel_moves().await.expect_err("no device leaves");
        assert!(e.to_string().contains("forebay pool set copies=1"), "{e}");
        pool.moves().set_copies(1).await.expect("the old number");
        moved(&rt, &pool).await;
        assert_eq!(
            (pool.status().pool.copies, pool.moves().moves_status().fewest_copies),
            (1, None)
        );
        reads(&pool, id, BLOCKS / 2).await;
        pool.close().await.expect("close");
    });
    assert!(bench.check().is_clean(), "{:?}", bench.check());
}

#[test]
fn a_refusal_names_only_devices_that_are_there() {
    let bench = Mirror::new(8, (4, 2), |pool| async move {
        let id = pool.create_volume("v", 64 * MIB, 4096).await.expect("volume");
        for at in [0, 16] {
            put(&pool, id, at * MIB / BLOCK_U64, 16 * MIB / BLOCK_U64, 1).await;
        }
        id
    });
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        pool.moves().remove_device("disk0").await.expect("remove");
        moved(&rt, &pool).await;
        assert_eq!(pool.status().pool.devices.len(), 3);
        let e = pool.moves().set_copies(3).await.expect_err("there is no room").to_string();
        assert!(e.contains("make disk1 or disk2 or disk3 larger"), "{e}");
        assert!(!e.contains("00000000"), "{e}");
        pool.close().await.expect("close");
    });
}

/// Writes this value until no room is left for data. Returns the blocks that hold it.
async fn fill_up(pool: &Pool, id: VolumeId, blocks: u64) -> u64 {
    for lba in 0..blocks {
        if let Err(e) = try_put(pool, id, lba, 1, 1).await {
            assert_eq!(e.kind, ErrorKind::NoSpace, "{e}");
            return lba;
        }
    }
    panic!("{blocks} blocks found room");
}

/// The only group of metadata has to move as well, and the pool has hardly a free chunk.
#[test]
fn a_full_pool_gets_its_copies_back() {
    let bench = Mirror::new(6, (2, 2), |pool| async move {
        pool.create_volume("v", 64 * MIB, 4096).await.expect("volume")
    });
    let id = bench.volume;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let blocks = fill_up(&pool, id, 64 * MIB / BLOCK_U64).await;
        for copies in [1, 2] {
            pool.moves().set_copies(copies).await.expect("copies");
            moved(&rt, &pool).await;
        }
        reads(&pool, id, blocks).await;
        pool.close().await.expect("close");
    });
    assert!(bench.check().is_clean(), "{:?}", bench.check());
}

/// Two full disks and a new one, of seven chunks each and three: there is one group of metadata,
/// and it has to move.
#[test]
fn a_full_pool_is_spread_over_a_device_that_is_added() {
    let world = World::new(7);
    let add = |name, mib| disk(&world, name, DiskModel::nvme(mib * MIB));
    let (files, new) = (vec![add("disk0", 32), add("disk1", 32)], add("disk2", 16));
    let mut bench = Mirror { world, files, rules: Rules::default(), volume: VolumeId(0) };
    let added = new.clone();
    bench.run(|rt, files| async move {
        let ids = [[1; 16], [2; 16], [3; 16]];
        let group_bytes = Some(4 * MIB);
        let options = CreateOptions { name: "bench".into(), copies: 2, group_bytes };
        pool::create(&rt, &files, &options, &ids).await.expect("create");
        let pool = open(&rt, files).await;
        let id = pool.create_volume("v", 64 * MIB, 4096).await.expect("volume");
        let blocks = fill_up(&pool, id, 64 * MIB / BLOCK_U64).await;
        pool.moves().add_device(added, [9; 16]).await.expect("add");
        pool.moves().balance_devices().await.expect("rebalance");
        moved(&rt, &pool).await;
        let more = fill_up(&pool, id, 64 * MIB / BLOCK_U64).await;
        assert!(more >= blocks + 4 * MIB / BLOCK_U64, "{blocks} blocks, and then {more}");
        reads(&pool, id, more).await;
        pool.close().await.expect("close");
    });
    bench.files.push(new);
    assert!(bench.check().is_clean(), "{:?}", bench.check());
}
