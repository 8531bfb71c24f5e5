//! The queue itself: requests gather, wait by the rules of the scheduler, go to the device, end.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{BLOCK, Buf, Duration, Instant, IoError, SliceList, slice_of_list};
use rt::sync::{Event, oneshot};
use rt::{DeviceKind, FileId, Holder, Op, PlaceId, Reason, Rt, WaitCause};
use smallvec::SmallVec;

use crate::given_up::DeviceWaiters;
use crate::limits::{Limits, Targets};
use crate::request::Request;
use crate::scheduler::{Scheduler, Ticket};
use crate::stats::{Class, DeviceStats};
use crate::transfer::{EndedTransfer, Medium};
use crate::work::{ReadDone, ReadEnd, WholeRead, WholeWrite, Work, WriteDone, WriteEnd};

struct Inner {
    medium: Medium,
    /// The name of the device in the stories of requests.
    place: Cell<PlaceId>,
    /// Whom requests wait for, by the class that has most of the device.
    holders: [Holder; Class::ALL.len()],
    kind: DeviceKind,
    /// Larger requests are split.
    largest: usize,
    /// Gathered since the last dispatch.
    plugged: RefCell<Vec<Request<Work>>>,
    scheduler: RefCell<Scheduler<Work>>,
    /// When each flush went to the device that has not ended.
    flushes: RefCell<SmallVec<[Instant; 4]>>,
    /// Discards that the device has.
    discards: Cell<usize>,
    given_up: DeviceWaiters,
    /// Rung when a device that was given up has nothing any more.
    idle: Event,
    kick: Event,
    closed: Cell<bool>,
}

/// A part of what is asked for that fits into one request: all of it, or a piece.
#[derive(Clone, Copy)]
struct RequestPart {
    /// The byte of what is asked for with which it begins.
    at: usize,
    /// The first byte on the device.
    offset: u64,
    len: usize,
    /// The number of pieces that follow.
    more: u32,
}

impl RequestPart {
    fn whole(offset: u64, len: usize) -> RequestPart {
        RequestPart { at: 0, offset, len, more: 0 }
    }
}

/// A handle on a device's queue; clones are the same queue. Which request goes when, the scheduler
/// says (`scheduler.rs`).
#[derive(Clone)]
pub struct Device(
    Rc<Inner>,
    /// The number of times that the device had been given up when the handle was made.
    u64,
);

impl Device {
    /// A queue for `file`; its dispatcher is a task of `rt` that ends with [`Device::close`].
    pub fn new(rt: &Rt, file: FileId, limits: Limits) -> Device {
        let kind = limits.kind.unwrap_or_else(|| rt.kind(file));
        let whole_blocks = (limits.max_request_bytes / BLOCK).max(1) * BLOCK;
        // To copy memory in pieces gains nothing.
        let largest = if kind == DeviceKind::Memory { usize::MAX } else { whole_blocks };
        let medium = Medium { rt: rt.clone(), file, max_request_bytes: limits.max_request_bytes };
        let inner = Inner {
            medium,
            place: Cell::new(PlaceId::NONE),
            holders: Class::ALL.map(|class| match class {
                Class::Foreground => Holder::of(Holder::OTHER_REQUESTS),
                _ => Holder::of(class.name()),
            }),
            kind,
            largest,
            plugged: RefCell::new(Vec::new()),
            scheduler: RefCell::new(Scheduler::new(limits, kind)),
            flushes: RefCell::default(),
            discards: Cell::new(0),
            given_up: DeviceWaiters::default(),
            idle: Event::new(),
            kick: Event::new(),
            closed: Cell::new(false),
        };
        let device = Device(Rc::new(inner), 0);
        let d = device.clone();
        rt.detach(async move { d.unplug().await });
        device
    }

    /// The file of the device at the seam.
    pub fn file(&self) -> FileId {
        self.0.medium.file
    }

    /// Sets the name of the device that is shown where the time of requests is explained.
    pub fn set_name(&self, name: &str) {
        self.0.place.set(self.0.medium.rt.ledger().place(name));
    }

