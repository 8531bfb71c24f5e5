//! Space that is promised: to blocks that rounds will write, and to the nodes that publishing them, and what stands in staging volumes, will change.
//!
//! A promise is given before the block is dirty, and direct writes take only what is left. So a round finds room, whatever happens meanwhile.

use crate::Pool;
use crate::error::Result;
use crate::reservation::Reservation;
use crate::state::State;
use crate::txn::Volume;

/// A leaf of a tree holds so many records at least, but for a few.
const RECORDS_PER_LEAF: u64 = 40;

/// Blocks of staging volumes that change a leaf of two trees each, when they are adopted, at worst: they came in large requests.
const STAGED_PER_LEAF: u64 = 4;

/// Blocks that volumes have, by what their records say: kept up to date with every change, as each write asks for it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Held {
    /// Of all volumes, deleted ones too.
    all: u64,
    /// Of staging volumes that are not deleted.
    staged: u64,
}

impl Held {
    /// What they have together.
    pub fn by<'a>(volumes: impl IntoIterator<Item = &'a Volume>) -> Held {
        let mut held = Held::default();
        volumes.into_iter().for_each(|v| held.add(v));
        held
    }

    fn add(&mut self, v: &Volume) {
        let blocks = v.record.allocated_blocks;
        self.all += blocks;
        if v.is_live() && v.record.staged.is_some() {
            self.staged += blocks;
        }
    }

    /// A volume is gone.
    pub fn remove(&mut self, v: &Volume) {
        let one = Held::by([v]);
        self.all -= one.all;
        self.staged -= one.staged;
    }

    /// Changes a volume in a way that may change what it has.
    pub fn change(&mut self, v: &mut Volume, f: impl FnOnce(&mut Volume)) {
        self.remove(v);
        f(v);
        self.add(v);
    }
}

impl Pool {
    /// Sets room aside for `blocks` blocks that write-back will write.
    pub fn reserve(&self, blocks: u64) -> Result<Reservation> {
        let st = self.state();
        if blocks > 0 && !st.can_hold(st.reserved.blocks() + blocks) {
            return Err(st.no_room("the pool is full"));
        }
        Ok(st.reserved.reserve(blocks))
    }

    /// Sets room aside that had been set aside before the pool was opened. Direct writes left it
    /// free then, so nothing is checked.
    pub fn take_over(&self, blocks: u64) -> Reservation {
        self.state().reserved.reserve(blocks)
    }
}

impl State {
    /// Data blocks that nobody has, formed or not; what metadata must find is left out.
    fn data_room(&self) -> u64 {
        let blocks = u64::from(self.geometry.group_blocks);
        self.space.free[0] + self.formable().saturating_sub(1) * blocks
    }

    /// True if `reserved` blocks of data, and the nodes that they will change, would find room.
    fn can_hold(&self, reserved: u64) -> bool {
        debug_assert_eq!(self.held, Held::by(self.volumes.values()), "what volumes have was not counted");
        let Held { all, staged } = self.held;
        // The leaves of two trees, each changed once, and those above them.
        let leaves = (reserved + staged / STAGED_PER_LEAF).min((all + reserved) / RECORDS_PER_LEAF + 8);
        let nodes = 2 * (leaves + leaves / 32) + 64;
        let in_metadata = self.metadata_free();
        let groups = nodes.saturating_sub(in_metadata).div_ceil(u64::from(self.geometry.group_blocks));
        let room = self.data_room().checked_sub(groups * u64::from(self.geometry.group_blocks));
        room.is_some_and(|room| room >= reserved)
    }

    /// True if a direct write of `blocks` leaves what was promised.
    pub fn leaves_promised(&self, blocks: u64) -> bool {
        let reserved = self.reserved.blocks();
        reserved == 0 && self.stagings.is_empty() || self.can_hold(reserved + blocks)
    }
}
