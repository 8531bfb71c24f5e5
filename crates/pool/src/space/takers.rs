//! The takers of blocks: the direct writes that are under way, and the write-back pass.

use std::collections::BTreeSet;

use base::GroupId;
use rt::sync::Event;

use super::block_run::Run;
use super::geometry::Geometry;

/// The groups that direct writes and the write-back pass have taken blocks from.
///
/// - A run counts as being written from the step in which a direct write has taken it until it is
///   entered into the trees, or given back. A write-back pass may not begin to edit the checksums
///   of the group meanwhile, because these writes will.
/// - While the open write-back pass has a group, nothing else allocates from it.
pub(crate) struct Takers {
    geometry: Geometry,
    /// By group: the number of runs that are being written.
    writing: Vec<u32>,
    /// Rung when direct writes were entered into the trees, or given up.
    writes_ended: Event,
    /// The groups that the open write-back pass has.
    of_pass: BTreeSet<GroupId>,
}

impl Takers {
    pub(super) fn new(geometry: Geometry, groups: usize) -> Takers {
        let (writing, of_pass) = (vec![0; groups], BTreeSet::new());
        Takers { geometry, writing, writes_ended: Event::new(), of_pass }
    }

    /// A direct write has taken a run.
    pub fn begin_writing(&mut self, run: Run) {
        let (id, _) = self.geometry.split(run.addr);
        self.writing[id.0 as usize] += 1;
    }

    /// Ends the direct write of these runs: they were entered into the trees, or given back.
    pub fn end_writing(&mut self, runs: &[Run]) {
        for run in runs {
            let (id, _) = self.geometry.split(run.addr);
            self.writing[id.0 as usize] -= 1;
        }
        self.writes_ended.notify();
    }

    /// Waits for the end of a direct write, good or bad.
    pub fn writes_ended(&self) -> impl Future<Output = ()> + use<> {
        self.writes_ended.wait()
    }

    /// True if the trees contain every run that was taken from the group.
    pub fn is_settled(&self, id: GroupId) -> bool {
        self.writing[id.0 as usize] == 0
    }

    /// True if the open write-back pass has a group.
    pub fn is_of_pass(&self, id: GroupId) -> bool {
        self.of_pass.contains(&id)
    }

    /// The write-back pass gets a group, from which no direct write is under way. Returns true if
    /// the pass did not have it.
    pub(super) fn join_pass(&mut self, id: GroupId) -> bool {
        self.of_pass.insert(id)
    }

    /// The write-back pass lets go of a group.
    pub(super) fn leave_pass(&mut self, id: GroupId) {
        self.of_pass.remove(&id);
    }
}
