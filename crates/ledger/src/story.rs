//! The story of one request, or of a job that requests wait for.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{Duration, Instant, VolumeId};
use smallvec::SmallVec;

use model::wait::{Layer, Reason, RequestClass};

use crate::advice::{advice, is_of_devices};
use crate::counted::{CountedRequest, Operation, RequestCounter};
use crate::holder::Holder;
use crate::open::Slot;

/// A device, or another place that has a name; see [`crate::Ledger::place`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct PlaceId(pub(crate) u16);

impl PlaceId {
    /// No place in particular.
    pub const NONE: PlaceId = PlaceId(0);
}

/// A wait of a request: its reason, its place and its holder.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct WaitCause {
    /// The reason for the wait.
    pub reason: Reason,
    /// The device, if the request waits on one.
    pub place: PlaceId,
    /// The work that keeps the request waiting, if that is known.
    pub holder: Holder,
}

impl From<Reason> for WaitCause {
    fn from(reason: Reason) -> WaitCause {
        WaitCause { reason, place: PlaceId::NONE, holder: Holder::NONE }
    }
}

/// The cause of a part of a request's time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Cause {
    /// The reason for which the request itself waited.
    pub stage: Reason,
    /// The wait that this came down to; the same, or what the awaited work waited for.
    pub what: WaitCause,
}

impl Cause {
    /// Advice on what to do about the cause, at a place of this name; empty if there is nothing to
    /// say.
    ///
    /// If work of the cache or the pool kept a device busy, there should be less of that work.
    /// Slower write-back, say, gives writers no room.
    pub fn advice(&self, place: &str) -> &'static str {
        let WaitCause { reason, holder, .. } = self.what;
        let (inner, stage) = (advice(reason, holder, place), advice(self.stage, holder, place));
        match self.stage {
            _ if self.stage == reason || !is_of_devices(reason) => inner,
            // Waits for the journal and for commits come down to the device, and to what else it
            // did.
            Reason::Journal | Reason::Commit if !inner.is_empty() => inner,
            _ if !stage.is_empty() && matches!(self.stage.layer(), Layer::Cache | Layer::Pool) => {
                stage
            }
            _ => inner,
        }
    }
}

/// A part of a request's time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The cause of the part.
    pub cause: Cause,
    /// The time, in nanoseconds.
    pub ns: u64,
}

/// The time that the runtime's thread did not run, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct AwayTimes([Duration; REASONS_AWAY.len()]);

/// Why the runtime's thread may not run.
const REASONS_AWAY: [Reason; 2] = [Reason::NotRunning, Reason::NoProcessor];

impl AwayTimes {
    /// A time away for this reason; nothing if the thread runs in spite of it.
    pub fn of(reason: Reason, time: Duration) -> AwayTimes {
        AwayTimes(REASONS_AWAY.map(|why| if why == reason { time } else { Duration::ZERO }))
    }

    /// The sum of both.
    pub fn and(self, more: AwayTimes) -> AwayTimes {
        AwayTimes(std::array::from_fn(|why| self.0[why] + more.0[why]))
    }

    /// The time that was not yet in `before`.
    pub fn since(self, before: AwayTimes) -> AwayTimes {
        AwayTimes(std::array::from_fn(|why| self.0[why].saturating_sub(before.0[why])))
    }

    fn parts(self) -> impl Iterator<Item = (Reason, u64)> {
        REASONS_AWAY.into_iter().zip(self.0.map(|time| time.as_nanos() as u64))
    }
}

/// A point in time as the runtime sees it.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The time.
    pub now: Instant,
    /// For so long before it the runtime could not look at what had happened.
    pub late: Duration,
    /// Why it could not.
    pub reason: Reason,
    /// The job that the thread was busy with.
    pub holder: Holder,
    /// The time that the thread did not run, in all: a story that spans such a time takes it from
    /// what it waited for, whenever that is seen to be over.
    pub away: AwayTimes,
}

impl Moment {
    /// A time up to which the runtime saw everything as it happened.
    pub fn at(now: Instant) -> Moment {
        let (late, away) = (Duration::ZERO, AwayTimes::default());
        Moment { now, late, reason: Reason::Engine, holder: Holder::NONE, away }
    }

