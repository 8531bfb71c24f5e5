//! The pages that a commit writes: their bytes, and those of superblocks.

use base::{BLOCK, Buf, BufPool, EntrySeq, Generation, OpenId};
use format::page::{
    GROUPS_PER_PAGE, GroupRecord, PageId, PageKind, PageVersion, VOLUMES_PER_PAGE, encode_groups,
    encode_volumes, payload_mut, seal_page,
};
use format::superblock::{DeviceState, Superblock};

use super::State;
use crate::devices::PoolDevice;
use crate::space::BitmapPage;

impl State {
    /// The next version of a bitmap page and where it goes; `None` if the group is not loaded.
    pub fn encode_bitmap_page(
        &self,
        place: BitmapPage,
        generation: Generation,
        bufs: &BufPool,
    ) -> Option<(u64, Buf)> {
        self.space.bitmaps().encode_page(place, self.identity.uuid, generation, bufs)
    }

    /// The next version of a table page and where it goes.
    pub fn encode_table_page(&self, page: u32, version: PageVersion, bufs: &BufPool) -> (u64, Buf) {
        let geometry = self.space.geometry();
        let mut block = bufs.zeroed(BLOCK);
        let kind = geometry.kind_of_table_page(page);
        if kind == PageKind::Volumes {
            let places =
                self.forest.places((page * VOLUMES_PER_PAGE) as usize, VOLUMES_PER_PAGE as usize);
            encode_volumes(places, payload_mut(&mut block));
        } else {
            let first = ((page - geometry.volume_pages) * GROUPS_PER_PAGE) as usize;
            let mut records = self.space.groups().records(first, GROUPS_PER_PAGE as usize);
            records.resize(GROUPS_PER_PAGE as usize, GroupRecord::free());
            encode_groups(&records, payload_mut(&mut block));
        }
        let slot = self.tables.next_slot(page);
        let id = PageId { pool_uuid: self.identity.uuid, kind, page: u64::from(page), slot };
        seal_page(&id, version, &mut block);
        (geometry.page_offset(u64::from(page), slot), block)
    }

    /// The commit of this generation, which is about to be named, changes what the pool holds.
    pub fn note_change(&mut self, generation: Generation) {
        let away = |d: &PoolDevice| match d.record().state {
            DeviceState::Failed => d.record().lacks_since,
            DeviceState::Online | DeviceState::Removed => None,
        };
        let away: Vec<Generation> = self.devices.iter().filter_map(away).collect();
        self.histories.changes(generation, &away);
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
            cache_journal: mark.map_or(EntrySeq(0), |m| m.entry),
            clean_void: mark.is_some_and(|m| m.clean_void),
            group_blocks: geometry.group_blocks,
            group_capacity: geometry.group_capacity,
            volume_pages: geometry.volume_pages,
            next_volume: self.forest.next_volume(),
            device: row as u16,
            copies: self.identity.copies,
            balancing: self.moves.is_balancing(),
            shards: 1,
            name: self.identity.name.clone(),
            devices: self.devices.records(),
            scrub: self.scrub.record().clone(),
            lineage: self.histories.lineage(mark.map_or(OpenId(0), |m| m.opened)),
            birth: self.txns.birth(),
        }
    }
}
