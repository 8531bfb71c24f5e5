//! One disk: when operations complete, what they do then, and how they fail.
//!
//! Time: an operation waits for one of `depth` slots, then for its turn on the bus
//! (`bytes_per_second`), and then takes a latency drawn from its range. One operation in a hundred
//! takes ten times that latency. So operations in flight complete in any order. An operation takes
//! effect when it completes. A read may see some sectors of a write that is still in flight.

use std::collections::VecDeque;

use base::{BufList, ByteRange, IoError, Prng, SECTOR, SliceList};
use rt::{Completion, OpId, Payload};

use crate::fault::{
    ArmedFaults, Fault, FaultCounts, FaultRates, FlakyRanges, FlushLoss, Times, by_chance, strikes,
};
use crate::glimpse::glimpse;
use crate::model::DiskModel;
use crate::store::Store;
use crate::table::{PAGE_U64, Piece, pieces_of_write, pieces_of_zeros};

const SECTOR_U64: u64 = SECTOR as u64;
/// Number of completed writes whose places are remembered.
const RECENT: usize = 256;

/// The work of a request.
pub(crate) enum Work {
    Read(BufList),
    Write { data: SliceList, fua: bool },
    Flush { upto: u64 },
    Discard,
}

pub(crate) struct Request {
    pub id: OpId,
    pub offset: u64,
    pub len: u64,
    pub work: Work,
    /// The error with which the request completes. It has no effect then.
    doomed: Option<IoError>,
}

impl Request {
    pub fn new(id: OpId, offset: u64, len: u64, work: Work) -> Request {
        Request { id, offset, len, work, doomed: None }
    }

    /// The operation's number, and the buffers to return.
    pub fn give_back(self) -> (OpId, Payload) {
        let payload = match self.work {
            Work::Read(bufs) => Payload::Bufs(bufs),
            Work::Write { data, .. } => Payload::Data(data),
            Work::Flush { .. } | Work::Discard => Payload::None,
        };
        (self.id, payload)
    }
}

/// Whether, or until when, no operation completes.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum StuckState {
    No,
    Until(u64),
    Forever,
}

/// Sees the offset and the bytes of a write.
pub(crate) type Watcher = Box<dyn FnMut(u64, &SliceList)>;

pub(crate) struct Disk {
    pub model: DiskModel,
    pub store: Store,
    pub rates: FaultRates,
    pub counts: FaultCounts,
    pub stuck: StuckState,
    /// Nanoseconds that are added to the latency of every operation.
    pub delay: u64,
    /// Slots of operations that came due while the disk was stuck for ever.
    pub parked: Vec<u32>,
    rng: Prng,
    requests: Vec<Option<Request>>,
    free: Vec<u32>,
    /// Slots of the writes in flight.
    writing: Vec<u32>,
    armed: ArmedFaults,
    /// The content that every flush loses, if all flushes fail.
    fails_flushes: Option<FlushLoss>,
    flaky: FlakyRanges,
    /// Ranges that take no writes: from, and end.
    unwritable: Vec<ByteRange>,
    /// The offset and length of the last completed writes, oldest first.
    pub recent: VecDeque<(u64, u64)>,
    /// Sees the offset and the bytes of each write that is begun.
    pub watcher: Option<Watcher>,
    dead: bool,
    /// The number of completed writes when the disk died, if some of them were not stable. No flush
    /// that covers all of them has failed since.
    untold: Option<u64>,
    full: bool,
    /// Nothing becomes stable, whatever it answers.
    lies: bool,
    /// When each of the `depth` slots is free.
    servers: Vec<u64>,
    bus_free: u64,
}

impl Disk {
    pub fn new(model: DiskModel, rng: Prng) -> Disk {
        assert!(
            model.size_bytes % PAGE_U64 == 0 && model.size_bytes > 0,
            "a disk of {} bytes",
            model.size_bytes
        );
        assert!(model.depth > 0 && model.bytes_per_second > 0 && model.align > 0, "{model:?}");
        Disk {
            store: Store::new(model.size_bytes),
            rates: FaultRates::default(),
            counts: FaultCounts::default(),
            stuck: StuckState::No,
            delay: 0,
            parked: Vec::new(),
            rng,
            requests: Vec::new(),
            free: Vec::new(),
            writing: Vec::new(),
            armed: ArmedFaults::default(),
            fails_flushes: None,
            flaky: FlakyRanges::default(),
            unwritable: Vec::new(),
            recent: VecDeque::new(),
            watcher: None,
            dead: false,
            untold: None,
            full: false,
            lies: false,
            servers: vec![0; model.depth],
            bus_free: 0,
            model,
        }
    }

