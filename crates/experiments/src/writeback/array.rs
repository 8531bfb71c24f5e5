//! The array behind the cache: disks with blocks striped over them.

use std::collections::BTreeMap;

use base::{BLOCK, BLOCK_U64, Instant, Prng};
use emulate::{Access, Emulate, Emulation, Ticket};

/// Disks, and bytes of each.
const DISKS: u64 = 16;
const DISK_BYTES: u64 = 256 << 30;
/// Blocks of the array.
pub(super) const BLOCKS: u64 = DISKS * DISK_BYTES / BLOCK_U64;

/// The purpose of a request to the array.
#[derive(Clone, Copy, Debug)]
pub(super) enum Job {
    /// A dirty block is written back.
    WriteBack,
    /// A client's write, which came then, goes past the cache.
    Write(Instant),
    /// A client's read, which came then, has missed.
    Read(Instant),
}

struct ArrayDisk {
    model: Emulation,
    jobs: BTreeMap<Ticket, Job>,
}

pub(super) struct Array {
    disks: Vec<ArrayDisk>,
    done: Vec<Ticket>,
}

impl Array {
    pub fn new() -> Array {
        let disk = |_| ArrayDisk {
            model: Emulation::new(Emulate::Hdd, DISK_BYTES),
            jobs: BTreeMap::new(),
        };
        Array { disks: (0..DISKS).map(disk).collect(), done: Vec::new() }
    }

    /// A request for a block of the array.
    pub fn submit(&mut self, now: Instant, block: u64, job: Job) {
        let disk = &mut self.disks[(block % DISKS) as usize];
        let access = if matches!(job, Job::Read(_)) { Access::Read } else { Access::Write };
        let ticket = disk.model.submit(now, access, block / DISKS * BLOCK_U64, BLOCK);
        disk.jobs.insert(ticket, job);
    }

    /// Adds what is done by now.
    pub fn take_done(&mut self, now: Instant, out: &mut Vec<Job>) {
        for disk in &mut self.disks {
            disk.model.take_done(now, &mut self.done);
            out.extend(self.done.drain(..).filter_map(|ticket| disk.jobs.remove(&ticket)));
        }
    }
}

/// The blocks of the array that clients write to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    pub first: u64,
    pub blocks: u64,
}

impl Region {
    /// All of the array.
    pub const ALL: Region = Region { first: 0, blocks: BLOCKS };

    /// A region of `blocks` blocks in the middle of the array.
    pub fn middle(blocks: u64) -> Region {
        Region { first: (BLOCKS - blocks) / 2, blocks }
    }

    /// Returns a block of the region at random.
    pub fn any(&self, rng: &mut Prng) -> u64 {
        self.first + rng.below(self.blocks)
    }

    /// Returns `n` blocks of the region at even distances.
    pub fn spread(self, n: u64) -> impl Iterator<Item = u64> {
        (0..n).map(move |i| self.first + i * self.blocks / n)
    }
}
