//! A pool of one disk with a cache in front of it.

use std::future::Future;

use cache::{Cache, CacheFile};
use pool::{DeviceFile, Pool};
use rt::{Order, Rt};
use sim::{DiskModel, World};

use crate::setup::{MIB, boot, create_pool, disk};

/// A disk for a pool and a device for a cache. Clones are the same.
#[derive(Clone)]
pub struct CachedWorld {
    /// Where the devices are.
    pub world: World,
    /// The pool's disk.
    pub disk: DeviceFile,
    /// The cache's device.
    pub file: CacheFile,
}

impl CachedWorld {
    /// Adds devices of so many bytes to a new world. There is nothing on them.
    pub fn new(seed: u64, disk_bytes: u64, cache_bytes: u64) -> CachedWorld {
        let world = World::new(seed);
        let disk = disk(&world, "disk", DiskModel::nvme(disk_bytes));
        let file = world.add_disk(DiskModel::nvme(cache_bytes));
        let file = CacheFile { path: "cache".into(), file, size_bytes: cache_bytes };
        CachedWorld { world, disk, file }
    }

    /// Boots, and runs `body` with the devices.
    pub fn run<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        order: Order,
        body: impl FnOnce(Rt, CachedWorld) -> F,
    ) -> T {
        boot(self.world.backend(), order, |rt| body(rt, self.clone())).expect("alive")
    }

    /// Creates a pool of one copy, and opens it.
    pub async fn create_pool(&self, rt: &Rt, settings: pool::Settings) -> Pool {
        create_pool(rt, std::slice::from_ref(&self.disk), 1).await;
        self.open_pool(rt, settings).await
    }

    /// Opens the pool.
    pub async fn open_pool(&self, rt: &Rt, settings: pool::Settings) -> Pool {
        Pool::open(rt, vec![self.disk.clone()], settings).await.expect("open").0
    }

    /// Creates a cache with small buckets and the smallest journal.
    pub async fn create_cache(&self, rt: &Rt, pool: &Pool, uuid: [u8; 16]) {
        let options = cache::CreateOptions { bucket_bytes: 64 << 10, journal_bytes: Some(MIB) };
        cache::create(rt, &self.file, pool, &options, uuid).await.expect("create the cache");
    }

    /// Opens the cache.
    pub async fn open_cache(&self, rt: &Rt, pool: &Pool, settings: cache::Settings) -> Cache {
        Cache::open(rt, &self.file, pool, settings).await.expect("open the cache")
    }
}
