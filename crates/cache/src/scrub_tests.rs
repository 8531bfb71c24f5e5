//! Scrubs of pool and cache together, in simulation.

use std::time::Duration;

use base::{BLOCK_U64, ErrorKind};
use pool::ScrubOptions;
use sim::Fault;

use super::*;
use crate::Cache;
use crate::testkit::{Lab, fill, place_of, plain, settings};

/// Where a block of volume `a` is on the device.
async fn offset_of(cache: &Cache, volume: VolumeId, lba: u64) -> u64 {
    cache.core().offset_of(place_of(cache, volume, lba).await)
}

async fn scrub(cache: &Cache) -> CacheScrub {
    let before = cache.flows().scrubber.scrub_found().completed;
    cache.pool().scrubs().start_scrub(ScrubOptions::default()).await.expect("start");
    while cache.flows().scrubber.scrub_found().completed == before {
        cache.core().rt().sleep(Duration::from_millis(100)).await;
    }
    cache.flows().scrubber.scrub_found()
}

#[test]
fn what_is_to_be_verified_is_a_plain_value() {
    plain::<UnverifiedExtent>();
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
        for lba in [7, 1_009, 1_010, 1_013] {
            let offset = offset_of(&cache, a, lba).await;
            assert!(world.inject(device, Fault::BitRot { offset, len: 512 }));
        }
        let found = scrub(&cache).await;
        assert_eq!((found.completed, found.dropped, found.lost), (2, 1, 3), "{found:?}");
        // The pool has the one, and nothing has the other.
        assert!(cache.read(a, Lba(7), 1).await.is_ok());
        let e = cache.read(a, Lba(1_009), 1).await.expect_err("it is lost");
        assert_eq!(e.kind, ErrorKind::Io);
        assert_eq!(cache.status().bad_blocks, [1_009, 1_010, 1_013].map(|lba| (a.0, lba)));
        fill(&cache, a, 1_009, 5, 9).await;
        let again = scrub(&cache).await;
        assert_eq!((again.dropped, again.lost), (1, 3), "{again:?}");
    });
}

/// A scrub meets the copy of a node too, which nothing else reads while the node itself is well.
#[test]
fn bad_copies_of_nodes_are_written_again() {
    let lab = Lab::new();
    let (world, device) = (lab.world.clone(), lab.device);
    lab.within_an_hour(settings(), move |cache, a| async move {
        for i in 0..900 {
            fill(&cache, a, i * 3, 1, 1).await;
        }
        cache.flows().checkpointer.checkpoint_now().await.expect("a checkpoint");
        let from = btree::Key::EMPTY;
        let all = |st: &mut State| {
            Ok(st.index.tree().pointers(st.index.store(), &from, Generation(0), usize::MAX)?.0)
        };
        let nodes = cache.core().resident(Class::Foreground, all).await.expect("nodes");
        assert!(nodes.len() > 10);
        for (i, node) in nodes.iter().enumerate() {
            let addr = crate::store::index::node_addr(node.addr);
            let copy =
                cache.core().state().buckets.table().copy_of(addr).expect("each stands twice");
            let offset = cache.core().offset_of(if i % 2 == 0 { addr } else { copy });
            assert!(world.inject(device, Fault::BitRot { offset, len: BLOCK_U64 }));
        }
        let found = scrub(&cache).await;
        assert_eq!((found.dropped, found.lost), (0, 0));
        cache.core().rt().sleep(Duration::from_secs(1)).await;
        let index = cache.status().index;
        let all = nodes.len() as u64;
        assert_eq!((index.bad_copies, index.healed_copies), (all, all));
        scrub(&cache).await;
        assert_eq!(cache.status().index.bad_copies, all, "they are well");
    });
}