    /// Accepts `request`. Returns its slot, and the time when it comes due.
    pub fn begin(&mut self, now: u64, mut request: Request) -> (u32, u64) {
        request.doomed = self.refusal(&request);
        if let Work::Flush { upto } = &mut request.work {
            *upto = self.store.completed();
        }
        let due = self.due(now, &request);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.requests.push(None);
            self.requests.len() as u32 - 1
        });
        if let Work::Write { data, .. } = &request.work {
            self.writing.push(slot);
            if let (Some(watcher), None) = (&mut self.watcher, request.doomed) {
                watcher(request.offset, data);
            }
        }
        self.requests[slot as usize] = Some(request);
        if by_chance(self.rates.stuck, &mut self.rng) {
            let longest = u64::try_from(self.rates.stuck_for.as_nanos()).unwrap_or(u64::MAX).max(1);
            let time = self.rng.below(longest);
            self.stick(StuckState::Until(now + time));
        }
        (slot, due)
    }

    /// The error of a request that cannot even be started.
    fn refusal(&self, request: &Request) -> Option<IoError> {
        let align = self.model.align;
        let memory =
            |part: &[u8]| part.as_ptr() as u64 % align == 0 && part.len() as u64 % align == 0;
        let aligned = match &request.work {
            Work::Read(bufs) => bufs.iter().all(|b| memory(b)),
            Work::Write { data, .. } => data.iter().all(|s| memory(s)),
            Work::Flush { .. } | Work::Discard => true,
        };
        if self.dead {
            Some(IoError::GONE)
        } else if !aligned
            || request.offset % align != 0
            || request.offset.checked_add(request.len).is_none()
        {
            Some(IoError::INVALID)
        } else {
            None
        }
    }

    fn due(&mut self, now: u64, request: &Request) -> u64 {
        let (latency, bytes) = match request.work {
            Work::Read(_) => (self.model.read_latency, request.len),
            Work::Write { .. } => (self.model.write_latency, request.len),
            Work::Discard => (self.model.write_latency, 0),
            Work::Flush { .. } => (self.model.flush_latency, 0),
        };
        let latency = latency.draw(&mut self.rng);
        let latency = if self.rng.one_in(100) { latency * 10 } else { latency } + self.delay;
        let transfer =
            (u128::from(bytes) * 1_000_000_000 / u128::from(self.model.bytes_per_second)) as u64;
        let Some(server) = self.servers.iter_mut().min() else { unreachable!("depth is not 0") };
        let moved = now.max(*server).max(self.bus_free) + transfer;
        if bytes > 0 {
            self.bus_free = moved;
        }
        *server = moved + latency;
        *server
    }

    /// Completes the request in `slot`, which has come due.
    pub fn complete(&mut self, slot: u32) -> Completion {
        let Some(mut request) = self.requests[slot as usize].take() else {
            unreachable!("slot {slot} completed twice")
        };
        self.free.push(slot);
        if let Work::Write { .. } = request.work {
            self.writing.retain(|&s| s != slot);
        }
        let result = match request.doomed {
            Some(e) => Err(e),
            None => self.perform(&mut request),
        };
        if let (Work::Flush { upto }, Err(_)) = (&request.work, result) {
            self.untold = self.untold.filter(|completed| completed > upto);
        }
        let (id, payload) = request.give_back();
        Completion { id, result, payload }
    }

    fn perform(&mut self, request: &mut Request) -> Result<u64, IoError> {
        if by_chance(self.rates.bit_rot, &mut self.rng) {
            self.inject(Fault::BitRotAnywhere);
        }
        if by_chance(self.rates.read_error, &mut self.rng) {
            self.inject(Fault::ReadErrorAnywhere);
        }
        let fails = !matches!(request.work, Work::Discard)
            && strikes(&mut self.armed.fail, self.rates.transient_error, &mut self.rng);
        if fails {
            self.counts.transient_errors += 1;
        }
        let (offset, size) = (request.offset, self.model.size_bytes);
        let len = request.len.min(size.saturating_sub(offset));
        match &mut request.work {
            Work::Flush { .. } | Work::Read(_) if fails => Err(IoError::IO),
            Work::Flush { upto } => self.flush(*upto),
            Work::Discard => {
                let pieces = self.pieces_of_discard(offset, len);
                self.store.write(pieces, None, false);
                if by_chance(self.rates.failed_discard, &mut self.rng) {
                    self.counts.failed_discards += 1;
                    return Err(IoError::IO);
                }
                Ok(0)
            }
            Work::Read(bufs) => {
                let len = self.shorten(len);
                self.read(offset, len, bufs)
            }
            Work::Write { .. } if len == 0 && request.len > 0 => Err(IoError::NO_SPACE),
            Work::Write { data, fua } => {
                let len = self.shorten(len);
                if self.unwritable.iter().any(|r| r.overlaps(&ByteRange::new(offset, offset + len)))
                {
                    self.counts.write_errors += 1;
                    return Err(IoError::IO);
                }
                let len = self.room_for(offset, len)?;
                let mut pieces = pieces_of_write(offset, data, len, self.store.current());
                if fails {
                    // Every sector is old or new. That is allowed after an error, so it does not
                    // count as damage.
                    pieces.iter_mut().for_each(|p| p.mask &= self.rng.next_u64() as u8);
                    self.store.write(pieces, None, false);
                    return Err(IoError::IO);
                }
                self.write(pieces, *fua);
                if self.recent.len() == RECENT {
                    self.recent.pop_front();
                }
                self.recent.push_back((offset, len));
                self.report(len)
            }
        }
    }

    /// The result of an operation that took effect. It may still be reported as failed.
    fn report(&mut self, done: u64) -> Result<u64, IoError> {
        if strikes(&mut self.armed.fail_but_do, self.rates.failed_but_done, &mut self.rng) {
            self.counts.failed_but_done += 1;
            return Err(IoError::IO);
        }
        Ok(done)
    }

    fn flush(&mut self, upto: u64) -> Result<u64, IoError> {
        let next = || self.armed.fail_flush.pop_front();
        let armed = self.fails_flushes.or_else(next).or(self.untold.map(|_| FlushLoss::Nothing));
        let drawn = armed.is_none() && by_chance(self.rates.failed_flush, &mut self.rng);
        let loses = if drawn { Some(FlushLoss::by_chance(&mut self.rng)) } else { armed };
        if let Some(loses) = loses {
            self.counts.failed_flushes += 1;
            self.counts.lost_sectors += self.store.lose(upto, loses, &mut self.rng);
            return Err(IoError::IO);
        }
        if self.lies {
            self.counts.lies += 1;
        } else {
            self.store.flush(upto);
        }
        self.report(0)
    }

    fn shorten(&mut self, len: u64) -> u64 {
        let sectors = len / SECTOR_U64;
        if sectors < 2
            || !strikes(&mut self.armed.shorten, self.rates.short_transfer, &mut self.rng)
        {
            return len;
        }
        self.counts.short_transfers += 1;
        self.rng.range(1, sectors) * SECTOR_U64
    }

    /// The number of bytes of a write that the full host still accepts: those of pages that were
    /// written before.
    fn room_for(&mut self, offset: u64, len: u64) -> Result<u64, IoError> {
        if !self.full || len == 0 {
            return Ok(len);
        }
        let (first, end) = (offset / PAGE_U64, (offset + len).div_ceil(PAGE_U64));
        match (first..end).find(|&page| self.store.current().get(page).is_none()) {
            None => Ok(len),
            Some(page) => {
                self.counts.no_space += 1;
                if page == first { Err(IoError::NO_SPACE) } else { Ok(page * PAGE_U64 - offset) }
            }
        }
    }

    fn write(&mut self, pieces: Vec<Piece>, fua: bool) {
        self.counts.lies += u64::from(fua && self.lies);
        let fua = fua && !self.lies;
        if strikes(&mut self.armed.lose, self.rates.lost_write, &mut self.rng) {
            self.counts.lost_writes += 1;
            self.store.write(Vec::new(), Some(pieces), fua);
        } else if strikes(&mut self.armed.misdirect, self.rates.misdirected_write, &mut self.rng) {
            match self.misdirected(&pieces) {
                Some(there) => {
                    self.counts.misdirected_writes += 1;
                    self.store.write(there, Some(pieces), fua);
                }
                None => self.store.write(pieces, None, fua),
            }
        } else {
            self.store.write(pieces, None, fua);
        }
    }

    /// Moves `pieces` to another place that was written before and does not overlap theirs.
    fn misdirected(&mut self, pieces: &[Piece]) -> Option<Vec<Piece>> {
        let (first, len) = (pieces.first()?.page, pieces.len() as u64);
        let pages = self.model.size_bytes / PAGE_U64;
        let to = (0..8).find_map(|_| {
            let to = self.store.current().any_written(&mut self.rng)?;
            (to.abs_diff(first) >= len && to + len <= pages).then_some(to)
        })?;
        Some(pieces.iter().map(|p| Piece { page: p.page - first + to, ..p.clone() }).collect())
    }

    fn pieces_of_discard(&mut self, offset: u64, len: u64) -> Vec<Piece> {
        let mut pieces =
            pieces_of_zeros(offset, len, &[self.store.current(), self.store.pristine()]);
        match self.rng.below(4) {
            0 => pieces.clear(),
            1 => pieces.iter_mut().for_each(|p| p.mask &= self.rng.next_u64() as u8),
            _ => {}
        }
        pieces
    }

    fn read(&mut self, offset: u64, len: u64, bufs: &mut BufList) -> Result<u64, IoError> {
        if self.store.is_unreadable(offset, len) {
            self.counts.read_errors += 1;
            return Err(IoError::IO);
        }
        if self.flaky.fails(offset, len, self.rates.transient_read, &mut self.rng) {
            self.counts.transient_reads += 1;
            return Err(IoError::IO);
        }
        let mut left = len as usize;
        let mut at = offset;
        for buf in bufs.iter_mut() {
            let n = left.min(buf.len());
            self.store.current().read(at, &mut buf[..n]);
            (left, at) = (left - n, at + n as u64);
        }
        for &slot in &self.writing {
            if let Some(Request {
                offset: from,
                len: n,
                work: Work::Write { data, .. },
                doomed: None,
                ..
            }) = &self.requests[slot as usize]
            {
                if *from < offset + len && offset < from + n {
                    glimpse(&mut self.rng, *from, data, offset, len, bufs);
                }
            }
        }
        Ok(len)
    }

    /// Injects `fault`. Returns false if the fault has nothing to act on, because nothing was
    /// written yet.
    pub fn inject(&mut self, fault: Fault) -> bool {
        match fault {
            Fault::BitRot { offset, len } => {
                let end = (offset + len).min(self.model.size_bytes).div_ceil(SECTOR_U64);
                let sector = self.rng.range(offset / SECTOR_U64, end);
                self.rot(sector);
            }
            Fault::BitRotAnywhere | Fault::ReadErrorAnywhere => {
                let Some(page) = self.store.current().any_written(&mut self.rng) else {
                    return false;
                };
                let offset = page * PAGE_U64 + self.rng.below(PAGE_U64 / SECTOR_U64) * SECTOR_U64;
                let room = self.model.size_bytes - offset;
                if fault == Fault::BitRotAnywhere {
                    self.rot(offset / SECTOR_U64);
                } else {
                    let len = room.min(self.rng.range(1, 17) * SECTOR_U64);
                    return self.inject(Fault::ReadError { offset, len });
                }
            }
            Fault::ReadError { offset, len } => {
                let end = (offset + len).min(self.model.size_bytes).div_ceil(SECTOR_U64);
                for sector in offset / SECTOR_U64..end {
                    self.store.make_unreadable(sector);
                    self.counts.unreadable_sectors += 1;
                }
            }
            Fault::MisdirectNextWrite => self.armed.misdirect += 1,
            Fault::LoseNextWrite => self.armed.lose += 1,
            Fault::ShortenNext => self.armed.shorten += 1,
            Fault::FailNext => self.armed.fail += 1,
            Fault::FailNextButDo => self.armed.fail_but_do += 1,
            Fault::FailFlush { times: Times::Always, loses } => self.fails_flushes = Some(loses),
            Fault::FailFlush { times: Times::Next(n), loses } => {
                self.armed.fail_flush.extend(std::iter::repeat_n(loses, n as usize));
            }
            Fault::FailReads { times: 0, .. } => return false,
            Fault::FailReads { offset, len, times } => {
                self.flaky.add(ByteRange::new(offset, offset.saturating_add(len)), times)
            }
            Fault::FailWrites { offset, len } => {
                self.unwritable.push(ByteRange::new(offset, offset.saturating_add(len)));
            }
            Fault::Stuck(_) | Fault::StuckForever | Fault::Dead | Fault::Unreachable => {
                unreachable!("the world injects these faults, because they move events")
            }
            Fault::TakeWrites => self.unwritable.clear(),
            Fault::Lie => self.lies = true,
            Fault::Full(full) => self.full = full,
        }
        true
    }

    fn rot(&mut self, sector: u64) {
        let rng = &mut self.rng;
        self.counts.bit_rot += 1;
        self.store.rot(sector, |bytes| {
            // Flip bits in different bytes, so that no flip undoes another.
            let (first, n) = (rng.below(SECTOR_U64), rng.range(1, 9));
            for i in 0..n {
                bytes[((first + i * 61) % SECTOR_U64) as usize] ^= 1 << rng.below(8);
            }
        });
    }

    /// Holds back all completions as `stuck` says.
    pub fn stick(&mut self, stuck: StuckState) {
        self.stuck = stuck;
        self.counts.stuck += 1;
    }

    /// Fails all operations from now on, including those in flight. The cache is lost.
    pub fn die(&mut self) {
        self.counts.dead += 1;
        if self.store.has_unstable() {
            self.untold = Some(self.store.completed());
        }
        self.lose_power();
        self.dead = true;
        self.requests.iter_mut().flatten().for_each(|r| r.doomed = Some(IoError::IO));
    }

    /// Fails all operations from now on. The cache stays, and each operation in flight is done or
    /// not.
    pub fn detach(&mut self) {
        self.counts.unreachable += 1;
        self.end_in_flight();
        self.dead = true;
        self.requests.iter_mut().flatten().for_each(|r| r.doomed = Some(IoError::IO));
    }

    /// Decides for each operation in flight whether it is done.
    fn end_in_flight(&mut self) {
        for pieces in self.in_flight_pieces() {
            if self.rng.one_in(2) {
                self.store.write(pieces, None, false);
            }
        }
    }

    pub fn revive(&mut self) {
        (self.dead, self.lies) = (false, false);
        self.fails_flushes = None;
        self.flaky.heal();
    }

    /// Takes back all faults that wait for an operation.
    pub fn disarm(&mut self) {
        self.armed = ArmedFaults::default();
    }

    /// No sector is unreadable any more, and all take writes.
    pub fn cure(&mut self) {
        self.unwritable.clear();
        self.store.make_readable();
    }

    /// Decides which of the versions that were not stable survive.
    fn lose_power(&mut self) {
        let in_flight = self.in_flight_pieces();
        self.store.power_cut(&mut self.rng, in_flight);
    }

    fn in_flight_pieces(&mut self) -> Vec<Vec<Piece>> {
        let mut all = Vec::new();
        let requests = std::mem::take(&mut self.requests);
        for r in requests.iter().flatten().filter(|r| r.doomed.is_none()) {
            let len = r.len.min(self.model.size_bytes.saturating_sub(r.offset));
            match &r.work {
                Work::Write { data, .. } => {
                    all.push(pieces_of_write(r.offset, data, len, self.store.current()));
                }
                Work::Discard => all.push(self.pieces_of_discard(r.offset, len)),
                Work::Read(_) | Work::Flush { .. } => {}
            }
        }
        self.requests = requests;
        all
    }

    /// Ends the boot. With `power` the cache is lost too. Without it only the process is gone, and
    /// each of its operations in flight is done or not.
    pub fn stop(&mut self, power: bool) {
        if power {
            self.lose_power();
        } else {
            self.end_in_flight();
            self.store.end_lost(&mut self.rng);
        }
        self.requests.clear();
        self.free.clear();
        self.writing.clear();
        self.parked.clear();
        self.disarm();
        self.untold = None;
        self.servers.fill(0);
        self.bus_free = 0;
        if power {
            self.stuck = StuckState::No;
        }
    }
}
