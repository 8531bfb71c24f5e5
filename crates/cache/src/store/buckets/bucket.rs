//! One bucket.

use base::{BucketGen, BucketId, Epoch};
use format::cache::bucket::{BucketKind, BucketRecord};

use super::epochs::{Dirt, Moment};

/// The stage of a bucket in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Life {
    /// May be filled.
    #[default]
    Free,
    /// Is being filled.
    Open,
    /// Is full; has unpublished blocks, or nodes, or is a candidate for eviction.
    Sealed,
    /// Holds nothing, but may not be overwritten yet.
    Pending,
    /// Has copies of the nodes of its twin, and goes when that goes.
    Twin,
    /// Not used any more: it gave errors.
    Retired,
}

/// Reads and writes of a bucket that are in flight. Clients decide how many there are, so the count
/// is as wide as no memory has room for requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Pins(u32);

impl Pins {
    /// Adds a pin.
    pub fn add(&mut self) {
        let Some(more) = self.0.checked_add(1) else { unreachable!("2^32 pins of one bucket") };
        self.0 = more;
    }

    /// Removes a pin. Returns true if that was the last.
    pub fn remove(&mut self) -> bool {
        let Some(left) = self.0.checked_sub(1) else { unreachable!("a bucket was not pinned") };
        self.0 = left;
        left == 0
    }

    /// True if there are none.
    pub fn is_none(self) -> bool {
        self.0 == 0
    }
}

#[derive(Clone, Default)]
pub(super) struct Bucket {
    pub generation: BucketGen,
    pub live: u16,
    /// Live nodes in it that checkpoints have replaced. They may still be read.
    pub replaced: u16,
    pub dirt: Dirt,
    /// The freeze after which it became free.
    pub freed_in: u32,
    pub pins: Pins,
    pub errors: u8,
    pub kind: BucketKind,
    pub life: Life,
    /// The epoch that was open when its dirty blocks were moved last; 0: they were not.
    pub compacted_in: Epoch,
    /// True if the bucket is a victim, and its survivors move.
    pub leaving: bool,
    /// Of nodes: the bucket with their copies. Of copies: the bucket of the nodes.
    pub twin: Option<BucketId>,
}

impl Bucket {
    /// The record at a moment, as the bucket table has it; of copies, without their number.
    pub fn record_at(&self, moment: Moment) -> BucketRecord {
        let (dirty_open, dirty_cut) = moment.named(&self.dirt);
        let (generation, kind, live, twin) = (self.generation, self.kind, self.live, self.twin);
        BucketRecord { generation, kind, live, dirty_open, dirty_cut, last_use: 0, twin }
    }

    /// All that no record says.
    pub fn unrecorded(&mut self) -> UnrecordedFields<'_> {
        UnrecordedFields {
            replaced: &mut self.replaced,
            freed_in: &mut self.freed_in,
            pins: &mut self.pins,
            errors: &mut self.errors,
            life: &mut self.life,
            compacted_in: &mut self.compacted_in,
            leaving: &mut self.leaving,
        }
    }
}

/// All of a bucket that no record says. The fields are those of [`Bucket`].
pub(super) struct UnrecordedFields<'a> {
    pub replaced: &'a mut u16,
    pub freed_in: &'a mut u32,
    pub pins: &'a mut Pins,
    pub errors: &'a mut u8,
    pub life: &'a mut Life,
    pub compacted_in: &'a mut Epoch,
    pub leaving: &'a mut bool,
}
