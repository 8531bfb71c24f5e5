//! `experiments`: runs all experiments and writes `docs/experiments.md` with its pictures.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use experiments::{ALL, Report, Scale, document};

/// Published experiments again, in virtual time: the old policy beside ours.
#[derive(Parser)]
#[command(version, about)]
struct Args {
    /// The folder of documents.
    #[arg(long, default_value = "docs")]
    docs: PathBuf,
    /// Write nothing: fail if the documents say anything else.
    #[arg(long)]
    check: bool,
    /// Print a short variant, which takes seconds, and write nothing.
    #[arg(long)]
    short: bool,
    /// Print these experiments, by number, and write nothing.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=6))]
    only: Vec<u8>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let scale = if args.short { Scale::Short } else { Scale::Full };
    let wanted = |number: usize| args.only.is_empty() || args.only.contains(&(number as u8 + 1));
    let all: Vec<_> = (0..ALL.len()).filter(|n| wanted(*n)).map(|n| ALL[n]).collect();
    let reports = run(&all, scale);
    if args.short || !args.only.is_empty() {
        for report in &reports {
            println!("{}", report.markdown(document::FOLDER));
        }
        return ExitCode::SUCCESS;
    }
    let outcome = document::files(&reports).iter().try_for_each(|(name, text)| {
        let path = args.docs.join(name);
        if args.check { compare(&path, text) } else { write(&path, text) }
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("experiments: {text}");
            ExitCode::FAILURE
        }
    }
}

/// Runs each experiment on a thread of its own: they share nothing.
fn run(all: &[fn(Scale) -> Report], scale: Scale) -> Vec<Report> {
    std::thread::scope(|scope| {
        let started: Vec<_> = all.iter().map(|one| scope.spawn(move || one(scale))).collect();
        let joined = started.into_iter().map(|thread| thread.join());
        joined
            .map(|report| report.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let outcome = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(path, text));
    outcome.map_err(|e| format!("{} cannot be written: {e}", path.display()))
}

fn compare(path: &Path, text: &str) -> Result<(), String> {
    match std::fs::read_to_string(path) {
        Ok(there) if there == text => Ok(()),
        Ok(_) => Err(format!("{} says something else: run make experiments", path.display())),
        Err(e) => Err(format!("{} cannot be read: {e}", path.display())),
    }
}
