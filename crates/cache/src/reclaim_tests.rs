//! Writers that wait for buckets, in simulation.

use std::cell::Cell;
use std::rc::Rc;

use base::{Duration, VolumeId};
use pool::Pool;

use crate::Cache;
use crate::buckets::Stream;
use crate::check::tests::{Lab, fill, settings};

/// Runs `test` with the open cache and its volume of 4096 blocks, for an hour; it must end by then.
fn within_an_hour<F: Future<Output = ()> + 'static>(test: impl FnOnce(Cache, VolumeId) -> F + 'static) {
    let lab = Lab::new();
    let (files, file) = (lab.files(), lab.file());
    lab.boot(move |rt| async move {
        let (pool, _) = Pool::open(&rt, files, pool::Settings::default()).await.unwrap();
        let cache = Cache::open(&rt, &file, &pool, settings()).await.unwrap();
        let a = pool.find_volume("a").unwrap().id;
        let ended = Rc::new(Cell::new(false));
        let (test, mark) = (test(cache.clone(), a), ended.clone());
        rt.spawn(async move {
            test.await;
            mark.set(true);
        });
        rt.sleep(Duration::from_secs(3600)).await;
        assert!(ended.get(), "it hangs: {:?}", cache.status());
        cache.close().await.ok();
        pool.close().await.unwrap();
    });
}

#[test]
fn buckets_whose_entries_are_durable_become_free_when_a_writer_needs_them() {
    within_an_hour(|cache, a| async move {
        cache.publish_all().await.unwrap();
        cache.flush().await.unwrap();
        {
            // All that writers may have is empty, and waits for entries that are durable.
            let mut st = cache.state_mut();
            let st = &mut *st;
            let journal = st.journal.durable_records();
            while st.buckets.free() > cache.0.layout.node_reserve() || st.buckets.has_open(Stream::Writes) {
                let (addr, ..) = st.buckets.append(Stream::Writes, u32::MAX, journal).unwrap();
                st.buckets.unpin(addr, journal);
            }
            assert!(st.buckets.pending() > cache.0.layout.free_target());
        }
        fill(&cache, a, 3_500, 16, 1).await;
    });
}

#[test]
fn writers_of_a_cache_that_wears_out_do_not_wait_for_ever() {
    within_an_hour(|cache, a| async move {
        cache.publish_all().await.unwrap();
        {
            // All have had an error: what is emptied is not used again.
            let mut st = cache.state_mut();
            let blocks = cache.0.layout.bucket_blocks;
            for bucket in 0..st.buckets.count() {
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
