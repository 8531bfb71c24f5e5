//! A pool with a cache in simulation, and ways to damage the cache that no device has.

use std::future::Future;
use std::time::Duration;

use base::{
    BLOCK, BucketGen, CacheAddr, Generation, Lba, PoolAddr, Result, SECTOR, SliceList,
    StorageError, VolumeId,
};
use cache::raw::{Body, IndexKey, Layout, PageSlots, choose_slot, layout_of};
use cache::{Cache, Settings};
use format::cache::bucket::{BucketRecord, encode_buckets};
use format::cache::index::index_key;
use format::cache::superblock::{CacheSuperblock, SLOTS};
use format::node::{NodePage, NodePtr, NodeRef, decode};
use format::page::{PageId, PageKind, payload_mut, seal_page};
use format::tree::INDEX_TREE;
use offline::CheckOptions;
use offline::cache::check::{CacheReport, check};
use offline::cache::repair::repair;
use offline::pool::check::Image;
use offline::repair::Outcome;
use rt::{Op, Order, Rt};
use sim::Fault;
use testkit::{CachedWorld, MIB, check_pool};

const POOL_BYTES: u64 = 48 * MIB;
const CACHE_BYTES: u64 = 16 * MIB;
const ORDER: Order = Order::Seeded(3);

/// A pool and its cache, which are not open.
pub struct Lab(CachedWorld);

pub fn settings() -> Settings {
    let hour = Duration::from_secs(3600);
    Settings {
        max_lag: hour,
        journal_interval: hour,
        dirty_target_percent: 60,
        ..Settings::default()
    }
}

/// Writes blocks: of each the next byte.
pub async fn fill(cache: &Cache, volume: VolumeId, lba: u64, blocks: u64, byte: u8) {
    let mut buf = cache.pool().bufs().take(blocks as usize * BLOCK);
    buf.chunks_exact_mut(BLOCK).enumerate().for_each(|(i, b)| b.fill(byte.wrapping_add(i as u8)));
    cache.write(volume, Lba(lba), &buf.freeze()).await.expect("write");
}

impl Lab {
    /// Volumes "a" and "b", and one that was deleted. Of "a", blocks below 1200 are written back,
    /// those from 2000 to 2900 are dirty, as every third is.
    pub fn new() -> Lab {
        let lab = Lab(CachedWorld::new(7, POOL_BYTES, CACHE_BYTES));
        lab.run(|rt, devices| async move {
            let pool = devices.create_pool(&rt, pool::Settings::default()).await;
            pool.create_volume("a", 4096 * BLOCK as u64, 4096).await.expect("volume");
            pool.create_volume("b", 100 * BLOCK as u64, 4096).await.expect("volume");
            let gone = pool.create_volume("gone", MIB, 4096).await.expect("volume");
            pool.delete_volume(gone).await.expect("delete");
            devices.create_cache(&rt, &pool, [3; 16]).await;
            pool.close().await.expect("close");
        });
        lab.with(settings(), |cache, a| async move {
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

    pub fn run<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        f: impl FnOnce(Rt, CachedWorld) -> F,
    ) -> T {
        self.0.run(ORDER, f)
    }

    /// Opens the cache, does something with it and the volume "a", and closes it.
    pub fn with<F: Future<Output = ()> + 'static>(
        &self,
        settings: Settings,
        f: impl FnOnce(Cache, VolumeId) -> F + 'static,
    ) {
        self.run(|rt, devices| async move {
            let pool = devices.open_pool(&rt, pool::Settings::default()).await;
            let cache = devices.open_cache(&rt, &pool, settings).await;
            let a = pool.find_volume("a").expect("there").id;
            f(cache.clone(), a).await;
            cache.close().await.expect("close");
            pool.close().await.expect("close");
        });
    }

    /// Opens the cache, does something with it and the volume "a", and cuts the power.
    pub fn power_cut<F: Future<Output = ()> + 'static>(
        &self,
        f: impl FnOnce(Cache, VolumeId) -> F + 'static,
    ) {
        let rt = Rt::new(self.0.world.backend(), ORDER, 1024);
        let (r, devices) = (rt.clone(), self.0.clone());
        rt.block_on(async move {
            let pool = devices.open_pool(&r, pool::Settings::default()).await;
            let cache = devices.open_cache(&r, &pool, settings()).await;
            let a = pool.find_volume("a").expect("there").id;
            f(cache, a).await;
        })
        .expect("not killed");
        self.0.world.power_cut();
        rt.kill();
    }

