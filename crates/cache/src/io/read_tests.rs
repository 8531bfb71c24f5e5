//! Reads of the cache, in simulation.

use std::cell::Cell;
use std::rc::Rc;

use base::Duration;

use super::*;
use crate::Cache;
use crate::store::taken::TakenRun;
use crate::testkit::{Lab, fill, open, place_of, plain, settings};

/// Plans, which a step decides on, may go to another thread.
#[test]
fn plans_are_plain_values() {
    plain::<Piece>();
    plain::<FoundPart>();
    // The blocks that a write has taken, and an extent that is moved.
    plain::<TakenRun>();
    plain::<IndexKey>();
}

#[test]
fn others_run_between_the_steps_of_a_prefetch() {
    let lab = Lab::new();
    let (files, file) = (lab.files(), lab.file());
    lab.boot(move |rt| async move {
        let (pool, cache, a) = open(&rt, files, &file, settings()).await;
        fill(&cache, a, 512, 16, 1).await;
        let (from, end) = (Lba(0), Lba(160 * STEP_BLOCKS));
        // Time stands still while somebody can run: nothing may have to be read.
        cache.prefetch(a, from, end).await.unwrap();
        let (turns, ended) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let (r, count, until) = (rt.clone(), turns.clone(), ended.clone());
        let other = rt.spawn(async move {
            while !until.get() {
                count.set(count.get() + 1);
                r.yield_now().await;
            }
        });
        cache.prefetch(a, from, end).await.unwrap();
        ended.set(true);
        assert!(other.await.is_some());
        // Who is next is random; 160 would be the pool's steps alone.
        assert!(turns.get() > 240, "{} turns", turns.get());
        cache.close().await.unwrap();
        pool.close().await.unwrap();
    });
}

/// An empty volume that is read must not push out what others need.
#[test]
fn what_was_never_written_is_not_kept_and_counts_for_nothing() {
    let lab = Lab::new();
    lab.within_an_hour(settings(), move |cache, a| async move {
        let counts = |cache: &Cache| {
            let now = cache.status();
            (now.hits, now.misses, now.promoted)
        };
        let before = counts(&cache);
        for from in (3200..3500).step_by(10) {
            let data = cache.read(a, Lba(from), 10).await.unwrap();
            assert!(data.iter().all(|slice| slice.iter().all(|&b| b == 0)));
        }
        cache.core().rt().sleep(Duration::from_secs(1)).await;
        assert_eq!(counts(&cache), before);

        // Five blocks between holes, which the pool alone has.
        let pool = cache.pool().clone();
        for (lba, blocks) in [(3300, 4), (3306, 1)] {
            let mut buf = pool.bufs().take(blocks * BLOCK);
            buf.fill(lba as u8);
            pool.write(a, Lba(lba), &buf.freeze()).await.unwrap();
        }
        pool.commit().await.unwrap();
        let (hits, misses, promoted) = before;
        for (hits, misses) in [(hits, misses + 5), (hits + 5, misses + 5)] {
            let data = cache.read(a, Lba(3296), 16).await.unwrap();
            let bytes: Vec<u8> =
                data.iter().flat_map(|slice| slice.chunks_exact(BLOCK).map(|b| b[0])).collect();
            let (one, two) = (3300u64 as u8, 3306u64 as u8);
            let mut should = [0; 16];
            should[4..8].fill(one);
            should[10] = two;
            assert_eq!(bytes, should);
            cache.core().rt().sleep(Duration::from_secs(1)).await;
            assert_eq!(counts(&cache), (hits, misses, promoted + 5));
        }
    });
}

