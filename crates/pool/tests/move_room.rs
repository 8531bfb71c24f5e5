//! Moves that wait for room go on by themselves when there is some.

use base::{BLOCK_U64, Duration, Lba, VolumeId};
use pool::Pool;
use rt::Rt;
use sim::DiskModel;
use testkit::{MIB, Mirror, disk, fill, only_byte, open};

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
    pool.remove_device("disk2").await.expect("remove");
    while pool.moves_status().state == "running" {
        rt.sleep(Duration::from_millis(10)).await;
    }
    let status = pool.moves_status();
    assert_eq!(status.trouble.as_deref(), Some("waiting for room in other block groups"));
    rt.sleep(Duration::from_secs(60)).await;
    assert_eq!(pool.moves_status().state, "waiting", "there is no more room than before");
}

/// Returns how long it took until nothing is left to move.
async fn moved(rt: &Rt, pool: &Pool) -> Duration {
    let since = rt.now();
    while pool.moves_status().state != "none" {
        assert!(rt.now().since(since).as_secs() < 60, "{:?}", pool.moves_status());
        rt.sleep(Duration::from_millis(10)).await;
    }
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
        pool.add_device(added, [9; 16]).await.expect("add");
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
        let took = moved(&rt, &pool).await;
        // The commit that frees them wakes it; there is no poll.
        assert!(took < Duration::from_secs(1), "{took:?}");
        reads(&pool, id, BLOCKS / 2).await;
        pool.close().await.expect("close");
    });
    bench.files.pop();
    assert!(bench.check().is_clean(), "{:?}", bench.check());
}
