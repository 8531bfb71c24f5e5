//! The devices of a pool: which of them are in use, what went wrong on them, and which of their
//! chunks are free.

mod device;
mod disk;
mod offered_chunks;
mod presence;
pub(crate) mod slots;
mod sources;
pub(crate) mod split_brain;
pub(crate) mod standing;
pub(crate) mod superblock_origin;
pub(crate) mod watch_times;

use base::{Duration, Generation, Instant, IoError, worth_telling};
use format::page::Chunk;
use format::superblock::{DeviceRecord, MAX_DEVICES};
use queue::{DeviceStats, Targets};
use rt::DeviceKind;
use smallvec::SmallVec;

pub use device::PoolDevice;
pub(crate) use device::{DeviceEvent, Tenure};
pub(crate) use disk::CopyBlocks;
pub use disk::{DeviceFile, Disk};
pub(crate) use presence::{AwayReason, MissedReason};
use sources::{Period, Source};
pub(crate) use split_brain::{apart, is_ahead, is_up_to_date, left_at};

/// Extra queue length accepted to stay on a near disk: the requests of a stream become a few large
/// ones.
const MORE_LOAD: usize = 1024;

/// The log's words for what happens after a bad block is met on a device.
const MENDED: &str = "it is read from another copy, if one is good, and written again here";

/// The place of a copy of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CopyPlace {
    /// The row of the device.
    pub row: usize,
    /// The offset in bytes there.
    pub offset: u64,
}

/// The outcome of a request to a device.
pub(crate) struct DeviceOutcome {
    pub row: usize,
    /// Which device had the row when the request was sent, or was not sent as it is out of use.
    /// Another one may have the row when the outcome is judged.
    pub of: Tenure,
    pub result: Result<(), IoError>,
}

/// The rows of the device table.
pub(crate) struct Devices {
    rows: Vec<PoolDevice>,
    /// Devices that were entered.
    tenures: u64,
    /// Of reads, by which sources are judged.
    period: Period,
    /// The time for which a bad source of reads sits out; zero: none does.
    sit_out: Duration,
}

impl Devices {
    pub fn new(rows: Vec<PoolDevice>) -> Devices {
        Devices { rows, tenures: 0, period: Period::default(), sit_out: Duration::ZERO }
    }

