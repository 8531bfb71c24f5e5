//! Bitmaps of groups: loading, planning what a commit makes of them, and their pages.
//!
//! A commit plans its changes on copies of pages, and installs the copies when all changes fit. A
//! free of a block that is not allocated is found while planning, so nothing is changed in part.

use std::collections::{BTreeMap, BTreeSet};

use base::{BLOCK, Bitmap, Buf, BufPool, ErrorKind, Generation, GroupId, Result, StorageError};
use format::page::{
    BITS_PER_PAGE, MAX_BITMAP_PAGES, PageId, PageKind, encode_bitmap, payload_mut, seal_page,
};

use super::block_run::Run;
use super::geometry::Geometry;
use super::maps::{BitmapPage, Maps};

const WORDS_PER_PAGE: usize = BITS_PER_PAGE as usize / 64;

/// The progress of dropping idle bitmaps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UnloadProgress {
    /// No bitmap is left to be dropped.
    Done,
    /// The tries are used up.
    MayBeMore,
}

/// Pages as a commit will make them.
#[derive(Default)]
pub(crate) struct PlannedBitmaps(BTreeMap<BitmapPage, Bitmap>);

impl PlannedBitmaps {
    /// The number of pages.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn pop(&mut self) -> Option<(BitmapPage, Bitmap)> {
        self.0.pop_first()
    }
}

/// The change that a commit makes to a bitmap page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PageChange {
    /// The page says the same as before.
    Same,
    /// The page has no bit any more. Such a page is not written: the group's record says so.
    Cleared,
    /// The page has to be written.
    Changed,
}

/// The content of a bitmap page in memory, and of its group.
pub(super) struct BitmapContent {
    /// The page has no bit.
    pub clear: bool,
    /// Blocks of the group in use.
    pub used: u32,
}

/// The bitmaps of the groups that are loaded.
///
/// - A block that is in use by the durable bitmap of a group is busy.
/// - Once it is loaded, the durable bitmap changes only by [`Bitmaps::install`].
/// - In a group whose bitmaps are not in memory, all busy blocks are durable.
pub(crate) struct Bitmaps {
    geometry: Geometry,
    maps: BTreeMap<GroupId, Maps>,
    /// The number of the group where the search for idle ones goes on.
    unload_hand: GroupId,
    /// Bitmap pages that the next commit must write, whatever they say.
    forced: BTreeSet<BitmapPage>,
}

impl Bitmaps {
    pub(super) fn new(geometry: Geometry) -> Bitmaps {
        let (maps, unload_hand, forced) = (BTreeMap::new(), GroupId(0), BTreeSet::new());
        Bitmaps { geometry, maps, unload_hand, forced }
    }

    /// True if the bitmaps of a group are in memory.
    pub fn has(&self, id: GroupId) -> bool {
        self.maps.contains_key(&id)
    }

    /// The number of groups that have their bitmaps in memory.
    pub fn loaded(&self) -> usize {
        self.maps.len()
    }

    /// The blocks of a group that are in use as of the last commit, or the one that runs; `None` if
    /// the bitmaps of the group are not in memory.
    pub fn durable(&self, id: GroupId) -> Option<&Bitmap> {
        self.maps.get(&id).map(|maps| &maps.durable)
    }

    /// Blocks of a group before this one that are in use as of the last commit, or the one that
    /// runs; `None` if the bitmaps of the group are not in memory.
    pub(super) fn used_before(&self, id: GroupId, block: u32) -> Option<u64> {
        let maps = self.maps.get(&id)?;
        let (words, rest) = (block as usize / 64, block % 64);
        let words = maps.durable.words().iter().take(words + 1).enumerate().map(|(i, word)| {
            let mask = if i < words { u64::MAX } else { (1 << rest) - 1 };
            u64::from((word & mask).count_ones())
        });
        Some(words.sum())
    }

    /// The slots that hold the committed versions of a group's bitmap pages, if they are known.
    pub fn slots(&self, id: GroupId) -> Option<[u8; MAX_BITMAP_PAGES]> {
        self.maps.get(&id).map(|maps| maps.slots)
    }

