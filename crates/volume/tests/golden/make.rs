//! How the golden image of this version is made, in simulation: the same bytes each time.
//!
//! Four lives of a pool of two copies with a cache before it. One device misses the third and
//! fourth; a spare waits. The power is cut while a pass carries a sealed cut to the pool, with a
//! journal behind the checkpoint. So nearly everything that the formats have is there at once.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use cache::{Cache, CacheFile};
use model::scrub::ScrubState;
use pool::{CacheMode, DeviceFile, Pool, ScrubOptions, VolumeLimit};
use rt::{Order, Rt};
use sim::{DiskModel, World};
use testkit::{MIB, boot, disk};
use volume::Volumes;

use crate::story::{About, Step, discard, write, zeroes};

const K: u64 = 1 << 10;
const DISK_BYTES: u64 = 24 * MIB;
const CACHE_BYTES: u64 = 8 * MIB;
const DISKS: [&str; 4] = ["disk0", "disk1", "disk2", "spare"];
const MODES: [CacheMode; 4] =
    [CacheMode::WriteBack, CacheMode::WriteThrough, CacheMode::WriteAround, CacheMode::None];
const HOUR: Duration = Duration::from_secs(3600);

const fn about(name: &'static str, sector: u32, mode: &'static str) -> About<'static> {
    let (iops, bytes_per_second, read_only) = (0, 0, false);
    About { name, size: 4 * MIB, sector, mode, iops, bytes_per_second, read_only }
}

const VOLUMES: [About<'static>; 5] = [
    about("data", 512, "writeback"),
    About { iops: 500, ..about("through", 512, "writethrough") },
    About { bytes_per_second: 50 * MIB, iops: 900, ..about("around", 4096, "writearound") },
    about("bare", 4096, "none"),
    About { read_only: true, ..about("locked", 512, "writeback") },
];

/// In the pool, before there is a cache.
fn base() -> Vec<Step<'static>> {
    vec![
        write("data", 0, 640 * K, 1),
        write("through", 0, 64 * K, 2),
        write("around", 64 * K, 64 * K, 3),
        write("bare", 8 * K, 128 * K, 4),
        write("locked", 0, 48 * K, 5),
        write("data", 512, 1024, 6),
        discard("data", 100 * K, 60 * K),
        write("data", 3 * MIB, 32 * K, 7),
    ]
}

/// In the cache, and published.
fn published() -> Vec<Step<'static>> {
    vec![
        write("data", 16 * K, 48 * K, 8),
        write("data", 200 * K + 512, 3 * 512, 9),
        write("locked", 4096, 8192, 10),
        zeroes("data", 300 * K, 40 * K),
        write("through", 32 * K, 16 * K, 11),
        write("around", 96 * K, 4096, 12),
    ]
}

/// Dirty, and part of the checkpoint.
fn dirty() -> Vec<Step<'static>> {
    vec![
        write("data", 24 * K, 24 * K, 13),
        write("data", 500 * K + 1024, 512, 14),
        write("data", 504 * K, 6 * 512, 15),
        discard("data", 400 * K, 32 * K),
        zeroes("data", 450 * K + 512, 3 * 4096),
        write("locked", 40 * K, 4096, 16),
    ]
}

/// A stream, and parts of blocks over it.
fn stream(from: u64, tag: u8) -> Vec<Step<'static>> {
    let large = (0..4).map(|i| write("data", from + i * 128 * K, 128 * K, tag));
    let parts = [
        write("data", from + 260 * K + 512, 512, tag + 1),
        write("data", from + 300 * K + 100, 700, tag + 2),
        write("data", from + 320 * K, 4096, tag + 3),
        discard("data", from + 340 * K, 4096),
    ];
    large.chain(parts).collect()
}

/// In the journal alone, behind the checkpoint.
fn journaled() -> Vec<Step<'static>> {
    vec![
        write("data", 28 * K, 8 * K, 30),
        write("data", 501 * K, 512, 31),
        write("data", 600 * K + 512, 4096, 32),
        write("data", 405 * K, 512, 33),
        zeroes("data", 20 * K, 8 * K),
        discard("data", 560 * K, 16 * K),
        write("through", 36 * K, 4096, 34),
        write("around", 100 * K, 8192, 35),
        write("bare", 16 * K, 4096, 36),
    ]
}

/// Written while the cut is carried to the pool.
fn late() -> Vec<Step<'static>> {
    vec![write("data", 32 * K, 4096, 40), write("data", 64 * K + 1024, 512, 41)]
}

/// The story of the image.
pub fn story() -> String {
    let before = [base(), published(), dirty(), stream(MIB, 20)].concat();
    let steps = [before, journaled(), stream(2 * MIB, 50), late()].concat();
    let about: String = VOLUMES.iter().map(About::text).collect();
    about + &steps.iter().map(Step::text).collect::<String>()
}

async fn all(volumes: &Volumes, steps: Vec<Step<'_>>) {
    for step in steps {
        step.take(&volumes.open(step.volume).expect("its volume")).await;
    }
}

async fn flush_all(volumes: &Volumes) {
    for info in volumes.list() {
        volumes.open(&info.name).expect("it is there").flush().await.expect("flush");
    }
}

struct Devices {
    disks: Vec<DeviceFile>,
    cache: CacheFile,
}