    /// The reason for which a request waits here, with the class that has most of the device. A
    /// flush moves no bytes: it is named if nothing else is in flight.
    pub(crate) fn waits_for(&self, reason: Reason) -> WaitCause {
        let holder = match self.0.scheduler.borrow().busiest() {
            Some(class) => self.holder(class),
            None if self.0.flushes.borrow().is_empty() => Holder::NONE,
            None => Holder::of(Holder::DEVICE_FLUSH),
        };
        WaitCause { reason, place: self.0.place.get(), holder }
    }

    /// Whom requests wait for that wait for this class.
    pub(crate) fn holder(&self, class: Class) -> Holder {
        self.0.holders[class.index()]
    }

    /// Ends the dispatcher. Requests made afterwards never complete.
    pub fn close(&self) {
        self.0.closed.set(true);
        self.0.kick.notify();
    }

    /// Everything that it has, or that waits for it, fails at once as gone, and so does what is
    /// asked later by any handle that there is now. It may hang; what it has may still take effect,
    /// and what it has not is never sent.
    pub fn give_up(&self) {
        self.0.given_up.begin();
        self.dispatch();
    }

    /// True if it was given up and still has requests from before.
    pub fn is_given_up(&self) -> bool {
        self.0.given_up.still()
    }

    /// A handle by which a device that was given up is asked again, once it has nothing any more.
    pub fn anew(&self) -> Device {
        Device(self.0.clone(), self.0.given_up.times())
    }

    /// True if this handle sends nothing: the device has been given up since it was made, or still
    /// has requests from before.
    fn has_ended(&self) -> bool {
        self.0.given_up.times() != self.1 || self.is_given_up()
    }

    /// Waits until a device that was given up has nothing any more. From then on it can be used
    /// again, by a handle that is [made anew](Device::anew).
    pub async fn until_idle(&self) {
        while self.is_given_up() {
            self.0.idle.wait().await;
        }
    }

    fn see_if_idle(&self) {
        let others = self.0.flushes.borrow().len() + self.0.discards.get();
        if self.is_given_up() && self.load() + others == 0 {
            self.0.given_up.end();
            self.0.idle.notify();
        }
    }

    /// The kind of the device.
    pub fn kind(&self) -> DeviceKind {
        self.0.kind
    }

    /// Requests waiting and in flight: how busy the device is.
    pub fn load(&self) -> usize {
        let scheduler = self.0.scheduler.borrow();
        scheduler.in_flight() + scheduler.waiting() + self.0.plugged.borrow().len()
    }

    /// A copy of the counters.
    pub fn stats(&self) -> DeviceStats {
        let (scheduler, flushes) = (self.0.scheduler.borrow(), self.0.flushes.borrow());
        let oldest = scheduler.oldest().into_iter().chain(flushes.iter().copied()).min();
        let seen = self.0.medium.rt.moment().before().now;
        let silent = oldest.map_or(Duration::ZERO, |began| seen.since(began));
        DeviceStats { silent, ..scheduler.stats() }
    }

    /// Whether what the background does here has time, or clients will need it soon: see
    /// `share.rs`. At first it has none.
    pub fn set_background_patient(&self, patient: bool) {
        let faster = self.0.scheduler.borrow_mut().set_background_patient(patient);
        if faster {
            self.dispatch();
        }
    }

    /// From now on foreground requests should take so long at most.
    pub fn set_targets(&self, targets: Targets) {
        self.0.scheduler.borrow_mut().set_targets(targets);
    }

    /// Fills `buf` from `offset`; gives it back with the outcome. After an error its content is
    /// unspecified.
    pub async fn read(&self, class: Class, offset: u64, buf: Buf) -> ReadEnd {
        let len = buf.len();
        self.read_with(class, offset, len, Some(buf)).await
    }

    /// As [`Device::read`], into a buffer of `len` bytes that is taken when the device is asked, so
    /// that what has to wait holds no memory.
    pub async fn read_new(&self, class: Class, offset: u64, len: usize) -> ReadEnd {
        self.read_with(class, offset, len, None).await
    }

