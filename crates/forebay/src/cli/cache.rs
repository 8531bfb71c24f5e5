//! `forebay cache`: the cache of a running server.

use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use clap::{Args, Subcommand};
use pool::CacheMode;
use serde_json::Value;

use crate::cli::cache_status;
use crate::cli::options::{ClientOptions, positive_size};
use crate::control::Request;
use crate::control::client::ask;
use crate::error::{CommandError, Result};
use crate::output::{Meter, print, print_json};
use crate::units::human_bytes;

/// How often progress is looked at: on a terminal, and elsewhere.
const LOOK: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(2)];

/// The write-back cache of a running server: attach, detach, status, mode, flush
#[derive(Args, Debug)]
pub struct CacheCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Put a cache in front of the pool, while it serves
    Attach {
        /// A file or block device; what a device holds is lost. A file that does not exist is made,
        /// with the size that --size says
        path: PathBuf,
        /// Size of a file that does not exist yet; it is sparse
        #[arg(long, value_parser = positive_size)]
        size: Option<u64>,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Write everything back and take the cache out, while the pool serves; nothing is lost
    Detach {
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Show what the cache holds and does
    Status {
        /// Print everything as JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Say what the cache does for a volume; kept until it is said anew
    ///
    /// writeback: a write is done, and survives a crash after a FLUSH, when the cache has it.
    /// writethrough: when the pool has it; it is kept in the cache for reads. writearound: the
    /// same, and not kept. none: reads do not use the cache either.
    Mode {
        /// The volume
        volume: String,
        /// writeback, writethrough, writearound or none
        mode: CacheMode,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Write everything back; the cache stays
    Flush {
        #[command(flatten)]
        client: ClientOptions,
    },
}

impl CacheCommand {
    pub fn run(self) -> Result<()> {
        match self.action {
            Action::Attach { path, size, client } => {
                let path = std::path::absolute(&path)
                    .map_err(|e| CommandError::failed(path.display(), e))?;
                ask(
                    &client.socket,
                    &Request::CacheAttach { path: path.clone(), size_bytes: size },
                )?;
                print(&format!(
                    "attached; from now on the server must be started with --cache {} (forebay up \
                     knows its own)\n",
                    path.display()
                ))
            }
            Action::Detach { client } => {
                let path = cache_of(&client)?["path"].as_str().unwrap_or_default().to_owned();
                ask_with_progress(&client, Request::CacheDetach {})?;
                print(&format!(
                    "detached; everything is in the pool, and {path} is of no use any more\n"
                ))
            }
            Action::Status { json, client } => {
                let status = ask(&client.socket, &Request::Status {})?;
                check_there(&status["cache"])?;
                if json {
                    print_json(&status["cache"])
                } else {
                    print(&cache_status::text(&status))
                }
            }
            Action::Mode { volume, mode, client } => {
                // What the cache has alone is written back first.
                ask_with_progress(&client, Request::CacheMode { volume, mode })
            }
            Action::Flush { client } => {
                cache_of(&client)?;
                ask_with_progress(&client, Request::CacheFlush {})?;
                print("everything that was written before is in the pool\n")
            }
        }
    }
}

fn check_there(cache: &Value) -> Result<()> {
    if cache.is_object() {
        return Ok(());
    }
    Err(CommandError::Failed(
        "the pool has no cache; attach one: forebay cache attach PATH --size SIZE".into(),
    ))
}

fn cache_of(client: &ClientOptions) -> Result<Value> {
    let cache = ask(&client.socket, &Request::Status {})?["cache"].take();
    check_there(&cache)?;
    Ok(cache)
}

/// Asks, and tells meanwhile how much is still dirty.
fn ask_with_progress(client: &ClientOptions, request: Request) -> Result<()> {
    let (sender, answer) = channel();
    let socket = client.socket.clone();
    let asking = std::thread::Builder::new().name("ask".into()).spawn(move || {
        // There is no listener any more only if this process is ending.
        let _ = sender.send(ask(&socket, &request));
    });
    asking.map_err(|e| CommandError::failed("starting a thread", e))?;
    let mut meter = Meter::with_lines();
    let look = if meter.is_live() { LOOK[0] } else { LOOK[1] };
    let outcome = loop {
        match answer.recv_timeout(look) {
            Ok(outcome) => break outcome.map(|_| ()),
            Err(RecvTimeoutError::Disconnected) => {
                break Err(CommandError::Failed("no answer".into()));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        // Where the status cannot be had, the answer will say why.
        let Ok(status) = ask(&client.socket, &Request::Status {}) else { continue };
        if let Some(dirty) = status["cache"]["dirty_bytes"].as_u64() {
            meter.show(&format!("writing back: {} left", human_bytes(dirty)));
        }
    };
    meter.clear();
    outcome
}
