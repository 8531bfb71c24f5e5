//! The file or block device of a cache.

use rt::FileId;

/// A cache's file or block device that the backend has opened.
#[derive(Clone, Debug)]
pub struct CacheFile {
    /// The path of the file or device, as the user names it.
    pub path: String,
    /// The open file.
    pub file: FileId,
    /// The size in bytes.
    pub size_bytes: u64,
}
