//! The settings of a run: what operations and faults there are, and how large and slow everything
//! is. [`crate::swarm`] draws them.

use base::Duration;
use sim::{DiskModel, FaultRates, Loses};

/// How much may go wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Damage {
    /// Nothing that loses data.
    None,
    /// On as many devices as there are copies less one: nothing may be lost.
    Budget,
    /// On all devices: errors are allowed, wrong bytes never.
    Beyond,
}

/// Weights of what clients do; 0 is never.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mix {
    /// Writes of whole blocks.
    pub write: u64,
    /// Writes of sectors, aligned to nothing else.
    pub sectors: u64,
    /// Writes of up to 1 MiB.
    pub large: u64,
    /// Reads.
    pub read: u64,
    /// Flushes.
    pub flush: u64,
    /// Discards.
    pub discard: u64,
    /// Write-zeroes.
    pub zeroes: u64,
    /// Block status.
    pub extents: u64,
    /// Requests outside of the volume.
    pub outside: u64,
}

impl Mix {
    /// All weights, in the order of the fields.
    pub fn weights(&self) -> [u64; 9] {
        let m = self;
        [m.write, m.sectors, m.large, m.read, m.flush, m.discard, m.zeroes, m.extents, m.outside]
    }
}

/// Which faults there are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// How often faults that lose data happen by themselves on the victims.
    pub rates: FaultRates,
    /// How often harmless ones (short transfers, stuck) do on all.
    pub harmless: FaultRates,
    /// Victims die while the pool is open, and come back later.
    pub die: bool,
    /// Victims are absent at some boots.
    pub absent: bool,
    /// Victims come back as they were some boots before.
    pub stale: bool,
    /// In the place of a victim is another device at some boots, which is empty.
    pub swapped: bool,
    /// Victims are shorter at some boots than they were.
    pub truncated: bool,
    /// Victims hang while the pool is open, until the user takes them out of use.
    pub hang: bool,
    /// The host's file systems are full for a time.
    pub full: bool,
    /// Bit rot and unreadable sectors while the pool is closed.
    pub at_rest: bool,
}

/// How a boot ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The power goes.
    PowerCut,
    /// The process is killed.
    Kill,
    /// The pool is closed.
    Close,
}

/// An operation of a boot at the seam.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// After so many of any kind.
    Operation(u64),
    /// After so many writes to the cache's device, or as many operations if there is none.
    CacheWrite(u64),
    /// After so many writes of the cache's superblock: the last one is in flight.
    CacheSuperblock(u64),
    /// After so many flushes were answered.
    Flush(u64),
    /// After so many flushes were answered since so many beginnings and ends of changes: of a mode,
    /// of the cache, or of a volume's size.
    FlushAfterChange(u64, u64),
    /// The same with operations.
    OperationAfterChange(u64, u64),
}

/// One boot.
#[derive(Clone, Copy, Debug)]
pub struct Boot {
    /// How it ends.
    pub ending: Ending,
    /// It ends when so many operations were answered; or earlier, if `cut_after` is shorter.
    pub operations: u64,
    /// It ends after this time at the latest: short ones end in the middle of opening.
    pub cut_after: Duration,
    /// It ends at this operation of its own at the seam, at the latest: see [`crate::failures`].
    pub cut_at: Option<Moment>,
    /// Everything is read and compared first.
    pub verify: bool,
}

/// What happens to the cache's device, beside being lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheDamage {
    /// Nothing.
    None,
    /// It dies while it is in use.
    Dies,
    /// Bits rot, or sectors become unreadable: in the superblocks,
    Superblocks,
    /// in the bucket table,
    Table,
    /// in the journal,
    Journal,
    /// in buckets: data and nodes of the index.
    Buckets,
    /// At a start it is as it was some boots before.
    Older,
    /// The device answers flushes and makes nothing durable: power takes what was flushed.
    Lies,
}

/// The cache of a run.
#[derive(Clone, Debug)]
pub struct CachePlan {
    /// Its device.
    pub disk: DiskModel,
    /// Bytes of a bucket.
    pub bucket_bytes: u64,
    /// Bytes of the journal.
    pub journal_bytes: u64,
    /// Its settings.
    pub settings: cache::Settings,
    /// It is lost between two boots once in so many; 0 for never.
    pub lost: u64,
    /// What happens to its device.
    pub damage: CacheDamage,
    /// It is detached at a close once in so many; 0 for never.
    pub detach: u64,
    /// Short transfers, and times in which it is stuck.
    pub harmless: FaultRates,
}

/// What changes in front of the pool, under load: once in so many operations; 0 for never.
#[derive(Clone, Copy, Default, Debug)]
pub struct Changes {
    /// A volume's mode.
    pub mode: u64,
    /// Half of the volumes get another mode when a boot begins.
    pub first_modes: bool,
    /// A cache is attached, or detached.
    pub cache: u64,
    /// After each of these two all volumes are flushed.
    pub flush: bool,
    /// Settings of pool and cache change.
    pub settings: u64,
    /// How much clients may ask of a volume, with or without a cache.
    pub limits: u64,
    /// A scrub begins, rests, goes on or ends.
    pub scrubs: u64,
    /// A device is added, replaced or removed.
    pub moves: u64,
}

/// A pool device that is slow at times.
#[derive(Clone, Copy, Debug)]
pub struct Slow {
    /// Which.
    pub device: usize,
    /// What every operation on it takes then on top.
    pub delay: Duration,
    /// For how long at most.
    pub time: Duration,
}

