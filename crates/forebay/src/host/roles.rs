//! The roles that the named files and devices say they have, whatever they are named as: a device
//! of a pool, or a cache.
//!
//! Names of disks move by one when a disk is added or taken out (`/dev/sdb` was `/dev/sdc`). Then a
//! cache is named as a device, and a device as the cache. Nothing is wrong with either, so nothing
//! may be given up, filled again or called missing.

use std::path::{Path, PathBuf};

use base::shell_word;
use format::cache::superblock::CacheState;
use format::superblock::Superblock;
use uuid::Uuid;

use crate::config::CacheSection;
use crate::error::{CommandError, Result};
use crate::host::cache_file::{cache_on, newest_superblock};
use crate::host::discovery;
use crate::host::home::{CachePlace, Home};
use crate::host::sighting::SeenDevice;

/// The role that a device says it has.
enum StatedRole {
    /// A device of a pool.
    Device(Box<Superblock>),
    /// A cache, with its uuid and that of its pool.
    Cache {
        uuid: [u8; 16],
        pool: [u8; 16],
        attached: bool,
    },
    Other,
}

impl StatedRole {
    fn device(path: &Path) -> Option<StatedRole> {
        newest_superblock(path).map(|sb| StatedRole::Device(Box::new(sb)))
    }

    fn cache(path: &Path) -> Option<StatedRole> {
        let sb = cache_on(path).ok().flatten()?;
        let attached = sb.state == CacheState::Attached;
        Some(StatedRole::Cache { uuid: sb.uuid, pool: sb.pool_uuid, attached })
    }

    /// Of what is named as a device. A pool made in the place of an old cache may leave what that
    /// had written further on: first it is asked whether the name is right.
    fn named_device(path: &Path) -> StatedRole {
        StatedRole::device(path).or_else(|| StatedRole::cache(path)).unwrap_or(StatedRole::Other)
    }

    /// Of what is named as the cache.
    fn named_cache(path: &Path) -> StatedRole {
        StatedRole::cache(path).or_else(|| StatedRole::device(path)).unwrap_or(StatedRole::Other)
    }
}

/// Fails if the cache is named as a device of the pool, or a device of a pool as the cache. May
/// block.
pub fn check<'a>(config: &CacheSection, devices: impl Iterator<Item = &'a Path>) -> Result<()> {
    let named: Vec<(&Path, StatedRole)> =
        devices.map(|path| (path, StatedRole::named_device(path))).collect();
    let pools = named.iter().filter_map(|(_, what)| match what {
        StatedRole::Device(sb) => Some(sb),
        _ => None,
    });
    let cache = config.path.as_deref().filter(|path| path.exists());
    let as_cache = cache.map(|path| (path, StatedRole::named_cache(path)));
    let of_cache = as_cache.as_ref().and_then(|(_, what)| match what {
        StatedRole::Device(sb) => Some(sb),
        _ => None,
    });
    let Some(pool) = pools.chain(of_cache).max_by_key(|sb| (sb.generation, sb.sequence)) else {
        return Ok(());
    };
    let mut wrong = Vec::new();
    let (mut right, mut its_cache) = (Vec::new(), cache.filter(|_| of_cache.is_none()));
    for (path, what) in &named {
        match what {
            StatedRole::Cache { uuid, pool: of, attached }
                if *of == pool.pool_uuid && *attached =>
            {
                let what = match Some(*uuid) == pool.cache_uuid {
                    true => "is the cache of this pool, and is named as a device of it",
                    false => {
                        "is a cache that this pool has had, and is named as a device of the pool"
                    }
                };
                wrong.push(format!("{} {what}", path.display()));
                its_cache = Some(path);
            }
            _ => right.push(*path),
        }
    }
    if let Some((path, StatedRole::Device(sb))) = &as_cache {
        let what = match sb.pool_uuid == pool.pool_uuid {
            true => "a device of this pool".to_owned(),
            false => format!("a device of the pool {:?}, another one", sb.name),
        };
        wrong.push(format!("{} is {what}, and is named as the cache", path.display()));
        if sb.pool_uuid == pool.pool_uuid {
            right.push(path);
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    let option =
        |name: &str, path: &Path| format!(" {name} {}", shell_word(&path.display().to_string()));
    let mut todo: String = right.iter().map(|path| option("--device", path)).collect();
    todo.extend(its_cache.map(|path| option("--cache", path)));
    Err(CommandError::Failed(format!(
        "names are mixed up (they may have moved since a disk was added or taken out): {}. Nothing \
         was changed, and nothing is lost; name them as what they are:{todo}",
        wrong.join("; ")
    )))
}

/// The place where the cache `uuid` is, among all that are named or known. May block.
pub fn find_cache<'a>(
    config: &CacheSection,
    devices: impl Iterator<Item = &'a Path>,
    uuid: [u8; 16],
) -> Option<PathBuf> {
    let mut places: Vec<PathBuf> = config.path.iter().cloned().collect();
    for path in devices {
        places.push(path.to_owned());
        places.extend(SeenDevice::at(path).and_then(|device| discovery::cache_beside(&device)));
    }
    if let Some(dir) = &config.kept_in {
        places.push(Home::own_cache(dir));
        if let Ok(CachePlace::At(path)) = Home::cache_place(dir) {
            places.push(path);
        }
    }
    let is_it = |path: &PathBuf| matches!(cache_on(path), Ok(Some(sb)) if sb.uuid == uuid);
    places.into_iter().find(is_it)
}

/// Where the cache was last, by what devices say. May block.
pub fn last_place_of_cache<'a>(devices: impl Iterator<Item = &'a Path>) -> Option<PathBuf> {
    devices.filter_map(SeenDevice::at).find_map(|device| discovery::cache_beside(&device))
}

/// Why a cache that is there is not given up, or is not taken for missing.
pub fn is_there(path: &Path, uuid: [u8; 16], forget: bool) -> CommandError {
    let (path, uuid) = (path.display(), Uuid::from_bytes(uuid));
    let named = shell_word(&path.to_string());
    CommandError::Failed(match forget {
        true => format!(
            "the pool's cache {uuid} is there, at {path}: start with --cache {named} and without \
             --forget-cache. If it cannot be used, move it away first"
        ),
        false => format!(
            "the pool's cache {uuid} is at {path}, and is not named: start with --cache {named}"
        ),
    })
}
