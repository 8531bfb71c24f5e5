//! Whether a start may go on, as far as that can be told without opening the cache.

use std::path::Path;

use format::cache::superblock::CacheState;
use uuid::Uuid;

use super::lost::missing;
use crate::config::CacheSection;
use crate::error::{CommandError, Result};
use crate::host::cache_file::{PoolCache, cache_of_pool, cache_on, check_place, pool_seen};
use crate::host::roles;

/// Whether a pool that is yet to be made can have the cache that was asked for, as far as that can
/// be told. Looks only. A cache that is attached to a pool says that there was one: a new one in
/// its place would look like it, and be empty.
pub fn preflight_made(config: &CacheSection) -> Result<()> {
    if let Some(path) = config.path.as_deref().filter(|path| path.exists())
        && let Some(sb) = cache_on(path)?
        && sb.state == CacheState::Attached
    {
        return Err(CommandError::Failed(format!(
            "no pool is made: {} is the cache of the pool {}, whose devices are not here. Bring \
             them back. If that pool is lost, remove the cache, or name another with --cache PATH",
            path.display(),
            Uuid::from_bytes(sb.pool_uuid)
        )));
    }
    match (&config.path, config.size) {
        (Some(path), Some(size)) if size > 0 && !config.optional => check_place(path, Some(size)),
        _ => Ok(()),
    }
}

/// Whether the pool on these devices may be opened as things are, as far as that can be told
/// without opening its cache: [`Caches::prepare`](super::Caches::prepare) tells the rest. Looks
/// only.
pub fn preflight<'a>(
    config: &CacheSection,
    devices: impl Iterator<Item = &'a Path> + Clone,
) -> Result<()> {
    roles::check(config, devices.clone())?;
    let found = cache_of_pool(devices.clone());
    let Some(PoolCache { uuid, has, opened }) = found else { return Ok(()) };
    let path = config.path.as_deref();
    let held = match path {
        Some(path) if path.exists() => cache_on(path)?,
        _ => None,
    };
    let held = held.filter(|sb| sb.uuid == uuid);
    let is_there = held.is_some();
    // Nothing that is there is given up, by whatever name.
    if (config.forget || !is_there)
        && let Some(at) = roles::find_cache(config, devices.clone(), uuid)
    {
        return Err(roles::is_there(&at, uuid, config.forget));
    }
    match (path, config.forget) {
        (_, true) => Ok(()),
        (Some(path), false) if is_there => match &held {
            Some(sb) if has.is_older(pool_seen(path, sb)) => {
                let text = has.refusal(pool_seen(path, sb));
                Err(CommandError::Failed(format!("{}: {text}", path.display())))
            }
            Some(sb) if !sb.opens.is_of(opened) => {
                let text = sb.opens.refusal(opened);
                Err(CommandError::Failed(format!("{}: {text}", path.display())))
            }
            _ => Ok(()),
        },
        (Some(path), false) if path.exists() => {
            Err(missing(uuid, format!("is not what {} holds", path.display())))
        }
        (Some(path), false) => {
            Err(missing(uuid, format!("is not there: {} does not exist", path.display())))
        }
        (None, false) => {
            let why = match roles::last_place_of_cache(devices) {
                Some(last) => {
                    format!("is not named, and is not at {}, where it was last", last.display())
                }
                None => "is not named".into(),
            };
            Err(missing(uuid, why))
        }
    }
}
