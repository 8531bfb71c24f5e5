//! The queue itself: the list of what waits, the dispatcher, completion.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use base::{Buf, BufList, Instant, IoError, SliceList};
use rt::sync::{Event, OneShotSender, oneshot};
use rt::{Completion, FileId, Op, Payload, PlaceId, Reason, Rt, Told, What};
use smallvec::SmallVec;

use crate::limits::Limits;
use crate::pieces::{scatter, tail};
use crate::share::Share;
use crate::stats::{Class, DeviceStats};

/// Of a file in memory, requests are merged up to so many bytes, and so many bytes are copied
/// before what was copied is used: more would push it out of the processor's cache again.
const MEMORY_REQUEST_BYTES: usize = 128 << 10;
const MEMORY_BYTES: usize = 256 << 10;

/// Short transfers in a row that do not finish a single block, before it is an error.
const MAX_STALLS: u32 = 16;

enum Work {
    /// Without a buffer, one is taken when the request starts.
    Read {
        buf: Option<Buf>,
        done: OneShotSender<(Result<(), IoError>, Buf)>,
    },
    Write {
        data: SliceList,
        fua: bool,
        done: OneShotSender<Result<(), IoError>>,
    },
}

struct Request {
    class: Class,
    offset: u64,
    len: usize,
    since: Instant,
    work: Work,
    told: Told,
    /// It was part of a request that failed: it is asked for by itself.
    alone: bool,
}

impl Request {
    fn segments(&self) -> usize {
        match &self.work {
            Work::Read { .. } => 1,
            Work::Write { data, .. } => data.len(),
        }
    }

    fn joins(&self, next: &Request) -> bool {
        let same_kind = match (&self.work, &next.work) {
            (Work::Read { .. }, Work::Read { .. }) => true,
            (Work::Write { fua: a, .. }, Work::Write { fua: b, .. }) => a == b,
            _ => false,
        };
        let free = !self.alone && !next.alone;
        free && same_kind
            && self.class == next.class
            && self.offset + self.len as u64 == next.offset
    }
}

struct Inner {
    rt: Rt,
    file: FileId,
    limits: Limits,
    /// Bytes in flight from which on no further request starts.
    max_bytes: usize,
    /// Gathered since the last dispatch.
    plugged: RefCell<Vec<Request>>,
    /// Sorted and waiting for room: what somebody waits for, and what is done in the background.
    waiting: RefCell<Waiting>,
    /// What of the device the background may take.
    share: Cell<Share>,
    in_flight: Cell<usize>,
    bytes_in_flight: Cell<usize>,
    by_class: Cell<[usize; 5]>,
    place: Cell<PlaceId>,
    kick: Event,
    stats: RefCell<DeviceStats>,
    closed: Cell<bool>,
}

#[derive(Default)]
struct Waiting {
    urgent: VecDeque<Request>,
    background: VecDeque<Request>,
}

impl Waiting {
    fn len(&self) -> usize {
        self.urgent.len() + self.background.len()
    }

    fn of(&mut self, class: Class) -> &mut VecDeque<Request> {
        if class.is_background() { &mut self.background } else { &mut self.urgent }
    }
}

/// A handle on a device's queue; clones are the same queue.
///
/// What somebody waits for goes first, in order of arrival. Classes that no client waits for get
/// the whole device when it is quiet, and a small share of it, which they always get, when it is
/// not ([`crate::share`]).
#[derive(Clone)]
pub struct Device(Rc<Inner>);

impl Device {
    /// A queue for `file`; its dispatcher is a task of `rt` that ends with [`Device::close`].
    pub fn new(rt: &Rt, file: FileId, mut limits: Limits) -> Device {
        assert!(limits.depth > 0 && limits.max_segments > 0);
        let mut max_bytes = usize::MAX;
        if rt.in_memory(file) {
            max_bytes = MEMORY_BYTES;
            limits.max_request_bytes = limits.max_request_bytes.min(MEMORY_REQUEST_BYTES);
        }
        let device = Device(Rc::new(Inner {
            rt: rt.clone(),
            file,
            limits,
            max_bytes,
            plugged: RefCell::new(Vec::new()),
            waiting: RefCell::new(Waiting::default()),
            share: Cell::new(Share::default()),
            in_flight: Cell::new(0),
            bytes_in_flight: Cell::new(0),
            by_class: Cell::new([0; 5]),
            place: Cell::new(PlaceId::NONE),
            kick: Event::new(),
            stats: RefCell::new(DeviceStats::default()),
            closed: Cell::new(false),
        }));
        let d = device.clone();
        rt.detach(async move { d.unplug().await });
        device
    }