    /// The beginning of the time before it in which the runtime could not look.
    pub fn before(self) -> Moment {
        let now = Instant(self.now.0.saturating_sub(self.late.as_nanos() as u64));
        let away = self.away.since(AwayTimes::of(self.reason, self.late));
        Moment { away, ..Moment::at(now) }
    }
}

/// Names a wait that was entered.
#[derive(Debug)]
#[must_use = "a wait has to be left"]
pub struct Token(Cell<u32>);

const _: () = assert!(size_of::<WaitCause>() == 4 && size_of::<Part>() == 16);

/// Adds time to the part of this cause.
pub(crate) fn add(parts: &mut SmallVec<[Part; 6]>, cause: Cause, ns: u64) {
    if ns == 0 {
        return;
    }
    match parts.iter_mut().find(|p| p.cause == cause) {
        Some(part) => part.ns += ns,
        None => parts.push(Part { cause, ns }),
    }
}

/// The longest first.
fn sort(parts: &mut SmallVec<[Part; 6]>) {
    if parts.len() > 1 {
        parts.sort_unstable_by_key(|p| (std::cmp::Reverse(p.ns), p.cause));
    }
}

/// Waits of a story that have a place of their own: the tasks of a pass wait for hundreds of
/// transfers side by side, and these are all of the same few devices. Those beyond share the place
/// of one that waits for the same.
const MOST_WAITS: usize = 16;

/// A wait for a job: what of the job's time was seen already, by the number of the part. A job's
/// parts only grow, and new ones come last.
struct JobWait {
    job: Story,
    seen: SmallVec<[u64; 12]>,
}

struct Wait {
    token: u32,
    /// The number of times that this wait is entered.
    count: u32,
    what: WaitCause,
    job: Option<Box<JobWait>>,
}

struct State {
    /// Up to here time has been told.
    told: Instant,
    /// Of the time in which the thread did not run, so much was before that.
    away: AwayTimes,
    ended: bool,
    waits: SmallVec<[Wait; 4]>,
    parts: SmallVec<[Part; 6]>,
}

struct Inner {
    kind: RequestClass,
    began: Instant,
    offset: u64,
    len: u64,
    volume: Cell<Option<VolumeId>>,
    /// The name of the job, if this is one.
    job: Option<Holder>,
    /// The operation that the request is counted as when it has ended; `None`: nothing was done.
    counted: RefCell<Option<CountedRequest>>,
    /// The place of the story among requests that are under way.
    slot: Cell<Slot>,
    tokens: Cell<u32>,
    state: RefCell<State>,
}

/// The story of a request, or of a job; clones are the same one.
#[derive(Clone)]
pub struct Story(Rc<Inner>);

impl Story {
    fn new(job: Option<Holder>, kind: RequestClass, offset: u64, len: u64, at: Moment) -> Story {
        let state = State {
            told: at.now,
            away: at.away,
            ended: false,
            waits: SmallVec::new(),
            parts: SmallVec::new(),
        };
        Story(Rc::new(Inner {
            kind,
            began: at.now,
            offset,
            len,
            volume: Cell::new(None),
            job,
            counted: RefCell::new(None),
            slot: Cell::new(Slot::NONE),
            tokens: Cell::new(0),
            state: RefCell::new(state),
        }))
    }

    /// The story of a request for `len` bytes from `offset` on, which has just arrived. The ledger
    /// makes it ([`crate::Ledger::begin`]), so that it knows what is under way.
    pub(crate) fn of_request(kind: RequestClass, offset: u64, len: u64, at: Moment) -> Story {
        Story::new(None, kind, offset, len, at)
    }

    /// The story of a job, which has not worked yet.
    pub fn of_job(name: &'static str, at: Moment) -> Story {
        Story::new(Some(Holder::of(name)), RequestClass::Other, 0, 0, at)
    }

    /// The kind of the request.
    pub fn kind(&self) -> RequestClass {
        self.0.kind
    }

    /// The range of the volume in bytes: offset and length.
    pub fn range(&self) -> (u64, u64) {
        (self.0.offset, self.0.len)
    }

