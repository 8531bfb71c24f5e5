//! Staging volumes: what a pass takes over from them, what becomes of the rest, and what a crash
//! leaves.
//!
//! Every test ends with the offline check, of the data too: nothing leaked, nothing is referred to
//! twice, and the blocks in use are exactly those that the volumes have.

use base::{
    BLOCK, BLOCK_U64, Duration, Epoch, ErrorKind, Lba, SliceList, StorageError, VolumeId, crc32c,
};
use offline::pool::check::Report;
use offline::{Severity, Subject};
use pool::{Pass, Pool};
use rt::Rt;
use testkit::{MIB, Mirror, open, put, try_put};

/// Blocks of the volume.
const BLOCKS: u64 = 4096;
const CACHE: Option<[u8; 16]> = Some([9; 16]);
const ONE: Epoch = Epoch(1);

/// A pool of two copies on two disks that names a cache, with a volume whose first 100 blocks hold
/// `1`.
fn mirror(seed: u64) -> Mirror {
    Mirror::new(seed, (2, 2), |pool| async move {
        let id = pool.create_volume("v", BLOCKS * BLOCK_U64, 4096).await.expect("volume");
        put(&pool, id, 0, 100, 1).await;
        pool.set_cache_uuid(CACHE).await.expect("cache");
        id
    })
}

fn check(bench: &Mirror) -> Report {
    let report = bench.check();
    // A crash may have torn one of two copies of a superblock.
    let noted = report
        .problems
        .iter()
        .all(|p| p.severity == Severity::Note && p.subject == Subject::Superblock);
    assert!(report.is_clean() && noted, "{:?}", report.problems);
    report
}

/// Volumes and staging volumes have this many blocks, of which so many are there; and nothing else
/// is in use when the pool has come to rest.
fn expect_blocks(bench: &Mirror, blocks: u64, stagings: u64) {
    let used = bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        rest(&rt, &pool).await;
        let used = pool.status().pool.used_bytes;
        pool.close().await.expect("close");
        used
    });
    let c = check(bench).counts;
    assert_eq!((c.data_blocks, c.stagings), (blocks, stagings));
    assert_eq!(used / BLOCK_U64, c.data_blocks + c.nodes);
}

/// Until what is freed in the background is.
async fn rest(rt: &Rt, pool: &Pool) {
    for _ in 0..6 {
        rt.sleep(Duration::from_millis(60)).await;
        pool.commit().await.expect("commit");
    }
}

async fn stage(pool: &Pool, volume: VolumeId, lba: u64, blocks: u64, value: u8) -> VolumeId {
    let id = pool.staging(volume, ONE).await.expect("staging");
    put(pool, id, lba, blocks, value).await;
    id
}

/// Blocks of one value in a row each: (value, blocks), from block 0 on.
fn runs(data: &SliceList) -> Vec<(u8, u64)> {
    let mut out: Vec<(u8, u64)> = Vec::new();
    for block in data.iter().flat_map(|s| s.chunks_exact(BLOCK)) {
        assert!(block.iter().all(|b| *b == block[0]), "a torn block");
        match out.last_mut() {
            Some((value, n)) if *value == block[0] => *n += 1,
            _ => out.push((block[0], 1)),
        }
    }
    out
}

async fn content(pool: &Pool, id: VolumeId, blocks: u64) -> Vec<(u8, u64)> {
    runs(&pool.read(id, Lba(0), blocks).await.expect("read"))
}

/// A pass that adopts, and writes nothing.
fn begin(pool: &Pool) -> base::Result<Pass> {
    pool.begin_pass(&mut pool.reserve(0)?)
}

