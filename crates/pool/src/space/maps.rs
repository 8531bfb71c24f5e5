//! The bitmaps of a group in memory.

use base::{Bitmap, GroupId};
use format::page::MAX_BITMAP_PAGES;

/// A bitmap page of a group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct BitmapPage {
    pub group: GroupId,
    /// The number of the page among those of the group.
    pub page: u32,
}

/// The bitmaps of a group that is loaded.
pub(crate) struct Maps {
    /// Blocks that may not be allocated: `durable`, and those that open transactions took or have
    /// not given back yet.
    pub busy: Bitmap,
    /// The bitmap that the last commit wrote, or that the running one is about to write.
    pub durable: Bitmap,
    /// The slot (0 or 1) that holds the committed version of each page.
    pub slots: [u8; MAX_BITMAP_PAGES],
}
