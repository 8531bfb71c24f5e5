//! Whether all chunks that groups are to get find room.
//!
//! The copies of a group are on different devices, so a sum of free chunks says nothing: they may
//! be on the device that has the group already. Groups of the same [set](DeviceSet) are to get as
//! many chunks, and can get them of the same devices. There are few sets, however many groups there
//! are, and few devices. So this is a small [`Flow`].
//!
//! **No step is long.** There may be thousands of kinds after all, so a [`Fit`] works in slices.
//! Between two of them the state may change. Each slice is given what is asked as of now
//! ([`Terms`]); if that, or a number of groups, is not what it was, the work begins again, in
//! longer slices. So an answer is one of the step in which it is given.

use base::GroupId;

use super::Placement;
use super::flow::{Flow, Work};
use crate::devices::{Devices, groups_of};
use crate::space::groups::Groups;
use crate::space::groups::sets::{DeviceSet, DeviceSets, Rows, rows_of};
use crate::space::want::{ChunkChange, Goal};

/// The work of a slice, in devices and kinds that are looked at: about 0.1 ms.
const SLICE: u64 = 1 << 16;

/// The most work of a slice after the work had to begin again. Two thousand sets need one such
/// slice; there are more only where three copies are spread over many devices. Then a new group may
/// make the work begin again, but groups are formed far less often than in each few slices.
const LONG_SLICE: u64 = 4 * SLICE;

/// The work for a set that wants nothing.
const SET: u64 = 32;

/// The terms of a question: whether everything finds room if it is to be like this.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Terms {
    goal: Goal,
    /// The number of chunks that may be taken of each device, if the device is in use and stays.
    free: Vec<u64>,
    /// The number of added devices, which have room for everything.
    added: usize,
    own: Option<OwnGroup>,
}

/// A group of its own kind, for which devices are [chosen](Fit::choose).
#[derive(Clone, PartialEq, Eq, Debug)]
struct OwnGroup {
    group: GroupId,
    /// The devices of which the group may get chunks.
    may: Rows,
    gets: usize,
}

impl Terms {
    /// The same, if this device leaves.
    pub fn without(mut self, row: usize) -> Terms {
        self.goal = self.goal.without(row);
        self.free.iter_mut().skip(row).take(1).for_each(|free| *free = 0);
        self
    }

    /// The same for another number of copies.
    pub fn with_copies(self, copies: u8) -> Terms {
        Terms { goal: self.goal.with_copies(copies), ..self }
    }

    /// The same, if so many devices are added that have room for everything.
    fn with_added(self, added: usize) -> Terms {
        Terms { added, ..self }
    }

    /// The terms for [`Fit::new_shortage`]: what is, and what would be.
    pub fn before_and_after(self, after: impl FnOnce(Terms) -> Terms) -> Vec<Terms> {
        let after = after(self.clone());
        // A group gets at most as many chunks as there are copies: so many devices suffice.
        let added = 0..after.goal.copies().max(1);
        let mut all = vec![self];
        all.extend(added.map(|added| after.clone().with_added(added)));
        all
    }

    fn all(&self) -> Rows {
        Rows::MAX >> (Rows::BITS as usize - self.free.len())
    }
}

/// Chunks that find no room.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Shortage {
    /// The number of these chunks.
    pub chunks: u64,
    /// Devices without a free chunk on which more room would help.
    pub rows: Vec<usize>,
    /// The number of devices that have to be added, if no device grows.
    pub devices: usize,
}

/// The work on a question.
#[derive(Default)]
pub(crate) struct Fit {
    lanes: Vec<Lane>,
    /// The number of changes of the sets when it began.
    changes: u64,
    /// The set that was looked at last.
    at: Option<DeviceSet>,
    /// All sets were looked at.
    over: bool,
    /// The work of a slice; 0: it has not begun.
    slice: u64,
}

/// One of the terms that are asked about together.
struct Lane {
    terms: Terms,
    /// The set of the group that is of its own kind.
    own: Option<DeviceSet>,
    flow: Flow,
}

impl Fit {
    /// Does a slice of the work on what is asked as of now. Returns true when there is an answer.
    pub fn go_on(&mut self, groups: &Groups, asked: Vec<Terms>) -> bool {
        let same = self.lanes.iter().map(|lane| &lane.terms).eq(&asked);
        if self.slice == 0 || !same || self.changes != groups.sets().changes() {
            // Longer slices leave less time for changes.
            self.begin(groups, asked, (2 * self.slice).clamp(SLICE, LONG_SLICE));
        }
        self.work(groups.sets());
        self.over
    }

    fn begin(&mut self, groups: &Groups, asked: Vec<Terms>, slice: u64) {
        let lane = |terms: Terms| Lane {
            own: terms.own.as_ref().map(|own| groups.set_of(own.group)),
            flow: Flow::new(&terms.free),
            terms,
        };
        let lanes: Vec<Lane> = asked.into_iter().map(lane).collect();
        let over = lanes.is_empty();
        *self = Fit { lanes, changes: groups.sets().changes(), at: None, over, slice };
    }

