//! What a read is about is not given to others before it has ended, whatever is committed
//! meanwhile.

use std::cell::Cell;
use std::rc::Rc;

use base::{BLOCK, Duration, ErrorKind, Lba};
use pool::{Pool, Settings};
use rt::{Order, Rt};
use sim::{DiskModel, Latency, World};
use testkit::{MIB, boot, create_pool, disk, fill, only_byte, try_put};

const DISK: u64 = 16 * MIB;

#[test]
fn a_slow_read_outlives_commits_that_free_nothing_and_one_that_frees_its_blocks() {
    let world = World::new(11);
    // Of one copy: wrong data would have no other.
    let slow = Duration::from_secs(600);
    let model = DiskModel { read_latency: Latency::new(slow, slow), ..DiskModel::nvme(DISK) };
    let files = vec![disk(&world, "disk", model)];
    let body = |r: Rt| async move {
        create_pool(&r, &files, 1).await;
        let (pool, _) = Pool::open(&r, files, Settings::default()).await.expect("open");
        let id = pool.create_volume("v", 1 << 30, 4096).await.expect("volume");
        fill(&pool, id, 8, 1).await;
        let (p, began) = (pool.clone(), r.now());
        let reading = r.spawn(async move { p.read(id, Lba(0), 8).await });
        r.sleep(Duration::from_millis(1)).await;
        // A commit of the superblock alone; then one that frees what is being read.
        pool.cache_link().set_cache_uuid(None).await.expect("commit");
        pool.discard(id, Lba(0), Lba(8)).await.expect("discard");
        pool.commit().await.expect("commit");
        // All the space there is, until only the blocks that are being read are left.
        let (p, wrote) = (pool.clone(), Rc::new(Cell::new(0)));
        let count = wrote.clone();
        let writing = r.spawn(async move {
            loop {
                match try_put(&p, id, 1000 + count.get(), 1, 2).await {
                    Ok(()) => count.set(count.get() + 1),
                    Err(e) if e.kind == ErrorKind::NoSpace => return,
                    Err(e) => panic!("{e}"),
                }
                p.commit().await.expect("commit");
            }
        });
        r.sleep(Duration::from_secs(300)).await;
        let before = wrote.get();
        assert!(before > DISK / MIB, "{before} blocks were written");
        r.sleep(Duration::from_secs(200)).await;
        assert!(r.now().since(began) < slow, "the read is to last longer than that");
        assert_eq!(wrote.get(), before, "the writer waits for the read");
        let data = reading.await.expect("not killed").expect("read");
        let len: usize = data.iter().map(|s| s.len()).sum();
        assert!(len == 8 * BLOCK && only_byte(&data) == Some(1));
        writing.await.expect("not killed");
        assert!(wrote.get() > before, "what was read is free now");
        pool.close().await.expect("close");
    };
    boot(world.backend(), Order::Seeded(5), body).expect("not killed");
}
