//! A sealed block: 4096 bytes of which the last four are the crc32c of the others. Superblocks and pages are sealed; nodes
//! and data are not, their crc32c stands in whoever refers to them.

use base::{BLOCK, crc32c};

use crate::FormatError;

/// Where the seal is.
pub const SEAL_AT: usize = BLOCK - 4;

/// Seals `block`, of [`BLOCK`] bytes.
pub fn seal(block: &mut [u8]) {
    let crc = crc32c(&block[..SEAL_AT]);
    block[SEAL_AT..BLOCK].copy_from_slice(&crc.to_le_bytes());
}

/// Checks length and seal of `block`.
pub fn check_seal(what: &'static str, block: &[u8]) -> Result<(), FormatError> {
    if block.len() != BLOCK {
        return Err(FormatError::Length { what, want: BLOCK, got: block.len() });
    }
    if block[SEAL_AT..] != crc32c(&block[..SEAL_AT]).to_le_bytes() {
        return Err(FormatError::Checksum(what));
    }
    Ok(())
}
