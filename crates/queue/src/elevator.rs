//! The order of requests on a rotating disk: by place, over all that waits.
//!
//! Reads and writes are swept apart, each upwards by address and then again from the lowest, in
//! batches. Reads go ahead: a batch of writes begins when no read waits, and ends when one comes or
//! writes have to pause for those in flight ([`crate::write_gate`]); or it is their turn, when
//! [`OVERTAKEN`] runs of reads have gone while writes waited. A batch begins at the
//! oldest request of its kind if that has waited for longer than [`AGE`], so a stream that always
//! brings a next request cannot keep the sweep at one place.
//!
//! Pieces of one larger request stay together: when one of them has gone, the next goes before
//! everything else. Writes of a common byte reach the device in their order of arrival: a write is
//! held for as long as an earlier one of the same place waits or is in flight.
//!
//! Writes of moves, which fill a device from below, reach it in their order of arrival: of them one
//! at a time is in the sweep, and the next when that has gone. One that was held keeps its place in
//! this order.

use std::collections::{BTreeMap, VecDeque};

use base::{ByteRange, Duration, Instant};

use crate::request::{MergedRequest, Request, RunLimits};
use crate::stats::Class;
use crate::write_gate::WriteAllowance;

/// Runs of a batch of reads, and of writes.
const BATCH: (u32, u32) = (16, 8);
/// The number of runs of reads that go while writes wait; then it is the turn of a batch of writes.
const OVERTAKEN: u32 = 2 * BATCH.0;
/// A request that has waited for longer is where the next batch begins.
const AGE: Duration = Duration::from_millis(100);

/// The place of a request in a sweep.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// The first byte on the device.
    offset: u64,
    /// The number of the request in order of arrival.
    number: u64,
}

impl Place {
    /// The place before all others of this offset.
    fn first_at(offset: u64) -> Place {
        Place { offset, number: 0 }
    }
}

/// The requests of one direction of transfer that wait.
struct Sweep<W> {
    by_place: BTreeMap<Place, Request<W>>,
    /// The oldest first. Those that have gone are dropped when they are the oldest.
    by_age: VecDeque<(Instant, Place)>,
    /// The address at which the last run ended.
    at: u64,
    /// The length of the longest request so far.
    longest: u64,
}

impl<W> Sweep<W> {
    fn new() -> Sweep<W> {
        Sweep { by_place: BTreeMap::new(), by_age: VecDeque::new(), at: 0, longest: 0 }
    }

    fn is_empty(&self) -> bool {
        self.by_place.is_empty()
    }

    fn push(&mut self, number: u64, request: Request<W>) {
        let (since, place) = (request.since, Place { offset: request.offset, number });
        self.longest = self.longest.max(request.len as u64);
        // One that was held is older than others here.
        let at = self.by_age.partition_point(|(other, _)| *other <= since);
        self.by_age.insert(at, (since, place));
        self.by_place.insert(place, request);
    }

    fn remove(&mut self, place: Place) -> Option<Request<W>> {
        let request = self.by_place.remove(&place);
        while let Some((_, oldest)) = self.by_age.front()
            && !self.by_place.contains_key(oldest)
        {
            self.by_age.pop_front();
        }
        request
    }

    /// The next one upwards, or the lowest.
    fn next(&self) -> Option<Place> {
        let above = self.by_place.range(Place::first_at(self.at)..).next();
        above.or_else(|| self.by_place.iter().next()).map(|(place, _)| *place)
    }

    fn after(&self, place: Place) -> Option<(Place, &Request<W>)> {
        let from = Place { number: place.number + 1, ..place };
        self.by_place.range(from..).next().map(|(place, r)| (*place, r))
    }

    fn oldest(&self) -> Option<&Request<W>> {
        self.by_age.front().and_then(|(_, place)| self.by_place.get(place))
    }

    fn overlaps(&self, range: ByteRange) -> bool {
        let from = Place::first_at(range.from.saturating_sub(self.longest));
        self.by_place.range(from..Place::first_at(range.end)).any(|(_, r)| r.overlaps(range))
    }

