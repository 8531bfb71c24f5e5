//! The world: time, events in flight, and the history of both.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use base::prng::mix64;
use base::{Duration, Instant, IoError, Prng, SliceList, crc32c};
use rt::{Backend, Completion, FileId, Op, OpId, Payload, SocketId};

use crate::disk::{Disk, Request, StuckState, Work};
use crate::fault::{Fault, FaultCounts, FaultRates};
use crate::host::Host;
use crate::idle::IdleTime;
use crate::model::DiskModel;
use crate::store::DiskSnapshot;
use crate::trace::describe;
use crate::wire::{Wire, WireEvent, WireModel};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Disk {
        disk: u32,
        slot: u32,
    },
    Wire {
        socket: u32,
        event: WireEvent,
    },
    /// An operation failed at once. The number is its index in `State::failed`.
    Failed(u32),
}

/// The operations that a task counts while it waits for a number of them.
#[derive(Clone, Copy)]
enum Count {
    Operations,
    /// Writes to a disk.
    Writes(FileId),
    /// Writes with FUA to a disk.
    DurableWrites(FileId),
}

struct State {
    now: u64,
    boot: u32,
    /// Orders events that happen at the same time.
    next_event: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    disks: Vec<Disk>,
    host: Host,
    wire: Wire,
    failed: Vec<Option<Completion>>,
    idle: IdleTime,
    /// Number of operations so far.
    submitted: u64,
    /// Number of writes so far to each disk, and how many of them had FUA.
    writes: Vec<(u64, u64)>,
    /// Tasks that wait until a count reaches a number.
    waiting: Vec<(Count, u64, Waker)>,
    rng: Prng,
    hash: u64,
    trace: bool,
    /// Calls of `wait` since time moved last.
    at_once: u64,
}

/// Calls of `wait` at one moment of virtual time after which a boot counts as one that never ends.
const MOST_AT_ONCE: u64 = 200_000;

/// A handle on a simulated world. Clones refer to the same world. See the [crate] for how to use
/// it.
#[derive(Clone)]
pub struct World(Rc<RefCell<State>>);

impl World {
    /// Creates an empty world. All randomness comes from `seed`.
    pub fn new(seed: u64) -> World {
        let mut rng = Prng::new(seed);
        World(Rc::new(RefCell::new(State {
            now: 0,
            boot: 0,
            next_event: 0,
            events: BinaryHeap::new(),
            disks: Vec::new(),
            host: Host::default(),
            wire: Wire::new(rng.fork()),
            failed: Vec::new(),
            idle: IdleTime::default(),
            submitted: 0,
            writes: Vec::new(),
            waiting: Vec::new(),
            hash: mix64(seed),
            rng,
            trace: false,
            at_once: 0,
        })))
    }

    /// Adds an empty disk. The first disk is file 0 in every boot, the next one file 1.
    pub fn add_disk(&self, model: DiskModel) -> FileId {
        let mut s = self.0.borrow_mut();
        let rng = s.rng.fork();
        s.disks.push(Disk::new(model, rng));
        FileId(s.disks.len() as u32 - 1)
    }

    /// Boots: returns a backend with all disks and no sockets. The backend of the boot before ends
    /// as a killed process does: each of its operations in flight is done or not, and the disks
    /// keep their caches.
    pub fn backend(&self) -> Box<dyn Backend> {
        let mut s = self.0.borrow_mut();
        s.stop(false);
        Box::new(SimBackend { world: self.clone(), boot: s.boot })
    }

    /// Cuts the power. Every sector becomes its stable version or a later one, and the current boot
    /// ends. Kill its runtime afterwards ([`rt::Rt::kill`]): nothing completes any more, so it
    /// would wait for ever.
    pub fn power_cut(&self) {
        self.0.borrow_mut().stop(true);
        self.host().lose_all();
    }

    /// The memory that the host keeps for processes.
    pub fn host(&self) -> Host {
        self.0.borrow().host.clone()
    }

    /// The time of the last wait.
    pub fn now(&self) -> Instant {
        Instant(self.0.borrow().now)
    }

