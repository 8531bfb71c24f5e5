//! Passes that take long, in simulation.

use base::{Duration, ErrorKind, Lba, StorageError};
use pool::{Link, Pool};
use sim::Fault;

use crate::testkit::{CommitHook, Lab, fill, settings};
use crate::{Cache, Settings};

#[test]
fn a_long_pass_holds_the_nodes_that_its_cuts_know_and_no_others() {
    for several in [false, true] {
        let lab = Lab::new();
        let (files, file) = (lab.files(), lab.file());
        lab.boot(move |rt| async move {
            let (pool, _) = Pool::open(&rt, files, pool::Settings::default()).await.unwrap();
            // Blocks that are dirty since before are reason enough for a pass, which carries a
            // block every 125 ms.
            let slow = crate::policy::rate_controller::RateSettings {
                min: 32 << 10,
                max: 32 << 10,
                idle_rate: 32 << 10,
            };
            let seal_blocks = if several { 0 } else { u64::MAX };
            let settings = Settings {
                dirty_nodes: 4,
                dirty_target_percent: 1,
                writeback: slow,
                seal_blocks,
                ..settings()
            };
            let cache = Cache::open(&rt, &file, &pool, settings).await.unwrap();
            let a = pool.find_volume("a").unwrap().id;
            let before = cache.status().index.checkpoints;
            let (mut most, mut known, mut cuts) = (0, 0, 0);
            for i in 0..2_000 {
                fill(&cache, a, i * 1_237 % 4_000, 1, i as u8).await;
                cuts = cuts.max(cache.status().writeback.sealed_cuts);
                let st = cache.core().state();
                let replaced = st.limbo().nodes().count();
                most = most.max(replaced);
                known = known.max(st.buckets.nodes().index_nodes() as usize - replaced);
            }
            let checkpoints = cache.status().index.checkpoints - before;
            assert!(checkpoints > 50, "{checkpoints} checkpoints");
            // Those that were durable at a cut, what had changed by then, and what a checkpoint has
            // just replaced. Of several cuts, what is cheap, and then an eighth of what they carry.
            let allowed = if several { 4_000 / 32 + 2_000 / 8 + 3 * known } else { 3 * known };
            assert!(
                most > 0 && most <= allowed,
                "{most} nodes were held of {known}, in {checkpoints} checkpoints"
            );
            assert!(if several { cuts > 4 } else { cuts == 1 }, "{cuts} cuts");
            cache.publish_all().await.unwrap();
            cache.close().await.unwrap();
            pool.close().await.unwrap();
        });
        let report = lab.check();
        assert!(report.is_clean(), "{report:?}");
    }
}

/// A burst makes a pass begin early. At first the controller alone sets its pace; then it is in
/// time.
#[test]
fn a_pass_that_a_burst_made_begin_goes_slowly_at_first() {
    let settings = Settings {
        max_lag: Duration::from_secs(60),
        dirty_target_percent: 12,
        // Four blocks a second.
        writeback: crate::policy::rate_controller::RateSettings {
            min: 16 << 10,
            ..Default::default()
        },
        ..settings()
    };
    Lab::new().within_an_hour(settings, |cache, a| async move {
        cache.publish_all().await.unwrap();
        for i in 0..300 {
            fill(&cache, a, i * 2, 1, 1).await;
        }
        let carried = || cache.core().writeback().passes().bytes() / base::BLOCK_U64;
        let (before, published) = (carried(), cache.core().levels().passes());
        for half_second in 1..=80 {
            cache.core().rt().sleep(Duration::from_millis(500)).await;
            // A client is at work.
            fill(&cache, a, 4_000, 1, 1).await;
            if half_second == 18 {
                let early = carried() - before;
                assert!((4 * 7..4 * 11).contains(&early), "{early} blocks in 9 s");
            }
        }
        assert!(cache.core().levels().passes() > published, "{:?}", cache.status().writeback);
        assert!(
            cache.core().levels().age() < Duration::from_secs(40),
            "{:?}",
            cache.core().levels().age()
        );
    });
}

