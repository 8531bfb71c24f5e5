//! A command's conversation with a running server.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::Value;

use crate::config::chosen::find;
use crate::control::{Request, RequestError, decode_answer, encode_request};
use crate::error::{CommandError, Result};

/// Asks the server at `socket`. However long it takes: a shrink, for instance, frees before it
/// answers.
pub fn ask(socket: &Path, request: &Request) -> Result<Value> {
    let at = socket.display();
    let broken = |e: std::io::Error| {
        let e = CommandError::failed(format_args!("talking to the server at {at}"), e);
        e.or_next("forebay status shows whether it is there")
    };
    let mut stream = UnixStream::connect(socket).map_err(|e| nobody_there(socket, &e))?;
    let line = encode_request(request).map_err(|e| broken(e.into()))?;
    stream.write_all(&line).map_err(broken)?;
    let mut reply = Vec::new();
    BufReader::new(stream).read_until(b'\n', &mut reply).map_err(broken)?;
    match decode_answer(&reply) {
        Some(Ok(value)) => Ok(value),
        Some(Err(e)) => Err(refused(request, &e)),
        None if reply.is_empty() => Err(CommandError::Failed(format!(
            "the server at {at} ended before it answered; its log says why, and forebay \
                 status whether it is there again"
        ))),
        None => Err(CommandError::Failed(format!(
            "what answers at {at} is not forebay; say with --socket where its control socket is"
        ))),
    }
}

/// The server's refusal.
fn refused(request: &Request, e: &RequestError) -> CommandError {
    let text = e.to_string();
    let error = match is_of_arguments(request, e) {
        true => CommandError::Usage(text),
        false => CommandError::Failed(text),
    };
    error.or_next(&request.next(e))
}

/// Whether a refusal is about the arguments. Where the server calls a new volume or a limit
/// invalid, it is; of other requests it may be about what is there.
fn is_of_arguments(request: &Request, e: &RequestError) -> bool {
    match request {
        Request::VolumeCreate { .. } | Request::VolumeLimit { .. } => e.kind == "invalid",
        Request::Settings { key: Some(_) } => matches!(e.kind.as_str(), "invalid" | "not-found"),
        // A value that is right may be one that changes with a restart only, say.
        Request::Set { key, value, .. } => match find(key).map(|key| key.kind) {
            Ok(kind) => {
                let read = kind.parse(value);
                e.kind == "invalid" && !read.is_ok_and(|value| kind.has(value))
            }
            Err(_) => matches!(e.kind.as_str(), "invalid" | "not-found"),
        },
        _ => false,
    }
}

fn nobody_there(socket: &Path, e: &std::io::Error) -> CommandError {
    let at = socket.display();
    if !matches!(
        e.kind(),
        ErrorKind::NotFound | ErrorKind::ConnectionRefused | ErrorKind::NotADirectory
    ) {
        let e = CommandError::failed(format_args!("connecting to {at}"), e);
        return e.or_next("run it as the server's user, or say with --socket where it listens");
    }
    CommandError::Failed(format!(
        "no server answers at {at}; start one with `forebay up` or `forebay serve`, or say with \
         --socket where it listens"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_told_from_what_is_refused() {
        let set = |key: &str, value: &str| Request::Set {
            key: key.into(),
            value: value.into(),
            save: false,
        };
        let status = |request: &Request, kind: &str| {
            refused(request, &RequestError::new(kind, "no")).exit_status()
        };
        assert_eq!(status(&set("max_lag", "10"), "invalid"), 2);
        assert_eq!(status(&set("max_lag", "9000h"), "invalid"), 2);
        assert_eq!(status(&set("lag", "1s"), "not-found"), 2);
        assert_eq!(status(&Request::Settings { key: Some("lag".into()) }, "not-found"), 2);
        // It changes with a restart only; or the disk is full.
        assert_eq!(status(&set("pool.cached_nodes", "4096"), "invalid"), 1);
        assert_eq!(status(&set("max_lag", "10s"), "failed"), 1);
        assert_eq!(status(&Request::CacheDetach {}, "invalid"), 1);
    }
}
