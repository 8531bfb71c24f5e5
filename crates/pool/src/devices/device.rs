//! A device of the pool: its queue, its row of the device table, its error counters, and its
//! chunks.

use std::collections::BTreeSet;

use base::{Duration, Generation, Instant, IoError};
use format::superblock::{DeviceRecord, DeviceState};
use model::device::{DeviceErrors, Rot};
use rt::{DeviceKind, FileId};

use super::disk::Disk;
use super::offered_chunks::OfferedChunks;
use super::presence::{AwayDevice, AwayReason, JoiningDevice, MissedReason, Presence};
use super::sources::Source;
use super::superblock_origin::FoundSuperblocks;

/// Bytes between two reads that a head passes about as fast as it moves.
const NEAR: u64 = 1 << 20;

/// The events that are counted by device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeviceEvent {
    ReadError,
    WriteError,
    /// A block that is not what was written.
    BadBlock,
    /// A bad block that was written again.
    Healed,
}

/// Places that are kept of blocks that were not what was written.
const MOST_ROTTEN: usize = 65_536;

/// The blocks that [`Rot`] tells of.
struct RotState {
    /// The bytes of the device at which they stand.
    places: BTreeSet<u64>,
    /// When the first one was met.
    since: Instant,
    /// One was met since the last scrub began.
    again: bool,
}

/// Tells the devices apart that have a row of the table one after another: a number for each that
/// was entered since the pool was opened, 0 for those of then. One that comes back keeps its own: a
/// flush that fails late may have lost what was written since.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Tenure(pub u64);

/// Want of space is over if no write failed for so long, and one succeeds.
const SPACE_IS_BACK: Duration = Duration::from_secs(10);

/// One row of the device table.
pub struct PoolDevice {
    record: DeviceRecord,
    tenure: Tenure,
    /// The path by which users know the device; empty if the device is missing.
    path: String,
    presence: Presence,
    errors: DeviceErrors,
    /// Of a device that is missing: why the one that is there is not used, in words.
    pub(crate) unfit: Option<String>,
    /// Why the last write to it failed, if it did.
    write_trouble: Option<IoError>,
    /// When a write to it failed last for want of space, until the log has said that this is over.
    had_no_space: Option<(Instant, IoError)>,
    /// Blocks that were not what was written, since the last scrub that found none.
    rot: Option<RotState>,
    /// The offset in bytes where the last read ended that was given to the device.
    read_upto: u64,
    source: Source,
    /// The number of times that the device went out of use. Data that was copied to it before need
    /// not be there after.
    absences: u32,
    /// True if the device was dropped because it failed, and nothing was done about that yet.
    dropped: bool,
    /// The number of flows that try to bring the device back by and by.
    tries: u32,
    /// When it failed lately.
    failures: Vec<Instant>,
    /// Superblocks that stood on the device when the pool was opened.
    found: FoundSuperblocks,
    chunks: OfferedChunks,
}

impl PoolDevice {
    pub(crate) fn new(record: DeviceRecord, path: String, disk: Option<Disk>) -> PoolDevice {
        let chunks = OfferedChunks::of(&record);
        let presence = match (record.state, disk) {
            (DeviceState::Removed, _) => Presence::Removed,
            (DeviceState::Online, Some(disk)) => Presence::InUse(disk),
            (_, disk) => Presence::OutOfUse(AwayDevice { disk, ..AwayDevice::default() }),
        };
        PoolDevice {
            record,
            tenure: Tenure::default(),
            path,
            presence,
            errors: DeviceErrors::default(),
            unfit: None,
            write_trouble: None,
            had_no_space: None,
            rot: None,
            read_upto: 0,
            source: Source::default(),
            absences: 0,
            dropped: false,
            tries: 0,
            failures: Vec::new(),
            found: FoundSuperblocks::default(),
            chunks,
        }
    }

    /// A device that is being added.
    pub(crate) fn new_joining(record: DeviceRecord, path: String, disk: Disk) -> PoolDevice {
        let presence = Presence::Joining(JoiningDevice { disk, was: None, missed: None });
        PoolDevice { presence, ..PoolDevice::new(record, path, None) }
    }

