//! Images of pools with a cache, of released versions: they must open, hold what was written, be
//! found clean, and be shown whole, for ever.
//!
//! Images are in directories named for the version that made them; `cargo run -p volume --example
//! golden -- DIRECTORY` makes those of the version that is built. A committed image never changes:
//! a version that changes a format adds a directory of its own. Pools of the first version, without
//! a cache, are in `crates/pool/tests/golden`.

mod make;
mod shown;
mod staged;
mod story;

use std::time::Duration;

use cache::{Cache, CacheFile, Settings};
use model::device::DeviceState;
use model::moves::MovesState;
use offline::CheckOptions;
use offline::cache::check::PoolRelation;
use offline::pool::check::check;
use pool::{DeviceFile, Pool};
use rt::{Order, Rt};
use sim::World;
use testkit::{boot, check_cache, image_size};
use volume::Volumes;

/// Of each version its devices, the cache last, and its story.
struct Golden {
    disks: &'static [(&'static str, &'static str)],
    cache: &'static str,
    story: &'static str,
}

const V0_2_0: Golden = Golden {
    disks: &[
        ("disk0", include_str!("0.2.0/disk0.txt")),
        ("disk1", include_str!("0.2.0/disk1.txt")),
        ("disk2", include_str!("0.2.0/disk2.txt")),
        ("spare", include_str!("0.2.0/spare.txt")),
    ],
    cache: include_str!("0.2.0/cache.txt"),
    story: include_str!("0.2.0/story.txt"),
};

/// An image on devices.
struct Lab {
    world: World,
    disks: Vec<DeviceFile>,
    cache: CacheFile,
}

impl Lab {
    fn new(golden: &Golden) -> Lab {
        let world = World::new(1);
        let put = |&(name, text): &(&str, &str)| {
            let file = testkit::disk_of_image(&world, text);
            DeviceFile { path: name.to_owned(), file, size_bytes: image_size(text) }
        };
        let disks = golden.disks.iter().map(put).collect();
        let DeviceFile { path, file, size_bytes } = put(&("cache", golden.cache));
        Lab { world, disks, cache: CacheFile { path, file, size_bytes } }
    }

    /// The devices of these names.
    fn disks(&self, names: &[&str]) -> Vec<DeviceFile> {
        self.disks.iter().filter(|d| names.contains(&d.path.as_str())).cloned().collect()
    }

    fn run<T: 'static, F: Future<Output = T> + 'static>(&self, f: impl FnOnce(Rt) -> F) -> T {
        boot(self.world.backend(), Order::Fifo, f).expect("alive")
    }

    /// Neither the pool on these devices nor the cache has anything wrong.
    fn assert_clean(&self, names: &[&str], degraded: bool, standing: PoolRelation) {
        let (disks, cache) = (self.disks(names), self.cache.clone());
        self.run(move |rt| async move {
            let options = CheckOptions { data: true, ..CheckOptions::default() };
            let report = check(&rt, disks, &options, &mut |_| ()).await.expect("a pool");
            assert!(report.is_clean(), "{:#?}", report.problems);
            assert_eq!(report.degraded, degraded);
            let found = check_cache(&rt, &cache, &report.image).await;
            assert!(found.is_clean(), "{:#?}", found.problems);
            assert_eq!(found.standing, standing);
        });
    }

    /// Serves the volumes on these devices to `body`.
    fn serve<F: Future<Output = ()> + 'static>(
        &self,
        names: &[&str],
        body: impl FnOnce(Rt, Pool, Volumes) -> F + 'static,
    ) {
        let (disks, file) = (self.disks(names), self.cache.clone());
        self.run(move |rt| async move {
            let (pool, _) =
                Pool::open(&rt, disks, pool::Settings::default()).await.expect("the pool opens");
            let cache = match pool.cache_link().cache_uuid() {
                None => None,
                Some(_) => {
                    let opened = Cache::open(&rt, &file, &pool, Settings::default()).await;
                    Some(opened.expect("the cache opens"))
                }
            };
            let volumes = Volumes::with_cache(&pool, cache);
            body(rt, pool.clone(), volumes.clone()).await;
            if let Some(cache) = volumes.cache() {
                cache.close().await.expect("close");
            }
            pool.close().await.expect("close");
        });
    }
}

