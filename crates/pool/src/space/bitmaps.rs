//! Bitmaps of groups: loading, planning what a commit makes of them, and their pages.
//!
//! A commit plans its changes on copies of pages, and installs the copies when all changes fit. A
//! free of a block that is not allocated is found while planning, so nothing is changed in part.

use std::collections::{BTreeMap, BTreeSet};

use base::{
    BLOCK, Bitmap, Buf, BufPool, ErrorKind, Generation, GroupId, Instant, Result, StorageError,
};
use format::page::{BITS_PER_PAGE, PageId, PageKind, encode_bitmap, payload_mut, seal_page};

use super::maps::{BitmapPage, Maps};
use super::{Run, Space};

const WORDS_PER_PAGE: usize = BITS_PER_PAGE as usize / 64;

/// Pages as a commit will make them.
#[derive(Default)]
pub(crate) struct Planned(BTreeMap<BitmapPage, Bitmap>);

impl Planned {
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

impl Space {
    /// True if the bitmaps of a group are in memory.
    pub fn has_maps(&self, id: GroupId) -> bool {
        self.group(id).maps.is_some()
    }

    /// The number of groups that have their bitmaps in memory.
    pub fn loaded(&self) -> usize {
        self.loaded.len()
    }

    /// True if a block of a group is in use as of the last commit, or the one that runs. Returns
    /// false if the bitmaps of the group are not in memory.
    pub fn is_durable(&self, id: GroupId, block: u32) -> bool {
        self.group(id).maps.as_ref().is_some_and(|maps| maps.durable.get(block as usize))
    }

    /// The slots that hold the committed versions of a group's bitmap pages, if they are known.
    pub fn bitmap_slots(&self, id: GroupId) -> Option<[u8; format::page::MAX_BITMAP_PAGES]> {
        self.group(id).maps.as_ref().map(|maps| maps.slots)
    }

    /// A group's bitmaps were read. If they could not be, nothing is allocated from the group.
    pub fn enter_maps(&mut self, id: GroupId, maps: Result<Maps>) -> Result<()> {
        let want = self.group(id).record.used;
        let maps = maps.and_then(|maps| match maps.durable.count() as u32 {
            used if used == want => Ok(maps),
            used => {
                let what = format!(
                    "block group {id}: its bitmap holds {used} blocks, its record says {want}"
                );
                Err(StorageError::new(ErrorKind::Damaged, what))
            }
        });
        self.set_unreadable(id, maps.is_err());
        self.set_maps(id, Some(Box::new(maps?)));
        Ok(())
    }

    /// Brings a group's bitmaps into memory, or drops them.
    pub(super) fn set_maps(&mut self, id: GroupId, maps: Option<Box<Maps>>) {
        if maps.is_some() {
            self.loaded.insert(id);
        } else {
            self.loaded.remove(&id);
        }
        self.group_mut(id).maps = maps;
    }

    /// Nothing is allocated from a group whose bitmaps cannot be read, until a later try reads
    /// them.
    fn set_unreadable(&mut self, id: GroupId, unreadable: bool) {
        self.change_use(id, |space| {
            match unreadable {
                true => space.unreadable.insert(id),
                false => space.unreadable.remove(&id),
            };
        });
    }

    /// A node of a group's checksums cannot be read. Nothing is allocated from it `until` then.
    /// Returns true if that is new.
    pub fn lose_sums(&mut self, id: GroupId, until: Instant) -> bool {
        let new = !self.lost_sums.contains_key(&id);
        self.change_use(id, |space| _ = space.lost_sums.entry(id).or_insert(until));
        new
    }

    /// Takes groups into use again that were to be left alone until now, or until before. Returns
    /// true if there was one.
    pub fn use_again(&mut self, now: Instant) -> bool {
        let old = |(&id, &until): (&GroupId, &Instant)| (until <= now).then_some(id);
        let ids: Vec<GroupId> = self.lost_sums.iter().filter_map(old).collect();
        for &id in &ids {
            self.change_use(id, |space| _ = space.lost_sums.remove(&id));
        }
        !ids.is_empty()
    }

