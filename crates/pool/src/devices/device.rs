//! A device of the pool: its queue, its row of the device table, its error counters, and its
//! chunks.

use std::collections::BTreeSet;

use base::{Bitmap, Duration, Generation, Instant, IoError};
use format::superblock::{DeviceRecord, DeviceState};
use rt::{DeviceKind, FileId};

use super::disk::Disk;
use super::sources::Source;
use super::writers::Found;

/// Bytes between two reads that a head passes about as fast as it moves.
const NEAR: u64 = 1 << 20;

/// What is counted by device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Counted {
    ReadError,
    WriteError,
    /// A block that is not what was written.
    BadBlock,
    /// A bad block that was written again.
    Healed,
}

/// Errors seen on a device since the pool was opened.
#[derive(Clone, Copy, Default, Debug, serde::Serialize)]
pub struct DeviceErrors {
    /// Reads that failed.
    pub read: u64,
    /// Writes and flushes that failed.
    pub write: u64,
    /// Blocks whose content was not what was written.
    pub checksum: u64,
    /// Blocks that were rewritten from a good copy.
    pub healed: u64,
}

/// Blocks of a device that were not what was written, since the last scrub that found none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Rot {
    /// How many. One that is met again counts once; no more than 65,536 are kept.
    pub blocks: u64,
    /// Seconds since the first one was met.
    pub since_s: u64,
}

/// Places that are kept of blocks that were not what was written.
const MOST_ROTTEN: usize = 65_536;

/// The blocks that [`Rot`] tells of.
struct Rotten {
    /// The bytes of the device at which they stand.
    places: BTreeSet<u64>,
    /// When the first one was met.
    since: Instant,
    /// One was met since the last scrub began.
    again: bool,
}

/// How a device comes into use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Joining {
    /// It is being added.
    New,
    /// It was away, and comes back.
    Back,
}

/// Why a device that joins does not have all that was written meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Missed {
    /// A write to it failed.
    Write(IoError),
    /// The user took it out of use.
    TakenOut,
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
    /// What the user calls it; empty if it is missing.
    path: String,
    /// Absent if the device is missing.
    disk: Option<Disk>,
    errors: DeviceErrors,
    /// Why the last write to it failed, if it did.
    write_trouble: Option<IoError>,
    /// When a write to it failed last for want of space, until the log has said that this is over.
    had_no_space: Option<(Instant, IoError)>,
    /// Blocks that were not what was written, since the last scrub that found none.
    rot: Option<Rotten>,
    /// Where the last read ended that was given to it.
    read_upto: u64,
    source: Source,
    /// Why it is not in use, in words.
    trouble: Option<&'static str>,
    /// It is coming into use: it gets all that is written, and nothing is read from it.
    joining: Option<Joining>,
    /// The device is being told that it is out of use.
    told: bool,
    /// Why it did not get something that was written while it was joining.
    missed: Option<Missed>,
    /// How often it went out of use. What was copied to it before need not be there after.
    absences: u32,
    /// It was dropped because it failed, and nothing was done about it yet.
    dropped: bool,
    /// How many flows try to bring it back by and by.
    tries: u32,
    /// When it failed lately.
    failures: Vec<Instant>,
    /// Superblocks that stood on the device when the pool was opened.
    found: Found,
    /// Chunks in use.
    chunks: Bitmap,
    free_chunks: u64,
}

impl PoolDevice {
    pub(crate) fn new(record: DeviceRecord, path: String, disk: Option<Disk>) -> PoolDevice {
        let free_chunks = record.chunks;
        let chunks = Bitmap::new(record.chunks as usize);
        PoolDevice {
            record,
            tenure: Tenure::default(),
            path,
            disk,
            errors: DeviceErrors::default(),
            write_trouble: None,
            had_no_space: None,
            rot: None,
            read_upto: 0,
            source: Source::default(),
            trouble: None,
            joining: None,
            told: false,
            missed: None,
            absences: 0,
            dropped: false,
            tries: 0,
            failures: Vec::new(),
            found: Found::default(),
            chunks,
            free_chunks,
        }
    }

    /// A device that is being added.
    pub(crate) fn new_joining(record: DeviceRecord, path: String, disk: Disk) -> PoolDevice {
        let joining = Some(Joining::New);
        PoolDevice { joining, ..PoolDevice::new(record, path, Some(disk)) }
    }

    /// It was away, and is there again: it is given all that is written from now on. Returns the
    /// path and the queue that it had.
    pub(crate) fn reattach(&mut self, path: String, disk: Disk) -> (String, Option<Disk>) {
        (self.joining, self.missed) = (Some(Joining::Back), None);
        (std::mem::replace(&mut self.path, path), self.disk.replace(disk))
    }

    /// Superblocks that stand on the device as the pool is opened.
    pub(crate) fn set_found(&mut self, found: Found) {
        self.found = found;
    }

