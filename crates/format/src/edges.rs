//! The edges of a device: what must be zeros there for the device to count as empty.
//!
//! No list has the formats of all data, so none decides whether a device is empty.
//! Whatever lies on a device begins at its beginning or, as some members of RAIDs do, describes
//! itself at its end; so zeros in both edges say that nothing does. All places where libblkid looks
//! for a superblock are in them: the furthest from the beginning, the second header of LUKS 2, is
//! at 4 MiB, and the furthest from the end is 1.5 MiB before it.
//!
//! A device that was removed from its pool, and a cache that was detached, have zeros there. So
//! they count as empty again.

use std::ops::Range;

use base::BLOCK_U64;

/// Bytes of each edge, on devices that are large enough.
pub const EDGE_BYTES: u64 = 8 << 20;

/// The edges of a device of so many bytes. They do not overlap, each begins with a block, and the
/// second one may be empty.
pub fn edges(size_bytes: u64) -> [Range<u64>; 2] {
    let head = size_bytes.min(EDGE_BYTES);
    let tail = size_bytes.saturating_sub(EDGE_BYTES) / BLOCK_U64 * BLOCK_U64;
    [0..head, head.max(tail)..size_bytes]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_lie_on_the_device_and_apart() {
        const MIB: u64 = 1 << 20;
        assert_eq!(edges(0), [0..0, 0..0]);
        assert_eq!(edges(5000), [0..5000, 5000..5000]);
        assert_eq!(edges(8 * MIB + 512), [0..8 * MIB, 8 * MIB..8 * MIB + 512]);
        assert_eq!(edges(64 * MIB), [0..8 * MIB, 56 * MIB..64 * MIB]);
        assert_eq!(edges(64 * MIB + 512), [0..8 * MIB, 56 * MIB..64 * MIB + 512]);
        let [_, tail] = edges(u64::MAX);
        assert_eq!((tail.start % BLOCK_U64, tail.end), (0, u64::MAX));
    }
}
