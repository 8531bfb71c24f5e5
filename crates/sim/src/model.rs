//! The models of disks, and random latencies.

use base::{Duration, Prng, SECTOR};

/// The latencies that an operation may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Latency {
    /// The smallest one.
    pub least: Duration,
    /// The largest one.
    pub most: Duration,
}

impl Latency {
    /// From `least` to `most`.
    pub fn new(least: Duration, most: Duration) -> Latency {
        Latency { least, most }
    }

    /// Draws one, in nanoseconds.
    pub(crate) fn draw(&self, rng: &mut Prng) -> u64 {
        let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX >> 1);
        rng.range(ns(self.least), ns(self.most).max(ns(self.least)) + 1)
    }
}

/// The model of a disk: its size and its speed.
#[derive(Clone, Debug)]
pub struct DiskModel {
    /// The size in bytes, a multiple of 4096.
    pub size_bytes: u64,
    /// The latencies of a read, without the transfer.
    pub read_latency: Latency,
    /// The same for a write or a discard.
    pub write_latency: Latency,
    /// The same for a flush.
    pub flush_latency: Latency,
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
            read_latency: Latency::new(us(50), us(120)),
            write_latency: Latency::new(us(10), us(60)),
            flush_latency: Latency::new(us(50), us(800)),
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
            read_latency: Latency::new(ms(1), ms(15)),
            write_latency: Latency::new(Duration::from_micros(100), ms(15)),
            flush_latency: Latency::new(ms(5), ms(30)),
            bytes_per_second: 200_000_000,
            depth: 4,
            align: SECTOR as u64,
        }
    }
}
