//! The pages that a commit writes: which they are, their bytes, and those of superblocks.

use std::rc::Rc;

use base::{Buf, SliceList};
use queue::Class;

use super::frozen::{FrozenTxn, SLICE};
use crate::core::Core;
use crate::devices::CopyPlace;
use crate::space::PageChange;
use crate::transfer::Writes;
use crate::transfer::write_copies::CopyWriter;

/// Writes the pages of a commit.
pub(crate) struct PageWriter {
    core: Core,
    copy_writer: Rc<CopyWriter>,
}

impl PageWriter {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core, copy_writer: &Rc<CopyWriter>) -> Rc<PageWriter> {
        Rc::new(PageWriter { core: core.clone(), copy_writer: copy_writer.clone() })
    }

    /// Decides which pages have to be written.
    pub(super) async fn plan_pages(&self, frozen: &mut FrozenTxn) {
        let (mut written, mut skipped) = (0, 0);
        while !frozen.before.is_empty() {
            let pages = frozen.before.len();
            {
                let mut st = self.core.state_mut();
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
                    frozen.table_pages.insert(st.space.geometry().page_of_group(place.group));
                }
            }
            self.core.breathe(pages).await;
        }
        let forced = self.core.state_mut().space.bitmaps_mut().take_forced();
        for (n, place) in (1..).zip(forced) {
            self.core.breathe_each(n).await;
            let mut st = self.core.state_mut();
            if frozen.bitmap_pages.contains(&place) {
                continue;
            }
            match st.space.renew_page(place, frozen.generation) {
                PageChange::Same => continue,
                PageChange::Cleared => {}
                PageChange::Changed => frozen.bitmap_pages.push(place),
            }
            frozen.table_pages.insert(st.space.geometry().page_of_group(place.group));
        }
        let geometry = self.core.state().space.geometry();
        for (n, &id) in (1..).zip(frozen.groups.iter().chain(frozen.sums.iter().map(|c| &c.0))) {
            frozen.table_pages.insert(geometry.page_of_group(id));
            self.core.breathe_each(n).await;
        }
        for (n, id) in (1..).zip(std::mem::take(&mut frozen.touched_groups)) {
            match frozen.table_pages.contains(&geometry.page_of_group(id)) {
                true => written += 1,
                false => skipped += 1,
            }
            self.core.breathe_each(n).await;
        }
        frozen.table_pages.extend(self.core.state_mut().tables.take_forced());
        self.core.metrics_mut().note_group_updates(written, skipped);
    }

    /// Sends the planned pages, each into the slot that is not the committed one, to every device.
    pub(super) async fn write_pages(self: &Rc<Self>, frozen: &FrozenTxn, writes: &mut Writes) {
        let generation = frozen.generation;
        for part in frozen.bitmap_pages.chunks(SLICE) {
            let blocks = {
                let st = self.core.state();
                let encode =
                    |&place| st.encode_bitmap_page(place, generation, self.core.rt().bufs());
                part.iter().filter_map(encode).collect()
            };
            self.write_everywhere(blocks, writes).await;
            self.core.breathe(part.len()).await;
        }
        let table_pages: Vec<u32> = frozen.table_pages.iter().copied().collect();
        for part in table_pages.chunks(SLICE) {
            let blocks = {
                let st = self.core.state();
                part.iter()
                    .map(|&page| {
                        st.encode_table_page(page, frozen.version(), self.core.rt().bufs())
                    })
                    .collect()
            };
            self.write_everywhere(blocks, writes).await;
            self.core.breathe(part.len()).await;
        }
    }

    /// Sends blocks to the same offsets of all devices, also to one that is being added.
    async fn write_everywhere(self: &Rc<Self>, blocks: Vec<(u64, Buf)>, writes: &mut Writes) {
        for (offset, block) in blocks {
            let devices = self.core.state().devices.written_rows();
            let places: Vec<_> = devices.iter().map(|&row| CopyPlace { row, offset }).collect();
            let (this, data) = (self.clone(), SliceList::from_iter([block.freeze()]));
            writes
                .add(self.core.rt().spawn(async move {
                    this.copy_writer.write_places(&places, data, Class::Commit).await
                }))
                .await;
        }
    }
}
