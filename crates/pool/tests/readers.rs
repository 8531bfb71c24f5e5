//! What a read is about is not given to others before it has ended, whatever is committed
//! meanwhile.

use base::{BLOCK, BLOCK_U64, Duration, ErrorKind, Lba, VolumeId};
use pool::{CreateOptions, DeviceFile, Pool, Settings};
use rt::{Order, Rt};
use sim::{DiskModel, World};

const MIB: u64 = 1 << 20;
const DISK: u64 = 16 * MIB;

async fn put(pool: &Pool, volume: VolumeId, lba: u64, blocks: u64, byte: u8) -> base::Result<()> {
    let mut buf = pool.bufs().take(blocks as usize * BLOCK);
    buf.fill(byte);
    pool.write(volume, Lba(lba), &buf.freeze()).await
}

#[test]
fn a_slow_read_outlives_commits_that_free_nothing_and_one_that_frees_its_blocks() {
    let world = World::new(11);
    // Of one copy: wrong data would have no other.
    let slow = Duration::from_secs(5);
    let file = world.add_disk(DiskModel { read_latency: (slow, slow), ..DiskModel::nvme(DISK) });
    let files = vec![DeviceFile { path: "disk".into(), file, size_bytes: DISK }];
    let rt = Rt::new(world.backend(), Order::Seeded(5), 256);
    let r = rt.clone();
    rt.block_on(async move {
        let options = CreateOptions { name: "tank".into(), copies: 1, group_bytes: Some(MIB) };
        pool::create(&r, &files, &options, &[[1; 16], [2; 16]]).await.expect("create");
        let (pool, _) = Pool::open(&r, files, Settings::default()).await.expect("open");
        let id = pool.create_volume("v", 1 << 30, 4096).await.expect("volume");
        put(&pool, id, 0, 8, 1).await.expect("write");
        pool.commit().await.expect("commit");
        let (p, began) = (pool.clone(), r.now());
        let reading = r.spawn(async move { p.read(id, Lba(0), 8).await });
        r.sleep(Duration::from_millis(1)).await;
        // A commit of the superblock alone; then one that frees what is being read.
        pool.set_cache_uuid(None).await.expect("commit");
        pool.discard(id, Lba(0), Lba(8)).await.expect("discard");
        pool.commit().await.expect("commit");
        // All the space there is, over and over, as far as it is given.
        let mut full = false;
        for i in 0..4 * DISK / MIB {
            match put(&pool, id, 1000 + i * 64, 64, 2).await {
                Ok(()) => {}
                Err(e) if e.kind == ErrorKind::NoSpace => full = true,
                Err(e) => panic!("{e}"),
            }
            pool.commit().await.expect("commit");
        }
        assert!(full && r.now().since(began) < slow, "the read is to last longer than that");
        let data = reading.await.expect("not killed").expect("read");
        let bytes: Vec<u8> = data.iter().flat_map(|s| s.to_vec()).collect();
        assert!(bytes.len() as u64 == 8 * BLOCK_U64 && bytes.iter().all(|&b| b == 1));
        pool.close().await.expect("close");
    })
    .expect("not killed");
    rt.kill();
}
