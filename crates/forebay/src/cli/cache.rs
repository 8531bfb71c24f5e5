//! `forebay cache`: the cache of a running server.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use base::shell_word;
use clap::{Args, Subcommand};
use model::cache::CacheStatus;
use model::volume::CacheMode;
use model::{Verb, request};

use crate::cli::cache_status;
use crate::cli::options::{ClientOptions, positive_size};
use crate::control::client::ask;
use crate::error::{CommandError, Result};
use crate::output::{done, is_json, print, print_json};
use crate::terminal::Look;
use crate::terminal::interrupted::InterruptNotice;
use crate::terminal::progress::{Progress, Step};

/// The interval between two looks at the progress.
const LOOK: Duration = Duration::from_millis(500);

/// The write-back cache of a running server: attach, detach, status, mode, flush, cancel
#[derive(Args, Debug)]
pub struct CacheCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Put a cache in front of the pool, while it serves
    Attach {
        /// A file or block device; what it holds is lost. A file that does not exist is made, with
        /// the size that --size says
        path: PathBuf,
        /// Size of a file that does not exist yet
        #[arg(long, value_parser = positive_size)]
        size: Option<u64>,
        /// Overwrite what it holds, unless that is a cache that was not detached
        #[arg(long)]
        force: bool,
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
        #[arg(add = crate::cli::candidates::volumes())]
        volume: String,
        /// writeback, writethrough, writearound or none
        #[arg(value_parser = cache_mode)]
        mode: CacheMode,
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Write everything back; the cache stays
    Flush {
        #[command(flatten)]
        client: ClientOptions,
    },
    /// Give up a detach, or with VOLUME a change of its mode, while it still writes back
    Cancel {
        /// The volume
        #[arg(add = crate::cli::candidates::volumes())]
        volume: Option<String>,
        #[command(flatten)]
        client: ClientOptions,
    },
}

fn cache_mode(text: &str) -> std::result::Result<CacheMode, String> {
    text.parse().map_err(|_| {
        format!("{text:?} is not a cache mode; use writeback, writethrough, writearound or none")
    })
}

/// Commands that show how far a command is and end it, where Ctrl-C ends the wait for it.
const DETACHES: &str = "forebay cache status shows how far it is, and forebay cache cancel ends it";
const CHANGES: &str =
    "forebay cache status shows how far it is, and forebay cache cancel VOLUME ends it";
const FLUSHES: &str = "forebay cache status shows how far it is";

impl CacheCommand {
    pub fn run(self) -> Result<()> {
        match self.action {
            Action::Attach { path, size, force, client } => {
                let path = std::path::absolute(&path)
                    .map_err(|e| CommandError::failed(path.display(), e))?;
                if size.is_none() && needs_size(&path) {
                    return Err(CommandError::Usage(format!(
                        "say with --size how large {} is to be",
                        path.display()
                    )));
                }
                let at = path.clone();
                client.ask(request::CacheAttach { path: at, size_bytes: size, force })?;
                let drift = client.ask(request::Status {})?.drift;
                let is_found = drift.is_none_or(|drift| drift.is_found);
                let next = match is_found {
                    true => "the next start finds it by itself".to_owned(),
                    false => format!(
                        "from now on forebay serve must be started with --cache {}",
                        shell_word(&path.display().to_string())
                    ),
                };
                done(&format!("attached; {next}"))
            }
            Action::Detach { client } => {
                let path = cache_of(&client)?.path;
                ask_with_progress(&client, request::CacheDetach {}, DETACHES)?;
                done(&format!(
                    "detached; everything is in the pool, and {path} is of no use any more"
                ))
            }
            Action::Status { client } => {
                let status = client.ask(request::Status {})?;
                let cache = status.cache.as_ref().ok_or_else(no_cache)?;
                if is_json() {
                    print_json(cache)
                } else {
                    print(&cache_status::text(&status, &Look::of_stdout()))
                }
            }
            Action::Mode { volume, mode, client } => {
                // Data that only the cache has is written back first.
                let text = format!("{volume} uses the cache as {} from now on", mode.word());
                ask_with_progress(&client, request::SetCacheMode { volume, mode }, CHANGES)?;
                done(&text)
            }
            Action::Flush { client } => {
                cache_of(&client)?;
                ask_with_progress(&client, request::CacheFlush {}, FLUSHES)?;
                done("everything that was written before is in the pool")
            }
            Action::Cancel { volume, client } => {
                let what = match &volume {
                    None => "the cache stays".to_owned(),
                    Some(volume) => format!("{volume} keeps its mode"),
                };
                client.ask(request::CacheCancel { volume })?;
                done(&format!("cancelled: {what}; what is dirty is written back in time"))
            }
        }
    }
}

/// Whether a file is still to be made.
fn needs_size(path: &Path) -> bool {
    match path.metadata() {
        Ok(meta) => meta.is_file() && meta.len() == 0,
        // Others, such as a directory that only the server may enter, are the server's to judge.
        Err(e) => e.kind() == ErrorKind::NotFound,
    }
}

fn no_cache() -> CommandError {
    CommandError::Failed(
        "the pool has no cache; attach one: forebay cache attach PATH --size SIZE".into(),
    )
}

fn cache_of(client: &ClientOptions) -> Result<CacheStatus> {
    client.ask(request::Status {})?.cache.ok_or_else(no_cache)
}

/// Asks, and shows meanwhile how much is still dirty. After Ctrl-C the server goes on: `how` names
/// the commands that show that, and end it.
fn ask_with_progress<R>(client: &ClientOptions, request: R, how: &'static str) -> Result<()>
where
    R: Verb<Answer = ()> + Send + 'static,
{
    let _told = InterruptNotice::without_us(how);
    let (sender, answer) = channel();
    let socket = client.socket();
    let asking = std::thread::Builder::new().name("ask".into()).spawn(move || {
        // There is no listener any more only if this process is ending.
        let _ = sender.send(ask(&socket, request));
    });
    asking.map_err(|e| CommandError::failed("starting a thread", e))?;
    let mut progress = Progress::new(false);
    let (mut most, mut before) = (0, None);
    loop {
        match answer.recv_timeout(LOOK) {
            Ok(outcome) => return outcome,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(CommandError::Failed(
                    "the thread that asks has ended: type it again".into(),
                ));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if !progress.is_wanted() {
            continue;
        }
        // If the status cannot be had, the answer will say why.
        let Ok(status) = ask(&client.socket(), request::Status {}) else { continue };
        let cache = status.cache.unwrap_or_default();
        let (dirty, carried) = (cache.dirty_bytes, cache.writeback.carried_bytes);
        most = dirty.max(most);
        let carried = carried.saturating_sub(*before.get_or_insert(carried));
        progress.show(&written_back(dirty, carried, most));
    }
}

/// The progress of writing back, if at most `most` bytes were dirty. A pass carries all that it has
/// before any of it is clean.
fn written_back(dirty: u64, carried: u64, most: u64) -> Step {
    Step {
        what: "writing back".into(),
        done: most.saturating_sub(dirty).max(carried).min(most),
        total: most,
        ..Step::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_carried_or_no_longer_dirty_is_done() {
        for (dirty, carried, done) in [(3, 0, 5), (8, 2, 2), (3, 2, 5), (3, 9, 8)] {
            let step = written_back(dirty, carried, 8);
            assert_eq!((step.done, step.total), (done, 8));
        }
    }
}
