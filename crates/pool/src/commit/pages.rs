//! From the state to pages and superblocks.

use base::{BLOCK, Buf, BufPool, Generation};
use format::page::{
    GROUPS_PER_PAGE, GroupRecord, PageId, PageKind, VOLUMES_PER_PAGE, encode_groups,
    encode_volumes, payload_mut, seal_page,
};
use format::superblock::Superblock;

use crate::space::Place;
use crate::state::State;

impl State {
    /// The next version of a bitmap page and where it goes; `None` if the group is not loaded.
    pub fn encode_bitmap_page(
        &self,
        place: Place,
        generation: Generation,
        bufs: &BufPool,
    ) -> Option<(u64, Buf)> {
        self.space.encode_bitmap_page(place, self.identity.uuid, generation, bufs)
    }

    /// The next version of a table page and where it goes.
    pub fn encode_table_page(
        &self,
        page: u32,
        generation: Generation,
        bufs: &BufPool,
    ) -> (u64, Buf) {
        let geometry = self.space.geometry();
        let mut block = bufs.zeroed(BLOCK);
        let kind = geometry.kind_of_table_page(page);
        if kind == PageKind::Volumes {
            let places =
                self.forest.places((page * VOLUMES_PER_PAGE) as usize, VOLUMES_PER_PAGE as usize);
            encode_volumes(places, payload_mut(&mut block));
        } else {
            let first = ((page - geometry.volume_pages) * GROUPS_PER_PAGE) as usize;
            let mut records = self.space.records(first, GROUPS_PER_PAGE as usize);
            records.resize(GROUPS_PER_PAGE as usize, GroupRecord::free());
            encode_groups(&records, payload_mut(&mut block));
        }
        let slot = self.tables.next_slot(page);
        let id = PageId { pool_uuid: self.identity.uuid, kind, page: u64::from(page), slot };
        seal_page(&id, generation, &mut block);
        (geometry.page_offset(u64::from(page), slot), block)
    }

    /// The superblock for the device of this row.
    pub fn superblock_for(
        &self,
        row: usize,
        generation: Generation,
        tables_digest: u64,
    ) -> Superblock {
        let published = self.attached.next_published();
        let mark = self.attached.mark();
        let geometry = self.space.geometry();
        Superblock {
            pool_uuid: self.identity.uuid,
            sequence: self.txns.sequence(),
            generation: generation.0,
            previous: self.txns.known().0,
            tables_digest,
            published: published.epoch,
            published_at: published.taken_at,
            cache_uuid: self.attached.uuid(),
            cache_journal: mark.map_or(0, |m| m.entry),
            clean_void: mark.is_some_and(|m| m.clean_void),
            group_blocks: geometry.group_blocks,
            group_capacity: geometry.group_capacity,
            volume_pages: geometry.volume_pages,
            next_volume: self.forest.next_volume(),
            device: row as u16,
            copies: self.identity.copies,
            shards: 1,
            name: self.identity.name.clone(),
            devices: self.devices.records(),
        }
    }
}