#[test]
fn what_is_adopted_changes_hands_and_the_rest_is_freed() {
    let bench = mirror(1);
    let v = bench.volume;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let s = stage(&pool, v, 20, 40, 2).await;
        put(&pool, s, 30, 10, 3).await;
        put(&pool, s, 200, 7, 5).await;
        // From the cache: 35 to 50. Not adopted, because it was discarded: 204 to 207.
        let pass = pool.begin_pass(&mut pool.reserve(15).expect("room")).expect("pass");
        let mut data = pool.bufs().take(15 * BLOCK);
        data.fill(4);
        let data = data.freeze();
        let crcs: Vec<_> = data.chunks_exact(BLOCK).map(crc32c).collect();
        pass.write(v, Lba(35), SliceList::from_iter([data]), &crcs).await.expect("write");
        pass.adopt(s, v, Lba(0), Lba(35)).await.expect("adopt");
        pass.adopt(s, v, Lba(50), Lba(204)).await.expect("adopt");
        assert_eq!(content(&pool, v, 250).await, [(1, 100), (0, 150)], "not yet");
        assert_eq!(content(&pool, s, 61).await, [(0, 20), (2, 10), (3, 10), (2, 20), (0, 1)]);
        pass.publish(ONE, base::Instant(0)).await.expect("publish");
        let after =
            [(1, 20), (2, 10), (3, 5), (4, 15), (2, 10), (1, 40), (0, 100), (5, 4), (0, 46)];
        assert_eq!(content(&pool, v, 250).await, after);
        assert_eq!(runs(&pool.read_staged(v, ONE, Lba(0), 250).await.expect("read")), after);
        assert_eq!(
            pool.read(s, Lba(20), 1).await.expect_err("it has ended").kind,
            ErrorKind::NotFound
        );
        assert_eq!(pool.staging(v, ONE).await.expect_err("published").kind, ErrorKind::NotFound);
        assert!(pool.stagings().is_empty() && pool.find_staging(v, ONE).is_none());
        assert_eq!(pool.volume(v).expect("there").allocated_bytes, 104 * BLOCK_U64);
        pool.close().await.expect("close");
    });
    expect_blocks(&bench, 104, 0);
}

#[test]
fn many_small_and_a_few_large_extents_are_adopted() {
    let bench = mirror(2);
    let v = bench.volume;
    let mapped = bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        for i in 0..300 {
            put(&pool, v, i * 3, 2, 1).await;
            stage(&pool, v, i * 3 + 1, 1 + i % 2, (2 + i % 2) as u8).await;
        }
        stage(&pool, v, 1000, 2900, 7).await;
        let s = pool.find_staging(v, ONE).expect("there");
        let was = content(&pool, s, BLOCKS).await;
        let pass = begin(&pool).expect("pass");
        pass.adopt(s, v, Lba(0), Lba(BLOCKS)).await.expect("adopt");
        pass.publish(ONE, base::Instant(0)).await.expect("publish");
        let now = content(&pool, v, BLOCKS).await;
        let at = |runs: &[(u8, u64)], mut block: u64| {
            runs.iter()
                .find(|(_, n)| {
                    block < *n || {
                        block -= n;
                        false
                    }
                })
                .expect("inside")
                .0
        };
        for block in 0..BLOCKS {
            let old = u8::from(block < 100 || block < 900 && block % 3 < 2);
            let want = Some(at(&was, block)).filter(|&b| b > 0).unwrap_or(old);
            assert_eq!(at(&now, block), want, "block {block}");
        }
        pool.close().await.expect("close");
        now.iter().filter(|(value, _)| *value > 0).map(|(_, n)| n).sum()
    });
    expect_blocks(&bench, mapped, 0);
}

#[test]
fn an_aborted_pass_leaves_everything_as_it_was() {
    let bench = mirror(3);
    let v = bench.volume;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let s = stage(&pool, v, 50, 100, 2).await;
        let pass = begin(&pool).expect("pass");
        pass.adopt(s, v, Lba(60), Lba(120)).await.expect("adopt");
        assert_eq!(
            try_put(&pool, s, 0, 5, 8).await.expect_err("too late").kind,
            ErrorKind::NotFound
        );
        assert_eq!(
            pool.discard(s, Lba(0), Lba(90)).await.expect_err("too late").kind,
            ErrorKind::NotFound
        );
        assert_eq!(
            pass.adopt(v, s, Lba(0), Lba(9)).await.map_err(|e| e.kind),
            Err(ErrorKind::Invalid)
        );
        drop(pass.abort().await);
        assert_eq!(content(&pool, v, 200).await, [(1, 100), (0, 100)]);
        assert_eq!(content(&pool, s, 200).await, [(0, 50), (2, 100), (0, 50)]);
        put(&pool, s, 0, 5, 8).await;
        pool.close().await.expect("close");
    });
    expect_blocks(&bench, 205, 1);
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let s = pool.find_staging(v, ONE).expect("it outlives the pool's being closed");
        let pass = begin(&pool).expect("pass");
        pass.adopt(s, v, Lba(0), Lba(500)).await.expect("adopt");
        pass.publish(ONE, base::Instant(0)).await.expect("publish");
        assert_eq!(content(&pool, v, 151).await, [(8, 5), (1, 45), (2, 100), (0, 1)]);
        pool.close().await.expect("close");
    });
    expect_blocks(&bench, 150, 0);
}

