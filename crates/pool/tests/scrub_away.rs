//! Scrubs of a pool of which a device is out of use: these do not count as complete.

use base::Duration;
use model::scrub::{PoolScrub, ScrubState};
use model::status::PoolState;
use pool::{Pool, ScrubOptions};
use rt::Rt;
use testkit::{Mirror, open};

const BLOCKS: u64 = 2048;

fn mirror(seed: u64) -> Mirror {
    Mirror::filled(seed, (2, 2), BLOCKS)
}

fn settings() -> pool::Settings {
    pool::Settings {
        unix_time_at_zero: 1_790_000_000,
        scrub_every: Duration::from_secs(30 * 86_400),
        ..pool::Settings::default()
    }
}

async fn ended(rt: &Rt, pool: &Pool) -> PoolScrub {
    loop {
        let status = pool.scrubs().scrub_status().await;
        if status.state == ScrubState::Done {
            return status;
        }
        rt.sleep(Duration::from_millis(10)).await;
    }
}

async fn scrub(rt: &Rt, pool: &Pool) -> PoolScrub {
    pool.scrubs().start_scrub(ScrubOptions::default()).await.expect("start");
    ended(rt, pool).await
}

async fn whole(rt: &Rt, pool: &Pool) {
    while pool.status().pool.state != PoolState::Online {
        rt.sleep(Duration::from_millis(100)).await;
    }
}

#[test]
fn one_without_a_device_is_not_complete() {
    let bench = mirror(1);
    let first = bench.files[0].clone();
    bench.run(|rt, _| async move {
        let (pool, _) = Pool::open(&rt, vec![first], settings()).await.expect("open");
        let status = scrub(&rt, &pool).await;
        assert_eq!((status.away, status.lost, status.completed_at), (true, 0, 0), "{status:?}");
        pool.close().await.expect("close");
    });
    // It comes back, and one of all devices begins by itself when it is due.
    bench.run(|rt, files| async move {
        let (pool, _) = Pool::open(&rt, files, settings()).await.expect("open");
        assert!(pool.scrubs().scrub_status().await.away, "it is known after a restart");
        whole(&rt, &pool).await;
        rt.sleep(Duration::from_secs(31 * 86_400)).await;
        let status = pool.scrubs().scrub_status().await;
        assert!(!status.away && status.completed_at > 0, "{status:?}");
        pool.close().await.expect("close");
    });
}

#[test]
fn one_that_a_device_has_left_or_comes_back_to_is_not_complete() {
    let bench = mirror(2);
    bench.run(|rt, files| async move {
        let (pool, _) = Pool::open(&rt, files, settings()).await.expect("open");
        let slow = ScrubOptions { rate: Some(1 << 20), device: None };
        pool.scrubs().start_scrub(slow.clone()).await.expect("start");
        rt.sleep(Duration::from_secs(1)).await;
        pool.returns().offline_device("disk1").await.expect("offline");
        assert!(pool.returns().online_device("disk1").await.expect("online"));
        whole(&rt, &pool).await;
        let status = ended(&rt, &pool).await;
        assert_eq!((status.away, status.completed_at), (true, 0), "{status:?}");
        // It is there again before the scrub has ended.
        pool.returns().offline_device("disk1").await.expect("offline");
        pool.scrubs().start_scrub(slow).await.expect("start");
        assert!(pool.returns().online_device("disk1").await.expect("online"));
        whole(&rt, &pool).await;
        let status = ended(&rt, &pool).await;
        assert_eq!((status.away, status.completed_at), (true, 0), "{status:?}");
        let status = scrub(&rt, &pool).await;
        assert!(!status.away && status.completed_at > 0, "{status:?}");
        pool.close().await.expect("close");
    });
}

/// What is there was verified: it does not begin again and again while the device is away.
#[test]
fn one_without_a_device_is_not_repeated_at_once() {
    let bench = mirror(3);
    let first = bench.files[0].clone();
    bench.run(|rt, _| async move {
        let pool = open(&rt, vec![first.clone()]).await;
        pool.close().await.expect("close");
        let (pool, _) = Pool::open(&rt, vec![first], settings()).await.expect("open");
        rt.sleep(Duration::from_secs(31 * 86_400)).await;
        let status = pool.scrubs().scrub_status().await;
        assert!(status.state == ScrubState::Done && status.away, "{status:?}");
        rt.sleep(Duration::from_secs(5 * 86_400)).await;
        assert_eq!(pool.scrubs().scrub_status().await.started_at, status.started_at);
        pool.close().await.expect("close");
    });
}

/// What the other devices hold is not its business.
#[test]
fn one_of_a_single_device_that_goes_away_has_not_verified_it() {
    let bench = mirror(4);
    bench.run(|rt, files| async move {
        let (pool, _) = Pool::open(&rt, files, settings()).await.expect("open");
        let slow = ScrubOptions { rate: Some(1 << 20), device: Some("disk1".into()) };
        for (goes, away) in [("disk1", true), ("disk0", false)] {
            pool.scrubs().start_scrub(slow.clone()).await.expect("start");
            rt.sleep(Duration::from_secs(1)).await;
            pool.returns().offline_device(goes).await.expect("offline");
            let status = ended(&rt, &pool).await;
            assert_eq!((status.away, status.lost), (away, 0), "{goes}: {status:?}");
            assert_eq!(status.completed_at, 0, "{goes}");
            assert!(pool.returns().online_device(goes).await.expect("online"));
            whole(&rt, &pool).await;
        }
        // It comes back before the scrub has ended.
        pool.scrubs().start_scrub(slow).await.expect("start");
        rt.sleep(Duration::from_secs(1)).await;
        pool.returns().offline_device("disk1").await.expect("offline");
        assert!(pool.returns().online_device("disk1").await.expect("online"));
        assert!(ended(&rt, &pool).await.away);
        pool.close().await.expect("close");
    });
}