/// The volumes are those of the story, and hold all of it.
async fn assert_holds(volumes: &Volumes, story: &str) {
    let told = story::told(story);
    let names: Vec<String> = volumes.list().into_iter().map(|v| v.name).collect();
    assert_eq!(names.len(), told.len(), "{names:?}");
    for (name, (about, held)) in &told {
        let volume = volumes.open(name).expect("a volume of the story");
        let info = volume.info().expect("it is there");
        let limit = info.limit;
        let found = story::About {
            name,
            size: info.size_bytes,
            sector: info.sector_bytes,
            mode: info.cache_mode.word(),
            iops: limit.and_then(|l| l.iops).map_or(0, |n| n.get()),
            bytes_per_second: limit.and_then(|l| l.bytes_per_second).map_or(0, |n| n.get()),
            read_only: info.read_only,
        };
        assert_eq!(found, *about);
        for (at, want) in (0..).step_by(64 << 10).zip(held.chunks(64 << 10)) {
            let data = volume.read(at, want.len() as u64).await.expect("read");
            let wrong = data.iter().flat_map(|s| s.iter()).zip(want).position(|(a, b)| a != b);
            assert_eq!(wrong.map(|i| at + i as u64), None, "{name} differs at this byte");
        }
    }
}

async fn moved(rt: &Rt, pool: &Pool) {
    for _ in 0..10_000 {
        let devices = pool.status().pool.devices;
        let settled =
            devices.iter().all(|d| d.state == DeviceState::Online || d.state == DeviceState::Spare);
        if settled && pool.moves().moves_status().state == MovesState::None {
            return;
        }
        rt.sleep(Duration::from_millis(100)).await;
    }
    panic!("{:?}: {:?}", pool.status().pool.devices, pool.moves().moves_status());
}

/// All devices but the one that was missing when the power failed.
const THERE: [&str; 3] = ["disk0", "disk1", "spare"];
const ALL: [&str; 4] = ["disk0", "disk1", "disk2", "spare"];

#[test]
fn version_0_2_0() {
    let lab = Lab::new(&V0_2_0);
    lab.assert_clean(&THERE, true, PoolRelation::Attached);
    lab.serve(&THERE, |_, _, volumes| async move {
        assert_holds(&volumes, V0_2_0.story).await;
        volumes.set_read_only("locked", false).await.expect("it may change again");
        volumes.set_read_only("locked", true).await.expect("and not");
    });
    lab.assert_clean(&THERE, true, PoolRelation::Attached);
    // The spare takes the place of the device that stays away.
    lab.serve(&THERE, |rt, pool, volumes| async move {
        rt.sleep(Duration::from_secs(900)).await;
        moved(&rt, &pool).await;
        assert_holds(&volumes, V0_2_0.story).await;
        volumes.detach().await.expect("the cache is written back");
        assert_holds(&volumes, V0_2_0.story).await;
    });
    lab.assert_clean(&THERE, false, PoolRelation::Detached);
    lab.serve(&["disk1", "spare"], |_, _, volumes| async move {
        assert_holds(&volumes, V0_2_0.story).await;
    });
}

#[test]
fn version_0_2_0_and_the_device_that_was_away() {
    let lab = Lab::new(&V0_2_0);
    lab.serve(&ALL, |rt, pool, volumes| async move {
        assert_holds(&volumes, V0_2_0.story).await;
        moved(&rt, &pool).await;
        assert_holds(&volumes, V0_2_0.story).await;
    });
    lab.assert_clean(&ALL, false, PoolRelation::Attached);
}

/// Everything that the formats of this version have is in the image, and a dump shows it.
#[test]
fn version_0_2_0_is_shown() {
    shown::assert_shown(&Lab::new(&V0_2_0));
}

/// The command of the heading makes the same image each time.
#[test]
fn the_maker_has_no_moods() {
    let (a, b) = (make::make(), make::make());
    assert!(a == b, "two images of one version differ");
    assert!(a.iter().all(|(_, text)| text.len() < 200 << 10), "they are small");
    assert_eq!(story::told(&make::story()).len(), 5);
}