    /// Does a slice of the work. Returns how much that was.
    fn work(&mut self, sets: &DeviceSets) -> u64 {
        let mut work = Work { done: 0, most: self.slice };
        if self.over || !self.settle(&mut work) {
            return work.done;
        }
        let from = self.at.take();
        for (set, groups) in sets.after(from.as_ref()) {
            for lane in &mut self.lanes {
                work.did(SET);
                lane.add(set, groups);
            }
            if !self.settle(&mut work) {
                self.at = Some(set.clone());
                return work.done;
            }
        }
        self.over = true;
        for lane in &mut self.lanes {
            lane.add_own(&mut work);
        }
        work.done
    }

    /// Finds chunks for the kinds that were added last. Returns false if that is to go on in the
    /// next slice.
    fn settle(&mut self, work: &mut Work) -> bool {
        self.lanes.iter_mut().all(|lane| lane.flow.settle(work))
    }

    /// The chunks that find no room by the second of the terms, if they are more than by the first;
    /// the other terms are those with devices added ([`Terms::before_and_after`]).
    pub fn new_shortage(&self) -> Option<Shortage> {
        let [before, after, added @ ..] = self.lanes.as_slice() else { return None };
        let chunks = after.flow.left();
        let suffices = |lane: &Lane| lane.flow.left() == 0;
        let devices = 1 + added.iter().position(suffices).unwrap_or(added.len());
        let rows = || rows_of(after.flow.in_the_way()).collect();
        (chunks > before.flow.left()).then(|| Shortage { chunks, rows: rows(), devices })
    }

    /// The number of groups that can still be formed when everything has found its room: by the
    /// first of the terms, and by the second ([`Terms::before_and_after`]).
    pub fn formable(&self, groups: &Groups) -> Option<(u64, u64)> {
        let [before, after, ..] = self.lanes.as_slice() else { return None };
        let formable = |lane: &Lane| {
            let copies = lane.terms.goal.copies() as u64;
            groups_of(lane.flow.free().iter().copied(), copies, groups.unused())
        };
        Some((formable(before), formable(after)))
    }

    /// The devices on which the group of its own kind is to get `gets` chunks, so that all other
    /// groups find room too, as far as that is possible. `order`: the devices that it may get
    /// chunks of, the best ones first, and enough of them.
    pub fn choose(self, gets: usize, order: &[usize]) -> Vec<usize> {
        match self.lanes.into_iter().next() {
            Some(lane) => lane.flow.choose(gets, order),
            None => order[..gets].to_vec(),
        }
    }
}

impl Lane {
    /// Adds the groups of a set, if they are to get chunks.
    fn add(&mut self, set: &DeviceSet, groups: u64) {
        let groups = groups - u64::from(self.own.as_ref() == Some(set));
        let Some(want) = ChunkChange::of(GroupId(0), &set.chunks(), &self.terms.goal) else {
            return;
        };
        // On each device that is added it gets one.
        let gets = want.gets.saturating_sub(self.terms.added);
        self.flow.add(self.terms.all() & !set.rows(), groups, gets);
    }

    /// Adds the group of its own kind, and finds chunks for it.
    fn add_own(&mut self, work: &mut Work) {
        if let Some(own) = &self.terms.own {
            self.flow.add(own.may, 1, own.gets);
            // The work has no bound here: one group gets only a few chunks.
            work.most = u64::MAX;
            self.flow.settle(work);
        }
    }
}

impl Placement<'_> {
    /// The question whether everything finds room as it is.
    pub fn terms(&self, devices: &Devices) -> Terms {
        let free = |row| if devices.is_live(row) { devices.spare_chunks(row) } else { 0 };
        let free = (0..devices.count()).map(free).collect();
        Terms { goal: self.goal(devices), free, added: 0, own: None }
    }

    /// The terms to be asked for [`Fit::choose`]. They are empty where any choice is right, or
    /// there is no choice.
    pub fn terms_of_choice(&self, of: &Devices, want: &ChunkChange, order: &[usize]) -> Vec<Terms> {
        let need = self.most_to_get(of) + want.gets as u64;
        let mut first = order.iter().take(want.gets);
        if order.len() < want.gets || first.all(|&row| of.spare_chunks(row) >= need) {
            return Vec::new();
        }
        let may = order.iter().fold(0, |all, row| all | 1 << row);
        let own = Some(OwnGroup { group: want.group, may, gets: want.gets });
        vec![Terms { own, ..self.terms(of) }]
    }

    /// The number of chunks that all groups together are to get at most.
    fn most_to_get(&self, devices: &Devices) -> u64 {
        let goal = self.goal(devices);
        let lack = |(chunks, groups)| goal.copies().saturating_sub(chunks) as u64 * groups;
        let leave = (0..devices.count()).filter(|&row| goal.leaves(row));
        self.groups.sets().by_chunks().map(lack).sum::<u64>()
            + leave.map(|row| self.groups.sets().chunks_on(row)).sum::<u64>()
    }
}

#[cfg(test)]
#[path = "fit_tests.rs"]
mod tests;
