//! A command's conversation with a running server.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::Value;

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

/// The server's refusal. Where it calls a new volume or a limit invalid, that is about the
/// arguments; of other requests it may be about what is there.
fn refused(request: &Request, e: &RequestError) -> CommandError {
    let by_arguments =
        matches!(request, Request::VolumeCreate { .. } | Request::VolumeLimit { .. });
    let text = e.to_string();
    let error = match by_arguments && e.kind == "invalid" {
        true => CommandError::Usage(text),
        false => CommandError::Failed(text),
    };
    error.or_next(request.next(e))
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