    /// The device goes from one presence to another, which the table in `presence.rs` has.
    fn become_of(&mut self, next: Presence) {
        let (from, to) = (self.presence.stage(), next.stage());
        debug_assert!(from.may_become(to), "{} goes from {from:?} to {to:?}", self.path);
        if !from.may_become(to) {
            tracing::error!(
                device = %self.path,
                "the device goes from {from:?} to {to:?}, which should never be: please report it"
            );
        }
        self.presence = next;
    }

    fn away(&self) -> Option<&AwayDevice> {
        match &self.presence {
            Presence::OutOfUse(away) => Some(away),
            _ => None,
        }
    }

    fn away_mut(&mut self) -> Option<&mut AwayDevice> {
        match &mut self.presence {
            Presence::OutOfUse(away) => Some(away),
            _ => None,
        }
    }

    fn joining(&self) -> Option<&JoiningDevice> {
        match &self.presence {
            Presence::Joining(joining) => Some(joining),
            _ => None,
        }
    }

    /// The device was away, and is there again: it is given all that is written from now on.
    /// Returns the path and the queue that it had; `None`, and nothing is changed, if the device is
    /// not out of use.
    pub(crate) fn reattach(&mut self, path: String, disk: Disk) -> Option<(String, Option<Disk>)> {
        let was = std::mem::take(self.away_mut()?);
        let had = was.disk.clone();
        self.become_of(Presence::Joining(JoiningDevice { disk, was: Some(was), missed: None }));
        Some((std::mem::replace(&mut self.path, path), had))
    }

    /// Superblocks that stand on the device as the pool is opened.
    pub(crate) fn set_found(&mut self, found: FoundSuperblocks) {
        self.found = found;
    }

    /// Superblocks that stood on the device when the pool was opened.
    pub(crate) fn found(&self) -> &FoundSuperblocks {
        &self.found
    }

    pub(crate) fn tenure(&self) -> Tenure {
        self.tenure
    }

    pub(super) fn set_tenure(&mut self, tenure: Tenure) {
        self.tenure = tenure;
    }

    /// The device does not come into use now. It has the path and the queue again that it had, and
    /// the caller closes the file by which it was to come back. But while it has requests from
    /// there it stays there, as nothing else may be asked of it: then the file that it had is
    /// returned. Nothing is changed if the device does not join any more.
    pub(crate) fn end_joining(&mut self, path: String, disk: Option<Disk>) -> Option<FileId> {
        let Presence::Joining(joining) = &mut self.presence else { return None };
        let (now, was) = (joining.disk.clone(), joining.was.take().unwrap_or_default());
        let stays = now.is_given_up();
        let left = disk.as_ref().map(Disk::file).filter(|&had| stays && had != now.file());
        let disk = if stays { Some(now) } else { disk };
        if !stays {
            self.path = path;
        }
        self.become_of(Presence::OutOfUse(AwayDevice { disk, ..was }));
        left
    }

    /// The device does not come into use, whatever requests it still has.
    pub(crate) fn stop_joining(&mut self) {
        if let Presence::Joining(joining) = &mut self.presence {
            joining.missed = Some(MissedReason::TakenOut);
            joining.disk.give_up();
        }
    }

    /// Records that another device is at the place of this one, which is missing from now on.
    /// Nothing is changed if the device is not out of use.
    pub(crate) fn lose_place(&mut self) {
        if let Some(away) = self.away_mut() {
            away.disk = None;
            self.path = String::new();
        }
    }

    /// Records that the device stays away, and may have a superblock by which it is in use, of the
    /// commit before that of `sequence`.
    pub(crate) fn was_invited(&mut self, sequence: u64) {
        self.record.since = sequence;
    }

    /// The device has all pages, and is a device of the pool from the next commit on.
    pub(crate) fn joined(&mut self, sequence: u64) {
        let Presence::Joining(joining) = &self.presence else { return };
        let disk = joining.disk.clone();
        self.record = self.record_joined(sequence);
        self.become_of(Presence::InUse(disk));
    }

