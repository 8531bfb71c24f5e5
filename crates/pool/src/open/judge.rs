//! Which devices belong together, and which of them may be read. Nothing is written here.
//!
//! | found on a device | what happens |
//! | --- | --- |
//! | no superblock, and a device of the pool is missing that it may be | left alone, with a warning, as if that were all that is missing |
//! | no superblock, and none is missing | left alone, with a warning |
//! | no superblock otherwise | refused: foreign |
//! | a superblock of a newer format | refused: newer |
//! | another pool's | refused: foreign |
//! | a change that the newest superblock does not know of | refused: split brain |
//! | the newest superblock calls it failed | left out: stale; brought up to date afterwards |
//! | its newest superblock is older than what the newest calls known to all, or of an open without the others | the same |
//! | not in the newest superblock's table, a device is in use by both | left alone, with a warning |
//! | not in that table otherwise | refused: foreign |
//! | shorter than the pool needs | missing, with a warning; it lacks everything if it comes back |
//! | not given, not there | missing: the pool opens without it, if every block has a copy elsewhere |
//!
//! **The newest superblock** is one from which no other device went on: see
//! [`format::superblock::lineage`]. Of several it is the one of the open by which most devices are
//! up to date, then that with the highest generation, then that with the highest sequence number. A
//! device whose own is of that commit or a later one was left by power before its superblock was
//! written: all else was flushed on every device before the first superblock was, so it is up to
//! date.
//!
//! Every device is flushed before it is read. After a kill, what is read may stand in a volatile
//! cache only; what is written on the grounds of it could get to the medium alone. A device that
//! cannot flush is as good as missing, unless by what it says the others are stale.
//!
//! *Split brain* is when a device may hold a completed change that the newest state has not seen:
//! the newest superblock does not name the device's newest history, or one with an earlier end. A
//! device may be ahead by one superblock that was never complete, as the others did not get it;
//! then the last change before has to be known (`devices/split_brain.rs`). Of devices A and B (a
//! superblock *says* which are in use; `H` is the history of both before, and `A`, `B` one that a
//! device began without the other):
//!
//! | what happened | A has | B has | newest | the other |
//! | --- | --- | --- | --- | --- |
//! | power left B a superblock ahead; all open again | `H` | `H`, later | B | up to date |
//! | the same; A was opened alone afterwards, and written | `A` after `H` | `H`, one superblock ahead | A | stale |
//! | the same, and B got its last word, no more | `A` after `H` | `H`, two superblocks ahead, B away | A | stale |
//! | B dropped at run time, or missing when A was opened | `H`, later, or `A` after `H` | `H` | A | stale |
//! | the same, power failed before A's first superblock | `H` | `H` | either | up to date |
//! | A was opened alone, nothing was written | `H`, B away | `H` | A, by generation | stale, lacks nothing |
//! | each was opened alone, nothing was written | `H`, B away | `H`, A away | either | stale, lacks nothing |
//! | A was opened alone and not written, B was written alone | `H`, B away | `B` after `H` | B | stale |
//! | each was opened alone and written | `A` after `H` | `B` after `H` | neither | split brain |
//! | A and B are of two copies of a pool, each of which was written | `A` after `H` | `B` after `H` | neither | split brain |
//! | A went on after it dropped B, then B was opened alone and written | `H`, later | `B` after `H` | neither | split brain |
//! | A was put back to an older copy of it, and not written | `H`, earlier | `H` | B | stale, gets everything |
//! | A was put back to an older copy of it, and written alone | `A` after `H`, earlier | `H` | neither | split brain |
//! | B joined or came back, power failed before A's superblock said so | `H`, B away | `H`, both in use | B, by devices | up to date |
//! | C missing, power left B ahead while opening, then A and C opened | `H`, B away | `H`, C away | A, by company | stale |
//! | B came back, power left it ahead; A was opened alone, and written | `A` after `H`, B away | `H`, later, both in use | A | stale |
//! | A away, power left B ahead of C; C was opened without B, and A came back | `C` after `H` | `H`, later, C in use | A | stale |
//!
//! Superblocks from before opens had names have no histories. Between those it is split brain if
//! no other device is in use by both: see `went_apart` in `devices/split_brain.rs`.
//!
//! An open that calls a device failed that was in use skips an incarnation: the missing device may
//! hold the first superblock of the next one, from an attempt that power cut short, and must not be
//! taken for the newest.
//!
//! A device in use whose own superblock is not of the newest commit is *behind*. It is brought up
//! to date before anything else is written: see `superblock_sync.rs`.