#[test]
fn a_bad_sector_is_one_bad_block_and_an_error_that_passes_is_none() {
    let lab = Lab::new();
    let (world, device) = (lab.world.clone(), lab.device);
    lab.within_an_hour(settings(), move |cache, a| async move {
        fill(&cache, a, 3000, 16, 1).await;
        let addr = place_of(&cache, a, 3000).await;
        let offset = cache.core().offset_of(CacheAddr(addr.0 + 5));
        let read_all = async || {
            let read = |i: u64| {
                let cache = cache.clone();
                cache
                    .core()
                    .rt()
                    .clone()
                    .spawn(async move { cache.read(a, Lba(3000 + i), 1).await })
            };
            let reads: Vec<_> = (0..16).map(read).collect();
            let mut failed = Vec::new();
            for (i, read) in reads.into_iter().enumerate() {
                match read.await.unwrap() {
                    Ok(data) => assert!(data[0].iter().all(|&b| b == 1 + i as u8)),
                    Err(_) => failed.push(i),
                }
            }
            failed
        };
        let condemned = || cache.core().state().buckets.table().has_errors(addr);
        // All of them are one request, which fails, and so does the first try of the block
        // alone.
        let merged = cache.core().device().queue().stats().of(Class::Foreground).merged;
        assert!(world.inject(device, sim::Fault::FailReads { offset, len: 512, times: 2 }));
        assert_eq!(read_all().await, Vec::<usize>::new());
        assert!(
            cache.core().device().queue().stats().of(Class::Foreground).merged > merged
                && !condemned()
        );
        assert!(world.inject(device, sim::Fault::ReadError { offset, len: 512 }));
        assert_eq!(read_all().await, [5]);
        assert_eq!(cache.status().bad_blocks.len(), 1);
        assert!(condemned());
    });
}

/// A scrub's read waits behind clients, and a pass publishes the block meanwhile.
#[test]
fn a_bad_block_that_is_in_the_pool_by_now_is_not_lost() {
    let lab = Lab::new();
    lab.within_an_hour(settings(), move |cache, a| async move {
        fill(&cache, a, 3000, 1, 7).await;
        let addr = place_of(&cache, a, 3000).await;
        // It was dirty when it was looked up.
        let read = || cache.flows().reader.read_again(a, Lba(3000), 1, addr, true, &[0]);
        assert!(read().await.is_err());
        assert_eq!(cache.status().bad_blocks.len(), 1);
        fill(&cache, a, 3000, 1, 8).await;
        let data = read().await.unwrap();
        assert!(data[0].iter().all(|&b| b == 8), "what was written again");
        cache.publish_all().await.unwrap();
        let data = read().await.unwrap();
        assert!(data[0].iter().all(|&b| b == 8));
        assert_eq!(cache.status().bad_blocks, []);
        cache.write_all_back().await.unwrap();
    });
}

/// The device answers nothing for a while, then it has failed, and both is no loss: after a
/// restart everything that was flushed is there.
#[test]
fn what_cannot_be_read_of_a_device_that_has_failed_is_not_lost() {
    let lab = Lab::new();
    let (world, device) = (lab.world.clone(), lab.device);
    lab.power_cut(move |cache| async move {
        let a = cache.pool().find_volume("a").unwrap().id;
        fill(&cache, a, 3000, 16, 1).await;
        cache.flush().await.unwrap();
        assert!(world.inject(device, sim::Fault::Unreachable));
        let is_unread = async |why: &str| {
            let e = cache.read(a, Lba(3002), 1).await.unwrap_err();
            assert!(e.context.contains(why) && !e.context.contains("lost"), "{e}");
            let status = cache.status();
            assert!(status.bad_blocks.is_empty() && status.lost == 0, "{:?}", status.lost);
        };
        is_unread("answers nothing").await;
        cache.publish_all().await.unwrap_err();
        is_unread("").await;
        cache.flows().checkpointer.checkpoint_now().await.unwrap_err();
        assert!(cache.has_failed());
        is_unread("restart forebay").await;
    });
    let (files, file) = (lab.files(), lab.file());
    lab.world.revive(device);
    lab.boot(move |rt| async move {
        let (pool, cache, a) = open(&rt, files, &file, settings()).await;
        assert_eq!(cache.read(a, Lba(3002), 1).await.unwrap()[0][0], 3);
        cache.close().await.unwrap();
        pool.close().await.unwrap();
    });
}

/// Clients may have so many requests under way, and the device of the cache may stall.
#[test]
fn more_reads_of_a_bucket_than_sixteen_bits_count() {
    Lab::new().within_an_hour(settings(), |cache, a| async move {
        let reads: Vec<_> = (0..70_000)
            .map(|_| {
                let reader = cache.clone();
                cache.core().rt().spawn(async move { reader.read(a, Lba(2000), 1).await.map(drop) })
            })
            .collect();
        for read in reads {
            read.await.unwrap().unwrap();
        }
        cache.publish_all().await.unwrap();
    });
}
