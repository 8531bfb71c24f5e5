//! Whether two devices of a pool were written without each other. The table is in `open/judge.rs`.

use format::superblock::{DeviceRecord, DeviceState, Superblock};

use crate::history::{goes_on_from, goes_on_from_settled};

/// True if the device of `own` has, or may have, completed something that the state of `best` does
/// not know: each was written without the other.
pub(crate) fn apart(own: &Superblock, best: &Superblock) -> bool {
    if !own.lineage.is_known() {
        return went_apart(own, best);
    }
    let knows = goes_on_from(best, own) || was_never_complete(own, best);
    !knows || !best.lineage.is_known() && went_apart(own, best)
}

/// True if `own` is one superblock ahead of where `best` went on without its device, and what was
/// complete before is known to `best`: power failed before a device that was in use had that
/// superblock, and `best` is of that device, or of one that goes on with it. A last word after it
/// says no more than that the device is out of use. The device may have been about to come back:
/// then it got the superblock of that, and one more. That one names a change as settled that was
/// made in the open of the return (`Commits::commit_direct`), so `best` knows that open.
fn was_never_complete(own: &Superblock, best: &Superblock) -> bool {
    let record = |sb: &Superblock, row: u16| sb.devices.get(usize::from(row)).cloned();
    let says = |sb: &Superblock, of: u16, state: DeviceState| {
        let same = record(own, of).map(|d| d.uuid) == record(best, of).map(|d| d.uuid);
        record(sb, of).filter(|d| same && d.state == state)
    };
    let is_online = |sb: &Superblock, of: u16| says(sb, of, DeviceState::Online).is_some();
    let Some(left) = says(best, own.device, DeviceState::Failed) else { return false };
    let has_last_word =
        says(own, own.device, DeviceState::Failed).is_some_and(|d| d.since == left.since);
    let was_coming_back = says(own, own.device, DeviceState::Online)
        .is_some_and(|d| left.since <= d.since && own.sequence <= d.since + 1);
    let is_ahead_by_one = own.sequence <= left.since || has_last_word || was_coming_back;
    // A superblock is complete when each device that it calls in use has it. The device of `best`
    // has not. Another that `best` calls in use may have gone on with `own`, and `best` may be what
    // power left of an open that nothing came of; not if `best` is two superblocks ahead.
    let went_on = own.sequence + 1 < best.sequence;
    let lacks_it = |row: u16| {
        row != own.device
            && is_online(own, row)
            && (row == best.device || went_on && is_online(best, row))
    };
    is_ahead_by_one
        && (0..own.devices.len() as u16).any(lacks_it)
        && goes_on_from_settled(best, own)
}

/// True if `newer` knows all that the device of `older` has completed, and not the other way round.
/// Superblocks from before opens had names are told apart by their counters alone.
pub(crate) fn is_ahead(newer: &Superblock, older: &Superblock) -> bool {
    let told = newer.lineage.is_known() || older.lineage.is_known();
    told && newer.pool_uuid == older.pool_uuid && apart(newer, older) && !apart(older, newer)
}

/// True if a device that is in use by `best` has everything that `best` names: it was there when
/// that was written, or a superblock before. If it was opened without the others meanwhile, or is
/// an older copy of itself, it was not.
pub fn is_up_to_date(own: &Superblock, best: &Superblock) -> bool {
    let is_in_use = |d: &DeviceRecord| d.state == DeviceState::Online;
    let opens = [best.lineage.opened, best.lineage.opened_before];
    best.devices.get(usize::from(own.device)).is_some_and(is_in_use)
        && own.generation >= best.previous
        && opens.contains(&own.lineage.opened)
}

/// True if a device whose newest superblock is the one of `sequence` may have been in use until the
/// one of `since` called it failed: it has the one before that, or, as power failed or its write
/// did, the one before.
pub(crate) fn left_at(sequence: u64, since: u64) -> bool {
    (sequence + 1..=sequence + 2).contains(&since)
}

/// The same by counters and by which devices are in use, where a superblock is of before opens had
/// names.
fn went_apart(own: &Superblock, best: &Superblock) -> bool {
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
    // The device of `own` has the superblocks before the first that calls it failed, and none
    // since: all others may have been replaced while it was away.
    let left_before = best
        .devices
        .get(mine)
        .is_some_and(|d| d.state == DeviceState::Failed && left_at(own.sequence, d.since));
    // The device of `own` is away by its own superblock, which it was given before an invitation.
    let is_away = own.devices.get(mine).is_some_and(|d| d.state == DeviceState::Failed);
    own.device != best.device
        && !is_away
        && !joined_since
        && !left_before
        && !(0..best.devices.len()).any(shared)
}
