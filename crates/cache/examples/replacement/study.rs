//! Hit ratios: counted by block, of reads alone, after the first fifth; and for the adaptive policy
//! how many blocks survivors make it write for each block that comes to the cache.

use cache::replacement::keeps_blocks;
use model::cache::Policy;

use crate::loads::{self, Load};
use crate::simulation::{BUCKET_BLOCKS, Cache};

/// What a first study of the adaptive policy came to, in a simulator of its own: load, cache, hit
/// ratio, and blocks moved for each inserted.
const STUDY: [(&str, u32, f64, f64); 13] = [
    ("zipf 0.9", 2, 53.8, 0.08),
    ("zipf 0.9", 10, 68.4, 0.18),
    ("zipf 0.9", 40, 83.9, 0.27),
    ("zipf 1.1", 2, 83.3, 0.11),
    ("zipf 0.9, 30 % writes", 2, 52.3, 0.19),
    ("zipf 0.9, 30 % writes", 10, 65.4, 0.20),
    ("zipf 0.9 and scans", 10, 46.6, 0.09),
    ("loop", 50, 42.4, 0.32),
    ("loop", 95, 89.9, 0.58),
    ("trace", 5, 14.9, 0.03),
    ("trace", 10, 25.4, 0.09),
    ("trace", 20, 48.9, 0.16),
    ("trace", 40, 61.8, 0.11),
];

/// Prints what policies come to, beside the first study.
pub fn hits(trace: Option<&str>, policies: &[Policy]) -> Result<(), String> {
    table(loads::steady(trace)?, policies);
    Ok(())
}

/// The same for loads whose popular blocks change.
pub fn shifting(policies: &[Policy]) {
    table(loads::shifting(), policies);
}

fn table(loads: Vec<Load>, policies: &[Policy]) {
    print!("{:24} {:>7} {:>9}", "load", "cache %", "MiB");
    policies.iter().for_each(|p| print!(" {p:>8}"));
    println!(" {:>6} {:>14}", "moved", "first study");
    for load in loads {
        let blocks = load.accesses.iter().map(|a| a.0 + 1).max().unwrap_or(0);
        for &percent in load.caches {
            let buckets = (blocks / BUCKET_BLOCKS * percent / 100).max(8);
            print!("{:24} {percent:>7} {:>9.1}", load.name, f64::from(buckets) / 2.0);
            let mut moved = 0.0;
            for &policy in policies {
                let (hits, by) = run(policy, &load, blocks, buckets);
                print!(" {hits:>8.1}");
                if keeps_blocks(policy) {
                    moved = by;
                }
            }
            let before = STUDY.iter().find(|s| (s.0, s.1) == (load.name, percent));
            let before = before.map_or(String::new(), |s| format!("{:.1} / {:.2}", s.2, s.3));
            println!(" {moved:>6.2} {before:>14}");
        }
    }
}

/// Hit ratio in percent, and blocks moved for each inserted.
fn run(policy: Policy, load: &Load, blocks: u32, buckets: u32) -> (f64, f64) {
    let mut cache = Cache::new(policy, blocks as usize, buckets);
    let (mut reads, mut hits) = (0u64, 0u64);
    for (i, &access) in load.accesses.iter().enumerate() {
        let hit = cache.access(access);
        if i >= load.accesses.len() / 5 && !access.1 {
            reads += 1;
            hits += u64::from(hit);
        }
    }
    let percent = hits as f64 * 100.0 / reads.max(1) as f64;
    (percent, cache.moved as f64 / cache.inserted.max(1) as f64)
}
