//! Several cuts that are not published, in simulation.

use base::{BLOCK, Lba};
use pool::Pool;

use super::*;
use crate::Cache;
use crate::Settings;
use crate::policy::which_cut::{MAX_SEALED, SealInput, seal_at, should_seal};
use crate::testkit::{Lab, fill, settings};

#[test]
fn the_open_epoch_is_sealed_when_a_share_of_the_cache_is_dirty_in_it() {
    // 16 buckets of 16 blocks: a quarter of the cache.
    assert_eq!(seal_at(256, 16, 0), 64);
    // 1 GiB in buckets of 512 KiB: an eighth of the cache.
    assert_eq!(seal_at(1 << 18, 128, 0), 1 << 15);
    // Four buckets of 64 MiB.
    assert_eq!(seal_at(1 << 18, 1 << 14, 0), 1 << 16);
    assert_eq!(seal_at(1 << 18, 2048, 5), 5);
}

#[test]
fn cuts_are_few_where_each_holds_much_of_the_index() {
    let standing = SealInput { fresh: 100, cuts: 3, held: (0, 0), data_blocks: 3200 };
    assert!(should_seal(standing, 100) && !should_seal(standing, 101));
    assert!(should_seal(SealInput { cuts: MAX_SEALED - 1, ..standing }, 100));
    assert!(!should_seal(SealInput { cuts: MAX_SEALED, ..standing }, 100));
    // A thirty-second of the cache is old nodes, or more.
    for (held, expected) in
        [((100, 100), true), ((101, 100), false), ((101, 13), false), ((900, 12), true)]
    {
        assert_eq!(should_seal(SealInput { held, ..standing }, 100), expected, "{held:?}");
    }
}

#[test]
fn the_oldest_cut_is_carried_under_pressure_and_the_newest_otherwise() {
    for (sealed, dirty, all, expected) in [
        (0, 0, false, CutChoice::Newest),
        (0, 900, false, CutChoice::Newest),
        (3, 330, false, CutChoice::Newest),
        (3, 331, false, CutChoice::Oldest),
        (1, 1000, false, CutChoice::Oldest),
        (3, 1000, true, CutChoice::Newest),
    ] {
        assert_eq!(next(sealed, dirty, 1000, 33, all), expected, "{sealed} cuts, {dirty} blocks");
    }
    assert_eq!(next(1, 1, 1000, 0, false), CutChoice::Oldest);
    assert_eq!(next(1, 1000, 1000, 100, false), CutChoice::Newest);
}

/// Cuts of what is written between them, 100 blocks from `i * 50` on.
async fn take_cuts(cache: &Cache, n: u64) {
    let a = cache.pool().find_volume("a").unwrap().id;
    for i in 0..n {
        fill(cache, a, i * 50, 100, 10 * (i + 1) as u8).await;
        let mut room = cache.flows().room.upkeep_room().await.unwrap();
        cache.flows().cut_taker.take_cut(&mut room);
    }
}

async fn first_bytes(pool: &Pool, at: &[u64]) -> Vec<u8> {
    let a = pool.find_volume("a").unwrap().id;
    let mut out = Vec::new();
    for &lba in at {
        out.push(pool.read(a, Lba(lba), 1).await.unwrap()[0][BLOCK - 1]);
    }
    out
}

