//! What is in the golden images of the first version of the format. `testkit` knows the text that
//! they are kept as.

use base::{BLOCK, Lba};
use pool::{CreateOptions, DeviceFile, Pool, Settings};
use rt::{FileId, Order, Rt};
use sim::{DiskModel, World};

/// Devices, and copies of each block.
pub const DEVICES: usize = 2;
/// Bytes of each.
pub const SIZE: u64 = 12 << 20;

/// What block `lba` of a volume holds: which version was written last; 0: a hole.
#[allow(dead_code, reason = "the example writes images, the test reads them")]
pub fn version(volume: &str, lba: u64) -> u64 {
    match (volume, lba) {
        ("plain", 0..40) => 2,
        ("plain", 100..200) => 0,
        ("plain", 0..1200) if lba % 2 == 0 => 1,
        ("other", 1000..1100) => 1,
        _ => 0,
    }
}

/// The content of a block.
pub fn block(volume: &str, lba: u64, version: u64, out: &mut [u8]) {
    out.fill(0);
    if version > 0 {
        out.fill((lba % 251) as u8);
        out[..8].copy_from_slice(&lba.to_le_bytes());
        out[8] = version as u8;
        out[9] = volume.as_bytes()[0];
    }
}

/// The devices of a world with [`DEVICES`] disks.
pub fn files() -> Vec<DeviceFile> {
    let file = |n: u32| DeviceFile { path: format!("disk{n}"), file: FileId(n), size_bytes: SIZE };
    (0..DEVICES as u32).map(file).collect()
}

/// Runs `f` in a boot of `world`.
pub fn boot<T: 'static, F: Future<Output = T> + 'static>(
    world: &World,
    f: impl FnOnce(Rt) -> F,
) -> T {
    let rt = Rt::new(world.backend(), Order::Seeded(1), 256);
    let out = rt.block_on(f(rt.clone())).expect("it was not killed");
    rt.kill();
    out
}

/// Makes the pool that [`version`] tells of.
#[allow(dead_code, reason = "the example writes images, the test reads them")]
pub fn make() -> World {
    let world = World::new(1);
    for _ in 0..DEVICES {
        world.add_disk(DiskModel::nvme(SIZE));
    }
    boot(&world, |rt| async move {
        let options = CreateOptions {
            name: "golden".into(),
            copies: DEVICES as u8,
            group_bytes: Some(1 << 20),
        };
        let ids: Vec<[u8; 16]> = (0..=DEVICES as u8).map(|i| [0xA0 + i; 16]).collect();
        pool::create(&rt, &files(), &options, &ids).await.expect("create");
        let (pool, _) = Pool::open(&rt, files(), Settings::default()).await.expect("open");
        let plain = pool.create_volume("plain", 64 << 20, 512).await.expect("volume");
        let gone = pool.create_volume("gone", 1 << 30, 4096).await.expect("volume");
        let other = pool.create_volume("other", 1 << 30, 4096).await.expect("volume");
        let write = async |id, name: &str, lba: u64, version| {
            let mut buf = rt.bufs().take(BLOCK);
            block(name, lba, version, &mut buf);
            pool.write(id, Lba(lba), &buf.freeze()).await.expect("write");
        };
        for lba in (0..1200).step_by(2) {
            write(plain, "plain", lba, 1).await;
        }
        for lba in 0..100 {
            write(gone, "gone", lba, 1).await;
        }
        pool.commit().await.expect("commit");
        for lba in 0..40 {
            write(plain, "plain", lba, 2).await;
        }
        pool.discard(plain, Lba(100), Lba(200)).await.expect("discard");
        pool.delete_volume(gone).await.expect("delete");
        for lba in 1000..1100 {
            write(other, "other", lba, 1).await;
        }
        pool.close().await.expect("close");
    });
    world
}
