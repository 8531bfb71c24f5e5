//! Cuts: the moments at which the cache is carried to the pool.
//!
//! A cut *seals* the open epoch: it is a snapshot of the index's tree, taken in O(1), and the next
//! epoch opens. There may be several that are not published: `published < e1 < e2 < ... < en <
//! open`. The snapshot of a cut has everything that was dirty when it was taken, so a pass of
//! write-back takes any one of them, carries what its snapshot has above the published epoch, and
//! publishes its epoch: that cut and all before it are done at once.
//!
//! **When one is taken.** When a pass begins, unless it takes an older one; and while a pass runs,
//! whenever enough is dirty in the open epoch ([`should_seal`]). So what comes in during a long
//! pass is not one large next cut, but several that can be published one by one, and room comes
//! free in small lumps.
//!
//! **What one costs.** Nodes of the index that are replaced while it is the newest stay where they
//! are until it is published, all of the index at most. Where changes are all over the index, many
//! small cuts would fill the cache with old nodes. So they are small only as long as few nodes are
//! held.
//!
//! **Which is carried** ([`next`]). Each publication has a price: nodes of the pool's trees, a
//! commit, and blocks that were overwritten from one cut to the next are carried for each. So the
//! newest is taken, with all that is dirty, as long as nothing presses; and the oldest while much
//! of the cache is dirty, because it is published soonest.
//!
//! **Staged blocks.** A cut waits for the writes past the cache that are under way
//! ([`crate::io::past`]), which may take as long as the pool likes. A pass does not wait for that:
//! [`Cache::sealer`] is a task of its own. It takes cuts while a pass runs and at no other time, so
//! there is no new one while somebody holds the round's lock without a pass.

use std::collections::VecDeque;

use base::{Epoch, Instant};
use btree::Tree;
use format::cache::journal::Record;
use pool::Result;
use rt::sync::Permit;

use crate::Cache;
use crate::io::past::STAGED_PER_BLOCK;
use crate::policy::throttle::LUMP;
use crate::store::room::Room;

/// More cuts than this are never kept: each has nodes of the index that nobody else has.
pub(crate) const MAX_SEALED: usize = 32;

/// A cut that is not published yet.
#[derive(Clone)]
pub(crate) struct Cut {
    pub epoch: Epoch,
    pub tree: Tree,
    pub taken_at: Instant,
    /// It was handed to the pool to be published; staging volumes may be gone.
    pub handed_over: bool,
}

/// All cuts that are not published.
#[derive(Default)]
pub(crate) struct Cuts {
    /// The oldest first.
    sealed: VecDeque<Cut>,
    /// The one that a pass carries, or that an error has left: no other is carried before it is
    /// published.
    carried: Option<Epoch>,
    /// A pass runs.
    passing: bool,
    /// No cut is to be taken.
    kept_away: u32,
}

impl Cuts {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.sealed.len()
    }

    /// The one that a pass carries, or that an error has left.
    pub fn carried(&self) -> Option<&Cut> {
        self.sealed.iter().find(|cut| Some(cut.epoch) == self.carried)
    }

    /// A cut was handed to the pool, and none of it is to be carried again.
    pub fn handed_over(&self) -> Option<Epoch> {
        self.carried().filter(|cut| cut.handed_over).map(|cut| cut.epoch)
    }

    /// The carried cut is handed to the pool.
    pub fn hand_over(&mut self) {
        let carried = self.carried;
        self.sealed.iter_mut().filter(|cut| Some(cut.epoch) == carried).for_each(|cut| cut.handed_over = true);
    }

    /// A cut is carried from now on.
    fn carry(&mut self, next: Next) -> Option<Cut> {
        let cut = match next {
            Next::Oldest => self.sealed.front(),
            Next::Newest => self.sealed.back(),
        };
        self.carried = cut.map(|cut| cut.epoch);
        cut.cloned()
    }

    /// The cut of `epoch` is published, with all before it.
    pub fn publish(&mut self, epoch: Epoch) {
        self.sealed.retain(|cut| cut.epoch > epoch);
        self.carried = self.carried.filter(|&carried| carried > epoch);
    }
}

/// The cut that a pass carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Of those that there are.
    Oldest,
    /// One that is taken now, with all that is dirty.
    Newest,
}

/// Dirty blocks in the open epoch at which it is sealed while a pass runs; `set`: this, if it is
/// not 0. An eighth of the cache: a pass rewrites the leaves of the pool's trees that it touches, of
/// random blocks one for every few, so smaller cuts cost much of the pool's speed. At least some
/// buckets, because smaller ones free next to nothing.
pub(crate) fn seal_at(data_blocks: u64, bucket_blocks: u32, set: u64) -> u64 {
    match set {
        0 => (data_blocks / LUMP).max(4 * u64::from(bucket_blocks)),
        set => set,
    }
}

/// What is known when it is asked whether the open epoch should be sealed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    /// Dirty blocks in the open epoch.
    pub open: u64,
    /// Cuts that there are.
    pub cuts: usize,
    /// Nodes of the index that are held for cuts, and of these, for the newest of them.
    pub held: (u64, u64),
    /// Blocks of the cache.
    pub data_blocks: u64,
}

/// True if the open epoch, in which `least` blocks should be dirty, should be sealed while a pass
/// runs. From a thirty-second of the cache on, what is held has to be paid for: another cut may
/// come when eight times as many blocks are dirty as nodes are held for the last one.
pub(crate) fn should_seal(s: Standing, least: u64) -> bool {
    let (all, newest) = s.held;
    let cheap = all * 32 <= s.data_blocks || s.open >= 8 * newest;
    s.cuts < MAX_SEALED && s.open >= least && cheap
}

