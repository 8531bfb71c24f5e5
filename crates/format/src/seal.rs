//! Sealed blocks: 4096 bytes, the last four of which are the crc32c of the others. Superblocks and
//! pages are sealed. Nodes and data are not: the reference to them holds their crc32c.

use base::{BLOCK, crc32c};

use crate::FormatError;

/// The offset of the seal in a block.
pub const SEAL_AT: usize = BLOCK - 4;

/// Seals `block`, which has [`BLOCK`] bytes.
pub fn seal(block: &mut [u8]) {
    let crc = crc32c(&block[..SEAL_AT]);
    block[SEAL_AT..BLOCK].copy_from_slice(&crc.to_le_bytes());
}

/// Checks the length and the seal of `block`.
pub fn check_seal(what: &'static str, block: &[u8]) -> Result<(), FormatError> {
    if block.len() != BLOCK {
        return Err(FormatError::Length { what, want: BLOCK, got: block.len() });
    }
    if block[SEAL_AT..] != crc32c(&block[..SEAL_AT]).to_le_bytes() {
        return Err(FormatError::Checksum(what));
    }
    Ok(())
}
