//! The pool under its load.

use base::{BLOCK, BLOCK_U64, BlockRange, Lba, Prng, Slice, VolumeId};
use model::status::CommitStatus;
use pool::raw::Geometry;

use pool::{CreateOptions, Pool, Settings};
use rt::{Order, Rt};

use super::disk::{MemoryDisk, Tables};

const MIB: u64 = 1 << 20;
const MIB_BLOCKS: u64 = MIB / BLOCK_U64;
const JOBS: u64 = 4;
/// Operations of the runtime that may be under way.
const SLOTS: usize = 4096;
/// The pool's uuid, and the disk's.
const IDS: [[u8; 16]; 2] = [[1; 16], [2; 16]];

/// The block groups of a pool.
#[derive(Clone, Copy)]
pub(super) struct Groups {
    pub count: u64,
    /// The size of each.
    pub mib: u64,
}

/// The rounds of a load.
#[derive(Clone, Copy)]
pub(super) struct Rounds {
    pub count: u64,
    /// The writes of each round, by all jobs together.
    pub writes: u64,
}

/// The range of the volume that each job writes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Spread {
    Hot,
    Files,
    Everything,
}

impl Spread {
    pub const ALL: [Spread; 3] = [Spread::Hot, Spread::Files, Spread::Everything];

    pub fn name(self) -> &'static str {
        match self {
            Spread::Hot => "hot",
            Spread::Files => "files",
            Spread::Everything => "everything",
        }
    }

    /// A job's range in a volume of so many blocks.
    fn range(self, job: u64, blocks: u64) -> BlockRange {
        let quarter = blocks / JOBS;
        match self {
            Spread::Hot => BlockRange::of(Lba(job * quarter), MIB_BLOCKS.min(quarter)),
            Spread::Files => BlockRange::of(Lba(job * quarter), (512 * MIB_BLOCKS).min(quarter)),
            Spread::Everything => BlockRange::of(Lba(0), blocks),
        }
    }
}

/// The counters under one load.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct CommitCounts {
    pub commits: u64,
    /// Updates of block groups: bitmap pages and records.
    pub written: u64,
    pub skipped: u64,
    pub bitmap_pages: u64,
    pub record_pages: u64,
    /// Records that have changed while their number of used blocks has not.
    pub same_used: u64,
}

impl CommitCounts {
    /// Groups touched: each has a bitmap page and a record, which are written or skipped.
    pub fn touched(&self) -> u64 {
        (self.written + self.skipped) / 2
    }
}

/// The counters of the pool and of the disk at some time.
struct Counters {
    commit: CommitStatus,
    tables: Tables,
}

impl Counters {
    fn of(pool: &Pool, disk: &MemoryDisk) -> Counters {
        Counters { commit: pool.status().commit, tables: disk.tables() }
    }
}

/// Fills a pool of these groups, and writes to it under one load after the other: in rounds, each
/// of which ends with a commit.
pub(super) fn run(groups: Groups, rounds: Rounds) -> Vec<(Spread, CommitCounts)> {
    let group_bytes = groups.mib * MIB;
    // The tables take a little, and have room for a larger pool.
    let size_bytes = groups.count * group_bytes * 21 / 20 + 16 * MIB;
    let geometry = Geometry::choose(&[size_bytes], Some(group_bytes));
    let disk = MemoryDisk::new(size_bytes, IDS[0], geometry);
    let rt = Rt::new(disk.backend(), Order::Fifo, SLOTS);
    let found = rt.block_on(loads(rt.clone(), disk, groups, rounds));
    rt.kill();
    found.expect("the runtime ends when its task does")
}

async fn loads(
    rt: Rt,
    disk: MemoryDisk,
    groups: Groups,
    rounds: Rounds,
) -> Vec<(Spread, CommitCounts)> {
    let files = vec![disk.file.clone()];
    let group_bytes = groups.mib * MIB;
    let options =
        CreateOptions { name: "experiment".into(), copies: 1, group_bytes: Some(group_bytes) };
    pool::create(&rt, &files, &options, &IDS).await.expect("create");
    let (pool, _) = Pool::open(&rt, files, Settings::default()).await.expect("open");
    let blocks = groups.count * group_bytes * 7 / 10 / MIB * MIB_BLOCKS;
    let volume = pool.create_volume("volume", blocks * BLOCK_U64, 4096).await.expect("a volume");
    let mib = full_of(&pool, MIB as usize);
    for at in (0..blocks).step_by(MIB_BLOCKS as usize) {
        pool.write(volume, Lba(at), &mib).await.expect("write");
    }
    pool.commit().await.expect("commit");
    let mut found = Vec::new();
    for spread in Spread::ALL {
        let before = Counters::of(&pool, &disk);
        for round in 0..rounds.count {
            let start = |job| {
                let seed = round * JOBS + job;
                let range = spread.range(job, blocks);
                rt.spawn(write(pool.clone(), volume, range, seed, rounds.writes / JOBS))
            };
            let jobs: Vec<_> = (0..JOBS).map(start).collect();
            for job in jobs {
                job.await;
            }
            pool.commit().await.expect("commit");
        }
        found.push((spread, counted(&before, &Counters::of(&pool, &disk))));
    }
    pool.close().await.expect("close");
    found
}

/// A job: writes so many blocks at random.
async fn write(pool: Pool, volume: VolumeId, range: BlockRange, seed: u64, writes: u64) {
    let block = full_of(&pool, BLOCK);
    let mut rng = Prng::new(seed);
    for _ in 0..writes {
        let at = range.from.0 + rng.below(range.blocks());
        pool.write(volume, Lba(at), &block).await.expect("write");
    }
}

/// Blocks that the disk keeps as one number.
fn full_of(pool: &Pool, len: usize) -> Slice {
    let mut buf = pool.bufs().take(len);
    buf.fill(1);
    buf.freeze()
}

fn counted(before: &Counters, after: &Counters) -> CommitCounts {
    let (a, b) = (&before.commit.block_group_updates, &after.commit.block_group_updates);
    let (old, new) = (&before.tables, &after.tables);
    CommitCounts {
        commits: after.commit.count - before.commit.count,
        written: b.written - a.written,
        skipped: b.skipped - a.skipped,
        bitmap_pages: new.bitmap_pages - old.bitmap_pages,
        record_pages: new.record_pages - old.record_pages,
        same_used: new.same_used - old.same_used,
    }
}
