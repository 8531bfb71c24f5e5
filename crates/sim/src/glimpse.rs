//! Reads that see parts of writes which are in flight.

use base::{BufList, Prng, SECTOR, SliceList};

/// Lets a read of `len` bytes at `offset` see some sectors of a write at `from` that is in flight.
pub(crate) fn glimpse(
    rng: &mut Prng,
    mut from: u64,
    data: &SliceList,
    offset: u64,
    len: u64,
    bufs: &mut BufList,
) {
    let share = rng.below(5);
    if share == 0 {
        return;
    }
    for slice in data {
        for sector in slice.chunks(SECTOR) {
            if rng.below(4) < share {
                overlay(from, sector, offset, len, bufs);
            }
            from += sector.len() as u64;
        }
    }
}

/// Copies the part of `bytes` (at offset `from`) that lies inside a read of `len` bytes at `offset`
/// into the read's buffers.
fn overlay(from: u64, bytes: &[u8], offset: u64, len: u64, bufs: &mut BufList) {
    let mut start = offset;
    for buf in bufs {
        let end = (start + buf.len() as u64).min(offset + len);
        let (a, b) = (from.max(start), (from + bytes.len() as u64).min(end));
        if a < b {
            buf[(a - start) as usize..(b - start) as usize]
                .copy_from_slice(&bytes[(a - from) as usize..(b - from) as usize]);
        }
        start += buf.len() as u64;
    }
}