    pub fn count(&self) -> usize {
        self.rows.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &PoolDevice> {
        self.rows.iter()
    }

    /// The path by which users know a device.
    pub fn path(&self, row: usize) -> &str {
        self.rows[row].path()
    }

    /// The rows as superblocks say them.
    pub fn records(&self) -> Vec<DeviceRecord> {
        let record = |d: &PoolDevice| match d.is_new() {
            true => DeviceRecord::removed(),
            false => d.record().clone(),
        };
        self.rows.iter().map(record).collect()
    }

    /// As [`Devices::records`] will say when the device of `row` has joined, by the superblock of
    /// `sequence`.
    pub fn records_with(&self, row: usize, sequence: u64) -> Vec<DeviceRecord> {
        let mut records = self.records();
        records[row] = self.rows[row].record_joined(sequence);
        records
    }

    /// The name of a device for users: its path, or its uuid if the device is not there.
    pub fn name_of(&self, row: usize, device: &PoolDevice) -> String {
        match self.path(row) {
            "" => uuid::Uuid::from_bytes(device.record().uuid).to_string(),
            path => path.to_owned(),
        }
    }

    /// A row of the table.
    pub fn row(&self, row: usize) -> Option<&PoolDevice> {
        self.rows.get(row)
    }

    pub fn row_mut(&mut self, row: usize) -> Option<&mut PoolDevice> {
        self.rows.get_mut(row)
    }

    /// True if one more can be entered.
    pub fn has_place(&self) -> bool {
        self.rows.len() < MAX_DEVICES || self.rows.iter().any(PoolDevice::is_removed)
    }

    /// Enters a device that is being added into a row that has none. Fails if there is no room.
    pub fn enter(&mut self, mut device: PoolDevice) -> Option<usize> {
        self.tenures += 1;
        device.set_tenure(Tenure(self.tenures));
        if let Some(row) = self.rows.iter().position(PoolDevice::is_removed) {
            self.rows[row] = device;
            return Some(row);
        }
        (self.rows.len() < MAX_DEVICES).then(|| {
            self.rows.push(device);
            self.rows.len() - 1
        })
    }

    /// A row has no device any more. The caller closes what it gets.
    pub fn clear_row(&mut self, row: usize) -> Option<Disk> {
        let none = PoolDevice::new(DeviceRecord::removed(), String::new(), None);
        std::mem::replace(&mut self.rows[row], none).disk().cloned()
    }

    /// The queue of a device that gets what is written: it is in use, or coming into use.
    pub fn written(&self, row: usize) -> Option<&Disk> {
        let joining = self.rows.get(row).filter(|d| d.is_joining());
        self.live(row).or_else(|| joining?.disk())
    }

    /// Which device has a row, and its queue as by [`Devices::written`].
    pub fn to_write(&self, row: usize) -> (Tenure, Option<Disk>) {
        (self.rows[row].tenure(), self.written(row).cloned())
    }

    /// The rows of these devices.
    pub fn written_rows(&self) -> Vec<usize> {
        (0..self.rows.len()).filter(|&row| self.written(row).is_some()).collect()
    }

    /// The queue of a device that is in use.
    pub fn live(&self, row: usize) -> Option<&Disk> {
        self.rows.get(row).and_then(PoolDevice::live)
    }

    pub fn is_live(&self, row: usize) -> bool {
        self.live(row).is_some()
    }

    /// True if a chunk is a copy that counts: its device is in use, and it lacks nothing.
    pub fn is_whole(&self, c: &Chunk) -> bool {
        !c.behind && self.is_live(c.device.into())
    }

    /// In which order copies are to be read: from good sources first, and from the least busy.
    pub fn read_order(&self, row: usize) -> (bool, usize) {
        let sits_out = self.row(row).is_some_and(PoolDevice::sits_out);
        (sits_out, self.live(row).map_or(usize::MAX, Disk::load))
    }

    /// The number of times that the device of this chunk went out of use.
    pub fn absences(&self, c: &Chunk) -> u32 {
        self.row(c.device.into()).map_or(0, PoolDevice::absences)
    }

    /// The rows of the devices that are in use.
    pub fn live_rows(&self) -> Vec<usize> {
        (0..self.rows.len()).filter(|&row| self.is_live(row)).collect()
    }

    /// True if a device is missing or failed.
    pub fn degraded(&self) -> bool {
        self.not_whole().next().is_some()
    }

    /// The same, but for those that come back by themselves.
    pub fn stays_degraded(&self) -> bool {
        self.not_whole().any(|d| !d.may_return())
    }

    /// True if the device of a row is in use, and has all that it is to have.
    pub fn has_all(&self, row: usize) -> bool {
        self.row(row).is_some_and(has_all)
    }

    fn not_whole(&self) -> impl Iterator<Item = &PoolDevice> {
        let counts = |d: &PoolDevice| !d.is_removed() && !d.is_new() && !d.is_spare();
        self.rows.iter().filter(move |d| !has_all(d) && counts(d))
    }

    /// Takes these devices out of use, from the superblock of `sequence` on. They have everything
    /// up to `has`.
    pub fn drop_from_use(
        &mut self,
        rows: impl IntoIterator<Item = usize>,
        sequence: u64,
        has: Generation,
    ) {
        for row in rows {
            let d = &mut self.rows[row];
            d.fail(sequence, Some(has));
            d.note_dropped();
        }
    }

    /// A bad block of the device was written again.
    pub fn note_healed(&mut self, row: usize) {
        self.rows[row].count(DeviceEvent::Healed);
    }

    /// A bad block of the device could not be written again.
    pub fn note_heal_error(&mut self, row: usize, offset: u64, e: IoError) {
        let d = &mut self.rows[row];
        d.count(DeviceEvent::WriteError);
        let next = match e.is_no_space() {
            true => "it is tried again when the block is met next",
            false => "the device is dropped, if the pool can do without it",
        };
        tracing::error!(
            device = %d.path(), offset,
            "a bad block could not be rewritten: {e}; {next}"
        );
    }

    /// A read from the device failed.
    pub fn note_read_error(&mut self, row: usize, offset: u64, e: IoError, now: Instant) {
        let d = &mut self.rows[row];
        if e.is_gone() && d.live().is_none() {
            // The device went out of use meanwhile, and all its requests have ended so.
            return;
        }
        d.count(DeviceEvent::ReadError);
        let n = d.errors().read;
        if worth_telling(n) {
            tracing::warn!(
                device = %d.path(), offset,
                "read error {n} on this device: {e}; {MENDED}"
            );
        }
        if self.rows[row].source_mut().erred(now, self.sit_out) {
            tracing::warn!(
                device = %self.rows[row].path(),
                "many blocks of the device cannot be read: for some time it is read only where no \
                 other has a good copy"
            );
        }
    }

    /// A block of the device is not what was written.
    pub fn note_bad_block(&mut self, row: usize, offset: u64, now: Instant) {
        let d = &mut self.rows[row];
        d.count(DeviceEvent::BadBlock);
        d.note_rot(offset, now);
        let n = d.errors().checksum;
        if worth_telling(n) {
            tracing::warn!(
                device = %d.path(), offset,
                "checksum error {n} on this device; {MENDED}"
            );
        }
    }

    /// A scrub begins of this device, or of all.
    pub fn begin_scrub(&mut self, only: Option<usize>) {
        let scrubbed = |row: &usize| only.is_none_or(|only| only == *row);
        let rows = self.rows.iter_mut().enumerate().filter(|(row, _)| scrubbed(row));
        rows.for_each(|(_, d)| d.begin_scrub());
    }

    /// Ends a scrub that has read everything of this device, or of all that are in use.
    pub fn end_scrub(&mut self, only: Option<usize>) {
        let scrubbed = |row: &usize| only.is_none_or(|only| only == *row);
        let rows = self.rows.iter_mut().enumerate().filter(|(row, _)| scrubbed(row));
        rows.filter(|(_, d)| d.live().is_some()).for_each(|(_, d)| d.end_scrub());
    }

    /// A read of the device has ended: how long it took, and how many requests were before it.
    pub fn note_read(&mut self, row: usize, took: Duration, others: usize, now: Instant) {
        self.rows[row].source_mut().read(took, others);
        self.judge_sources(now);
    }

    /// Looks which devices are good sources of reads, if it is time to.
    pub fn judge_sources(&mut self, now: Instant) {
        if !self.period.ends(now) {
            return;
        }
        for kind in DeviceKind::ALL {
            let of_kind = |d: &PoolDevice| d.live().is_some_and(|disk| disk.kind() == kind);
            let rows = self.rows.iter_mut().enumerate().filter(|(_, d)| of_kind(d));
            let sources = rows.map(|(row, d)| (row, d.source_mut()));
            for row in sources::judge(sources, now, self.sit_out) {
                tracing::warn!(
                    device = %self.rows[row].path(),
                    "the device is slow beside others: for some time it is read only where no \
                     other has a good copy"
                );
            }
        }
    }

    /// Sets the time for which a bad source of reads sits out from now on; zero: none does.
    pub fn set_sit_out(&mut self, time: Duration) {
        self.sit_out = time;
        if time.is_zero() {
            self.rows.iter_mut().for_each(|d| *d.source_mut() = Source::default());
        }
    }

    /// Counts and logs the failures among `outcomes` of devices that are in use; returns these
    /// devices, and what to say of them. What failed on a device that had the row before
    /// is no failure of the one that has it now.
    pub fn note_write_errors(
        &mut self,
        outcomes: Vec<DeviceOutcome>,
        what: &str,
    ) -> Vec<(usize, IoError, String)> {
        let mut failed = Vec::new();
        for DeviceOutcome { row, of, result } in outcomes {
            let d = &mut self.rows[row];
            let (Err(e), true) = (result, of == d.tenure()) else { continue };
            if d.is_joining() {
                // The device does not join: see `moves/join.rs`.
                d.miss(e);
                d.count(DeviceEvent::WriteError);
            } else if d.live().is_some() {
                d.count(DeviceEvent::WriteError);
                tracing::error!(
                    device = %d.path(),
                    "{what} failed: {e}; the device is dropped, if the pool can do without it"
                );
                failed.push((row, e, format!("{what} to {}", d.path())));
            }
        }
        failed
    }

    /// Notes how writes have ended, for [`PoolDevice::write_trouble`].
    pub fn note_writes(&mut self, outcomes: &[DeviceOutcome], now: Instant) {
        for DeviceOutcome { row, of, result } in outcomes {
            let d = &mut self.rows[*row];
            if d.live().is_some() && *of == d.tenure() {
                d.note_write(*result, now);
            }
        }
    }

    /// Counts, and takes out of `outcomes`, those that are a want of space of a device in use.
    /// Space may come back, so that is no reason to drop the device. Returns the first of these
    /// devices, and the error.
    pub fn without_space(
        &mut self,
        outcomes: &mut Vec<DeviceOutcome>,
    ) -> Option<(String, IoError)> {
        let mut first = None;
        outcomes.retain(|o| {
            let is_it = self.is_live(o.row) && o.of == self.rows[o.row].tenure();
            let Some(e) = o.result.err().filter(|e| e.is_no_space() && is_it) else { return true };
            self.rows[o.row].count(DeviceEvent::WriteError);
            first.get_or_insert_with(|| (self.rows[o.row].path().to_owned(), e));
            false
        });
        first
    }

    /// Takes one chunk of each of `copies` devices, those with the most free chunks, devices that
    /// are in use first. `None` if there are not so many, or none of them is in use.
    pub fn take_chunks(&mut self, copies: usize) -> Option<Vec<Chunk>> {
        let mut order: Vec<usize> =
            (0..self.rows.len()).filter(|&d| self.spare_chunks(d) > 0).collect();
        let missing = |d: usize| !self.is_live(d);
        order.sort_by_key(|&d| (missing(d), std::cmp::Reverse(self.rows[d].chunks().free()), d));
        if order.len() < copies || missing(order[0]) {
            return None;
        }
        let take = |&d: &usize| {
            let chunk = self.rows[d].chunks_mut().take_any();
            let chunk = chunk.unwrap_or_else(|| unreachable!("device {d} has a free chunk"));
            Chunk::new(d as u16, chunk)
        };
        Some(order[..copies].iter().map(take).collect())
    }

    /// Takes these chunks, all or none; false: one of them is not free, or its device is not there.
    pub fn take_these_chunks(&mut self, chunks: &[Chunk]) -> bool {
        for (n, c) in chunks.iter().enumerate() {
            let row = self.rows.get_mut(usize::from(c.device));
            if !row.is_some_and(|d| d.chunks_mut().take(c.chunk)) {
                self.give_chunks(chunks[..n].to_vec());
                return false;
            }
        }
        true
    }

    /// A superblock is written now, with the records of all rows.
    pub fn note_written(&mut self) {
        self.rows.iter_mut().for_each(PoolDevice::note_written);
    }

    /// That superblock is durable: see [`PoolDevice::offer_written`].
    pub fn offer_written(&mut self) {
        self.rows.iter_mut().for_each(|d| d.chunks_mut().offer_written());
    }

    /// Chunks that may be taken of a device.
    pub fn spare_chunks(&self, row: usize) -> u64 {
        self.rows.get(row).filter(|d| d.takes_chunks()).map_or(0, |d| d.chunks().free())
    }

    /// A device that takes chunks: how many of it are in use, and how many it has.
    pub fn fill(&self, row: usize) -> Option<(u64, u64)> {
        let d = self.rows.get(row).filter(|d| d.takes_chunks() && d.live().is_some())?;
        Some((d.chunks().in_use(), d.chunks().in_use() + d.chunks().free()))
    }

    /// Takes a chunk of a device.
    pub fn take_chunk_of(&mut self, row: usize) -> Option<Chunk> {
        let device = self.rows.get_mut(row).filter(|d| d.takes_chunks())?;
        device.chunks_mut().take_any().map(|chunk| Chunk::new(row as u16, chunk))
    }

    pub fn give_chunks(&mut self, chunks: Vec<Chunk>) {
        for c in chunks {
            self.rows[usize::from(c.device)].chunks_mut().give(c.chunk);
        }
    }

    /// The number of groups of `copies` chunks that the free chunks make at least, but no more than
    /// `most`: each group takes chunks of different devices, one of them of a device in use, and
    /// others of such as long as there are ([`Devices::take_chunks`]).
    pub fn formable(&self, copies: u64, most: u64) -> u64 {
        let free = |live| {
            let takes = move |d: &&PoolDevice| d.takes_chunks() && d.live().is_some() == live;
            self.rows.iter().filter(takes).map(|d| d.chunks().free())
        };
        let whole = groups_of(free(true), copies, most);
        // The other free chunks are on fewer than `copies` devices. They make groups with chunks of
        // missing devices, for when those are replaced.
        let mut rest: SmallVec<[u64; 4]> =
            free(true).filter_map(|n| n.checked_sub(whole)).collect();
        rest.sort_unstable_by(|a, b| b.cmp(a));
        let partial = |live: u64| match rest.get(live as usize - 1) {
            Some(&n) => groups_of(free(false), copies - live, n),
            None => 0,
        };
        let partial = (1..copies).rev().map(partial).find(|&n| n > 0);
        (whole + partial.unwrap_or(0)).min(most)
    }

    /// The counters of all queues together.
    pub fn stats(&self) -> DeviceStats {
        let mut sum = DeviceStats::default();
        for disk in self.rows.iter().filter_map(PoolDevice::disk) {
            sum.merge(&disk.stats());
        }
        sum
    }

    /// Puts a copy first that continues what its device read last, if
    /// there is one, and notes that the first is read. Two streams of reads, say of old blocks and
    /// of those that have replaced some, so stay on two disks, instead of moving the heads of both.
    pub fn put_near_first(&mut self, copies: &mut [CopyPlace], bytes: u64) {
        let load = |row: usize| self.live(row).map_or(usize::MAX, Disk::load);
        let least = copies.first().map_or(0, |copy| load(copy.row));
        let near = copies.iter().position(|&CopyPlace { row, offset }| {
            let d = &self.rows[row];
            d.is_near(offset) && !d.sits_out() && load(row) <= least.saturating_add(MORE_LOAD)
        });
        if let Some(at) = near {
            copies[..=at].rotate_right(1);
        }
        if let Some(&CopyPlace { row, offset }) = copies.first() {
            self.rows[row].read_upto(offset + bytes);
        }
    }

    /// True if a device that is read is a disk that rotates.
    pub fn any_rotates(&self) -> bool {
        let mut live = self.rows.iter().filter_map(PoolDevice::live);
        live.any(|disk| disk.kind() == DeviceKind::Rotating)
    }

    /// Sets the time that foreground requests to each device should take at most from now on.
    pub fn set_targets(&self, targets: Targets) {
        self.rows.iter().filter_map(PoolDevice::disk).for_each(|disk| disk.set_targets(targets));
    }

    pub fn close(&self) {
        self.rows.iter().filter_map(PoolDevice::disk).for_each(Disk::close);
    }
}

/// The most groups, up to `most`, of which each takes a chunk of `each` different devices that have
/// `free` chunks.
pub(crate) fn groups_of(free: impl Iterator<Item = u64> + Clone, each: u64, most: u64) -> u64 {
    let fits = |n: u64| free.clone().map(|f| f.min(n)).sum::<u64>() >= each * n;
    let (mut lo, mut hi) = (0, most);
    while lo < hi {
        let mid = (lo + hi).div_ceil(2);
        if fits(mid) { lo = mid } else { hi = mid - 1 }
    }
    lo
}

fn has_all(device: &PoolDevice) -> bool {
    device.live().is_some() && device.record().lacks_since.is_none()
}

#[cfg(test)]
#[path = "devices_tests.rs"]
pub(crate) mod tests;
