//! What the targets do, a file for each kind of source.

pub mod cache;
pub mod disk;
pub mod http;
pub mod nbd;
pub mod outer;
pub mod secure;

use base::BLOCK;

/// A block that begins with `bytes`; the rest is zeros.
fn block(bytes: &[u8]) -> [u8; BLOCK] {
    let mut out = [0; BLOCK];
    let n = bytes.len().min(BLOCK);
    out[..n].copy_from_slice(&bytes[..n]);
    out
}

/// The little-endian number at `at`.
fn word(bytes: &[u8], at: usize) -> u64 {
    let mut w = [0; 8];
    w.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(w)
}
