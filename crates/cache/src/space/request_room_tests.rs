//! Writers that wait for buckets, in simulation.

use base::{Duration, VolumeId};
use rt::FileId;
use sim::{Fault, World};

use super::*;
use crate::policy::writer_delay::PASSES;
use crate::store::buckets::census::Stream;
use crate::testkit::{Lab, fill, settings};
use crate::{Cache, Settings};

#[test]
fn buckets_whose_entries_are_durable_become_free_when_a_writer_needs_them() {
    Lab::new().within_an_hour(settings(), |cache, a| async move {
        cache.publish_all().await.unwrap();
        cache.flush().await.unwrap();
        {
            // All that writers may have is empty, and waits for entries that are durable.
            let mut st = cache.core().state_mut();
            let st = &mut *st;
            while st.buckets.reuse().free() > cache.core().layout().node_reserve()
                || st.buckets.left_open(Stream::Writes) > 0
            {
                let (addr, ..) = st.buckets.append(Stream::Writes, u32::MAX).unwrap();
                st.buckets.unpin(addr);
            }
            assert!(st.buckets.reuse().pending() > 2 * cache.core().layout().free_band());
        }
        fill(&cache, a, 3_500, 16, 1).await;
    });
}

#[test]
fn a_checkpoint_frees_no_bucket_by_records_that_are_not_in_the_ring() {
    // The journal writes no entry by itself meanwhile.
    let journal_interval = Duration::from_secs(3600);
    let lazy = Settings { journal_interval, ..settings() };
    Lab::new().within_an_hour(lazy, |cache, a| async move {
        // None is due soon.
        cache.flows().checkpointer.checkpoint_now().await.unwrap();
        let bucket = u64::from(cache.core().layout().bucket_blocks);
        let pending = |cache: &crate::Cache| cache.core().state().buckets.reuse().pending();
        // Blocks of several buckets, overwritten: the journal has it in memory, in an entry that
        // may be torn.
        for byte in [1, 2] {
            fill(&cache, a, 3_500, 8 * bucket, byte).await;
        }
        let before = pending(&cache);
        assert!(before >= 2, "{before} buckets wait for the journal");
        cache.flows().checkpointer.checkpoint_now().await.unwrap();
        // It has the newer blocks. But replay would apply the older ones first, if their entry
        // alone got to the device.
        assert!(pending(&cache) >= before, "{} of {before} buckets still wait", pending(&cache));
        cache.flush().await.unwrap();
        assert!(pending(&cache) < before);
    });
}

#[test]
fn writers_of_a_cache_that_wears_out_do_not_wait_for_ever() {
    Lab::new().within_an_hour(settings(), |cache, a| async move {
        cache.publish_all().await.unwrap();
        {
            // All have had an error: what is emptied is not used again.
            let mut st = cache.core().state_mut();
            let blocks = cache.core().layout().bucket_blocks;
            for bucket in 0..st.buckets.geometry().count() {
                st.buckets.condemn(base::CacheAddr(u64::from(bucket) * u64::from(blocks)));
            }
        }
        let mut written = 0;
        let e = loop {
            let data = cache.pool().bufs().zeroed(16 * base::BLOCK).freeze();
            match cache.write(a, base::Lba(written % 4_000), &data).await {
                Ok(()) => written += 16,
                Err(e) => break e,
            }
            if written % 160 == 0 {
                cache.publish_all().await.unwrap();
            }
        };
        assert!(e.context.contains("no bucket can be written to any more"), "{e}");
        // It has nothing that the pool lacks.
        assert!(written > 0 && cache.is_aside());
    });
}

/// The ring is full, a checkpoint has no room for its nodes, and the pool is gone: no pass will
/// make any. Those that wait for the ring are told so, like those that wait for nodes.
#[test]
fn who_waits_for_a_checkpoint_that_cannot_come_is_told_why() {
    let lab = Lab::new();
    let (world, disk) = (lab.world.clone(), lab.files()[0].file);
    lab.within_an_hour(settings(), move |cache, a| async move {
        fill(&cache, a, 3500, 1, 1).await;
        let ring = cache.core().state().journal().room().clone();
        let all: Vec<_> = std::iter::from_fn(|| ring.try_take(Share::Clients, 1)).collect();
        world.inject(disk, Fault::Dead);
        let nodes = 1 << 20;
        cache.core().state_mut().suppose_nodes(nodes);
        cache.core().wakes().checkpoint.notify();
        let refused = cache.flows().room.ring_room(Share::Clients, 1).await.err().unwrap();
        assert!(refused.context.contains("write-back fails"), "{refused}");
        cache.core().state_mut().took_for_nodes(nodes);
        drop(all);
        world.revive(disk);
        drop(cache.flows().room.ring_room(Share::Clients, 1).await.unwrap());
    });
}

