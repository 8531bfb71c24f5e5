//! The work that a scrub has before it. The amount is asked anew each time, as the pool changes
//! meanwhile.

use base::{BLOCK_U64, GroupId};
use format::superblock::scrub::{ScrubPlace, ScrubStage};

use crate::state::State;

impl State {
    /// Everything before this place is verified.
    pub(super) fn scrub_goes_to(&mut self, place: ScrubPlace) {
        self.scrub.go_to(place);
        self.pass_scrubbed();
    }

    /// The groups before the place of the scrub are passed. Once after a restart these are gone
    /// over.
    pub(super) fn pass_scrubbed(&mut self) {
        let place = self.scrub.place();
        let to = if place.stage == ScrubStage::Groups { place.index } else { 0 };
        self.space.pass_to(GroupId(to));
        self.note_left_to_scrub();
    }

    /// The record of the scrub says how much there is to verify.
    pub(super) fn note_left_to_scrub(&mut self) {
        let left = self.left_to_scrub();
        self.scrub.note_left(left);
    }

    /// About how many bytes the scrub has before it from its place on. Mapping trees, which it
    /// verifies first, count until it has passed the groups that they are in.
    pub(super) fn left_to_scrub(&self) -> u64 {
        let only = self.scrub.device();
        let counts = |row: usize| only.is_none_or(|only| only == row) && self.devices.is_live(row);
        let place = self.scrub.place();
        let (id, block) = match place.stage {
            ScrubStage::Groups => (GroupId(place.index), place.block),
            ScrubStage::Tables | ScrubStage::Volumes => (GroupId(0), 0),
        };
        let tables = match place.stage {
            ScrubStage::Tables => {
                let rows = (0..self.devices.count()).filter(|&row| counts(row)).count() as u64;
                u64::from(self.space.geometry().table_pages()) * rows * BLOCK_U64
            }
            ScrubStage::Volumes | ScrubStage::Groups => 0,
        };
        tables + self.space.unpassed_bytes(id, block, counts)
    }
}