/// The cut that a pass carries, where there are so many that are sealed and so many blocks dirty of
/// a cache of `data_blocks`. `pressure` in percent of these; `all`: somebody waits for everything.
pub(crate) fn next(sealed: usize, dirty: u64, data_blocks: u64, pressure: u8, all: bool) -> Next {
    let pressed = dirty * 100 > data_blocks * u64::from(pressure);
    if sealed > 0 && pressed && !all { Next::Oldest } else { Next::Newest }
}

impl Cache {
    /// Takes cuts while a pass runs.
    pub(crate) async fn sealer(&self) {
        while !self.0.closed.get() {
            let wait = self.0.seal_wanted.wait();
            if !self.wants_seal() {
                wait.await;
                continue;
            }
            let Ok(mut room) = self.upkeep_room().await else { return };
            self.0.bypass.hold().await;
            // The pass may have ended meanwhile.
            if self.wants_seal() {
                self.take_cut(&mut room);
            }
            self.0.bypass.release();
        }
    }

    /// So much is dirty in the open epoch that it should be sealed now.
    pub(crate) fn wants_seal(&self) -> bool {
        let round = self.0.round.borrow();
        let cuts = &round.cuts;
        if !cuts.passing || cuts.kept_away > 0 {
            return false;
        }
        let layout = &self.0.layout;
        let least = seal_at(layout.data_blocks(), layout.bucket_blocks, self.0.settings.seal_blocks);
        let standing = {
            let st = self.state();
            let open = st.buckets.dirty_blocks().0 + st.buckets.staged_blocks().0 / STAGED_PER_BLOCK;
            Standing { open, cuts: cuts.count(), held: st.limbo.held(), data_blocks: layout.data_blocks() }
        };
        should_seal(standing, least) && !self.has_failed() && !self.wants_node_room()
    }

    /// Seals the open epoch. Nothing may be under way past the cache.
    pub(crate) fn take_cut(&self, room: &mut Room) {
        let mut round = self.0.round.borrow_mut();
        let mut st = self.state_mut();
        let epoch = st.buckets.take_cut();
        let open = st.buckets.epoch();
        st.push(room, &Record::Epoch { epoch: open });
        let generation = st.index.changes.generation();
        st.limbo.take_cut(epoch, generation);
        let (tree, taken_at) = (st.index.tree.clone(), self.0.rt.now());
        round.cuts.sealed.push_back(Cut { epoch, tree, taken_at, handed_over: false });
    }

    /// The cut that the next pass carries, taken now if need be.
    pub(crate) async fn choose_cut(&self) -> Result<Cut> {
        let next = {
            let round = self.0.round.borrow();
            let (open, sealed) = self.state().buckets.dirty_blocks();
            let all = round.urgent > 0;
            let blocks = self.0.layout.data_blocks();
            next(round.cuts.count(), open + sealed, blocks, self.0.settings.pressure_percent, all)
        };
        if next == Next::Newest && self.may_take_cut() {
            let mut room = self.upkeep_room().await?;
            self.0.bypass.hold().await;
            self.take_cut(&mut room);
            self.0.bypass.release();
        }
        let cut = self.0.round.borrow_mut().cuts.carry(next);
        Ok(cut.unwrap_or_else(|| unreachable!("one was there, or was taken")))
    }

    fn may_take_cut(&self) -> bool {
        let round = self.0.round.borrow();
        round.cuts.count() == 0 || round.cuts.kept_away == 0 && round.cuts.count() < MAX_SEALED
    }

    /// A pass begins to carry, or has ended.
    pub(crate) fn set_passing(&self, passing: bool) {
        self.0.round.borrow_mut().cuts.passing = passing;
        self.0.seal_wanted.notify();
    }

    /// Dirty blocks that the pass leaves, and those that it publishes.
    pub(crate) fn split_by_pass(&self) -> (u64, u64) {
        let carried = self.0.round.borrow().cuts.carried;
        let st = self.state();
        let (open, sealed) = st.buckets.dirty_blocks();
        let cut = carried.map_or(0, |epoch| st.buckets.dirty_blocks_upto(epoch));
        (open + sealed - cut, cut)
    }

    /// As [`Cache::between_rounds`]; and there is no cut while the permit is held. The size of a
    /// volume that writes back changes with this permit only. Else a cut could have blocks from
    /// behind a new end, and a pass would carry them to the volume after it has grown again. The
    /// passes that this takes are not paced; an error of one is returned. If the cache has failed,
    /// cuts may be left: none of them is carried any more, but for one that the pool has already.
    pub async fn between_cuts(&self) -> Result<Permit> {
        let alone = self.between_rounds().await;
        {
            let mut round = self.0.round.borrow_mut();
            round.urgent += 1;
            round.cuts.kept_away += 1;
        }
        let mut outcome = Ok(());
        while outcome.is_ok() && !self.has_failed() && self.0.round.borrow().cuts.count() > 0 {
            outcome = Box::pin(self.run_round()).await;
        }
        {
            let mut round = self.0.round.borrow_mut();
            round.urgent -= 1;
            round.cuts.kept_away -= 1;
        }
        outcome.map(|()| alone)
    }
}

#[cfg(test)]
#[path = "cuts_tests.rs"]
mod tests;