    /// Changes whether blocks are allocated from a group.
    fn change_use(&mut self, id: GroupId, change: impl FnOnce(&mut Space)) {
        let before = self.is_unreadable(id);
        change(self);
        let now = self.is_unreadable(id);
        if before == now || self.is_moving(id) {
            return;
        }
        if now {
            self.unindex_group(id);
        } else {
            self.index_group(id);
        }
    }

    /// Drops the bitmaps of groups in which nothing is going on, as long as more than `keep` are in
    /// memory, looking at up to `tries` of them in turn. True if there may be more to drop.
    pub fn unload_idle(&mut self, keep: usize, tries: usize) -> bool {
        for _ in 0..tries {
            if self.loaded.len() <= keep {
                return false;
            }
            let next = self
                .loaded
                .range(self.unload_hand..)
                .next()
                .or_else(|| self.loaded.first())
                .copied();
            let Some(id) = next else { return false };
            self.unload_hand = GroupId(id.0 + 1);
            let open = self.cursors.iter().flatten().any(|c| c.0 == id);
            let idle = self.group(id).maps.as_ref().is_some_and(|m| m.busy == m.durable);
            if idle && !open {
                self.set_maps(id, None);
            }
        }
        true
    }

    fn maps(&self, id: GroupId) -> &Maps {
        match &self.group(id).maps {
            Some(maps) => maps,
            None => unreachable!("{id:?}: its maps were loaded for this commit"),
        }
    }

    /// Sets or clears a run in what the bitmap pages will be; the bitmaps themselves stay as they
    /// are.
    pub fn plan(&self, planned: &mut Planned, run: Run, set: bool) -> Result<()> {
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
        if let Some(maps) = &mut self.group_mut(id).maps {
            maps.durable.set_words(page as usize * WORDS_PER_PAGE, bits.words());
        }
        before
    }

    /// After [`Space::install`]: enters the page's new generation and the group's new count into
    /// its record, if the page is not what it was `before`.
    pub fn note_page(
        &mut self,
        place: BitmapPage,
        before: &[u64],
        generation: Generation,
    ) -> PageChange {
        match &self.group(place.group).maps {
            Some(maps) if page_words(maps, place.page) != before => {
                self.renew_page(place, generation)
            }
            _ => PageChange::Same,
        }
    }

    /// As [`Space::note_page`], whatever the page was before. [`PageChange::Same`]: it is not in
    /// memory.
    pub fn renew_page(
        &mut self,
        BitmapPage { group: id, page }: BitmapPage,
        generation: Generation,
    ) -> PageChange {
        let Some(maps) = &self.group(id).maps else { return PageChange::Same };
        let words = page_words(maps, page);
        // A page without a bit names no generation and is not written; so an empty group names no
        // page at all. When it is given up and taken again, the slot that is written first holds
        // nothing that counts.
        let clear = words.iter().all(|&w| w == 0);
        let used = maps.durable.count() as u32;
        self.change_record(id, |record| {
            let changed = &mut record.bitmap_generations[page as usize];
            *changed = if clear { Generation(0) } else { generation };
            record.used = used;
        });
        if used == 0 {
            self.maybe_empty.insert(id);
        }
        if clear { PageChange::Cleared } else { PageChange::Changed }
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
    pub fn encode_bitmap_page(
        &self,
        BitmapPage { group: id, page }: BitmapPage,
        pool_uuid: [u8; 16],
        generation: Generation,
        bufs: &BufPool,
    ) -> Option<(u64, Buf)> {
        let maps = self.group(id).maps.as_ref()?;
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
        if let Some(maps) = &mut self.group_mut(id).maps {
            let slot = &mut maps.slots[page as usize];
            *slot = 1 - *slot;
        }
    }
}

fn page_words(maps: &Maps, page: u32) -> &[u64] {
    let words = &maps.durable.words()[page as usize * WORDS_PER_PAGE..];
    &words[..words.len().min(WORDS_PER_PAGE)]
}
