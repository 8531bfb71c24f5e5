//! The buckets that are being filled.

use base::BucketId;

use super::census::{STREAMS, Stream};

#[derive(Clone, Copy)]
struct OpenBucket {
    id: BucketId,
    filled: u32,
}

/// Blocks to be filled next, in a bucket that is being filled.
pub(super) struct FillPiece {
    pub id: BucketId,
    /// The first of them, by its place in the bucket.
    pub slot: u32,
    pub len: u32,
    /// True if the bucket is full with them.
    pub is_last: bool,
}

/// The bucket that each stream fills, if there is one. None of them is full.
pub struct OpenBuckets {
    bucket_blocks: u32,
    summary_blocks: u32,
    open: [Option<OpenBucket>; STREAMS],
}

impl OpenBuckets {
    /// Nothing is being filled. Buckets of data end with their summary.
    pub(super) fn new(bucket_blocks: u32, summary_blocks: u32) -> OpenBuckets {
        OpenBuckets { bucket_blocks, summary_blocks, open: [None; STREAMS] }
    }

    /// Blocks of a bucket that a stream fills: without those that its summary takes.
    pub fn capacity(&self, stream: Stream) -> u32 {
        match stream {
            Stream::Nodes => self.bucket_blocks,
            _ => self.bucket_blocks - self.summary_blocks,
        }
    }

    /// The bucket that a stream fills.
    pub(super) fn open_of(&self, stream: Stream) -> Option<BucketId> {
        self.open[stream as usize].map(|open| open.id)
    }

    /// Blocks that are left in the bucket that a stream fills.
    pub(super) fn left_of(&self, stream: Stream) -> u32 {
        self.open[stream as usize].map_or(0, |open| self.capacity(stream) - open.filled)
    }

    /// A stream fills this bucket from now on.
    pub(super) fn begin(&mut self, stream: Stream, id: BucketId) {
        self.open[stream as usize] = Some(OpenBucket { id, filled: 0 });
    }

    /// A stream does not fill the rest of its bucket.
    pub(super) fn end(&mut self, stream: Stream) {
        self.open[stream as usize] = None;
    }

    /// Takes up to `want` blocks of the bucket that a stream fills.
    pub(super) fn take_blocks(&mut self, stream: Stream, want: u32) -> Option<FillPiece> {
        let capacity = self.capacity(stream);
        let open = self.open[stream as usize].as_mut()?;
        let (id, slot) = (open.id, open.filled);
        let len = want.min(capacity - slot);
        open.filled += len;
        let is_last = open.filled == capacity;
        if is_last {
            self.end(stream);
        }
        Some(FillPiece { id, slot, len, is_last })
    }
}
