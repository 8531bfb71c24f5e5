//! Fills blocks, and says what they hold: one byte, or one number.

use base::{BLOCK, Lba, Result, Slice, SliceList, VolumeId};
use pool::Pool;
use volume::Volume;

/// `n` blocks full of one byte.
pub fn blocks(value: u8, n: u64) -> Slice {
    let mut buf = base::BufPool::new(0).take(n as usize * BLOCK);
    buf.fill(value);
    buf.freeze()
}

/// One block full of one byte.
pub fn block(value: u8) -> Slice {
    blocks(value, 1)
}

/// The byte that `data` is full of. `None`: it holds several.
pub fn only_byte(data: &SliceList) -> Option<u8> {
    let first = data[0][0];
    data.iter().flat_map(|s| s.iter()).all(|&b| b == first).then_some(first)
}

/// A block for each of `values`, full of that number.
pub fn numbers(values: &[u64]) -> Slice {
    let mut buf = base::BufPool::new(0).take(values.len() * BLOCK);
    for (block, value) in buf.chunks_mut(BLOCK).zip(values) {
        block.chunks_mut(8).for_each(|c| c.copy_from_slice(&value.to_le_bytes()));
    }
    buf.freeze()
}

/// The number that `data` is full of. `None`: it is a mixture.
pub fn number(data: &SliceList) -> Option<u64> {
    let all: Vec<u8> = data.iter().flat_map(|s| s.to_vec()).collect();
    let value = u64::from_le_bytes(all[..8].try_into().expect("8 bytes"));
    all.chunks(8).all(|c| c == value.to_le_bytes()).then_some(value)
}

/// Writes `n` blocks full of `value` to a volume of the pool.
pub async fn try_put(pool: &Pool, id: VolumeId, lba: u64, n: u64, value: u8) -> Result<()> {
    let mut data = pool.bufs().take(n as usize * BLOCK);
    data.fill(value);
    pool.write(id, Lba(lba), &data.freeze()).await
}

/// As [`try_put`], where it succeeds.
pub async fn put(pool: &Pool, id: VolumeId, lba: u64, n: u64, value: u8) {
    try_put(pool, id, lba, n, value).await.expect("write");
}

/// Fills the first `n` blocks of a volume with `value`, and commits.
pub async fn fill(pool: &Pool, id: VolumeId, n: u64, value: u8) {
    put(pool, id, 0, n, value).await;
    pool.commit().await.expect("commit");
}

/// Asserts that a volume is full of `value` from byte `from` to byte `end`.
pub async fn holds(volume: &Volume, from: u64, end: u64, value: u8) {
    let data = volume.read(from, end - from).await.expect("read");
    let wrong = data.iter().flat_map(|s| s.iter()).position(|&b| b != value);
    assert_eq!(wrong, None, "bytes from {from} on are not {value}");
}
