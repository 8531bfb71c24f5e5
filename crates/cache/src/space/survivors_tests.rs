//! Survivors and ghosts, in simulation.

use std::time::Duration;

use base::{BlockRange, CacheAddr, Lba, VolumeId};
use sim::Fault;

use super::*;
use crate::Cache;
use crate::store::key::Body;
use crate::testkit::{BLOCKS, Lab, fill, settings};

/// Every fourth of the first blocks of volume "a" that were written, which are the even ones: fewer
/// than half of each bucket.
const HOT: u64 = 40;

async fn read_hot(cache: &Cache, a: VolumeId) {
    for i in 0..HOT {
        let data = cache.read(a, Lba(i * 8), 1).await.unwrap();
        assert!(data[0].iter().all(|&b| b == (i * 4) as u8), "block {}", i * 8);
    }
}

/// Fills the cache twice over with blocks that are never read, while some of "a" are.
async fn churn(cache: &Cache, a: VolumeId) {
    let wide = cache.pool().create_volume("wide", 1 << 40, 4096).await.unwrap();
    cache.publish_all().await.unwrap();
    read_hot(cache, a).await;
    for i in 0..400 {
        fill(cache, wide, i * 40, 16, 1).await;
        cache.core().rt().sleep(Duration::from_millis(20)).await;
        if i % 20 == 19 {
            cache.publish_all().await.unwrap();
            read_hot(cache, a).await;
            cache.core().rt().sleep(Duration::from_millis(100)).await;
        }
    }
}

/// The block's key, and where it is.
async fn find(cache: &Cache, a: VolumeId, lba: u64) -> (IndexKey, CacheAddr) {
    let found = cache
        .core()
        .resident(Class::Commit, |st| {
            st.index.overlapping(&st.buckets, a, BlockRange::of(Lba(lba), 1), 1)
        })
        .await
        .unwrap();
    let e = found[0].slice(lba, lba + 1);
    let Body::Data { addr, .. } = e.body else { panic!("{e:?}") };
    (e, addr)
}

