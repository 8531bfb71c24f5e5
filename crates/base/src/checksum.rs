//! crc32c (Castagnoli, as in iSCSI, ext4 and btrfs), by crate `crc-fast`.

use crc_fast::CrcAlgorithm::Crc32Iscsi;

use crate::units::BLOCK;

/// A crc32c.
pub type Crc = u32;

/// The crc32c of `bytes`.
pub fn crc32c(bytes: &[u8]) -> Crc {
    crc_fast::checksum(Crc32Iscsi, bytes) as u32
}

/// The crc32c of a whole that is not contiguous: of `parts`, one after the other.
pub fn crc32c_parts(parts: &[&[u8]]) -> Crc {
    let mut d = crc_fast::Digest::new(Crc32Iscsi);
    for p in parts {
        d.update(p);
    }
    d.finalize() as u32
}

/// The crc32c of every block of `bytes`, whose length is a multiple of [`BLOCK`].
pub fn block_crcs(bytes: &[u8]) -> impl Iterator<Item = Crc> + '_ {
    debug_assert_eq!(bytes.len() % BLOCK, 0);
    bytes.chunks_exact(BLOCK).map(crc32c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283, "the check value of RFC 3720's polynomial");
        assert_eq!(crc32c(&[0u8; 32]), 0x8A91_36AA);
        assert_eq!(crc32c_parts(&[b"1234", b"", b"56789"]), 0xE306_9283);
    }
}
