//! The command `forebay`: serves a pool's volumes over NBD, and looks after both.
//!
//! * [`cli`]: commands and their arguments, a file for each group
//! * [`config`]: arguments and configuration file become one validated configuration before
//!   anything is opened
//! * [`serve`]: the running server, its health, its settings, HTTP, and the life of its devices
//! * [`host`]: the machine: devices, sockets, directories, logs, rights
//! * [`control`]: what commands say to a running server
//! * [`doctor`]: what of a machine and a configuration would hurt a server
//! * [`attach`]: volumes as disks of this machine
//! * [`terminal`]: tables, colours, progress; [`top`]: what a server does, second by second
//! * [`output`], [`units`]: text and JSON for people and programs
//!
//! The library exists so that fuzz targets reach the readers of foreign bytes ([`hostile`]); the
//! program has `main` alone.

mod attach;
mod cli;
mod config;
mod control;
mod doctor;
mod error;
mod host;
pub mod hostile;
mod output;
mod serve;
mod terminal;
mod top;
mod units;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

/// Does what the arguments of the process say. What is returned is the process's exit status.
pub fn main() -> ExitCode {
    let _lines = host::logs::LogGuard;
    cli::Cli::complete();
    let parsed = cli::Cli::try_parse().unwrap_or_else(|e| {
        if e.use_stderr() && std::env::args_os().any(|word| word == "--json") {
            let text = output::failure_as_json(e.render().to_string().trim(), 2);
            // The reader of standard error may have gone.
            drop(writeln!(std::io::stderr(), "{text}"));
            std::process::exit(2);
        }
        e.exit()
    });
    match parsed.run() {
        Ok(status) => ExitCode::from(status),
        Err(e) => {
            host::logs::last_word(&e);
            ExitCode::from(e.exit_status())
        }
    }
}
