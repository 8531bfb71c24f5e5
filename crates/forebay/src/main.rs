//! The command `forebay`: serves a pool's volumes over NBD, and looks after both.
//!
//! * [`cli`]: commands and their arguments, a file for each group
//! * [`config`]: arguments and configuration file become one validated configuration before
//!   anything is opened
//! * [`home`]: the directory of `forebay up`
//! * [`world`]: backend and devices; [`signatures`]: what a device already holds; [`sockets`]:
//!   where it listens; [`credentials`]: what TLS goes by
//! * [`shard`]: the running server; [`mailbox`]: how other threads reach it; [`signals`];
//!   [`notify`]: what the service manager hears
//! * [`tuning`]: its settings, which may change
//! * [`cache_life`]: the pool's cache at a server; [`cache_file`]: where one may be made
//! * [`doctor`]: what of a machine and a configuration would hurt a server
//! * [`control`]: what commands say to a running server; [`http`]: the same over HTTP, and metrics
//! * [`attach`]: volumes as disks of this machine
//! * [`terminal`]: tables, colours, progress; [`top`]: what a server does, second by second
//! * [`banner`], [`output`], [`units`], [`logs`], [`health`]: what people read

mod attach;
mod banner;
mod cache_file;
mod cache_life;
mod cli;
mod config;
mod control;
mod credentials;
mod device_life;
mod devices;
mod doctor;
mod error;
mod explain;
mod health;
mod home;
mod http;
mod limits;
mod logs;
mod mailbox;
mod notify;
mod output;
mod shard;
mod signals;
mod signatures;
mod sockets;
mod terminal;
mod top;
mod tuning;
mod units;
mod world;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

/// The engine allocates and frees a few small things for every request, often many at once; the C
/// library's allocator is slower at that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match cli::Cli::parse().run() {
        Ok(status) => ExitCode::from(status),
        Err(e) => {
            // Its reader may have gone.
            let _ = writeln!(std::io::stderr(), "forebay: {e}");
            ExitCode::from(e.exit_status())
        }
    }
}