    /// Takes a request with those that continue it, and says the place of the last of them.
    fn take(&mut self, place: Place, limits: &RunLimits) -> Option<(MergedRequest<W>, Place)> {
        let mut run = MergedRequest::of(self.remove(place)?);
        let mut last = place;
        while let Some((next, request)) = self.after(last)
            && run.takes(request, limits)
            && let Some(request) = self.remove(next)
        {
            run.push(request);
            last = next;
        }
        self.at = run.end();
        Some((run, last))
    }
}

/// The batch that is being served.
#[derive(Default)]
struct Batch {
    writes: bool,
    /// Runs that it may still have.
    left: u32,
    /// True if it is the turn of writes, whatever reads wait.
    turn: bool,
}

impl Batch {
    fn is_turn(&self) -> bool {
        self.turn && self.left > 0
    }
}

/// The requests that wait for a rotating disk.
pub(crate) struct Elevator<W> {
    reads: Sweep<W>,
    writes: Sweep<W>,
    /// Requests that were part of one that failed; they go first.
    again: VecDeque<Request<W>>,
    /// Writes that wait for earlier ones of the same place, in order of arrival.
    held: VecDeque<Request<W>>,
    /// Writes of moves that wait behind the one in the sweep, in order of arrival, and the place of
    /// that one.
    line: VecDeque<Request<W>>,
    first: Option<Place>,
    /// The places of writes in flight.
    in_flight: Vec<ByteRange>,
    batch: Batch,
    /// Runs of reads that have gone since writes wait and one went.
    overtaken: u32,
    /// The next piece of a request of which one has gone, and whether that is a write.
    owed: Option<(bool, Place)>,
    arrived: u64,
}

impl<W> Elevator<W> {
    pub fn new() -> Elevator<W> {
        Elevator {
            reads: Sweep::new(),
            writes: Sweep::new(),
            again: VecDeque::new(),
            held: VecDeque::new(),
            line: VecDeque::new(),
            first: None,
            in_flight: Vec::new(),
            batch: Batch::default(),
            overtaken: 0,
            owed: None,
            arrived: 0,
        }
    }

    pub fn len(&self) -> usize {
        let sweeps = self.reads.by_place.len() + self.writes.by_place.len();
        sweeps + self.again.len() + self.held.len() + self.line.len()
    }

    /// True if a request may go now. Those that are held go when one in flight has ended.
    pub fn is_ready(&self, may: WriteAllowance) -> bool {
        let in_turn = may.in_turn && (self.is_turn_of_writes() || self.batch.is_turn());
        let writes = !self.writes.is_empty() && (may.beside_reads || in_turn);
        writes || !self.reads.is_empty() || !self.again.is_empty() || self.owes()
    }

    fn is_turn_of_writes(&self) -> bool {
        !self.writes.is_empty() && self.overtaken >= OVERTAKEN
    }

    /// True if a request of several pieces has begun, and is next with the others of them.
    pub fn owes(&self) -> bool {
        self.owed.is_some()
    }

    /// The requests that have waited longest, of each kind.
    pub fn oldest(&self) -> impl Iterator<Item = &Request<W>> {
        self.reads.oldest().into_iter().chain(self.writes.oldest())
    }

    pub fn push(&mut self, request: Request<W>) {
        let place = request.place();
        let earlier = |held: &Request<W>| held.overlaps(place);
        if request.write && (self.conflicts(place) || self.held.iter().any(earlier)) {
            self.held.push_back(request);
        } else {
            self.enter(request);
        }
    }

    fn enter(&mut self, request: Request<W>) {
        let in_line = request.write && request.class == Class::Move;
        if in_line && self.first.is_some() {
            let at = self.line.partition_point(|other| other.since <= request.since);
            self.line.insert(at, request);
            return;
        }
        self.arrived += 1;
        if in_line {
            self.first = Some(Place { offset: request.offset, number: self.arrived });
        }
        let sweep = if request.write { &mut self.writes } else { &mut self.reads };
        sweep.push(self.arrived, request);
    }

    /// Puts a request in front that is in flight: it is asked for again.
    pub fn push_again(&mut self, request: Request<W>) {
        self.again.push_front(request);
    }

