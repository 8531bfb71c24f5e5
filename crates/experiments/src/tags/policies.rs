//! The old policies: which task gets a tag, and which are woken when one comes back.

use std::collections::VecDeque;

use base::{Duration, Instant};

use super::lab::{Front, Piece};

/// A policy for tags. It remembers the tasks that sleep.
pub(super) trait TagPolicy {
    /// A task asks for a tag. If it gets none, it sleeps.
    fn take(&mut self, now: Instant, task: usize) -> bool;
    /// A tag comes back. Adds the tasks that are to be woken.
    fn give_back(&mut self, now: Instant, woken: &mut VecDeque<usize>);
    /// A task needs no tag now.
    fn rests(&mut self, _task: usize, _woken: &mut VecDeque<usize>) {}
}

/// A policy before a device: what has a tag goes to the device in the order in which it got it.
pub(super) struct OldTags<P> {
    policy: P,
    /// Pieces that the device takes at once, and has.
    depth: usize,
    in_flight: usize,
    out: VecDeque<Piece>,
    woken: VecDeque<usize>,
}

impl<P> OldTags<P> {
    pub fn new(depth: usize, policy: P) -> OldTags<P> {
        OldTags { policy, depth, in_flight: 0, out: VecDeque::new(), woken: VecDeque::new() }
    }
}

impl<P: TagPolicy> Front for OldTags<P> {
    fn ask(&mut self, now: Instant, task: usize, piece: Piece) -> bool {
        let granted = self.policy.take(now, task);
        if granted {
            self.out.push_back(piece);
        }
        granted
    }

    fn rests(&mut self, task: usize) {
        self.policy.rests(task, &mut self.woken);
    }

    fn done(&mut self, now: Instant, _piece: u64) {
        self.in_flight -= 1;
        self.policy.give_back(now, &mut self.woken);
    }

    fn next(&mut self, _now: Instant) -> Option<Piece> {
        if self.in_flight == self.depth {
            return None;
        }
        let piece = self.out.pop_front()?;
        self.in_flight += 1;
        Some(piece)
    }

    fn woken(&mut self) -> Option<usize> {
        self.woken.pop_front()
    }
}

/// The single queue of Linux 4.18 (`block/blk-core.c`, `__get_request` and `__freed_request`). Each
/// request that is freed wakes one task. A task that was woken, and the one whose request filled
/// the queue, may go on for a *batch*: they are not stopped by a full queue, up to half above the
/// limit.
pub(super) struct SingleQueue {
    limit: usize,
    taken: usize,
    full: bool,
    waiting: VecDeque<usize>,
    /// By task: what is left of its batch, and when it began.
    batches: Vec<(u32, Instant)>,
}

impl SingleQueue {
    const BATCH: u32 = 32;
    const BATCH_TIME: Duration = Duration::from_millis(20);

    pub fn new(limit: usize, jobs: usize) -> SingleQueue {
        let batches = vec![(0, Instant(0)); jobs];
        SingleQueue { limit, taken: 0, full: false, waiting: VecDeque::new(), batches }
    }

    fn may_go_on(&self, now: Instant, task: usize) -> bool {
        let (left, since) = self.batches[task];
        left == Self::BATCH || left > 0 && now < since.after(Self::BATCH_TIME)
    }
}

impl TagPolicy for SingleQueue {
    fn take(&mut self, now: Instant, task: usize) -> bool {
        if self.taken + 1 >= self.limit {
            if !self.full {
                self.full = true;
                self.batches[task] = (Self::BATCH, now);
            } else if !self.may_go_on(now, task) {
                self.waiting.push_back(task);
                return false;
            }
        }
        if self.taken >= self.limit * 3 / 2 {
            self.waiting.push_back(task);
            return false;
        }
        self.taken += 1;
        if self.may_go_on(now, task) {
            self.batches[task].0 -= 1;
        }
        true
    }

