//! Requests as the scheduler sees them, and runs of requests that go to the device as one.

use base::{ByteRange, Instant};
use smallvec::SmallVec;

use crate::stats::Class;

/// A request that waits. The scheduler does not look at its work, which says what it moves, and for
/// which task.
pub struct Request<W> {
    /// The class of the request.
    pub class: Class,
    /// True for a write, false for a read.
    pub write: bool,
    /// A write that is durable when it completes.
    pub durable: bool,
    /// The first byte on the device.
    pub offset: u64,
    /// Bytes.
    pub len: usize,
    /// Pieces of memory.
    pub segments: usize,
    /// When it came.
    pub since: Instant,
    /// Part of a request that failed: the request is asked for by itself.
    pub alone: bool,
    /// The number of pieces of the same larger request that follow.
    pub more: u32,
    /// The work of the request: what it moves, and for which task.
    pub work: W,
}

impl<W> Request<W> {
    /// The first byte behind it.
    pub fn end(&self) -> u64 {
        self.offset + self.len as u64
    }

    /// The bytes on the device that it moves.
    pub fn place(&self) -> ByteRange {
        ByteRange::new(self.offset, self.end())
    }

    /// True if it moves a byte of this range.
    pub fn overlaps(&self, range: ByteRange) -> bool {
        self.place().overlaps(&range)
    }
}

/// The largest size of a run.
#[derive(Clone, Copy)]
pub(crate) struct RunLimits {
    pub bytes: usize,
    pub segments: usize,
    /// Reads with up to this many bytes between them are one run, and these bytes are read too.
    pub gap: u64,
}

/// Requests that go to the device as one, in order of place.
pub struct MergedRequest<W> {
    parts: SmallVec<[Request<W>; 1]>,
    bytes: usize,
    segments: usize,
}

impl<W> MergedRequest<W> {
    pub(crate) fn of(first: Request<W>) -> MergedRequest<W> {
        let (bytes, segments) = (first.len, first.segments);
        let mut parts = SmallVec::new();
        parts.push(first);
        MergedRequest { parts, bytes, segments }
    }

    /// The first of them.
    pub fn first(&self) -> &Request<W> {
        &self.parts[0]
    }

    fn last(&self) -> &Request<W> {
        &self.parts[self.parts.len() - 1]
    }

    /// The first byte behind it.
    pub fn end(&self) -> u64 {
        self.last().end()
    }

    /// The bytes on the device from its start to its end.
    pub fn place(&self) -> ByteRange {
        ByteRange::new(self.first().offset, self.end())
    }

    /// Bytes from its start to its end.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The requests of the run.
    pub fn parts(&self) -> &[Request<W>] {
        &self.parts
    }

    /// The requests of the run, to own them.
    pub fn into_parts(self) -> SmallVec<[Request<W>; 1]> {
        self.parts
    }

    /// Pieces of the request it ends with that are not in it.
    pub(crate) fn more(&self) -> u32 {
        self.last().more
    }

    /// The bytes between its end and `next`, if that can be a part of it.
    fn gap_to(&self, next: &Request<W>, limits: &RunLimits) -> Option<usize> {
        let last = self.last();
        let gap = next.offset.checked_sub(last.end())?;
        let near = gap == 0 || gap <= limits.gap && !next.write;
        let like = last.class == next.class
            && last.write == next.write
            && last.durable == next.durable
            && !last.alone
            && !next.alone;
        (near && like).then_some(gap as usize)
    }

    /// True if `next` can be a part of it.
    pub(crate) fn takes(&self, next: &Request<W>, limits: &RunLimits) -> bool {
        let Some(gap) = self.gap_to(next, limits) else { return false };
        self.bytes + gap + next.len <= limits.bytes
            && self.segments + usize::from(gap > 0) + next.segments <= limits.segments
    }

    /// Adds a request that it takes.
    pub(crate) fn push(&mut self, next: Request<W>) {
        let gap = (next.offset - self.end()) as usize;
        self.bytes += gap + next.len;
        self.segments += usize::from(gap > 0) + next.segments;
        self.parts.push(next);
    }
}
