//! Whether two devices of a pool were written without each other. The table is in `open/judge.rs`.

use format::superblock::{DeviceState, Superblock};

/// True if a device whose newest superblock is the one of `sequence` may have been in use until the
/// one of `since` called it failed: it has the one before that, or, as power failed or its write
/// did, the one before.
pub(crate) fn left_at(sequence: u64, since: u64) -> bool {
    (sequence + 1..=sequence + 2).contains(&since)
}

/// True if what the device of `own` has completed may be unknown to the state of `best`.
pub(crate) fn went_apart(own: &Superblock, best: &Superblock) -> bool {
    let online = |sb: &Superblock, row: usize| {
        sb.devices.get(row).filter(|d| d.state == DeviceState::Online).map(|d| d.uuid)
    };
    // A row may have been another device's before.
    let shared = |row: usize| {
        row != usize::from(own.device)
            && online(own, row).is_some()
            && online(own, row) == online(best, row)
    };
    // The device of `best` joined after that: its first superblock is of the pool that this one is
    // in use by, and knows all that it has completed.
    let (mine, theirs) = (usize::from(own.device), usize::from(best.device));
    let joined = own.devices.get(theirs).is_none_or(|d| d.state == DeviceState::Removed);
    // Or it was away, as this one says, and came back when this one had said so.
    let came_back =
        own.devices.get(theirs).zip(best.devices.get(theirs)).is_some_and(|(was, is)| {
            was.state == DeviceState::Failed
                && was.uuid == is.uuid
                && (was.since..=own.sequence).contains(&is.since)
        });
    let joined_since = (joined || came_back)
        && online(best, mine).is_some()
        && online(best, mine) == online(own, mine);
    // It has written no superblock since the first that calls it failed, and all before: others may
    // all have been replaced while it was away.
    let left_before = best
        .devices
        .get(mine)
        .is_some_and(|d| d.state == DeviceState::Failed && left_at(own.sequence, d.since));
    // It has been away by its own: it was given this superblock before an invitation.
    let is_away = own.devices.get(mine).is_some_and(|d| d.state == DeviceState::Failed);
    own.device != best.device
        && !is_away
        && !joined_since
        && !left_before
        && !(0..best.devices.len()).any(shared)
}