use std::collections::BTreeMap;

use base::{ErrorKind, Generation, IoError, Result, StorageError};
use format::superblock::{DeviceRecord, DeviceState, Superblock};
use queue::Class;
use rt::Rt;

use crate::devices::slots::{Slots, SuccessorState};
use crate::devices::standing::Permit;
use crate::devices::{AwayReason, DeviceFile, Disk, PoolDevice, apart, is_ahead, is_up_to_date};
use crate::history::end_of;
use crate::settings::Settings;
use crate::space::Geometry;

/// A device whose superblocks were read.
pub struct Candidate {
    /// The open file of the device, and its path.
    pub file: DeviceFile,
    /// The device's queue.
    pub queue: Disk,
    /// The newest superblock on it.
    pub sb: Superblock,
    /// All of its superblocks.
    pub slots: Slots,
    /// The error with which the device failed its flush.
    pub unsure: Option<IoError>,
}

/// The newest superblock of a device.
fn newest_of(slots: &Slots, path: &str) -> Result<Superblock> {
    if let Some(sb) = slots.newest() {
        return Ok(sb.clone());
    }
    Err(match slots.trouble() {
        Some(t) => StorageError::new(
            ErrorKind::Damaged,
            format!("{path}: no superblock can be read ({t})"),
        ),
        None => {
            let text = format!("{path}: not a device of a Forebay pool; see forebay create");
            StorageError::new(ErrorKind::Foreign, text)
        }
    })
}

/// Goes on without the devices that have no superblock, as if they were not there, if as many are
/// missing of the pool, or none is: a device that was replaced stays on a list for a while. Where
/// fewer are missing it is not known which of them is what the user takes it for. Nothing is
/// written to them.
pub fn without_blank(
    best: &Superblock,
    found: &[Candidate],
    blank: &[String],
    warnings: &mut Vec<String>,
) -> Result<()> {
    let is_there = |row: usize| found.iter().any(|f| usize::from(f.sb.device) == row);
    let rows = best.devices.iter().enumerate();
    let away = rows.filter(|(row, d)| d.state != DeviceState::Removed && !is_there(*row)).count();
    if away > 0
        && let Some(path) = blank.get(away)
    {
        let text = format!(
            "{path}: not a device of a Forebay pool; leave it out: {} were named that are none, \
             and of the pool {:?} {away} are missing",
            blank.len(),
            best.name
        );
        return Err(StorageError::new(ErrorKind::Foreign, text));
    }
    warnings.extend(blank.iter().map(|path| match away {
        0 => format!(
            "{path}: not a device of a Forebay pool, and the pool {:?} has all of its devices \
             without it: it is left as it is. Take it off the list of devices; or to have it in \
             the pool: forebay device add {path}",
            best.name
        ),
        _ => format!(
            "{path}: not a device of a Forebay pool: it was overwritten, or is another one. It is \
             left as it is, and a device of the pool {:?} is missing. To fill it again: forebay \
             device replace ID {path}, with the id of the missing one from forebay device list",
            best.name
        ),
    }));
    Ok(())
}

