//! Snapshots that the next commits are to take.

use std::cell::RefCell;
use std::rc::Rc;

use base::{Result, VolumeId};

/// A snapshot that is wanted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WantedSnapshot {
    /// The volume.
    pub of: VolumeId,
    /// The name of the snapshot.
    pub name: String,
}

/// Snapshots that are to be taken at one moment.
pub(crate) struct SnapshotRequest {
    pub wanted: Vec<WantedSnapshot>,
    /// The numbers of the snapshots, or why there are none, once a commit has looked at it.
    pub outcome: Rc<RefCell<Option<Result<Vec<VolumeId>>>>>,
}

/// The requests for snapshots that no commit has taken yet.
#[derive(Default)]
pub(crate) struct SnapshotRequests(Vec<SnapshotRequest>);

impl SnapshotRequests {
    pub fn add(&mut self, request: SnapshotRequest) {
        self.0.push(request);
    }

    pub fn take(&mut self) -> Vec<SnapshotRequest> {
        std::mem::take(&mut self.0)
    }
}
