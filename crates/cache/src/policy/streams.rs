//! Sequential streams: several of them, interleaved, are told apart by where each would go on.
//!
//! Reads and direct writes are followed apart. Blocks that a stream reads or writes past the cutoff
//! are not kept in the cache.

use std::cell::{Cell, RefCell};

use base::{BLOCK_U64, Lba, VolumeId};

/// Streams that are followed at once: a bit of a word for each.
const STREAMS: usize = 64;

/// The streams, by place, in one array for each field: every request searches `next`.
struct StreamTable {
    /// The block with which each goes on; the value of a free place is the block of no volume.
    next: [u64; STREAMS],
    volume: [VolumeId; STREAMS],
    bytes: [u64; STREAMS],
    /// A bit for each stream that went on since the hand passed it: the hand spares it once
    /// (CLOCK).
    went_on: u64,
    hand: usize,
}

/// The streams of one kind of request.
pub(crate) struct Streams {
    state: RefCell<StreamTable>,
    cutoff: Cell<u64>,
}

impl Streams {
    /// `cutoff`: a stream of more bytes than this is sequential; 0: none ever is.
    pub fn new(cutoff: u64) -> Streams {
        let none = StreamTable {
            next: [u64::MAX; STREAMS],
            volume: [VolumeId(0); STREAMS],
            bytes: [0; STREAMS],
            went_on: 0,
            hand: 0,
        };
        Streams { state: RefCell::new(none), cutoff: Cell::new(cutoff) }
    }

    /// Sets the cutoff in bytes; 0: no stream is sequential.
    pub fn set_cutoff(&self, cutoff: u64) {
        self.cutoff.set(cutoff);
    }

    /// Notes a request; true if it belongs to a stream that is past the cutoff.
    pub fn follow(&self, volume: VolumeId, lba: Lba, blocks: u64) -> bool {
        let cutoff = self.cutoff.get();
        if cutoff == 0 {
            return false;
        }
        let mut state = self.state.borrow_mut();
        let s = &mut *state;
        let mut bytes = blocks * BLOCK_U64;
        let place = match s.find(volume, lba) {
            Some(place) => {
                s.went_on |= 1 << place;
                bytes += s.bytes[place];
                place
            }
            None => s.replace(),
        };
        (s.next[place], s.volume[place], s.bytes[place]) = (lba.plus(blocks).0, volume, bytes);
        bytes > cutoff
    }
}

impl StreamTable {
    fn find(&self, volume: VolumeId, lba: Lba) -> Option<usize> {
        // Most requests continue no stream: one loop without branches finds that out.
        if !self.next.iter().fold(false, |found, &next| found | (next == lba.0)) {
            return None;
        }
        (0..STREAMS).find(|&i| self.next[i] == lba.0 && self.volume[i] == volume)
    }

    /// The place of a stream that is given up.
    fn replace(&mut self) -> usize {
        loop {
            let place = self.hand;
            self.hand = (self.hand + 1) % STREAMS;
            if self.went_on & (1 << place) == 0 {
                return place;
            }
            self.went_on &= !(1 << place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_streams() {
        let streams = Streams::new(4 << 20);
        let volume = VolumeId(1);
        for step in 0..8u64 {
            for stream in 0..STREAMS as u64 {
                let sequential = streams.follow(volume, Lba((stream << 30) + step * 256), 256);
                assert_eq!(sequential, step >= 4, "stream {stream}, step {step}");
            }
        }
        assert!(!streams.follow(volume, Lba(7), 1));
        assert!(!streams.follow(VolumeId(2), Lba(8 * 256), 256), "another volume");
        assert!(streams.follow(volume, Lba(1 << 40), 2048), "one large request");
    }

    #[test]
    fn a_cutoff_of_nothing_means_never() {
        assert!(!Streams::new(0).follow(VolumeId(1), Lba(0), 1 << 20));
    }
}
