//! The faults of a disk, and their rates.

use std::collections::VecDeque;

use base::{ByteRange, Duration, Prng};

/// A fault to inject into one disk with [`World::inject`](crate::World::inject).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Flips one to eight bits in the stored content of one sector in the range.
    BitRot {
        /// Bytes from the start of the disk.
        offset: u64,
        /// Number of bytes, not 0.
        len: u64,
    },
    /// Flips bits of a random sector in a page of 4 KiB that was ever written.
    BitRotAnywhere,
    /// Every sector that the range touches fails reads with EIO until it is written again.
    ReadError {
        /// Bytes from the start of the disk.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// One to sixteen adjacent sectors fail reads with EIO until they are written again. The first
    /// one lies in a page that was ever written.
    ReadErrorAnywhere,
    /// The next write goes to another place that was written before. Its own place keeps its
    /// content.
    MisdirectNextWrite,
    /// The next write is acknowledged but never done.
    LoseNextWrite,
    /// The next read or write of more than a sector moves fewer bytes than were asked for.
    ShortenNext,
    /// The next read, write or flush fails with EIO. After a failed write each sector in its range
    /// is old or new.
    FailNext,
    /// Operations in flight and later ones complete only after this time; then all of them do.
    Stuck(Duration),
    /// No operation completes until the power is cut or the disk is
    /// [revived](crate::World::revive).
    StuckForever,
    /// The disk is gone, and its cache with it. All operations fail until the disk is
    /// [revived](crate::World::revive). If the cache held writes, one flush that covers them fails
    /// in this boot: if none was tried while the disk was gone, the first one after that.
    Dead,
    /// The path to the disk is gone. All operations fail until the disk is
    /// [revived](crate::World::revive). The cache stays, so the disk comes back with all
    /// acknowledged writes. Each operation in flight is done or not.
    Unreachable,
    /// Flushes fail with EIO, as `fsync` does on Linux: the error is reported once, and everything
    /// that the flush covered then counts as clean. Reads still see the sectors that it
    /// [loses](FlushLoss), and no later flush makes them stable until they are written again. A
    /// power cut loses them. After a kill, each of them holds the version of the medium, or its
    /// newest version as an ordinary unflushed write. The reason is that a new program reads past
    /// the host's page cache.
    FailFlush {
        /// The flushes that fail.
        times: Times,
        /// The content that the flushes lose.
        loses: FlushLoss,
    },
    /// From now on flushes and durable writes are answered, and make nothing stable, until the disk
    /// is [revived](crate::World::revive).
    Lie,
    /// The next write or flush is done but reported as failed with EIO.
    FailNextButDo,
    /// The next `times` reads that touch the range fail with EIO; later reads succeed. This
    /// outlasts boots. It ends early when the disk is [revived](crate::World::revive).
    FailReads {
        /// Bytes from the start of the disk.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// Number of reads.
        times: u32,
    },
    /// Every write that touches the range fails with EIO and changes nothing, for good: until the
    /// disk is [cured](crate::World::cure), or [takes writes](Fault::TakeWrites) again.
    FailWrites {
        /// Bytes from the start of the disk.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Ends all [`Fault::FailWrites`].
    TakeWrites,
    /// Sets whether the host's file system is full. If it is, writes to pages that were never
    /// written fail with ENOSPC.
    Full(bool),
}

/// The number of operations that a fault hits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Times {
    /// The next ones of this boot, as many as the number says.
    Next(u32),
    /// All operations, in this boot and later ones, until the disk is
    /// [revived](crate::World::revive).
    Always,
}

/// Which of the writes that it covered a failed flush loses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushLoss {
    /// None. A later flush makes them stable.
    Nothing,
    /// Some sectors, drawn in the way of a power cut.
    Part,
    /// All that were not stable before.
    All,
}

/// Random faults: a rate of `n` means one in `n` operations, and 0 (the default) means never.
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
    /// [`Fault::Stuck`], for any operation, for at most `stuck_for`.
    pub stuck: u32,
    /// [`Fault::FailFlush`], for flushes: one flush fails, and loses nothing, a part, or all.
    pub failed_flush: u32,
    /// [`Fault::FailNextButDo`], for writes and flushes.
    pub failed_but_done: u32,
    /// [`Fault::FailReads`], for reads: this read fails, and later ones there succeed.
    pub transient_read: u32,
    /// A discard fails with EIO, after it has done all, a part, or nothing.
    pub failed_discard: u32,
    /// The longest time for which a disk is stuck by chance.
    pub stuck_for: Duration,
}

/// The number of faults that took effect.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FaultCounts {
    /// Sectors in which bits were flipped.
    pub bit_rot: u64,
    /// Sectors that were made unreadable.
    pub unreadable_sectors: u64,
    /// Reads that failed because of such a sector.
    pub read_errors: u64,
    /// Writes that failed because of a range that takes none.
    pub write_errors: u64,
    /// Writes that went to another place.
    pub misdirected_writes: u64,
    /// Writes that were acknowledged but not done.
    pub lost_writes: u64,
    /// Reads and writes that were short.
    pub short_transfers: u64,
    /// Operations that failed once.
    pub transient_errors: u64,
    /// Times that the disk was stuck.
    pub stuck: u64,
    /// Times that the disk died.
    pub dead: u64,
    /// Times that the path to the disk was lost.
    pub unreachable: u64,
    /// Flushes that failed.
    pub failed_flushes: u64,
    /// Sectors whose newest version a failed flush has lost.
    pub lost_sectors: u64,
    /// Writes and flushes that were done and reported as failed.
    pub failed_but_done: u64,
    /// Reads of readable sectors that failed.
    pub transient_reads: u64,
    /// Writes that failed or were short because the host was full.
    pub no_space: u64,
    /// Discards that failed.
    pub failed_discards: u64,
    /// Flushes and durable writes that were answered, and made nothing stable.
    pub lies: u64,
}

/// Faults that wait for the next operation they apply to.
#[derive(Default)]
pub(crate) struct ArmedFaults {
    pub misdirect: u32,
    pub lose: u32,
    pub shorten: u32,
    pub fail: u32,
    pub fail_but_do: u32,
    pub fail_flush: VecDeque<FlushLoss>,
}

/// Ranges whose reads fail for a while.
#[derive(Default)]
pub(crate) struct FlakyRanges {
    /// Ranges, and how many more of their reads fail.
    ranges: Vec<(ByteRange, u32)>,
    /// Ranges where reads failed last by chance. The next reads there succeed.
    spared: VecDeque<ByteRange>,
}

impl FlakyRanges {
    /// The largest number of spared ranges.
    const SPARED: usize = 16;

    pub fn add(&mut self, range: ByteRange, times: u32) {
        self.ranges.push((range, times));
    }

    /// Ends all requested failures of reads.
    pub fn heal(&mut self) {
        self.ranges.clear();
    }

    /// Whether a read of readable sectors fails now.
    pub fn fails(&mut self, offset: u64, len: u64, one_in: u32, rng: &mut Prng) -> bool {
        let read = ByteRange::new(offset, offset + len);
        let touches = |range: &ByteRange| range.overlaps(&read);
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
        self.spared.push_back(read);
        true
    }
}

/// Whether a fault happens now, because it was requested or by chance.
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

impl FlushLoss {
    pub(crate) fn by_chance(rng: &mut Prng) -> FlushLoss {
        match rng.below(4) {
            0 => FlushLoss::Nothing,
            1 => FlushLoss::All,
            _ => FlushLoss::Part,
        }
    }
}
