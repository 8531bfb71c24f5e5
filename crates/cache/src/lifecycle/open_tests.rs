//! How a cache is closed and detached.

use base::{BLOCK, Duration, ErrorKind, Lba};
use format::cache::superblock::CacheSuperblock;
use pool::Pool;

use crate::testkit::{Lab, fill, open, settings};
use crate::{Cache, CacheFile, Settings};

/// Looks at the cache on `file` as a start does before it opens the pool, and is refused.
fn refused(lab: &Lab, file: CacheFile) -> ErrorKind {
    let all = |lab: &Lab| lab.world.contents(lab.disk, 0, lab.files()[0].size_bytes as usize);
    let (before, files) = (all(lab), lab.files());
    let e = lab.boot(move |rt| async move {
        let pool = Pool::ready(&rt, files, pool::Settings::default()).await.unwrap();
        let ready = Cache::ready(&rt, &file, &pool, settings()).await;
        pool.close();
        ready.err().expect("refused")
    });
    assert!(before == all(lab), "the pool was written to: {e}");
    e.kind
}

/// To open the pool would be a commit, and set a half of a mirror apart from the other.
#[test]
fn what_is_wrong_with_a_cache_is_found_before_its_pool_is_opened() {
    let lab = Lab::new();
    let short = CacheFile { size_bytes: lab.file().size_bytes / 2, ..lab.file() };
    assert_eq!(refused(&lab, short), ErrorKind::Damaged);

    let table = |slot| lab.layout().page_offset(0, slot);
    let whole = lab.world.snapshot_disk(lab.device);
    [0, 1].into_iter().for_each(|slot| lab.rot(table(slot)));
    assert_eq!(refused(&lab, lab.file()), ErrorKind::Damaged);
    lab.world.restore_disk(lab.device, &whole);

    lab.power_cut(|cache| async move {
        let a = cache.pool().find_volume("a").expect("there").id;
        fill(&cache, a, 100, 1, 1).await;
        cache.flush().await.expect("flush");
        cache.publish_all().await.expect("published");
    });
    let sb = lab.superblock();
    let places = lab.layout().ring().places(sb.replay_position);
    places.into_iter().for_each(|at| lab.rot(at));
    assert_eq!(refused(&lab, lab.file()), ErrorKind::Damaged);
}

/// A device that takes no writes any more is found out before the pool is opened, too.
#[test]
fn a_cache_that_is_ready_was_written_to_and_says_what_it_said() {
    let lab = Lab::new();
    let found = lab.superblock();
    let twin = CacheSuperblock::offset_of(found.sequence ^ 1);
    let at = |lab: &Lab| CacheSuperblock::decode(&lab.world.contents(lab.device, twin, BLOCK));
    lab.rot(twin);
    assert!(at(&lab).is_err());
    let (files, file) = (lab.files(), lab.file());
    lab.boot(move |rt| async move {
        let pool = Pool::ready(&rt, files, pool::Settings::default()).await.unwrap();
        Cache::ready(&rt, &file, &pool, settings()).await.expect("ready").close();
        pool.close();
    });
    let sequence = found.sequence ^ 1;
    assert_eq!(at(&lab).ok(), Some(CacheSuperblock { sequence, ..found }));
    lab.with(|cache| async move {
        let a = cache.pool().find_volume("a").expect("there").id;
        assert_eq!(cache.read(a, Lba(2), 1).await.unwrap()[0][0], 1);
    });
}

/// Closes a cache so long after a collection began that finds much to do. Returns whether the pool
/// says that no clean key of the cache counts.
fn closed_beside_a_collection(after: Duration) -> bool {
    let lab = Lab::new();
    let (files, file) = (lab.files(), lab.file());
    lab.boot(move |rt| async move {
        let (pool, cache, a) = open(&rt, files, &file, settings()).await;
        let plain = pool.create_volume("plain", 64 * BLOCK as u64, 4096).await.unwrap();
        // 14 of 15 neighbours are overwritten.
        for i in 0..200 {
            fill(&cache, a, i * 16, 15, 1).await;
        }
        cache.publish_all().await.unwrap();
        for i in 0..200 {
            fill(&cache, a, i * 16, 14, 2).await;
        }
        for i in 0..250 {
            cache.discard(a, Lba(i * 16 + 15), Lba(i * 16 + 16)).await.unwrap();
        }
        cache.publish_all().await.unwrap();
        let c = cache.clone();
        rt.spawn(async move { drop(c.collect().await) });
        rt.sleep(after).await;
        // Something is left for the pool's last commit.
        pool.write(plain, Lba(0), &rt.bufs().zeroed(BLOCK).freeze()).await.unwrap();
        cache.close().await.unwrap();
        pool.close().await.unwrap();
        pool.cache_link().clean_void()
    })
}

