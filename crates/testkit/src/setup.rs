//! Devices, pools, boots and offline checks.

use std::future::Future;

use base::{Duration, Result};
use cache::CacheFile;
use offline::CheckOptions;
use offline::cache::check as cache_check;
use offline::pool::check::{self as pool_check, Image, Report};
use pool::{CreateOptions, DeviceFile, Pool, Settings};
use rt::{Backend, Order, Rt};
use sim::{DiskModel, World};

/// 1 MiB in bytes.
pub const MIB: u64 = 1 << 20;

/// Operations of a boot that may be under way. It is more than any test has.
const SLOTS: usize = 4096;

/// Adds a disk of this model to `world`.
pub fn disk(world: &World, path: &str, model: DiskModel) -> DeviceFile {
    let size_bytes = model.size_bytes;
    DeviceFile { path: path.into(), file: world.add_disk(model), size_bytes }
}

/// Runs `body` on a runtime of its own, and kills that. `None`: the body has killed it.
pub fn boot<T: 'static, F: Future<Output = T> + 'static>(
    backend: Box<dyn Backend>,
    order: Order,
    body: impl FnOnce(Rt) -> F,
) -> Option<T> {
    let rt = Rt::new(backend, order, SLOTS);
    let out = rt.block_on(body(rt.clone()));
    rt.kill();
    out
}

/// Creates a pool with groups of 1 MiB.
pub async fn create_pool(rt: &Rt, files: &[DeviceFile], copies: u8) {
    let options = CreateOptions { name: "bench".into(), copies, group_bytes: Some(MIB) };
    let ids: Vec<_> = (0..=files.len()).map(|i| [i as u8 + 1; 16]).collect();
    pool::create(rt, files, &options, &ids).await.expect("create");
}

/// Opens a pool that commits every 50 ms. Returns its warnings too.
pub async fn try_open(rt: &Rt, files: Vec<DeviceFile>) -> Result<(Pool, Vec<String>)> {
    let settings = Settings { commit_interval: Duration::from_millis(50), ..Settings::default() };
    Pool::open(rt, files, settings).await
}

/// As [`try_open`], where it succeeds.
pub async fn open(rt: &Rt, files: Vec<DeviceFile>) -> Pool {
    try_open(rt, files).await.expect("open").0
}

/// Checks a pool offline, its data too.
pub async fn check_pool(rt: &Rt, files: Vec<DeviceFile>) -> Report {
    pool_check::check(rt, files, &all_data(), &mut |_| ()).await.expect("a pool")
}

/// Checks a cache offline, its data too. The pool's check has found `image`.
pub async fn check_cache(rt: &Rt, file: &CacheFile, image: &Image) -> cache_check::CacheReport {
    cache_check::check(rt, file, image, &all_data(), &mut |_| ()).await
}

fn all_data() -> CheckOptions {
    CheckOptions { data: true, ..CheckOptions::default() }
}