    /// What the device is called where the time of requests is explained.
    pub fn set_name(&self, name: &str) {
        self.0.place.set(self.0.rt.ledger().place(name));
    }

    /// What a request waits for here, and the class that has the most of the device.
    fn waits_for(&self, reason: Reason) -> What {
        let by_class = self.0.by_class.get();
        let most = Class::ALL.into_iter().max_by_key(|c| by_class[*c as usize]);
        let holder = match most.filter(|c| by_class[*c as usize] > 0) {
            Some(Class::Foreground) => "other requests",
            busiest => busiest.map_or("", Class::name),
        };
        What { reason, place: self.0.place.get(), holder }
    }

    fn change_bytes(&self, class: Class, change: impl FnOnce(usize) -> usize) {
        let mut by_class = self.0.by_class.get();
        by_class[class as usize] = change(by_class[class as usize]);
        self.0.by_class.set(by_class);
    }

    /// Ends the dispatcher. Requests made afterwards never complete.
    pub fn close(&self) {
        self.0.closed.set(true);
        self.0.kick.notify();
    }

    /// Requests waiting and in flight: how busy the device is.
    pub fn load(&self) -> usize {
        self.0.in_flight.get() + self.0.waiting.borrow().len() + self.0.plugged.borrow().len()
    }

    /// A copy of the counters.
    pub fn stats(&self) -> DeviceStats {
        self.0.stats.borrow().clone()
    }

    /// Fills `buf` from `offset`; gives it back with the outcome. After an error its content is
    /// unspecified.
    pub async fn read(&self, class: Class, offset: u64, buf: Buf) -> (Result<(), IoError>, Buf) {
        let len = buf.len();
        self.read_with(class, offset, len, Some(buf)).await
    }

    /// As [`Device::read`], into a buffer of `len` bytes that is taken when the device is asked, so
    /// that what has to wait holds no memory.
    pub async fn read_new(
        &self,
        class: Class,
        offset: u64,
        len: usize,
    ) -> (Result<(), IoError>, Buf) {
        self.read_with(class, offset, len, None).await
    }

    async fn read_with(
        &self,
        class: Class,
        offset: u64,
        len: usize,
        buf: Option<Buf>,
    ) -> (Result<(), IoError>, Buf) {
        let (done, rx) = oneshot();
        let work = Work::Read { buf, done };
        self.plug(class, (offset, len), work);
        match rx.await {
            Some(outcome) => outcome,
            None => std::future::pending().await,
        }
    }

    /// Writes `data`, in order, from `offset` on.
    pub async fn write(&self, class: Class, offset: u64, data: SliceList) -> Result<(), IoError> {
        self.write_with(class, offset, data, false).await
    }

    /// As [`Device::write`], and durable when it returns.
    pub async fn write_durable(
        &self,
        class: Class,
        offset: u64,
        data: SliceList,
    ) -> Result<(), IoError> {
        self.write_with(class, offset, data, true).await
    }

    async fn write_with(
        &self,
        class: Class,
        offset: u64,
        data: SliceList,
        fua: bool,
    ) -> Result<(), IoError> {
        let (done, rx) = oneshot();
        let len = data.iter().map(|s| s.len()).sum();
        let work = Work::Write { data, fua, done };
        self.plug(class, (offset, len), work);
        match rx.await {
            Some(outcome) => outcome,
            None => std::future::pending().await,
        }
    }

