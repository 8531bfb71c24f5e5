//! What can go wrong with a disk, and how often.

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
    /// The host's file system is full (or no longer): writes to what was never written fail with ENOSPC.
    Full(bool),
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
