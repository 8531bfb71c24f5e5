//! The end of a pool and its cache.

use volume::Volumes;

use crate::error::{CommandError, Result};
use crate::serve::signals::{Ending, ShutdownStage};

/// Makes everything durable, and closes the cache and then the pool.
pub(super) async fn close(volumes: &Volumes, ending: &Ending) -> Result<()> {
    ending.waits_for(ShutdownStage::Cache);
    let mut outcome = Ok(());
    if let Some(cache) = volumes.cache() {
        match cache.close().await {
            // The pool goes on alone, and has what was written since.
            Err(e) if cache.is_aside() => {
                tracing::warn!("closing the cache, which is out of use: {e}")
            }
            // The pool has what was written by volumes that do not write back, and knows what it
            // may not commit.
            closed => {
                outcome = closed.map_err(|e| CommandError::failed("closing the cache failed", e))
            }
        }
    }
    ending.waits_for(ShutdownStage::Pool);
    let last = volumes.pool().close().await;
    outcome.and(last.map_err(|e| CommandError::failed("the last commit failed", e)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cache::{Cache, CacheFile};
    use pool::{CreateOptions, DeviceFile, Pool};
    use rt::{Order, Rt};
    use sim::{DiskModel, Fault};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A pool with a cache whose device dies, with something dirty in it or not, and then writes
    /// that are not flushed. Returns whether it was closed well, and what is there in the pool
    /// afterwards.
    fn close_after_the_cache_died(dirty: bool) -> (bool, Option<u8>) {
        let world = sim::World::new(3);
        let disk = |bytes| (world.add_disk(DiskModel::nvme(bytes)), bytes);
        let ((file, size_bytes), (on, cache_bytes)) = (disk(96 * MIB), disk(16 * MIB));
        let disk = DeviceFile { path: "disk".into(), file, size_bytes };
        let on_cache = CacheFile { path: "cache".into(), file: on, size_bytes: cache_bytes };
        let rt = Rt::new(world.backend(), Order::Seeded(3), 1024);
        let r = rt.clone();
        let out = rt.block_on(async move {
            let options = CreateOptions { name: "p".into(), copies: 1, group_bytes: Some(MIB) };
            pool::create(&r, std::slice::from_ref(&disk), &options, &[[1; 16], [2; 16]])
                .await
                .unwrap();
            let settings =
                pool::Settings { commit_interval: Duration::from_secs(3600), ..Default::default() };
            let (pool, _) = Pool::open(&r, vec![disk.clone()], settings.clone()).await.unwrap();
            let options = cache::CreateOptions { bucket_bytes: 64 << 10, journal_bytes: Some(MIB) };
            cache::create(&r, &on_cache, &pool, &options, [3; 16]).await.unwrap();
            let cache =
                Cache::open(&r, &on_cache, &pool, cache::Settings::default()).await.unwrap();
            let volumes = Volumes::with_cache(&pool, Some(cache.clone()));
            let v = volumes.create("v", 8 * MIB, 4096).await.unwrap();
            let block = |value: u8| {
                let mut buf = r.bufs().take(base::BLOCK);
                buf.fill(value);
                buf.freeze()
            };
            v.write(0, block(1)).await.unwrap();
            v.flush().await.unwrap();
            if !dirty {
                cache.publish_all().await.unwrap();
            }
            world.inject(on, Fault::Dead);
            let _ = v.write(0, block(2)).await;
            let _ = v.flush().await;
            assert_eq!(cache.is_aside(), !dirty);
            if !dirty {
                v.write(0, block(3)).await.unwrap();
            }
            let well = close(&volumes, &Ending::default()).await.is_ok();
            drop((v, volumes, cache));
            let opened = Pool::open(&r, vec![disk], settings).await;
            let Ok((pool, _)) = opened else { return (well, None) };
            let id = pool.find_volume("v").unwrap().id;
            let found = pool.read(id, base::Lba(0), 1).await.unwrap()[0][0];
            pool.close().await.unwrap();
            (well, Some(found))
        });
        rt.kill();
        out.unwrap()
    }

    #[test]
    fn a_pool_without_its_cache_commits_all_at_the_end() {
        assert_eq!(close_after_the_cache_died(false), (true, Some(3)));
    }

    #[test]
    fn a_cache_that_fails_with_something_in_it_is_an_error_at_the_end() {
        assert!(!close_after_the_cache_died(true).0);
    }
}
