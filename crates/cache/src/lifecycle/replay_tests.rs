//! What replay makes of blocks that went bad, or that were staged again. The offline check agrees.

use std::cell::Cell;
use std::rc::Rc;

use base::{BLOCK, SECTOR};
use pool::Pool;
use sim::Fault;

use super::*;
use crate::Cache;
use crate::testkit::{Lab, fill, settings, write_part};

/// Where the cache has the first block of volume "a" from `lba` on.
fn offset_of(cache: &Cache, lba: u64) -> u64 {
    let a = cache.pool().find_volume("a").expect("there").id;
    let st = &mut *cache.state_mut();
    let found =
        st.index.overlapping(&st.buckets, a, (Lba(lba), Lba(lba + 1)), 1).expect("resident");
    let [IndexKey { lba: from, body: Body::Data { addr, .. }, .. }] = &found[..] else {
        panic!("{found:?}")
    };
    cache.layout().offset_of(CacheAddr(addr.0 + lba - from.0))
}

#[test]
fn a_bad_dirty_block_stays_an_error_over_passes_and_power_cuts() {
    let lab = Lab::new();
    let at = Rc::new(Cell::new(0));
    let place = at.clone();
    lab.power_cut(|cache| async move {
        let a = cache.pool().find_volume("a").expect("there").id;
        // The pool has something older.
        fill(&cache, a, 100, 3, 1).await;
        cache.publish_all().await.expect("published");
        fill(&cache, a, 100, 3, 51).await;
        cache.flush().await.expect("flush");
        // The next entry of the journal says that this was durable.
        fill(&cache, a, 200, 1, 7).await;
        cache.flush().await.expect("flush");
        place.set(offset_of(&cache, 101));
    });
    lab.rot(at.get());
    for _ in 0..3 {
        lab.power_cut(|cache| async move {
            let a = cache.pool().find_volume("a").expect("there").id;
            // A pass carries what is good, and enters what is bad again; then the power is cut,
            // with that in the journal only.
            cache.publish_all().await.expect("published");
            let e = cache.read(a, Lba(101), 1).await.expect_err("what was flushed is lost");
            assert_eq!(e.kind, ErrorKind::Io, "{e}");
            for (lba, byte) in [(100, 51), (102, 53)] {
                let data = cache.read(a, Lba(lba), 1).await.expect("read");
                assert_eq!(data[0][0], byte);
            }
        });
    }
    lab.with(|cache| async move {
        let a = cache.pool().find_volume("a").expect("there").id;
        assert!(cache.read(a, Lba(101), 1).await.is_err());
        fill(&cache, a, 101, 1, 99).await;
        cache.publish_all().await.expect("published");
        assert_eq!(cache.read(a, Lba(101), 1).await.expect("read")[0][0], 99);
    });
    assert!(lab.check().is_clean());
}

/// The data of one entry, the last: a block of it cannot be read, and another one did not arrive,
/// or did. Only in the first case is it known that no flush was answered. A block that a newer one
/// of this entry replaced says nothing: anything may stand in its place.
#[test]
fn a_block_that_cannot_be_read_is_what_it_was_if_no_flush_was_answered() {
    for arrived in [false, true] {
        let lab = Lab::new();
        let places = Rc::new(Cell::new([0; 3]));
        let found = places.clone();
        lab.power_cut(|cache| async move {
            let a = cache.pool().find_volume("a").expect("there").id;
            fill(&cache, a, 100, 3, 1).await;
            cache.flush().await.expect("flush");
            fill(&cache, a, 103, 1, 1).await;
            let replaced = offset_of(&cache, 103);
            fill(&cache, a, 100, 4, 51).await;
            cache.flush().await.expect("flush");
            found.set([offset_of(&cache, 101), offset_of(&cache, 102), replaced]);
        });
        let [unreadable, missing, replaced] = places.get();
        lab.rot(replaced);
        let fault = Fault::ReadError { offset: unreadable, len: BLOCK as u64 };
        assert!(lab.world.inject(lab.device, fault));
        if !arrived {
            lab.rot(missing);
        }
        for _ in 0..2 {
            lab.power_cut(move |cache| async move {
                let a = cache.pool().find_volume("a").expect("there").id;
                let read = |lba| {
                    let cache = cache.clone();
                    async move { cache.read(a, Lba(lba), 1).await.map(|data| data[0][0]) }
                };
                assert_eq!(read(100).await.expect("read"), 51);
                let (bad, last) = (read(101).await, read(102).await.expect("read"));
                if arrived {
                    assert_eq!(bad.expect_err("it may have been flushed").kind, ErrorKind::Io);
                    assert_eq!(last, 53);
                } else {
                    assert_eq!((bad.expect("what it was before"), last), (2, 3));
                }
            });
        }
    }
}

