//! Readers that go through a volume in order, and how far the nodes are asked for that they will
//! need.
//!
//! A read needs leaves of the mapping and of checksums. Loaded one at a time as reads come to them,
//! each costs a disk a seek, and the stream stands still meanwhile. So a reader that has gone on
//! for [`BEGINS`] blocks has its nodes read ahead of it, many at once. The window
//! grows with what it has read, so that a short one costs little.

use base::{Lba, VolumeId};

/// Readers that are followed at once.
const READERS: usize = 16;
/// A reader that has gone on for so many blocks is sequential.
const BEGINS: u64 = 128;
/// So many blocks that a cache has may lie between two reads of one reader.
const GAP: u64 = 64;
/// Requests of a sequential reader may come out of order, so many of them apart. It is by their
/// size, as random reads of single blocks would else be taken for those of a reader.
const SLACK: u64 = 8;
/// A sequential reader keeps its place for so many reads of others.
const KEPT: u64 = 4096;
/// The window is so many times as large as what was read,
const GROWTH: u64 = 4;
/// at most so many blocks for each node that is kept in memory: a leaf mostly has the records of
/// many more,
const BLOCKS_A_NODE: u64 = 32;
/// and never more.
const MOST: u64 = 32_768;

#[derive(Clone, Copy)]
struct Reader {
    volume: VolumeId,
    /// The block behind the last that it read.
    next: u64,
    /// Blocks that it has read since its first request.
    read: u64,
    /// Nodes up to here were asked for.
    ahead: u64,
    /// The number of its last read among those of all readers.
    used: u64,
}

impl Reader {
    fn is_sequential(&self) -> bool {
        self.read >= BEGINS
    }

    fn goes_on(&self, volume: VolumeId, lba: u64, blocks: u64) -> bool {
        let behind = lba.checked_sub(self.next).is_some_and(|gap| gap <= GAP);
        let slack = blocks.saturating_mul(SLACK);
        let near = behind || self.is_sequential() && lba.abs_diff(self.next) <= slack;
        near && self.volume == volume
    }
}

/// The readers of all volumes.
pub(super) struct Readers {
    readers: [Reader; READERS],
    reads: u64,
    /// The largest window, in blocks.
    most: u64,
}

impl Readers {
    /// For a store of so many nodes.
    pub fn new(cached_nodes: usize) -> Readers {
        let none = Reader { volume: VolumeId(0), next: u64::MAX, read: 0, ahead: 0, used: 0 };
        let most = (cached_nodes as u64).saturating_mul(BLOCKS_A_NODE).min(MOST);
        Readers { readers: [none; READERS], reads: 0, most }
    }

    /// Notes a read. Returns the blocks whose nodes should be read now, if the reader is a
    /// sequential one that has come near to the end of what was asked for.
    pub fn follow(&mut self, volume: VolumeId, lba: Lba, blocks: u64) -> Option<(Lba, Lba)> {
        self.reads += 1;
        let Some(reader) = self.readers.iter_mut().find(|r| r.goes_on(volume, lba.0, blocks))
        else {
            let begun = Reader {
                volume,
                next: lba.0.saturating_add(blocks),
                read: 0,
                ahead: 0,
                used: self.reads,
            };
            *self.least_useful() = begun;
            return None;
        };
        reader.used = self.reads;
        reader.next = reader.next.max(lba.0.saturating_add(blocks));
        reader.read = reader.read.saturating_add(blocks);
        if !reader.is_sequential() {
            return None;
        }
        let window = reader.read.saturating_mul(GROWTH).min(self.most);
        let from = reader.ahead.max(reader.next);
        if from - reader.next > window / 2 {
            return None;
        }
        reader.ahead = reader.next.saturating_add(window);
        (from < reader.ahead).then_some((Lba(from), Lba(reader.ahead)))
    }

    /// The one that a new reader replaces: what was used last the longest time ago, but for
    /// sequential ones.
    fn least_useful(&mut self) -> &mut Reader {
        let now = self.reads;
        let worth = |r: &Reader| {
            let kept = r.is_sequential() && now - r.used <= KEPT;
            (kept, r.used)
        };
        let least = (1..READERS).fold(0, |least, i| {
            if worth(&self.readers[i]) < worth(&self.readers[least]) { i } else { least }
        });
        &mut self.readers[least]
    }
}

#[cfg(test)]
mod tests {
    use base::Prng;

    use super::*;

    const V: VolumeId = VolumeId(1);

    #[test]
    fn the_window_grows_with_what_was_read_and_covers_each_block_once() {
        let mut readers = Readers::new(1 << 20);
        let (mut covered, mut largest) = (None, 0);
        for i in 0..4096 {
            let asked = readers.follow(V, Lba(i * 64), 64);
            assert!(asked.is_none() || i > 0, "a first read is no stream");
            if let Some((from, to)) = asked {
                assert!(covered.is_none_or(|end| end == from), "a gap before {from:?}");
                assert!(to.0 - i * 64 <= (i + 2) * 64 * GROWTH);
                largest = largest.max(to.0 - (i + 1) * 64);
                covered = Some(to);
            }
            assert!(i < 2 || covered.is_some_and(|end| end.0 >= (i + 1) * 64));
        }
        assert_eq!(largest, MOST);
    }

    #[test]
    fn a_small_store_has_a_small_window() {
        let mut readers = Readers::new(256);
        let asked = (0..1000).filter_map(|i| readers.follow(V, Lba(i * 256), 256));
        assert!(asked.map(|(from, to)| to.0 - from.0).max() <= Some(256 * BLOCKS_A_NODE));
    }

    #[test]
    fn random_reads_ask_for_nothing_and_leave_a_stream_its_place() {
        let (mut readers, mut r) = (Readers::new(1 << 20), Prng::new(3));
        let mut windows = 0;
        for i in 0..10_000 {
            assert_eq!(readers.follow(V, Lba((1 << 32) + r.below(1 << 30)), 1), None);
            // Requests of the stream come in pairs whose order is wrong, once it has begun.
            if i % 8 == 0 {
                let n = i / 8;
                let n = if n > 8 { n ^ 1 } else { n };
                windows += usize::from(readers.follow(V, Lba(n * 64), 64).is_some());
            }
        }
        assert!((3..100).contains(&windows), "{windows}");
    }

    #[test]
    fn volumes_are_told_apart() {
        let mut readers = Readers::new(1 << 20);
        for i in 0..100 {
            assert_eq!(readers.follow(VolumeId(1 + i % 2), Lba(i as u64 * 512), 512), None);
        }
    }
}
