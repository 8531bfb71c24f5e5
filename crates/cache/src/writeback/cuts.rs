//! The cuts that are not published.

use std::collections::VecDeque;

use base::{Epoch, Instant};
use btree::Tree;
use pool::{HandedOverPass, Reservation};

use crate::policy::which_cut::{CutChoice, MAX_SEALED};

/// A cut that is not published yet.
#[derive(Clone)]
pub(crate) struct Cut {
    pub epoch: Epoch,
    pub tree: Tree,
    pub taken_at: Instant,
    /// Dirty blocks of the epoch that it has sealed.
    pub blocks: u64,
    /// The pool has all of it, and publishes it with the next good commit; its staging volumes are
    /// gone.
    pub handed_over: bool,
}

/// All cuts that are not published.
#[derive(Default)]
pub(crate) struct Cuts {
    /// The oldest first.
    sealed: VecDeque<Cut>,
    /// Room in the pool for the dirty blocks of each sealed epoch; the pass that carries it takes
    /// it out.
    reserved: VecDeque<(Epoch, Reservation)>,
    /// The cut that a pass carries, or that a failed pass has left. No other is carried before it
    /// is published.
    carried: Option<Epoch>,
    /// A pass runs.
    passing: bool,
    /// The number of tasks that keep cuts from being taken.
    kept_away: u32,
}

impl Cuts {
    /// The number of cuts.
    pub fn count(&self) -> usize {
        self.sealed.len()
    }

    /// Adds a new cut, with the room in the pool for the dirty blocks of its epoch.
    pub fn push(&mut self, cut: Cut, reserved: Reservation) {
        self.reserved.push_back((cut.epoch, reserved));
        self.sealed.push_back(cut);
    }

    /// A pass begins to carry, or has ended.
    pub fn set_passing(&mut self, passing: bool) {
        self.passing = passing;
    }

    /// Until [`Cuts::let_back`] no cut is taken, except one that a pass needs.
    pub fn keep_away(&mut self) {
        self.kept_away += 1;
    }

    pub fn let_back(&mut self) {
        self.kept_away -= 1;
    }

    /// True if a pass runs, and cuts may be taken meanwhile.
    pub fn may_seal(&self) -> bool {
        self.passing && self.kept_away == 0
    }

    /// True if a pass may take a new cut to carry.
    pub fn may_take(&self) -> bool {
        self.count() == 0 || self.kept_away == 0 && self.count() < MAX_SEALED
    }

    /// Dirty blocks that the pass which is under way publishes, or the next one if it carries the
    /// oldest; 0 if there is no cut.
    pub fn lump(&self) -> u64 {
        match self.carried {
            Some(epoch) => {
                self.sealed.iter().take_while(|cut| cut.epoch <= epoch).map(|cut| cut.blocks).sum()
            }
            None => self.sealed.front().map_or(0, |cut| cut.blocks),
        }
    }

    /// The cut that a pass carries, or that an error has left.
    pub fn carried(&self) -> Option<&Cut> {
        self.sealed.iter().find(|cut| Some(cut.epoch) == self.carried)
    }

    /// The epoch of the carried cut, if it was handed to the pool: none of it is to be carried
    /// again.
    pub fn handed_over(&self) -> Option<Epoch> {
        self.carried().filter(|cut| cut.handed_over).map(|cut| cut.epoch)
    }

    /// The pool has all of a cut.
    pub fn hand_over(&mut self, pass: &HandedOverPass) {
        self.sealed
            .iter_mut()
            .filter(|cut| cut.epoch == pass.epoch())
            .for_each(|cut| cut.handed_over = true);
    }

    /// Chooses the cut that is carried from now on; `None`: there is no cut.
    pub fn carry(&mut self, next: CutChoice) -> Option<Cut> {
        let cut = match next {
            CutChoice::Oldest => self.sealed.front(),
            CutChoice::Newest => self.sealed.back(),
        };
        self.carried = cut.map(|cut| cut.epoch);
        cut.cloned()
    }

    /// The cut of `epoch` is published, with all before it.
    pub fn publish(&mut self, epoch: Epoch) {
        self.sealed.retain(|cut| cut.epoch > epoch);
        self.carried = self.carried.filter(|&carried| carried > epoch);
    }

    /// Adds the room of the cut of `epoch`, and of all before it, to `room`: a pass publishes them.
    pub fn take_room(&mut self, epoch: Epoch, room: &mut Reservation) {
        let first_after = self.reserved.partition_point(|(e, _)| *e <= epoch);
        self.reserved.drain(..first_after).for_each(|(_, more)| room.merge(more));
    }

    /// A pass of the cut of `epoch` was given up, and has returned its room.
    pub fn put_room(&mut self, epoch: Epoch, room: Reservation) {
        self.reserved.push_front((epoch, room));
    }

    /// The room stays reserved, also without this cache.
    pub fn keep_room(&mut self) {
        self.reserved.drain(..).for_each(|(_, room)| room.keep());
    }
}
