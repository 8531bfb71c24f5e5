//! The controller and the thread of bcache, after `drivers/md/bcache/writeback.c` of Linux 5.2, and
//! `should_writeback` of `writeback.h`. Units are its own: sectors, and sectors a second.

use std::collections::{BTreeSet, VecDeque};

use base::{Duration, Instant};

use super::array::{Array, BLOCKS, Job};
use super::plant::{PassedWrite, WritebackPolicy};

/// The time that a scan of the whole index takes: 5,200 nodes at 1 ms.
pub(super) const SCAN: Duration = Duration::from_millis(5_200);
/// Dirty keys that a scan looks for.
const KEYS: usize = 500;
/// Blocks that are written back at once.
const IN_FLIGHT: usize = 64;
/// The thread rests for so long after it has seen all of the index.
const REST: Duration = Duration::from_secs(30);
/// The rate is computed anew after this time.
const PERIOD: Duration = Duration::from_secs(5);
/// Rounds without a request until the rate is the highest, and that.
const IDLE_ROUNDS: u32 = 6;
const HIGHEST: i64 = i32::MAX as i64;
/// The minimum that the operator had set: 4 MiB/s.
const MINIMUM: i64 = 8192;
const MAXIMUM: i64 = 1_000_000_000;
/// Inverse factors of the two terms.
const PROPORTIONAL: i64 = 40;
const INTEGRAL: i64 = 10_000;
/// Parts of the cache, in percent: the target, and from where on writes go past the cache.
const TARGET: u64 = 10;
const CUTOFF: u64 = 70;

const BLOCK_SECTORS: i64 = 8;
const SECOND: u64 = 1_000_000_000;

enum Thread {
    /// Nothing is dirty.
    Waits,
    /// The thread scans until this time, under the lock. The keys that the scan finds are in `keys`
    /// already.
    Scans {
        until: Instant,
        all: bool,
    },
    /// The thread writes back the keys that it has found.
    Writes {
        all: bool,
    },
    Rests {
        until: Instant,
    },
}

pub(super) struct BcacheWriteback {
    cache_blocks: u64,
    /// The dirty blocks, without the blocks in flight.
    dirty: BTreeSet<u64>,
    /// True if the thread was told that something is dirty.
    has_dirty: bool,
    thread: Thread,
    keys: VecDeque<u64>,
    scanned_to: u64,
    in_flight: usize,
    /// When the next block may be written back.
    goes_on_at: Instant,
    /// The rate limit's own clock.
    next: u64,
    rate: i64,
    integral: i64,
    computed_at: Instant,
    idle_rounds: u32,
    at_highest: bool,
    /// Writes that wait for the lock.
    waiting: VecDeque<(Instant, u64)>,
}

impl BcacheWriteback {
    /// With so many blocks, of which these are dirty.
    pub fn new(cache_blocks: u64, dirty: impl Iterator<Item = u64>) -> BcacheWriteback {
        let dirty: BTreeSet<u64> = dirty.collect();
        let has_dirty = !dirty.is_empty();
        BcacheWriteback {
            cache_blocks,
            dirty,
            has_dirty,
            thread: Thread::Waits,
            keys: VecDeque::new(),
            scanned_to: 0,
            in_flight: 0,
            goes_on_at: Instant(0),
            next: 0,
            rate: if has_dirty { MINIMUM } else { 1024 },
            integral: 0,
            computed_at: Instant(0),
            idle_rounds: 0,
            at_highest: false,
            waiting: VecDeque::new(),
        }
    }

    fn dirty_blocks(&self) -> u64 {
        (self.dirty.len() + self.in_flight) as u64
    }

    /// `update_writeback_rate`.
    fn update_rate(&mut self, now: Instant) {
        if now < self.computed_at.after(PERIOD) {
            return;
        }
        self.computed_at = now;
        if !self.has_dirty {
            return;
        }
        self.idle_rounds += 1;
        if self.idle_rounds >= IDLE_ROUNDS {
            self.at_highest = true;
            self.rate = HIGHEST;
            return;
        }
        let target = (self.cache_blocks * TARGET / 100) as i64 * BLOCK_SECTORS;
        let error = self.dirty_blocks() as i64 * BLOCK_SECTORS - target;
        let keeps_up = now.0 < self.next + SECOND / 1000;
        if error < 0 && self.integral > 0 || error > 0 && keeps_up {
            self.integral += error * PERIOD.as_secs() as i64;
        }
        let wanted = error / PROPORTIONAL + self.integral / INTEGRAL;
        self.rate = wanted.clamp(MINIMUM, MAXIMUM);
    }