    /// The volume, if it was said.
    pub fn volume(&self) -> Option<VolumeId> {
        self.0.volume.get()
    }

    /// Says which volume it is about.
    pub fn set_volume(&self, volume: VolumeId) {
        self.0.volume.set(Some(volume));
    }

    /// Notes that so many bytes of the request were done. This counter counts the request when it
    /// has ended, as the first operation that was done of it: a write that also flushes is a write.
    pub fn count_as(&self, counter: &Rc<dyn RequestCounter>, operation: Operation, bytes: u64) {
        match &mut *self.0.counted.borrow_mut() {
            Some(begun) => begun.add(bytes),
            none => *none = Some(CountedRequest::begun(counter.clone(), operation, bytes)),
        }
    }

    /// The operation that the request is to be counted as, once.
    pub(crate) fn take_counted(&self) -> Option<CountedRequest> {
        self.0.counted.take()
    }

    /// Sets the place of the story among requests that are under way, and returns the one before.
    pub(crate) fn set_slot(&self, slot: Slot) -> Slot {
        self.0.slot.replace(slot)
    }

    /// When it began, and its parts up to now, the longest first; `None` while it is being told.
    pub(crate) fn so_far(&self, moment: Moment) -> Option<(Instant, SmallVec<[Part; 6]>)> {
        let mut parts = self.with_parts(moment, SmallVec::from_slice)?;
        sort(&mut parts);
        Some((self.began(), parts))
    }

    /// When it began.
    pub(crate) fn began(&self) -> Instant {
        self.0.began
    }

    /// The job as a holder, if this is one.
    pub fn job(&self) -> Option<Holder> {
        self.0.job
    }