/// Reads the superblocks of all devices; the paths of those that have none.
pub(super) async fn read_all(
    rt: &Rt,
    permit: Permit,
    files: Vec<DeviceFile>,
    settings: &Settings,
    warnings: &mut Vec<String>,
) -> Result<(Vec<Candidate>, Vec<String>)> {
    let mut found: Vec<Candidate> = Vec::new();
    let (mut blank, mut refused) = (Vec::new(), None);
    let several = files.len() > 1;
    for file in files {
        let queue = file.disk(rt, settings.device);
        queue.set_targets(settings.targets);
        let unsure = queue.flush(permit, Class::Commit).await.err();
        let read = Slots::read(rt, &queue, &file.path)
            .await
            .and_then(|s| Ok((newest_of(&s, &file.path)?, s)));
        match read {
            Ok((sb, slots)) => found.push(Candidate { file, queue, sb, slots, unsure }),
            // A device whose superblocks are all unreadable is as good as missing, if others are
            // there.
            Err(e) if e.kind == ErrorKind::Damaged && several => {
                warnings.push(format!("{e}; going on as if it were missing"));
                queue.close();
            }
            Err(e) if e.kind == ErrorKind::Foreign => {
                queue.close();
                blank.push(file.path);
                refused.get_or_insert(e);
            }
            Err(e) => return Err(e),
        }
    }
    match refused {
        Some(e) if found.is_empty() => Err(e),
        _ => Ok((found, blank)),
    }
}

/// Leaves out the devices that could not flush: what they hold may be gone in a moment. Not if by
/// what they say the others are stale.
pub(super) fn without_unsure(
    found: Vec<Candidate>,
    warnings: &mut Vec<String>,
) -> Result<Vec<Candidate>> {
    let Some(best) = newest(&found) else { return Ok(found) };
    let others = found.iter().any(|f| f.unsure.is_none() && is_up_to_date(&f.sb, &best));
    let mut sure = Vec::with_capacity(found.len());
    for f in found {
        let Some(e) = f.unsure else {
            sure.push(f);
            continue;
        };
        let what = format!("{}: it could not make durable what it holds: {e}", f.file.path);
        if !others {
            let text = format!(
                "{what}; nothing may be written on the grounds of that; see to the device, then \
                 start again"
            );
            return Err(StorageError::new(ErrorKind::Io, text));
        }
        warnings.push(format!("{what}; going on as if it were missing"));
        f.queue.close();
    }
    Ok(sure)
}

/// The superblock that judges all.
pub fn newest(found: &[Candidate]) -> Option<Superblock> {
    newest_superblock(found.iter().map(|f| &f.sb)).cloned()
}

/// The superblock that judges all of these: one that no other went on from. If devices were opened
/// without each other, and nothing was written, several are: then the open counts by which most
/// devices are up to date, and of those the one of the highest generation. Of the same commit one
/// superblock may have one device more in use than the others: that was about to join, or to come
/// back. One that says the same may stand on a device that is away by it: that was about to come
/// back too, and judges nothing.
pub fn newest_superblock<'a>(
    all: impl Iterator<Item = &'a Superblock> + Clone,
) -> Option<&'a Superblock> {
    let devices =
        |sb: &Superblock| sb.devices.iter().filter(|d| d.state == DeviceState::Online).count();
    let in_use = |sb: &Superblock| {
        let own = sb.devices.get(usize::from(sb.device));
        own.is_some_and(|d| d.state == DeviceState::Online)
    };
    let number = |sb: &Superblock| (sb.generation, sb.sequence, devices(sb), in_use(sb));
    let newest = all.clone().filter(|sb| !all.clone().any(|other| is_ahead(other, sb)));
    let of_open = |sb: &Superblock| {
        let same = newest.clone().filter(move |other| other.lineage.opened == sb.lineage.opened);
        same.max_by_key(|sb| number(sb))
    };
    let company = |sb: &Superblock| all.clone().filter(|own| is_up_to_date(own, sb)).count();
    let candidates = newest.clone().filter_map(of_open);
    candidates.max_by_key(|sb| (company(sb), number(sb)))
}

/// Takes the device of `best` back into use, as it is, if it is out of use and none that is there
/// is in use. False, and nothing is changed, otherwise.
pub(super) fn take_back(best: &mut Superblock, found: &[Candidate]) -> bool {
    let in_use = |f: &Candidate| {
        let row = best.devices.get(usize::from(f.sb.device));
        row.is_some_and(|d| d.state == DeviceState::Online)
    };
    let none = !found.iter().any(in_use);
    let sequence = best.sequence;
    let own = best.devices.get_mut(usize::from(best.device));
    let Some(own) = own.filter(|d| none && d.state == DeviceState::Failed) else { return false };
    (own.state, own.since, own.offline, own.lacks_since) =
        (DeviceState::Online, sequence, false, None);
    true
}

