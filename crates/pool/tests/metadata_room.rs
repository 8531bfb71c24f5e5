//! A pool has no room for metadata left only if it has none for data: some block groups are kept
//! for the trees, which are largest where a volume was written in random order.

use base::{ErrorKind, Lba, Prng, Result, VolumeId};
use pool::{CreateOptions, DeviceFile, Pool};
use rt::{Order, Rt};
use sim::{DiskModel, World};
use testkit::{MIB, block, blocks, boot, disk, moved, open};

/// Of each disk.
const DISK: u64 = 128 * MIB;
/// Blocks of a write of 1 MiB.
const LARGE: u64 = 256;

/// Runs `body` with a pool that has so many copies, each on a disk, and groups of so many bytes.
fn run<F: Future<Output = ()> + 'static>(
    (copies, group_bytes): (u8, u64),
    body: impl FnOnce(Rt, Pool, World) -> F + 'static,
) {
    let world = World::new(7);
    let add = |i| disk(&world, &format!("disk{i}"), DiskModel::nvme(DISK));
    let files: Vec<DeviceFile> = (0..copies).map(add).collect();
    let outcome = boot(world.backend(), Order::Seeded(7), |rt| async move {
        let options =
            CreateOptions { name: "bench".into(), copies, group_bytes: Some(group_bytes) };
        let ids: Vec<_> = (0..=copies).map(|i| [i; 16]).collect();
        pool::create(&rt, &files, &options, &ids).await.expect("create");
        let pool = open(&rt, files).await;
        body(rt, pool.clone(), world).await;
        pool.close().await.expect("close");
    });
    assert!(outcome.is_some(), "killed");
}

/// Makes a volume, and writes it in order until the pool is full. Returns how many blocks it holds.
async fn fill_in_order(pool: &Pool) -> (VolumeId, u64) {
    let id = pool.create_volume("v", 2 * DISK, 4096).await.expect("volume");
    for n in 0.. {
        match pool.write(id, Lba(n * LARGE), &blocks(1, LARGE)).await {
            Ok(()) => {}
            Err(e) if e.kind == ErrorKind::NoSpace => return (id, n * LARGE),
            Err(e) => panic!("{e}"),
        }
    }
    unreachable!("the volume is larger than the pool");
}

/// Discards every second block.
async fn thin_out(pool: &Pool, id: VolumeId, upto: u64) {
    for lba in (0..upto).step_by(2) {
        pool.discard(id, Lba(lba), Lba(lba + 1)).await.expect("discard");
    }
    pool.commit().await.expect("commit");
}

/// Writes each second block anew, in random order.
async fn write_at_random(pool: &Pool, id: VolumeId, upto: u64) -> Result<()> {
    let mut order: Vec<u64> = (0..upto).step_by(2).collect();
    let mut rng = Prng::new(3);
    for at in (1..order.len()).rev() {
        order.swap(at, rng.below(at as u64 + 1) as usize);
    }
    for lba in order {
        pool.write(id, Lba(lba), &block(2)).await?;
    }
    Ok(())
}

/// The nodes of such a volume fill more than one group, at worst.
#[test]
fn what_was_written_in_order_can_be_written_in_any_order() {
    run((1, MIB), |_, pool, _| async move {
        let (id, upto) = fill_in_order(&pool).await;
        assert!(upto * 4096 > DISK * 9 / 10, "{upto} blocks fill the pool");
        thin_out(&pool, id, upto).await;
        write_at_random(&pool, id, upto).await.expect("as much as before");
    });
}

/// Every group in use holds something, and the only one of the trees' has to be closed.
#[test]
fn a_device_is_replaced_where_all_groups_have_a_little() {
    run((2, 4 * MIB), |rt, pool, world| async move {
        let (id, upto) = fill_in_order(&pool).await;
        thin_out(&pool, id, upto).await;
        let new = disk(&world, "new", DiskModel::nvme(DISK));
        pool.moves().replace_device("disk1", new, [9; 16]).await.expect("replace");
        moved(&rt, &pool).await;
        assert!(pool.status().pool.devices.iter().all(|d| d.path != "disk1"));
    });
}