    /// Some writes and flushes, and the power is cut.
    pub fn crash(&self) {
        self.power_cut(|cache, a| async move {
            for i in 0..50 {
                fill(&cache, a, 2000 + i * 5, 3, i as u8).await;
                if i % 10 == 0 {
                    cache.flush().await.expect("flush");
                }
            }
        });
    }

    /// The error with which an open of the cache fails.
    pub fn refusal(&self) -> StorageError {
        self.run(|rt, devices| async move {
            let pool = devices.open_pool(&rt, pool::Settings::default()).await;
            let opened: Result<Cache> = Cache::open(&rt, &devices.file, &pool, settings()).await;
            opened.err().expect("it was opened")
        })
    }

    pub fn image(&self) -> Image {
        let check = async move |rt: Rt, c: CachedWorld| check_pool(&rt, vec![c.disk]).await.image;
        self.run(check)
    }

    pub fn check_with(&self, image: Image, data: bool) -> CacheReport {
        let before = self.contents();
        let report = self.run(move |rt, devices| async move {
            let options = CheckOptions { data, ..CheckOptions::default() };
            check(&rt, &devices.file, &image, &options, &mut |_| {}).await
        });
        assert!(self.contents() == before, "a check wrote");
        report
    }

    /// Repairs the cache, or says what would be done.
    pub fn repair(&self, dry_run: bool) -> Outcome<CacheReport> {
        let (before, image) = (self.contents(), self.image());
        let outcome = self.run(move |rt, c| async move {
            let (disks, options) = (vec![c.disk.clone()], CheckOptions::default());
            repair(&rt, &c.file, &image, disks, &options, dry_run, &mut |_| ()).await
        });
        assert!(!dry_run || self.contents() == before, "a dry run wrote");
        outcome.expect("repaired")
    }

    pub fn check(&self) -> CacheReport {
        self.check_with(self.image(), true)
    }

    /// All bytes of the cache device.
    pub fn contents(&self) -> Vec<u8> {
        self.0.world.contents(self.0.file.file, 0, CACHE_BYTES as usize)
    }

    pub fn strike(&self, fault: Fault) {
        assert!(self.0.world.inject(self.0.file.file, fault));
    }

    pub fn rot(&self, offset: u64) {
        self.strike(Fault::BitRot { offset, len: SECTOR as u64 });
    }

    pub fn block(&self, offset: u64) -> Vec<u8> {
        self.0.world.contents(self.0.file.file, offset, BLOCK)
    }

    pub fn put(&self, offset: u64, bytes: &[u8]) {
        let bytes = bytes.to_vec();
        self.run(move |rt, devices| async move {
            let data = SliceList::from_iter([rt.bufs().copy_of(&bytes).freeze()]);
            let write = Op::Write { file: devices.file.file, offset, data, fua: true };
            rt.op(write).await.result.expect("write");
        });
    }

    pub fn superblock(&self) -> CacheSuperblock {
        let slots = (0..SLOTS).filter_map(|slot| {
            CacheSuperblock::decode(&self.block(CacheSuperblock::offset_of(slot))).ok()
        });
        slots.max_by_key(|sb| sb.sequence).expect("one of them")
    }

    /// Writes another superblock after the newest.
    pub fn put_superblock(&self, change: impl FnOnce(&mut CacheSuperblock)) {
        let mut sb = self.superblock();
        sb.sequence += 1;
        change(&mut sb);
        let mut block = vec![0; BLOCK];
        sb.encode(&mut block);
        self.put(CacheSuperblock::offset_of(sb.sequence), &block);
    }

    pub fn layout(&self) -> Layout {
        layout_of(&self.superblock(), &self.0.file).expect("sound")
    }

    /// A page of the bucket table, of which there is one.
    pub fn records(&self) -> (Generation, Vec<BucketRecord>) {
        let (layout, sb) = (self.layout(), self.superblock());
        let bufs = base::BufPool::new(0);
        let read = |slot| Some(bufs.copy_of(&self.block(layout.page_offset(0, slot))));
        let slots: PageSlots = [read(0), read(1)];
        let found = choose_slot(&slots, &layout, sb.uuid, 0, sb.generation).expect("whole");
        (found.generation, found.records)
    }

