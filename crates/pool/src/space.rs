//! Block groups, their bitmaps, free blocks and reservations.
//!
//! A block is *busy* from its allocation until the commit that frees it is durable and no read uses
//! it any more ([`limbo`]). The *durable* bitmap of a group changes by commits only ([`bitmaps`]).
//! So what an open transaction has allocated is known in memory alone, and a crash leaves free
//! space.
//!
//! | part | holds |
//! |---|---|
//! | [`groups`] | the records of groups, their chunks, and sums over both |
//! | [`bitmaps`] | the bitmaps that are in memory |
//! | [`supply`] | the number of busy blocks of each group; the groups that blocks are taken from |
//! | [`takers`] | direct writes under way, and the groups of the write-back pass |
//! | [`limbo`] | freed blocks that wait for reads |
//! | [`claims`] | what was set aside for data, and for the nodes of changes under way |
//! | [`fetched`] | data that was read ahead |
//!
//! No part knows another one, but for what the records say of groups. Two views answer questions
//! about several parts: [`room`] and [`placement`]. The steps that change several parts are methods
//! of [`Space`]: those of commits are here, the others in [`alloc`] and [`moving`].

mod alloc;
mod bitmaps;
pub(crate) mod block_run;
mod claims;
mod fetched;
mod geometry;
mod groups;
mod held;
mod limbo;
mod maps;
mod moving;
mod placement;
mod reservation;
mod room;
mod supply;
mod takers;
mod want;

use base::{ErrorKind, Generation, GroupId, Result, StorageError};
use format::page::{Chunk, GroupKind, GroupRecord};

pub(crate) use alloc::Alloc;
pub(crate) use bitmaps::{PageChange, PlannedBitmaps, UnloadProgress};
pub(crate) use block_run::{Run, push_run};
pub(crate) use claims::NodeRoom;
pub(crate) use fetched::{FetchedData, Load, Part};
pub use geometry::Geometry;
pub(crate) use held::Era;
pub(crate) use limbo::Pin;
pub(crate) use maps::{BitmapPage, Maps};
pub(crate) use moving::CloseOutcome;
pub(crate) use placement::fit::{Fit, Shortage, Terms};
pub(crate) use placement::search::Search;
pub use reservation::Reservation;
pub(crate) use room::{Demand, Purpose, ReservationFit, Room};
pub(crate) use want::ChunkChange;

use bitmaps::Bitmaps;
use claims::Claims;
use groups::Groups;
use limbo::Limbo;
use placement::Placement;
use supply::Supply;
use takers::Takers;

/// Block groups, and the blocks in them.
///
/// - A group is in use by its record, in the [`Supply`], or in neither.
/// - The [`Supply`] counts the busy blocks that the bitmaps of a loaded group have.
/// - The write-back pass has only groups in use, and bitmaps are in memory only of such.
pub(crate) struct Space {
    geometry: Geometry,
    groups: Groups,
    bitmaps: Bitmaps,
    supply: Supply,
    takers: Takers,
    limbo: Limbo,
    claims: Claims,
    fetched: FetchedData,
}

impl Space {
    /// The space that the records of all groups describe. All that they say is in use is busy.
    pub fn new(geometry: Geometry, copies: u8, records: Vec<GroupRecord>) -> Space {
        let mut supply = Supply::new(geometry.group_blocks, records.len());
        let takers = Takers::new(geometry, records.len());
        for (id, record) in (0..).map(GroupId).zip(&records) {
            if record.kind == GroupKind::Free {
                continue;
            }
            supply.enter(id, record.kind, record.used);
            if record.used == 0 {
                supply.note_maybe_empty(id);
            }
        }
        Space {
            geometry,
            groups: Groups::new(geometry, copies, records),
            bitmaps: Bitmaps::new(geometry),
            supply,
            takers,
            limbo: Limbo::default(),
            claims: Claims::default(),
            fetched: FetchedData::default(),
        }
    }

    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The records of groups.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// As [`Space::groups`], to change them.
    pub fn groups_mut(&mut self) -> &mut Groups {
        &mut self.groups
    }

    /// The bitmaps in memory.
    pub fn bitmaps(&self) -> &Bitmaps {
        &self.bitmaps
    }

    /// As [`Space::bitmaps`], to change them.
    pub fn bitmaps_mut(&mut self) -> &mut Bitmaps {
        &mut self.bitmaps
    }

    /// The busy blocks, and the groups that blocks are taken from.
    pub fn supply(&self) -> &Supply {
        &self.supply
    }

    /// As [`Space::supply`], to change it.
    pub fn supply_mut(&mut self) -> &mut Supply {
        &mut self.supply
    }

