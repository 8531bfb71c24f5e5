//! The index of the snapshots among the volumes.

use std::collections::BTreeMap;

use base::{ErrorKind, Generation, Result, StorageError, VolumeId};
use format::page::VolumeState;

use super::volume::Volume;

/// The snapshots, by volume and the commit that took them.
pub(super) type SnapshotIndex = BTreeMap<(VolumeId, Generation), VolumeId>;

/// The index of the snapshots among these volumes. Error: one is of no volume.
pub(super) fn found(volumes: &mut BTreeMap<VolumeId, Volume>) -> Result<SnapshotIndex> {
    let mut index = BTreeMap::new();
    for (&id, v) in &*volumes {
        let Some(origin) = v.record.snapshot else { continue };
        if index.insert((origin.volume, origin.generation), id).is_some() {
            let text = format!("volume {} has two snapshots of one commit", origin.volume);
            return Err(StorageError::new(ErrorKind::Damaged, text));
        }
    }
    for (&(of, _), id) in &index {
        let is_deleted = volumes.get(id).is_some_and(|v| v.record.state == VolumeState::Deleting);
        let Some(v) = volumes.get_mut(&of).filter(|v| !v.is_snapshot()) else {
            if is_deleted {
                continue;
            }
            let text = format!("there is a snapshot of volume {of}, and no such volume");
            return Err(StorageError::new(ErrorKind::Damaged, text));
        };
        v.has_snapshots = true;
    }
    Ok(index)
}
