//! Tasks that read, the time that they take, and the counters.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use base::{Duration, Instant, Prng};

use super::device::Device;

/// Bytes of a read, and of each of its pieces.
const READ: u64 = 1 << 20;
pub(super) const PIECE: u64 = 256 << 10;
const PIECES: u64 = READ / PIECE;
/// A task that is woken runs after so many microseconds, at least and at most.
pub(super) const WAKING_US: (u64, u64) = (2, 50);
/// The time that a task takes to submit a piece.
pub(super) const SUBMIT: Duration = Duration::from_micros(2);

/// A piece of a read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub id: u64,
    pub offset: u64,
    /// The number of pieces of the same read that follow this one.
    pub more: u32,
}

/// The front of the device: it stands between the tasks and the device, and hands out tags.
pub(super) trait Front {
    /// A task asks for a tag for a piece. False: it gets none, and sleeps until it is woken.
    fn ask(&mut self, now: Instant, task: usize, piece: Piece) -> bool;
    /// A task has all that it needs, and waits for the end of a read.
    fn rests(&mut self, task: usize);
    /// The device has done a piece.
    fn done(&mut self, now: Instant, piece: u64);
    /// The next piece that goes to the device.
    fn next(&mut self, now: Instant) -> Option<Piece>;
    /// A task that is to be woken, as it may have a tag.
    fn woken(&mut self) -> Option<usize>;
}

/// The counters of a run.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(super) struct TagCounts {
    /// Reads that ended.
    pub reads: u64,
    /// Pieces that the device did, each elsewhere than where the one before it ended.
    pub jumps: u64,
    /// Tags that were granted.
    pub grants: u64,
    /// Tasks that were woken for a tag; and those of them that got none.
    pub tag_wakes: u64,
    pub in_vain: u64,
    /// Tasks that were woken by the end of a read.
    pub end_wakes: u64,
}

