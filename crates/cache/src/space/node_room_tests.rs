//! An index that changes more than there is room for, in simulation.

use std::time::Duration;

use base::{BLOCK, Lba};
use sim::Fault;

use crate::policy::writer_delay::PASSES;
use crate::store::ring_room::{JournalRoom, Share};
use crate::testkit::{Lab, fill, place_of, settings};
use crate::{Cache, Settings};

/// Write-back of so many bytes a second.
fn slow(rate: u64) -> Settings {
    let writeback =
        crate::policy::rate_controller::RateSettings { min: rate, max: rate, idle_rate: rate };
    Settings { writeback, dirty_target_percent: 1, dirty_nodes: 8, ..settings() }
}

#[test]
fn discards_over_a_full_cache_wait_for_write_back_and_nothing_else() {
    let lab = Lab::new();
    lab.within_an_hour(slow(64 << 10), |cache, a| async move {
        let wide = cache.pool().create_volume("wide", 1 << 40, 4096).await.unwrap();
        // Until writers have to wait for passes.
        for i in 0..3_000 {
            fill(&cache, a, i * 1_237 % 4_096, 1, i as u8).await;
        }
        let (mut most, before) = (Duration::ZERO, cache.status().writeback.passes);
        for i in 0..60_000 {
            let began = cache.core().rt().now();
            let lba = i * 7_919 % 100_003 * 2;
            cache.discard(wide, Lba(lba), Lba(lba + 1)).await.unwrap();
            most = most.max(cache.core().rt().now().since(began));
        }
        let passes = cache.status().writeback.passes - before;
        // The first has 3,000 blocks to carry, 16 a second.
        assert!(
            passes > 0 && most > Duration::from_secs(1),
            "they never had to wait: {passes} passes, {most:?}"
        );
        assert!(most < Duration::from_secs(200), "{most:?} for a discard");
        cache.flush().await.unwrap();
        let data = cache.read(a, Lba(1_237), 1).await.unwrap();
        assert_eq!(data[0][..], [1; BLOCK]);
    });
    let report = lab.check();
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn however_many_change_the_index_at_once_a_checkpoint_has_its_room() {
    let lab = Lab::new();
    let settings = Settings { dirty_nodes: 64, ..slow(256 << 10) };
    lab.within_an_hour(settings, |cache, a| async move {
        let wide = cache.pool().create_volume("wide", 1 << 40, 4096).await.unwrap();
        for i in 0..30_000 {
            // Leaves for all of them to change.
            cache.discard(wide, Lba(i * 64), Lba(i * 64 + 1)).await.unwrap();
        }
        for i in 0..2_000 {
            fill(&cache, a, i * 1_237 % 4_096, 1, i as u8).await;
        }
        let mut tasks = Vec::new();
        for task in 0..400 {
            let cache = cache.clone();
            tasks.push(cache.core().rt().clone().spawn(async move {
                for i in 0..20 {
                    let lba = (task * 7_919 + i * 104_729) % 30_000 * 64 + 2 + i;
                    cache.discard(wide, Lba(lba), Lba(lba + 1)).await.unwrap();
                    assert!(
                        !cache.core().levels().lacks_node_room(0),
                        "{} nodes are due, {} held, margin {}, room {}",
                        cache.core().levels().nodes_due(),
                        cache.core().levels().nodes_reserved(),
                        cache.core().layout().node_margin(),
                        cache.core().levels().node_room()
                    );
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(cache.core().state().journal().room().nodes(), 0);
    });
    let report = lab.check();
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn buckets_of_nodes_that_are_mostly_empty_are_emptied_by_themselves() {
    let lab = Lab::new();
    lab.within_an_hour(Settings { dirty_nodes: 8, ..settings() }, |cache, _| async move {
        let wide = cache.pool().create_volume("wide", 1 << 40, 4096).await.unwrap();
        // Most changes are of few leaves, which are written again and again; each bucket of nodes
        // keeps one or two of the others.
        let mut most = 0.0f64;
        for i in 0..20_000 {
            for lba in [i * 2, 1_000_000 + i * 7_919 % 4_000 * 2] {
                cache.discard(wide, Lba(lba), Lba(lba + 1)).await.unwrap();
            }
            if i % 10 == 0 {
                cache.core().rt().sleep(Duration::from_millis(10)).await;
            }
            if i > 10_000 {
                let st = cache.core().state();
                let held = st.buckets.census().metadata * st.buckets.geometry().bucket_blocks();
                most = most.max(f64::from(held) / st.buckets.nodes().node_blocks() as f64);
            }
        }
        // Twice that and more without it, until passes have to make room.
        assert!(most < 5.0, "buckets of {most} times the nodes");
        // Nor was a checkpoint tried for what none can do.
        assert!(cache.status().index.checkpoints < 20_000, "{}", cache.status().index.checkpoints);
        assert!(cache.core().collections().stats().moved_nodes > 0 && cache.status().gc.passes > 0);
        assert_eq!(cache.status().writeback.passes, 0, "room was short");
    });
    let report = lab.check();
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn a_collection_in_a_cache_that_stands_idle_gives_its_buckets_back() {
    let lab = Lab::new();
    lab.within_an_hour(settings(), |cache, _| async move {
        let wide = cache.pool().create_volume("wide", 1 << 40, 4096).await.unwrap();
        for i in 0..60_000 {
            cache.discard(wide, Lba(i * 2), Lba(i * 2 + 1)).await.unwrap();
        }
        cache.flows().checkpointer.checkpoint_now().await.unwrap();
        cache.publish_all().await.unwrap();
        let held = || cache.core().state().buckets.census().metadata;
        let (full, before) = (held(), cache.status().index.checkpoints);
        let reserve = cache.core().layout().node_reserve();
        assert!(full > 2 * reserve, "{full} buckets of nodes, {reserve} in reserve");
        cache.core().rt().sleep(Duration::from_secs(120)).await;
        assert!(held() <= reserve, "{full} buckets of nodes, {} after the collection", held());
        let checkpoints = cache.status().index.checkpoints - before;
        assert!(checkpoints <= 3, "{checkpoints} checkpoints of an idle cache");
    });
    let report = lab.check();
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn keys_of_discards_that_are_published_go_by_themselves() {
    let lab = Lab::new();
    lab.within_an_hour(settings(), |cache, _| async move {
        let wide = cache.pool().create_volume("wide", 1 << 40, 4096).await.unwrap();
        let before = cache.status().index.nodes;
        for i in 0..10_000 {
            cache.discard(wide, Lba(i * 2), Lba(i * 2 + 1)).await.unwrap();
        }
        cache.publish_all().await.unwrap();
        cache.flows().checkpointer.checkpoint_now().await.unwrap();
        let full = cache.status().index.nodes;
        cache.core().rt().sleep(Duration::from_secs(3)).await;
        cache.flows().checkpointer.checkpoint_now().await.unwrap();
        cache.flush().await.unwrap();
        cache.core().give_back_nodes().await;
        let after = cache.status().index.nodes;
        assert!(
            full > before + 40 && after <= before + 2,
            "{before} nodes, then {full}, then {after}"
        );
        assert!(!cache.flows().collector.gc_is_due(), "again, for nothing");
    });
}

/// Takes all of the ring, also what is kept back for upkeep.
fn fill_ring(cache: &Cache) -> Vec<JournalRoom> {
    let ring = cache.core().state().journal().room().clone();
    std::iter::from_fn(|| ring.try_take(Share::Upkeep, 1)).collect()
}

/// So many nodes seem to be due that each would find room once, and never twice.
fn suppose_more_than_twice_fit(cache: &Cache) {
    cache.core().state_mut().suppose_nodes(cache.core().layout().data_blocks() / 2 + 1);
    assert!(!cache.core().levels().lacks_room_for_one_copy());
}

/// Passes that free nothing have filled the ring: those that enter bad blocks again, say. The next
/// one waits for a checkpoint to free it, and the checkpoint has no room for two copies of a node.
#[test]
fn a_checkpoint_does_not_wait_for_a_pass_that_waits_for_the_ring() {
    let lab = Lab::new();
    lab.within_an_hour(settings(), |cache, a| async move {
        fill(&cache, a, 3_500, 1, 1).await;
        let all = fill_ring(&cache);
        suppose_more_than_twice_fit(&cache);
        let (began, before) = (cache.core().rt().now(), cache.status().index.checkpoints);
        cache.publish_all().await.expect("published");
        let took = cache.core().rt().now().since(began);
        assert!(took < Duration::from_secs(1), "{took:?}");
        assert!(cache.status().index.checkpoints > before);
        drop(all);
    });
    let report = lab.check();
    assert!(report.is_clean(), "{report:?}");
}

/// One dirty block is bad: a pass has nothing else to carry, and frees nothing.
#[test]
fn a_checkpoint_waits_for_several_passes_that_free_nothing_and_no_more() {
    let lab = Lab::new();
    let (world, device) = (lab.world.clone(), lab.device);
    lab.within_an_hour(settings(), move |cache, a| async move {
        cache.publish_all().await.expect("published");
        fill(&cache, a, 3_500, 1, 1).await;
        let offset = cache.core().offset_of(place_of(&cache, a, 3_500).await);
        assert!(world.inject(device, Fault::ReadError { offset, len: 512 }));
        suppose_more_than_twice_fit(&cache);
        let before = cache.core().levels().passes();
        cache.flows().checkpointer.checkpoint_now().await.expect("each node once");
        let passes = cache.core().levels().passes() - before;
        assert!((PASSES + 1..=PASSES + 3).contains(&passes), "{passes}");
    });
}

/// The ring is full, and there is no room even for one copy: all that wait are told.
#[test]
fn a_pass_does_not_wait_for_a_checkpoint_that_cannot_come() {
    let lab = Lab::new();
    lab.within_an_hour(settings(), |cache, a| async move {
        fill(&cache, a, 3_500, 1, 1).await;
        let (all, due) = (fill_ring(&cache), 1 << 20);
        cache.core().state_mut().suppose_nodes(due);
        let e = cache.publish_all().await.expect_err("there is no room");
        assert!(e.context.contains("its journal is full"), "{e}");
        cache.core().state_mut().took_for_nodes(due);
        drop(all);
        cache.publish_all().await.expect("published");
    });
    let report = lab.check();
    assert!(report.is_clean(), "{report:?}");
}