    async fn read_with(&self, class: Class, offset: u64, len: usize, buf: Option<Buf>) -> ReadEnd {
        if self.has_ended() {
            return (Err(IoError::GONE), buf.unwrap_or_else(|| self.0.medium.rt.bufs().take(len)));
        }
        let end = if len <= self.0.largest {
            let (done, end) = oneshot();
            self.plug_read(class, RequestPart::whole(offset, len), buf, ReadDone::One(done));
            end
        } else {
            let pieces = len.div_ceil(self.0.largest);
            let (whole, end) = WholeRead::new(self.0.medium.rt.bufs(), len, pieces, buf);
            for part in self.pieces(offset, len) {
                self.plug_read(class, part, None, ReadDone::Piece(whole.clone(), part.at));
            }
            end
        };
        // The device has the buffer until it answers.
        let gone = || (Err(IoError::GONE), self.0.medium.rt.bufs().take(len));
        self.0.given_up.or(end).await.unwrap_or_else(gone)
    }

    /// Writes `data`, in order, from `offset` on.
    pub async fn write(&self, class: Class, offset: u64, data: SliceList) -> WriteEnd {
        self.write_with(class, offset, data, false).await
    }

    /// As [`Device::write`], and durable when it returns.
    pub async fn write_durable(&self, class: Class, offset: u64, data: SliceList) -> WriteEnd {
        self.write_with(class, offset, data, true).await
    }

    async fn write_with(
        &self,
        class: Class,
        offset: u64,
        data: SliceList,
        durable: bool,
    ) -> WriteEnd {
        if self.has_ended() {
            return Err(IoError::GONE);
        }
        let len = data.iter().map(|s| s.len()).sum();
        let end = if len <= self.0.largest {
            let (done, end) = oneshot();
            let part = RequestPart::whole(offset, len);
            self.plug_write(class, durable, part, data, WriteDone::One(done));
            end
        } else {
            let (whole, end) = WholeWrite::new(len.div_ceil(self.0.largest));
            for part in self.pieces(offset, len) {
                let piece = slice_of_list(&data, part.at, part.len);
                self.plug_write(class, durable, part, piece, WriteDone::Piece(whole.clone()));
            }
            end
        };
        self.0.given_up.or(end).await.unwrap_or(Err(IoError::GONE))
    }

    /// The pieces of a request.
    fn pieces(&self, offset: u64, len: usize) -> impl Iterator<Item = RequestPart> + use<> {
        let largest = self.0.largest;
        (0..len).step_by(largest).map(move |at| {
            let left = len - at;
            let more = left.div_ceil(largest) as u32 - 1;
            RequestPart { at, offset: offset + at as u64, len: left.min(largest), more }
        })
    }

    /// Makes every write that has completed durable.
    pub async fn flush(&self, class: Class) -> Result<(), IoError> {
        if self.has_ended() {
            return Err(IoError::GONE);
        }
        let (device, since) = (self.clone(), self.0.medium.rt.now());
        let what = self.waits_for(Reason::DeviceFlush);
        self.0.flushes.borrow_mut().push(since);
        let (done, end) = oneshot();
        self.0.medium.rt.submit(Op::Flush { file: self.0.medium.file }, move |c| {
            device.flushed(class, since);
            done.send(c.result.map(|_| ()));
        });
        let end = self.0.medium.rt.waits(what, self.0.given_up.or(end)).await;
        end.unwrap_or(Err(IoError::GONE))
    }

    fn flushed(&self, class: Class, since: Instant) {
        {
            let mut flushes = self.0.flushes.borrow_mut();
            // Of several that began together it does not matter which is this one.
            if let Some(at) = flushes.iter().position(|began| *began == since) {
                flushes.swap_remove(at);
            }
        }
        let took = self.0.medium.rt.now().since(since);
        self.0.scheduler.borrow_mut().stats_mut().of_mut(class).flush.record(0, took);
        self.see_if_idle();
    }

    /// Gives up what `[offset, offset + len)` holds. Advice: `Unsupported` is no failure of the
    /// device.
    pub async fn discard(&self, offset: u64, len: u64) -> Result<(), IoError> {
        if self.has_ended() {
            return Err(IoError::GONE);
        }
        let (device, op) = (self.clone(), Op::Discard { file: self.0.medium.file, offset, len });
        let (done, end) = oneshot();
        self.0.discards.set(self.0.discards.get() + 1);
        self.0.medium.rt.submit(op, move |c| {
            device.0.discards.set(device.0.discards.get() - 1);
            device.see_if_idle();
            done.send(c.result.map(|_| ()));
        });
        self.0.given_up.or(end).await.unwrap_or(Err(IoError::GONE))
    }