    fn give_back(&mut self, now: Instant, woken: &mut VecDeque<usize>) {
        self.taken -= 1;
        if self.taken < self.limit {
            if let Some(task) = self.waiting.pop_front() {
                self.batches[task] = (Self::BATCH, now);
                woken.push_back(task);
            }
            self.full = false;
        }
    }
}

/// Batch wake of blk-mq (`lib/sbitmap.c`, `__sbq_wake_up`). Sleepers are spread over eight queues.
/// After a batch of tags has come back, as many tasks of one queue are woken; they, and all that
/// run anyway, take what they find.
pub(super) struct BatchWake {
    free: usize,
    batch: usize,
    queues: [VecDeque<usize>; 8],
    /// The queue in which the next task sleeps, and the queue from which on tasks are woken.
    sleeps_at: usize,
    wakes_at: usize,
    /// Tags that have to come back before tasks of a queue are woken.
    due: [usize; 8],
}

impl BatchWake {
    pub fn new(tags: usize) -> BatchWake {
        let batch = (tags / 8).clamp(1, 8);
        BatchWake {
            free: tags,
            batch,
            queues: [const { VecDeque::new() }; 8],
            sleeps_at: 0,
            wakes_at: 0,
            due: [batch; 8],
        }
    }
}

impl TagPolicy for BatchWake {
    fn take(&mut self, _now: Instant, task: usize) -> bool {
        if self.free == 0 {
            self.queues[self.sleeps_at].push_back(task);
            self.sleeps_at = (self.sleeps_at + 1) % self.queues.len();
            return false;
        }
        self.free -= 1;
        true
    }

    fn give_back(&mut self, _now: Instant, woken: &mut VecDeque<usize>) {
        self.free += 1;
        let all = self.queues.len();
        let at = (0..all).map(|i| (self.wakes_at + i) % all).find(|&i| !self.queues[i].is_empty());
        let Some(at) = at else { return };
        self.wakes_at = at;
        self.due[at] -= 1;
        if self.due[at] == 0 {
            self.due[at] = self.batch;
            self.wakes_at = (at + 1) % all;
            let some = self.batch.min(self.queues[at].len());
            woken.extend(self.queues[at].drain(..some));
        }
    }
}

/// The proposal: while tasks sleep, tags are stashed until a quarter of them is free. Then one task
/// has the *turn*: it is woken and takes all it needs. When it needs no more, the next one has it.
/// When the tags are used up, it is the first that is woken again.
pub(super) struct StashAndWake {
    tags: usize,
    free: usize,
    waiting: VecDeque<usize>,
    turn: Option<usize>,
}

impl StashAndWake {
    pub fn new(tags: usize) -> StashAndWake {
        StashAndWake { tags, free: tags, waiting: VecDeque::new(), turn: None }
    }

    fn pass_on(&mut self, woken: &mut VecDeque<usize>) {
        self.turn = self.waiting.pop_front();
        woken.extend(self.turn);
    }
}

impl TagPolicy for StashAndWake {
    fn take(&mut self, _now: Instant, task: usize) -> bool {
        let has_turn = self.turn == Some(task);
        let others_first = !has_turn && (self.turn.is_some() || !self.waiting.is_empty());
        if self.free > 0 && !others_first {
            self.free -= 1;
            return true;
        }
        if has_turn {
            self.turn = None;
            self.waiting.push_front(task);
        } else {
            self.waiting.push_back(task);
        }
        false
    }

    fn give_back(&mut self, _now: Instant, woken: &mut VecDeque<usize>) {
        self.free += 1;
        if self.turn.is_none() && self.free >= self.tags.div_ceil(4) {
            self.pass_on(woken);
        }
    }

    fn rests(&mut self, task: usize, woken: &mut VecDeque<usize>) {
        if self.turn == Some(task) {
            self.turn = None;
            if self.free > 0 {
                self.pass_on(woken);
            }
        }
    }
}