impl Devices {
    /// Opens the pool without its third device or with it, and the cache.
    async fn open(&self, rt: &Rt, disks: &[usize]) -> (Pool, Cache, Volumes) {
        let files = disks.iter().map(|&i| self.disks[i].clone()).collect();
        let settings = pool::Settings { commit_interval: HOUR, ..pool::Settings::default() };
        let (pool, _) = Pool::open(rt, files, settings).await.expect("open");
        let settings = cache::Settings { max_lag: HOUR, ..cache::Settings::default() };
        let cache = Cache::open(rt, &self.cache, &pool, settings).await.expect("open the cache");
        let volumes = Volumes::with_cache(&pool, Some(cache.clone()));
        (pool, cache, volumes)
    }

    async fn first_life(&self, rt: &Rt) {
        let three: Vec<_> = self.disks[..3].to_vec();
        let options =
            pool::CreateOptions { name: "golden".into(), copies: 2, group_bytes: Some(MIB) };
        let ids: Vec<[u8; 16]> = (0..=3).map(|i| [0xB0 + i; 16]).collect();
        pool::create(rt, &three, &options, &ids).await.expect("create");
        let (pool, _) = Pool::open(rt, three, pool::Settings::default()).await.expect("open");
        let volumes = Volumes::new(&pool);
        let gone = volumes.create("gone", 4 * MIB, 4096).await.expect("create");
        write("gone", 0, 64 * K, 99).take(&gone).await;
        for v in VOLUMES {
            volumes.create(v.name, v.size, v.sector).await.expect("create");
        }
        all(&volumes, base()).await;
        volumes.delete("gone").await.expect("delete");
        let options = cache::CreateOptions { bucket_bytes: 64 << 10, journal_bytes: Some(MIB) };
        cache::create(rt, &self.cache, &pool, &options, [0xCA; 16]).await.expect("create");
        pool.close().await.expect("close");
    }

    async fn second_life(&self, rt: &Rt) {
        let (pool, cache, volumes) = self.open(rt, &[0, 1, 2]).await;
        for v in VOLUMES {
            let mode = MODES.into_iter().find(|m| m.word() == v.mode).expect("a mode");
            volumes.set_mode(v.name, mode).await.expect("mode");
            let limit = VolumeLimit {
                iops: NonZeroU32::new(v.iops),
                bytes_per_second: NonZeroU64::new(v.bytes_per_second),
                burst_ms: NonZeroU32::new(1000).expect("not 0"),
            };
            let is_limited = limit.iops.is_some() || limit.bytes_per_second.is_some();
            volumes.set_limit(v.name, is_limited.then_some(limit)).await.expect("limit");
        }
        all(&volumes, published()).await;
        cache.publish_all().await.expect("publish");
        all(&volumes, dirty()).await;
        pool.moves().add_spare(self.disks[3].clone(), [0xB4; 16]).await.expect("spare");
        pool.scrubs().start_scrub(ScrubOptions::default()).await.expect("scrub");
        for v in VOLUMES.iter().filter(|v| v.read_only) {
            volumes.set_read_only(v.name, true).await.expect("read-only");
        }
        while pool.scrubs().scrub_status().await.state != ScrubState::Done {
            rt.sleep(Duration::from_millis(100)).await;
        }
        cache.close().await.expect("close");
        pool.close().await.expect("close");
    }

    async fn third_life(&self, rt: &Rt) {
        let (pool, cache, volumes) = self.open(rt, &[0, 1, 3]).await;
        all(&volumes, stream(MIB, 20)).await;
        flush_all(&volumes).await;
        cache.close().await.expect("close");
        pool.close().await.expect("close");
    }

    /// Ends in the middle of a pass.
    async fn fourth_life(&self, rt: &Rt, world: &World) {
        let (pool, cache, volumes) = self.open(rt, &[0, 1, 3]).await;
        all(&volumes, [journaled(), stream(2 * MIB, 50)].concat()).await;
        flush_all(&volumes).await;
        // No entry follows for a while: the journal's watermark is written.
        rt.sleep(Duration::from_secs(3)).await;
        let before = pool.cache_link().published();
        for file in &self.disks {
            world.set_delay(file.file, Duration::from_millis(40));
        }
        let pass = cache.clone();
        rt.detach(async move { pass.publish_all().await.unwrap_or(()) });
        rt.sleep(Duration::from_millis(1)).await;
        all(&volumes, late()).await;
        cache.flush().await.expect("flush");
        assert_eq!(pool.cache_link().published(), before, "the pass has not ended");
        assert!(cache.status().writeback.sealed_cuts > 0, "a cut is sealed");
        world.power_cut();
    }
}

/// Makes the image: of each device its name and its text.
pub fn make() -> Vec<(String, String)> {
    let world = World::new(17);
    let mut disks = Vec::new();
    for name in DISKS {
        disks.push(disk(&world, name, DiskModel::nvme(DISK_BYTES)));
    }
    let file = world.add_disk(DiskModel::nvme(CACHE_BYTES));
    let cache = CacheFile { path: "cache".into(), file, size_bytes: CACHE_BYTES };
    let devices = std::rc::Rc::new(Devices { disks, cache });
    for life in 1..=4 {
        let (d, w) = (devices.clone(), world.clone());
        boot(world.backend(), Order::Seeded(life), |rt| async move {
            match life {
                1 => d.first_life(&rt).await,
                2 => d.second_life(&rt).await,
                3 => d.third_life(&rt).await,
                _ => d.fourth_life(&rt, &w).await,
            }
        });
    }
    let text = |(name, file, bytes): (&str, _, _)| {
        (name.to_owned(), testkit::image_of(&world, file, bytes))
    };
    let disks = devices.disks.iter().map(|d| (d.path.as_str(), d.file, DISK_BYTES));
    disks.chain([("cache", file, CACHE_BYTES)]).map(text).collect()
}