    /// The row of the device when it has come into use by the superblock of `sequence`.
    pub(crate) fn record_joined(&self, sequence: u64) -> DeviceRecord {
        let mut record = self.record.clone();
        if self.joining().is_some_and(|joining| joining.was.is_some()) {
            (record.state, record.since, record.offline) = (DeviceState::Online, sequence, false);
        }
        record
    }

    /// The device is being told that it is out of use.
    pub(crate) fn is_told(&self) -> bool {
        self.away().is_some_and(|away| away.is_told)
    }

    /// The device has gone out of use, and is told so, or has requests of before.
    pub(crate) fn is_going(&self) -> bool {
        self.is_told() || self.disk().is_some_and(Disk::is_given_up)
    }

    /// The device begins to be told that it is out of use; false if it is not out of use, or is
    /// told already.
    pub(crate) fn begin_telling(&mut self) -> bool {
        let away = self.away_mut().filter(|away| !away.is_told);
        away.is_some_and(|away| !std::mem::replace(&mut away.is_told, true))
    }

    /// The device knows that it is out of use, or cannot be told.
    pub(crate) fn end_telling(&mut self) {
        self.away_mut().into_iter().for_each(|away| away.is_told = false);
    }

    /// The device is coming into use.
    pub(crate) fn is_joining(&self) -> bool {
        self.joining().is_some()
    }

    /// The device is out of use, and does not come back just now.
    pub(crate) fn is_away(&self) -> bool {
        self.away().is_some()
    }

    /// The device is being added, and no superblock knows of it.
    pub(crate) fn is_new(&self) -> bool {
        self.joining().is_some_and(|joining| joining.was.is_none())
    }

    /// Something that was to be written to the device while it joins was not.
    pub(crate) fn miss(&mut self, e: IoError) {
        if let Presence::Joining(joining) = &mut self.presence {
            joining.missed.get_or_insert(MissedReason::Write(e));
        }
    }

    /// Why the first of what the device misses was not written.
    pub(crate) fn missed(&self) -> Option<MissedReason> {
        self.joining()?.missed
    }

    /// The number of times that the device went out of use since the pool was opened.
    pub(crate) fn absences(&self) -> u32 {
        self.absences
    }

    /// Records that the device failed while it was in use: it may come back by itself.
    pub(crate) fn note_dropped(&mut self) {
        self.dropped = true;
        self.say(AwayReason::Failed);
    }

    /// If it failed while it was in use: how often `within` that time, once for each failure.
    pub(crate) fn take_dropped(&mut self, now: Instant, within: Duration) -> Option<usize> {
        std::mem::take(&mut self.dropped).then(|| {
            self.failures.retain(|&then| now.since(then) < within);
            self.failures.push(now);
            self.failures.len()
        })
    }

    /// A flow begins to try to bring it back.
    pub(crate) fn begin_tries(&mut self) {
        self.tries += 1;
    }

    /// Records that the device has come back, or that this flow tries no more.
    pub(crate) fn end_tries(&mut self) {
        self.tries = self.tries.saturating_sub(1);
    }

    /// True if the device is tried again by itself, should it be out of use.
    pub(crate) fn is_tried(&self) -> bool {
        self.tries > 0
    }

    /// Records that the device was dropped, and not because it failed.
    pub(crate) fn did_not_fail(&mut self) {
        self.dropped = false;
    }

    /// True if the device is there, out of use, and not because the user wants that.
    pub(crate) fn may_return(&self) -> bool {
        self.away().is_some_and(|away| away.disk.is_some()) && !self.record.offline
    }

    /// From now on it lacks what is newer than `g`, or nothing.
    pub(crate) fn set_lacks_since(&mut self, g: Option<Generation>) {
        self.record.lacks_since = g;
    }

    /// The user wants it out of use.
    pub(crate) fn set_offline(&mut self, offline: bool) {
        self.record.offline = offline;
    }

    /// True if the row has no device.
    pub(crate) fn is_removed(&self) -> bool {
        matches!(self.presence, Presence::Removed)
    }

