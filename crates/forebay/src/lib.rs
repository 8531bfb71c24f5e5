//! The command `forebay`: serves a pool's volumes over NBD, and looks after both.
//!
//! * [`cli`]: commands and their arguments, a file for each group
//! * [`config`]: arguments and configuration file become one validated configuration before
//!   anything is opened
//! * [`home`]: the directory of `forebay up`; [`device_list`]: where the devices of its pool are
//! * [`world`]: backend and devices; [`emptiness`]: what a device already holds; [`sockets`]:
//!   where it listens; [`credentials`]: what TLS goes by
//! * [`shard`]: the running server; [`mailbox`]: how other threads reach it; [`signals`];
//!   [`notify`]: what the service manager hears
//! * [`tuning`]: its settings, which may change
//! * [`device_life`]: devices that come and go; [`device_names`]: what users call them
//! * [`cache_life`]: the pool's cache at a server; [`cache_file`]: where one may be made
//! * [`overcommit`]: volumes that are larger together than the pool
//! * [`rights`]: what helps where this user may not do it
//! * [`doctor`]: what of a machine and a configuration would hurt a server
//! * [`control`]: what commands say to a running server; [`http`]: the same over HTTP, and metrics
//! * [`attach`]: volumes as disks of this machine
//! * [`terminal`]: tables, colours, progress; [`top`]: what a server does, second by second
//! * [`banner`], [`output`], [`units`], [`logs`], [`health`]: what people read
//!
//! It is a library so that fuzz targets reach what reads foreign bytes ([`hostile`]); the program
//! has `main` alone.

mod attach;
mod banner;
mod cache_file;
mod cache_life;
mod calendar;
mod cli;
mod config;
mod control;
mod credentials;
mod device_life;
mod device_list;
mod device_names;
mod devices;
mod doctor;
mod emptiness;
mod error;
mod explain;
mod health;
mod home;
mod home_place;
#[doc(hidden)]
mod host_log;
pub mod hostile;
mod http;
mod limits;
mod logs;
mod mailbox;
mod notify;
mod output;
mod overcommit;
mod preflight;
mod rights;
mod roles;
mod shard;
mod signals;
mod sockets;
mod terminal;
mod top;
mod tuning;
mod units;
mod whole_file;
mod world;

use std::process::ExitCode;

use clap::Parser;

/// Does what the arguments of the process say. What is returned is the process's exit status.
pub fn main() -> ExitCode {
    let _lines = logs::UntilRead;
    match cli::Cli::parse().run() {
        Ok(status) => ExitCode::from(status),
        Err(e) => {
            logs::last_word(&e);
            ExitCode::from(e.exit_status())
        }
    }
}
