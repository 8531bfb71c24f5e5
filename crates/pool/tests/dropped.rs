//! Writes that are dropped at random moments: what they took comes back, and no block is given to
//! others while a device still writes it.

use base::{BLOCK, BLOCK_U64, Duration, Epoch, Instant, Lba, SliceList, VolumeId, crc32c};
use model::moves::MovesState;
use pool::{Pass, Pool};
use rt::Rt;
use rt::sync::either;
use testkit::{Mirror, Model, number, numbers, open};

const WRITERS: u64 = 8;
/// Blocks that each writer writes to, and how often.
const BLOCKS: u64 = 96;
const WRITES: u64 = 60;
/// Blocks that the writes of a pass take at most: 24 each.
const ROOM: u64 = 1440;

/// A pool of two copies on three disks, with a volume for direct writes and one for passes.
fn mirror(seed: u64) -> Mirror {
    Mirror::new(seed, (3, 2), |pool| async move {
        let bytes = WRITERS * BLOCKS * BLOCK_U64;
        let id = pool.create_volume("v", bytes, 4096).await.expect("volume");
        let of_pass = pool.create_volume("w", bytes, 4096).await.expect("volume");
        assert_eq!(of_pass, VolumeId(id.0 + 1));
        id
    })
}

/// Runs a future, and drops it after a random time if it has not ended by then. Some are dropped
/// before a device has heard of them, others in the middle of a transfer.
async fn dropped_at_random(rt: &Rt, future: impl Future<Output = ()>) {
    let most = 1 << (rt.random() % 11);
    either(future, rt.sleep(Duration::from_micros(rt.random() % most))).await;
}

/// A first block, and new numbers for it and those behind it, of writer `n`.
fn next_write(rt: &Rt, n: u64) -> (u64, Vec<u64>) {
    let len = 1 + rt.random() % 24;
    let at = n * BLOCKS + rt.random() % (BLOCKS - len);
    (at, (0..len).map(|_| 1 + rt.random() % (1 << 40)).collect())
}

async fn write_directly(rt: Rt, pool: Pool, (id, n): (VolumeId, u64), model: Model) {
    for i in 0..WRITES {
        let (at, values) = next_write(&rt, n);
        (at..).zip(&values).for_each(|(at, &value)| model.issue(at, value));
        let data = numbers(&values);
        let write = async { pool.write(id, Lba(at), &data).await.expect("write") };
        dropped_at_random(&rt, write).await;
        if i % 10 == n {
            pool.commit().await.expect("commit");
        }
    }
}

async fn write_in_pass(rt: &Rt, pass: &Pass, id: VolumeId) {
    for _ in 0..WRITES {
        let (at, values) = next_write(rt, 0);
        let data = numbers(&values);
        let crcs: Vec<_> = data.chunks(BLOCK).map(crc32c).collect();
        let data = SliceList::from_iter([data]);
        let write = async { pass.write(id, Lba(at), data, &crcs).await.expect("write") };
        dropped_at_random(rt, write).await;
    }
}

/// A pass is given up, and the next one is published.
async fn passes(rt: Rt, pool: Pool, id: VolumeId) {
    for publish in [false, true] {
        let mut room = pool.reserve(ROOM).expect("room");
        let pass = pool.begin_pass(&mut room).expect("a pass");
        write_in_pass(&rt, &pass, id).await;
        if publish {
            pass.hand_over(Epoch(1), Instant(0))
                .await
                .expect("handed over")
                .commit()
                .await
                .expect("commit");
        } else {
            let room = pass.abort().await.expect("it is not published");
            assert_eq!(room.blocks(), ROOM, "its room is whole again");
        }
    }
}

/// Takes a device out of the pool, which every group has to be closed for that is on it.
async fn evacuate(rt: &Rt, pool: &Pool, name: &str) {
    pool.moves().remove_device(name).await.expect("remove");
    for _ in 0..10_000 {
        if pool.moves().moves_status().state == MovesState::None {
            return;
        }
        rt.sleep(Duration::from_millis(10)).await;
    }
    panic!("groups cannot be moved: {:?}", pool.moves().moves_status());
}

fn used_bytes(pool: &Pool) -> u64 {
    pool.status().pool.used_bytes
}

#[test]
fn what_dropped_writes_took_comes_back() {
    for seed in 0..4 {
        let mut bench = mirror(seed);
        let (id, model) = (bench.volume, Model::new(WRITERS * BLOCKS));
        let known = model.clone();
        let used = bench.run(|rt, files| async move {
            let pool = open(&rt, files).await;
            let direct = |n| write_directly(rt.clone(), pool.clone(), (id, n), known.clone());
            let mut tasks: Vec<_> = (0..WRITERS).map(|n| rt.spawn(direct(n))).collect();
            tasks.push(rt.spawn(passes(rt.clone(), pool.clone(), VolumeId(id.0 + 1))));
            for task in tasks {
                task.await.expect("it ends");
            }
            evacuate(&rt, &pool, "disk2").await;
            for at in 0..WRITERS * BLOCKS {
                let data = pool.read(id, Lba(at), 1).await.expect("read");
                known.found(at, number(&data).expect("one write's"), format!("seed {seed},"));
            }
            pool.commit().await.expect("commit");
            // What it freed waits for reads, and for a look.
            rt.sleep(Duration::from_secs(1)).await;
            let used = used_bytes(&pool);
            pool.close().await.expect("close");
            used
        });
        bench.files.pop();
        assert!(bench.check().is_clean(), "seed {seed}: {:?}", bench.check());
        // The bitmaps say what is used, and know nothing of blocks that were only taken.
        bench.run(|rt, files| async move {
            let pool = open(&rt, files).await;
            assert_eq!(used_bytes(&pool), used, "seed {seed}: something is taken by no one");
            for id in [id, VolumeId(id.0 + 1)] {
                pool.delete_volume(id).await.expect("delete");
            }
            rt.sleep(Duration::from_secs(1)).await;
            pool.commit().await.expect("commit");
            rt.sleep(Duration::from_secs(1)).await;
            // Groups that were used keep an empty tree of checksums.
            let left = used_bytes(&pool) / BLOCK_U64;
            assert!(left < 50, "seed {seed}: {left} blocks are left");
            pool.close().await.expect("close");
        });
    }
}
