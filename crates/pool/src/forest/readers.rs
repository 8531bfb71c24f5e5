//! Readers that go through a volume in order, and how far the nodes, and the data, are asked for
//! that they will need.
//!
//! A read needs leaves of the mapping and of checksums. Loaded one at a time as reads come to them,
//! each costs a disk a seek, and the stream stands still meanwhile. So a reader that has gone on
//! for [`BEGINS`] blocks has its nodes read ahead of it, many at once. The window
//! grows with what it has read, so that a short one costs little.
//!
//! On disks that rotate, data is asked for as well, of readers whose requests are small beside a
//! window. One with large requests has many of them in flight, or waits for the disk's transfer
//! more than for its head. A large request may come here in pieces, of which the first and the last
//! are small: so some requests in a row have to be.

use base::{BlockRange, Lba, VolumeId};

/// Readers that are followed at once.
const READERS: usize = 16;
/// Blocks after which a reader that goes on is sequential.
const BEGINS: u64 = 128;
/// Blocks that a cache has and that may lie between two reads of one reader.
const GAP: u64 = 64;
/// Requests of a sequential reader may come out of order, so many of them apart. It is by their
/// size, as random reads of single blocks would else be taken for those of a reader.
const SLACK: u64 = 8;
/// Reads of others for which a sequential reader keeps its place.
const KEPT: u64 = 4096;
/// The window is so many times as large as what was read,
const GROWTH: u64 = 4;
/// at most so many blocks for each node that is kept in memory: a leaf mostly has the records of
/// many more,
const BLOCKS_A_NODE: u64 = 32;
/// and never more.
const MOST: u64 = 32_768;
/// A reader that has gone on for so many blocks has data read ahead,
const DATA_BEGINS: u64 = 8;
/// so many times as much as it has read, up to the largest window,
const DATA_GROWTH: u64 = 2;
/// if its last requests, so many of them,
const DATA_REQUESTS: u32 = 4;
/// are at most such a part of that.
const DATA_PART: u64 = 8;

/// The nodes and the data that a reader will need soon.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct UpcomingReads {
    /// Blocks whose nodes should be read.
    pub nodes: Option<BlockRange>,
    /// Blocks that should be read.
    pub data: Option<BlockRange>,
}

#[derive(Clone, Copy)]
struct SequentialReader {
    volume: VolumeId,
    /// The block behind the last that it read.
    next: u64,
    /// Blocks that it has read since its first request.
    read: u64,
    /// The same of late, without half of those that it has passed over: what is read in vain is at
    /// most twice what it reads.
    dense: u64,
    /// Requests in a row that were small.
    small: u32,
    /// Nodes up to here were asked for.
    ahead: u64,
    /// Data up to here was asked for.
    data: u64,
    /// The number of its last read among those of all readers.
    used: u64,
}

impl SequentialReader {
    fn new(volume: VolumeId, next: u64, used: u64) -> SequentialReader {
        SequentialReader { volume, next, read: 0, dense: 0, small: 0, ahead: 0, data: 0, used }
    }

    fn is_sequential(&self) -> bool {
        self.read >= BEGINS
    }

    fn goes_on(&self, volume: VolumeId, lba: u64, blocks: u64) -> bool {
        // Requests that are not whole blocks have one in common with their neighbours.
        let behind = lba <= self.next.saturating_add(GAP) && lba.saturating_add(blocks) > self.next;
        let slack = blocks.saturating_mul(SLACK);
        let near = behind || self.is_sequential() && lba.abs_diff(self.next) <= slack;
        near && self.volume == volume
    }

    /// The part behind `asked` of a window of so many blocks, if less than half of it was asked
    /// for.
    fn window(&self, asked: u64, blocks: u64) -> Option<BlockRange> {
        let (from, end) = (asked.max(self.next), self.next.saturating_add(blocks));
        let is_due = from - self.next <= blocks / 2 && from < end;
        is_due.then_some(BlockRange::new(Lba(from), Lba(end)))
    }
}

/// The readers of all volumes.
pub(super) struct Readers {
    readers: [SequentialReader; READERS],
    reads: u64,
    /// The largest window, in blocks.
    most: u64,
}

impl Readers {
    /// For a store of `cached_nodes` nodes.
    pub fn new(cached_nodes: usize) -> Readers {
        let none = SequentialReader::new(VolumeId(0), u64::MAX, 0);
        let most = (cached_nodes as u64).saturating_mul(BLOCKS_A_NODE).min(MOST);
        Readers { readers: [none; READERS], reads: 0, most }
    }

    /// Notes a read. Returns what should be read now, if the reader is a sequential one that has
    /// come near to the end of what was asked for. Data is asked for up to `most` blocks ahead.
    pub fn follow(&mut self, volume: VolumeId, lba: Lba, blocks: u64, most: u64) -> UpcomingReads {
        self.reads += 1;
        let Some(reader) = self.readers.iter_mut().find(|r| r.goes_on(volume, lba.0, blocks))
        else {
            let begun = SequentialReader::new(volume, lba.0.saturating_add(blocks), self.reads);
            *self.least_useful() = begun;
            return UpcomingReads::default();
        };
        reader.used = self.reads;
        let passed_over = lba.0.saturating_sub(reader.next);
        reader.next = reader.next.max(lba.0.saturating_add(blocks));
        reader.read = reader.read.saturating_add(blocks);
        reader.dense =
            reader.dense.saturating_sub(passed_over / 2).saturating_add(blocks).min(most);
        let is_small = blocks.saturating_mul(DATA_PART) <= most;
        reader.small = if is_small { reader.small.saturating_add(1) } else { 0 };
        let mut ahead = UpcomingReads::default();
        if reader.is_sequential() {
            let window = reader.read.saturating_mul(GROWTH).min(self.most);
            ahead.nodes = reader.window(reader.ahead, window);
        }
        if reader.dense >= DATA_BEGINS && reader.small >= DATA_REQUESTS {
            let window = (reader.dense * DATA_GROWTH).min(most);
            ahead.data = reader.window(reader.data, window);
        }
        reader.ahead = ahead.nodes.map_or(reader.ahead, |range| range.end.0);
        reader.data = ahead.data.map_or(reader.data, |range| range.end.0);
        ahead
    }

