//! Zeros that are to take space find the room that other volumes give back, also where these write
//! back and the pool does not know of it yet.

use std::time::Duration;

use base::ErrorKind;
use cache::Settings;
use pool::CacheMode;
use rt::{Order, Rt};
use testkit::{CachedWorld, MIB};
use volume::Volumes;

const BYTES: u64 = 32 * MIB;

async fn live(rt: Rt, bench: CachedWorld) {
    let pool = bench.create_pool(&rt, pool::Settings::default()).await;
    bench.create_cache(&rt, &pool, [3; 16]).await;
    // Nothing is written back before it has to be.
    let lazy = Settings { max_lag: Duration::from_secs(3600), ..Settings::default() };
    let cache = bench.open_cache(&rt, &pool, lazy).await;
    let volumes = Volumes::with_cache(&pool, Some(cache.clone()));
    let a = volumes.create("a", BYTES, 4096).await.expect("create");
    let b = volumes.create("b", BYTES, 4096).await.expect("create");
    for name in ["a", "b"] {
        volumes.set_mode(name, CacheMode::WriteBack).await.expect("the mode");
    }
    a.write_zeroes(0, BYTES, true, None).await.expect("room");
    cache.publish_all().await.expect("publish");
    let refused = b.write_zeroes(0, BYTES, true, None).await.map_err(|e| e.kind);
    assert_eq!(refused, Err(ErrorKind::NoSpace), "nothing gives room for both");
    a.discard(0, BYTES).await.expect("discard");
    assert!(pool.attainable_bytes() < BYTES, "a pass has given it back already");
    b.write_zeroes(0, BYTES, true, None).await.expect("the same room again");
    pool.close().await.expect("close");
}

#[test]
fn zeroes_find_the_room_that_a_cache_gives_back() {
    CachedWorld::new(9, 48 * MIB, 64 * MIB).run(Order::Seeded(9), live);
}
