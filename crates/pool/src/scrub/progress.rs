//! The work that a scrub has before it. The amount is asked anew each time, as the pool changes
//! meanwhile.

use base::{BLOCK_U64, GroupId};
use format::superblock::scrub::{ScrubPlace, ScrubStage};

use crate::state::State;

/// Everything before this place is verified.
pub(super) fn scrub_goes_to(st: &mut State, place: ScrubPlace) {
    st.scrub.go_to(place);
    pass_scrubbed(st);
}

/// The groups before the place of the scrub are passed. Once after a restart these are gone
/// over.
pub(super) fn pass_scrubbed(st: &mut State) {
    let place = st.scrub.place();
    let to = if place.stage == ScrubStage::Groups { place.index } else { 0 };
    st.space.groups_mut().pass_to(GroupId(to));
    note_left_to_scrub(st);
}

/// The record of the scrub says how much there is to verify.
pub(super) fn note_left_to_scrub(st: &mut State) {
    let left = left_to_scrub(st);
    st.scrub.note_left(left);
}

/// About how many bytes the scrub has before it from its place on. Mapping trees, which it
/// verifies first, count until it has passed the groups that they are in.
pub(super) fn left_to_scrub(st: &State) -> u64 {
    let only = st.scrub.device();
    let counts = |row: usize| only.is_none_or(|only| only == row) && st.devices.is_live(row);
    let place = st.scrub.place();
    let (id, block) = match place.stage {
        ScrubStage::Groups => (GroupId(place.index), place.block),
        ScrubStage::Tables | ScrubStage::Volumes => (GroupId(0), 0),
    };
    let tables = match place.stage {
        ScrubStage::Tables => {
            let rows = (0..st.devices.count()).filter(|&row| counts(row)).count() as u64;
            u64::from(st.space.geometry().table_pages()) * rows * BLOCK_U64
        }
        ScrubStage::Volumes | ScrubStage::Groups => 0,
    };
    tables + st.space.unpassed_bytes(id, block, counts)
}
