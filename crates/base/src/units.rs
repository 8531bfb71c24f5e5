//! Addresses and sequence numbers as types of their own, so that one cannot be taken for another.

use std::fmt;

/// Bytes in a block: the unit of mapping and of checksum.
pub const BLOCK: usize = 4096;
/// [`BLOCK`] as `u64`, for arithmetic on offsets.
pub const BLOCK_U64: u64 = BLOCK as u64;
/// Bytes in the smallest logical sector a volume may have.
pub const SECTOR: usize = 512;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

number!(
    /// Logical block address: a block's number inside its volume.
    Lba(u64), "lba:"
);
number!(
    /// A block's number in the pool's address space: `group * blocks_per_group + offset`.
    PoolAddr(u64), "pool:"
);
number!(
    /// A block group's number.
    GroupId(u32), "group:"
);
number!(
    /// A volume's number; never reused while the volume exists, 0 is no volume.
    VolumeId(u32), "volume:"
);
number!(
    /// A transaction's number; grows by one with every commit.
    Generation(u64), "gen:"
);

number!(
    /// A block's number among the buckets of a cache device.
    CacheAddr(u64), "cache:"
);
number!(
    /// A bucket's number.
    BucketId(u32), "bucket:"
);
number!(
    /// A bucket's generation: raised when it is evicted, so that keys with the old one are stale.
    BucketGen(u32), "bucketgen:"
);
number!(
    /// The number of a cut of the cache; 0 is before the first.
    Epoch(u32), "epoch:"
);

impl Lba {
    /// The address `n` blocks further on.
    pub fn plus(self, n: u64) -> Lba {
        Lba(self.0 + n)
    }
}

impl PoolAddr {
    /// The address `n` blocks further on.
    pub fn plus(self, n: u64) -> PoolAddr {
        PoolAddr(self.0 + n)
    }
}

impl Generation {
    /// The generation after this one.
    pub fn next(self) -> Generation {
        Generation(self.0 + 1)
    }
}