/// Whether the state after `best` was never complete. If no device in use shows that, it may be
/// that none can read its superblock any more: then what it has freed may be in use, and `best` is
/// nothing to go on from. What looks torn by a loss of power is taken for that, and told.
pub fn doubt(found: &[Candidate], best: &Superblock) -> Result<Option<String>> {
    let in_use = |f: &&Candidate| {
        best.devices.get(usize::from(f.sb.device)).is_some_and(|d| d.state == DeviceState::Online)
    };
    let after: Vec<_> =
        found.iter().filter(in_use).map(|f| (&f.file.path, f.slots.after(best.sequence))).collect();
    if after.iter().any(|(_, after)| *after == SuccessorState::Never) {
        return Ok(None);
    }
    let unknown = after.iter().find_map(|(path, after)| match after {
        SuccessorState::Unknown(why) => Some(format!("{path}: superblock {why}")),
        _ => None,
    });
    if let Some(what) = unknown {
        let text = format!(
            "{what}. It was read several times, and it may be the newest superblock: the commit \
             before must \
             not be taken for the newest then. Try again; give all devices of the pool; if the \
             device is \
             dying, copy it to another one and open that"
        );
        return Err(StorageError::new(ErrorKind::Damaged, text));
    }
    let torn = after.iter().find_map(|(path, after)| match after {
        SuccessorState::Torn(why) => Some(format!("{path}: superblock {why}")),
        _ => None,
    });
    Ok(torn.map(|what| {
        format!(
            "{what}. Power that failed while it was written looks like that, and then nothing is \
             lost; if \
             the device has damaged both copies of it, the last commit before it is gone"
        )
    }))
}

/// That a device is shorter than the pool needs, if it is.
fn cut_short(f: &Candidate, record: &DeviceRecord, geometry: &Geometry) -> Option<String> {
    let (has, need) = (f.file.size_bytes, geometry.chunk_offset(record.chunks as u32, 0));
    let path = &f.file.path;
    let what = || format!("{path}: has {has} bytes, the pool needs {need}; it was truncated");
    (has < need).then(what)
}

/// Says what helps where the pool cannot do without devices that are shorter than it needs.
pub(super) fn all_cut_short(
    best: &Superblock,
    geometry: &Geometry,
    found: &[Candidate],
) -> Option<String> {
    let cut = found.iter().filter_map(|f| {
        let record = best.devices.get(usize::from(f.sb.device))?;
        cut_short(f, record, geometry)
    });
    let all: Vec<String> = cut.collect();
    let todo = "the bytes behind its end are lost; truncate -s BYTES FILE gives a file its size \
                back, and the rest is served then";
    (!all.is_empty()).then(|| format!("{}: {todo}", all.join("; ")))
}

/// A device that is not there, or might as well not be. `has`: it has everything up to this
/// generation, if it is there again.
fn missing(
    best: &Superblock,
    row: usize,
    has: Option<Generation>,
    warnings: &mut Vec<String>,
) -> PoolDevice {
    let record = &best.devices[row];
    let mut d = PoolDevice::new(record.clone(), String::new(), None);
    // At each start, not only at the first one that goes on without it.
    if record.state != DeviceState::Removed {
        let so = match (record.spare, record.offline) {
            (true, _) => "it is a spare",
            (false, true) => "it is offline, and the pool is degraded",
            (false, false) => "the pool is degraded",
        };
        warnings.push(format!("device {row} of the pool {:?} is missing: {so}", best.name));
    }
    match record.state {
        DeviceState::Online => d.fail(best.sequence + 1, has),
        DeviceState::Failed if has.is_none() => d.set_lacks_since(None),
        _ => {}
    }
    d
}

