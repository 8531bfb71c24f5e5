//! A pool on one or more disks.

use std::future::Future;

use base::{BLOCK_U64, VolumeId};
use offline::pool::check::Report;
use pool::{DeviceFile, Pool};
use rt::{Order, Rt};
use sim::{DiskModel, World};

use crate::blocks::fill;
use crate::rules::Rules;
use crate::setup::{MIB, boot, check_pool, create_pool, disk, open};

/// Disks of 32 MiB, a pool on them with a volume, and rules for what the disks answer.
pub struct Mirror {
    /// Where the disks are.
    pub world: World,
    /// The pool's disks: `disk0` and so on.
    pub files: Vec<DeviceFile>,
    /// They hold in each boot.
    pub rules: Rules,
    /// The volume that a test made at first.
    pub volume: VolumeId,
}

impl Mirror {
    /// Creates a pool of `copies` copies on `disks` disks, with a volume of so many blocks, which
    /// hold `1`.
    pub fn filled(seed: u64, (disks, copies): (usize, u8), blocks: u64) -> Mirror {
        Mirror::new(seed, (disks, copies), move |pool| async move {
            let id = pool.create_volume("v", blocks * BLOCK_U64, 4096).await.expect("volume");
            fill(&pool, id, blocks, 1).await;
            id
        })
    }

    /// Creates a pool of `copies` copies on `disks` disks. `begin` makes the volume in it.
    pub fn new<F: Future<Output = VolumeId> + 'static>(
        seed: u64,
        (disks, copies): (usize, u8),
        begin: impl FnOnce(Pool) -> F + 'static,
    ) -> Mirror {
        let world = World::new(seed);
        let add = |i| disk(&world, &format!("disk{i}"), DiskModel::nvme(32 * MIB));
        let files = (0..disks).map(add).collect();
        let mut mirror = Mirror { world, files, rules: Rules::default(), volume: VolumeId(0) };
        mirror.volume = mirror.run(move |rt, files| async move {
            create_pool(&rt, &files, copies).await;
            let pool = open(&rt, files).await;
            let id = begin(pool.clone()).await;
            pool.close().await.expect("close");
            id
        });
        mirror
    }

    /// Boots, and runs `body` with the disks.
    pub fn run<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        body: impl FnOnce(Rt, Vec<DeviceFile>) -> F,
    ) -> T {
        self.try_run(body).expect("alive")
    }

    /// As [`Mirror::run`]. `None`: the body has killed the runtime.
    pub fn try_run<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        body: impl FnOnce(Rt, Vec<DeviceFile>) -> F,
    ) -> Option<T> {
        let backend = self.rules.over(self.world.backend());
        let order = Order::Seeded(self.world.history_hash());
        boot(backend, order, |rt| body(rt, self.files.clone()))
    }

    /// Checks the pool offline, its data too.
    pub fn check(&self) -> Report {
        self.run(|rt, files| async move { check_pool(&rt, files).await })
    }
}