    /// True if the device's chunks are to be moved to others.
    pub(crate) fn is_leaving(&self) -> bool {
        self.record.leaving
    }

    /// From now on its chunks are to be moved: to `successor`, if that is given.
    pub(crate) fn leave(&mut self, successor: Option<u8>) {
        (self.record.leaving, self.record.successor) = (true, successor);
    }

    /// Records that the device stays, after all.
    pub(crate) fn stay(&mut self) {
        (self.record.leaving, self.record.successor) = (false, None);
    }

    /// True if the device keeps nothing but the tables until it takes the place of one that fails.
    pub(crate) fn is_spare(&self) -> bool {
        self.record.spare
    }

    /// Makes the spare a device like the others from now on.
    pub(crate) fn serve(&mut self) {
        self.record.spare = false;
    }

    /// A spare should take its place: it is out of use, and not because the user wants that.
    pub(crate) fn wants_spare(&self) -> bool {
        let is_wanted = !self.record.offline && !self.record.leaving && !self.record.spare;
        self.is_away() && is_wanted
    }

    /// Grows the device to `chunks` chunks, which are not fewer than before. The new ones are
    /// offered from the next superblock on.
    pub(crate) fn grow(&mut self, chunks: u64) {
        self.record.chunks = chunks;
    }

    /// The superblock that is written now says what the record says.
    pub(crate) fn note_written(&mut self) {
        self.chunks.note_written(&self.record);
    }

    /// New chunks may be taken of it, if it is there.
    pub(crate) fn takes_chunks(&self) -> bool {
        let is_offered = !self.is_spare() && !self.chunks.is_spare();
        is_offered && !self.is_leaving() && !self.is_removed() && !self.is_new()
    }

    /// The device's row of the device table.
    pub fn record(&self) -> &DeviceRecord {
        &self.record
    }

    /// The path by which users know the device; empty if the device is missing.
    pub fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn errors(&self) -> DeviceErrors {
        self.errors
    }

    /// Notes how a write to the device has ended. The log says when want of space begins, and when
    /// it is over: some writes may need no space meanwhile.
    pub(crate) fn note_write(&mut self, result: Result<(), IoError>, now: Instant) {
        self.write_trouble = result.err();
        match (self.write_trouble, self.had_no_space) {
            (Some(e), told) if e.is_no_space() => {
                if told.is_none() {
                    tracing::warn!(
                        device = %self.path,
                        "writes to this device fail, and clients get errors, unless a cache takes \
                         their writes: {e}; free space under it"
                    );
                }
                self.had_no_space = Some((now, e));
            }
            (None, Some((last, _))) if now.since(last) >= SPACE_IS_BACK => {
                tracing::info!(device = %self.path, "writes to this device succeed again");
                self.had_no_space = None;
            }
            _ => {}
        }
    }

    /// Returns the error of the last write to the device if that failed, or of a write that found
    /// no space a moment ago. Only a device in use has one: the pool cannot do without it, or it
    /// wants space.
    pub(crate) fn write_trouble(&self) -> Option<IoError> {
        let trouble = self.write_trouble.or(self.had_no_space.map(|(_, e)| e));
        trouble.filter(|_| self.live().is_some())
    }

    /// The block at byte `offset` is not what was written. It may have been met before: one of
    /// which no copy is good is met by every read of it.
    pub(crate) fn note_rot(&mut self, offset: u64, now: Instant) {
        let none = || RotState { places: BTreeSet::new(), since: now, again: true };
        let rot = self.rot.get_or_insert_with(none);
        rot.again = true;
        if rot.places.len() < MOST_ROTTEN {
            rot.places.insert(offset);
        }
    }

    /// Such blocks, if there were any.
    pub(crate) fn rot(&self, now: Instant) -> Option<Rot> {
        let of = |rot: &RotState| Rot {
            blocks: rot.places.len() as u64,
            since_s: now.since(rot.since).as_secs(),
        };
        self.rot.as_ref().map(of)
    }

