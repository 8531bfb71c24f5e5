//! The chunks of a device that may be taken: those that the newest durable superblock offers.
//!
//! A process that ends leaves records of what was written to chunks, and the next start could make
//! nothing of chunks that the device table does not offer. So a device that has grown, and a spare
//! that begins to serve, offer more only once a superblock says so that is durable.

use base::Bitmap;
use format::superblock::DeviceRecord;

/// The chunks that a row of the device table offers.
#[derive(Clone, Copy)]
struct ChunkOffer {
    chunks: u64,
    /// None of them may be taken.
    spare: bool,
}

impl ChunkOffer {
    fn of(record: &DeviceRecord) -> ChunkOffer {
        ChunkOffer { chunks: record.chunks, spare: record.spare }
    }
}

/// The chunks of a device.
pub(crate) struct OfferedChunks {
    taken: Bitmap,
    free: u64,
    /// The newest durable superblock calls the device a spare.
    is_spare: bool,
    /// What the superblock that is being written says.
    written: ChunkOffer,
}

impl OfferedChunks {
    /// Of a device whose record is durable. None is taken.
    pub fn of(record: &DeviceRecord) -> OfferedChunks {
        let taken = Bitmap::new(record.chunks as usize);
        let written = ChunkOffer::of(record);
        OfferedChunks { taken, free: record.chunks, is_spare: written.spare, written }
    }

    /// The superblock that is written now says what the record says.
    pub fn note_written(&mut self, record: &DeviceRecord) {
        self.written = ChunkOffer::of(record);
    }

    /// The superblock that was written is durable.
    pub fn offer_written(&mut self) {
        let ChunkOffer { chunks, spare } = self.written;
        let had = self.taken.len() as u64;
        if chunks > had {
            let mut all = Bitmap::new(chunks as usize);
            all.set_words(0, self.taken.words());
            self.taken = all;
            self.free += chunks - had;
        }
        self.is_spare = spare;
    }

    /// True if the newest durable superblock calls the device a spare.
    pub fn is_spare(&self) -> bool {
        self.is_spare
    }

    /// Takes a chunk; false if it is not offered or is taken.
    pub fn take(&mut self, chunk: u32) -> bool {
        let fits = (chunk as usize) < self.taken.len();
        let took = fits && self.taken.assign(chunk as usize, 1, true) == 1;
        self.free -= u64::from(took);
        took
    }

    /// Takes any free chunk.
    pub fn take_any(&mut self) -> Option<u32> {
        let chunk = self.taken.find(0, false)? as u32;
        self.take(chunk).then_some(chunk)
    }

    /// Gives a chunk back.
    pub fn give(&mut self, chunk: u32) {
        self.free += self.taken.assign(chunk as usize, 1, false) as u64;
    }

    /// Chunks that are in use.
    pub fn in_use(&self) -> u64 {
        self.taken.len() as u64 - self.free
    }

    /// Chunks that may be taken.
    pub fn free(&self) -> u64 {
        self.free
    }
}
