//! `fuzzing`: runs targets without coverage, writes their seeds for libFuzzer, or gives a target
//! one file.
#![allow(clippy::disallowed_methods, reason = "outside of the engine")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use fuzzing::run::{note_panics, run};
use fuzzing::{TARGETS, Target};

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Prints the names of all targets
    List,
    /// Gives targets changes of their seeds for so long, each
    Run {
        #[arg(long, default_value_t = 10)]
        seconds: u64,
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// All if none is named
        targets: Vec<String>,
    },
    /// Writes seeds to DIR/TARGET/, for libFuzzer to begin with
    Seeds { dir: PathBuf },
    /// Gives a target the bytes of a file
    Feed { target: String, file: PathBuf },
}

fn find(name: &str) -> Result<&'static Target, String> {
    TARGETS.iter().find(|t| t.name == name).ok_or_else(|| format!("there is no target {name}"))
}

fn run_all(names: &[String], seconds: u64, seed: u64) -> Result<(), String> {
    let all: Vec<&Target> = match names {
        [] => TARGETS.iter().collect(),
        names => names.iter().map(|name| find(name)).collect::<Result<_, _>>()?,
    };
    note_panics();
    let mut bad = 0;
    for target in all {
        let begun = Instant::now();
        match run(target, seed, |_| begun.elapsed() >= Duration::from_secs(seconds)) {
            Ok(inputs) => println!("{}: {inputs} inputs", target.name),
            Err(finding) => {
                let path = format!("finding-{}", target.name);
                fs::write(&path, &finding.input).map_err(|e| format!("{path}: {e}"))?;
                println!("{}: {}: {}", target.name, path, finding.panics.join("\n"));
                bad += 1;
            }
        }
    }
    if bad > 0 { Err(format!("{bad} targets do not stand an input")) } else { Ok(()) }
}

fn write_seeds(dir: &Path) -> Result<(), String> {
    for target in TARGETS {
        let dir = dir.join(target.name);
        let failed = |e: std::io::Error| format!("{}: {e}", dir.display());
        fs::create_dir_all(&dir).map_err(failed)?;
        for (number, seed) in (target.seeds)().iter().enumerate() {
            fs::write(dir.join(format!("seed-{number}")), seed).map_err(failed)?;
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::List => {
            TARGETS.iter().for_each(|target| println!("{}", target.name));
            Ok(())
        }
        Command::Run { seconds, seed, targets } => run_all(&targets, seconds, seed),
        Command::Seeds { dir } => write_seeds(&dir),
        Command::Feed { target, file } => find(&target).and_then(|target| {
            let bytes = fs::read(&file).map_err(|e| format!("{}: {e}", file.display()))?;
            (target.feed)(&bytes);
            Ok(())
        }),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("fuzzing: {e}");
            ExitCode::FAILURE
        }
    }
}
