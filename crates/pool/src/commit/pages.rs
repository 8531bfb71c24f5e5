//! The pages that a commit writes: which they are, their bytes, and those of superblocks.

use base::{BLOCK, Buf, BufPool, EntrySeq, Generation, OpenId, SliceList};
use format::page::{
    GROUPS_PER_PAGE, GroupRecord, PageId, PageKind, PageVersion, VOLUMES_PER_PAGE, encode_groups,
    encode_volumes, payload_mut, seal_page,
};
use format::superblock::{DeviceState, Superblock};
use queue::Class;

use super::frozen::{FrozenTxn, SLICE};
use crate::devices::{Place, PoolDevice};
use crate::pool::Pool;
use crate::space::{BitmapPage, PageChange};
use crate::state::State;
use crate::transfer::Writes;

impl State {
    /// The next version of a bitmap page and where it goes; `None` if the group is not loaded.
    pub fn encode_bitmap_page(
        &self,
        place: BitmapPage,
        generation: Generation,
        bufs: &BufPool,
    ) -> Option<(u64, Buf)> {
        self.space.encode_bitmap_page(place, self.identity.uuid, generation, bufs)
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
            let mut records = self.space.records(first, GROUPS_PER_PAGE as usize);
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
        }
    }
}

impl Pool {
    /// Decides which pages have to be written.
    pub(super) async fn plan_pages(&self, frozen: &mut FrozenTxn) {
        let (mut written, mut skipped) = (0, 0);
        while !frozen.before.is_empty() {
            let pages = frozen.before.len();
            {
                let mut st = self.state_mut();
                for _ in 0..SLICE {
                    let Some((place, before)) = frozen.before.pop_first() else { break };
                    match st.space.note_page(place, &before, frozen.generation) {
                        PageChange::Same => {
                            skipped += 1;
                            continue;
                        }
                        PageChange::Cleared => {}
                        PageChange::Changed => frozen.bitmap_pages.push(place),
                    }
                    written += 1;
                    frozen.table_pages.insert(st.space.page_of(place.group));
                }
            }
            self.breathe(pages).await;
        }
        let forced = self.state_mut().space.take_forced();
        for (n, place) in (1..).zip(forced) {
            self.breathe_each(n).await;
            let mut st = self.state_mut();
            if frozen.bitmap_pages.contains(&place) {
                continue;
            }
            match st.space.renew_page(place, frozen.generation) {
                PageChange::Same => continue,
                PageChange::Cleared => {}
                PageChange::Changed => frozen.bitmap_pages.push(place),
            }
            frozen.table_pages.insert(st.space.page_of(place.group));
        }
        let geometry = self.state().space.geometry();
        for (n, &id) in (1..).zip(frozen.groups.iter().chain(frozen.sums.iter().map(|c| &c.0))) {
            frozen.table_pages.insert(geometry.page_of_group(id));
            self.breathe_each(n).await;
        }
        for (n, id) in (1..).zip(std::mem::take(&mut frozen.touched_groups)) {
            match frozen.table_pages.contains(&geometry.page_of_group(id)) {
                true => written += 1,
                false => skipped += 1,
            }
            self.breathe_each(n).await;
        }
        frozen.table_pages.extend(self.state_mut().tables.take_forced());
        self.metrics_mut().note_group_updates(written, skipped);
    }

    /// Sends the planned pages, each into the slot that is not the committed one, to every device.
    pub(super) async fn write_pages(&self, frozen: &FrozenTxn, writes: &mut Writes) {
        let generation = frozen.generation;
        for part in frozen.bitmap_pages.chunks(SLICE) {
            let blocks = {
                let st = self.state();
                let encode = |&place| st.encode_bitmap_page(place, generation, self.rt().bufs());
                part.iter().filter_map(encode).collect()
            };
            self.write_everywhere(blocks, writes).await;
            self.breathe(part.len()).await;
        }
        let table_pages: Vec<u32> = frozen.table_pages.iter().copied().collect();
        for part in table_pages.chunks(SLICE) {
            let blocks = {
                let st = self.state();
                part.iter()
                    .map(|&page| st.encode_table_page(page, frozen.version(), self.rt().bufs()))
                    .collect()
            };
            self.write_everywhere(blocks, writes).await;
            self.breathe(part.len()).await;
        }
    }

    /// Sends blocks to the same offsets of all devices, also to one that is being added.
    async fn write_everywhere(&self, blocks: Vec<(u64, Buf)>, writes: &mut Writes) {
        for (offset, block) in blocks {
            let devices = self.state().devices.written_rows();
            let places: Vec<_> = devices.iter().map(|&row| Place { row, offset }).collect();
            let (pool, data) = (self.clone(), SliceList::from_iter([block.freeze()]));
            writes
                .add(
                    self.rt().spawn(async move {
                        pool.write_places(&places, data, Class::Commit).await
                    }),
                )
                .await;
        }
    }
}
