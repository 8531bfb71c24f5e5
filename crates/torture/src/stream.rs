//! Streams of random numbers: one for each kind of thing that a run draws.
//!
//! Each stream follows from the seed of the run alone, and the draws of one stream disturb no
//! other. So a kind of thing that is added gets a stream of its own, and all else that a seed draws
//! stays what it was.

use base::Prng;
use base::prng::mix64;

/// A stream, by what is drawn from it. Each number is the stream's own: a seed keeps its meaning as
/// long as the numbers stay.
#[derive(Clone, Copy)]
#[repr(u64)]
pub(crate) enum Stream {
    /// The pool, its devices, the load and the boots.
    Run = 0x70_1237,
    /// Whether there is a cache, and which one.
    Cache = 0xCAC4_E000,
    /// When the cache cuts and seals.
    Cuts = 0x5EA1_0000,
    /// Whether the cache device lies.
    CacheLies = 0x11E5_0CAC,
    /// The kind that the queue takes a device for.
    DeviceKind = 0xD15C_0000,
    /// The distance by which data is read ahead.
    ReadAhead = 0xA4EA_D000,
    /// Changes of modes and of the cache while clients work; a device that is slow for some time.
    Changes = 0xC4A9_6E50,
    /// Changes of settings while clients work.
    SettingChanges = 0x5E77_1465,
    /// Changes of the limits of volumes.
    Limits = 0x0011_4175,
    /// Scrubs.
    Scrubs = 0x5C20_B5C2,
    /// Devices that come and go.
    Moves = 0x0D0E_71CE,
    /// Snapshots.
    Snapshots = 0x5A95_4075,
    /// Discards that fail; devices that hang, are cut short or come back as another.
    DeviceFaults = 0x3A9E_FA17,
    /// The failure that a run is about.
    Failure = 0xFA11_0000_0000,
    /// Failures of ranges, hangs and the power of one device.
    LastingFailure = 0x0F41_1146,
    /// The aim.
    Aim = 0xA13E_D000,
    /// Whether a run without another aim is aimed at snapshots.
    SnapshotAim = 0xA13E_5A95,
}

impl Stream {
    /// The numbers of this stream in the run `seed`.
    pub fn of(self, seed: u64) -> Prng {
        Prng::new(mix64(seed ^ self as u64))
    }
}