    /// `bch_next_delay`: how long to wait after so many sectors.
    fn delay(&mut self, now: Instant, sectors: i64) -> Duration {
        self.next += sectors as u64 * SECOND / self.rate as u64;
        self.next = self.next.min(now.0 + SECOND * 5 / 2).max(now.0.saturating_sub(SECOND * 2));
        Duration::from_nanos(self.next.saturating_sub(now.0))
    }

    /// `refill_dirty`: looks for dirty keys from where it stopped, and from the beginning again.
    /// Says what part of the index it has seen, and whether that was all.
    fn refill(&mut self) -> (u64, bool) {
        let start = self.scanned_to;
        self.keys.extend(self.dirty.range(start..).take(KEYS));
        if self.keys.len() == KEYS {
            self.scanned_to = self.keys.back().map_or(0, |key| key + 1);
            return (self.scanned_to - start, false);
        }
        let seen = BLOCKS - start;
        self.keys.extend(self.dirty.range(..start).take(KEYS - self.keys.len()));
        if self.keys.len() == KEYS {
            self.scanned_to = self.keys.back().map_or(0, |key| key + 1);
            return (seen + self.scanned_to, self.scanned_to >= start);
        }
        (seen + start, true)
    }

    /// Lets the thread do the next thing that is due. Returns false if nothing is due.
    fn thread_goes_on(&mut self, now: Instant, array: &mut Array) -> bool {
        match self.thread {
            Thread::Waits if self.has_dirty => {
                let (seen, all) = self.refill();
                let takes = SCAN.mul_f64(seen as f64 / BLOCKS as f64);
                self.thread = Thread::Scans { until: now.after(takes), all };
                true
            }
            Thread::Waits => false,
            Thread::Scans { until, all } if until <= now => {
                if all && self.keys.is_empty() {
                    self.has_dirty = false;
                }
                self.thread = Thread::Writes { all };
                true
            }
            Thread::Writes { all } if self.keys.is_empty() => {
                if self.in_flight > 0 {
                    return false;
                }
                self.thread =
                    if all { Thread::Rests { until: now.after(REST) } } else { Thread::Waits };
                true
            }
            Thread::Writes { .. } => self.write_one(now, array),
            Thread::Rests { until } if until <= now => {
                self.next = now.0;
                self.thread = Thread::Waits;
                true
            }
            Thread::Scans { .. } | Thread::Rests { .. } => false,
        }
    }

    fn write_one(&mut self, now: Instant, array: &mut Array) -> bool {
        if self.in_flight == IN_FLIGHT || now < self.goes_on_at {
            return false;
        }
        // The rate may have changed since.
        let left = self.delay(now, 0);
        if !left.is_zero() {
            self.goes_on_at = now.after(left);
            return false;
        }
        let Some(block) = self.keys.pop_front() else { return false };
        array.submit(now, block, Job::WriteBack);
        self.dirty.remove(&block);
        self.in_flight += 1;
        self.goes_on_at = now.after(self.delay(now, BLOCK_SECTORS));
        true
    }

    fn is_locked(&self) -> bool {
        matches!(self.thread, Thread::Scans { .. })
    }

    /// The lock is free: a write goes into the cache, or past it.
    fn pass(&mut self, came: Instant, block: u64) -> PassedWrite {
        if self.dirty_blocks() * 100 >= self.cache_blocks * CUTOFF {
            return PassedWrite::Direct(came, block);
        }
        self.dirty.insert(block);
        self.has_dirty = true;
        PassedWrite::Cached(came)
    }
}

impl WritebackPolicy for BcacheWriteback {
    fn request(&mut self, _now: Instant) {
        self.idle_rounds = 0;
        if std::mem::take(&mut self.at_highest) {
            self.rate = 1;
        }
    }

    fn write(&mut self, now: Instant, block: u64) -> Option<PassedWrite> {
        if self.is_locked() {
            self.waiting.push_back((now, block));
            return None;
        }
        Some(self.pass(now, block))
    }

    fn step(&mut self, now: Instant, array: &mut Array, passed: &mut Vec<PassedWrite>) {
        self.update_rate(now);
        while self.thread_goes_on(now, array) {}
        if !self.is_locked() {
            let waiting = std::mem::take(&mut self.waiting);
            passed.extend(waiting.into_iter().map(|(came, block)| self.pass(came, block)));
        }
    }

    fn written_back(&mut self) {
        self.in_flight -= 1;
    }

    fn rate(&self) -> f64 {
        self.rate as f64 * 512.0
    }
}
