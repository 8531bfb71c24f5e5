//! The policies of btrfs, as they are described in public.

use std::collections::VecDeque;

use base::{Duration, Instant};

use super::plant::{Read, STRIPE, ScrubPolicy, Step, VERIFY, stripes};

/// Stripes of a batch, and of a group.
const TOGETHER: u64 = 8;
/// Bytes under way with a plug.
const UNDER_WAY: u64 = 8 << 20;

/// 64 KiB, 8 at a time, and wait.
pub(super) struct Wait {
    look_up: Duration,
    /// Stripes of this batch that were asked for, and of those that are not read yet.
    asked: u64,
    reading: u64,
    verified: u64,
    out: VecDeque<Read>,
}

impl Wait {
    pub fn new(look_up: Duration) -> Wait {
        Wait { look_up, asked: 0, reading: 0, verified: 0, out: VecDeque::new() }
    }
}

impl ScrubPolicy for Wait {
    fn step(&mut self, next: u64, bytes: u64) -> Step {
        if self.asked < TOGETHER && next < bytes {
            self.asked += 1;
            let len = STRIPE.min(bytes - next);
            return Step::Ask(self.look_up, Read { offset: next, len });
        }
        if self.reading > 0 {
            return Step::Sleep;
        }
        // Workers verify the eight side by side.
        self.verified = next;
        self.asked = 0;
        Step::Work(VERIFY)
    }

    fn ask(&mut self, _now: Instant, read: Read) {
        self.reading += 1;
        self.out.push_back(read);
    }

    fn next(&mut self, _now: Instant) -> Option<Read> {
        self.out.pop_front()
    }

    fn done(&mut self, _now: Instant, _read: Read) {
        self.reading -= 1;
    }

    fn verified(&self) -> u64 {
        self.verified
    }
}

/// Groups and plug.
pub(super) struct Plug {
    look_up: Duration,
    under_way: u64,
    verified: u64,
    out: VecDeque<Read>,
}

impl Plug {
    pub fn new(look_up: Duration) -> Plug {
        Plug { look_up, under_way: 0, verified: 0, out: VecDeque::new() }
    }
}

impl ScrubPolicy for Plug {
    fn step(&mut self, next: u64, bytes: u64) -> Step {
        let len = (TOGETHER * STRIPE).min(bytes - next);
        if len == 0 || self.under_way + len > UNDER_WAY {
            return Step::Sleep;
        }
        Step::Ask(self.look_up * stripes(len), Read { offset: next, len })
    }

    fn ask(&mut self, _now: Instant, read: Read) {
        self.under_way += read.len;
        self.out.push_back(read);
    }

    fn next(&mut self, _now: Instant) -> Option<Read> {
        self.out.pop_front()
    }

    /// Workers verify it.
    fn done(&mut self, _now: Instant, read: Read) {
        self.under_way -= read.len;
        self.verified += read.len;
    }

    fn verified(&self) -> u64 {
        self.verified
    }
}