#[test]
fn a_clean_end_beside_a_collection_leaves_a_cache_whose_clean_blocks_count() {
    let void = (0..40).filter(|i| closed_beside_a_collection(Duration::from_micros(i * 100)));
    assert_eq!(void.count(), 0);
}

#[test]
fn nothing_is_left_in_memory_of_a_cache_that_was_detached() {
    let lab = Lab::new();
    let (files, file) = (lab.files(), lab.file());
    lab.boot(move |rt| async move {
        let (pool, cache, a) = open(&rt, files, &file, Settings::default()).await;
        rt.sleep(Duration::from_secs(5)).await;
        fill(&cache, a, 0, 10, 1).await;
        cache.detach().await.unwrap();
        rt.sleep(Duration::from_secs(60)).await;
        let parts = cache.core().downgrade();
        drop(cache);
        assert!(parts.upgrade().is_none(), "something still holds the cache");
        pool.close().await.unwrap();
    });
}

/// Beside clients a collection rests after each slice.
#[test]
fn an_end_does_not_wait_for_the_pause_of_a_collection() {
    let lab = Lab::new();
    let (files, file) = (lab.files(), lab.file());
    lab.boot(move |rt| async move {
        let hour = Duration::from_secs(3600);
        let settings = Settings { gc_slice: Duration::ZERO, gc_pause: hour, ..settings() };
        let (pool, cache, a) = open(&rt, files, &file, settings).await;
        // More leaves than one slice looks at.
        for i in 0..1000 {
            fill(&cache, a, i * 2, 1, 1).await;
        }
        // The first one begins a minute after an open.
        let opened = rt.now();
        while !cache.core().collections().is_running() {
            assert!(rt.now().since(opened) < hour, "none begins");
            fill(&cache, a, 0, 10, 1).await;
            rt.sleep(Duration::from_millis(10)).await;
        }
        let began = rt.now();
        cache.close().await.unwrap();
        assert!(rt.now().since(began) < Duration::from_secs(10));
        assert!(!cache.core().collections().is_running());
        let gc = cache.status().gc;
        assert_eq!(gc.miscounted_buckets, 0, "a part of the index was taken for all of it");
        pool.close().await.unwrap();
    });
}

/// After a clean end the pool names the newest entry of the journal, though it had nothing else to
/// commit: an older copy of the cache's device lacks it.
#[test]
fn an_older_copy_of_a_cache_is_refused_after_a_clean_end() {
    let lab = Lab::new();
    let (files, file) = (lab.files(), lab.file());
    let world = lab.world.clone();
    let device = lab.device;
    let old = lab.boot(move |rt| async move {
        let (pool, cache, a) = open(&rt, files, &file, settings()).await;
        fill(&cache, a, 0, 10, 1).await;
        cache.flush().await.unwrap();
        // The copy is of the same open of the pool, so that only the entry tells.
        let old = world.snapshot_disk(device);
        fill(&cache, a, 0, 10, 2).await;
        cache.close().await.unwrap();
        pool.close().await.unwrap();
        old
    });
    let newest = lab.world.snapshot_disk(lab.device);
    lab.world.restore_disk(lab.device, &old);
    assert_eq!(refused(&lab, lab.file()), ErrorKind::Damaged);
    lab.world.restore_disk(lab.device, &newest);
    lab.with(|cache| async move {
        let a = cache.pool().find_volume("a").expect("there").id;
        assert_eq!(cache.read(a, Lba(0), 1).await.unwrap()[0][0], 2);
    });
}