/// What one run is like.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The seed.
    pub seed: u64,
    /// The devices.
    pub devices: Vec<DiskModel>,
    /// Copies of every block.
    pub copies: u8,
    /// Bytes in a block group.
    pub group_bytes: u64,
    /// The pool's settings.
    pub pool: pool::Settings,
    /// Operations in flight at the seam.
    pub slots: usize,
    /// Names of volumes.
    pub names: usize,
    /// Largest ordinary volume in bytes.
    pub volume_bytes: u64,
    /// Ordinary volumes have that size.
    pub full_size: bool,
    /// Some volumes are very large (and sparse).
    pub huge: bool,
    /// Volumes come, go and change size once in so many operations; 0 for never.
    pub admin: u64,
    /// Clients that call volumes directly.
    pub direct: usize,
    /// Clients over the wire.
    pub nbd: usize,
    /// They vanish once in so many operations; 0 for never.
    pub vanish: u64,
    /// Requests of a client in flight.
    pub depth: usize,
    /// What they do.
    pub mix: Mix,
    /// Share of accesses, in 16, that go to a few hot places.
    pub hot: u64,
    /// How much may go wrong.
    pub damage: Damage,
    /// The devices that fail so.
    pub victims: Vec<usize>,
    /// Which faults.
    pub faults: Faults,
    /// The boots.
    pub boots: Vec<Boot>,
    /// The cache, if there is one.
    pub cache: Option<CachePlan>,
    /// What changes in front of the pool: most of it only if there may be a cache.
    pub changes: Changes,
    /// A slow device.
    pub slow: Option<Slow>,
    /// The largest ordinary write, in blocks.
    pub most_blocks: u64,
    /// Changes wait for a flush of their own once in so many.
    pub fua: u64,
    /// Operations that fail, and what goes with them.
    pub failures: Failures,
    /// The one class of fault that it is about.
    pub aim: Option<Aim>,
    /// Devices become as they were some boots before once in so many boots; 0 for never. Of
    /// [`Aim::Copies`].
    pub older_copies: u64,
}

impl Settings {
    /// The sizes of the devices.
    pub fn total_bytes(&self) -> u64 {
        self.devices.iter().map(|d| d.size_bytes).sum()
    }
}

/// How a device fails that is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failing {
    /// Its next flush fails.
    Flush(Loses),
    /// All flushes fail from now on.
    Flushes(Loses),
    /// The next read, write or flush fails.
    Once,
    /// The next write or flush is done, and reported as failed.
    ButDone,
    /// It is away for a time, and comes back with all that it had acknowledged.
    Away,
    /// It dies, and comes back at the next start with what was flushed.
    Dies,
    /// The file system under it is full: what was never written there cannot be; for a time, or
    /// until a later start.
    Full,
    /// Part of it takes no writes, for a boot or more.
    Range,
    /// The device hangs: no request is answered any more, until the process is killed.
    Hangs,
    /// The device alone loses its power, for a moment: unflushed writes are gone, and its next
    /// flush fails.
    PowerAlone,
}

/// Which devices fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose {
    /// One of the pool's.
    OneOfPool,
    /// All of the pool's, at once.
    AllOfPool,
    /// The cache's.
    Cache,
    /// All.
    All,
}

/// Boots after a crash that end at an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hasty {
    /// How many at most after each.
    pub most: u64,
}

/// Which operations of devices fail, which boots end unexpectedly, and storms of writers
/// ([`crate::failures`]).
#[derive(Clone, Copy, Default, Debug)]
pub struct Failures {
    /// Victims' flushes fail, and operations that are done are reported as failed: once in so many.
    pub victims: FaultRates,
    /// Devices that are needed fail, in most boots.
    pub needed: Option<(Failing, Whose)>,
    /// Reads fail by chance, and are well the next time: once in so many; 0 for never.
    pub flaky_reads: u32,
    /// Blocks of data in the cache, of those written last, that cannot be read any more: so many at
    /// most before a boot; 0 for none.
    pub unreadable: u64,
    /// They go bad all the time, also while the cache is in use.
    pub often: bool,
    /// Nodes of trees of which no copy can be read for a boot: so many at most of each volume, or
    /// block group, that is struck; 0 for none.
    pub lost_nodes: u64,
    /// What a start reads cannot be read, at the first tries or until the boot ends.
    pub start: bool,
    /// Boots after a crash end early.
    pub hasty: Option<Hasty>,
    /// Hundreds of writers, each of which waits for its flush.
    pub storm: bool,
    /// The cache collects all the time.
    pub collects: bool,
}

impl Aim {
    /// Its name, for commands.
    pub fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

/// The class of fault that a run is aimed at ([`crate::aims`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aim {
    /// Kill, restart, power cut.
    Churn,
    /// What a start reads cannot be read.
    Start,
    /// Bad sectors beside good blocks.
    Beside,
    /// The ring fills up.
    Crowd,
    /// No copy of a node of a tree can be read.
    Unreachable,
    /// Volumes do not write back, and the cache fails.
    Through,
    /// Cache and modes change, and nothing else commits.
    Front,
    /// Sizes of volumes change, and the host is full at times.
    Sizes,
    /// Starts by some of the devices, and moves ([`crate::subsets`]).
    Subsets,
    /// The same, and devices become as they were before.
    Copies,
}
