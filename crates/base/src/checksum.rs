//! crc32c (Castagnoli, RFC 3720), as in iSCSI, ext4 and btrfs. The crate `crc-fast` computes it.

use crc_fast::CrcAlgorithm::Crc32Iscsi;

use crate::units::BLOCK;

/// A crc32c value.
pub type Crc = u32;

/// The crc32c of `bytes`.
pub fn crc32c(bytes: &[u8]) -> Crc {
    crc_fast::checksum(Crc32Iscsi, bytes) as u32
}

/// The crc32c of the concatenation of `parts`.
pub fn crc32c_parts(parts: &[&[u8]]) -> Crc {
    let mut d = crc_fast::Digest::new(Crc32Iscsi);
    for p in parts {
        d.update(p);
    }
    d.finalize() as u32
}

/// The crc32c of each block of `bytes`. The length must be a multiple of [`BLOCK`].
pub fn block_crcs(bytes: &[u8]) -> impl Iterator<Item = Crc> + '_ {
    debug_assert_eq!(bytes.len() % BLOCK, 0);
    bytes.chunks_exact(BLOCK).map(crc32c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values_match() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283, "the check value of RFC 3720's polynomial");
        assert_eq!(crc32c(&[0u8; 32]), 0x8A91_36AA);
        assert_eq!(crc32c_parts(&[b"1234", b"", b"56789"]), 0xE306_9283);
    }
}