    /// The name of the job, if this is one.
    pub fn job_name(&self) -> Option<&'static str> {
        self.0.job.map(Holder::name)
    }

    /// The number of waits that are entered.
    pub fn depth(&self) -> usize {
        self.0.state.try_borrow().map_or(0, |state| state.waits.len())
    }

    /// From now on it waits for this, until the token is given back.
    pub fn enter(&self, what: WaitCause, moment: Moment) -> Token {
        self.insert(usize::MAX, what, None, moment)
    }

    /// As [`Story::enter`], inside of the first `depth` waits only, and outside of the others:
    /// these were entered since, on the way of this one, at the same moment.
    pub fn enter_at(&self, depth: usize, what: WaitCause, moment: Moment) -> Token {
        self.insert(depth, what, None, moment)
    }

    /// From now on it waits for what a job does.
    pub fn enter_job(&self, reason: Reason, job: &Story, moment: Moment) -> Token {
        self.enter_job_at(usize::MAX, reason, job, moment)
    }

    /// As [`Story::enter_job`], where [`Story::enter_at`] says.
    pub fn enter_job_at(&self, depth: usize, reason: Reason, job: &Story, moment: Moment) -> Token {
        let holder = job.job().unwrap_or_default();
        let seen = job.with_parts(moment, |parts| parts.iter().map(|p| p.ns).collect());
        let seen = seen.unwrap_or_default();
        let wait = Box::new(JobWait { job: job.clone(), seen });
        self.insert(depth, WaitCause { holder, ..WaitCause::from(reason) }, Some(wait), moment)
    }

    fn insert(
        &self,
        depth: usize,
        what: WaitCause,
        job: Option<Box<JobWait>>,
        moment: Moment,
    ) -> Token {
        let token = self.next_token();
        let Ok(mut state) = self.0.state.try_borrow_mut() else { return Token(Cell::new(token)) };
        if state.ended {
            return Token(Cell::new(token));
        }
        self.tell(&mut state, moment);
        if state.waits.len() >= MOST_WAITS
            && let Some(same) = state.waits.iter_mut().rfind(|w| w.what == what)
        {
            same.count += 1;
            return Token(Cell::new(same.token));
        }
        let depth = depth.min(state.waits.len());
        state.waits.insert(depth, Wait { token, count: 1, what, job });
        Token(Cell::new(token))
    }

    fn next_token(&self) -> u32 {
        let token = self.0.tokens.get().wrapping_add(1);
        self.0.tokens.set(token);
        token
    }

    /// A wait is over.
    pub fn leave(&self, token: Token, moment: Moment) {
        let Ok(mut state) = self.0.state.try_borrow_mut() else { return };
        let Some(place) = state.waits.iter().rposition(|w| w.token == token.0.get()) else {
            return;
        };
        self.tell(&mut state, moment);
        match &mut state.waits[place].count {
            1 => drop(state.waits.remove(place)),
            count => *count -= 1,
        }
    }

    /// A wait turns into another one, in its place.
    pub fn turn(&self, token: &Token, what: WaitCause, moment: Moment) {
        let Ok(mut state) = self.0.state.try_borrow_mut() else { return };
        let Some(place) = state.waits.iter().rposition(|w| w.token == token.0.get()) else {
            return;
        };
        self.tell(&mut state, moment);
        let one = &mut state.waits[place];
        if one.count == 1 {
            one.what = what;
            return;
        }
        // The others go on to wait for what they did.
        one.count -= 1;
        token.0.set(match state.waits.iter_mut().rfind(|w| w.what == what) {
            Some(same) => {
                same.count += 1;
                same.token
            }
            None => {
                let new = self.next_token();
                state.waits.insert(place + 1, Wait { token: new, count: 1, what, job: None });
                new
            }
        });
    }

    /// Tells the time that went by since it was told last.
    fn tell(&self, state: &mut State, moment: Moment) {
        let passed = moment.now.since(state.told).as_nanos() as u64;
        if passed == 0 {
            return;
        }
        state.told = moment.now;
        let away = moment.away.since(state.away);
        state.away = moment.away;
        let State { waits, parts, .. } = state;
        let outermost = waits.first().map(|w| w.what.reason);
        let mut rest = passed;
        if let Some(Wait { what, job: Some(wait), .. }) = waits.last_mut() {
            let stage = outermost.unwrap_or(what.reason);
            // The job's own time tells what it waited for; where it waited for nothing, it worked.
            let JobWait { job, seen } = &mut **wait;
            job.with_parts(moment, |now| {
                seen.resize(now.len(), 0);
                for (part, before) in now.iter().zip(seen.iter_mut()) {
                    let ns = (part.ns - *before).min(rest);
                    *before = part.ns;
                    let own = part.cause.what.reason == Reason::Turn;
                    let what = if own { *what } else { part.cause.what };
                    add(parts, Cause { stage, what }, ns);
                    rest -= ns;
                }
            });
            add(parts, Cause { stage, what: *what }, rest);
            return;
        }
        for (why, time) in away.parts() {
            let time = time.min(rest);
            add(parts, Cause { stage: why, what: WaitCause::from(why) }, time);
            rest -= time;
        }
        if moment.reason == Reason::Engine {
            let late = (moment.late.as_nanos() as u64).min(rest);
            let what = WaitCause { holder: moment.holder, ..WaitCause::from(moment.reason) };
            add(parts, Cause { stage: moment.reason, what }, late);
            rest -= late;
        }
        let what = waits.last().map_or(WaitCause::from(Reason::Turn), |w| w.what);
        add(parts, Cause { stage: outermost.unwrap_or(what.reason), what }, rest);
    }

    /// Looks at its parts up to now; `None` while it is being told.
    fn with_parts<T>(&self, moment: Moment, look: impl FnOnce(&[Part]) -> T) -> Option<T> {
        let mut state = self.0.state.try_borrow_mut().ok()?;
        if !state.ended {
            self.tell(&mut state, moment);
        }
        Some(look(&state.parts))
    }

    /// Ends the story. Returns when it began and its parts, the longest first; they add up to the
    /// time from then to now. What is entered and left afterwards is not told.
    pub fn end(&self, moment: Moment) -> (Instant, SmallVec<[Part; 6]>) {
        let mut state = self.0.state.borrow_mut();
        if !state.ended {
            self.tell(&mut state, moment);
        }
        state.ended = true;
        state.waits.clear();
        let mut parts = std::mem::take(&mut state.parts);
        sort(&mut parts);
        (self.0.began, parts)
    }
}
