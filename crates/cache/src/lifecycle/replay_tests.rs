//! Replay of blocks that went bad. The offline check agrees.

use std::cell::Cell;
use std::rc::Rc;

use base::BLOCK;
use pool::Pool;
use sim::Fault;

use super::*;
use crate::Cache;
use crate::testkit::{Lab, fill};

/// Where the cache has the first block of volume "a" from `lba` on.
fn offset_of(cache: &Cache, lba: u64) -> u64 {
    let a = cache.pool().find_volume("a").expect("there").id;
    let st = &mut *cache.core().state_mut();
    let found =
        st.index.overlapping(&st.buckets, a, BlockRange::of(Lba(lba), 1), 1).expect("resident");
    let [IndexKey { lba: from, body: Body::Data { addr, .. }, .. }] = &found[..] else {
        panic!("{found:?}")
    };
    cache.core().layout().offset_of(CacheAddr(addr.0 + lba - from.0))
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
