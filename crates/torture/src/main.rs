//! `torture --seeds N --seed FIRST`: runs seeds over threads; exit status 1 if any failed.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the command is outside of the simulated world"
)]

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use torture::{Aim, Coverage, run_seed};

/// The whole engine under simulation, against a model.
#[derive(Parser)]
#[command(version, about)]
struct Args {
    /// Number of seeds to run.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads; each run is on one.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Print what was covered; with a single seed its settings and the engine's log, too.
    #[arg(long)]
    verbose: bool,
    /// With a single seed: print every operation at the seam.
    #[arg(long)]
    trace: bool,
    /// Run every seed twice and compare; without it one in eight is.
    #[arg(long)]
    replay_check: bool,
    /// Begin no more seeds after so many seconds.
    #[arg(long)]
    time_limit: Option<u64>,
    /// Of these seeds, run those alone in which devices of the pool come and go.
    #[arg(long)]
    moves: bool,
    /// Aim every seed at this class of fault.
    #[arg(long, value_parser = aim)]
    aim: Option<Aim>,
    /// Stop at the first failure.
    #[arg(long)]
    fail_fast: bool,
}

impl Args {
    fn wants(&self, seed: u64) -> bool {
        !self.moves || torture::draw(seed, self.aim).changes.moves > 0
    }
}

fn aim(name: &str) -> Result<Aim, String> {
    let names = || Aim::ALL.map(Aim::name).join(", ");
    let found = Aim::ALL.into_iter().find(|aim| aim.name() == name);
    found.ok_or_else(|| format!("it is one of: {}", names()))
}

/// A seed is replayed once in so many.
const REPLAYED: u64 = 8;

#[derive(Default)]
struct Totals {
    passed: u64,
    failed: Vec<u64>,
    replayed: u64,
    virtual_ns: u64,
    slowest: (Duration, u64),
    coverage: Coverage,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let single = args.seeds == 1;
    if single && args.verbose {
        let filter = tracing_subscriber::EnvFilter::try_from_default_env()
            .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("debug"));
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .without_time()
            .init();
        eprintln!("{:?}", torture::draw(args.seed, args.aim));
    }
    torture::catch_panics();
    let started = Instant::now();
    let totals = Mutex::new(Totals::default());
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..args.threads.max(1) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let late = args
                        .time_limit
                        .is_some_and(|s| started.elapsed() >= Duration::from_secs(s));
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if late || i >= args.seeds {
                        break;
                    }
                    let seed = args.seed.wrapping_add(i);
                    if !args.wants(seed) {
                        continue;
                    }
                    let twice = args.replay_check || seed % REPLAYED == 0;
                    let began = Instant::now();
                    let outcome = one(seed, args.aim, args.trace && single, twice);
                    let Ok(mut t) = totals.lock() else { break };
                    t.slowest = t.slowest.max((began.elapsed(), seed));
                    t.replayed += u64::from(twice);
                    match outcome {
                        Ok(summary) => {
                            t.passed += 1;
                            t.virtual_ns += summary.virtual_ns;
                            t.coverage.merge(&summary.coverage);
                        }
                        Err(text) => {
                            t.failed.push(seed);
                            println!("{text}\n");
                            if args.fail_fast {
                                stop.store(true, Ordering::Relaxed);
                            }
                        }
                    }
                    let done = t.passed + t.failed.len() as u64;
                    if done % 50 == 0 && done < args.seeds {
                        println!("{done} of {} seeds, {} failed", args.seeds, t.failed.len());
                    }
                }
            });
        }
    });
    let Ok(totals) = totals.into_inner() else { return ExitCode::FAILURE };
    report(&args, &totals, started.elapsed())
}

fn one(seed: u64, aim: Option<Aim>, trace: bool, twice: bool) -> Result<torture::Summary, String> {
    let first = run_seed(seed, aim, trace)?;
    if twice {
        let second = run_seed(seed, aim, false)?;
        if first != second {
            return Err(format!(
                "seed {seed} failed: two runs of it differ: {:016x} and \
                 {:016x}\n{:?}\n{:?}\n{}",
                first.hash,
                second.hash,
                first.coverage,
                second.coverage,
                torture::replay(seed, aim)
            ));
        }
    }
    Ok(first)
}

fn report(args: &Args, t: &Totals, took: Duration) -> ExitCode {
    let c = &t.coverage;
    let runs = t.passed + t.failed.len() as u64;
    let operations: u64 =
        ["write", "sectors", "large", "read", "flush", "discard", "zeroes", "extents", "outside"]
            .iter()
            .chain(["create", "delete", "grow", "shrink"].iter())
            .map(|name| c.get(name))
            .sum();
    println!(
        "{runs} runs ({} of them twice), {operations} operations, {} power cuts, {} kills, {} \
         closes, {:.0} s of virtual time, {:.1} seeds/s, the slowest {:.1} s (seed {})",
        t.replayed,
        c.get("power cuts"),
        c.get("kills"),
        c.get("closes"),
        t.virtual_ns as f64 / 1e9,
        runs as f64 / took.as_secs_f64().max(0.001),
        t.slowest.0.as_secs_f64(),
        t.slowest.1,
    );
    let faults: Vec<String> =
        c.0.iter()
            .filter_map(|(n, v)| n.strip_prefix("faults: ").map(|n| format!("{v} {n}")))
            .collect();
    println!("faults: {}", faults.join(", "));
    if args.verbose {
        for (name, n) in &c.0 {
            println!("  {n:>10}  {name}");
        }
    }
    if !t.failed.is_empty() {
        let seeds: Vec<String> = t.failed.iter().map(u64::to_string).collect();
        println!("failed seeds: {}", seeds.join(" "));
    }
    println!("{} passed, {} failed", t.passed, t.failed.len());
    if t.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