    /// True if a write of the same place waits in the sweep or is in flight.
    fn conflicts(&self, place: ByteRange) -> bool {
        self.in_flight.iter().any(|one| one.overlaps(&place))
            || self.writes.overlaps(place)
            || self.line.iter().any(|r| r.overlaps(place))
            || self.again.iter().any(|r| r.write && r.overlaps(place))
    }

    /// Takes what goes next; the pieces of one that has begun go always.
    pub fn take(
        &mut self,
        now: Instant,
        limits: &RunLimits,
        may: WriteAllowance,
    ) -> Option<MergedRequest<W>> {
        let run = match self.again.pop_front() {
            Some(request) => MergedRequest::of(request),
            None => self.sweep_on(now, limits, may)?,
        };
        if run.first().write {
            self.in_flight.push(run.place());
        }
        Some(run)
    }

    /// A write of this place has ended: those that it held may go.
    pub fn write_ended(&mut self, place: ByteRange) {
        if let Some(at) = self.in_flight.iter().position(|one| *one == place) {
            self.in_flight.swap_remove(at);
        }
        while let Some(first) = self.held.front()
            && !self.conflicts(first.place())
            && let Some(first) = self.held.pop_front()
        {
            self.enter(first);
        }
    }

    fn sweep(&mut self, writes: bool) -> &mut Sweep<W> {
        if writes { &mut self.writes } else { &mut self.reads }
    }

    fn sweep_on(
        &mut self,
        now: Instant,
        limits: &RunLimits,
        may: WriteAllowance,
    ) -> Option<MergedRequest<W>> {
        let (writes, place) = match self.owed.take() {
            Some(owed) => owed,
            None => self.next_of_batch(now, may)?,
        };
        let sweep = self.sweep(writes);
        let (run, last) = sweep.take(place, limits)?;
        // The next piece came right after this one.
        let mut next = Place { offset: run.end(), number: last.number + 1 };
        if self.first.is_some_and(|first| !self.writes.by_place.contains_key(&first)) {
            self.first = None;
            if let Some(request) = self.line.pop_front() {
                self.enter(request);
            }
            next = self.first.filter(|first| first.offset == run.end()).unwrap_or(next);
        }
        if run.more() > 0 && self.sweep(writes).by_place.contains_key(&next) {
            self.owed = Some((writes, next));
        }
        Some(run)
    }

    fn next_of_batch(&mut self, now: Instant, may: WriteAllowance) -> Option<(bool, Place)> {
        let goes_on = self.batch.left > 0 && !self.sweep(self.batch.writes).is_empty();
        let stays = match (self.batch.writes, self.batch.turn) {
            (false, _) => true,
            (true, true) if goes_on && !may.in_turn => return None,
            (true, true) => true,
            (true, false) => may.beside_reads && self.reads.is_empty(),
        };
        if !(goes_on && stays) {
            self.begin_batch(now, may);
        }
        let writes = self.batch.writes;
        let place = self.sweep(writes).next()?;
        let may_go = !writes || if self.batch.turn { may.in_turn } else { may.beside_reads };
        may_go.then(|| {
            let overtakes = !writes && !self.writes.is_empty();
            self.overtaken = if overtakes { self.overtaken.saturating_add(1) } else { 0 };
            self.batch.left -= 1;
            (writes, place)
        })
    }

    fn begin_batch(&mut self, now: Instant, may: WriteAllowance) {
        let (reads, writes) = (!self.reads.is_empty(), !self.writes.is_empty());
        let turn = self.is_turn_of_writes() && may.in_turn;
        let of_writes = turn || writes && !reads;
        if !of_writes && !reads {
            // A turn that has nothing left to write is over.
            self.batch = Batch::default();
            return;
        }
        let left = if of_writes { BATCH.1 } else { BATCH.0 };
        self.batch = Batch { writes: of_writes, left, turn };
        let sweep = self.sweep(of_writes);
        if let Some(oldest) = sweep.oldest()
            && now.since(oldest.since) > AGE
        {
            sweep.at = oldest.offset;
        }
    }
}
