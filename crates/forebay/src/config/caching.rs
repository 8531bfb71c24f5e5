//! The place of a server's cache, and what becomes of the cache at the start.

use std::path::PathBuf;

use crate::error::{CommandError, Result};
use crate::host::home_place::HomePlace;

/// The cache of a server.
#[derive(Default, Debug)]
pub struct CacheConfig {
    /// The file or block device of the cache.
    pub path: Option<PathBuf>,
    /// The size in bytes of the cache that is made if the pool has none; `None`: none is made. 0:
    /// there is to be none.
    pub size_bytes: Option<u64>,
    /// True if the attached cache is to be given up; its content is lost.
    pub forget: bool,
    /// True if the cache was not asked for: where none can be made, the server goes on without.
    pub optional: bool,
    /// True if the file is the server's own: it is removed when it is of no use any more.
    pub owned: bool,
    /// The directory of `forebay up` in which the place of the cache is kept.
    pub kept_in: Option<PathBuf>,
    /// The place of that directory, to be kept in it once the cache is open.
    pub place: Option<HomePlace>,
}

/// Options of the command line: what is given takes precedence.
#[derive(Clone, Default, Debug)]
pub struct CacheOverrides {
    /// See [`CacheConfig`].
    pub path: Option<PathBuf>,
    /// See [`CacheConfig`].
    pub size_bytes: Option<u64>,
    /// See [`CacheConfig`].
    pub forget: bool,
}

impl CacheConfig {
    /// Puts together what was said, and checks it.
    pub(super) fn new(
        path: Option<PathBuf>,
        size_bytes: Option<u64>,
        forget: bool,
    ) -> Result<CacheConfig> {
        if path.is_none() && size_bytes.is_some_and(|n| n > 0) {
            return Err(CommandError::Usage(
                "a size of a cache is given, and no path: --cache PATH, or path in [cache]".into(),
            ));
        }
        Ok(CacheConfig { path, size_bytes, forget, ..CacheConfig::default() })
    }
}