    /// The one that a new reader replaces: what was used last the longest time ago, but for
    /// sequential ones.
    fn least_useful(&mut self) -> &mut SequentialReader {
        let now = self.reads;
        let worth = |r: &SequentialReader| {
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
            let asked = readers.follow(V, Lba(i * 64), 64, 0).nodes;
            assert!(asked.is_none() || i > 0, "a first read is no stream");
            if let Some(BlockRange { from, end: to }) = asked {
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
        let asked = (0..1000).filter_map(|i| readers.follow(V, Lba(i * 256), 256, 0).nodes);
        assert!(asked.map(|range| range.blocks()).max() <= Some(256 * BLOCKS_A_NODE));
    }

    #[test]
    fn random_reads_ask_for_nothing_and_leave_a_stream_its_place() {
        let (mut readers, mut r) = (Readers::new(1 << 20), Prng::new(3));
        let mut windows = 0;
        for i in 0..10_000 {
            let random = readers.follow(V, Lba((1 << 32) + r.below(1 << 30)), 1, 128);
            assert_eq!(random, UpcomingReads::default());
            // Requests of the stream come in pairs whose order is wrong, once it has begun.
            if i % 8 == 0 {
                let n = i / 8;
                let n = if n > 8 { n ^ 1 } else { n };
                windows += usize::from(readers.follow(V, Lba(n * 64), 64, 0).nodes.is_some());
            }
        }
        assert!((3..100).contains(&windows), "{windows}");
    }

    #[test]
    fn volumes_are_told_apart() {
        let mut readers = Readers::new(1 << 20);
        for i in 0..100 {
            let ahead = readers.follow(VolumeId(1 + i % 2), Lba(i as u64 * 512), 512, 128);
            assert_eq!(ahead, UpcomingReads::default());
        }
    }

    /// Interleaved readers of 8 KiB that begin in the middle of a block: each block is asked for
    /// once, and never more ahead than twice what was read.
    #[test]
    fn data_is_asked_for_before_readers_of_small_requests_come_to_it() {
        let mut readers = Readers::new(1 << 20);
        let mut upto = [None; 5];
        let mut unforeseen = 0;
        for i in 0..2000_u64 {
            for (stream, upto) in upto.iter_mut().enumerate() {
                let lba = (stream as u64) << 32 | (i * 2);
                unforeseen += u32::from(upto.is_none_or(|upto| upto < lba + 3));
                let ahead = readers.follow(V, Lba(lba), 3, 128);
                if let Some(BlockRange { from, end }) = ahead.data {
                    assert!(upto.is_none_or(|upto| upto == from.0), "{from:?} after {upto:?}");
                    assert!(end.0 - (lba + 3) <= (3 * i * DATA_GROWTH).min(128));
                    *upto = Some(end.0);
                }
            }
        }
        assert!(unforeseen <= 5 * 6, "{unforeseen} requests found nothing");
    }

    #[test]
    fn readers_of_large_requests_read_ahead_by_themselves() {
        let mut readers = Readers::new(1 << 20);
        assert!((0..100).all(|i| readers.follow(V, Lba(i * 17), 17, 128).data.is_none()));
        assert!((0..100).any(|i| readers.follow(V, Lba(i * 16), 16, 128).data.is_some()));
        assert!((0..100).all(|i| readers.follow(V, Lba(i * 16), 16, 0).data.is_none()));
    }

    /// Random requests that come in pieces of at most 32 blocks.
    #[test]
    fn pieces_of_a_large_request_are_no_reader_of_small_ones() {
        let (mut readers, mut r) = (Readers::new(1 << 20), Prng::new(5));
        for _ in 0..10_000 {
            let (mut at, end) = (r.below(1 << 32), 64 + r.below(200));
            let end = at + end;
            while at < end {
                let next = (at / 32 + 1) * 32;
                let ahead = readers.follow(V, Lba(at), next.min(end) - at, 128);
                assert_eq!(ahead.data, None);
                at = next;
            }
        }
    }

    #[test]
    fn what_is_read_in_vain_is_at_most_twice_what_is_read() {
        for every in 1..64 {
            let mut readers = Readers::new(1 << 20);
            // In one piece first, so that the window is large; then with gaps.
            let places = (0..500).map(|i| i * 2).chain((0..2000).map(|i| 1000 + i * (every + 2)));
            let (mut asked, mut read) = (0, 0);
            for lba in places {
                let data = readers.follow(V, Lba(lba), 2, 128).data;
                asked += data.map_or(0, |range| range.blocks());
                read += 2;
            }
            assert!(asked <= read * 3 + 256, "a gap of {every}: {asked} for {read}");
            assert!(every < 6 || asked < 2500, "a gap of {every}: {asked} for {read}");
        }
    }
}
