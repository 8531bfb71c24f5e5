//! The file or block device of a cache.

use rt::FileId;

/// A cache's file or block device that the backend has opened.
#[derive(Clone, Debug)]
pub struct CacheFile {
    /// What the user calls it.
    pub path: String,
    /// The open file.
    pub file: FileId,
    /// Its size.
    pub size_bytes: u64,
}
