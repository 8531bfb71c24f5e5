//! Definitions that every layer shares: units, checksums, aligned buffers, bitmaps, histograms,
//! random numbers.
//!
//! Nothing here does I/O or depends on another crate of the workspace.

pub mod bitmap;
pub mod buf;
pub mod checksum;
pub mod crowd;
pub mod error;
pub mod histogram;
pub mod host;
pub mod prng;
pub mod range;
pub mod sectors;
pub mod shell;
pub mod telling;
pub mod time;
pub mod units;

pub use bitmap::Bitmap;
pub use buf::{Buf, BufList, BufPool, Slice, SliceList, slice_of_list};
pub use checksum::{Crc, crc32c};
pub use error::{ErrorKind, IoError, Result, StorageError};
pub use histogram::{BOUNDS_NS, CoarseHistogram, Histogram};
pub use host::{HOST_MEMORY_MAX, HostMemory, HostMemoryId, HostPlace, SharedPlace};
pub use prng::Prng;
pub use range::{BlockRange, ByteRange};
pub use sectors::Sectors;
pub use shell::shell_word;
pub use telling::{counted, worth_telling};
pub use time::{Duration, Instant};
pub use units::{
    BLOCK, BLOCK_U64, Birth, BucketGen, BucketId, CacheAddr, EntrySeq, Epoch, Generation, GroupId,
    Lba, OpenId, PoolAddr, RecordSeq, SECTOR, VolumeId,
};