/// Writes blocks past the buckets.
async fn stage(cache: &Cache, lba: u64, byte: u8) {
    assert!(try_to_stage(cache, lba, byte).await);
}

/// False: the blocks have to go through the cache.
async fn try_to_stage(cache: &Cache, lba: u64, byte: u8) -> bool {
    let a = cache.pool().find_volume("a").expect("there").id;
    let mut buf = cache.pool().bufs().take(16 * BLOCK);
    buf.fill(byte);
    cache.write_past(a, Lba(lba), &buf.freeze()).await.expect("write")
}

/// Torture's seed 80201273. A block was staged again; the pool committed it before its key was
/// entered, and a checkpoint meanwhile had passed over the record of its intent. So the index
/// had the old checksum, the pool the new block, and what was flushed was lost.
#[test]
fn a_block_that_a_key_names_as_staged_is_not_staged_again() {
    let lab = Lab::new();
    lab.power_cut(|cache| async move {
        let a = cache.pool().find_volume("a").expect("there").id;
        stage(&cache, 3200, 1).await;
        assert!(!try_to_stage(&cache, 3208, 2).await && !try_to_stage(&cache, 3190, 2).await);
        stage(&cache, 3216, 3).await;
        cache.flush().await.expect("flush");
        // Where the cache has newer blocks, nothing relies on the staged ones.
        fill(&cache, a, 3200, 16, 4).await;
        stage(&cache, 3200, 5).await;
        cache.flush().await.expect("flush");
    });
    assert!(lab.check().is_clean());
    lab.with(|cache| async move {
        let a = cache.pool().find_volume("a").expect("there").id;
        for (lba, byte) in [(3200, 5), (3215, 5), (3216, 3), (3231, 3)] {
            let data = cache.read(a, Lba(lba), 1).await.expect("read");
            assert_eq!(data[0][..], [byte; BLOCK], "block {lba}");
        }
    });
}

/// The bucket that has a block of volume "a".
fn bucket_of(cache: &Cache, lba: u64) -> BucketId {
    let a = cache.pool().find_volume("a").expect("there").id;
    let st = &mut *cache.state_mut();
    let found =
        st.index.overlapping(&st.buckets, a, (Lba(lba), Lba(lba + 1)), 1).expect("resident");
    let [IndexKey { body: Body::Data { addr, .. }, .. }] = &found[..] else { panic!("{found:?}") };
    st.buckets.of(*addr)
}

