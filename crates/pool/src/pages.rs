//! From the state to pages and superblocks, and the bookkeeping of what is loaded.

use base::{BLOCK, Buf, BufPool, Generation, GroupId};
use format::page::{
    BITS_PER_PAGE, GROUPS_PER_PAGE, GroupRecord, PageId, PageKind, VOLUMES_PER_PAGE, encode_bitmap, encode_groups,
    encode_volumes, payload_mut, seal_page,
};
use format::superblock::Superblock;

use crate::state::State;

impl State {
    /// The table page with a group's record.
    pub fn page_of_group(&self, id: GroupId) -> u32 {
        self.geometry.volume_pages + id.0 / GROUPS_PER_PAGE
    }

    /// Devices that take part.
    pub fn live_devices(&self) -> Vec<usize> {
        (0..self.devices.len()).filter(|&d| self.devices[d].live().is_some()).collect()
    }

    /// The next version of a bitmap page and where it goes; `None` if the group is not loaded.
    pub fn encode_bitmap_page(
        &self,
        id: GroupId,
        page: u32,
        generation: Generation,
        bufs: &BufPool,
    ) -> Option<(u64, Buf)> {
        let maps = self.group(id).maps.as_ref()?;
        let words = BITS_PER_PAGE as usize / 64;
        let all = &maps.durable.words()[page as usize * words..];
        let mut block = bufs.zeroed(BLOCK);
        encode_bitmap(&all[..all.len().min(words)], payload_mut(&mut block));
        let number = self.geometry.bitmap_page(id, page);
        let slot = 1 - maps.slots[page as usize];
        let id = PageId { pool_uuid: self.uuid, kind: PageKind::Bitmap, page: number, slot };
        seal_page(&id, generation, &mut block);
        Some((self.geometry.page_offset(number, slot), block))
    }

    /// The next version of a table page and where it goes.
    pub fn encode_table_page(&self, page: u32, generation: Generation, bufs: &BufPool) -> (u64, Buf) {
        let mut block = bufs.zeroed(BLOCK);
        let kind = self.geometry.kind_of_table_page(page);
        if kind == PageKind::Volumes {
            let from = (page * VOLUMES_PER_PAGE) as usize;
            encode_volumes(&self.places[from..from + VOLUMES_PER_PAGE as usize], payload_mut(&mut block));
        } else {
            let from = ((page - self.geometry.volume_pages) * GROUPS_PER_PAGE) as usize;
            let to = (from + GROUPS_PER_PAGE as usize).min(self.groups.len());
            let mut records: Vec<GroupRecord> = self.groups[from..to].iter().map(|g| g.record.clone()).collect();
            records.resize(GROUPS_PER_PAGE as usize, GroupRecord::free());
            encode_groups(&records, payload_mut(&mut block));
        }
        let slot = 1 - self.table_pages[page as usize].slot;
        seal_page(&PageId { pool_uuid: self.uuid, kind, page: u64::from(page), slot }, generation, &mut block);
        (self.geometry.page_offset(u64::from(page), slot), block)
    }

    /// The superblock for device `device`.
    pub fn superblock_for(&self, device: usize, generation: Generation, tables_digest: u64) -> Superblock {
        let published = self.publishing.unwrap_or(self.published);
        Superblock {
            pool_uuid: self.uuid,
            sequence: self.sequence,
            generation: generation.0,
            previous: self.known.0,
            tables_digest,
            published: published.epoch,
            published_at: published.taken_at,
            cache_uuid: self.cache_uuid,
            cache_journal: self.cache_journal(),
            clean_void: self.clean_void(),
            group_blocks: self.geometry.group_blocks,
            group_capacity: self.geometry.group_capacity,
            volume_pages: self.geometry.volume_pages,
            next_volume: self.next_volume,
            device: device as u16,
            copies: self.copies,
            shards: 1,
            name: self.name.clone(),
            devices: self.devices.iter().map(|d| d.record.clone()).collect(),
        }
    }

    /// After a commit has changed a group's durable bitmap: if a page is no longer what it was, notes its new generation and the group's new
    /// count, and says so.
    pub fn note_page(&mut self, id: GroupId, page: u32, before: &[u64], generation: Generation) -> bool {
        let g = &mut self.groups[id.0 as usize];
        let Some(maps) = &g.maps else { return false };
        let words = &maps.durable.words()[page as usize * (BITS_PER_PAGE as usize / 64)..];
        if words[..before.len()] == *before {
            return false;
        }
        // A page without a bit names no generation and needs no writing; so an empty group names no page at all, and when it is
        // given up and taken again, whichever slot is written first overwrites nothing that counts.
        let clear = words[..before.len()].iter().all(|&w| w == 0);
        g.record.bitmap_generations[page as usize] = if clear { Generation(0) } else { generation };
        g.record.used = maps.durable.count() as u32;
        if g.record.used == 0 {
            self.maybe_empty.insert(id);
        }
        true
    }

    /// Drops the bitmaps of groups that nothing is going on in, as long as more than `keep` are in memory, looking at up to `tries` of them in
    /// turn. True if there may be more to drop.
    pub fn unload_idle(&mut self, keep: usize, tries: usize) -> bool {
        for _ in 0..tries {
            if self.loaded.len() <= keep {
                return false;
            }
            let next = self.loaded.range(self.unload_hand..).next().or_else(|| self.loaded.first()).copied();
            let Some(id) = next else { return false };
            self.unload_hand = GroupId(id.0 + 1);
            let open = self.space.cursor.iter().flatten().any(|c| c.0 == id);
            let idle = self.group(id).maps.as_ref().is_some_and(|m| m.busy == m.durable);
            if idle && !open {
                self.set_maps(id, None);
            }
        }
        true
    }
}
