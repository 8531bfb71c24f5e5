//! Ours: the controller and its pacer, and the line at the door, as they are; around them passes as
//! far as these need them.

use std::collections::{BTreeSet, VecDeque};

use base::{BLOCK_U64, Duration, Instant, VolumeId};
use cache::rate_controller::{BytePacer, Controller, RateSettings};
use cache::writer_delay::{Curve, Line, Load, NextStep};

use super::array::{Array, Job};
use super::plant::{PassedWrite, WritebackPolicy};

/// Blocks that the array has at once: as many as with bcache. In the product the scheduler of each
/// device decides that.
const IN_FLIGHT: usize = 64;
/// Clients are idle after this time.
const IDLE: Duration = Duration::from_secs(1);
/// Of the cache, in percent: what dirty data is held to.
const TARGET: u64 = 10;
/// A pass begins when so much time has passed since the image was whole: half of the default
/// `max_lag`.
const DUE: Duration = Duration::from_secs(15);
/// A cut is taken while another is carried when so much of the cache is dirty beside it.
const SEAL: u64 = 8;

/// A cut that is not published.
struct Cut {
    blocks: u64,
    /// The blocks that are left to carry, in the order of addresses.
    left: VecDeque<u64>,
}

pub(super) struct ForebayWriteback {
    cache_blocks: u64,
    controller: Controller,
    pacer: BytePacer,
    line: Line<(Instant, u64)>,
    last_request: Instant,
    /// Dirty, and in no cut.
    open: BTreeSet<u64>,
    /// When the last cut was taken, or the first block of `open` came.
    since: Instant,
    /// The first is carried.
    cuts: VecDeque<Cut>,
    /// Blocks of it that the array has, and those under way.
    carried: u64,
    in_flight: usize,
}

impl ForebayWriteback {
    /// With so many blocks, of which these are dirty.
    pub fn new(
        cache_blocks: u64,
        dirty: impl Iterator<Item = u64>,
        curve: Curve,
    ) -> ForebayWriteback {
        let settings = RateSettings { min: 4 << 20, ..RateSettings::default() };
        ForebayWriteback {
            cache_blocks,
            controller: Controller::new(settings),
            pacer: BytePacer::new(),
            line: Line::new(curve),
            last_request: Instant(0),
            open: dirty.collect(),
            since: Instant(0),
            cuts: VecDeque::new(),
            carried: 0,
            in_flight: 0,
        }
    }

    fn dirty(&self) -> u64 {
        self.open.len() as u64 + self.cuts.iter().map(|cut| cut.blocks).sum::<u64>()
    }

    fn load(&self) -> Load {
        // Other requests have room in hand.
        let room = self.cache_blocks - self.dirty();
        let lump = self.cuts.front().map_or(0, |cut| cut.blocks);
        Load { room, all: self.cache_blocks, lump, soon: self.carried, reserved: 1, age: None }
    }

    fn insert(&mut self, now: Instant, block: u64) {
        if self.open.is_empty() && self.cuts.is_empty() {
            self.since = now;
        }
        self.open.insert(block);
    }

    fn target(&self) -> u64 {
        self.cache_blocks * TARGET / 100
    }

    fn seal(&mut self, now: Instant) {
        let open = self.open.len() as u64;
        let is_due = if self.cuts.is_empty() {
            open > 0 && now.since(self.since) >= DUE || open > self.target()
        } else {
            open >= self.cache_blocks / SEAL
        };
        if is_due {
            let left: VecDeque<u64> = std::mem::take(&mut self.open).into_iter().collect();
            self.cuts.push_back(Cut { blocks: open, left });
            self.since = now;
        }
    }

    fn write_back(&mut self, now: Instant, array: &mut Array) {
        let target = self.target() * BLOCK_U64;
        let idle = now.since(self.last_request) > IDLE;
        let dirty = self.dirty() * BLOCK_U64;
        let rate = self.controller.update(now, dirty, target, idle);
        self.seal(now);
        while self.in_flight < IN_FLIGHT
            && let Some(cut) = self.cuts.front_mut()
            && let Some(&block) = cut.left.front()
            && self.pacer.due(now, rate).is_zero()
        {
            self.pacer.charge(BLOCK_U64, rate);
            cut.left.pop_front();
            self.in_flight += 1;
            array.submit(now, block, Job::WriteBack);
        }
    }
}

impl WritebackPolicy for ForebayWriteback {
    fn request(&mut self, now: Instant) {
        self.last_request = now;
    }

    fn write(&mut self, now: Instant, block: u64) -> Option<PassedWrite> {
        if self.line.pass_at_once(now, 1, &self.load()) {
            self.insert(now, block);
            return Some(PassedWrite::Cached(now));
        }
        self.line.push(VolumeId(1), 1, (now, block));
        None
    }

    fn step(&mut self, now: Instant, array: &mut Array, passed: &mut Vec<PassedWrite>) {
        while let NextStep::Pass((came, block), _) = self.line.next(now, &self.load()) {
            self.insert(now, block);
            passed.push(PassedWrite::Cached(came));
        }
        self.write_back(now, array);
    }

    /// The last one of a cut publishes it: all of it is room.
    fn written_back(&mut self) {
        self.in_flight -= 1;
        self.carried += 1;
        if self.in_flight == 0 && self.cuts.front().is_some_and(|cut| cut.left.is_empty()) {
            self.cuts.pop_front();
            self.carried = 0;
        }
    }

    fn rate(&self) -> f64 {
        self.controller.state().rate as f64
    }
}
