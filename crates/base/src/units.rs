//! Addresses and sequence numbers as types, so that the compiler keeps them apart.

use std::fmt;

/// Bytes in a block, the unit of mapping and of checksums.
pub const BLOCK: usize = 4096;
/// [`BLOCK`] as `u64`, for arithmetic on offsets.
pub const BLOCK_U64: u64 = BLOCK as u64;
/// Bytes in the smallest logical sector of a volume.
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
    /// A volume's number. Numbers are not reused; 0 is no volume.
    VolumeId(u32), "volume:"
);
number!(
    /// The number of a transaction. It grows with every commit and every open, by more than one
    /// (see "Generations" in docs/format.md).
    Generation(u64), "gen:"
);

number!(
    /// The birth of blocks: the number of snapshots, of all volumes of the pool, that were taken
    /// before they were written.
    Birth(u32), "birth:"
);

/// The name of one open of a pool: a random number, so that no other open of this pool, or of a
/// copy of it, has the same. 0: not known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct OpenId(pub u64);

impl OpenId {
    /// The name that these random bits make.
    pub fn drawn(bits: u64) -> OpenId {
        OpenId(bits.max(1))
    }
}

impl fmt::Display for OpenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for OpenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "open:{self}")
    }
}

number!(
    /// A block's number on a cache device, counted from the start of the first bucket.
    CacheAddr(u64), "cache:"
);
number!(
    /// A bucket's number.
    BucketId(u32), "bucket:"
);
number!(
    /// A bucket's generation. Evicting the bucket raises it, which makes keys with the old one
    /// stale.
    BucketGen(u32), "bucketgen:"
);
number!(
    /// The number of an epoch of the cache's writes. A cut seals the open epoch and opens the next
    /// one; 0 is no epoch.
    Epoch(u32), "epoch:"
);

number!(
    /// The number of a record of the cache's journal, counted from its open; 0 is before the first.
    RecordSeq(u64), "record:"
);
number!(
    /// The number of an entry of the cache's journal. Each has one or more records.
    EntrySeq(u64), "entry:"
);

impl Lba {
    /// The address `n` blocks behind this one.
    pub fn plus(self, n: u64) -> Lba {
        Lba(self.0 + n)
    }
}

impl PoolAddr {
    /// The address `n` blocks behind this one.
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
