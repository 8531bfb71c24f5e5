//! Settings that change under a cache at work, in simulation.

use base::{Duration, ErrorKind, Lba, VolumeId};

use super::*;
use crate::rate_controller;
use crate::settings::{LagPolicy, Promote};
use crate::testkit::{Lab, fill, fill_pool_alone, settings};

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);
/// A change that is not told to a pass that sleeps would be seen by then.
const LOOK: Duration = Duration::from_millis(100);

fn rates(min: u64, max: u64, idle_rate: u64) -> rate_controller::RateSettings {
    rate_controller::RateSettings { min, max, idle_rate }
}

/// A block a second.
fn crawl() -> rate_controller::RateSettings {
    rates(4096, 4096, 4096)
}

fn set(cache: &Cache, change: impl FnOnce(&mut Settings)) {
    let mut new = cache.current_settings();
    change(&mut new);
    cache.set(new).expect("they may change");
}

/// How long a write of one block takes.
async fn time_of_write(cache: &Cache, a: VolumeId, lba: u64) -> Duration {
    let began = cache.core().rt().now();
    fill(cache, a, lba, 1, 1).await;
    cache.core().rt().now().since(began)
}

#[test]
fn a_higher_rate_wakes_a_pass_that_sleeps() {
    let before = Settings { dirty_target_percent: 1, writeback: crawl(), ..settings() };
    Lab::new().within_an_hour(before, |cache, a| async move {
        for turn in 0..5u32 {
            set(&cache, |s| s.writeback = crawl());
            for i in 0..20 {
                fill(&cache, a, i * 7, 1, turn as u8).await;
            }
            // So that it is another part of the time after which it looks by itself.
            cache.core().rt().sleep(3000 * MS + turn * (LOOK / 5)).await;
            let dirty = cache.status().dirty_bytes;
            assert!(dirty > 10 * 4096, "it crawls");
            set(&cache, |s| s.writeback = rates(1 << 30, 1 << 30, 1 << 30));
            let status = cache.status().writeback;
            assert_eq!((status.rate, status.min, status.max), (1 << 30, 1 << 30, 1 << 30));
            cache.core().rt().sleep(LOOK / 10).await;
            assert!(cache.core().writeback().passes().sleeps_at().is_none(), "it sleeps on");
            cache.publish_all().await.expect("publish");
        }
    });
}

#[test]
fn rates_are_never_outside_of_their_bounds() {
    let fast = rates(1 << 30, 1 << 30, 1 << 30);
    let before = Settings { dirty_target_percent: 1, writeback: fast, ..settings() };
    Lab::new().within_an_hour(before, |cache, a| async move {
        cache.publish_all().await.expect("publish");
        set(&cache, |s| s.writeback = rates(4096, 8192, 8192));
        assert_eq!(cache.status().writeback.rate, 8192);
        let bytes = || cache.core().writeback().passes().bytes();
        let (began, from) = (cache.core().rt().now(), bytes());
        for i in 0..60 {
            fill(&cache, a, i * 7, 1, 3).await;
        }
        while cache.core().rt().now().since(began) < Duration::from_secs(10) {
            cache.core().rt().sleep(LOOK).await;
            let rate = cache.status().writeback.rate;
            assert!((4096..=8192).contains(&rate), "{rate}");
        }
        // And one more, which no time has paid for yet.
        let (most, carried) = (10 * 8192 + 2 * 4096, bytes() - from);
        assert!((4096 * 8..=most).contains(&carried), "{carried} bytes in ten seconds");
        set(&cache, |s| s.writeback = rates(1 << 20, 1 << 30, 1 << 30));
        assert_eq!(cache.status().writeback.rate, 1 << 20);
    });
}

#[test]
fn a_shorter_lag_makes_a_pass_due() {
    Lab::new().within_an_hour(settings(), |cache, a| async move {
        cache.publish_all().await.expect("publish");
        fill(&cache, a, 0, 10, 1).await;
        cache.core().rt().sleep(10_000 * MS).await;
        assert!(cache.status().dirty_bytes > 0);
        // It is a quarter of that old: the pass begins at half of it, less what has gone by.
        set(&cache, |s| s.max_lag = 40_000 * MS);
        cache.core().rt().sleep(5_000 * MS).await;
        assert!(cache.status().dirty_bytes > 0, "it is not due yet");
        cache.core().rt().sleep(10_000 * MS).await;
        assert_eq!(cache.status().dirty_bytes, 0);
        fill(&cache, a, 0, 10, 2).await;
        cache.core().rt().sleep(10_000 * MS).await;
        set(&cache, |s| s.max_lag = 2_000 * MS);
        cache.core().rt().sleep(LOOK).await;
        assert_eq!(cache.status().dirty_bytes, 0, "it was overdue");
    });
}