    /// A hash of all operations and completions so far. The same seed and program give the same
    /// hash.
    pub fn history_hash(&self) -> u64 {
        self.0.borrow().hash
    }

    /// Sets whether all operations and completions are printed to standard error.
    pub fn set_trace(&self, on: bool) {
        self.0.borrow_mut().trace = on;
    }

    /// Injects a fault. Returns false if the fault has nothing to act on yet. Panics if there is no
    /// such disk.
    pub fn inject(&self, disk: FileId, fault: Fault) -> bool {
        let mut s = self.0.borrow_mut();
        let now = s.now;
        s.note(7, &[u64::from(disk.0), now]);
        match fault {
            Fault::Stuck(time) => s.disk(disk).stick(StuckState::Until(Instant(now).after(time).0)),
            Fault::StuckForever => s.disk(disk).stick(StuckState::Forever),
            Fault::Dead => {
                s.disk(disk).die();
                s.unstick(disk);
            }
            Fault::Unreachable => {
                s.disk(disk).detach();
                s.unstick(disk);
            }
            other => return s.disk(disk).inject(other),
        }
        true
    }

    /// Ends [`Fault::Dead`], [`Fault::Unreachable`], [`Fault::StuckForever`],
    /// [`Fault::FailReads`], [`Fault::Lie`], and flushes that [always](crate::Times::Always) fail.
    /// A disk that was dead comes back with its stable content, and perhaps more.
    pub fn revive(&self, disk: FileId) {
        let mut s = self.0.borrow_mut();
        s.disk(disk).revive();
        s.unstick(disk);
    }

    /// Takes back the faults that wait for a next operation of `disk` and have not struck.
    pub fn disarm(&self, disk: FileId) {
        self.0.borrow_mut().disk(disk).disarm();
    }

    /// Ends all [`Fault::ReadError`]s and [`Fault::FailWrites`]: all sectors can be read again.
    pub fn cure(&self, disk: FileId) {
        self.0.borrow_mut().disk(disk).cure();
    }

    /// Sets the rates of random faults.
    pub fn set_rates(&self, disk: FileId, rates: FaultRates) {
        self.0.borrow_mut().disk(disk).rates = rates;
    }

