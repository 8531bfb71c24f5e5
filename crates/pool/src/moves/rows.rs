//! Rows of the device table: which device one is, and what it allows.

use std::cmp::Reverse;

use base::{ErrorKind, Generation, Result, StorageError};
use format::page::Chunk;
use format::superblock::{DeviceState, MAX_DEVICES, Superblock};

use crate::devices::{Disk, PoolDevice, apart, left_at};
use crate::history::end_of;
use crate::space::ChunkChange;
use crate::state::State;

/// The error of a command that cannot be carried out as things are.
pub(super) fn invalid<T>(text: String) -> Result<T> {
    Err(StorageError::new(ErrorKind::Invalid, text))
}

/// The row of the device that has this path or uuid.
pub(super) fn row_named(st: &State, name: &str) -> Result<usize> {
    let is_it = |(row, d): &(usize, &PoolDevice)| {
        let id = uuid::Uuid::from_bytes(d.record().uuid);
        let named = !name.is_empty() && st.devices.path(*row) == name;
        !d.is_removed() && (named || id.to_string() == name)
    };
    let all = || st.devices.iter().enumerate();
    if let Some((row, _)) = all().find(is_it) {
        return Ok(row);
    }
    let known = all().filter(|(_, d)| !d.is_removed());
    let known: Vec<String> = known.map(|(row, d)| st.devices.name_of(row, d)).collect();
    let text = format!("{name} is no device of this pool; these are: {}", known.join(", "));
    Err(StorageError::new(ErrorKind::NotFound, text))
}

/// Fails if the device leaves already or is a spare: then it cannot be replaced.
pub(super) fn can_be_replaced(st: &State, row: usize, name: &str) -> Result<()> {
    match st.devices.row(row) {
        Some(d) if d.is_leaving() => invalid(format!(
            "{name} leaves the pool already: forebay device list shows how far that is; \
             forebay device cancel lets it stay, and then it can be replaced"
        )),
        Some(d) if d.is_spare() => {
            invalid(format!("{name} is a spare and holds nothing: remove it, and add another one"))
        }
        _ => Ok(()),
    }
}

pub(super) fn leave(st: &mut State, row: usize, successor: Option<u8>) {
    if let Some(d) = st.devices.row_mut(row) {
        d.leave(successor);
    }
}

pub(super) fn name_of(st: &State, row: usize) -> String {
    st.devices.row(row).map(|d| st.devices.name_of(row, d)).unwrap_or_default()
}

/// The chunks of a new device of so many bytes.
pub(super) fn new_chunks(st: &State, path: &str, size_bytes: u64) -> Result<u64> {
    if !st.devices.has_place() {
        return invalid(format!("a pool has at most {MAX_DEVICES} devices"));
    }
    let geometry = st.space.geometry();
    let chunks = geometry.chunks_of(size_bytes).min(geometry.group_capacity.into());
    if chunks == 0 {
        let need = geometry.chunk_offset(1, 0) >> 20;
        return invalid(format!(
            "{path} is too small: a device of this pool needs {need} MiB at least"
        ));
    }
    Ok(chunks)
}

/// Fails unless a device of the pool is out of use.
pub(super) fn is_away(st: &State, row: usize, path: &str) -> Result<()> {
    match st.devices.row(row).filter(|d| !d.is_removed()) {
        None => invalid(format!("{path}: is no device of the pool any more")),
        Some(d) if d.is_joining() => invalid(format!("{path}: is just coming into use; try again")),
        Some(d) if !d.is_away() => {
            invalid(format!("{path}: is in use already, as a device of this pool"))
        }
        Some(d) if d.disk().is_some_and(Disk::is_given_up) => invalid(format!(
            "{path}: has not answered yet what it was asked while it was in use; try again \
             when it does"
        )),
        Some(d) if d.is_told() => invalid(format!("{path}: is just going out of use; try again")),
        Some(_) => Ok(()),
    }
}

/// Checks by its newest superblock that a device is the one that went away. Returns the
/// generation up to which it has everything; 0 if it is to get all of it. Fails if it is
/// another device, or was written without the others.
pub(super) fn recognize(
    st: &State,
    row: usize,
    own: &Superblock,
    path: &str,
) -> Result<Generation> {
    let Some(d) = st.devices.row(row) else { return invalid(format!("{path}: no device")) };
    let record = d.record();
    let uuid = own.devices[usize::from(own.device)].uuid;
    if own.pool_uuid != st.identity.uuid || uuid != record.uuid {
        let text = format!("{path}: is no longer the device of the pool that it was");
        return Err(StorageError::new(ErrorKind::Foreign, text));
    }
    let live = st.devices.live_rows();
    let now = |&row: &usize| st.superblock_for(row, st.txns.committed(), st.tables.digest());
    if live.iter().map(now).any(|now| apart(own, &now)) {
        let text = format!(
            "{path}: this device was written without the others; replace it by itself or \
             another to give up what was written to it alone"
        );
        return Err(StorageError::new(ErrorKind::SplitBrain, text));
    }
    // A device whose superblock is older than the one that it had is an old copy of itself: it
    // gets everything. (So does one that a power cut left a superblock behind, and that was
    // missing at the next open.)
    let of_own = own.devices.get(row);
    let still_away = of_own
        .is_some_and(|d| (d.uuid, d.state, d.since) == (uuid, DeviceState::Failed, record.since));
    // The newest change that a superblock names tells whether it is such an old copy. If it is
    // from before opens had names, its sequence number does.
    let is_it = still_away || own.lineage.is_known() || left_at(own.sequence, record.since);
    let has = record.lacks_since.filter(|&g| is_it && g <= end_of(own).end);
    Ok(has.unwrap_or_default())
}

/// True if the device of a row leaves and holds nothing any more. One that is coming back goes
/// when it is in use again.
pub(super) fn may_go(st: &State, row: usize) -> bool {
    let leaves = |d: &PoolDevice| d.is_leaving() && !d.is_joining();
    st.devices.row(row).is_some_and(leaves) && !st.space.groups().uses_device(row)
}

/// The devices of which a group may get chunks, the best ones first.
pub(super) fn targets(st: &State, want: &ChunkChange) -> Vec<usize> {
    let devices = &st.devices;
    let row = |c: &Chunk| usize::from(c.device);
    let successor = |c: &Chunk| devices.row(row(c))?.record().successor.map(usize::from);
    let successors: Vec<usize> = want.loses.iter().filter_map(successor).collect();
    let has = |d: usize| want.keeps.iter().chain(&want.loses).any(|c| row(c) == d);
    let mut rows: Vec<usize> = (0..devices.count())
        .filter(|&d| want.of.is_none_or(|of| of == d))
        .filter(|&d| !has(d) && devices.is_live(d) && devices.spare_chunks(d) > 0)
        .collect();
    rows.sort_by_key(|&d| (!successors.contains(&d), Reverse(devices.spare_chunks(d)), d));
    rows
}
