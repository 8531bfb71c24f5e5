//! What the tests of this crate share: a pool with a cache in simulation.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use ::testkit::{check_cache, check_pool};
use base::{BLOCK, CacheAddr, Lba, Result, SECTOR, Slice, VolumeId};
use format::cache::superblock::CacheSuperblock;
use offline::cache::check::CacheReport;
use pool::{CacheJournal, CacheMark, DeviceFile, JournalDurable, Link, Pool};
use queue::Class;
use rt::{FileId, Order, Rt};
use sim::{DiskModel, Fault, World};

use crate::device::layout::{Layout, layout_of};
use crate::store::state::State;
use crate::{BlockPart, Cache, CacheFile, CreateOptions, Patch, Settings};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const POOL_BYTES: u64 = 48 * MIB;
pub(crate) const CACHE_BYTES: u64 = 16 * MIB;
/// Blocks of volume "a".
pub(crate) const BLOCKS: u64 = 4096;

/// For plans: a value of this type may go to another thread.
pub(crate) fn plain<T: Send>() {}

/// A world with a pool and its cache, which are not open.
pub(crate) struct Lab {
    pub world: World,
    pub disk: FileId,
    pub device: FileId,
}

pub(crate) fn settings() -> Settings {
    let hour = Duration::from_secs(3600);
    Settings {
        max_lag: hour,
        journal_interval: hour,
        dirty_target_percent: 60,
        ..Settings::default()
    }
}

/// The pool and the cache of a lab, and its volume "a".
pub(crate) async fn open(
    rt: &Rt,
    files: Vec<DeviceFile>,
    file: &CacheFile,
    settings: Settings,
) -> (Pool, Cache, VolumeId) {
    let (pool, _) = Pool::open(rt, files, pool::Settings::default()).await.expect("open");
    let cache = Cache::open(rt, file, &pool, settings).await.expect("open the cache");
    let a = pool.find_volume("a").expect("there").id;
    (pool, cache, a)
}

/// Where a block of a volume is in the cache.
pub(crate) async fn place_of(cache: &Cache, volume: VolumeId, lba: u64) -> CacheAddr {
    let step = |st: &mut State| Ok(st.index.place_of(&st.buckets, volume, Lba(lba)));
    cache.core().resident(Class::Foreground, step).await.expect("look").expect("there").0
}

pub(crate) async fn fill(cache: &Cache, volume: VolumeId, lba: u64, blocks: u64, byte: u8) {
    let mut buf = cache.pool().bufs().take(blocks as usize * BLOCK);
    buf.chunks_exact_mut(BLOCK).enumerate().for_each(|(i, b)| b.fill(byte.wrapping_add(i as u8)));
    cache.write(volume, Lba(lba), &buf.freeze()).await.expect("write");
}

/// Writes every other block of "a" below 1200 in the pool alone: those that the cache does not
/// have.
pub(crate) async fn fill_pool_alone(pool: &Pool, a: VolumeId) {
    let block = pool.bufs().zeroed(BLOCK).freeze();
    for i in 0..600 {
        pool.write(a, Lba(1 + i * 2), &block).await.expect("write");
    }
    pool.commit().await.expect("commit");
}

/// Asked by each commit of the pool in place of a cache, for as long as it is held.
pub(crate) struct CommitHook<F>(F);

/// Writes `data` at byte `at` of a block; returns what is known of the block then.
pub(crate) async fn write_part(
    cache: &Cache,
    block: (VolumeId, Lba),
    at: usize,
    data: &Slice,
) -> Result<BlockPart> {
    cache.write_parts(block.0, block.1, &[Patch { at, data: data.clone() }], None).await
}

impl<F: Fn() -> Result<Option<CacheMark>> + 'static> CommitHook<F> {
    pub fn link(pool: &Pool, answer: F) -> Rc<dyn CacheJournal> {
        let asked: Rc<dyn CacheJournal> = Rc::new(CommitHook(answer));
        pool.cache_link().link_journal(Link::Live(Rc::downgrade(&asked)));
        asked
    }
}

impl<F: Fn() -> Result<Option<CacheMark>>> CacheJournal for CommitHook<F> {
    fn make_durable(self: Rc<Self>) -> JournalDurable {
        let answer = (self.0)();
        Box::pin(async move { answer })
    }
}