impl TagCounts {
    /// Returns what was counted since `before`.
    pub fn since(&self, before: &TagCounts) -> TagCounts {
        TagCounts {
            reads: self.reads - before.reads,
            jumps: self.jumps - before.jumps,
            grants: self.grants - before.grants,
            tag_wakes: self.tag_wakes - before.tag_wakes,
            in_vain: self.in_vain - before.in_vain,
            end_wakes: self.end_wakes - before.end_wakes,
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    /// The task runs, or is about to.
    Runs,
    /// The task waits for a tag.
    Asleep,
    /// The task waits for the end of a read.
    Rests,
}

struct Task {
    state: State,
    /// Reads that it may have under way, and that it has.
    depth: usize,
    reads: usize,
    /// The read that it is submitting, and how many pieces of it have gone.
    current: Option<(u64, u64)>,
    /// True if the task was woken for a tag and has got none yet.
    hopes: bool,
}

pub(super) struct Lab<F> {
    now: Instant,
    device: Device,
    front: F,
    tasks: Vec<Task>,
    /// When tasks go on.
    steps: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    sequence: u64,
    /// Reads under way: their task, pieces that are left, and when they began.
    reads: BTreeMap<u64, (usize, u64, Instant)>,
    /// The latencies of the reads that ended since `take_latency` was called last.
    took: Vec<Duration>,
    next_read: u64,
    /// The offset at which each read under way begins, by the number of the read.
    places: BTreeMap<u64, u64>,
    /// The number of places for reads on the device.
    room: u64,
    /// The offset at which the last piece ended that the device did.
    at: u64,
    rng: Prng,
    counts: TagCounts,
    done: Vec<u64>,
}

impl<F: Front> Lab<F> {
    /// Sets up `jobs` tasks, which share the depth `depth`, on a device of `bytes` bytes.
    pub fn new(device: Device, front: F, jobs: usize, depth: usize, bytes: u64) -> Lab<F> {
        let task = |i| Task {
            state: State::Runs,
            depth: depth / jobs + usize::from(i < depth % jobs),
            reads: 0,
            current: None,
            hopes: false,
        };
        let mut lab = Lab {
            now: Instant(0),
            device,
            front,
            tasks: (0..jobs).map(task).collect(),
            steps: BinaryHeap::new(),
            sequence: 0,
            reads: BTreeMap::new(),
            took: Vec::new(),
            next_read: 0,
            places: BTreeMap::new(),
            room: bytes / READ,
            at: u64::MAX,
            rng: Prng::new(2020),
            counts: TagCounts::default(),
            done: Vec::new(),
        };
        (0..jobs).for_each(|task| lab.wake(task));
        lab
    }

    /// Returns what was counted so far.
    pub fn counts(&self) -> TagCounts {
        self.counts
    }

    /// Returns the latency of the reads that ended since the last call: the median and the 99th
    /// percentile.
    pub fn take_latency(&mut self) -> [Duration; 2] {
        let mut took = std::mem::take(&mut self.took);
        took.sort_unstable();
        let at = |q| took.get(took.len() * q / 100).copied().unwrap_or_default();
        [at(50), at(99)]
    }

    /// Goes on until then.
    pub fn run(&mut self, until: Instant) {
        loop {
            self.settle();
            let step = self.steps.peek().map(|Reverse((at, _, _))| *at);
            let next = step.into_iter().chain(self.device.next_at()).min();
            let Some(next) = next.filter(|at| *at <= until) else { break };
            self.now = self.now.max(next);
            let mut done = std::mem::take(&mut self.done);
            self.device.take_done(self.now, &mut done);
            done.drain(..).for_each(|piece| self.ended(piece));
            self.done = done;
            while let Some(&Reverse((at, _, task))) = self.steps.peek()
                && at <= self.now
            {
                self.steps.pop();
                self.step(task);
            }
        }
        self.now = until;
    }

    /// Submits all pieces that may go to the device, and wakes the tasks that are to be woken.
    fn settle(&mut self) {
        while let Some(piece) = self.front.next(self.now) {
            self.device.submit(self.now, piece.id, piece.offset, PIECE as usize);
        }
        while let Some(task) = self.front.woken() {
            self.counts.tag_wakes += 1;
            self.tasks[task].hopes = true;
            self.wake(task);
        }
    }

    fn wake(&mut self, task: usize) {
        self.tasks[task].state = State::Runs;
        let us = self.rng.range(WAKING_US.0, WAKING_US.1 + 1);
        self.goes_on(task, Duration::from_micros(us));
    }

    fn goes_on(&mut self, task: usize, after: Duration) {
        self.sequence += 1;
        self.steps.push(Reverse((self.now.after(after), self.sequence, task)));
    }

    /// A task submits its next piece, sleeps, or rests.
    fn step(&mut self, task: usize) {
        let t = &mut self.tasks[task];
        debug_assert!(t.state == State::Runs);
        if t.current.is_none() && t.reads == t.depth {
            t.state = State::Rests;
            t.hopes = false;
            self.front.rests(task);
            return;
        }
        let (read, gone) = match t.current {
            Some(current) => current,
            None => {
                t.reads += 1;
                let read = self.next_read;
                self.next_read += 1;
                self.reads.insert(read, (task, PIECES, self.now));
                self.places.insert(read, self.rng.below(self.room) * READ);
                (read, 0)
            }
        };
        let id = read * PIECES + gone;
        let offset = self.places[&read] + gone * PIECE;
        let piece = Piece { id, offset, more: (PIECES - gone - 1) as u32 };
        let granted = self.front.ask(self.now, task, piece);
        let t = &mut self.tasks[task];
        let hoped = std::mem::take(&mut t.hopes);
        if granted {
            self.counts.grants += 1;
            t.current = (gone + 1 < PIECES).then_some((read, gone + 1));
            self.goes_on(task, SUBMIT);
        } else {
            self.counts.in_vain += u64::from(hoped);
            t.current = Some((read, gone));
            t.state = State::Asleep;
        }
    }

    /// The device has done a piece.
    fn ended(&mut self, piece: u64) {
        let (read, nth) = (piece / PIECES, piece % PIECES);
        let offset = self.places[&read] + nth * PIECE;
        self.counts.jumps += u64::from(offset != self.at);
        self.at = offset + PIECE;
        self.front.done(self.now, piece);
        let Some((task, left, began)) = self.reads.get_mut(&read) else { return };
        *left -= 1;
        if *left > 0 {
            return;
        }
        let (task, began) = (*task, *began);
        self.took.push(self.now.since(began));
        self.reads.remove(&read);
        self.places.remove(&read);
        self.counts.reads += 1;
        self.tasks[task].reads -= 1;
        if self.tasks[task].state == State::Rests {
            self.counts.end_wakes += 1;
            self.wake(task);
        }
    }
}