    /// Adds `delay` to every later operation on `disk`, as a slow device would.
    pub fn set_delay(&self, disk: FileId, delay: Duration) {
        self.0.borrow_mut().disk(disk).delay =
            u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX >> 1);
    }

    /// Starts to measure how long these disks are idle: see [`World::idle`]. Call it while nothing
    /// is in flight.
    pub fn watch_idle(&self, disks: &[FileId]) {
        let mut s = self.0.borrow_mut();
        s.idle = IdleTime::new(disks.iter().map(|d| d.0).collect(), s.now);
    }

    /// Watches one more disk for it, which has nothing in flight.
    pub fn watch_idle_too(&self, disk: FileId) {
        self.0.borrow_mut().idle.watch(disk.0);
    }

    /// The time, so far, in which none of the watched disks had an operation in flight. A task that
    /// waited during that time waited for something else.
    pub fn idle(&self) -> Duration {
        let s = self.0.borrow();
        Duration::from_nanos(s.idle.at(s.now))
    }

    /// The offsets and lengths of the last completed writes to `disk`, oldest first, at most 256.
    pub fn recent_writes(&self, disk: FileId) -> Vec<(u64, u64)> {
        self.0.borrow_mut().disk(disk).recent.iter().copied().collect()
    }

    /// Calls `watcher` with the offset and the bytes of each write to `disk` that begins from now
    /// on, whether it will be done or not. It must not use the world.
    pub fn watch_writes(&self, disk: FileId, watcher: impl FnMut(u64, &SliceList) + 'static) {
        self.0.borrow_mut().disk(disk).watcher = Some(Box::new(watcher));
    }

    /// Waits until `n` more operations were submitted in this boot. Tests use it to end a boot at
    /// an exact point.
    pub async fn after_operations(&self, n: u64) {
        self.after(Count::Operations, n).await;
    }

    /// Waits until `n` more writes to `disk` were submitted in this boot.
    pub async fn after_writes(&self, disk: FileId, n: u64) {
        self.after(Count::Writes(disk), n).await;
    }

    /// Waits until `n` more writes with FUA to `disk` were submitted in this boot.
    pub async fn after_durable_writes(&self, disk: FileId, n: u64) {
        self.after(Count::DurableWrites(disk), n).await;
    }

    async fn after(&self, count: Count, n: u64) {
        let mut target = None;
        poll_fn(|cx| {
            let mut s = self.0.borrow_mut();
            let reached = s.reached(count);
            let at = *target.get_or_insert(reached + n);
            if reached >= at {
                return Poll::Ready(());
            }
            s.waiting.push((count, at, cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// The number of faults that took effect on `disk` so far.
    pub fn fault_counts(&self, disk: FileId) -> FaultCounts {
        self.0.borrow_mut().disk(disk).counts
    }

    /// Whether `disk` is stuck now.
    pub fn is_stuck(&self, disk: FileId) -> bool {
        let mut inner = self.0.borrow_mut();
        let now = inner.now;
        match inner.disk(disk).stuck {
            StuckState::No => false,
            StuckState::Until(end) => end > now,
            StuckState::Forever => true,
        }
    }

    /// The sectors (of 512 bytes) of `disk` that now are unreadable or hold wrong bytes.
    pub fn faulted(&self, disk: FileId) -> Vec<u64> {
        self.0.borrow_mut().disk(disk).store.faulted()
    }

    /// The bytes that a read of `disk` would return without bit rot, lost and misdirected writes.
    pub fn pristine(&self, disk: FileId, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.borrow_mut().disk(disk).store.pristine().read(offset, &mut bytes);
        bytes
    }

    /// The bytes that are stored on `disk`, without any read errors.
    pub fn contents(&self, disk: FileId, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.borrow_mut().disk(disk).store.current().read(offset, &mut bytes);
        bytes
    }

    /// The current content of `disk`, including its cache and its damage. It is cheap.
    pub fn snapshot_disk(&self, disk: FileId) -> DiskSnapshot {
        self.0.borrow_mut().disk(disk).store.snapshot()
    }

    /// Restores a snapshot as stable content, which makes a stale device. Call it between two
    /// boots.
    pub fn restore_disk(&self, disk: FileId, snapshot: &DiskSnapshot) {
        self.0.borrow_mut().disk(disk).store.restore(snapshot);
    }

    /// Sets how connections behave from now on.
    pub fn set_wire(&self, model: WireModel) {
        self.0.borrow_mut().wire.model = model;
    }

    /// Opens a listening socket in the current boot.
    pub fn listener(&self) -> SocketId {
        self.0.borrow_mut().wire.listener()
    }

    /// Connects to `listener`. Returns the client's end, a socket of the same backend. If there is
    /// no such listener, the connection is already reset.
    pub fn connect(&self, listener: SocketId) -> SocketId {
        let mut s = self.0.borrow_mut();
        let now = s.now;
        let socket = s.wire.connect(now, listener);
        s.take_later();
        socket
    }

    /// Resets a connection at both ends, as if a peer had vanished. Data under way is lost.
    pub fn reset(&self, socket: SocketId) {
        let mut s = self.0.borrow_mut();
        let now = s.now;
        s.wire.reset(now, socket);
        s.take_later();
    }
}

impl State {
    fn disk(&mut self, disk: FileId) -> &mut Disk {
        &mut self.disks[disk.0 as usize]
    }

    fn note(&mut self, kind: u64, words: &[u64]) {
        self.hash = words
            .iter()
            .fold(mix64(self.hash ^ kind), |hash, word| mix64(hash.rotate_left(23) ^ word));
    }

    fn stop(&mut self, power: bool) {
        self.boot += 1;
        self.events.clear();
        self.failed.clear();
        self.waiting.clear();
        self.wire.stop();
        self.disks.iter_mut().for_each(|d| d.stop(power));
        self.idle.stop(self.now);
        self.note(8, &[u64::from(power), self.now]);
        if self.trace {
            eprintln!("{:>14} {}", self.now, if power { "the power is cut" } else { "boot" });
        }
    }

    fn schedule(&mut self, when: u64, event: Event) {
        self.events.push(Reverse((when, self.next_event, event)));
        self.next_event += 1;
    }

    fn schedule_now(&mut self, event: Event) {
        self.schedule(self.now, event);
    }

    /// Lets operations come due that a stuck disk held back.
    fn unstick(&mut self, disk: FileId) {
        let d = self.disk(disk);
        d.stuck = StuckState::No;
        for slot in std::mem::take(&mut d.parked) {
            self.schedule_now(Event::Disk { disk: disk.0, slot });
        }
    }

    fn take_later(&mut self) {
        let mut later = std::mem::take(&mut self.wire.later);
        for (when, socket, event) in later.drain(..) {
            self.schedule(when, Event::Wire { socket: socket.0, event });
        }
        self.wire.later = later;
    }

    /// Number of these operations so far.
    fn reached(&self, count: Count) -> u64 {
        match count {
            Count::Operations => self.submitted,
            Count::Writes(disk) => self.writes.get(disk.0 as usize).map_or(0, |n| n.0),
            Count::DurableWrites(disk) => self.writes.get(disk.0 as usize).map_or(0, |n| n.1),
        }
    }

    /// Counts an operation, and wakes the tasks that wait for it.
    fn count(&mut self, op: &Op) {
        self.submitted += 1;
        if let Op::Write { file, fua, .. } = op {
            self.writes.resize(self.disks.len(), (0, 0));
            // A write to a file that does not exist fails later.
            if let Some(n) = self.writes.get_mut(file.0 as usize) {
                *n = (n.0 + 1, n.1 + u64::from(*fua));
            }
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|(count, at, waker)| {
            let due = *at <= self.reached(*count);
            if due {
                waker.wake_by_ref();
            }
            !due
        });
        self.waiting = waiting;
    }

    fn submit(&mut self, id: OpId, op: Op) {
        if self.trace {
            eprintln!("{:>14} {} > {}", self.now, id.0, describe(&op));
        }
        self.note_op(id, &op);
        self.count(&op);
        let now = self.now;
        let failed = match op {
            Op::Read { file, offset, bufs } => {
                let len = bufs.iter().map(|b| b.len() as u64).sum();
                return self.submit_disk(file, Request::new(id, offset, len, Work::Read(bufs)));
            }
            Op::Write { file, offset, data, fua } => {
                let len = data.iter().map(|s| s.len() as u64).sum();
                return self
                    .submit_disk(file, Request::new(id, offset, len, Work::Write { data, fua }));
            }
            Op::Flush { file } => {
                return self.submit_disk(file, Request::new(id, 0, 0, Work::Flush { upto: 0 }));
            }
            Op::Discard { file, offset, len } => {
                return self.submit_disk(file, Request::new(id, offset, len, Work::Discard));
            }
            Op::Recv { socket, buf, start, fill } => {
                self.wire.submit_recv(now, id, socket, buf, start, fill)
            }
            Op::Send { socket, data } => self.wire.submit_send(now, id, socket, data),
            Op::Accept { listener } => self.wire.submit_accept(now, id, listener),
            Op::Close { socket } => self.wire.submit_close(now, id, socket),
        };
        self.take_later();
        if let Some(completion) = failed {
            self.fail(completion);
        }
    }

    fn submit_disk(&mut self, file: FileId, request: Request) {
        let now = self.now;
        match self.disks.get_mut(file.0 as usize) {
            Some(disk) => {
                let (slot, due) = disk.begin(now, request);
                self.idle.begins(file.0, now);
                self.schedule(due, Event::Disk { disk: file.0, slot });
            }
            None => {
                let (id, payload) = request.give_back();
                self.fail(Completion { id, result: Err(IoError::GONE), payload });
            }
        }
    }

    fn fail(&mut self, completion: Completion) {
        self.failed.push(Some(completion));
        self.schedule_now(Event::Failed(self.failed.len() as u32 - 1));
    }

    fn note_op(&mut self, id: OpId, op: &Op) {
        let words = match op {
            Op::Read { file, offset, bufs } => [1, u64::from(file.0), *offset, bufs.len() as u64],
            Op::Write { file, offset, data, fua } => {
                let crc = data
                    .iter()
                    .fold(u64::from(*fua), |h, s| mix64(h ^ s.len() as u64) ^ u64::from(crc32c(s)));
                [2, u64::from(file.0), *offset, crc]
            }
            Op::Flush { file } => [3, u64::from(file.0), 0, 0],
            Op::Discard { file, offset, len } => [4, u64::from(file.0), *offset, *len],
            Op::Recv { socket, start, .. } => [5, u64::from(socket.0), *start as u64, 0],
            Op::Send { socket, data } => {
                let crc = data.iter().fold(0, |h, s| mix64(h ^ u64::from(crc32c(s))));
                [6, u64::from(socket.0), 0, crc]
            }
            Op::Accept { listener } => [9, u64::from(listener.0), 0, 0],
            Op::Close { socket } => [10, u64::from(socket.0), 0, 0],
        };
        self.note(id.0, &words);
    }

    /// Executes one event, which happens now.
    fn happen(&mut self, event: Event, done: &mut Vec<Completion>) {
        match event {
            Event::Disk { disk, slot } => {
                let d = &mut self.disks[disk as usize];
                match d.stuck {
                    StuckState::Forever => return d.parked.push(slot),
                    StuckState::Until(end) if end > self.now => return self.schedule(end, event),
                    StuckState::Until(_) => d.stuck = StuckState::No,
                    StuckState::No => {}
                }
                done.push(d.complete(slot));
                self.idle.ends(disk, self.now);
            }
            Event::Wire { socket, event } => {
                self.wire.happen(self.now, SocketId(socket), event, done);
                self.take_later();
            }
            Event::Failed(i) => {
                done.extend(self.failed[i as usize].take());
                if self.failed.iter().all(Option::is_none) {
                    self.failed.clear();
                }
            }
        }
    }

    fn wait(&mut self, until: Option<Instant>, done: &mut Vec<Completion>) {
        let (first, began) = (done.len(), self.now);
        loop {
            let next = self.events.peek().map(|e| e.0.0);
            match (next, until) {
                (Some(when), _) if when <= self.now => {}
                _ if done.len() > first => break,
                (None, None) => self.deadlock(),
                (Some(when), limit) if limit.is_none_or(|l| when <= l.0) => self.now = when,
                (_, Some(limit)) => {
                    self.now = self.now.max(limit.0);
                    break;
                }
                (Some(_), None) => unreachable!("no limit is after every time"),
            }
            if let Some(Reverse((_, _, event))) = self.events.pop() {
                self.happen(event, done);
            }
        }
        self.at_once = if self.now == began { self.at_once + 1 } else { 0 };
        assert!(self.at_once < MOST_AT_ONCE, "time stands still at {began} ns: a task never rests");
        for c in &done[first..] {
            if self.trace {
                eprintln!("{:>14} {} < {:?}", self.now, c.id.0, c.result);
            }
            let socket = if let Payload::Socket(s) = c.payload { u64::from(s.0) } else { u64::MAX };
            let (ok, n) = c.result.map_or_else(|e| (0, e.0 as u64), |n| (1, n));
            self.note(11 + ok, &[c.id.0, n, socket, self.now]);
        }
    }

    fn deadlock(&self) -> ! {
        let parked: usize = self.disks.iter().map(|d| d.parked.len()).sum();
        panic!(
            "deadlock: at {} ns no timer is set and nothing is in flight that could complete \
             ({parked} operations on disks that are stuck for ever; sockets may be waited for)",
            self.now
        );
    }
}

struct SimBackend {
    world: World,
    boot: u32,
}

impl Backend for SimBackend {
    fn submit(&mut self, id: OpId, op: Op) {
        let mut s = self.world.0.borrow_mut();
        if s.boot == self.boot {
            s.submit(id, op);
        }
    }

    fn wait(&mut self, until: Option<Instant>, done: &mut Vec<Completion>) -> Instant {
        let mut s = self.world.0.borrow_mut();
        if s.boot == self.boot {
            s.wait(until, done);
        }
        Instant(s.now)
    }

    fn now(&self) -> Instant {
        self.world.now()
    }
}