#[test]
fn a_crash_at_any_moment_leaves_the_old_image_with_its_staging_or_the_new_one() {
    let (mut old, mut new) = (0, 0);
    for cut in 0..60u64 {
        let bench = mirror(100 + cut);
        let (v, world) = (bench.volume, bench.world.clone());
        let ended = bench.try_run(|rt, files| async move {
            let pool = open(&rt, files).await;
            let s = stage(&pool, v, 50, 1000, 2).await;
            put(&pool, s, 300, 100, 3).await;
            pool.commit().await.expect("commit");
            let r = rt.clone();
            drop(rt.spawn(async move {
                let pass = begin(&pool).expect("pass");
                pass.adopt(s, v, Lba(0), Lba(700)).await.expect("adopt");
                pass.publish(ONE, base::Instant(0)).await.expect("publish");
                rest(&r, &pool).await;
            }));
            rt.sleep(Duration::from_micros(cut * 20)).await;
            world.power_cut();
            rt.kill();
            rt.yield_now().await;
        });
        assert!(ended.is_none());
        check(&bench);
        let published = bench.run(|rt, files| async move {
            let pool = open(&rt, files).await;
            let published = pool.published() == ONE;
            if published {
                assert_eq!(
                    content(&pool, v, 1100).await,
                    [(1, 50), (2, 250), (3, 100), (2, 300), (0, 400)]
                );
                assert!(pool.stagings().is_empty());
            } else {
                assert_eq!(content(&pool, v, 1100).await, [(1, 100), (0, 1000)]);
                let s = pool.find_staging(v, ONE).expect("it was committed");
                assert_eq!(
                    content(&pool, s, 1100).await,
                    [(0, 50), (2, 250), (3, 100), (2, 650), (0, 50)]
                );
            }
            pool.close().await.expect("close");
            published
        });
        if published {
            new += 1;
            expect_blocks(&bench, 700, 0);
        } else {
            old += 1;
            expect_blocks(&bench, 1100, 1);
        }
    }
    assert!(old > 5 && new > 5, "{old} {new}");
}

#[test]
fn a_publication_whose_commit_fails_is_what_counts_and_comes_with_the_next() {
    let bench = mirror(4);
    let v = bench.volume;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let s = stage(&pool, v, 50, 100, 2).await;
        let pass = begin(&pool).expect("pass");
        pass.adopt(s, v, Lba(0), Lba(120)).await.expect("adopt");
        pool.link_journal(pool::Link::Closed(Err(StorageError::new(ErrorKind::Io, "not now"))));
        assert!(pass.publish(ONE, base::Instant(0)).await.is_err());
        assert!(pool.find_staging(v, ONE).is_none());
        pool.link_journal(pool::Link::None);
        let pass = begin(&pool).expect("pass");
        assert_eq!(
            pass.adopt(s, v, Lba(0), Lba(120)).await.map_err(|e| e.kind),
            Err(ErrorKind::NotFound)
        );
        pass.publish(ONE, base::Instant(0)).await.expect("publish");
        assert_eq!(content(&pool, v, 130).await, [(1, 50), (2, 70), (0, 10)]);
        pool.close().await.expect("close");
    });
    expect_blocks(&bench, 120, 0);
}

#[test]
fn a_full_pool_refuses_the_write_and_can_still_publish() {
    let bench = mirror(5);
    let v = bench.volume;
    let mapped = bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        for lba in (0..BLOCKS).step_by(256) {
            put(&pool, v, lba, 256, 1).await;
        }
        // Large requests, apart from one another, until nothing fits any more.
        let mut staged = Vec::new();
        let s = pool.staging(v, ONE).await.expect("staging");
        let refused = loop {
            let lba = staged.len() as u64 * 37 * 16 % BLOCKS;
            match try_put(&pool, s, lba, 16, 2).await {
                Ok(()) => staged.push(lba),
                Err(e) => break e,
            }
            assert!(staged.len() < 4096, "it is never full");
        };
        assert_eq!(refused.kind, ErrorKind::NoSpace, "{refused}");
        assert!(staged.len() > 50, "{}", staged.len());
        let pass = begin(&pool).expect("pass");
        for lba in &staged {
            pass.adopt(s, v, Lba(*lba), Lba(lba + 16)).await.expect("adopt");
        }
        pass.publish(ONE, base::Instant(0)).await.expect("publish");
        for lba in &staged {
            assert_eq!(runs(&pool.read(v, Lba(*lba), 16).await.expect("read")), [(2, 16)]);
        }
        rest(&rt, &pool).await;
        put(&pool, v, 0, 256, 3).await;
        pool.close().await.expect("close");
        BLOCKS
    });
    expect_blocks(&bench, mapped, 0);
}