    /// The direct writes under way, and the groups of the write-back pass.
    pub fn takers(&self) -> &Takers {
        &self.takers
    }

    /// As [`Space::takers`], to change them.
    pub fn takers_mut(&mut self) -> &mut Takers {
        &mut self.takers
    }

    /// The freed blocks that wait for reads.
    pub fn limbo(&self) -> &Limbo {
        &self.limbo
    }

    /// As [`Space::limbo`], to change it.
    pub fn limbo_mut(&mut self) -> &mut Limbo {
        &mut self.limbo
    }

    /// The room that was set aside.
    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// The data that was read ahead.
    pub fn fetched(&self) -> &FetchedData {
        &self.fetched
    }

    /// As [`Space::fetched`], to change it.
    pub fn fetched_mut(&mut self) -> &mut FetchedData {
        &mut self.fetched
    }

    /// The room as of now: may something begin?
    pub fn room(&self) -> Room<'_> {
        Room::new(self.geometry.group_blocks, &self.groups, &self.supply, &self.claims)
    }

    /// The groups, to be asked which of them should have other chunks.
    pub fn placement(&self) -> Placement<'_> {
        Placement::new(&self.groups, &self.supply)
    }

    /// A group's bitmaps were read. If they could not be, nothing is allocated from the group.
    pub fn enter_maps(&mut self, id: GroupId, maps: Result<Maps>) -> Result<()> {
        let want = self.groups.used(id);
        let maps = maps.and_then(|maps| match maps.durable.count() as u32 {
            used if used == want => Ok(maps),
            used => {
                let what = format!(
                    "block group {id}: its bitmap holds {used} blocks, its record says {want}"
                );
                Err(StorageError::new(ErrorKind::Damaged, what))
            }
        });
        self.supply.set_unreadable(id, maps.is_err());
        self.bitmaps.enter(id, maps?);
        Ok(())
    }

    /// Drops the bitmaps of groups in which nothing is going on, as long as more than `keep` are in
    /// memory, looking at up to `tries` of them in turn.
    pub fn unload_idle(&mut self, keep: usize, tries: usize) -> UnloadProgress {
        let supply = &self.supply;
        self.bitmaps.unload_idle(keep, tries, |id| supply.has_cursor(id))
    }

    /// After [`Bitmaps::install`]: enters the page's new generation and the group's new count into
    /// its record, if the page is not what it was `before`.
    pub fn note_page(
        &mut self,
        place: BitmapPage,
        before: &[u64],
        generation: Generation,
    ) -> PageChange {
        match self.bitmaps.differs(place, before) {
            true => self.renew_page(place, generation),
            false => PageChange::Same,
        }
    }

    /// As [`Space::note_page`], whatever the page was before. [`PageChange::Same`]: it is not in
    /// memory.
    pub fn renew_page(&mut self, place: BitmapPage, generation: Generation) -> PageChange {
        let Some(said) = self.bitmaps.says(place) else { return PageChange::Same };
        // A page without a bit names no generation and is not written; so an empty group names no
        // page at all. When it is given up and taken again, the slot that is written first holds
        // nothing that counts.
        let generation = if said.clear { Generation(0) } else { generation };
        self.groups.note_page(place, generation, said.used);
        if said.used == 0 {
            self.supply.note_maybe_empty(place.group);
        }
        if said.clear { PageChange::Cleared } else { PageChange::Changed }
    }

    /// The write-back pass lets go of a group. It may be empty.
    pub fn leave_pass(&mut self, id: GroupId) {
        self.takers.leave_pass(id);
        self.supply.note_maybe_empty(id);
    }

    /// The copies of a group are in these chunks from now on, except for reads that have begun.
    /// Returns their era. Chunks that the group had already stay behind if they were.
    pub fn set_chunks(&mut self, id: GroupId, chunks: Vec<Chunk>) -> Era {
        let era = self.limbo.reads_until_now();
        self.groups.set_chunks(id, chunks, era);
        era
    }

    /// Bytes in use of all copies on these devices, as of the last commit, that a scrub has before
    /// it which has passed the blocks before `block` of group `id` too. Groups are not gone over,
    /// and what is in use before that block is about, if the group's bitmap is not in memory.
    pub fn unpassed_bytes(&self, id: GroupId, block: u32, counts: impl Fn(usize) -> bool) -> u64 {
        let about = || {
            let all = u64::from(self.geometry.group_blocks);
            u64::from(self.groups.used(id)) * u64::from(block) / all
        };
        let used_before = || self.bitmaps.used_before(id, block).unwrap_or_else(about);
        self.groups.unpassed_bytes(id, used_before, counts)
    }
}

#[cfg(test)]
#[path = "space_tests.rs"]
pub(crate) mod tests;
