//! What a file or block device says it is: a device of a pool, or a cache. Looks only.
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "before the engine begins: threads, so that no device that hangs is waited for"
)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use format::cache::superblock::{CacheState, CacheSuperblock};
use format::places::{Places, SLOT_BYTES, SLOTS};
use format::superblock::Superblock;

use crate::host::cache_file::cache_on;
use crate::host::emptiness::newest_of_pool;
use crate::host::world::{identity, is_block_device};

/// Threads that look at places: a device that hangs holds one of them.
const THREADS: usize = 8;

/// A device of a pool.
#[derive(Clone, Debug)]
pub struct SeenDevice {
    /// The path at which it was looked at.
    pub path: PathBuf,
    /// The same for all names of one file or block device.
    pub place: PathBuf,
    /// Its newest superblock.
    pub superblock: Superblock,
    /// Its record of places, if there is one of its own pool.
    pub places: Option<Places>,
}

/// A cache that is attached to a pool.
#[derive(Clone, Debug)]
pub struct SeenCache {
    /// The path at which it was looked at.
    pub path: PathBuf,
    /// Its newest superblock.
    pub superblock: CacheSuperblock,
}

/// What is at a path.
#[derive(Clone, Debug)]
pub enum Sighting {
    /// A device of a pool.
    Device(Box<SeenDevice>),
    /// A cache.
    Cache(Box<SeenCache>),
}

impl SeenDevice {
    /// The device of a pool at this path. May block.
    pub fn at(path: &Path) -> Option<SeenDevice> {
        // Opening a pipe would wait for its other end.
        if !path.is_file() && !is_block_device(path) {
            return None;
        }
        let file = File::open(path).ok()?;
        let superblock = newest_of_pool(&file)?;
        let places = newest_places(&file, superblock.pool_uuid);
        Some(SeenDevice { path: path.to_owned(), place: identity(path), superblock, places })
    }

    /// The uuid of the device.
    pub fn uuid(&self) -> Option<[u8; 16]> {
        let own = self.superblock.devices.get(usize::from(self.superblock.device));
        own.map(|row| row.uuid)
    }
}

impl Sighting {
    /// What is at this path; `None`: neither a device of a pool nor an attached cache, or it cannot
    /// be read. May block.
    pub fn at(path: &Path) -> Option<Sighting> {
        let device = || SeenDevice::at(path).map(|seen| Sighting::Device(Box::new(seen)));
        let cache = || {
            let superblock = cache_on(path).ok().flatten()?;
            let attached = superblock.state == CacheState::Attached;
            let seen = SeenCache { path: path.to_owned(), superblock };
            attached.then(|| Sighting::Cache(Box::new(seen)))
        };
        device().or_else(cache)
    }
}

/// The record of places of a pool that a device has. May block.
fn newest_places(file: &File, pool_uuid: [u8; 16]) -> Option<Places> {
    let read = |slot| {
        let mut bytes = vec![0; SLOT_BYTES];
        file.read_exact_at(&mut bytes, Places::offset_of(slot)).ok()?;
        Places::decode(&bytes).ok().filter(|found| found.pool_uuid == pool_uuid)
    };
    (0..SLOTS).filter_map(read).max_by_key(|found| found.sequence)
}

/// What was seen at many places.
pub struct Sightings {
    /// Devices of pools and caches, in the order of the paths.
    pub seen: Vec<Sighting>,
    /// Places that did not answer in time.
    pub silent: Vec<PathBuf>,
}

/// Looks at many places at once, for so long. A place that does not answer is left to its thread.
pub fn look_at_all(paths: Vec<PathBuf>, patience: Duration) -> Sightings {
    let (count, until) = (paths.len(), Instant::now() + patience);
    let queue = Arc::new(Mutex::new(paths.clone().into_iter().enumerate()));
    let (sender, answers) = mpsc::channel();
    for _ in 0..THREADS.min(count) {
        let (queue, sender) = (queue.clone(), sender.clone());
        std::thread::spawn(move || {
            loop {
                let next = queue.lock().ok().and_then(|mut queue| queue.next());
                let Some((at, path)) = next else { return };
                if sender.send((at, Sighting::at(&path))).is_err() {
                    return;
                }
            }
        });
    }
    drop(sender);
    let mut all: Vec<Option<Option<Sighting>>> = vec![None; count];
    while all.iter().any(Option::is_none) {
        let left = until.saturating_duration_since(Instant::now());
        let Ok((at, seen)) = answers.recv_timeout(left) else { break };
        all[at] = Some(seen);
    }
    let silent = paths.into_iter().zip(&all).filter(|(_, seen)| seen.is_none());
    let silent = silent.map(|(path, _)| path).collect();
    Sightings { seen: all.into_iter().flatten().flatten().collect(), silent }
}