/// Three bad blocks of one clean extent are three, by each of the numbers, and the good ones stay.
#[test]
fn each_bad_block_of_a_clean_extent_is_dropped_and_counted_once() {
    let lab = Lab::new();
    let (world, device) = (lab.world.clone(), lab.device);
    lab.within_an_hour(settings(), move |cache, a| async move {
        fill(&cache, a, 0, 64, 1).await;
        cache.publish_all().await.expect("publish");
        let longest = |st: &mut State| {
            let all =
                st.index.overlapping(&st.buckets, a, BlockRange::of(Lba(0), 64), usize::MAX)?;
            Ok(all.iter().max_by_key(|e| e.len()).map(|e| (e.lba.0, e.len())))
        };
        for (round, by_a_read) in [false, true].into_iter().enumerate() {
            let found = cache.core().resident(Class::Foreground, longest).await.expect("look");
            let (lba, len) = found.expect("an extent");
            assert!(len >= 5, "{len} blocks from {lba} on");
            for block in [lba, lba + 1, lba + len - 1] {
                let offset = offset_of(&cache, a, block).await;
                assert!(world.inject(device, Fault::BitRot { offset, len: 512 }));
            }
            let before = cache.status();
            let dropped = match by_a_read {
                true => {
                    let data = cache.read(a, Lba(lba), len).await.expect("read");
                    let bytes = data.iter().flat_map(|s| s.chunks_exact(base::BLOCK));
                    assert!(bytes.zip(lba..).all(|(b, lba)| b[9] == (lba + 1) as u8));
                    cache.status().clean_bytes.abs_diff(before.clean_bytes) / BLOCK_U64
                }
                false => scrub(&cache).await.dropped,
            };
            assert_eq!(dropped, 3);
            let now = cache.status();
            assert_eq!(now.refetched, 3 * (round as u64 + 1));
            // Those between them are here still.
            let good = cache.read(a, Lba(lba + 2), len - 3).await.expect("read");
            assert_eq!(good.iter().map(|s| s.len() as u64).sum::<u64>(), (len - 3) * BLOCK_U64);
            assert_eq!(cache.status().hits - now.hits, len - 3);
            let again = scrub(&cache).await;
            assert_eq!((again.dropped, cache.status().refetched), (3, now.refetched));
        }
    });
}

#[test]
fn a_scrub_of_one_device_of_the_pool_does_not_read_the_cache() {
    Lab::new().within_an_hour(settings(), |cache, a| async move {
        fill(&cache, a, 0, 64, 1).await;
        let name = cache.pool().status().pool.devices[0].path.clone();
        let only = ScrubOptions { device: Some(name), rate: None };
        cache.pool().scrubs().start_scrub(only).await.expect("start");
        cache.core().rt().sleep(Duration::from_secs(20)).await;
        assert_eq!(cache.pool().scrubs().newest_scrub().state, ScrubState::Done);
        assert_eq!(cache.flows().scrubber.scrub_found(), CacheScrub::default());
        assert_eq!(cache.scrub_part().state, ScrubState::Never);
    });
}

