//! Sequential streams: several of them, interleaved, are told apart by where each would go on.

use std::cell::RefCell;

use base::{BLOCK_U64, Lba, VolumeId};

/// Streams that are followed at once.
const STREAMS: usize = 64;

#[derive(Clone, Copy)]
struct Stream {
    volume: VolumeId,
    next: Lba,
    bytes: u64,
    seen: u64,
}

/// The streams of one kind of request.
pub(crate) struct Streams {
    state: RefCell<(Vec<Stream>, u64)>,
    cutoff: u64,
}

impl Streams {
    /// `cutoff`: from so many bytes on a stream is sequential; 0: none ever is.
    pub fn new(cutoff: u64) -> Streams {
        Streams { state: RefCell::new((Vec::with_capacity(STREAMS), 0)), cutoff }
    }

    /// All of a volume's streams begin anew: what has to be durable all the time is not what a long stream is.
    pub fn flushed(&self, volume: VolumeId) {
        self.state.borrow_mut().0.iter_mut().filter(|s| s.volume == volume).for_each(|s| s.bytes = 0);
    }

    /// Notes a request; true if it belongs to a stream that is past the cutoff.
    pub fn is_sequential(&self, volume: VolumeId, lba: Lba, blocks: u64) -> bool {
        if self.cutoff == 0 {
            return false;
        }
        let mut state = self.state.borrow_mut();
        let (streams, clock) = &mut *state;
        *clock += 1;
        let next = lba.plus(blocks);
        let stream = Stream { volume, next, bytes: blocks * BLOCK_U64, seen: *clock };
        if let Some(s) = streams.iter_mut().find(|s| s.volume == volume && s.next == lba) {
            *s = Stream { bytes: s.bytes + stream.bytes, ..stream };
            return s.bytes > self.cutoff;
        }
        if streams.len() < STREAMS {
            streams.push(stream);
        } else if let Some(oldest) = streams.iter_mut().min_by_key(|s| s.seen) {
            *oldest = stream;
        }
        stream.bytes > self.cutoff
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
                let sequential = streams.is_sequential(volume, Lba((stream << 30) + step * 256), 256);
                assert_eq!(sequential, step >= 4, "stream {stream}, step {step}");
            }
        }
        assert!(!streams.is_sequential(volume, Lba(7), 1));
        assert!(!streams.is_sequential(VolumeId(2), Lba(8 * 256), 256), "another volume");
        assert!(streams.is_sequential(volume, Lba(1 << 40), 2048), "one large request");
    }

    #[test]
    fn a_flush_begins_anew() {
        let streams = Streams::new(1 << 20);
        assert!(!streams.is_sequential(VolumeId(1), Lba(0), 256));
        assert!(streams.is_sequential(VolumeId(1), Lba(256), 1));
        streams.flushed(VolumeId(2));
        assert!(streams.is_sequential(VolumeId(1), Lba(257), 1));
        streams.flushed(VolumeId(1));
        assert!(!streams.is_sequential(VolumeId(1), Lba(258), 256));
        assert!(streams.is_sequential(VolumeId(1), Lba(514), 1));
    }

    #[test]
    fn a_cutoff_of_nothing_means_never() {
        assert!(!Streams::new(0).is_sequential(VolumeId(1), Lba(0), 1 << 20));
    }
}
