//! Priorities of buckets, without memory: they follow from the bucket's number.

/// The distribution of priorities. The lowest goes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// All are equal, as in a cache that is not filled.
    Equal,
    /// All differ, at random.
    Distinct,
    /// All differ, and a bucket that is looked at later goes earlier.
    Falling,
    /// All are equal, and half of the buckets must not go.
    Pinned,
}

impl Order {
    pub const ALL: [Order; 4] = [Order::Equal, Order::Distinct, Order::Falling, Order::Pinned];

    pub fn name(self) -> &'static str {
        match self {
            Order::Equal => "all equal",
            Order::Distinct => "distinct, at random",
            Order::Falling => "distinct, falling",
            Order::Pinned => "equal, half pinned",
        }
    }

    /// The priority of a bucket among so many, which are a power of two.
    pub fn priority(self, bucket: u32, buckets: u64) -> u32 {
        match self {
            Order::Equal | Order::Pinned => 0,
            Order::Distinct => shuffled(bucket, buckets),
            Order::Falling => buckets as u32 - bucket,
        }
    }

    /// The bucket that was filled as the `nth`.
    pub fn filled(self, nth: u32, buckets: u64) -> u32 {
        match self {
            Order::Equal | Order::Pinned => nth,
            Order::Distinct => shuffled(nth, buckets),
            Order::Falling => buckets as u32 - 1 - nth,
        }
    }

    /// True if a bucket may go.
    pub fn may_go(self, bucket: u32) -> bool {
        self != Order::Pinned || base::prng::mix64(u64::from(bucket)) & 1 == 0
    }
}

/// A permutation of the numbers below `all`, a power of two.
pub(super) fn shuffled(n: u32, all: u64) -> u32 {
    assert!(all.is_power_of_two() && u64::from(n) < all);
    let (bits, mask) = (all.trailing_zeros(), all - 1);
    let mut x = u64::from(n);
    // Each step is a bijection: a multiplication by an odd number, and a shift that is added.
    for factor in [0x9E37_79B9_7F4A_7C15u64, 0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB] {
        x = x.wrapping_mul(factor) & mask;
        x ^= x >> (bits / 2).max(1);
    }
    x as u32
}