/// Starts a scrub and waits until the pool's part has ended. The cache's begins a second later.
async fn scrub_pool(cache: &Cache) {
    cache.pool().scrubs().start_scrub(ScrubOptions::default()).await.expect("start");
    assert_eq!(cache.scrub_part().state, ScrubState::Running, "from the first moment");
    while cache.pool().scrubs().newest_scrub().state == ScrubState::Running {
        cache.core().rt().sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn it_outlasts_the_pool_and_is_paused_resumed_and_cancelled_alone() {
    Lab::new().within_an_hour(settings(), |cache, a| async move {
        for at in 0..64 {
            fill(&cache, a, 32 * at, 16, 1).await;
        }
        scrub_pool(&cache).await;
        let part = cache.scrub_part();
        assert_eq!(part.state, ScrubState::Running, "{part:?}");
        cache.pause_scrub().expect("pause");
        assert!(cache.pause_scrub().is_err());
        cache.core().rt().sleep(Duration::from_secs(60)).await;
        assert_eq!(
            (cache.scrub_part().state, cache.scrub_part().verified_bytes),
            (ScrubState::Paused, 0)
        );
        cache.resume_scrub(Some(0)).expect("resume");
        cache.core().rt().sleep(Duration::from_secs(5)).await;
        let done = cache.scrub_part();
        assert_eq!(
            (done.state, cache.flows().scrubber.scrub_found().completed),
            (ScrubState::Done, 1),
            "{done:?}"
        );
        assert!(done.verified_bytes >= 64 * 16 * BLOCK_U64, "{done:?}");
        assert!(cache.cancel_scrub().is_err() && cache.resume_scrub(None).is_err());
        scrub_pool(&cache).await;
        cache.cancel_scrub().expect("cancel");
        cache.core().rt().sleep(Duration::from_secs(60)).await;
        assert_eq!(
            (cache.scrub_part().state, cache.flows().scrubber.scrub_found().completed),
            (ScrubState::Cancelled, 1)
        );
    });
}

#[test]
fn it_keeps_the_rate_of_the_scrub() {
    Lab::new().within_an_hour(settings(), |cache, a| async move {
        for at in 0..256 {
            fill(&cache, a, 8 * at, 4, 1).await;
        }
        let rate = cache.flows().scrubber.bytes_to_scrub() / 100;
        let slow = ScrubOptions { rate: Some(rate), device: None };
        cache.pool().scrubs().start_scrub(slow).await.expect("start");
        cache.core().rt().sleep(Duration::from_secs(50)).await;
        let part = cache.scrub_part();
        assert!(part.state == ScrubState::Running && part.verified_bytes > 0, "{part:?}");
        // A leaf more than the rate gives.
        assert!(part.verified_bytes < part.all_bytes * 3 / 4, "{part:?}");
        cache.core().rt().sleep(Duration::from_secs(70)).await;
        assert_eq!(cache.scrub_part().state, ScrubState::Done);
    });
}

#[test]
fn it_rests_with_the_pool_and_goes_on_with_it() {
    Lab::new().within_an_hour(settings(), |cache, a| async move {
        fill(&cache, a, 0, 64, 1).await;
        cache
            .pool()
            .scrubs()
            .start_scrub(ScrubOptions { rate: Some(4096), device: None })
            .await
            .expect("start");
        cache.pool().scrubs().pause_scrub().await.expect("pause");
        cache.core().rt().sleep(Duration::from_secs(10)).await;
        assert_eq!(cache.flows().scrubber.scrub_found(), CacheScrub::default());
        cache.pool().scrubs().resume_scrub(Some(0)).await.expect("resume");
        cache.core().rt().sleep(Duration::from_secs(10)).await;
        assert_eq!(cache.flows().scrubber.scrub_found().completed, 1);
        cache.core().rt().sleep(Duration::from_secs(10)).await;
        assert_eq!(
            cache.flows().scrubber.scrub_found().completed,
            1,
            "once for each scrub of the pool"
        );
    });
}

/// A cache that is written to, and one of which much is discarded: the total is what was verified
/// and what is left, and it is never told to be done before it is.
#[test]
fn it_tells_what_is_left_while_the_cache_changes() {
    Lab::new().within_an_hour(settings(), |cache, a| async move {
        for at in 0..128 {
            fill(&cache, a, 1_000 + 8 * at, 4, 1).await;
        }
        let (blocks, rate) = (
            cache.flows().scrubber.bytes_to_scrub() / BLOCK_U64,
            cache.flows().scrubber.bytes_to_scrub() / 50,
        );
        let slow = ScrubOptions { rate: Some(rate), device: None };
        cache.pool().scrubs().start_scrub(slow).await.expect("start");
        assert_eq!(cache.scrub_part().all_bytes, blocks * BLOCK_U64);
        cache.core().rt().sleep(Duration::from_secs(25)).await;
        let before = cache.scrub_part();
        assert_eq!((before.state, before.all_bytes), (ScrubState::Running, blocks * BLOCK_U64));
        assert!(before.verified_bytes > 0 && before.verified_bytes < before.all_bytes);
        // What is written behind it is not verified, what is before it is.
        fill(&cache, a, 0, 64, 1).await;
        assert_eq!(cache.scrub_part().all_bytes, before.all_bytes);
        for at in 0..64 {
            fill(&cache, a, 3_000 + 8 * at, 4, 1).await;
        }
        let more = before.all_bytes + 256 * BLOCK_U64;
        assert_eq!(cache.scrub_part().all_bytes, more);
        cache.discard(a, Lba(3_000), Lba(3_064)).await.expect("discard");
        assert_eq!(cache.scrub_part().all_bytes, more - 32 * BLOCK_U64);
        loop {
            let part = cache.scrub_part();
            if part.state != ScrubState::Running {
                assert_eq!(part.verified_bytes, more - 32 * BLOCK_U64);
                assert_eq!((part.state, part.all_bytes), (ScrubState::Done, part.verified_bytes));
                break;
            }
            assert_eq!(part.all_bytes, more - 32 * BLOCK_U64);
            cache.core().rt().sleep(Duration::from_millis(500)).await;
        }
    });
}