#[test]
fn cuts_are_published_one_by_one_or_all_at_once() {
    for at_once in [false, true] {
        let lab = Lab::new();
        lab.with(move |cache| async move {
            cache.publish_all().await.unwrap();
            let (before, passes) = (
                cache.pool().cache_link().published(),
                cache.core().writeback().passes().published(),
            );
            let alone = cache.between_passes().await;
            take_cuts(&cache, 3).await;
            let a = cache.pool().find_volume("a").unwrap().id;
            fill(&cache, a, 150, 100, 40).await;
            assert_eq!(cache.status().writeback.sealed_cuts, 3);
            assert_eq!(cache.core().state().buckets.counts().dirty_blocks(), (100, 300));
            assert_eq!(cache.pool().status().pool.reserved_bytes, 400 * BLOCK as u64);
            let seen = [0, 50, 100, 150, 200];
            if at_once {
                // The lock is held, so that no cut is taken for it.
                cache.core().writeback().passes_mut().cuts_mut().keep_away();
                cache.flows().passes.run_pass().await.unwrap();
                cache.core().writeback().passes_mut().cuts_mut().let_back();
            } else {
                for (i, bytes) in
                    [[10, 60, 0, 0, 0], [10, 20, 70, 0, 0], [10, 20, 30, 80, 0]].iter().enumerate()
                {
                    cache
                        .core()
                        .writeback()
                        .passes_mut()
                        .cuts_mut()
                        .carry(CutChoice::Oldest)
                        .unwrap();
                    cache.flows().passes.run_pass().await.unwrap();
                    assert_eq!(cache.pool().cache_link().published().0, before.0 + 1 + i as u32);
                    let found = first_bytes(cache.pool(), &seen).await;
                    // What is behind it is of earlier writes.
                    assert_eq!(found[..2 + i], bytes[..2 + i], "after {} of 3", i + 1);
                    let left = 100 * (2 - i as u64);
                    assert_eq!(cache.core().state().buckets.counts().dirty_blocks(), (100, left));
                    assert_eq!(
                        cache.pool().status().pool.reserved_bytes,
                        (100 + left) * BLOCK as u64
                    );
                }
            }
            assert_eq!(first_bytes(cache.pool(), &seen[..4]).await, [10, 20, 30, 80]);
            assert_eq!(cache.pool().cache_link().published().0, before.0 + 3);
            assert_eq!(
                cache.core().writeback().passes().published() - passes,
                if at_once { 1 } else { 3 }
            );
            assert_eq!(cache.core().state().buckets.counts().dirty_blocks(), (100, 0));
            assert_eq!(cache.pool().status().pool.reserved_bytes, 100 * BLOCK as u64);
            drop(alone);
            cache.publish_all().await.unwrap();
            assert_eq!(first_bytes(cache.pool(), &seen).await, [10, 20, 30, 40, 90]);
            assert_eq!(cache.pool().status().pool.reserved_bytes, 0);
            cache.collect().await.unwrap();
            assert_eq!(cache.status().gc.miscounted_buckets, 0);
        });
        assert!(lab.check().is_clean());
    }
}

/// The power is cut when one of three cuts is published, with a checkpoint from before that: what
/// this has counted is more than what is dirty, and is known to be.
#[test]
fn a_checkpoint_with_several_cuts_is_exact_when_some_are_published() {
    for published in 0..4 {
        let lab = Lab::new();
        lab.power_cut(move |cache| async move {
            cache.publish_all().await.unwrap();
            let alone = cache.between_passes().await;
            take_cuts(&cache, 3).await;
            let a = cache.pool().find_volume("a").unwrap().id;
            fill(&cache, a, 1_000, 10, 77).await;
            cache.flush().await.unwrap();
            cache.flows().checkpointer.checkpoint_now().await.unwrap();
            for _ in 0..published {
                cache.core().writeback().passes_mut().cuts_mut().carry(CutChoice::Oldest).unwrap();
                cache.flows().passes.run_pass().await.unwrap();
            }
            // Of the first cut, and behind all.
            fill(&cache, a, 0, 20, 99).await;
            cache.flush().await.unwrap();
            cache.pool().commit().await.unwrap();
            drop(alone);
        });
        let report = lab.check();
        assert!(report.is_clean(), "{published} published: {report:?}");
        // The first checkpoint of the next life says the same.
        lab.power_cut(|cache| async move {
            assert_eq!(cache.core().writeback().passes().published(), 0);
            cache.collect().await.unwrap();
            assert_eq!(cache.status().gc.miscounted_buckets, 0);
        });
        let report = lab.check();
        assert!(report.is_clean(), "{published} published: {report:?}");
        lab.with(move |cache| async move {
            let (dirty, _) = cache.core().state().buckets.counts().dirty_blocks();
            assert_eq!(cache.pool().status().pool.reserved_bytes, dirty * BLOCK as u64);
            let really = [200 + 10, 150 + 20 + 10, 100 + 20 + 10, 20 + 10][published];
            assert!(
                if published == 0 || published == 3 { dirty == really } else { dirty > really },
                "{dirty} of {really}"
            );
            cache.publish_all().await.unwrap();
            assert_eq!(cache.core().state().buckets.counts().unpublished_blocks(), (0, 0));
            assert_eq!(
                cache.core().state().buckets.epochs().counted_above(),
                cache.pool().cache_link().published()
            );
            assert_eq!(cache.pool().status().pool.reserved_bytes, 0);
            assert_eq!(
                first_bytes(cache.pool(), &[0, 20, 50, 100, 199, 1_000]).await,
                [99, 30, 20, 30, 129, 77]
            );
        });
        assert!(lab.check().is_clean());
    }
}

