//! Parts that all steps of a check share.

use base::Buf;
use cache::CacheFile;
use queue::{Class, Device, Limits};
use rt::Rt;

use super::plan::CacheRepairPlan;
use super::report::CacheCounts;
use crate::pool::check::Image;
use crate::report::{self, CheckOptions, Phase, Progress};

pub(crate) type CacheLog = report::Log<CacheCounts>;

/// The advice for a cache that has lost what it cannot do without.
pub(super) const GIVE_UP: &str = "what the cache alone holds cannot be had; the pool's image is \
                                  whole and older: --forget-cache goes on with it";

/// A cache device that is read and never written.
#[derive(Clone)]
pub(crate) struct CacheSource {
    pub rt: Rt,
    pub device: Device,
    pub path: String,
}

impl CacheSource {
    pub fn new(rt: &Rt, file: &CacheFile) -> CacheSource {
        CacheSource {
            rt: rt.clone(),
            device: Device::new(rt, file.file, Limits::default()),
            path: file.path.clone(),
        }
    }

    /// Reads a block.
    pub async fn block(&self, offset: u64) -> std::result::Result<Buf, String> {
        let read = self.device.read_blocks(Class::Foreground, offset, 1).await;
        read.error(0).map_or(Ok(read.buf), |e| Err(e.to_string()))
    }
}

/// The state of a check.
pub(super) struct CacheChecker<'a> {
    pub src: CacheSource,
    pub log: CacheLog,
    pub plan: CacheRepairPlan,
    pub options: CheckOptions,
    /// No slot has even the beginning of a cache's superblock: something else was named.
    pub holds_none: bool,
    pub image: &'a Image,
    pub progress: &'a mut dyn FnMut(Progress),
}

impl CacheChecker<'_> {
    pub fn progress(&mut self, phase: Phase, done: u64, total: u64) {
        (self.progress)(Progress { phase, done, total });
    }
}
