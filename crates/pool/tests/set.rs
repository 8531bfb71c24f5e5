//! Settings of an open pool that change.

use base::{Duration, ErrorKind};
use pool::{Pool, Settings};
use testkit::{Mirror, fill, put};

const HOUR: Duration = Duration::from_secs(3600);
const MOMENT: Duration = Duration::from_secs(1);

/// A pool that commits once an hour unless it is asked to.
async fn open(rt: &rt::Rt, files: Vec<pool::DeviceFile>) -> Pool {
    let settings = Settings { commit_interval: HOUR, ..Settings::default() };
    Pool::open(rt, files, settings).await.expect("open").0
}

fn bench() -> Mirror {
    Mirror::new(1, (2, 2), |pool| async move {
        let id = pool.create_volume("v", 1 << 30, 4096).await.expect("volume");
        fill(&pool, id, 100, 1).await;
        id
    })
}

#[test]
fn a_shorter_interval_counts_for_what_is_dirty_already() {
    let bench = bench();
    let id = bench.volume;
    bench.run(move |rt, files| async move {
        let pool = open(&rt, files).await;
        let committed = pool.committed();
        put(&pool, id, 0, 1, 1).await;
        rt.sleep(10 * MOMENT).await;
        assert_eq!(pool.committed(), committed);
        // It has been dirty for longer than that.
        pool.set(Settings { commit_interval: MOMENT, ..pool.current_settings() }).expect("set");
        rt.sleep(MOMENT / 4).await;
        assert!(pool.committed() > committed);
        // A change that is not about the interval does not put it off.
        let committed = pool.committed();
        put(&pool, id, 1, 1, 1).await;
        for groups in 20..28 {
            rt.sleep(MOMENT / 4).await;
            let same = pool.current_settings();
            pool.set(Settings { loaded_groups: groups, ..same }).expect("set");
        }
        assert!(pool.committed() > committed);
        pool.close().await.expect("close");
    });
}

#[test]
fn fewer_dirty_nodes_count_for_what_is_dirty_already() {
    let bench = bench();
    let id = bench.volume;
    bench.run(move |rt, files| async move {
        let pool = open(&rt, files).await;
        let committed = pool.committed();
        for i in 0..200 {
            put(&pool, id, i * 1000, 1, 1).await;
        }
        rt.sleep(MOMENT).await;
        assert_eq!(pool.committed(), committed);
        pool.set(Settings { dirty_nodes: 1, ..pool.current_settings() }).expect("set");
        rt.sleep(MOMENT / 4).await;
        assert!(pool.committed() > committed);
        pool.close().await.expect("close");
    });
}

#[test]
fn what_cannot_change_is_named_and_nothing_changes() {
    let bench = bench();
    bench.run(move |rt, files| async move {
        let pool = open(&rt, files).await;
        let new = Settings { cached_nodes: 300, dirty_nodes: 77, ..pool.current_settings() };
        let e = pool.set(new).expect_err("it cannot change");
        assert!(e.kind == ErrorKind::Invalid && e.context.contains("cached_nodes"), "{e}");
        assert_eq!(pool.current_settings().dirty_nodes, Settings::default().dirty_nodes);
        pool.close().await.expect("close");
    });
}
