//! Snapshots: take, list, delete.
//!
//! A snapshot is taken by a commit: at its freeze, in O(1). What the direct transaction has then is
//! in the snapshot, with the write-back passes that have joined it. A volume that an open pass has
//! edited is in two states, so its snapshot waits for the end of that pass.
//!
//! A snapshot that is deleted is gone for its users at once. When that is durable, commits
//! [drain](crate::commit::deadlists) it, a part at a time.

use std::cell::RefCell;
use std::rc::Rc;

use base::{BLOCK_U64, Duration, ErrorKind, Generation, Result, StorageError, VolumeId};
use format::page::VolumeState;
use rt::sync::{Event, either};

use crate::commit::commit_requests::Commits;
use crate::commit::take_snapshots::{can_be_taken, is_in_pass};
use crate::core::Core;
use crate::forest::Volume;
use crate::settings::check_snapshot_name;
use crate::txn::{SnapshotRequest, WantedSnapshot};

/// The name of the job that frees what deleted snapshots have.
const JOB: &str = "snapshots";
/// The pause between two parts of the deletion of a snapshot: commits are for others, too.
const DRAIN_PAUSE: Duration = Duration::from_millis(50);
/// The pause after an error.
const AGAIN: Duration = Duration::from_secs(1);
/// The longest time that a snapshot waits for the end of a write-back pass before it looks again.
const PASS_PATIENCE: Duration = Duration::from_secs(5);

/// A snapshot as its users see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotInfo {
    /// The snapshot's number, by which it is read.
    pub id: VolumeId,
    /// The volume that it is of.
    pub of: VolumeId,
    /// The snapshot's name, which no other snapshot of the volume has.
    pub name: String,
    /// When the snapshot was taken, in seconds of Unix time.
    pub taken_at: u64,
    /// The size of the volume then, in bytes.
    pub size_bytes: u64,
    /// Bytes that the volume had of the pool then, one copy counted. The volume and other snapshots
    /// may share them.
    pub referenced_bytes: u64,
    /// Bytes in a logical sector.
    pub sector_bytes: u32,
}

/// Takes, lists and deletes snapshots.
pub struct Snapshots {
    core: Core,
    commits: Rc<Commits>,
    /// Rings when a snapshot was deleted.
    deleted: Event,
}

fn info(v: &Volume) -> Option<SnapshotInfo> {
    let r = v.record();
    let origin = r.snapshot.filter(|_| v.is_readable())?;
    Some(SnapshotInfo {
        id: r.id,
        of: origin.volume,
        name: r.name.clone(),
        taken_at: origin.taken_at,
        size_bytes: r.size_bytes,
        referenced_bytes: r.allocated_blocks * BLOCK_U64,
        sector_bytes: r.sector,
    })
}

fn no_such_snapshot(id: VolumeId) -> StorageError {
    StorageError::new(ErrorKind::NotFound, format!("there is no snapshot with the id {id}"))
}

