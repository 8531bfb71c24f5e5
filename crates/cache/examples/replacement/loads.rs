//! The loads: made ones, and a trace.

use base::Prng;

use crate::simulation::Access;

/// Requests of a made load.
const REQUESTS: usize = 6_000_000;
/// Blocks of a made volume: 4 GiB.
const BLOCKS: u64 = 1 << 20;

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

    fn rank(&self, prng: &mut Prng) -> u64 {
        let Some(all) = self.0.last() else { unreachable!("there are blocks") };
        let at = prng.next_u64() as f64 / u64::MAX as f64 * all;
        self.0.partition_point(|&sum| sum < at) as u64
    }

    fn draw(&self, prng: &mut Prng) -> u32 {
        block_of(self.rank(prng))
    }
}

/// An odd factor: a permutation that spreads the popular ones.
fn block_of(rank: u64) -> u32 {
    (rank.wrapping_mul(0x9E37_79B1) % BLOCKS) as u32
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

/// A load, and the caches that it is tried with, in percent of the blocks that it uses.
pub struct Load {
    pub name: &'static str,
    pub accesses: Vec<Access>,
    pub caches: &'static [u32],
}

impl Load {
    fn new(name: &'static str, accesses: Vec<Access>) -> Load {
        let caches: &[u32] = if name == "loop" { &[50, 80, 95] } else { &[2, 5, 10, 20, 40] };
        Load { name, accesses, caches }
    }
}

/// Those of docs/decisions/0007-replacement.md.
pub fn steady(path: Option<&str>) -> Result<Vec<Load>, String> {
    let mut loads = vec![
        Load::new("zipf 0.9", zipf(0.9, 0)),
        Load::new("zipf 1.1", zipf(1.1, 0)),
        Load::new("zipf 0.9, 30 % writes", zipf(0.9, 30)),
        Load::new("zipf 0.9 and scans", scans()),
        Load::new("loop", round()),
    ];
    if let Some(path) = path {
        loads.push(Load::new("trace", trace(path)?));
    }
    Ok(loads)
}

/// Zipf's law over ranks that move on by one block every `every` requests: what is popular now is
/// not for ever.
fn drifting(every: u64, writes_percent: u64) -> Vec<Access> {
    let (zipf, mut prng) = (Zipf::new(0.9), Prng::new(5));
    let block = |i: u64, prng: &mut Prng| block_of((zipf.rank(prng) + i / every) % BLOCKS);
    (0..REQUESTS as u64).map(|i| (block(i, &mut prng), prng.below(100) < writes_percent)).collect()
}

/// Every tenth of the time other blocks are popular.
fn jumping() -> Vec<Access> {
    let (zipf, mut prng) = (Zipf::new(0.9), Prng::new(6));
    let tenth = REQUESTS as u64 / 10;
    let shift = |i: u64| base::prng::mix64(i / tenth) % BLOCKS;
    (0..REQUESTS as u64)
        .map(|i| (((u64::from(zipf.draw(&mut prng)) + shift(i)) % BLOCKS) as u32, false))
        .collect()
}

/// Four requests of five go to a window of a sixteenth of the volume, any block of it, which moves
/// on through the whole volume once; a third of these write. The others go anywhere.
fn window() -> Vec<Access> {
    let mut prng = Prng::new(7);
    let size = BLOCKS / 16;
    let mut next = |i: u64| {
        if prng.below(5) == 0 {
            return (prng.below(BLOCKS) as u32, false);
        }
        let begin = i * BLOCKS / REQUESTS as u64;
        (((begin + prng.below(size)) % BLOCKS) as u32, prng.below(3) == 0)
    };
    (0..REQUESTS as u64).map(&mut next).collect()
}

/// By turns: reads by Zipf's law; a backup, which reads the whole volume in order; a load of writes
/// to a quarter of the volume, each block of which is read once soon after.
fn day() -> Vec<Access> {
    let (zipf, mut prng) = (Zipf::new(1.0), Prng::new(8));
    let mut out = Vec::with_capacity(REQUESTS);
    for turn in 0.. {
        (0..900_000).for_each(|_| out.push((zipf.draw(&mut prng), false)));
        if turn % 2 == 0 {
            out.extend((0..BLOCKS / 2).map(|b| (b as u32, false)));
        } else {
            for _ in 0..150_000 {
                let block = prng.below(BLOCKS / 4) as u32;
                out.push((block, true));
                let back = prng.below(2_000).min(out.len() as u64 - 1) as usize;
                let (before, _) = out[out.len() - 1 - back];
                out.push((before, false));
            }
        }
        if out.len() >= REQUESTS {
            break;
        }
    }
    out.truncate(REQUESTS);
    out
}

/// Loads that no parameter was chosen by.
pub fn shifting() -> Vec<Load> {
    let caches: &[u32] = &[5, 20];
    [
        ("drift of 1 in 10", drifting(10, 0)),
        ("drift of 1 in 100", drifting(100, 0)),
        ("drift, 40 % writes", drifting(30, 40)),
        ("jumps", jumping()),
        ("moving window", window()),
        ("reads, backups, writes", day()),
    ]
    .into_iter()
    .map(|(name, accesses)| Load { name, accesses, caches })
    .collect()
}
