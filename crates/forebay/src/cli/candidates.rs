//! Names that a shell offers where a command wants a volume, a snapshot, a device, a setting or a
//! problem. Those of volumes, snapshots and devices come from the running server; where none
//! answers soon, nothing is offered.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use model::{Verb, operations, request};

use crate::config::table::KEYS;
use crate::control::client::{ask_patiently, usual_socket};

/// The time that a shell waits for names.
const PATIENCE: Duration = Duration::from_millis(700);

/// The names of the server's volumes.
pub fn volumes() -> ArgValueCompleter {
    completer(names_of_volumes)
}

/// The names of the server's snapshots, with those of their volumes.
pub fn snapshots() -> ArgValueCompleter {
    completer(names_of_snapshots)
}

/// The names of the server's volumes, and of its snapshots.
pub fn volumes_and_snapshots() -> ArgValueCompleter {
    completer(|| names_of_volumes().into_iter().chain(names_of_snapshots()).collect())
}

/// The beginnings of the names of new snapshots.
pub fn new_snapshots() -> ArgValueCompleter {
    completer(|| names_of_volumes().into_iter().map(|name| name + "@").collect())
}

fn names_of_volumes() -> Vec<String> {
    let volumes = asked(request::VolumeList {}).unwrap_or_default();
    volumes.into_iter().map(|volume| volume.name).collect()
}

fn names_of_snapshots() -> Vec<String> {
    let snapshots = asked(request::SnapshotList { volume: None }).unwrap_or_default();
    snapshots.iter().map(|s| s.full_name()).collect()
}

/// The paths of the pool's devices, and the ids of those that have none.
pub fn devices() -> ArgValueCompleter {
    completer(|| {
        let devices = asked(request::Status {}).map(|status| status.pool.devices);
        let name = |d: model::device::DeviceStatus| if d.path.is_empty() { d.id } else { d.path };
        devices.unwrap_or_default().into_iter().map(name).collect()
    })
}

/// The settings.
pub fn settings() -> ArgValueCompleter {
    completer(|| KEYS.iter().map(|key| key.full_name()).collect())
}

/// The problems that have help.
pub fn problems() -> ArgValueCompleter {
    completer(|| operations::all().map(|advice| advice.page).collect())
}

/// Offers those of the names that begin as the word that is typed.
fn completer(names: fn() -> Vec<String>) -> ArgValueCompleter {
    ArgValueCompleter::new(move |typed: &OsStr| {
        let typed = typed.to_string_lossy();
        let names = names().into_iter().filter(|name| name.starts_with(&*typed));
        names.map(CompletionCandidate::new).collect::<Vec<_>>()
    })
}

/// The answer of the server, if it comes soon.
fn asked<R>(request: R) -> Option<R::Answer>
where
    R: Verb + Send + 'static,
    R::Answer: Send,
{
    let (answered, answer) = mpsc::channel();
    let socket = socket_of(std::env::args_os().collect());
    #[allow(clippy::disallowed_methods, reason = "the command is no engine")]
    std::thread::spawn(move || answered.send(ask_patiently(&socket, request)).ok());
    answer.recv_timeout(PATIENCE).ok()?.ok()
}

/// The socket that the line names which is being completed; or the usual one.
fn socket_of(words: Vec<std::ffi::OsString>) -> PathBuf {
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        if word == "--socket" {
            if let Some(path) = words.next() {
                return path.into();
            }
        } else if let Some(path) = word.to_str().and_then(|word| word.strip_prefix("--socket=")) {
            return path.into();
        }
    }
    let of_variable = std::env::var_os("FOREBAY_SOCKET").filter(|path| !path.is_empty());
    of_variable.map_or_else(|| usual_socket().to_owned(), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_which_server() {
        let words = |line: &str| line.split(' ').map(Into::into).collect();
        assert_eq!(socket_of(words("-- forebay volume delete --socket /a b")), PathBuf::from("/a"));
        assert_eq!(socket_of(words("-- forebay gc --socket=/c")), PathBuf::from("/c"));
    }
}
