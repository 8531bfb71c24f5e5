//! Hit ratios, with buckets as the cache has them: written blocks are appended to one open bucket,
//! blocks that were missed to another; a victim takes all of its blocks with it, and an overwritten
//! block leaves a hole. Hits are counted by block, of reads alone, after the first fifth.

use std::collections::VecDeque;

use base::Prng;
use cache::replacement::{Policy, Replacement};

const BUCKET_BLOCKS: u32 = 128;
const NONE: u32 = u32::MAX;
/// Requests of a synthetic load.
const REQUESTS: usize = 6_000_000;
/// Blocks of a synthetic volume: 4 GiB.
const BLOCKS: u64 = 1 << 20;

/// One block, and whether it is written.
type Access = (u32, bool);

struct Cache {
    replacement: Replacement,
    /// The place of each block of the volume: bucket and slot as one number.
    place: Vec<u32>,
    /// The block in each place.
    holds: Vec<u32>,
    live: Vec<u32>,
    free: VecDeque<u32>,
    /// Bucket and blocks filled, for writes and for what was missed.
    open: [Option<(u32, u32)>; 2],
}

impl Cache {
    fn new(policy: Policy, blocks: usize, buckets: u32) -> Cache {
        Cache {
            replacement: Replacement::new(policy, buckets as usize, 1),
            place: vec![NONE; blocks],
            holds: vec![NONE; (buckets * BUCKET_BLOCKS) as usize],
            live: vec![0; buckets as usize],
            free: (0..buckets).collect(),
            open: [None; 2],
        }
    }

    /// True if it was a hit.
    fn access(&mut self, (block, write): Access) -> bool {
        let at = self.place[block as usize];
        if at != NONE && !write {
            self.replacement.touch(at / BUCKET_BLOCKS);
            return true;
        }
        if at != NONE {
            self.drop_block(at);
        }
        let (bucket, filled) = match self.open[usize::from(write)] {
            Some(open) => open,
            None => (self.take_bucket(), 0),
        };
        let at = bucket * BUCKET_BLOCKS + filled;
        self.holds[at as usize] = block;
        self.place[block as usize] = at;
        self.live[bucket as usize] += 1;
        let full = filled + 1 == BUCKET_BLOCKS;
        if full {
            self.replacement.insert(bucket);
        }
        self.open[usize::from(write)] = (!full).then_some((bucket, filled + 1));
        false
    }

    /// An overwritten block; a sealed bucket without blocks is free.
    fn drop_block(&mut self, at: u32) {
        let bucket = at / BUCKET_BLOCKS;
        self.holds[at as usize] = NONE;
        self.live[bucket as usize] -= 1;
        if self.live[bucket as usize] == 0 && self.replacement.contains(bucket) {
            self.replacement.remove(bucket);
            self.free.push_back(bucket);
        }
    }

    fn take_bucket(&mut self) -> u32 {
        if let Some(bucket) = self.free.pop_front() {
            return bucket;
        }
        let Some(bucket) = self.replacement.victim(|_| true) else {
            unreachable!("no more than two buckets are open")
        };
        for at in bucket * BUCKET_BLOCKS..(bucket + 1) * BUCKET_BLOCKS {
            let block = std::mem::replace(&mut self.holds[at as usize], NONE);
            if block != NONE {
                self.place[block as usize] = NONE;
            }
        }
        self.live[bucket as usize] = 0;
        bucket
    }
}

/// Ranks by popularity to blocks: Zipf's law, drawn from the table of its sums.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(s: f64) -> Zipf {
        let mut sum = 0.0;
        Zipf(
            (1..=BLOCKS)
                .map(|k| {
                    sum += (k as f64).powf(-s);
                    sum
                })
                .collect(),
        )
    }

    fn draw(&self, prng: &mut Prng) -> u32 {
        let Some(all) = self.0.last() else { unreachable!("there are blocks") };
        let at = prng.next_u64() as f64 / u64::MAX as f64 * all;
        let rank = self.0.partition_point(|&sum| sum < at) as u64;
        // An odd factor: a permutation that spreads the popular ones.
        (rank.wrapping_mul(0x9E37_79B1) % BLOCKS) as u32
    }
}

fn zipf(s: f64, writes_percent: u64) -> Vec<Access> {
    let (zipf, mut prng) = (Zipf::new(s), Prng::new(3));
    (0..REQUESTS).map(|_| (zipf.draw(&mut prng), prng.below(100) < writes_percent)).collect()
}

/// Zipf, and between it scans of 64 Ki blocks, once each, a third of all requests.
fn scans() -> Vec<Access> {
    let (zipf, mut prng) = (Zipf::new(0.9), Prng::new(4));
    let mut scan = 0;
    let mut next = || {
        if prng.below(3) > 0 {
            return (zipf.draw(&mut prng), false);
        }
        scan = (scan + 1) % BLOCKS;
        (scan as u32, false)
    };
    (0..REQUESTS).map(|_| next()).collect()
}

/// Round and round through a quarter of the volume.
fn round() -> Vec<Access> {
    (0..REQUESTS).map(|i| ((i as u64 % (BLOCKS / 4)) as u32, false)).collect()
}

fn trace(path: &str) -> Result<Vec<Access>, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    // Blocks are numbered as they come, so that tables are as long as what is used.
    let mut numbers = std::collections::BTreeMap::new();
    let mut out = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let f: Vec<&str> = line.split(',').collect();
        let [_, op, offset, length] = f[..] else {
            return Err(format!("{path}:{}: not four columns", i + 1));
        };
        let (Ok(offset), Ok(length)) = (offset.parse::<u64>(), length.parse::<u64>()) else {
            if i == 0 {
                continue;
            }
            return Err(format!("{path}:{}: not a number", i + 1));
        };
        for block in offset / 4096..(offset + length).div_ceil(4096) {
            let new = numbers.len() as u32;
            out.push((*numbers.entry(block).or_insert(new), op == "W"));
        }
    }
    Ok(out)
}

/// Prints the hit ratios of all policies.
pub fn hits(path: Option<&str>) -> Result<(), String> {
    let mut loads = vec![
        ("zipf 0.9", zipf(0.9, 0)),
        ("zipf 1.1", zipf(1.1, 0)),
        ("zipf 0.9, 30 % writes", zipf(0.9, 30)),
        ("zipf 0.9 and scans", scans()),
        ("loop", round()),
    ];
    if let Some(path) = path {
        loads.push(("trace", trace(path)?));
    }
    print!("{:24} {:>7} {:>9}", "load", "cache %", "MiB");
    Policy::ALL.iter().for_each(|p| print!(" {p:>7}"));
    println!();
    for (name, load) in loads {
        let blocks = load.iter().map(|a| a.0 + 1).max().unwrap_or(0);
        // Of the blocks that a load uses.
        let shares: &[u32] = if name == "loop" { &[50, 80, 95] } else { &[2, 5, 10, 20, 40] };
        for &share in shares {
            let buckets = (blocks / BUCKET_BLOCKS * share / 100).max(4);
            print!("{name:24} {share:>7} {:>9.1}", f64::from(buckets) / 2.0);
            for policy in Policy::ALL {
                let mut cache = Cache::new(policy, blocks as usize, buckets);
                let (mut reads, mut hits) = (0u64, 0u64);
                for (i, &access) in load.iter().enumerate() {
                    let hit = cache.access(access);
                    if i >= load.len() / 5 && !access.1 {
                        reads += 1;
                        hits += u64::from(hit);
                    }
                }
                print!(" {:>7.1}", hits as f64 * 100.0 / reads.max(1) as f64);
            }
            println!();
        }
    }
    Ok(())
}
