//! Scrubs of pool and cache together, in simulation.

use std::time::Duration;

use base::{BLOCK_U64, ErrorKind};
use pool::ScrubOptions;
use sim::Fault;

use super::*;
use crate::testkit::{Lab, fill, settings};

/// Where a block of volume `a` is on the device.
async fn offset_of(cache: &Cache, volume: VolumeId, lba: u64) -> u64 {
    let step = |st: &mut State| Ok(st.index.place_of(&st.buckets, volume, Lba(lba)));
    let (addr, _) = cache.resident(Class::Foreground, step).await.expect("look").expect("there");
    cache.offset_of(addr)
}

async fn scrub(cache: &Cache) -> CacheScrub {
    let before = cache.scrub_found().completed;
    cache.pool().start_scrub(ScrubOptions::default()).await.expect("start");
    while cache.scrub_found().completed == before {
        cache.rt().sleep(Duration::from_millis(100)).await;
    }
    cache.scrub_found()
}

#[test]
fn bad_clean_blocks_are_dropped_and_dirty_ones_named() {
    let lab = Lab::new();
    let (world, device) = (lab.world.clone(), lab.device);
    lab.within_an_hour(settings(), move |cache, a| async move {
        fill(&cache, a, 0, 64, 1).await;
        cache.publish_all().await.expect("publish");
        fill(&cache, a, 1_000, 64, 1).await;
        let well = scrub(&cache).await;
        assert!(well.verified_bytes >= 128 * BLOCK_U64, "{well:?}");
        assert_eq!((well.dropped, well.lost), (0, 0));
        for lba in [7, 1_009] {
            let offset = offset_of(&cache, a, lba).await;
            assert!(world.inject(device, Fault::BitRot { offset, len: 512 }));
        }
        let found = scrub(&cache).await;
        assert_eq!((found.completed, found.dropped, found.lost), (2, 1, 1), "{found:?}");
        // The pool has the one, and nothing has the other.
        assert!(cache.read(a, Lba(7), 1).await.is_ok());
        let e = cache.read(a, Lba(1_009), 1).await.expect_err("it is lost");
        assert_eq!(e.kind, ErrorKind::Io);
        assert_eq!(cache.status().bad_blocks, [(a.0, 1_009)]);
        fill(&cache, a, 1_009, 1, 9).await;
        let again = scrub(&cache).await;
        assert_eq!((again.dropped, again.lost), (1, 1), "{again:?}");
    });
}

#[test]
fn it_rests_with_the_pool_and_goes_on_with_it() {
    Lab::new().within_an_hour(settings(), |cache, a| async move {
        fill(&cache, a, 0, 64, 1).await;
        cache
            .pool()
            .start_scrub(ScrubOptions { rate: Some(4096), device: None })
            .await
            .expect("start");
        cache.pool().pause_scrub().await.expect("pause");
        cache.rt().sleep(Duration::from_secs(10)).await;
        assert_eq!(cache.scrub_found(), CacheScrub::default());
        cache.pool().resume_scrub(Some(0)).await.expect("resume");
        cache.rt().sleep(Duration::from_secs(10)).await;
        assert_eq!(cache.scrub_found().completed, 1);
        cache.rt().sleep(Duration::from_secs(10)).await;
        assert_eq!(cache.scrub_found().completed, 1, "once for each scrub of the pool");
    });
}