    /// A scrub begins.
    pub(crate) fn begin_scrub(&mut self) {
        self.rot.iter_mut().for_each(|rot| rot.again = false);
    }

    /// A scrub has read everything. Where no such block was met since it began, the device is well.
    pub(crate) fn end_scrub(&mut self) {
        self.rot.take_if(|rot| !rot.again);
    }

    /// Counts what happened on it.
    pub(crate) fn count(&mut self, what: DeviceEvent) {
        let errors = &mut self.errors;
        *match what {
            DeviceEvent::ReadError => &mut errors.read,
            DeviceEvent::WriteError => &mut errors.write,
            DeviceEvent::BadBlock => &mut errors.checksum,
            DeviceEvent::Healed => &mut errors.healed,
        } += 1;
    }

    /// The queue, if the device is there.
    pub fn disk(&self) -> Option<&Disk> {
        self.presence.disk()
    }

    /// The queue, if the device is there and up to date.
    pub fn live(&self) -> Option<&Disk> {
        match &self.presence {
            Presence::InUse(disk) => Some(disk),
            _ => None,
        }
    }

    /// True if its head has to move, and will be near.
    pub(crate) fn is_near(&self, offset: u64) -> bool {
        let rotates = self.live().is_some_and(|disk| disk.kind() == DeviceKind::Rotating);
        rotates && offset.abs_diff(self.read_upto) <= NEAR
    }

    /// A read that ends there is given to it.
    pub(crate) fn read_upto(&mut self, end: u64) {
        self.read_upto = end;
    }

    /// The device as a source of reads.
    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    pub(crate) fn source_mut(&mut self) -> &mut Source {
        &mut self.source
    }

    /// True if the device is read only where no other has a good copy.
    pub(crate) fn sits_out(&self) -> bool {
        self.source.is_out()
    }

    /// Notes why the device is out of use.
    pub(crate) fn say(&mut self, trouble: AwayReason) {
        self.away_mut().into_iter().for_each(|away| away.why = Some(trouble));
    }

    /// From the superblock of `sequence` on it is a failed device, which has everything up to
    /// `has`, if that is known, but for what it lacked before.
    pub(crate) fn fail(&mut self, sequence: u64, has: Option<Generation>) {
        self.absences += 1;
        let disk = self.disk().cloned();
        // The device may hang: then nothing waits for it any longer.
        disk.iter().for_each(Disk::give_up);
        if !self.is_away() {
            self.become_of(Presence::OutOfUse(AwayDevice { disk, ..AwayDevice::default() }));
        }
        self.record.state = DeviceState::Failed;
        self.record.since = sequence;
        let lacked = self.record.lacks_since;
        self.record.lacks_since = has.map(|g| lacked.map_or(g, |l| l.min(g)));
    }

    /// The chunks that may be taken of it, and those that are.
    pub(crate) fn chunks(&self) -> &OfferedChunks {
        &self.chunks
    }

    /// The same, to take some or to give them back.
    pub(crate) fn chunks_mut(&mut self) -> &mut OfferedChunks {
        &mut self.chunks
    }

    /// The state of the device as users see it; `None` if the device was removed.
    pub fn state(&self) -> Option<model::device::DeviceState> {
        use model::device::DeviceState as Shown;
        Some(match &self.presence {
            Presence::Removed => return None,
            Presence::Joining(_) => Shown::Joining,
            Presence::InUse(_) if self.record.leaving => Shown::Leaving,
            Presence::InUse(_) if self.record.spare => Shown::Spare,
            Presence::InUse(_) if self.record.lacks_since.is_some() => Shown::Behind,
            Presence::InUse(_) => Shown::Online,
            Presence::OutOfUse(_) if self.record.offline => Shown::Offline,
            Presence::OutOfUse(away) => match (away.why, &away.disk) {
                (Some(AwayReason::Failed), _) | (None, Some(_)) => Shown::Failed,
                (Some(AwayReason::Flapping), _) => Shown::Flapping,
                (Some(AwayReason::Stale), _) => Shown::Stale,
                (None, None) => Shown::Missing,
            },
        })
    }
}