#[test]
fn while_a_pass_runs_cuts_are_taken_and_afterwards_all_of_them_are_carried() {
    let lab = Lab::new();
    // 125 blocks a second.
    let slow = crate::policy::rate_controller::RateSettings {
        min: 500 << 10,
        max: 500 << 10,
        idle_rate: 500 << 10,
    };
    for pressure_percent in [0, 100] {
        let (writeback, dirty_target_percent) = (slow.clone(), 100);
        let settings = Settings {
            writeback,
            dirty_target_percent,
            seal_blocks: 50,
            pressure_percent,
            // What the first pass leaves is due in half of that.
            max_lag: base::Duration::from_secs(60),
            ..settings()
        };
        lab.within_an_hour(settings, move |cache, a| async move {
            cache.publish_all().await.unwrap();
            fill(&cache, a, 0, 1_000, 1).await;
            let c = cache.clone();
            let pass = cache.core().rt().spawn(async move {
                let _alone = c.between_passes().await;
                c.flows().passes.run_pass().await
            });
            cache.core().rt().sleep(base::Duration::from_millis(10)).await;
            let before = cache.status().writeback.passes;
            let mut most = 0;
            for i in 0..400 {
                fill(&cache, a, 2_000 + i, 1, 2).await;
                cache.core().rt().sleep(base::Duration::from_millis(1)).await;
                most = most.max(cache.status().writeback.sealed_cuts);
            }
            assert!((7..=9).contains(&most), "{most} cuts");
            pass.await.unwrap().unwrap();
            let cuts = cache.status().writeback.sealed_cuts;
            cache.core().rt().sleep(base::Duration::from_secs(60)).await;
            let passes = cache.status().writeback.passes - before - 1;
            assert_eq!(passes, if pressure_percent == 0 { cuts } else { 1 });
            assert_eq!(cache.status().writeback.sealed_cuts, 0);
        });
    }
    assert!(lab.check().is_clean());
}

#[test]
fn there_are_no_cuts_between_cuts() {
    let lab = Lab::new();
    lab.with(|cache| async move {
        cache.publish_all().await.unwrap();
        let alone = cache.between_passes().await;
        take_cuts(&cache, 4).await;
        drop(alone);
        let c = cache.clone();
        let permit = cache.between_cuts().await.unwrap();
        assert_eq!(cache.status().writeback.sealed_cuts, 0);
        let a = cache.pool().find_volume("a").unwrap().id;
        fill(&c, a, 0, 1_000, 1).await;
        cache.core().rt().sleep(base::Duration::from_secs(10)).await;
        assert_eq!(cache.status().writeback.sealed_cuts, 0);
        drop(permit);
        cache.publish_all().await.unwrap();
    });
    assert!(lab.check().is_clean());
}