impl Lab {
    /// Volumes "a" and "b", and one that was deleted. Of "a", blocks below 1200 are written back,
    /// those from 2000 to 2900 are dirty, as every third is.
    pub fn new() -> Lab {
        let world = World::new(7);
        let disk = world.add_disk(DiskModel::nvme(POOL_BYTES));
        let device = world.add_disk(DiskModel::nvme(CACHE_BYTES));
        let lab = Lab { world, disk, device };
        let (files, file) = (lab.files(), lab.file());
        lab.boot(move |rt| async move {
            let options =
                pool::CreateOptions { name: "tank".into(), copies: 1, group_bytes: Some(MIB) };
            pool::create(&rt, &files, &options, &[[1; 16], [2; 16]]).await.expect("create");
            let (pool, _) = Pool::open(&rt, files, pool::Settings::default()).await.expect("open");
            pool.create_volume("a", BLOCKS * BLOCK as u64, 4096).await.expect("volume");
            pool.create_volume("b", 100 * BLOCK as u64, 4096).await.expect("volume");
            let gone = pool.create_volume("gone", MIB, 4096).await.expect("volume");
            pool.delete_volume(gone).await.expect("delete");
            let options = CreateOptions { bucket_bytes: 64 << 10, journal_bytes: Some(MIB) };
            crate::create(&rt, &file, &pool, &options, [3; 16]).await.expect("create the cache");
            pool.close().await.expect("close");
        });
        lab.with(|cache| async move {
            let a = cache.pool().find_volume("a").expect("there").id;
            let b = cache.pool().find_volume("b").expect("there").id;
            for i in 0..600 {
                fill(&cache, a, i * 2, 1, i as u8).await;
            }
            fill(&cache, b, 10, 70, 9).await;
            cache.publish_all().await.expect("published");
            for i in 0..300 {
                fill(&cache, a, 2000 + i * 3, 1 + i % 2, i as u8).await;
            }
            cache.discard(a, Lba(3000), Lba(3100)).await.expect("discard");
        });
        lab
    }

    pub fn files(&self) -> Vec<DeviceFile> {
        vec![DeviceFile { path: "disk".into(), file: self.disk, size_bytes: POOL_BYTES }]
    }

    pub fn file(&self) -> CacheFile {
        CacheFile { path: "cache".into(), file: self.device, size_bytes: CACHE_BYTES }
    }

    pub fn boot<T: 'static, F: Future<Output = T> + 'static>(&self, f: impl FnOnce(Rt) -> F) -> T {
        let rt = Rt::new(self.world.backend(), Order::Seeded(3), 1024);
        let out = rt.block_on(f(rt.clone())).expect("not killed");
        rt.kill();
        out
    }

    /// Runs `test` with the open cache and its volume of 4096 blocks, for an hour; it must end by
    /// then.
    pub fn within_an_hour<F: Future<Output = ()> + 'static>(
        &self,
        settings: Settings,
        test: impl FnOnce(Cache, VolumeId) -> F + 'static,
    ) {
        let (files, file) = (self.files(), self.file());
        self.boot(move |rt| async move {
            let (pool, cache, a) = open(&rt, files, &file, settings).await;
            let ended = Rc::new(Cell::new(false));
            let (test, mark) = (test(cache.clone(), a), ended.clone());
            rt.spawn(async move {
                test.await;
                mark.set(true);
            });
            for _ in 0..3600 {
                if !ended.get() {
                    rt.sleep(Duration::from_secs(1)).await;
                }
            }
            assert!(ended.get(), "it hangs: {:?}", cache.status());
            cache.close().await.ok();
            pool.close().await.unwrap();
        });
    }

    /// Opens the cache, does something with it, and closes it.
    pub fn with<F: Future<Output = ()> + 'static>(&self, f: impl FnOnce(Cache) -> F + 'static) {
        let (files, file) = (self.files(), self.file());
        self.boot(move |rt| async move {
            let (pool, cache, _) = open(&rt, files, &file, settings()).await;
            f(cache.clone()).await;
            cache.close().await.expect("close");
            pool.close().await.expect("close");
        });
    }

    /// Opens the cache, does something with it, and cuts the power.
    pub fn power_cut<F: Future<Output = ()> + 'static>(
        &self,
        f: impl FnOnce(Cache) -> F + 'static,
    ) {
        let (files, file) = (self.files(), self.file());
        let rt = Rt::new(self.world.backend(), Order::Seeded(3), 1024);
        let r = rt.clone();
        rt.block_on(async move {
            let (pool, _) = Pool::open(&r, files, pool::Settings::default()).await.expect("open");
            f(Cache::open(&r, &file, &pool, settings()).await.expect("open the cache")).await;
        })
        .expect("not killed");
        self.world.power_cut();
        rt.kill();
    }

    /// Checks pool and cache offline, their data too. What the check knows of this crate is the
    /// library as its users have it.
    pub fn check(&self) -> CacheReport {
        let (files, CacheFile { path, file, size_bytes }) = (self.files(), self.file());
        let file = offline::cache::CacheFile { path, file, size_bytes };
        self.boot(move |rt| async move {
            let image = check_pool(&rt, files).await.image;
            check_cache(&rt, &file, &image).await
        })
    }

    /// Damages a sector of the cache device.
    pub fn rot(&self, offset: u64) {
        assert!(self.world.inject(self.device, Fault::BitRot { offset, len: SECTOR as u64 }));
    }

    /// The newest superblock of the cache.
    pub fn superblock(&self) -> CacheSuperblock {
        let slots = (0..4).filter_map(|slot| {
            let offset = CacheSuperblock::offset_of(slot);
            CacheSuperblock::decode(&self.world.contents(self.device, offset, BLOCK)).ok()
        });
        slots.max_by_key(|sb| sb.sequence).expect("one of them")
    }

    pub fn layout(&self) -> Layout {
        layout_of(&self.superblock(), &self.file()).expect("sound")
    }
}
