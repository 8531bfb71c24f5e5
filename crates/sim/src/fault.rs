//! What can go wrong with a disk, and how often.

use std::collections::VecDeque;

use base::{Duration, Prng};

/// A fault, to be injected into one disk by [`World::inject`](crate::World::inject).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Flips one to eight bits of a sector in the range, in what is stored there now.
    BitRot {
        /// Bytes from the disk's start.
        offset: u64,
        /// Bytes; more than 0.
        len: u64,
    },
    /// Flips bits somewhere in what was ever written.
    BitRotAnywhere,
    /// Every sector that the range touches answers EIO to reads, until it is written again.
    ReadError {
        /// Bytes from the disk's start.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// One to sixteen sectors in a row, somewhere in what was ever written, answer EIO to reads until they are written again.
    ReadErrorAnywhere,
    /// The next write lands at another place that was written before; its own place keeps what it has.
    MisdirectNextWrite,
    /// The next write is acknowledged, and never done.
    LoseNextWrite,
    /// The next read or write of more than a sector moves fewer bytes than were asked for.
    ShortenNext,
    /// The next read, write or flush fails with EIO; what a write leaves in its range is old or new by the sector.
    FailNext,
    /// What is in flight or comes completes only after this time (and then all of it).
    Stuck(Duration),
    /// Nothing completes any more, until the power is cut or the disk [revived](crate::World::revive).
    StuckForever,
    /// The disk is gone, its cache with it: everything fails, until it is [revived](crate::World::revive).
    Dead,
    /// The way to the disk is gone: everything fails, until it is [revived](crate::World::revive). Its cache stays: it comes back
    /// with all that was acknowledged, and what was in flight is done or not.
    Unreachable,
    /// Flushes fail with EIO, as `fsync` does on Linux: the error is reported once, and what the flush covered counts as clean.
    /// What it [loses](Loses) reads still see, and no later flush makes it stable, until it is written again. A cut of power
    /// takes it. After a kill a sector of it is as the medium has it, or as it was last written, and is then an ordinary
    /// write that was not flushed: a program that starts reads past what the host has in memory.
    FailFlush {
        /// How many.
        times: Times,
        /// What becomes of what they cover.
        loses: Loses,
    },
    /// The next write or flush is done, and reported as failed with EIO.
    FailNextButDo,
    /// So many reads that touch the range answer EIO; then all is well. This outlasts boots.
    FailReads {
        /// Bytes from the disk's start.
        offset: u64,
        /// Bytes.
        len: u64,
        /// How many reads.
        times: u32,
    },
    /// The host's file system is full (or no longer): writes to what was never written fail with ENOSPC.
    Full(bool),
}

/// How many operations a fault befalls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Times {
    /// The next so many of this boot.
    Next(u32),
    /// All, in this boot and later ones, until the disk is [revived](crate::World::revive).
    Always,
}

/// What becomes of what a flush covered that fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loses {
    /// It is as before: a later flush makes it stable.
    Nothing,
    /// What a cut of power might take, by the sector.
    Part,
    /// All that was not stable before.
    All,
}

/// How often faults happen by themselves: once in so many operations, 0 for never (the default).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FaultRates {
    /// [`Fault::BitRotAnywhere`], for any operation.
    pub bit_rot: u32,
    /// [`Fault::ReadErrorAnywhere`], for any operation.
    pub read_error: u32,
    /// [`Fault::MisdirectNextWrite`], for writes.
    pub misdirected_write: u32,
    /// [`Fault::LoseNextWrite`], for writes.
    pub lost_write: u32,
    /// [`Fault::ShortenNext`], for reads and writes.
    pub short_transfer: u32,
    /// [`Fault::FailNext`], for reads, writes and flushes.
    pub transient_error: u32,
    /// [`Fault::Stuck`], for any operation, for a time of up to `stuck_for`.
    pub stuck: u32,
    /// [`Fault::FailFlush`], for flushes: one fails, and loses nothing, a part, or all.
    pub failed_flush: u32,
    /// [`Fault::FailNextButDo`], for writes and flushes.
    pub failed_but_done: u32,
    /// [`Fault::FailReads`], for reads: this one fails, the next is well.
    pub transient_read: u32,
    /// The longest time a disk is stuck by chance.
    pub stuck_for: Duration,
}

/// How many faults took effect.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FaultCounts {
    /// Sectors in which bits were flipped.
    pub bit_rot: u64,
    /// Sectors that were made unreadable.
    pub unreadable_sectors: u64,
    /// Reads that failed because of one.
    pub read_errors: u64,
    /// Writes that landed elsewhere.
    pub misdirected_writes: u64,
    /// Writes that were acknowledged and not done.
    pub lost_writes: u64,
    /// Reads and writes cut short.
    pub short_transfers: u64,
    /// Operations that failed once.
    pub transient_errors: u64,
    /// Times the disk was stuck.
    pub stuck: u64,
    /// Times it died.
    pub dead: u64,
    /// Times the way to it was gone.
    pub unreachable: u64,
    /// Flushes that failed.
    pub failed_flushes: u64,
    /// Sectors whose newest version a flush that failed has lost.
    pub lost_sectors: u64,
    /// Writes and flushes that were done and reported as failed.
    pub failed_but_done: u64,
    /// Reads that failed, of sectors that can be read.
    pub transient_reads: u64,
    /// Writes refused, wholly or in part, for want of space.
    pub no_space: u64,
}

/// Faults that wait for the next operation that they can befall.
#[derive(Default)]
pub(crate) struct Armed {
    pub misdirect: u32,
    pub lose: u32,
    pub shorten: u32,
    pub fail: u32,
    pub fail_but_do: u32,
    pub fail_flush: VecDeque<Loses>,
}

/// Reads of a range that fail for a while.
#[derive(Default)]
pub(crate) struct Flaky {
    /// Ranges, and how many reads of them fail yet.
    ranges: Vec<((u64, u64), u32)>,
    /// Where reads failed last by chance: the next ones there are well.
    spared: VecDeque<(u64, u64)>,
}

impl Flaky {
    /// Places that are spared.
    const SPARED: usize = 16;

    pub fn add(&mut self, range: (u64, u64), times: u32) {
        self.ranges.push((range, times));
    }

    /// Whether a read fails now, though what it is about can be read.
    pub fn fails(&mut self, offset: u64, len: u64, one_in: u32, rng: &mut Prng) -> bool {
        let touches = |range: &(u64, u64)| range.0 < offset + len && offset < range.1;
        if let Some((_, times)) = self.ranges.iter_mut().find(|r| touches(&r.0)) {
            *times -= 1;
            self.ranges.retain(|r| r.1 > 0);
            return true;
        }
        if len == 0 || self.spared.iter().any(touches) || !by_chance(one_in, rng) {
            return false;
        }
        if self.spared.len() == Self::SPARED {
            self.spared.pop_front();
        }
        self.spared.push_back((offset, offset + len));
        true
    }
}

/// Whether one happens now: because it was asked for, or by chance.
pub(crate) fn strikes(armed: &mut u32, one_in: u32, rng: &mut Prng) -> bool {
    if *armed > 0 {
        *armed -= 1;
        return true;
    }
    by_chance(one_in, rng)
}

pub(crate) fn by_chance(one_in: u32, rng: &mut Prng) -> bool {
    one_in > 0 && rng.one_in(u64::from(one_in))
}

impl Loses {
    pub(crate) fn by_chance(rng: &mut Prng) -> Loses {
        match rng.below(4) {
            0 => Loses::Nothing,
            1 => Loses::All,
            _ => Loses::Part,
        }
    }
}
