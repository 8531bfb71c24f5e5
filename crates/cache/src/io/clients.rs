//! Knowledge about clients from their requests: when the last one came, which of them are streams,
//! and which blocks were written in part a moment ago.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use base::{Instant, Lba, VolumeId};

use crate::io::recent_parts::{IndexedBlock, RecentParts};
use crate::policy::streams::Streams;
use crate::transfer::block_part::BlockPart;

/// See the [module](self).
pub(crate) struct Clients {
    /// When a client asked for something last.
    last_request: Cell<Instant>,
    reads: Streams,
    writes: Streams,
    recent_parts: RefCell<RecentParts>,
}

impl Clients {
    /// No request has come before `now`. `cutoff`: see [`Streams::new`].
    pub fn new(now: Instant, cutoff: u64) -> Clients {
        Clients {
            last_request: Cell::new(now),
            reads: Streams::new(cutoff),
            writes: Streams::new(cutoff),
            recent_parts: RefCell::default(),
        }
    }

    /// A request has come.
    pub fn note_request(&self, now: Instant) {
        self.last_request.set(now);
    }

    /// The time since the last request.
    pub fn quiet_for(&self, now: Instant) -> Duration {
        now.since(self.last_request.get())
    }

    /// Notes a read for its stream; true if the stream is past the cutoff.
    pub fn follow_read(&self, volume: VolumeId, lba: Lba, blocks: u64) -> bool {
        self.reads.follow(volume, lba, blocks)
    }

    /// Notes a write for its stream; true if the stream is past the cutoff.
    pub fn follow_write(&self, volume: VolumeId, lba: Lba, blocks: u64) -> bool {
        self.writes.follow(volume, lba, blocks)
    }

    /// Sets the cutoff of all streams in bytes; 0: no stream is sequential.
    pub fn set_cutoff(&self, cutoff: u64) {
        self.reads.set_cutoff(cutoff);
        self.writes.set_cutoff(cutoff);
    }

    /// Keeps a block that was written in part; see [`RecentParts::keep`].
    pub fn keep_part(&self, volume: VolumeId, lba: Lba, stands: IndexedBlock, part: BlockPart) {
        self.recent_parts.borrow_mut().keep(volume, lba, stands, part);
    }

    /// The content of a block that was written in part a moment ago; see [`RecentParts::find`].
    pub fn find_part(&self, volume: VolumeId, lba: Lba, stands: IndexedBlock) -> Option<BlockPart> {
        self.recent_parts.borrow().find(volume, lba, stands)
    }
}