    /// Superblocks that stood on the device when the pool was opened.
    pub(crate) fn found(&self) -> &Found {
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
    /// returned.
    pub(crate) fn end_joining(&mut self, path: String, disk: Option<Disk>) -> Option<FileId> {
        self.joining = None;
        if let Some(now) = self.disk.as_ref().filter(|now| now.is_given_up()) {
            return disk.map(|had| had.file()).filter(|&had| had != now.file());
        }
        (self.path, self.disk) = (path, disk);
        None
    }

    /// The device does not come into use, whatever requests it still has.
    pub(crate) fn stop_joining(&mut self) {
        self.missed = Some(Missed::TakenOut);
        self.disk.iter().for_each(Disk::give_up);
    }

    /// The device is out of use, and has this path and this queue from now on.
    pub(crate) fn stay_away(&mut self, path: String, disk: Option<Disk>) {
        (self.joining, self.path, self.disk) = (None, path, disk);
    }

    /// It stays away, and may have a superblock by which it is in use, of the commit before that of
    /// `sequence`.
    pub(crate) fn was_invited(&mut self, sequence: u64) {
        self.record.since = sequence;
    }

    /// It has all pages, and is a device of the pool from the next commit on.
    pub(crate) fn joined(&mut self, sequence: u64) {
        self.record = self.record_joined(sequence);
        (self.joining, self.trouble) = (None, None);
    }

    /// Its row when it has come into use by the superblock of `sequence`.
    pub(crate) fn record_joined(&self, sequence: u64) -> DeviceRecord {
        let mut record = self.record.clone();
        if self.joining == Some(Joining::Back) {
            (record.state, record.since, record.offline) = (DeviceState::Online, sequence, false);
        }
        record
    }

    /// The device is being told that it is out of use.
    pub(crate) fn is_told(&self) -> bool {
        self.told
    }

    /// The device has gone out of use, and is told so, or has requests of before.
    pub(crate) fn is_going(&self) -> bool {
        self.told || self.disk.as_ref().is_some_and(Disk::is_given_up)
    }

    /// The device begins to be told, or knows, or cannot be told.
    pub(crate) fn set_told(&mut self, told: bool) {
        self.told = told;
    }

    /// It is coming into use.
    pub(crate) fn is_joining(&self) -> bool {
        self.joining.is_some()
    }

    /// It is being added, and no superblock knows of it.
    pub(crate) fn is_new(&self) -> bool {
        self.joining == Some(Joining::New)
    }

    /// Something that was to be written to it while it joins was not.
    pub(crate) fn miss(&mut self, e: IoError) {
        if self.joining.is_some() {
            self.missed.get_or_insert(Missed::Write(e));
        }
    }

    /// Why the first of what it misses was not written.
    pub(crate) fn missed(&self) -> Option<Missed> {
        self.missed
    }

    /// How often it went out of use since the pool was opened.
    pub(crate) fn absences(&self) -> u32 {
        self.absences
    }

    /// It failed while it was in use: it may come back by itself.
    pub(crate) fn note_dropped(&mut self) {
        (self.dropped, self.trouble) = (true, Some("failed"));
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

    /// It has come back, or this flow tries no more.
    pub(crate) fn end_tries(&mut self) {
        self.tries = self.tries.saturating_sub(1);
    }

    /// It is tried again by itself, if it is out of use.
    pub(crate) fn is_tried(&self) -> bool {
        self.tries > 0
    }

    /// It was dropped, and not because it failed.
    pub(crate) fn did_not_fail(&mut self) {
        self.dropped = false;
    }

    /// It is there, out of use, and not because the user wants that.
    pub(crate) fn may_return(&self) -> bool {
        let away = self.record.state == DeviceState::Failed && !self.record.offline;
        away && self.disk.is_some() && self.joining.is_none()
    }

    /// From now on it lacks what is newer than `g`, or nothing.
    pub(crate) fn set_lacks_since(&mut self, g: Option<Generation>) {
        self.record.lacks_since = g;
    }

    /// The user wants it out of use.
    pub(crate) fn set_offline(&mut self, offline: bool) {
        self.record.offline = offline;
    }

    /// Its row has no device.
    pub(crate) fn is_removed(&self) -> bool {
        self.record.state == DeviceState::Removed
    }

    /// Its chunks are to be moved to others.
    pub(crate) fn is_leaving(&self) -> bool {
        self.record.leaving
    }

    /// From now on its chunks are to be moved: to `successor`, if that is given.
    pub(crate) fn leave(&mut self, successor: Option<u8>) {
        (self.record.leaving, self.record.successor) = (true, successor);
    }

    /// It stays, after all.
    pub(crate) fn stay(&mut self) {
        (self.record.leaving, self.record.successor) = (false, None);
    }

    /// It keeps nothing but the tables until it takes the place of a device that fails.
    pub(crate) fn is_spare(&self) -> bool {
        self.record.spare
    }

    /// It is a device like the others from now on.
    pub(crate) fn serve(&mut self) {
        self.record.spare = false;
    }

    /// A spare should take its place: it is out of use, and not because the user wants that.
    pub(crate) fn wants_spare(&self) -> bool {
        let away = self.record.state == DeviceState::Failed && !self.record.offline;
        away && self.joining.is_none() && !self.record.leaving && !self.record.spare
    }

    /// It has so many chunks from now on, which are not fewer than before.
    pub(crate) fn grow(&mut self, chunks: u64) {
        let more = chunks - self.record.chunks;
        let mut all = Bitmap::new(chunks as usize);
        all.set_words(0, self.chunks.words());
        self.chunks = all;
        self.free_chunks += more;
        self.record.chunks = chunks;
    }

    /// New chunks may be taken of it, if it is there.
    pub(crate) fn takes_chunks(&self) -> bool {
        !self.is_leaving() && !self.is_removed() && !self.is_new() && !self.is_spare()
    }

    /// Its row of the device table.
    pub fn record(&self) -> &DeviceRecord {
        &self.record
    }

    /// What the user calls it; empty if it is missing.
    pub fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn errors(&self) -> DeviceErrors {
        self.errors
    }

    /// How a write to it has ended. The log says when want of space begins, and when it is over:
    /// some writes may need no space meanwhile.
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

    /// It is in use, as the pool cannot do without it or for want of space, and the last write to
    /// it failed with this error, or found no space a moment ago.
    pub(crate) fn write_trouble(&self) -> Option<IoError> {
        let trouble = self.write_trouble.or(self.had_no_space.map(|(_, e)| e));
        trouble.filter(|_| self.live().is_some())
    }

    /// The block at byte `offset` is not what was written. It may have been met before: one of
    /// which no copy is good is met by every read of it.
    pub(crate) fn note_rot(&mut self, offset: u64, now: Instant) {
        let none = || Rotten { places: BTreeSet::new(), since: now, again: true };
        let rot = self.rot.get_or_insert_with(none);
        rot.again = true;
        if rot.places.len() < MOST_ROTTEN {
            rot.places.insert(offset);
        }
    }

    /// Such blocks, if there were any.
    pub(crate) fn rot(&self, now: Instant) -> Option<Rot> {
        let of = |rot: &Rotten| Rot {
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
    pub(crate) fn count(&mut self, what: Counted) {
        let errors = &mut self.errors;
        *match what {
            Counted::ReadError => &mut errors.read,
            Counted::WriteError => &mut errors.write,
            Counted::BadBlock => &mut errors.checksum,
            Counted::Healed => &mut errors.healed,
        } += 1;
    }

    /// The queue, if the device is there.
    pub fn disk(&self) -> Option<&Disk> {
        self.disk.as_ref()
    }

    /// The queue, if the device is there and up to date.
    pub fn live(&self) -> Option<&Disk> {
        let live = self.record.state == DeviceState::Online && self.joining.is_none();
        self.disk.as_ref().filter(|_| live)
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

    /// How it does as a source of reads.
    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    pub(crate) fn source_mut(&mut self) -> &mut Source {
        &mut self.source
    }

    /// It is read only where no other has a good copy.
    pub(crate) fn sits_out(&self) -> bool {
        self.source.is_out()
    }

    /// It is not used, because of this.
    pub(crate) fn say(&mut self, trouble: &'static str) {
        self.trouble = Some(trouble);
    }

    /// From the superblock of `sequence` on it is a failed device, which has everything up to
    /// `has`, if that is known, but for what it lacked before.
    pub(crate) fn fail(&mut self, sequence: u64, has: Option<Generation>) {
        self.absences += 1;
        // The device may hang: then nothing waits for it any longer.
        self.disk.iter().for_each(Disk::give_up);
        self.record.state = DeviceState::Failed;
        self.record.since = sequence;
        let lacked = self.record.lacks_since;
        self.record.lacks_since = has.map(|g| lacked.map_or(g, |l| l.min(g)));
    }

    /// Takes a chunk; false if it does not exist or is taken.
    pub(crate) fn take_chunk(&mut self, chunk: u32) -> bool {
        let fits = u64::from(chunk) < self.record.chunks;
        let took = fits && self.chunks.assign(chunk as usize, 1, true) == 1;
        self.free_chunks -= u64::from(took);
        took
    }

    /// Takes any free chunk.
    pub(crate) fn take_any_chunk(&mut self) -> Option<u32> {
        let chunk = self.chunks.find(0, false)? as u32;
        self.take_chunk(chunk).then_some(chunk)
    }

    pub(crate) fn give_chunk(&mut self, chunk: u32) {
        self.free_chunks += self.chunks.assign(chunk as usize, 1, false) as u64;
    }

    pub(crate) fn free_chunks(&self) -> u64 {
        self.free_chunks
    }

    /// What users see.
    pub fn state(&self) -> &'static str {
        match (&self.disk, self.record.state) {
            (_, DeviceState::Removed) => "removed",
            (_, _) if self.joining.is_some() => "joining",
            (Some(_), DeviceState::Online) if self.record.leaving => "leaving",
            (Some(_), DeviceState::Online) if self.record.spare => "spare",
            (Some(_), DeviceState::Online) if self.record.lacks_since.is_some() => "behind",
            (Some(_), DeviceState::Online) => "online",
            (_, DeviceState::Failed) if self.record.offline => "offline",
            (Some(_), DeviceState::Failed) => self.trouble.unwrap_or("failed"),
            (None, _) => self.trouble.unwrap_or("missing"),
        }
    }
}
