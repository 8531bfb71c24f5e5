//! The models of disks, and random latencies.

use base::{Duration, Prng, SECTOR};

/// The model of a disk: its size and its speed.
#[derive(Clone, Debug)]
pub struct DiskModel {
    /// The size in bytes, a multiple of 4096.
    pub size_bytes: u64,
    /// The smallest and largest latency of a read, without the transfer.
    pub read_latency: (Duration, Duration),
    /// The same for a write or a discard.
    pub write_latency: (Duration, Duration),
    /// The same for a flush.
    pub flush_latency: (Duration, Duration),
    /// The bandwidth that all transfers share.
    pub bytes_per_second: u64,
    /// Number of operations that are served at once. Further operations wait.
    pub depth: usize,
    /// The required alignment of offsets, lengths and memory, as with `O_DIRECT`. Other requests
    /// fail with EINVAL. 1 allows everything.
    pub align: u64,
}

impl DiskModel {
    /// A fast solid-state drive.
    pub fn nvme(size_bytes: u64) -> DiskModel {
        let us = Duration::from_micros;
        DiskModel {
            size_bytes,
            read_latency: (us(50), us(120)),
            write_latency: (us(10), us(60)),
            flush_latency: (us(50), us(800)),
            bytes_per_second: 3_000_000_000,
            depth: 64,
            align: SECTOR as u64,
        }
    }

    /// A rotating disk.
    pub fn rotating(size_bytes: u64) -> DiskModel {
        let ms = Duration::from_millis;
        DiskModel {
            size_bytes,
            read_latency: (ms(1), ms(15)),
            write_latency: (Duration::from_micros(100), ms(15)),
            flush_latency: (ms(5), ms(30)),
            bytes_per_second: 200_000_000,
            depth: 4,
            align: SECTOR as u64,
        }
    }
}

/// Draws a duration from the range, in nanoseconds.
pub(crate) fn by_range((least, most): (Duration, Duration), rng: &mut Prng) -> u64 {
    let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX >> 1);
    rng.range(ns(least), ns(most).max(ns(least)) + 1)
}