#[test]
fn what_carries_no_data_waits_for_no_rate() {
    let lab = Lab::new();
    let (files, file) = (lab.files(), lab.file());
    lab.boot(move |rt| async move {
        let (pool, _) = Pool::open(&rt, files, pool::Settings::default()).await.unwrap();
        // A block a second.
        let slow =
            crate::policy::rate_controller::RateSettings { min: 4096, max: 4096, idle_rate: 4096 };
        let settings = Settings { max_lag: Duration::from_secs(4), writeback: slow, ..settings() };
        let cache = Cache::open(&rt, &file, &pool, settings).await.unwrap();
        let a = pool.find_volume("a").unwrap().id;
        cache.publish_all().await.unwrap();
        for i in 0..300 {
            cache.discard(a, Lba(i * 4), Lba(i * 4 + 1)).await.unwrap();
        }
        rt.sleep(Duration::from_secs(4)).await;
        assert!(cache.core().levels().all_written_back(), "{:?}", cache.status().writeback);
        cache.close().await.unwrap();
        pool.close().await.unwrap();
    });
}

/// A pass of hours is given up by a close, and the next start carries what it has left.
#[test]
fn a_close_does_not_wait_for_a_slow_pass() {
    let lab = Lab::new();
    let (files, file) = (lab.files(), lab.file());
    lab.boot(move |rt| async move {
        let (pool, _) = Pool::open(&rt, files.clone(), pool::Settings::default()).await.unwrap();
        // A block a second.
        let slow =
            crate::policy::rate_controller::RateSettings { min: 4096, max: 4096, idle_rate: 4096 };
        let settings = Settings { max_lag: Duration::from_secs(8), writeback: slow, ..settings() };
        let cache = Cache::open(&rt, &file, &pool, settings.clone()).await.unwrap();
        let a = pool.find_volume("a").unwrap().id;
        cache.publish_all().await.unwrap();
        for i in 0..300 {
            fill(&cache, a, i * 2, 1, 7).await;
        }
        rt.sleep(Duration::from_secs(8)).await;
        assert!(cache.core().writeback().passes().cuts().carried().is_some(), "a pass runs");
        let began = rt.now();
        cache.close().await.unwrap();
        pool.close().await.unwrap();
        let took = rt.now().since(began);
        assert!(took < Duration::from_secs(1), "{took:?}");
        let (pool, _) = Pool::open(&rt, files, pool::Settings::default()).await.unwrap();
        let cache = Cache::open(&rt, &file, &pool, settings).await.unwrap();
        cache.publish_all().await.unwrap();
        for i in 0..300 {
            let data = pool.read(a, Lba(i * 2), 1).await.unwrap();
            assert!(data.iter().all(|s| s.iter().all(|&b| b == 7)), "block {i}");
        }
        cache.close().await.unwrap();
        pool.close().await.unwrap();
    });
    let report = lab.check();
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn a_cache_that_has_nothing_dirty_knows_it_soon_after_it_was_opened() {
    let lab = Lab::new();
    lab.with(|cache| async move { cache.publish_all().await.unwrap() });
    lab.with(|cache| async move {
        assert!(!cache.core().levels().all_written_back());
        cache.core().rt().sleep(Duration::from_secs(3600)).await;
        assert!(cache.core().levels().all_written_back());
        // To move clean blocks, or to forget a volume, changes nothing of that.
        cache.collect().await.unwrap();
        assert!(cache.core().levels().all_written_back());
    });
}

/// The pool has merged a pass, and its commit failed: it publishes the pass with the next one, and
/// nothing is carried again.
#[test]
fn a_pass_whose_commit_failed_is_not_carried_again() {
    let lab = Lab::new();
    lab.with(move |cache| async move {
        let a = cache.pool().find_volume("a").unwrap().id;
        cache.publish_all().await.unwrap();
        fill(&cache, a, 0, 1_000, 1).await;
        let before = cache.pool().status().pool;
        assert_eq!(before.reserved_bytes, 1_000 * 4096);
        {
            let _alone = cache.core().writeback().lock().await;
            let cut = cache.flows().cut_taker.choose_cut().await.unwrap();
            let pass = cache.flows().passes.carrier.begin_pass(&cut).unwrap();
            cache.flows().passes.carrier.carry(&pass, &cut).await.unwrap();
            cache
                .pool()
                .cache_link()
                .link_journal(Link::Closed(Err(StorageError::new(ErrorKind::NoSpace, "not now"))));
            cache.flows().passes.carrier.finish(&pass, &cut).await.unwrap_err();
            assert!(pass.abort().await.is_none(), "it was published");
            cache.pool().cache_link().link_journal(Link::None);
            cache.core().wakes().pass.notify();
        }
        // Room for the next cut is reserved meanwhile.
        fill(&cache, a, 2_000, 500, 2).await;
        cache.core().rt().sleep(Duration::from_secs(2)).await;
        assert!(cache.core().writeback().passes().cuts().count() == 0);
        assert_eq!(cache.pool().status().pool.reserved_bytes, 500 * 4096);
        cache.publish_all().await.unwrap();
        assert_eq!(cache.pool().status().pool.reserved_bytes, 0);
    });
    assert!(lab.check().is_clean());
}

/// A device that fails when the pool has all of its last pass already is set aside, at once or when
/// a later commit publishes the pass.
#[test]
fn a_cache_that_fails_while_its_last_pass_is_published_goes_aside() {
    for later in [false, true] {
        let lab = Lab::new();
        let (files, file) = (lab.files(), lab.file());
        lab.boot(move |rt| async move {
            let (pool, _) = Pool::open(&rt, files, pool::Settings::default()).await.unwrap();
            let cache = Cache::open(&rt, &file, &pool, settings()).await.unwrap();
            let a = pool.find_volume("a").unwrap().id;
            fill(&cache, a, 0, 100, 1).await;
            let c = cache.clone();
            let _asked = CommitHook::link(&pool, move || {
                c.flows().failures.fail(&StorageError::new(ErrorKind::Io, "broken"));
                if later { Err(StorageError::new(ErrorKind::Io, "not now")) } else { Ok(None) }
            });
            let outcome = cache.flows().passes.next_pass().await;
            assert_eq!((outcome.is_ok(), cache.is_aside()), (!later, !later));
            if later {
                pool.cache_link().link_journal(Link::None);
                pool.commit().await.unwrap();
                rt.sleep(Duration::from_secs(3)).await;
            }
            assert!(cache.is_aside());
            let data = pool.read(a, Lba(0), 100).await.unwrap();
            assert_eq!(data[0][0], 1);
            cache.close().await.unwrap_err();
            pool.close().await.unwrap();
        });
    }
}

/// A pass that could not write its nodes has handed nothing to the pool: its cut is carried again.
#[test]
fn a_pass_that_fails_while_it_writes_nodes_was_not_handed_over() {
    let lab = Lab::new();
    let (world, disk) = (lab.world.clone(), lab.disk);
    lab.within_an_hour(settings(), move |cache, a| async move {
        cache.publish_all().await.unwrap();
        let published = cache.pool().cache_link().published();
        // Only nodes are written for these.
        cache.discard(a, Lba(0), Lba(600)).await.unwrap();
        world.inject(disk, Fault::Full(true));
        let e = cache.publish_all().await.unwrap_err();
        assert_eq!(e.kind, ErrorKind::NoSpace, "{e}");
        let handed_over = || cache.core().writeback().passes().cuts().handed_over();
        assert_eq!((handed_over(), cache.pool().cache_link().published()), (None, published));
        assert!(cache.core().writeback().passes().cuts().carried().is_some(), "the cut is left");
        // A commit publishes nothing of it.
        cache.pool().commit().await.ok();
        assert_eq!(cache.pool().cache_link().published(), published);
        world.inject(disk, Fault::Full(false));
        cache.publish_all().await.unwrap();
        assert!(cache.pool().cache_link().published() > published);
        let data = cache.pool().read(a, Lba(0), 1).await.unwrap();
        assert!(data.iter().all(|slice| slice.iter().all(|&b| b == 0)));
    });
    assert!(lab.check().is_clean());
}