/// Torture's seed 70003988. The part that a checkpoint has was replaced by another one, which made
/// its bucket empty; the bucket was filled anew; and the block below both was staged again. So the
/// pool has not what the second part lay over. Replay must take it for what it was: else the first
/// one would be there still when the bucket is filled.
#[test]
fn a_part_over_a_block_that_was_staged_again_replaced_what_was_before_it() {
    let lab = Lab::new();
    lab.power_cut(|cache| async move {
        let a = cache.pool().find_volume("a").expect("there").id;
        let sector = cache.pool().bufs().zeroed(SECTOR).freeze();
        stage(&cache, 3200, 1).await;
        // A part, and a bucket that has it, its summary, and nothing else that stays.
        write_part(&cache, (a, Lba(3200)), 0, &sector).await.expect("write");
        fill(&cache, a, 3300, 14, 1).await;
        let bucket = bucket_of(&cache, 3200);
        assert_eq!(bucket, bucket_of(&cache, 3313));
        cache.checkpoint_now().await.expect("checkpoint");
        write_part(&cache, (a, Lba(3200)), SECTOR, &sector).await.expect("write");
        fill(&cache, a, 3300, 14, 2).await;
        cache.flush().await.expect("flush");
        fill(&cache, a, 3400, 16, 3).await;
        assert_eq!(bucket, bucket_of(&cache, 3400), "it is filled anew");
        // No block is staged again while a key names it as staged, or a part lies over it.
        fill(&cache, a, 3200, 16, 4).await;
        stage(&cache, 3200, 5).await;
        cache.flush().await.expect("flush");
    });
    let r = lab.check();
    assert!(r.is_clean() && r.counts.not_arrived == 0, "{r:?}");
    lab.with(|cache| async move {
        let a = cache.pool().find_volume("a").expect("there").id;
        for (lba, byte) in [(3200, 5), (3300, 2), (3313, 15), (3400, 3), (3415, 18)] {
            let data = cache.read(a, Lba(lba), 1).await.expect("read");
            assert_eq!(data[0][..], [byte; BLOCK], "block {lba}");
        }
    });
}

/// A part over a block that the pool loses goes with it; what it replaced must still be there then.
#[test]
fn a_part_is_not_completed_before_the_block_below_it_is_durable() {
    let lab = Lab::new();
    let (files, file) = (lab.files(), lab.file());
    lab.boot(move |rt| async move {
        let every = Duration::from_secs(3600);
        let slow = pool::Settings { commit_interval: every, ..pool::Settings::default() };
        let (pool, _) = Pool::open(&rt, files, slow).await.expect("open");
        let cache = Cache::open(&rt, &file, &pool, settings()).await.expect("open the cache");
        let a = pool.find_volume("a").expect("there").id;
        let sector = pool.bufs().zeroed(SECTOR).freeze();
        stage(&cache, 3200, 1).await;
        write_part(&cache, (a, Lba(3200)), 0, &sector).await.expect("write");
        for completed in [0, 1] {
            let data = cache.read(a, Lba(3200), 1).await.expect("read");
            assert_eq!((data[0][0], data[0][SECTOR]), (0, 1));
            rt.sleep(Duration::from_millis(50)).await;
            assert_eq!(cache.status().completed_parts, completed);
            pool.commit().await.expect("commit");
        }
        cache.close().await.expect("close");
        pool.close().await.expect("close");
    });
}

/// The half of a mirror that was left behind, say: what was written back since is in neither.
#[test]
fn a_pool_that_is_older_than_the_cache_is_refused() {
    let write_back = |cache: Cache| async move {
        let a = cache.pool().find_volume("a").expect("there").id;
        fill(&cache, a, 100, 50, 1).await;
        cache.publish_all().await.expect("published");
        fill(&cache, a, 300, 1, 2).await;
        cache.flush().await.expect("flush");
    };
    for closed in [false, true] {
        let lab = Lab::new();
        let old = lab.world.snapshot_disk(lab.disk);
        // Its journal says so, or its superblock.
        if closed {
            lab.with(write_back)
        } else {
            lab.power_cut(write_back)
        };
        let new = lab.world.snapshot_disk(lab.disk);
        lab.world.restore_disk(lab.disk, &old);
        // Each of these opens is a commit of the pool.
        for _ in 0..5 {
            let (files, file) = (lab.files(), lab.file());
            let e = lab.boot(move |rt| async move {
                let settings = pool::Settings::default();
                let (pool, _) = Pool::open(&rt, files, settings).await.expect("open");
                let refused = Cache::open(&rt, &file, &pool, crate::testkit::settings()).await;
                pool.close().await.expect("close");
                refused.err().expect("refused")
            });
            assert_eq!(e.kind, ErrorKind::Stale, "{e}");
        }
        let report = lab.check();
        assert!(!report.is_clean() && report.errors == 1, "{report:?}");
        lab.world.restore_disk(lab.disk, &new);
        lab.with(|cache| async move {
            let a = cache.pool().find_volume("a").expect("there").id;
            let data = cache.read(a, Lba(120), 1).await.expect("read");
            assert_eq!(data[0][..], [21; BLOCK]);
        });
    }
}