/// Every bucket is worn, and one dirty block can neither be read nor be written back: there will be
/// no room. The first writer learns it after several passes, and the others, who wait one behind
/// the other, with it.
#[test]
fn writers_that_wait_one_behind_the_other_are_refused_together() {
    let lab = Lab::new();
    let device = (lab.world.clone(), lab.device);
    lab.within_an_hour(settings(), move |cache, a| async move {
        wear(&cache, a, device, 0).await;
        let rt = cache.core().rt().clone();
        let writers: Vec<_> = (0..8)
            .map(|_| {
                let cache = cache.clone();
                rt.spawn(async move {
                    let refused = cache.flows().room.take(Stream::Writes, 1).await.err().unwrap();
                    (cache.core().levels().passes(), refused)
                })
            })
            .collect();
        let mut passes = Vec::new();
        for writer in writers {
            let (pass, refused) = writer.await.unwrap();
            assert!(refused.context.contains("bad_blocks"), "{refused}");
            passes.push(pass);
        }
        passes.sort_unstable();
        assert!(passes[0] > PASSES && passes[7] <= passes[0] + 1, "refused at {passes:?}");
        // The test took the buckets that only nodes may take, which no writer can: a checkpoint has
        // no room for its nodes, and a close would wait for ever.
        cache.flows().failures.fail(&refused_by_test());
    });
}

/// There is room for two buckets and no more, but for single blocks a moment ago. The first large
/// write learns it after several passes, gives back what it had, and those that come then need no
/// wait. A smaller one fits.
#[test]
fn a_large_write_that_waited_in_vain_spares_others_the_wait() {
    let lab = Lab::new();
    let device = (lab.world.clone(), lab.device);
    lab.within_an_hour(settings(), move |cache, a| async move {
        wear(&cache, a, device, cache.core().levels().node_reserve() + 6).await;
        let write = async |blocks: u32| {
            let before = cache.core().levels().passes();
            let taken = cache.flows().room.take(Stream::Writes, blocks).await;
            (cache.core().levels().passes() - before, taken)
        };
        let (passes, taken) = write(200).await;
        let refused = taken.err().expect("there is no such room");
        assert!(passes > PASSES && refused.context.contains("bad_blocks"), "{passes}, {refused}");
        for blocks in [190, 180, 170, 160] {
            let before = cache.core().levels().passes();
            cache.core().rt().sleep(std::time::Duration::from_secs(1)).await;
            // A pass has nothing to carry but the bad block, however short room is.
            let in_vain = cache.core().levels().passes() - before;
            assert!((1..=8).contains(&in_vain), "{in_vain} passes in a second");
            let (passes, small) = write(1).await;
            assert!(passes <= 1 && small.is_ok(), "{passes} passes for a block");

            let (passes, taken) = write(blocks).await;
            assert!(passes <= 1 && taken.is_err(), "{passes} passes for {blocks} blocks");
        }
        cache.flows().failures.fail(&refused_by_test());
    });
}

/// One dirty block is bad, and all buckets are worn but `spare`.
async fn wear(cache: &Cache, a: VolumeId, (world, device): (World, FileId), spare: u32) {
    cache.publish_all().await.unwrap();
    fill(cache, a, 3_500, 1, 1).await;
    let found = cache
        .core()
        .resident(queue::Class::Commit, |st| {
            st.index.overlapping(&st.buckets, a, base::BlockRange::of(base::Lba(3_500), 1), 1)
        })
        .await
        .unwrap();
    let crate::store::key::Body::Data { addr, .. } = found[0].body else { panic!() };
    let offset = cache.core().offset_of(addr);
    assert!(world.inject(device, Fault::ReadError { offset, len: 512 }));
    let mut st = cache.core().state_mut();
    let blocks = u64::from(cache.core().layout().bucket_blocks);
    for bucket in u64::from(spare)..u64::from(st.buckets.geometry().count()) {
        st.buckets.condemn(base::CacheAddr(bucket * blocks));
    }
    while st.buckets.reuse().free() > 0 || st.buckets.left_open(Stream::Writes) > 0 {
        let Some((addr, ..)) = st.buckets.append(Stream::Writes, u32::MAX) else { break };
        st.buckets.unpin(addr);
    }
}

fn refused_by_test() -> base::StorageError {
    base::StorageError::new(base::ErrorKind::Io, "the test is over")
}
