//! Hits of each block: two bits.

/// A count goes no further.
pub(super) const MOST_HITS: u8 = 3;

/// Blocks whose counts share a byte.
const IN_BYTE: usize = 4;

/// The counts of all blocks of all buckets. Those of a bucket begin with a byte of their own.
#[derive(Debug)]
pub(super) struct HitCounts {
    bucket_blocks: u32,
    bytes: usize,
    counts: Vec<u8>,
}

impl HitCounts {
    pub fn new(buckets: usize, bucket_blocks: u32) -> HitCounts {
        let bytes = (bucket_blocks as usize).div_ceil(IN_BYTE);
        HitCounts { bucket_blocks, bytes, counts: vec![0; buckets * bytes] }
    }

    pub fn bucket_blocks(&self) -> u32 {
        self.bucket_blocks
    }

    fn place(&self, id: u32, slot: u32) -> (usize, usize) {
        debug_assert!(slot < self.bucket_blocks);
        (id as usize * self.bytes + slot as usize / IN_BYTE, slot as usize % IN_BYTE * 2)
    }

    pub fn get(&self, id: u32, slot: u32) -> u8 {
        let (byte, shift) = self.place(id, slot);
        self.counts[byte] >> shift & MOST_HITS
    }

    pub fn set(&mut self, id: u32, slot: u32, hits: u8) {
        let (byte, shift) = self.place(id, slot);
        let byte = &mut self.counts[byte];
        *byte = *byte & !(MOST_HITS << shift) | hits.min(MOST_HITS) << shift;
    }

    /// Counts one more hit, up to [`MOST_HITS`].
    pub fn add(&mut self, id: u32, slot: u32) {
        self.set(id, slot, self.get(id, slot) + 1);
    }

    pub fn clear_bucket(&mut self, id: u32) {
        let from = id as usize * self.bytes;
        self.counts[from..from + self.bytes].fill(0);
    }

    /// The blocks of a bucket with exactly `hits` hits.
    pub fn slots_with(&self, id: u32, hits: u8) -> impl Iterator<Item = u32> + '_ {
        (0..self.bucket_blocks).filter(move |&slot| self.get(id, slot) == hits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_has_a_count_of_its_own() {
        let mut counts = HitCounts::new(3, 7);
        for (i, (id, slot)) in (0..3).flat_map(|id| (0..7).map(move |s| (id, s))).enumerate() {
            (0..i % 5).for_each(|_| counts.add(id, slot));
        }
        for (i, (id, slot)) in (0..3).flat_map(|id| (0..7).map(move |s| (id, s))).enumerate() {
            assert_eq!(counts.get(id, slot), (i % 5).min(3) as u8, "{id}, {slot}");
        }
        counts.set(1, 3, 1);
        counts.clear_bucket(0);
        assert_eq!((0..7).map(|s| counts.get(0, s)).sum::<u8>(), 0);
        assert_eq!((counts.get(1, 3), counts.slots_with(0, 0).count()), (1, 7));
    }
}