    /// Makes every write that has completed durable.
    pub async fn flush(&self, class: Class) -> Result<(), IoError> {
        let since = self.0.rt.now();
        let flush = self.0.rt.op(Op::Flush { file: self.0.file });
        let what = self.waits_for(Reason::DeviceFlush);
        let c = self.0.rt.waits(what, flush).await;
        let took = self.0.rt.now().since(since);
        self.0.stats.borrow_mut().of(class).flush.record(0, took);
        c.result.map(|_| ())
    }

    /// Gives up what `[offset, offset + len)` holds. Advice: `Unsupported` is no failure of the
    /// device.
    pub async fn discard(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.0.rt.op(Op::Discard { file: self.0.file, offset, len }).await.result.map(|_| ())
    }

    fn plug(&self, class: Class, (offset, len): (u64, usize), work: Work) {
        let told = self.0.rt.tell(self.waits_for(Reason::DeviceQueue));
        let since = self.0.rt.now();
        let request = Request { class, offset, len, since, work, told, alone: false };
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
            self.0.rt.settled().await;
            let mut batch = std::mem::take(&mut *self.0.plugged.borrow_mut());
            if batch.len() > 1 {
                // Stable: overlapping writes of one batch are concurrent, but their order stays.
                batch.sort_by_key(|r| r.offset);
            }
            {
                let mut waiting = self.0.waiting.borrow_mut();
                batch.into_iter().for_each(|r| waiting.of(r.class).push_back(r));
            }
            self.dispatch();
        }
    }

    /// Starts what there is room for.
    fn dispatch(&self) {
        while self.0.in_flight.get() < self.0.limits.depth
            && self.0.bytes_in_flight.get() < self.0.max_bytes
        {
            let Some(run) = self.next_run() else { return };
            let bytes: usize = run.iter().map(|r| r.len).sum();
            self.0.in_flight.set(self.0.in_flight.get() + 1);
            self.0.bytes_in_flight.set(self.0.bytes_in_flight.get() + bytes);
            let background_waits = !self.0.waiting.borrow().background.is_empty();
            self.change_share(|share| share.begin(run[0].class, background_waits));
            let what = self.waits_for(Reason::Transfer);
            run.iter().for_each(|r| r.told.turn(what));
            self.change_bytes(run[0].class, |n| n + bytes);
            self.start(run);
        }
    }

    /// Whether what the background does here has time, or somebody will need it soon
    /// ([`crate::share`]). At first it has none.
    pub fn set_background_patient(&self, patient: bool) {
        if self.change_share(|share| share.set_patient(patient)) {
            self.0.kick.notify();
        }
    }

    fn change_share<T>(&self, change: impl FnOnce(&mut Share) -> T) -> T {
        let mut share = self.0.share.get();
        let changed = change(&mut share);
        self.0.share.set(share);
        changed
    }

    /// Takes the first request that may go, and those behind it that continue it.
    fn next_run(&self) -> Option<SmallVec<[Request; 1]>> {
        let mut waiting = self.0.waiting.borrow_mut();
        let mut most_bytes = self.0.limits.max_request_bytes;
        let others = !waiting.urgent.is_empty();
        let turn = self.0.share.get().next_bytes(others);
        let waiting = match turn {
            Some(bytes) if !waiting.background.is_empty() => {
                most_bytes = most_bytes.min(bytes);
                &mut waiting.background
            }
            _ => &mut waiting.urgent,
        };
        let first = waiting.pop_front()?;
        let class = first.class;
        let (mut bytes, mut segments) = (first.len, first.segments());
        let mut run: SmallVec<[Request; 1]> = SmallVec::new();
        run.push(first);
        while let (Some(last), Some(next)) = (run.last(), waiting.front()) {
            bytes += next.len;
            segments += next.segments();
            let fits = bytes <= most_bytes && segments <= self.0.limits.max_segments;
            if !fits || !last.joins(next) {
                break;
            }
            run.extend(waiting.pop_front());
        }
        self.0.stats.borrow_mut().of(class).merged += run.len() as u64 - 1;
        Some(run)
    }

    fn start(&self, run: SmallVec<[Request; 1]>) {
        let mut transfer = Transfer {
            offset: run[0].offset,
            moved: 0,
            stalls: 0,
            len: 0,
            parts: SmallVec::new(),
            whole: None,
        };
        let (mut bufs, mut data, mut durable) = (BufList::new(), SliceList::new(), false);
        let mut reading = false;
        for r in run {
            transfer.len += r.len;
            let segments = r.segments();
            let done = match r.work {
                Work::Read { buf, done } => {
                    reading = true;
                    bufs.push(buf.unwrap_or_else(|| self.0.rt.bufs().take(r.len)));
                    Done::Read(done)
                }
                Work::Write { data: d, fua, done } => {
                    data.extend(d);
                    durable = fua;
                    Done::Write(done)
                }
            };
            transfer.parts.push(Part {
                class: r.class,
                len: r.len,
                segments,
                since: r.since,
                told: r.told,
                done,
            });
        }
        if reading { self.read_on(transfer, bufs) } else { self.write_on(transfer, data, durable) }
    }

    fn read_on(&self, transfer: Transfer, bufs: BufList) {
        let device = self.clone();
        self.0.rt.submit(Op::Read { file: self.0.file, offset: transfer.offset, bufs }, move |c| {
            let result = c.result;
            let bufs = c.into_bufs();
            match result {
                Ok(n) if n as usize == transfer.len => device.finish(transfer, Ok(()), bufs),
                Ok(0) => device.finish(transfer, Err(IoError::IO), bufs),
                Ok(n) => device.read_rest(transfer, n as usize, bufs),
                Err(e) if transfer.can_be_split(e) => {
                    device.split(transfer, bufs, SliceList::new())
                }
                Err(e) => device.finish(transfer, Err(e), bufs),
            }
        });
    }

    /// After a short read: reads the rest piece by piece into a buffer of its own and copies it;
    /// rare, so simple.
    fn read_rest(&self, transfer: Transfer, got: usize, mut bufs: BufList) {
        let device = self.clone();
        self.0.rt.detach(async move {
            let mut at = got;
            let mut stalls = 0;
            let mut outcome = Ok(());
            while at < transfer.len {
                // Direct I/O wants an aligned start: read again from the beginning of the block
                // that was cut.
                let from = at / base::BLOCK * base::BLOCK;
                let want = (transfer.len - from).min(device.0.limits.max_request_bytes);
                let mut bounce = BufList::new();
                bounce.push(device.0.rt.bufs().take(want));
                let offset = transfer.offset + from as u64;
                let c =
                    device.0.rt.op(Op::Read { file: device.0.file, offset, bufs: bounce }).await;
                let n = match c.result {
                    Ok(n) if from + n as usize > at => n as usize,
                    // Shorter still than before: that is no end of the file.
                    Ok(1..) if stalls < MAX_STALLS => {
                        stalls += 1;
                        continue;
                    }
                    Ok(_) => {
                        outcome = Err(IoError::IO);
                        break;
                    }
                    Err(e) => {
                        outcome = Err(e);
                        break;
                    }
                };
                let bounce = c.into_bufs();
                scatter(&mut bufs, at, &bounce[0][at - from..n]);
                at = from + n;
            }
            match outcome {
                Err(e) if transfer.can_be_split(e) => {
                    device.split(transfer, bufs, SliceList::new())
                }
                outcome => device.finish(transfer, outcome, bufs),
            }
        });
    }

    fn write_on(&self, mut transfer: Transfer, data: SliceList, fua: bool) {
        let device = self.clone();
        let offset = transfer.offset + transfer.moved as u64;
        self.0.rt.submit(
            Op::Write { file: self.0.file, offset, data, fua },
            move |c: Completion| {
                let data = match c.payload {
                    Payload::Data(d) => d,
                    other => panic!("a write completed with {other:?}"),
                };
                match c.result {
                    Ok(n) if transfer.moved + n as usize == transfer.len => {
                        device.finish(transfer, Ok(()), BufList::new())
                    }
                    Ok(0) => device.finish(transfer, Err(IoError::IO), BufList::new()),
                    Ok(n) => {
                        // Again from the start of the block that was cut, for direct I/O's sake.
                        let keep = (transfer.moved + n as usize) / base::BLOCK * base::BLOCK;
                        if keep == transfer.moved {
                            transfer.stalls += 1;
                            if transfer.stalls > MAX_STALLS {
                                return device.finish(transfer, Err(IoError::IO), BufList::new());
                            }
                        }
                        let rest = tail(&data, keep - transfer.moved);
                        transfer.moved = keep;
                        if transfer.parts.len() > 1 {
                            transfer.whole.get_or_insert(data);
                        }
                        device.write_on(transfer, rest, fua);
                    }
                    // What was to be durable is not tried again: the caller has to know that the
                    // device could not do it.
                    Err(e) if !fua && transfer.can_be_split(e) => {
                        let data = transfer.whole.take().unwrap_or(data);
                        device.split(transfer, BufList::new(), data);
                    }
                    Err(e) => device.finish(transfer, Err(e), BufList::new()),
                }
            },
        );
    }

    /// Puts the parts of a request that failed back in front of what waits, each to be tried alone:
    /// which of them is bad is not known, and the others are
    /// not to fail with it.
    fn split(&self, transfer: Transfer, bufs: BufList, data: SliceList) {
        self.count_ended(&transfer);
        let (mut bufs, mut data) = (bufs.into_iter(), data.into_iter());
        let mut offset = transfer.offset;
        let mut requests: SmallVec<[Request; 8]> = SmallVec::new();
        for Part { class, len, segments, since, told, done } in transfer.parts {
            let work = match done {
                Done::Read(done) => Work::Read { buf: bufs.next(), done },
                Done::Write(done) => {
                    Work::Write { data: data.by_ref().take(segments).collect(), fua: false, done }
                }
            };
            requests.push(Request { class, offset, len, since, work, told, alone: true });
            offset += len as u64;
        }
        {
            let mut waiting = self.0.waiting.borrow_mut();
            requests.into_iter().rev().for_each(|r| waiting.of(r.class).push_front(r));
        }
        self.dispatch();
    }

    fn finish(&self, transfer: Transfer, outcome: Result<(), IoError>, bufs: BufList) {
        self.count_ended(&transfer);
        let now = self.0.rt.now();
        let mut stats = self.0.stats.borrow_mut();
        let mut bufs = bufs.into_iter();
        for part in transfer.parts {
            let took = now.since(part.since);
            match part.done {
                Done::Read(done) => {
                    stats.of(part.class).read.record(part.len as u64, took);
                    if let Some(buf) = bufs.next() {
                        done.send((outcome, buf));
                    }
                }
                Done::Write(done) => {
                    stats.of(part.class).write.record(part.len as u64, took);
                    done.send(outcome);
                }
            }
        }
        drop(stats);
        if self.0.waiting.borrow().len() > 0 {
            self.dispatch();
        }
    }

    fn count_ended(&self, transfer: &Transfer) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
        self.0.bytes_in_flight.set(self.0.bytes_in_flight.get() - transfer.len);
        self.change_bytes(transfer.parts[0].class, |n| n - transfer.len);
        self.change_share(|share| share.end(transfer.parts[0].class));
    }
}

enum Done {
    Read(OneShotSender<(Result<(), IoError>, Buf)>),
    Write(OneShotSender<Result<(), IoError>>),
}

struct Part {
    class: Class,
    len: usize,
    /// Slices of a write.
    segments: usize,
    since: Instant,
    told: Told,
    done: Done,
}

/// One request to the device: a run of merged requests.
struct Transfer {
    offset: u64,
    moved: usize,
    stalls: u32,
    len: usize,
    parts: SmallVec<[Part; 1]>,
    /// What is to be written, where a part of it was, and it is more than one request.
    whole: Option<SliceList>,
}

impl Transfer {
    /// True if it failed for what one of several requests may have met.
    fn can_be_split(&self, e: IoError) -> bool {
        self.parts.len() > 1 && !e.is_gone()
    }
}