#[test]
fn a_deleted_volume_takes_its_staging_volumes_with_it() {
    for during_pass in [false, true] {
        let bench = mirror(6);
        let v = bench.volume;
        bench.run(|rt, files| async move {
            let pool = open(&rt, files).await;
            let s = stage(&pool, v, 50, 100, 2).await;
            let later = pool.staging(v, Epoch(2)).await.expect("staging");
            put(&pool, later, 0, 10, 3).await;
            let pass = begin(&pool).expect("pass");
            if during_pass {
                pass.adopt(s, v, Lba(0), Lba(120)).await.expect("adopt");
            }
            pool.delete_volume(v).await.expect("delete");
            assert!(pool.stagings().is_empty());
            assert_eq!(
                pool.staging(v, Epoch(2)).await.expect_err("gone").kind,
                ErrorKind::NotFound
            );
            let late = pass.adopt(s, v, Lba(120), Lba(150)).await;
            assert_eq!(late.map_err(|e| e.kind), Err(ErrorKind::NotFound));
            rest(&rt, &pool).await;
            pass.publish(ONE, base::Instant(0)).await.expect("publish");
            rest(&rt, &pool).await;
            pool.close().await.expect("close");
        });
        expect_blocks(&bench, 0, 0);
    }
}

#[test]
fn a_pool_that_lost_a_device_has_its_staging_volumes() {
    let bench = mirror(7);
    let v = bench.volume;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        stage(&pool, v, 50, 100, 2).await;
        pool.close().await.expect("close");
    });
    bench.run(|rt, mut files| async move {
        files.pop();
        let pool = open(&rt, files).await;
        let s = stage(&pool, v, 140, 30, 3).await;
        assert_eq!(content(&pool, s, 170).await, [(0, 50), (2, 90), (3, 30)]);
        let pass = begin(&pool).expect("pass");
        pass.adopt(s, v, Lba(0), Lba(200)).await.expect("adopt");
        pass.publish(ONE, base::Instant(0)).await.expect("publish");
        assert_eq!(content(&pool, v, 171).await, [(1, 50), (2, 90), (3, 30), (0, 1)]);
        rest(&rt, &pool).await;
        pool.close().await.expect("close");
    });
}

#[test]
fn they_end_with_the_cache() {
    for how in 0..3 {
        let bench = mirror(8);
        let v = bench.volume;
        bench.run(|rt, files| async move {
            let pool = open(&rt, files).await;
            stage(&pool, v, 50, 100, 2).await;
            pool.set_cache_uuid(CACHE).await.expect("as before");
            assert_eq!(pool.stagings().len(), 1);
            match how {
                0 => pool.set_cache_uuid(None).await.expect("detach"),
                1 => pool.drop_cache(),
                _ => pool.set_cache_uuid(Some([10; 16])).await.expect("another"),
            }
            assert!(pool.stagings().is_empty());
            pool.close().await.expect("close");
        });
        expect_blocks(&bench, 100, 0);
    }
}

#[test]
fn nobody_sees_them_and_the_table_keeps_room_for_volumes() {
    let bench = mirror(9);
    let v = bench.volume;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let s = stage(&pool, v, 50, 3, 2).await;
        assert_eq!(pool.staging(v, ONE).await.expect("the same"), s);
        assert_eq!(pool.volumes().len(), 1);
        assert!(
            pool.find_volume("").is_none()
                && pool.volume(s).is_none()
                && pool.volume_size(s).is_none()
        );
        assert_eq!(pool.delete_volume(s).await.expect_err("not so").kind, ErrorKind::NotFound);
        assert_eq!(pool.staging(s, ONE).await.expect_err("not so").kind, ErrorKind::NotFound);
        let crcs = pool.checksums(s, Lba(49), 5).await.expect("checksums");
        let crc = Some(crc32c(&[2; BLOCK]));
        assert_eq!(crcs, [None, crc, crc, crc, None]);
        let mut epoch = 2;
        let full = loop {
            match pool.staging(v, Epoch(epoch)).await {
                Ok(_) => epoch += 1,
                Err(e) => break e,
            }
            assert!(epoch < 1000);
        };
        assert!(full.kind == ErrorKind::NoSpace && full.context.contains("volume table"), "{full}");
        for name in ["a", "b"] {
            pool.create_volume(name, MIB, 512).await.expect("there is room for volumes");
        }
        pool.set_cache_uuid(None).await.expect("detach");
        assert!(pool.stagings().is_empty());
        rest(&rt, &pool).await;
        pool.create_volume("c", MIB, 512).await.expect("their places are free again");
        pool.close().await.expect("close");
    });
    expect_blocks(&bench, 100, 0);
    let image = check(&bench).image;
    assert_eq!(image.volumes.map(|v| v.len()), Some(4));
}