    /// Brings a group's bitmaps into memory.
    pub(super) fn enter(&mut self, id: GroupId, maps: Maps) {
        self.maps.insert(id, maps);
    }

    /// A group was taken into use: nothing is in it.
    pub(super) fn enter_empty(&mut self, id: GroupId) {
        let bits = self.geometry.group_blocks as usize;
        let (busy, durable) = (Bitmap::new(bits), Bitmap::new(bits));
        self.enter(id, Maps { busy, durable, slots: [0; MAX_BITMAP_PAGES] });
    }

    /// Drops the bitmaps of a group that was given up.
    pub(super) fn drop_empty(&mut self, id: GroupId) {
        self.maps.remove(&id);
    }

    /// Takes up to `want` contiguous free blocks of a group that is loaded, from block `at` on.
    pub(super) fn take(&mut self, id: GroupId, at: u32, want: u32) -> Option<Run> {
        let maps = self.maps.get_mut(&id)?;
        let (start, len) = maps.busy.find_free_run(at as usize, want as usize)?;
        maps.busy.assign(start, len, true);
        Some(Run { addr: self.geometry.join(id, start as u32), len: len as u32 })
    }

    /// Takes exactly these blocks. False: one of them is not free, or the group is not loaded.
    pub(super) fn take_exactly(&mut self, run: Run) -> bool {
        let (id, start) = self.geometry.split(run.addr);
        let Some(maps) = self.maps.get_mut(&id) else { return false };
        let (start, len) = (start as usize, run.len as usize);
        let is_free = maps.busy.find_free_run(start, len) == Some((start, len));
        if is_free {
            maps.busy.assign(start, len, true);
        }
        is_free
    }

    /// The blocks of this run are not busy any more.
    pub(super) fn release(&mut self, run: Run) {
        let (id, block) = self.geometry.split(run.addr);
        let freed = match self.maps.get_mut(&id) {
            Some(m) => m.busy.assign(block as usize, run.len as usize, false) as u32,
            None => unreachable!("{id:?} has blocks in limbo: its maps stay loaded"),
        };
        assert_eq!(freed, run.len, "blocks of {run:?} were free already");
    }

    /// Drops the bitmaps of groups in which nothing is going on, as long as more than `keep` are in
    /// memory, looking at up to `tries` of them in turn, but for those that are `open`.
    pub(super) fn unload_idle(
        &mut self,
        keep: usize,
        tries: usize,
        open: impl Fn(GroupId) -> bool,
    ) -> UnloadProgress {
        for _ in 0..tries {
            if self.maps.len() <= keep {
                return UnloadProgress::Done;
            }
            let next =
                self.maps.range(self.unload_hand..).next().or_else(|| self.maps.first_key_value());
            let Some((&id, maps)) = next else { return UnloadProgress::Done };
            self.unload_hand = GroupId(id.0 + 1);
            if maps.busy == maps.durable && !open(id) {
                self.maps.remove(&id);
            }
        }
        UnloadProgress::MayBeMore
    }

    fn maps(&self, id: GroupId) -> &Maps {
        match self.maps.get(&id) {
            Some(maps) => maps,
            None => unreachable!("{id:?}: its maps were loaded for this commit"),
        }
    }

