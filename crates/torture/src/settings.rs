//! The settings of a run: what operations and faults there are, and how large and slow everything
//! is. [`crate::swarm`] draws them.

use base::Duration;
use sim::{DiskModel, FaultRates, FlushLoss};

/// The extent of the damage that may happen.
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
    /// The weight of reads.
    pub read: u64,
    /// The weight of flushes.
    pub flush: u64,
    /// The weight of discards.
    pub discard: u64,
    /// The weight of write-zeroes.
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

/// The faults that there are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// The rates of faults that lose data and happen by themselves on the victims.
    pub rates: FaultRates,
    /// The rates of harmless faults (short transfers, stuck) on all devices.
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

/// The way in which a boot ends.
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
pub struct BootPlan {
    /// The way in which the boot ends.
    pub ending: Ending,
    /// The number of answered operations after which the boot ends; it ends earlier if `cut_after`
    /// is shorter.
    pub operations: u64,
    /// The time after which the boot ends at the latest: short ones end in the middle of opening.
    pub cut_after: Duration,
    /// The operation of the boot at the seam at which the boot ends, at the latest: see
    /// [`crate::failures`].
    pub cut_at: Option<Moment>,
    /// Everything is read and compared first.
    pub verify: bool,
}

/// The damage to the cache's device, beside being lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheDamage {
    /// No damage: the device is only lost, if at all.
    None,
    /// The device dies while it is in use.
    Dies,
    /// Bits rot, or sectors become unreadable, in the superblocks.
    Superblocks,
    /// The same in the bucket table.
    Table,
    /// The same in the journal.
    Journal,
    /// The same in buckets: data and nodes of the index.
    Buckets,
    /// The device is at a start as it was some boots before.
    Older,
    /// The device answers flushes and makes nothing durable: power takes what was flushed.
    Lies,
}

/// The cache of a run.
#[derive(Clone, Debug)]
pub struct CachePlan {
    /// The cache's device.
    pub disk: DiskModel,
    /// Bytes of a bucket.
    pub bucket_bytes: u64,
    /// Bytes of the journal.
    pub journal_bytes: u64,
    /// The cache's settings.
    pub settings: cache::Settings,
    /// The cache is lost between two boots once in so many; 0 for never.
    pub lost: u64,
    /// The damage to the cache's device.
    pub damage: CacheDamage,
    /// The cache is detached at a close once in so many; 0 for never.
    pub detach: u64,
    /// The rates of short transfers, and of times in which the device is stuck.
    pub harmless: FaultRates,
}

/// Changes in front of the pool, under load: each comes once in so many operations; 0 for never.
#[derive(Clone, Copy, Default, Debug)]
pub struct Changes {
    /// The mode of a volume changes.
    pub mode: u64,
    /// Half of the volumes get another mode when a boot begins.
    pub first_modes: bool,
    /// A cache is attached, or detached.
    pub cache: u64,
    /// After each of these two all volumes are flushed.
    pub flush: bool,
    /// Settings of pool and cache change.
    pub settings: u64,
    /// The limits of a volume change: how much clients may ask of it, with or without a cache.
    pub limits: u64,
    /// A scrub begins, rests, goes on or ends.
    pub scrubs: u64,
    /// A device is added, replaced or removed.
    pub moves: u64,
    /// Snapshots are taken, renamed or deleted.
    pub snapshots: u64,
    /// Snapshots that there are at most at a time.
    pub kept_snapshots: usize,
}

/// A pool device that is slow at times.
#[derive(Clone, Copy, Debug)]
pub struct SlowDevice {
    /// The index of the device.
    pub device: usize,
    /// The time that every operation on the device takes then on top.
    pub delay: Duration,
    /// The longest time for which the device is slow.
    pub time: Duration,
}

/// The settings of one run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The seed that all draws follow from.
    pub seed: u64,
    /// The models of the devices of the pool.
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
    /// Clients over the wire vanish once in so many operations; 0 for never.
    pub vanish: u64,
    /// Requests of a client in flight.
    pub depth: usize,
    /// The mix of operations that clients do.
    pub mix: Mix,
    /// Share of accesses, in 16, that go to a few hot places.
    pub hot: u64,
    /// The extent of the damage that may happen.
    pub damage: Damage,
    /// The devices that are damaged.
    pub victims: Vec<usize>,
    /// The faults that there are.
    pub faults: Faults,
    /// The plan of each boot, in order.
    pub boots: Vec<BootPlan>,
    /// The cache, if there is one.
    pub cache: Option<CachePlan>,
    /// Changes in front of the pool: most of them only if there may be a cache.
    pub changes: Changes,
    /// A slow device.
    pub slow: Option<SlowDevice>,
    /// The largest ordinary write, in blocks.
    pub most_blocks: u64,
    /// Changes wait for a flush of their own once in so many.
    pub fua: u64,
    /// Operations that fail, and what goes with them.
    pub failures: Failures,
    /// The one class of fault that the run is about.
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

/// The way in which a needed device fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailureMode {
    /// The next flush of the device fails.
    Flush(FlushLoss),
    /// All flushes fail from now on.
    Flushes(FlushLoss),
    /// The next read, write or flush fails.
    Once,
    /// The next write or flush is done, and reported as failed.
    ButDone,
    /// The device is away for a time, and comes back with all that it had acknowledged.
    Away,
    /// The device dies, and comes back at the next start with what was flushed.
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
pub enum FailingDevices {
    /// One of the pool's.
    OneOfPool,
    /// All of the pool's, at once.
    AllOfPool,
    /// The cache's.
    Cache,
    /// Every device: those of the pool, and the cache's.
    All,
}

/// Boots after a crash that end at an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HastyBoots {
    /// The number of such boots after each crash, at most.
    pub most: u64,
}

/// Which operations of devices fail, which boots end unexpectedly, and storms of writers
/// ([`crate::failures`]).
#[derive(Clone, Copy, Default, Debug)]
pub struct Failures {
    /// Victims' flushes fail, and operations that are done are reported as failed: once in so many.
    pub victims: FaultRates,
    /// Devices that are needed fail, in most boots.
    pub needed: Option<(FailureMode, FailingDevices)>,
    /// Reads fail by chance, and are well the next time: once in so many; 0 for never.
    pub flaky_reads: u32,
    /// Blocks of data in the cache, of those written last, that cannot be read any more: so many at
    /// most before a boot; 0 for none.
    pub unreadable: u64,
    /// The blocks go bad all the time, also while the cache is in use.
    pub often: bool,
    /// Nodes of trees of which no copy can be read for a boot: so many at most of each volume, or
    /// block group, that is struck; 0 for none.
    pub lost_nodes: u64,
    /// Data that a start reads cannot be read, at the first tries or until the boot ends.
    pub start: bool,
    /// Boots after a crash end early.
    pub hasty: Option<HastyBoots>,
    /// Hundreds of writers, each of which waits for its flush.
    pub storm: bool,
    /// The cache collects all the time.
    pub collects: bool,
}

impl Aim {
    /// Returns the name of the aim, for commands.
    pub fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

/// The class of fault that a run is aimed at ([`crate::aims`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aim {
    /// Kill, restart, power cut.
    Churn,
    /// Data that a start reads cannot be read.
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
    /// Snapshots are taken and deleted all the time.
    Snapshots,
}
