//! Replacement measured: what a victim costs among very many buckets, and which hit ratio the
//! policies reach.
//!
//! `cargo run --release -p cache --example replacement` measures the first, `... -- hits
//! [TRACE.csv]` the second, and `... -- shifting` the same for loads whose popular blocks change; a
//! trace has the columns time in seconds, R or W, offset and length in bytes, and one line of
//! headings at most. The last arguments of both may be names of policies: then others are left out.
#![allow(clippy::disallowed_methods, reason = "it measures time")]

use std::time::{Duration, Instant};

use base::Prng;
use cache::replacement::{Origin, Replacement};
use model::cache::Policy;

mod loads;
mod simulation;
mod study;

const BUCKETS: u32 = 32_000_000;
/// Few, for the memory that the counts of their hits would take.
const BUCKET_BLOCKS: u32 = 16;

fn main() -> Result<(), String> {
    let (policies, args): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|a| a.parse::<Policy>().is_ok());
    let mut args = args.into_iter();
    let mut policies: Vec<Policy> = policies.iter().filter_map(|p| p.parse().ok()).collect();
    if policies.is_empty() {
        policies.extend(Policy::ALL);
    }
    match args.next().as_deref() {
        None => victims(),
        Some("hits") => study::hits(args.next().as_deref(), &policies)?,
        Some("shifting") => study::shifting(&policies),
        Some(other) => {
            return Err(format!("{other}: give nothing, hits [TRACE.csv], or shifting"));
        }
    }
    Ok(())
}

/// Takes a victim and puts it back, as evicting and refilling a bucket does, as many times as there
/// are buckets.
fn victims() {
    println!("{BUCKETS} buckets, {BUCKETS} victims, each inserted again");
    println!(
        "{:8} {:24} {:>10} {:>12} {:>12}",
        "policy", "recency", "mean ns", "p99.99 us", "maximum us"
    );
    // What the clock and the machine's other work contribute.
    measure("none", "-", || {});
    for policy in Policy::ALL {
        for (name, prepare) in [
            ("all equal", equal as fn(&mut Replacement)),
            ("all read, all the time", read),
            ("all distinct", distinct),
        ] {
            let mut r = Replacement::new(policy, BUCKETS as usize, BUCKET_BLOCKS, 1);
            prepare(&mut r);
            let (mut last, mut clock) = (None, 0);
            measure(&policy.to_string(), name, || {
                // The one taken before comes back; all are candidates but for that one.
                if let Some(id) = last {
                    enter(&mut r, id, clock);
                    if name.starts_with("all read") {
                        (0..3).for_each(|_| r.touch(id, 0, BUCKET_BLOCKS));
                    }
                }
                last = r.victim(|_| true);
                if let Some(id) = last {
                    std::hint::black_box(r.survivors(id));
                    r.evicted(id, clock, BUCKET_BLOCKS, clock + 1);
                    r.end(id);
                    clock += 1;
                }
            });
        }
    }
}

fn measure(policy: &str, recency: &str, mut step: impl FnMut()) {
    let (mut all, mut worst) = (Duration::ZERO, Duration::ZERO);
    let mut by_tenth_us = [0u64; 1000];
    for _ in 0..BUCKETS {
        let start = Instant::now();
        step();
        let took = start.elapsed();
        all += took;
        worst = worst.max(took);
        by_tenth_us[(took.as_nanos() / 100).min(999) as usize] += 1;
    }
    let mut above = 0;
    let slow = (0..by_tenth_us.len()).rev().find(|&i| {
        above += by_tenth_us[i];
        above > u64::from(BUCKETS) / 10_000
    });
    let (mean, slow) =
        (all.as_nanos() as f64 / f64::from(BUCKETS), (slow.unwrap_or(0) + 1) as f64 / 10.0);
    println!(
        "{policy:8} {recency:24} {mean:>10.0} {slow:>12.1} {:>12.1}",
        worst.as_nanos() as f64 / 1e3
    );
}

/// A bucket is filled, and may go. All three queues of the adaptive policy are used.
fn enter(r: &mut Replacement, id: u32, clock: u32) {
    r.begin(id, Origin::ALL[id as usize % 3], clock);
    r.insert(id);
}

/// Every bucket has all the marks that reads give.
fn read(r: &mut Replacement) {
    equal(r);
    (0..BUCKETS).for_each(|id| (0..3).for_each(|_| r.touch(id, 0, BUCKET_BLOCKS)));
}

/// Inserted in order, never read: no bucket is better than another.
fn equal(r: &mut Replacement) {
    (0..BUCKETS).for_each(|id| enter(r, id, 0));
}

/// Inserted in random order, then read in another one: the recency of each is its own, and
/// neighbours in a queue are far apart in memory.
fn distinct(r: &mut Replacement) {
    let mut prng = Prng::new(2);
    let mut order: Vec<u32> = (0..BUCKETS).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, prng.below(i as u64 + 1) as usize);
    }
    order.iter().for_each(|&id| enter(r, id, 0));
    // 7919 is prime and no factor of the number: each comes once.
    (0..order.len()).for_each(|i| r.touch(order[i * 7919 % order.len()], 0, 1));
}