    /// Sets or clears a run in what the bitmap pages will be; the bitmaps themselves stay as they
    /// are.
    pub fn plan(&self, planned: &mut PlannedBitmaps, run: Run, set: bool) -> Result<()> {
        let (id, block) = self.geometry.split(run.addr);
        let (mut at, end, mut changed) = (block, block + run.len, 0);
        while at < end {
            let page = at / BITS_PER_PAGE;
            let (first, upto) = (page * BITS_PER_PAGE, end.min((page + 1) * BITS_PER_PAGE));
            let bits = planned.0.entry(BitmapPage { group: id, page }).or_insert_with(|| {
                let mut bits = Bitmap::new(self.geometry.bits_of_page(page) as usize);
                bits.set_words(0, page_words(self.maps(id), page));
                bits
            });
            changed += bits.assign((at - first) as usize, (upto - at) as usize, set);
            at = upto;
        }
        if changed == run.len as usize {
            return Ok(());
        }
        // Allocated blocks were free by our own bitmap; freed ones stood in a tree from a device.
        assert!(!set, "{run:?} was allocated already");
        let text = format!(
            "blocks from {} on are referred to, and free by the bitmap: the pool is damaged; \
             stop forebay and run forebay check",
            run.addr
        );
        Err(StorageError::new(ErrorKind::Damaged, text))
    }

    /// Makes a page what was planned; returns what it was.
    pub fn install(
        &mut self,
        BitmapPage { group: id, page }: BitmapPage,
        bits: &Bitmap,
    ) -> Vec<u64> {
        let before = page_words(self.maps(id), page).to_vec();
        if let Some(maps) = self.maps.get_mut(&id) {
            maps.durable.set_words(page as usize * WORDS_PER_PAGE, bits.words());
        }
        before
    }

    /// True if a page that is in memory is not what it was `before`.
    pub(super) fn differs(&self, place: BitmapPage, before: &[u64]) -> bool {
        self.maps.get(&place.group).is_some_and(|maps| page_words(maps, place.page) != before)
    }

    /// The content of a page, and of its group; `None` if the group is not in memory.
    pub(super) fn says(&self, BitmapPage { group: id, page }: BitmapPage) -> Option<BitmapContent> {
        let maps = self.maps.get(&id)?;
        let clear = page_words(maps, page).iter().all(|&w| w == 0);
        Some(BitmapContent { clear, used: maps.durable.count() as u32 })
    }

    /// The next commit is to write this page, whatever it says. To be called while no commit runs:
    /// the end of one may drop the group's bitmaps.
    pub fn force_page(&mut self, place: BitmapPage) {
        self.forced.insert(place);
    }

    /// Bitmap pages that the next commit must write, once.
    pub fn take_forced(&mut self) -> BTreeSet<BitmapPage> {
        std::mem::take(&mut self.forced)
    }

    /// The next version of a bitmap page and where it goes; `None` if the group is not loaded.
    pub fn encode_page(
        &self,
        BitmapPage { group: id, page }: BitmapPage,
        pool_uuid: [u8; 16],
        generation: Generation,
        bufs: &BufPool,
    ) -> Option<(u64, Buf)> {
        let maps = self.maps.get(&id)?;
        let mut block = bufs.zeroed(BLOCK);
        encode_bitmap(page_words(maps, page), payload_mut(&mut block));
        let number = self.geometry.bitmap_page(id, page);
        let slot = 1 - maps.slots[page as usize];
        seal_page(
            &PageId { pool_uuid, kind: PageKind::Bitmap, page: number, slot },
            generation,
            &mut block,
        );
        Some((self.geometry.page_offset(number, slot), block))
    }

    /// To be called when a commit that has written a page is durable: that slot is the committed
    /// one now.
    pub fn flip_slot(&mut self, BitmapPage { group: id, page }: BitmapPage) {
        if let Some(maps) = self.maps.get_mut(&id) {
            let slot = &mut maps.slots[page as usize];
            *slot = 1 - *slot;
        }
    }
}

fn page_words(maps: &Maps, page: u32) -> &[u64] {
    let words = &maps.durable.words()[page as usize * WORDS_PER_PAGE..];
    &words[..words.len().min(WORDS_PER_PAGE)]
}

#[cfg(test)]
impl Bitmaps {
    /// The bitmaps of a group.
    pub fn of(&self, id: GroupId) -> Option<&Maps> {
        self.maps.get(&id)
    }

    /// As [`Bitmaps::of`], to change them.
    pub fn of_mut(&mut self, id: GroupId) -> Option<&mut Maps> {
        self.maps.get_mut(&id)
    }
}