impl Snapshots {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core, commits: &Rc<Commits>) -> Rc<Snapshots> {
        let (core, commits) = (core.clone(), commits.clone());
        Rc::new(Snapshots { core, commits, deleted: Event::new() })
    }

    /// Takes snapshots of volumes, all at one moment, or none. They are durable when this returns.
    /// They have what was written to the pool before, and nothing that is written after this has
    /// returned. Returns their numbers.
    ///
    /// # Errors
    ///
    /// A volume is not there, a name is taken or not allowed, the table of volumes is full, or the
    /// pool takes no writes.
    pub async fn take(&self, wanted: Vec<WantedSnapshot>) -> Result<Vec<VolumeId>> {
        for (n, w) in wanted.iter().enumerate() {
            check_snapshot_name(&w.name)?;
            if wanted[..n].iter().any(|other| other.of == w.of) {
                let text = "a volume is named twice: one snapshot of each is taken at a time";
                return Err(StorageError::new(ErrorKind::Invalid, text));
            }
        }
        if wanted.is_empty() {
            return Err(StorageError::new(ErrorKind::Invalid, "no volume is named"));
        }
        let outcome = Rc::new(RefCell::new(None));
        {
            let mut st = self.core.state_mut();
            st.standing.permit()?;
            for w in &wanted {
                can_be_taken(&st, w)?;
            }
            let request = SnapshotRequest { wanted: wanted.clone(), outcome: outcome.clone() };
            st.snapshot_requests.add(request);
            st.need_superblock();
        }
        loop {
            let ended = self.core.state().txns.pass_ended();
            if let Err(e) = self.commits.commit().await {
                // The commit that has the snapshots is tried again, and so they may yet come.
                if self.core.is_closed() || self.core.permit().is_err() {
                    return Err(e);
                }
                self.core.rt().sleep(AGAIN).await;
                continue;
            }
            let taken = outcome.borrow().clone();
            match taken {
                // The commit that has them is one after that for which this has waited.
                Some(Ok(ids)) if ids.iter().any(|&id| self.is_being_taken(id)) => continue,
                Some(outcome) => return outcome,
                None => {}
            }
            let waits = wanted.iter().any(|w| is_in_pass(&self.core.state(), w.of));
            if waits {
                either(ended, self.core.rt().sleep(PASS_PATIENCE)).await;
            }
            self.core.state_mut().need_superblock();
        }
    }

    /// Whether the commit that takes a snapshot is not durable yet.
    fn is_being_taken(&self, id: VolumeId) -> bool {
        let st = self.core.state();
        let is_there = |v: &&Volume| v.is_there() && v.record().state == VolumeState::Live;
        st.forest.volume(id).filter(is_there).is_some_and(|v| !v.is_readable())
    }

    /// Error: one of these snapshots could not be taken now.
    pub fn can_be_taken(&self, wanted: &[WantedSnapshot]) -> Result<()> {
        wanted.iter().try_for_each(|w| {
            check_snapshot_name(&w.name)?;
            can_be_taken(&self.core.state(), w)
        })
    }

    /// The snapshots of a volume, the oldest first.
    pub fn of(&self, volume: VolumeId) -> Vec<SnapshotInfo> {
        self.core.state().forest.snapshots_of(volume).filter_map(info).collect()
    }

    /// All snapshots of the pool.
    pub fn all(&self) -> Vec<SnapshotInfo> {
        self.core.state().forest.volumes().filter_map(info).collect()
    }

    /// True if there are snapshots, also if all of them are being deleted.
    pub fn any(&self) -> bool {
        self.core.state().forest.volumes().any(Volume::is_snapshot)
    }

    /// A snapshot by its number.
    pub fn snapshot(&self, id: VolumeId) -> Option<SnapshotInfo> {
        self.core.state().forest.volume(id).and_then(info)
    }

    /// A snapshot by the name of its volume and its own.
    pub fn find(&self, volume: &str, name: &str) -> Option<SnapshotInfo> {
        let st = self.core.state();
        let of = st.forest.volumes().find(|v| v.is_served() && v.record().name == volume)?;
        // One that is being deleted may have had the name.
        let mut all = st.forest.snapshots_of(of.record().id).filter_map(info);
        all.find(|s| s.name == name)
    }

    /// Gives a snapshot another name.
    ///
    /// # Errors
    ///
    /// The snapshot is not there, or the name is taken or not allowed.
    pub async fn rename(&self, id: VolumeId, name: &str) -> Result<()> {
        check_snapshot_name(name)?;
        {
            let mut st = self.core.state_mut();
            st.standing.permit()?;
            let origin = st.forest.volume(id).and_then(info).ok_or_else(|| no_such_snapshot(id))?;
            let is_taken = |s: SnapshotInfo| s.id != id && s.name == name;
            if st.forest.snapshots_of(origin.of).filter_map(info).any(is_taken) {
                let volume = st.volume_name(origin.of);
                let text = format!("there is a snapshot {volume}@{name} already");
                return Err(StorageError::new(ErrorKind::Exists, text));
            }
            st.change_volume(id, |record| name.clone_into(&mut record.name))?;
        }
        self.commits.commit().await
    }

    /// Deletes a snapshot. It is gone for good when this returns; its space comes back in the
    /// background.
    ///
    /// # Errors
    ///
    /// The snapshot is not there, or the pool takes no writes.
    pub async fn delete(&self, id: VolumeId) -> Result<()> {
        {
            let mut st = self.core.state_mut();
            if st.forest.volume(id).and_then(info).is_none() {
                return Err(no_such_snapshot(id));
            }
            st.standing.permit()?;
            st.change_volume(id, |record| record.state = VolumeState::Deleting)?;
        }
        let outcome = self.commits.commit().await;
        // Also if the commit fails: it is tried again, and then the snapshot is deleted.
        self.deleted.notify();
        outcome
    }

    /// Frees, in the background, what deleted snapshots alone have, one snapshot after another, as
    /// long as the pool is open.
    pub(crate) fn begin_draining(self: &Rc<Self>) {
        let this = self.clone();
        self.core.rt().detach_background(JOB, async move {
            while !this.core.is_closed() && this.core.permit().is_ok() {
                let (deleted, set) = (this.deleted.wait(), this.core.was_set());
                match this.next_deleted() {
                    Some(id) => this.drain(id).await,
                    None => either(deleted, set).await,
                }
            }
        });
    }

    fn next_deleted(&self) -> Option<VolumeId> {
        let is_deleted = |v: &&Volume| v.is_snapshot() && v.record().state == VolumeState::Deleting;
        let st = self.core.state();
        st.forest.volumes().find(is_deleted).map(|v| v.record().id)
    }

    /// Drains one snapshot.
    async fn drain(&self, id: VolumeId) {
        let mut told = false;
        while !self.core.is_closed() && self.core.permit().is_ok() {
            match self.drain_part(id).await {
                Ok(true) => return,
                Ok(false) if self.is_drained(id) => {}
                Ok(false) => self.core.rt().sleep(DRAIN_PAUSE).await,
                Err(e) => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(
                            snapshot = id.0,
                            "the space of a deleted snapshot does not come back yet: {e}; it is \
                             tried again"
                        );
                    }
                    self.core.rt().sleep(AGAIN).await;
                }
            }
        }
    }

    /// Whether only the place of a deleted snapshot is left.
    fn is_drained(&self, id: VolumeId) -> bool {
        self.core.state().forest.volume(id).is_none_or(Volume::is_drained)
    }

    /// One part; returns whether the snapshot is gone.
    async fn drain_part(&self, id: VolumeId) -> Result<bool> {
        if !self.ask_to_drain(id)? {
            return Ok(true);
        }
        self.commits.commit().await?;
        Ok(false)
    }

    /// Has the next commit drain a part of a deleted snapshot, or empty its place in the table;
    /// false if it is gone.
    fn ask_to_drain(&self, id: VolumeId) -> Result<bool> {
        let mut st = self.core.state_mut();
        let Some(v) = st.forest.volume(id) else { return Ok(false) };
        let Some(origin) = v.record().snapshot else { return Ok(false) };
        if !v.is_there() {
            // The running commit empties its place.
            return Ok(true);
        }
        if v.is_drained() || st.forest.volume(origin.volume).is_none() {
            st.forget_volume(id)?;
        } else {
            let next = st.forest.successor(&origin, Generation(u64::MAX));
            st.change_volume(id, |_| ())?;
            st.change_volume(next.0, |_| ())?;
        }
        Ok(true)
    }
}