#[test]
fn blocks_that_were_hit_stay_when_their_bucket_goes() {
    let lab = Lab::new();
    // They were written in an earlier life: only summaries on the device say what is where.
    lab.within_an_hour(settings(), |cache, a| async move {
        churn(&cache, a).await;
        let before = cache.status();
        read_hot(&cache, a).await;
        let now = cache.status();
        assert_eq!(now.misses, before.misses, "{:?}", now.replacement);
        assert!(now.evicted > 100, "{} evicted", now.evicted);
        assert!(now.replacement.moved_blocks >= HOT, "{:?}", now.replacement);
        assert_eq!(now.replacement.bad_survivors, 0);
        let mine = now.hit_ratio.volumes.iter().find(|v| v.name == "a").unwrap();
        assert_eq!((mine.total, mine.misses), (Some(1.0), 0));
    });
    let report = lab.check();
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn blocks_that_come_back_soon_enter_the_main_queue() {
    Lab::new().within_an_hour(settings(), |cache, a| async move {
        churn(&cache, a).await;
        let before = cache.status().replacement.ghost_hits;
        let main =
            || cache.core().state().buckets.left_open(crate::store::buckets::census::Stream::Main);
        let left = main();
        for i in 0..10 {
            // They were never hit.
            cache.read(a, Lba(402 + i * 8), 1).await.unwrap();
            cache.core().rt().sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(cache.status().replacement.ghost_hits - before, 10);
        assert_ne!(main(), left);
        // A collection that a task asks for leaves no stale keys.
        cache.collect().await.unwrap();
        assert_eq!(cache.status().index.stale_blocks, 0);
        for i in 0..10 {
            cache.read(a, Lba(602 + i * 8), 1).await.unwrap();
        }
        assert_eq!(cache.status().replacement.ghost_hits - before, 10);
    });
}

#[test]
fn young_stale_keys_stay_when_a_pass_is_due_and_old_ones_go() {
    Lab::new().within_an_hour(settings(), |cache, a| async move {
        churn(&cache, a).await;
        // The first pass after an open, and perhaps others.
        cache.core().rt().sleep(Duration::from_secs(120)).await;
        let passes = cache.status().gc.passes;
        let left = cache.status().index.stale_blocks;
        assert!(passes > 0 && left > BLOCKS / 8, "{left} after {passes}");
        cache.core().rt().sleep(Duration::from_secs(600)).await;
        assert_eq!(cache.status().gc.passes, passes, "it has nothing to do");
    });
}

#[test]
fn a_survivor_that_is_bad_is_dropped_and_takes_no_other_with_it() {
    let lab = Lab::new();
    let (world, device) = (lab.world.clone(), lab.device);
    lab.within_an_hour(settings(), move |cache, a| async move {
        let wide = cache.pool().create_volume("wide", 1 << 40, 4096).await.unwrap();
        cache.publish_all().await.unwrap();
        read_hot(&cache, a).await;
        read_hot(&cache, a).await;
        let (_, bad) = find(&cache, a, 24).await;
        let offset = cache.core().offset_of(bad);
        assert!(world.inject(device, Fault::ReadError { offset, len: 512 }));
        for i in 0..400 {
            fill(&cache, wide, i * 40, 16, 1).await;
            cache.core().rt().sleep(Duration::from_millis(20)).await;
            if i % 20 == 19 {
                cache.publish_all().await.unwrap();
                cache.core().rt().sleep(Duration::from_millis(100)).await;
            }
        }
        let before = cache.status();
        assert_eq!(before.replacement.bad_survivors, 1, "{:?}", before.replacement);
        read_hot(&cache, a).await;
        let now = cache.status();
        assert_eq!((now.misses - before.misses, now.refetched), (1, 0));
    });
}

#[test]
fn what_is_overwritten_while_it_moves_is_not_moved() {
    Lab::new().within_an_hour(settings(), |cache, a| async move {
        cache.publish_all().await.unwrap();
        let (e, addr) = find(&cache, a, 20).await;
        cache.core().state_mut().buckets.pin(addr);
        let _pin = cache.core().pinned(addr);
        let move_it = async || {
            let mut room = cache.flows().room.try_room(blocks_for(1, 1), nodes_for(1)).unwrap();
            cache.flows().survivors.mover.move_extent(&e, &mut room, Usage::hits).await.unwrap()
        };
        fill(&cache, a, 20, 1, 99).await;
        assert_eq!(move_it().await, MoveOutcome::Stays);
        let data = cache.read(a, Lba(20), 1).await.unwrap();
        assert!(data[0].iter().all(|&b| b == 99));
        cache.discard(a, Lba(20), Lba(21)).await.unwrap();
        assert_eq!(move_it().await, MoveOutcome::Stays);
        let data = cache.read(a, Lba(20), 1).await.unwrap();
        assert!(data[0].iter().all(|&b| b == 0));
    });
}

#[test]
fn hits_go_with_a_block_that_is_overwritten_and_the_main_queue_keeps_it() {
    Lab::new().within_an_hour(settings(), |cache, a| async move {
        let state = async |lba: u64| {
            let (e, addr) = find(&cache, a, lba).await;
            let Body::Data { generation, .. } = e.body else { panic!("{e:?}") };
            let st = cache.core().state();
            (st.buckets.usage().hits(addr), st.buckets.is_in_main(addr, generation))
        };
        for _ in 0..2 {
            cache.read(a, Lba(24), 1).await.unwrap();
        }
        assert_eq!(state(24).await, (2, false));
        fill(&cache, a, 24, 1, 12).await;
        assert_eq!(state(24).await, (2, false));
        churn(&cache, a).await;
        let (hits, in_main) = state(24).await;
        assert!(in_main, "it survived");
        fill(&cache, a, 24, 1, 12).await;
        assert_eq!(state(24).await, ((hits + 1).min(3), true), "overwritten, it stays");
    });
}