#[test]
fn a_lower_target_makes_a_pass_due() {
    Lab::new().within_an_hour(settings(), |cache, a| async move {
        cache.publish_all().await.expect("publish");
        fill(&cache, a, 0, 200, 1).await;
        cache.core().rt().sleep(10_000 * MS).await;
        assert!(cache.status().dirty_bytes > 0);
        set(&cache, |s| s.dirty_target_percent = 1);
        cache.core().rt().sleep(10_000 * MS).await;
        assert_eq!(cache.status().dirty_bytes, 0);
        assert!(cache.status().writeback.target < 1 << 20);
    });
}

#[test]
fn a_lower_limit_holds_writers_and_a_higher_one_lets_them_go() {
    let before = Settings { writeback: crawl(), ..settings() };
    Lab::new().within_an_hour(before, |cache, a| async move {
        for i in 0..5 {
            fill(&cache, a, i * 200, 200, 1).await;
        }
        assert!(time_of_write(&cache, a, 1000).await < MS);
        set(&cache, |s| (s.dirty_target_percent, s.dirty_limit_percent) = (1, 2));
        fill(&cache, a, 1001, 1, 1).await;
        let slow = time_of_write(&cache, a, 1002).await;
        assert!(slow > LOOK / 2, "{slow:?}");
        // One that waits by now, though less has gone by than it was to wait for.
        let (c, began) = (cache.clone(), cache.core().rt().now());
        let writer = cache.core().rt().spawn(async move { fill(&c, a, 1003, 1, 1).await });
        cache.core().rt().sleep(10 * MS).await;
        assert_eq!(cache.status().writeback.writers_waiting, 1);
        set(&cache, |s| s.dirty_limit_percent = 95);
        writer.await.expect("it ended");
        assert!(cache.core().rt().now().since(began) < 12 * MS);
    });
}

#[test]
fn a_strict_lag_slows_writers_at_once_and_an_aim_does_not() {
    let before = Settings { writeback: crawl(), max_lag: 1000 * MS, ..settings() };
    Lab::new().within_an_hour(before, |cache, a| async move {
        for i in 0..50 {
            fill(&cache, a, i * 7, 1, 1).await;
        }
        cache.core().rt().sleep(5_000 * MS).await;
        assert!(cache.status().writeback.lag_seconds > 2.0);
        assert!(time_of_write(&cache, a, 1000).await < MS);
        set(&cache, |s| s.max_lag_policy = LagPolicy::Strict);
        // What was carried before may be written without a delay, and no more.
        let mut slow = Duration::ZERO;
        for i in 0..20 {
            slow = slow.max(time_of_write(&cache, a, 1001 + i).await);
        }
        assert!(slow > LOOK / 2, "{slow:?}");
        let (c, began) = (cache.clone(), cache.core().rt().now());
        let writer = cache.core().rt().spawn(async move { fill(&c, a, 2000, 1, 1).await });
        cache.core().rt().sleep(10 * MS).await;
        assert_eq!(cache.status().writeback.writers_waiting, 1);
        set(&cache, |s| s.max_lag_policy = LagPolicy::Aim);
        writer.await.expect("it ended");
        assert!(cache.core().rt().now().since(began) < 12 * MS);
    });
}

#[test]
fn streams_and_promotion_go_by_the_new_settings() {
    Lab::new().within_an_hour(settings(), |cache, a| async move {
        cache.publish_all().await.expect("publish");
        fill_pool_alone(cache.pool(), a).await;
        let promoted = async |lba: u64| {
            let before = cache.status().promoted;
            cache.read(a, Lba(lba), 1).await.expect("read");
            cache.core().rt().sleep(1000 * MS).await;
            cache.status().promoted - before
        };
        assert_eq!(promoted(1).await, 1);
        set(&cache, |s| s.promote = Promote::Never);
        assert_eq!(promoted(3).await, 0);
        set(&cache, |s| (s.promote, s.promote_blocks) = (Promote::First, 0));
        assert_eq!(promoted(5).await, 0);
        set(&cache, |s| s.promote_blocks = 64);
        assert_eq!(promoted(7).await, 1);
        // A stream of one request.
        let is_stream = |lba, blocks| cache.core().clients().follow_write(a, Lba(lba), blocks);
        assert!(!is_stream(0, 256));
        set(&cache, |s| s.sequential_cutoff = 1 << 20);
        assert!(is_stream(256, 256), "with what went before");
        set(&cache, |s| s.sequential_cutoff = 0);
        assert!(!is_stream(512, 1024));
    });
}