    pub fn put_records(&self, generation: Generation, records: &[BucketRecord]) {
        let (layout, pool_uuid) = (self.layout(), self.superblock().uuid);
        for slot in 0..2 {
            let mut block = vec![0; BLOCK];
            encode_buckets(records, payload_mut(&mut block));
            let id = PageId { pool_uuid, kind: PageKind::Buckets, page: 0, slot };
            seal_page(&id, generation, &mut block);
            self.put(layout.page_offset(0, slot), &block);
        }
    }

    /// Where the two copies of a node stand.
    pub fn node_places(&self, addr: PoolAddr) -> [u64; 2] {
        let (layout, (_, records)) = (self.layout(), self.records());
        let blocks = u64::from(layout.bucket_blocks);
        let twin = records[(addr.0 / blocks) as usize].twin.expect("it stands twice");
        let copy = u64::from(twin.0) * blocks + addr.0 % blocks;
        [addr.0, copy].map(|at| layout.offset_of(CacheAddr(at)))
    }

    fn node(&self, r: &NodeRef) -> NodePage {
        let offset = self.layout().offset_of(CacheAddr(r.ptr.addr.0));
        decode(&self.block(offset), r).expect("whole")
    }

    /// Writes a node in place of the one at `r`, of another generation perhaps.
    fn put_node(&self, r: &NodeRef, page: &NodePage, generation: Generation) -> NodePtr {
        let mut block = vec![0; BLOCK];
        let crc = page.seal(INDEX_TREE, generation, r.ptr.addr, &mut block);
        self.node_places(r.ptr.addr).iter().for_each(|at| self.put(*at, &block));
        NodePtr { crc, generation, ..r.ptr }
    }

    /// The root of the index.
    pub fn root(&self) -> (NodeRef, NodePage) {
        let root = self.superblock().root.expect("not empty");
        let r = NodeRef { ptr: root.ptr, level: root.height - 1, tree: INDEX_TREE };
        (r, self.node(&r))
    }

    pub fn put_root(&self, page: &NodePage, generation: Generation) {
        let ptr = self.put_node(&self.root().0, page, generation);
        self.put_superblock(|sb| sb.root.as_mut().expect("not empty").ptr = ptr);
    }

    /// The leaves of the index, which are below its root.
    fn leaves(&self) -> Vec<(NodeRef, NodePage)> {
        let (r, root) = self.root();
        assert_eq!(root.level(), 1);
        let leaf = |i| {
            let r = NodeRef { ptr: root.pointer(i), level: 0, ..r };
            (r, self.node(&r))
        };
        (0..root.count()).map(leaf).collect()
    }

    /// Enters a record into the index of the checkpoint, without a word to the buckets, and
    /// rewrites all that is above it, so that all checksums are right. The leaf must have room; the
    /// one with volume "b" has.
    pub fn craft(&self, volume: u32, lba: u64, value: Vec<u8>) {
        let key = index_key(VolumeId(volume), Lba(lba));
        let (above, mut root) = self.root();
        let child = root.child_of(&key);
        let (r, mut leaf) = self.leaves().swap_remove(child);
        match leaf.search(&key) {
            Ok(at) => leaf.replace(at, &value).expect("room"),
            Err(at) => leaf.insert(at, &key, &value).expect("room"),
        }
        root.set_pointer(child, &self.put_node(&r, &leaf, r.ptr.generation));
        self.put_root(&root, above.ptr.generation);
    }

    /// The extents of "a" and "b" as the checkpoint has them.
    pub fn extents(&self) -> Vec<IndexKey> {
        let layout = self.layout();
        let key = |leaf: &NodePage, i| {
            IndexKey::decode_within(|a, n| layout.contains(a, n), &leaf.key(i), leaf.value(i))
        };
        let of = |(_, leaf): (_, NodePage)| -> Vec<_> {
            (0..leaf.count()).filter_map(|i| key(&leaf, i)).collect()
        };
        self.leaves().into_iter().flat_map(of).collect()
    }

    pub fn first(&self, dirty: bool) -> (IndexKey, CacheAddr, BucketGen) {
        let published = self.image().published;
        let found = self.extents().into_iter().find_map(|e| {
            let Body::Data { addr, generation, .. } = e.body else { return None };
            let one = e.end() == e.lba.0 + 1;
            (one && e.written.is_some_and(|w| w > published) == dirty)
                .then_some((e, addr, generation))
        });
        found.expect("there are both")
    }
}
