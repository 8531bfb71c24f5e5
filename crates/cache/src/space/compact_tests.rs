//! Compaction, in simulation.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use base::{Prng, VolumeId};
use sim::Fault;

use crate::Cache;
use crate::store::buckets::ThinBucket;
use crate::testkit::{Lab, fill, plain, settings};
use crate::{Policy, Settings};

/// About an eighth of the cache.
const SET: u64 = 400;
/// Blocks that are written again and again in a set that fits, beside the room of the index.
const LIVE: u64 = 1200;
/// So many writes fill the cache ten times over.
const WRITES: u64 = 32_000;
/// How long the pool's device stands still.
const STUCK: Duration = Duration::from_secs(600);

/// Writes blocks of a set of so many, at random, until the cache was filled ten times over. Returns
/// what each block has.
async fn overwrite(cache: &Cache, a: VolumeId, set: u64) -> Vec<u8> {
    let mut has = vec![0; set as usize];
    let mut random = Prng::new(11);
    for i in 0..WRITES {
        let block = random.below(set);
        has[block as usize] = i as u8;
        fill(cache, a, block, 1, i as u8).await;
    }
    has
}

async fn verify(cache: &Cache, a: VolumeId, has: &[u8]) {
    for (block, byte) in has.iter().enumerate() {
        let data = cache.read(a, base::Lba(block as u64), 1).await.unwrap();
        assert!(data[0].iter().all(|b| b == byte), "block {block}");
    }
}

#[test]
fn a_thin_bucket_is_a_plain_value() {
    plain::<ThinBucket>();
}

/// Without compaction, what is left of each bucket makes it dirty, and the writers wait for the
/// pool.
#[test]
fn writers_of_a_small_set_do_not_wait_for_the_pool() {
    let lab = Lab::new();
    let (world, disk) = (lab.world.clone(), lab.disk);
    lab.within_an_hour(settings(), move |cache, a| async move {
        cache.publish_all().await.unwrap();
        world.inject(disk, Fault::Stuck(STUCK));
        let began = cache.core().rt().now();
        let has = overwrite(&cache, a, SET).await;
        let took = cache.core().rt().now().since(began);
        let gc = cache.status().gc;
        assert!(took < STUCK / 2, "{took:?}, {} blocks compacted", gc.compacted_blocks);
        assert!(gc.compacted_blocks > 0, "{gc:?}");
        verify(&cache, a, &has).await;
        cache.collect().await.unwrap();
        assert_eq!(cache.status().gc.miscounted_buckets, 0);
    });
    let report = lab.check();
    assert!(report.is_clean(), "{report:?}");
}

/// What was put together is there after a power cut.
#[test]
fn compacted_blocks_are_there_after_a_power_cut() {
    let lab = Lab::new();
    let (world, disk) = (lab.world.clone(), lab.disk);
    let has = Rc::new(RefCell::new(Vec::new()));
    let kept = has.clone();
    lab.power_cut(move |cache| async move {
        world.inject(disk, Fault::Stuck(STUCK));
        let a = cache.pool().find_volume("a").unwrap().id;
        *kept.borrow_mut() = overwrite(&cache, a, SET).await;
        cache.flush().await.unwrap();
        assert!(cache.status().gc.compacted_blocks > 0);
    });
    lab.with(move |cache| async move {
        let a = cache.pool().find_volume("a").unwrap().id;
        verify(&cache, a, &has.take()).await;
    });
    let report = lab.check();
    assert!(report.is_clean(), "{report:?}");
}

/// A cut of what an earlier one has too would keep all of it once more, and bring no room.
#[test]
fn a_set_that_is_overwritten_gets_no_cut_after_the_other() {
    let lab = Lab::new();
    let (world, disk) = (lab.world.clone(), lab.disk);
    let often = Settings { seal_blocks: 100, dirty_target_percent: 10, ..settings() };
    lab.within_an_hour(often, move |cache, a| async move {
        cache.publish_all().await.unwrap();
        world.inject(disk, Fault::Stuck(STUCK));
        overwrite(&cache, a, SET).await;
        let cuts = cache.core().writeback().passes().cuts().count() as u64;
        assert!((1..=2 + SET / 100).contains(&cuts), "{cuts} cuts");
    });
}

/// Without compaction of what is clean, its buckets would be evicted to make room for garbage.
#[test]
fn clean_blocks_are_not_lost_while_most_of_the_cache_is_garbage() {
    let lab = Lab::new();
    lab.within_an_hour(settings(), move |cache, a| async move {
        // What is left of a bucket is clean after each pass.
        let mut has = vec![0; LIVE as usize];
        let mut random = Prng::new(5);
        for i in 0..WRITES {
            let block = random.below(LIVE);
            has[block as usize] = i as u8;
            fill(&cache, a, block, 1, i as u8).await;
            if i % 400 == 0 {
                cache.publish_all().await.unwrap();
            }
        }
        let before = cache.status();
        assert!(before.gc.compacted_blocks > 0, "{before:?}");
        verify(&cache, a, &has).await;
        let after = cache.status();
        assert_eq!(after.misses - before.misses, 0, "{after:?}");
    });
}

/// A policy that writes no summaries does not know what a bucket was filled with.
#[test]
fn nothing_is_compacted_without_summaries() {
    let without = Settings { policy: Policy::Lru, ..settings() };
    Lab::new().within_an_hour(without, move |cache, a| async move {
        let has = overwrite(&cache, a, SET).await;
        assert_eq!(cache.status().gc.compacted_blocks, 0);
        verify(&cache, a, &has).await;
    });
}