    fn plug_read(&self, class: Class, part: RequestPart, buf: Option<Buf>, done: ReadDone) {
        let RequestPart { offset, len, more, .. } = part;
        let since = self.0.medium.rt.now();
        let told = self.0.medium.rt.tell(self.waits_for(Reason::DeviceQueue));
        let work = Work::Read { buf, told, done };
        self.plug(Request {
            class,
            write: false,
            durable: false,
            offset,
            len,
            segments: 1,
            since,
            alone: false,
            more,
            work,
        });
    }

    fn plug_write(
        &self,
        class: Class,
        durable: bool,
        part: RequestPart,
        data: SliceList,
        done: WriteDone,
    ) {
        let RequestPart { offset, len, more, .. } = part;
        let since = self.0.medium.rt.now();
        let segments = data.len();
        let told = self.0.medium.rt.tell(self.waits_for(Reason::DeviceQueue));
        let work = Work::Write { data, told, done };
        self.plug(Request {
            class,
            write: true,
            durable,
            offset,
            len,
            segments,
            since,
            alone: false,
            more,
            work,
        });
    }

    fn plug(&self, request: Request<Work>) {
        let mut plugged = self.0.plugged.borrow_mut();
        plugged.push(request);
        if plugged.len() == 1 {
            self.0.kick.notify();
        }
    }

    /// The dispatcher: lets requests gather until the executor settles, then hands them on, sorted.
    async fn unplug(self) {
        loop {
            let kicked = self.0.kick.wait();
            if self.0.closed.get() {
                return;
            }
            if self.0.plugged.borrow().is_empty() {
                kicked.await;
                continue;
            }
            self.0.medium.rt.settled().await;
            let mut batch = std::mem::take(&mut *self.0.plugged.borrow_mut());
            if batch.len() > 1 {
                // Stable: overlapping writes of one batch are concurrent, but their order stays.
                batch.sort_by_key(|r| r.offset);
            }
            {
                let mut scheduler = self.0.scheduler.borrow_mut();
                batch.into_iter().for_each(|request| scheduler.add(request));
            }
            self.dispatch();
        }
    }

    /// Starts what may go.
    fn dispatch(&self) {
        loop {
            // Taken before the request begins: the device is busy with the requests of this class.
            let what = self.waits_for(Reason::Transfer);
            let next = self.0.scheduler.borrow_mut().next(self.0.medium.rt.now());
            let Some((ticket, run)) = next else {
                // Requests that were dropped may have been the last that the device had.
                return self.see_if_idle();
            };
            if self.is_given_up() {
                // No task waits for it any more, and it is never sent.
                drop(run);
                self.0.scheduler.borrow_mut().end(self.0.medium.rt.now(), ticket);
                continue;
            }
            let device = self.clone();
            self.0.medium.start(run, what, move |ended| device.ended(ticket, ended));
        }
    }

    fn ended(&self, ticket: Ticket, ended: EndedTransfer) {
        let now = self.0.medium.rt.now();
        let waiting = {
            let mut scheduler = self.0.scheduler.borrow_mut();
            if ended.is_to_be_split() && !self.is_given_up() {
                ended.split().into_iter().rev().for_each(|request| scheduler.add_again(request));
            } else {
                for request in ended.requests() {
                    let counters = scheduler.stats_mut().of_mut(request.class);
                    let kind = if request.write { &mut counters.write } else { &mut counters.read };
                    kind.record(request.len as u64, now.since(request.since));
                }
                let class = ended.requests().next().map(|request| request.class);
                let bytes = ended.requests().map(|request| request.len as u64).sum();
                let holder = class.map_or(Holder::NONE, |class| self.holder(class));
                self.0.medium.rt.ledger().moved(self.0.place.get(), holder, bytes, now);
                ended.tell();
            }
            scheduler.end(now, ticket);
            scheduler.waiting() > 0
        };
        if waiting {
            self.dispatch();
        }
        self.see_if_idle();
    }
}