/// A client at work for so long.
async fn busy_for(cache: &Cache, volume: VolumeId, time: Duration) {
    let until = cache.core().rt().now().after(time);
    while cache.core().rt().now() < until {
        cache.read(volume, Lba(0), 1).await.expect("read");
        cache.core().rt().sleep(50 * MS).await;
    }
}

#[test]
fn a_collection_that_rests_does_not_hold_up_one_that_is_asked_for() {
    let before = Settings { gc_slice: Duration::ZERO, gc_pause: HOUR / 4, ..settings() };
    Lab::new().within_an_hour(before, |cache, a| async move {
        for i in 0..600 {
            fill(&cache, a, i * 2, 1, 1).await;
        }
        let gc = || cache.status().gc;
        // The first pass comes after a minute, and rests after its first leaf.
        busy_for(&cache, a, 100_000 * MS).await;
        assert_eq!((gc().passes, gc().slices), (0, 1));
        // Both passes: the one that rests, and the one that is asked for.
        let began = cache.core().rt().now();
        cache.collect().await.expect("collect");
        assert!(gc().passes == 2 && cache.core().rt().now().since(began) < LOOK);
    });
}

#[test]
fn a_collection_without_clients_does_not_rest() {
    let before = Settings { gc_slice: Duration::ZERO, gc_pause: HOUR / 4, ..settings() };
    Lab::new().within_an_hour(before, |cache, a| async move {
        for i in 0..600 {
            fill(&cache, a, i * 2, 1, 1).await;
        }
        cache.core().rt().sleep(100_000 * MS).await;
        let gc = cache.status().gc;
        assert!(gc.passes == 1 && gc.slices > 3, "{} passes, {} slices", gc.passes, gc.slices);
        assert!(cache.status().index.key_bytes > Some(600 * 16));
    });
}

#[test]
fn a_collection_goes_by_the_new_settings_at_once() {
    let before = Settings { gc_slice: Duration::ZERO, gc_pause: HOUR / 4, ..settings() };
    Lab::new().within_an_hour(before, |cache, a| async move {
        for i in 0..600 {
            fill(&cache, a, i * 2, 1, 1).await;
        }
        let gc = || cache.status().gc;
        busy_for(&cache, a, 100_000 * MS).await;
        set(&cache, |s| s.gc_pause = Duration::ZERO);
        cache.core().rt().sleep(LOOK).await;
        let slices = gc().slices;
        assert!(gc().passes == 1 && slices > 3, "{slices} slices");
        // As many leaves, in slices of several.
        set(&cache, |s| s.gc_min_nodes = 1000);
        cache.collect().await.expect("collect");
        assert_eq!(gc().slices, slices + 1);
        set(&cache, |s| s.gc_min_nodes = 2);
        cache.collect().await.expect("collect");
        let of_two = gc().slices - slices - 1;
        assert!(of_two > 1 && of_two <= slices.div_ceil(2), "{of_two} slices of two, {slices}");
        // A slice is not over before its time, however many leaves it has seen.
        set(&cache, |s| (s.gc_slice, s.gc_min_nodes) = (HOUR, 1));
        let before = gc().slices;
        cache.collect().await.expect("collect");
        assert_eq!(gc().slices, before + 1);
    });
}

#[test]
fn a_shorter_interval_of_the_journal_counts_at_once() {
    Lab::new().within_an_hour(settings(), |cache, a| async move {
        cache.flush().await.expect("flush");
        fill(&cache, a, 0, 1, 1).await;
        cache.core().rt().sleep(10_000 * MS).await;
        let lacks =
            || cache.core().state().journal().durable() < cache.core().state().journal().pushed();
        assert!(lacks());
        set(&cache, |s| s.journal_interval = 5_000 * MS);
        cache.core().rt().sleep(LOOK).await;
        assert!(!lacks());
    });
}

#[test]
fn what_cannot_change_is_named_and_nothing_changes() {
    Lab::new().within_an_hour(settings(), |cache, _| async move {
        let mut new = cache.current_settings();
        (new.resident_nodes, new.max_lag) = (7, 1000 * MS);
        let e = cache.set(new).expect_err("it cannot change");
        assert!(e.kind == ErrorKind::Invalid && e.context.contains("resident_nodes"), "{e}");
        assert_eq!(cache.core().settings().max_lag, HOUR);
    });
}