/// Puts every device of the pool in its place, by the table at the top of this file.
pub fn judge(
    best: &Superblock,
    geometry: &Geometry,
    found: Vec<Candidate>,
    warnings: &mut Vec<String>,
) -> Result<Vec<PoolDevice>> {
    let all_cut = all_cut_short(best, geometry, &found);
    let mut rows: BTreeMap<u16, Candidate> = BTreeMap::new();
    for f in found {
        let path = f.file.path.clone();
        if f.sb.pool_uuid != best.pool_uuid {
            let name = |sb: &Superblock| {
                format!("{:?} ({})", sb.name, uuid::Uuid::from_bytes(sb.pool_uuid))
            };
            let text =
                format!("{path}: belongs to the pool {}, not to {}", name(&f.sb), name(best));
            return Err(StorageError::new(ErrorKind::Foreign, text));
        }
        let uuid = f.sb.devices[usize::from(f.sb.device)].uuid;
        if best.devices.get(usize::from(f.sb.device)).is_none_or(|d| d.uuid != uuid) {
            let why = format!(
                "the pool {:?} has no such device: it was removed, another has taken its place, or \
                 it was not added; take it off the list of devices",
                best.name
            );
            if apart(&f.sb, best) {
                return Err(StorageError::new(ErrorKind::Foreign, format!("{path}: {why}")));
            }
            // A spare took its place at night, say: that is no reason not to serve.
            warnings.push(format!("{path}: left alone: {why}"));
            f.queue.close();
            continue;
        }
        if let Some(other) = rows.get(&f.sb.device) {
            let text = format!(
                "{path} and {} are the same device of the pool: one is a copy",
                other.file.path
            );
            return Err(StorageError::new(ErrorKind::Foreign, text));
        }
        rows.insert(f.sb.device, f);
    }
    let mut devices = Vec::with_capacity(best.devices.len());
    for (i, record) in best.devices.iter().enumerate() {
        let Some(f) = rows.remove(&(i as u16)) else {
            // Everything that the newest superblock names was flushed on all devices in use first.
            // A device lacks nothing of what came after the last change.
            let has = Some(end_of(best).end);
            devices.push(missing(best, i, has, warnings));
            continue;
        };
        let path = f.file.path.clone();
        if apart(&f.sb, best) {
            let text = format!(
                "{path}: this device and the others of the pool {:?} were each written without \
                 the other; \
                 open the pool with one side only, the other must be added anew",
                best.name
            );
            return Err(StorageError::new(ErrorKind::SplitBrain, text));
        }
        if let Some(what) = cut_short(&f, record, geometry) {
            warnings.push(format!("{what}; going on as if it were missing"));
            f.queue.close();
            let mut d = missing(best, i, None, warnings);
            d.unfit = Some(what);
            devices.push(d);
            continue;
        }
        let mut d = PoolDevice::new(record.clone(), path.clone(), Some(f.queue));
        d.set_found(f.slots.found());
        if record.state == DeviceState::Failed {
            d.say(AwayReason::Stale);
            let fate = if record.offline { "it is offline" } else { "it is brought up to date" };
            warnings.push(format!("{path}: stale, the pool went on without it; {fate}"));
        } else if !is_up_to_date(&f.sb, best) {
            // A device opened without the others, and not written, lacks nothing but pages.
            let same = (f.sb.lineage.is_known() && end_of(&f.sb) == end_of(best))
                .then_some(end_of(best).end);
            d.fail(best.sequence + 1, same);
            d.say(AwayReason::Stale);
            warnings.push(match same {
                Some(_) => format!(
                    "{path}: stale, it was opened without the others; it is brought up to date"
                ),
                None => format!(
                    "{path}: stale, its superblocks are older than the others allow; all of it is \
                     written anew"
                ),
            });
        }
        devices.push(d);
    }
    if devices.iter().all(|d| d.live().is_none()) {
        let left = devices.iter().filter(|d| !d.path().is_empty());
        let left: Vec<String> = left.map(|d| d.path().to_owned()).collect();
        let text = format!(
            "{}: of the pool {:?} only devices that are out of use are there, which lack what was \
             written since: give the others too. If those are lost, --take-back serves the pool as \
             it was when the newest of these left, and gives up what was written since{}",
            left.join(", "),
            best.name,
            all_cut.map_or_else(String::new, |what| format!("; {what}"))
        );
        return Err(StorageError::new(ErrorKind::Damaged, text));
    }
    Ok(devices)
}
