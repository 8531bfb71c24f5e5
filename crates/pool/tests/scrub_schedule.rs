//! The schedule of scrubs: what puts the next one off, and what does not.

use base::Duration;
use model::scrub::{PoolScrub, ScrubState};
use pool::{Pool, ScrubOptions};
use rt::Rt;
use testkit::{Mirror, scrubbed};

const BLOCKS: u64 = 2048;

fn mirror(seed: u64) -> Mirror {
    Mirror::filled(seed, (2, 2), BLOCKS)
}

/// Starts a scrub and waits until it has ended.
async fn scrub(rt: &Rt, pool: &Pool) -> PoolScrub {
    pool.scrubs().start_scrub(ScrubOptions::default()).await.expect("start");
    scrubbed(rt, pool).await
}

#[test]
fn a_clock_that_was_ahead_puts_off_no_scrub_by_more_than_the_interval() {
    const DAY_S: u64 = 86_400;
    const NOW: u64 = 1_790_000_000;
    let bench = mirror(10);
    let settings = |unix_time_at_zero| pool::Settings {
        unix_time_at_zero,
        scrub_every: Duration::from_secs(10 * DAY_S),
        ..pool::Settings::default()
    };
    bench.run(|rt, files| async move {
        let ahead = NOW + 300 * DAY_S;
        let (pool, _) = Pool::open(&rt, files.clone(), settings(ahead)).await.expect("open");
        let first = scrub(&rt, &pool).await;
        assert!(u64::from(first.completed_at) >= ahead, "{first:?}");
        pool.close().await.expect("close");

        let (pool, _) = Pool::open(&rt, files, settings(NOW)).await.expect("open");
        rt.sleep(Duration::from_secs(9 * DAY_S)).await;
        let before = pool.scrubs().scrub_status().await.completed_at;
        assert!(u64::from(before) < NOW + DAY_S, "{before}");
        rt.sleep(Duration::from_secs(2 * DAY_S)).await;
        let second = pool.scrubs().scrub_status().await;
        assert!(u64::from(second.completed_at) > NOW + 9 * DAY_S, "{second:?}");
        pool.close().await.expect("close");
    });
}

#[test]
fn a_scrub_of_one_device_or_a_cancelled_one_does_not_put_off_the_one_that_is_due() {
    const DAY: Duration = Duration::from_secs(86_400);
    let bench = mirror(10);
    bench.run(|rt, files| async move {
        let settings = pool::Settings {
            unix_time_at_zero: 1_790_000_000,
            scrub_every: Duration::from_secs(10 * 86_400),
            ..pool::Settings::default()
        };
        let (pool, _) = Pool::open(&rt, files, settings).await.expect("open");
        let first = scrub(&rt, &pool).await;
        assert!(first.completed_at > 0, "{first:?}");
        rt.sleep(Duration::from_secs(9 * 86_400)).await;
        let of = ScrubOptions { device: Some("disk0".into()), rate: None };
        pool.scrubs().start_scrub(of).await.expect("start");
        let only = scrubbed(&rt, &pool).await;
        assert_eq!((only.state, only.completed_at), (ScrubState::Done, first.completed_at));
        rt.sleep(DAY + Duration::from_secs(600)).await;
        let second = pool.scrubs().scrub_status().await;
        assert!(second.device.is_none() && second.completed_at > only.ended_at, "{second:?}");
        // The next one is cancelled when it is due.
        rt.sleep(Duration::from_secs(9 * 86_400)).await;
        pool.scrubs()
            .start_scrub(ScrubOptions { rate: Some(64), device: None })
            .await
            .expect("start");
        rt.sleep(DAY).await;
        pool.scrubs().cancel_scrub().await.expect("cancel");
        rt.sleep(Duration::from_secs(23 * 3600)).await;
        assert_eq!(pool.scrubs().scrub_status().await.state, ScrubState::Cancelled);
        rt.sleep(Duration::from_secs(2 * 3600)).await;
        let third = pool.scrubs().scrub_status().await;
        assert!(
            third.state == ScrubState::Done && third.completed_at > second.completed_at,
            "{third:?}"
        );
        // One that is paused is told of after a day.
        pool.scrubs()
            .start_scrub(ScrubOptions { rate: Some(4096), device: None })
            .await
            .expect("start");
        pool.scrubs().pause_scrub().await.expect("pause");
        rt.sleep(DAY - Duration::from_secs(60)).await;
        assert_eq!(pool.scrubs().scrub_status().await.paused_long_s, None);
        rt.sleep(Duration::from_secs(120)).await;
        assert!(pool.scrubs().scrub_status().await.paused_long_s.is_some_and(|s| s >= 86_400));
        pool.close().await.expect("close");
    });
}
